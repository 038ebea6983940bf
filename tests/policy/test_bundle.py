"""Policies by name, their parameters, and what mistakes in them are told."""

from __future__ import annotations

import numpy as np
import pytest

from ooco_gym.errors import UserError
from ooco_gym.policy import Param, Policy, get_policy, list_policies, policy_of
from ooco_gym.sim import state as s

SHIPPED = ("always", "base_pd", "never", "online_priority", "ooco", "ooco_xllm", "random")


def test_all_shipped_policies_are_found() -> None:
    assert set(SHIPPED) <= set(list_policies())
    for name in SHIPPED:
        policy = get_policy(name)
        assert policy.name == name
        assert len(policy.hooks()) == 6
        assert set(policy.values) == {param.name for param in policy.params}, "every parameter has a value in conf"


def test_parameters_reach_the_rules_as_numbers() -> None:
    policy = get_policy("ooco:slo_margin=0.8,interrupt=never,layer_resume=1")
    vector = policy.vector()
    names = [param.name for param in policy.params]
    assert vector.shape == (s.PARAMS,) and vector.dtype == np.float64
    assert vector[names.index("slo_margin")] == 0.8
    assert vector[names.index("interrupt")] == 2.0, "the position of a choice"
    assert policy.settings()[s.LAYER_RESUME] == 1
    assert get_policy("ooco").settings()[s.PREFILL_TOKENS] == 2048


def test_whole_bounds_make_a_whole_number() -> None:
    """As a search draws them: 8.0 is one; a parameter with other bounds takes fractions."""
    whole, other = Param("tries", "of something", 1, 64), Param("factor", "of something", 1.0, 64.0)
    assert whole.whole and not other.whole
    assert whole.number(8.0, "mine") == 8.0 and other.number(8.5, "mine") == 8.5
    for value in (8.5, float("inf"), float("nan"), "8"):
        with pytest.raises(UserError, match="mine: tries=.* must be a whole number from 1 to 64"):
            whole.number(value, "mine")


@pytest.mark.parametrize("wrong,words", [
    ("oocoo", ("oocoo", "ooco")),
    ("ooco:slo_margn=0.8", ("slo_margn", "slo_margin")),
    ("ooco:slo_margin=-1", ("slo_margin", "0.01")),
    ("vllm_fcfs:max_num_seqs=3.5", ("max_num_seqs=3.5", "whole number from 1 to 1000000")),
    ("vllm_fcfs:max_num_seqs=0", ("max_num_seqs=0", "whole number from 1 to 1000000")),
    ("ooco:interrupt=neverr", ("neverr", "never")),
    ("ooco:interrupt", ("interrupt", "parameter=value")),
    ({"slo_margin": 0.8}, ("name",)),
])
def test_mistakes_name_the_key_and_the_nearest_valid_name(wrong: object, words: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as error:
        policy_of(wrong)  # type: ignore[arg-type]
    assert all(word in str(error.value) for word in words)
    assert "\n" not in str(error.value)


def test_what_a_bundle_leaves_alone_has_plain_defaults() -> None:
    mine = Policy("mine", (Param("weight", "of something", 0.0, 1.0),), {"weight": 0.5})
    assert all(hook is not None for hook in mine.hooks())
    assert mine.vector()[0] == 0.5
    with pytest.raises(UserError, match="weight"):
        Policy("mine", mine.params).vector()
