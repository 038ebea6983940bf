"""Whatever a policy does, the engine gets an answer that may be acted on; every time it is the rule's is counted."""

import logging
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_parameter_bundle import F, written

from ooco_gym.errors import UserError
from ooco_gym.runtime import REASONS, Guarded, Policy

MANIFEST = {"kind": "candidates", "actions": ["no", "partner", "a", "b"], "inputs": {
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


def test_an_observation_outside_of_training_may_be_left_to_the_policy():
    assert guarded(lambda o, m: 2, outside="policy").decide(seen(x=0.9)) == 2


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


def test_a_policy_that_stalls_is_left_alone_and_the_engine_goes_on():
    release = threading.Event()
    guard = guarded(lambda o, m: release.wait(30) and 2, budget_s=0.02, rest_after=0)
    begun = time.perf_counter()
    assert [guard.decide(seen()) for _ in range(6)] == [RULE] * 6
    assert time.perf_counter() - begun < 5, "six decisions did not wait for a policy that takes half a minute"
    reasons = guard.metrics.counts()["fallbacks"]
    assert reasons == {"budget": 4, "stalled": 2}, "four threads wait; then it is not asked"
    release.set()
    until = time.perf_counter() + 10
    while guard.decide(seen()) != 2:
        assert time.perf_counter() < until, "the threads that have answered are used again"


def test_a_late_answer_is_not_used_even_if_it_was_waited_for():
    guard = guarded(lambda o, m: time.sleep(0.03) or 2, budget_s=0.01, interrupt=False)
    assert guard.decide(seen()) == RULE and guard.metrics.counts()["fallbacks"] == {"budget": 1}


def test_a_policy_that_fails_again_and_again_rests():
    now = SimpleNamespace(s=0.0)
    guard = guarded(fail, rest_after=3, rest_s=10.0, clock=lambda: now.s)
    for _ in range(5):
        guard.decide(seen())
    assert (guard.policy.asked, guard.metrics.counts()["fallbacks"]) == (3, {"raised": 3, "resting": 2})
    now.s = 11.0
    guard.decide(seen())
    assert guard.policy.asked == 4


def test_in_the_shadow_the_rule_acts_and_both_are_compared():
    records = []
    guard = guarded(lambda o, m: 2, shadow=True, on_decision=records.append)
    guard.rule = lambda observation, mask: 2 if len(records) % 2 else 0
    assert [guard.decide(seen()) for _ in range(4)] == [0, 2, 0, 2]
    assert guard.metrics.counts() == {"decisions": {"rule": 4}, "fallbacks": {}, "shadow": {"no": 2, "yes": 2}}
    assert records[0] == {"call": 0, "key": None, "source": "rule", "reason": None, "answer": 0, "policy": 2,
                          "agrees": False}


@pytest.mark.parametrize("share", [0.0, 0.1, 0.25, 0.5, 1.0])
def test_a_canary_takes_its_share_and_the_same_requests_each_time(share):
    guard = guarded(lambda o, m: 2, share=share)
    by_call = [guard.decide(seen()) for _ in range(1000)]
    assert by_call.count(2) == pytest.approx(1000 * share, abs=1)
    by_key = [guard.decide(seen(), key=f"request-{i}") for i in range(2000)]
    assert by_key.count(2) == pytest.approx(2000 * share, abs=80)
    assert by_key[:100] == [guarded(lambda o, m: 2, share=share).decide(seen(), key=f"request-{i}") for i in range(100)]


def test_many_threads_may_ask_at_a_time(tmp_path):
    policy = Policy.load(written(tmp_path))
    guard = Guarded(policy, lambda o, m: RULE, budget_s=30.0, share=0.5)
    inputs = np.random.default_rng(0).uniform(-1, 1, (50, F)).astype(np.float32)
    inputs = np.clip(inputs, 0, 1)
    wanted = [policy.decide(one) for one in inputs]
    wrong = []

    def ask():
        for _ in range(10):
            for one, right in zip(inputs, wanted, strict=True):
                answer = guard.decide(one)
                if answer not in (right, RULE):
                    wrong.append(answer)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = guard.metrics.counts()
    assert wrong == [] and counts["decisions"]["policy"] + counts["decisions"]["rule"] == 4000
    assert counts["decisions"] == {"policy": 2000, "rule": 2000}, "half of all calls, whoever made them"
    assert counts["fallbacks"] == {}


def test_a_log_that_fails_does_not_stop_an_engine(caplog):
    def broken(record):
        raise OSError("disk full")

    guard = guarded(lambda o, m: 2, on_decision=broken)
    with caplog.at_level(logging.WARNING, "ooco_gym.runtime"):
        assert [guard.decide(seen()) for _ in range(5)] == [2] * 5
    assert len(caplog.records) == 1, "said once"


def test_the_reason_is_logged_once():
    handler, records = logging.Handler(), []
    handler.emit = records.append
    logging.getLogger("ooco_gym.runtime").addHandler(handler)
    try:
        guard = guarded(fail)
        for _ in range(5):
            guard.decide(seen())
    finally:
        logging.getLogger("ooco_gym.runtime").removeHandler(handler)
    assert [one.getMessage() for one in records] == ["the rule decides in the policy's place (raised: broken)"]


def test_prometheus_reads_the_metrics():
    guard = guarded(lambda o, m: 2)
    guard.decide(seen())
    guard.decide(seen(x=0.0))
    text = guard.metrics.text()
    assert 'ooco_gym_policy_decisions_total{policy="policy",source="rule"} 1' in text
    assert 'ooco_gym_policy_fallbacks_total{policy="policy",reason="outside"} 1' in text
    assert 'decision_seconds_count{policy="policy"} 1' in text


@pytest.mark.parametrize("options, words", [
    ({"budget_s": 0}, "budget_s=0 must be"), ({"share": 1.5}, "share=1.5 must be"), ({"outside": "x"}, "outside='x'"),
    ({"margin": -1}, "margin=-1"), ({"rest_after": -1}, "rest_after=-1"), ({"budget_s": "1"}, "budget_s='1'")])
def test_options_out_of_range_are_named(options, words):
    with pytest.raises(UserError) as error:
        guarded(fail, **options)
    assert words in str(error.value)
    assert len(set(REASONS)) == 7
