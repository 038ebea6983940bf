"""Policies by name, their parameters, and what mistakes in them are told."""

from __future__ import annotations

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ooco_gym.errors import UserError
from ooco_gym.policy import Policy, get_policy, list_policies, policy_of, spelled, spelling_of
from ooco_gym.sim import state as s

SHIPPED = ("always", "base_pd", "never", "online_priority", "ooco", "ooco_xllm", "random")


def test_all_shipped_policies_are_found() -> None:
    assert set(SHIPPED) <= set(list_policies())
    for name in SHIPPED:
        policy = get_policy(name)
        assert policy.name == name
        assert len(policy.hooks()) == 7
        assert set(policy.values) == {param.name for param in policy.params}, "every parameter has a value in conf"


def test_parameters_reach_the_rules_as_numbers() -> None:
    policy = get_policy("ooco:slo_margin=0.8,interrupt=never,layer_resume=1")
    vector = policy.vector()
    names = [param.name for param in policy.params]
    assert vector.shape == (s.PARAMS + s.KEEPS,) and vector.dtype == np.float64
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
    ("vllm_fcfs:max_num_seqs=3.5", ("max_num_seqs=3.5", "whole number from 0 to 1000000")),
    ("sarathi:max_num_seqs=0", ("max_num_seqs=0", "whole number from 1 to 65536")),
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
