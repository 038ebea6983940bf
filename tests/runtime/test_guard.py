"""Whatever a policy does, the engine gets an answer that may be acted on; every time it is the rule's is counted."""

import logging
import time
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooco_gym.errors import UserError
from ooco_gym.runtime import Guarded, Policy
from ooco_gym.runtime.guard import MOST_IN_A_ROW, REST_S
from tests.runtime.test_parameter_bundle import F, written

MANIFEST = {"kind": "candidates", "actions": ["no", "base_policy", "a", "b"], "inputs": {
    "cluster": {"shape": [2], "features": [{"name": "x", "low": 0.0, "high": 1.0, "seen": [0.2, 0.6]},
                                           {"name": "y", "low": 0.0, "high": 1.0}]},
    "candidates": {"shape": [2, 1], "features": [{"name": "z", "low": 0.0, "high": 1.0, "seen": [0.5, 1.0]}]}}}
RULE = "the rule's"


@pytest.fixture(autouse=True)
def logging_is_on(caplog, monkeypatch):
    """What other tests run in this process, such as Hydra, turns loggers off or raises their level."""
    monkeypatch.setattr(logging.getLogger("ooco_gym.runtime"), "disabled", False)
    with caplog.at_level(logging.WARNING, "ooco_gym.runtime"):
        yield


class Scripted:
    """A policy that does what it is told."""

    manifest = MANIFEST

    def __init__(self, does):
        self.does, self.asked = does, 0

    def decide(self, observation, mask=None):
        self.asked += 1
        return self.does(observation, mask)


def seen(x=0.4, y=0.5, z=(0.7, 0.7)):
    return {"cluster": [x, y], "candidates": [[one] for one in z], "decision": [1.0], "action_mask": [1, 1, 1, 0]}


def guarded(does, **options):
    return Guarded(Scripted(does), lambda observation, mask: RULE, **options)


def fail(observation, mask):
    raise RuntimeError("broken")


@pytest.mark.parametrize("does, observation, reason", [
    (lambda o, m: 2, seen(), None),
    (fail, seen(), "raised"),
    (lambda o, m: 3, seen(), "nonsense"),
    (lambda o, m: 4, seen(), "nonsense"),
    (lambda o, m: -1, seen(), "nonsense"),
    (lambda o, m: "start", seen(), "nonsense"),
    (lambda o, m: None, seen(), "nonsense"),
    (lambda o, m: True, seen(), "nonsense"),
    (lambda o, m: 2, seen(x=float("nan")), "not_finite"),
    (lambda o, m: 2, seen(y=float("inf")), "not_finite"),
    (lambda o, m: 2, seen(x=0.7), "outside"),
    (lambda o, m: 2, seen(x=0.61), None),
    (lambda o, m: 2, seen(y=1.1), "outside"),
    (lambda o, m: 2, seen(z=(0.3, 0.7)), "outside"),
    (lambda o, m: 2, seen(z=(0.7, 0.0)), None),
    (lambda o, m: 2, {"cluster": "text"}, "raised"),
    (lambda o, m: 2, None, "raised"),
])
def test_the_rule_stands_in_and_it_is_counted_why(does, observation, reason):
    guard = guarded(does)
    answer = guard.decide(observation)
    assert answer == (2 if reason is None else RULE)
    counts = guard.metrics.counts()
    assert counts["decisions"] == {"policy" if reason is None else "rule": 1}
    assert counts["fallbacks"] == ({} if reason is None else {reason: 1})


@given(answer=st.one_of(st.integers(-10, 10), st.floats(), st.text(max_size=3), st.none(), st.booleans(),
                        st.lists(st.integers(0, 3), max_size=3), st.dictionaries(st.text(max_size=2), st.floats())),
       mask=st.lists(st.integers(0, 1), min_size=4, max_size=4))
@settings(max_examples=200)
def test_no_answer_is_acted_on_that_the_mask_does_not_allow(answer, mask):
    acted = guarded(lambda o, m: answer).decide(seen(), mask)
    assert acted == RULE or (type(acted) is int and mask[acted] == 1)


def test_values_of_parameters_are_checked_against_their_bounds(tmp_path):
    policy = Policy.load(written(tmp_path, seen=[[-1.0] * F, [1.0] * F]))
    good = policy.decide(np.zeros(F))
    for answer, taken in [(good, True), ({**good, "tpot_share": 9.0}, False), ({"tpot_share": 1.0}, False),
                          ({**good, "tpot_share": float("nan")}, False), (list(good.values()), False)]:
        double = SimpleNamespace(manifest=policy.manifest, decide=lambda o, m, answer=answer: answer)
        assert (Guarded(double, lambda o, m: RULE).decide(np.zeros(F)) == answer) is taken
    guard = Guarded(policy, lambda o, m: RULE)
    assert guard.decide(np.full(F, 0.5)) == policy.decide(np.full(F, 0.5))
    assert guard.decide(np.full(F, 1.5)) == RULE and guard.decide(np.full(F - 1, 0.5)) == RULE


def test_a_late_answer_is_not_used_even_if_it_was_waited_for():
    guard = guarded(lambda o, m: time.sleep(0.03) or 2, budget_s=0.01)
    assert guard.decide(seen()) == RULE and guard.metrics.counts()["fallbacks"] == {"budget": 1}


def test_a_policy_that_fails_again_and_again_rests(monkeypatch):
    now = SimpleNamespace(perf_counter=lambda: now.s, s=0.0)
    monkeypatch.setattr("ooco_gym.runtime.guard.time", now)
    guard = guarded(fail)
    for _ in range(MOST_IN_A_ROW + 2):
        guard.decide(seen())
    assert guard.policy.asked == MOST_IN_A_ROW
    assert guard.metrics.counts()["fallbacks"] == {"raised": MOST_IN_A_ROW, "resting": 2}
    now.s = REST_S + 1.0
    guard.decide(seen())
    assert guard.policy.asked == MOST_IN_A_ROW + 1


def test_in_the_shadow_the_rule_acts_and_both_are_compared():
    asked = iter((0, 2, 0, 2))
    guard = guarded(lambda o, m: 2, shadow=True)
    guard.rule = lambda observation, mask: next(asked)
    assert [guard.decide(seen()) for _ in range(4)] == [0, 2, 0, 2]
    assert guard.metrics.counts() == {"decisions": {"rule": 4}, "fallbacks": {}, "shadow": {"no": 2, "yes": 2}}


def test_prometheus_reads_the_metrics():
    guard = guarded(lambda o, m: 2)
    guard.decide(seen())
    guard.decide(seen(x=0.0))
    text = guard.metrics.text()
    assert 'ooco_gym_policy_decisions_total{policy="policy",source="rule"} 1' in text
    assert 'ooco_gym_policy_fallbacks_total{policy="policy",reason="outside"} 1' in text
    assert 'decision_seconds_count{policy="policy"} 1' in text


@pytest.mark.parametrize("budget_s", [0, "1"])
def test_a_budget_out_of_range_is_named(budget_s):
    with pytest.raises(UserError, match="budget_s=.* must be a number of seconds above 0"):
        guarded(fail, budget_s=budget_s)
