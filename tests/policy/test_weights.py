"""Files of weights: what is written is read again, and what is none is refused in a sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numba import types

from ooco_gym.compile import jit
from ooco_gym.errors import UserError
from ooco_gym.policy import Policy, get_policy, list_policies, policy_of, spelled, spelling_of
from ooco_gym.policy.rules import sum_of_smallest
from ooco_gym.policy.weights import Layout, find_weights, read_weights, shipped_name, write_weights
from ooco_gym.resources import conf_root
from ooco_gym.sim import state as s

LAYOUT = Layout(("share", "chunk", "floor"), ("slack", "waiting", "constant"))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from((0.0, -1.5, 0.25, 1e-300)), min_size=LAYOUT.size, max_size=LAYOUT.size))
def test_weights_survive_their_file(tmp_path: Path, values: list[float]) -> None:
    write_weights(tmp_path / "w.npz", LAYOUT, np.array(values))
    assert read_weights(str(tmp_path / "w.npz"), LAYOUT).tolist() == values


def test_a_rule_that_gains_rows_and_columns_still_reads_a_file(tmp_path: Path) -> None:
    write_weights(tmp_path / "w.npz", LAYOUT, np.arange(9.0))
    longer = Layout(("new", *LAYOUT.rows), ("age", *LAYOUT.columns))
    found = read_weights(str(tmp_path / "w.npz"), longer).reshape(4, 4)
    assert found[1:, 1:].ravel().tolist() == list(range(9)) and not found[0].any() and not found[:, 0].any()


def _save(path: Path, **arrays: object) -> str:
    np.savez(path, **{key: np.asarray(value) for key, value in arrays.items()})  # pyright: ignore[reportArgumentType]
    return str(path)


@pytest.mark.parametrize("arrays, words", [
    ({"weights": [[1.0]], "rows": ["share"]}, "no array 'columns'"),
    ({"weights": [[1.0, 2.0]], "rows": ["share"], "columns": ["slack"]}, "finite numbers, 1 rows of 1"),
    ({"weights": [[np.nan]], "rows": ["share"], "columns": ["slack"]}, "finite numbers"),
    ({"weights": [[1.0]], "rows": ["shares"], "columns": ["slack"]}, "'shares' (did you mean 'share'?)"),
    ({"weights": [[1.0, 1.0]], "rows": ["share"], "columns": ["slack", "slack"]}, "twice"),
    ({"weights": [["x"]], "rows": ["share"], "columns": ["slack"]}, "finite numbers"),
    ({"weights": np.array([[object()]]), "rows": ["share"], "columns": ["slack"]}, "cannot be read"),
])
def test_what_is_no_file_of_weights_is_refused(tmp_path: Path, arrays: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match="w.npz") as refused:
        read_weights(_save(tmp_path / "w.npz", **arrays), LAYOUT)
    assert words in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive", b"text"])
def test_damaged_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "w.npz").write_bytes(content)
    with pytest.raises(UserError, match="cannot be read"):
        read_weights(str(tmp_path / "w.npz"), LAYOUT)


def test_missing_files_and_values_that_name_none_are_refused() -> None:
    with pytest.raises(UserError, match="none.npz' does not exist"):
        _ = get_policy("adaptive_deadline:weights=none.npz").weights
    with pytest.raises(UserError, match="weights=3 must be the path of a file"):
        get_policy("adaptive_deadline:weights=3")


def test_shipped_files_are_named_the_same_on_every_machine() -> None:
    inside = conf_root() / "policy" / "deadline.yaml"
    assert shipped_name(str(inside)) == "policy/deadline.yaml" and find_weights("policy/deadline.yaml") == inside


# --- Compiled helpers that rules share, against NumPy ----------------------------------------------------------------
@jit(types.int64(types.int64[::1], types.int64, types.int64))
def summed(keys, count, few):
    return sum_of_smallest(keys, count, few)


@settings(deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=40), st.data())
def test_the_smallest_are_summed_whatever_their_order_and_ties(lengths, data):
    few = data.draw(st.integers(0, len(lengths)))
    keys = np.array([*lengths, -7], np.int64)  # what lies behind the keys is not theirs

    assert summed(keys, len(lengths), few) == sum(sorted(lengths)[:few])
    assert sorted(keys[:-1]) == sorted(lengths), "keys change places, and nothing else"
    assert keys[-1] == -7


# --- Policies by name, their parameters, and what mistakes in them are told ------------------------------------------
SHIPPED = ("always", "base_pd", "never", "online_priority", "ooco", "ooco_xllm", "random")


def test_all_shipped_policies_are_found() -> None:
    assert set(SHIPPED) <= set(list_policies())
    for name in SHIPPED:
        policy = get_policy(name)
        assert policy.name == name
        assert len(policy.hooks()) == 8
        assert set(policy.values) == {param.name for param in policy.params}, "every parameter has a value in conf"


def test_parameters_reach_the_rules_as_numbers() -> None:
    policy = get_policy("ooco:slo_margin=0.8,interrupt=never,layer_resume=1")
    vector = policy.vector()
    names = [param.name for param in policy.params]
    assert vector.shape == (s.RULE_PARAMS,) and vector.dtype == np.float64
    assert vector[names.index("slo_margin")] == 0.8
    assert vector[names.index("interrupt")] == 2.0, "the position of a choice"
    assert policy.settings()["layer_resume"] == 1
    assert get_policy("ooco").settings()["prefill_tokens"] == 2048


@given(value=st.floats(0.0, 1e6), low=st.floats(1e-300, 1e-4), kind=st.sampled_from(["always", "slack", "never"]),
       number=st.one_of(st.booleans(), st.integers(1, 64)))
@settings(deadline=None, max_examples=60)
def test_what_is_spelled_is_read_to_the_last_bit(value: float, low: float, kind: str, number: int) -> None:
    wanted = {"gate_gain": value, "slack_factor": 1.0 + value, "interrupt": kind, "pull_margin": low}
    known = get_policy("ooco")
    wanted = {name: one for name, one in wanted.items() if _can_have(known, name, one)}
    text = spelled("ooco:random_tries=3", {**wanted, "random_tries": number})
    assert {name: get_policy(text).values[name] for name in wanted} == wanted
    assert get_policy(text).values["random_tries"] == number
    assert spelling_of({"name": "ooco", **wanted, "source": "somewhere"}) == spelled("ooco", wanted)
    assert spelling_of(text) == text


@given(st.one_of(st.floats(allow_nan=False), st.floats(allow_nan=False).map(np.float64)))
@settings(deadline=None)
def test_any_number_is_spelled_as_the_configuration_language_reads_it(value: float) -> None:
    assert yaml.safe_load(spelled("mine", {"rate": value}).partition("=")[2]) == value


def _can_have(policy: Policy, name: str, value: object) -> bool:
    param = next(one for one in policy.params if one.name == name)
    return isinstance(value, str) or (isinstance(value, float) and param.low <= value <= param.high)


@pytest.mark.parametrize("wrong,words", [
    ("oocoo", ("oocoo", "ooco")),
    ("ooco:slo_margn=0.8", ("slo_margn", "slo_margin")),
    ("ooco:slo_margin=-1", ("slo_margin", "0.01")),
    ("vllm_fcfs:max_num_seqs=3.5", ("max_num_seqs=3.5", "whole number from 0 to 1,000,000")),
    ("sarathi:max_num_seqs=0", ("max_num_seqs=0", "whole number from 1 to 65,536")),
    ("ooco:interrupt=neverr", ("neverr", "never")),
    ("ooco:interrupt", ("interrupt", "parameter=value")),
    ({"name": "vllm_fcfs", "engine_version": 0.19}, ("did you mean '0.19.",)),
    ("vllm_fcfs:engine_version=v0.24.0", ("did you mean '0.24.0'?",)),
    ({"slo_margin": 0.8}, ("name",)),
])
def test_mistakes_name_the_key_and_the_nearest_valid_name(wrong: object, words: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as error:
        policy_of(wrong)  # type: ignore[arg-type]
    assert all(word in str(error.value) for word in words)
    assert "\n" not in str(error.value)
