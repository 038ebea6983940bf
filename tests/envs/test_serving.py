"""Serving-v1: that each decision is asked when it is due, in order, and sees what its engines can tell."""

from __future__ import annotations

import numpy as np
import pytest

from ooco_gym import Simulation, candidate_table
from ooco_gym.envs import batching, entering, preemption_victim, serving
from ooco_gym.envs.buffers import PLANNED
from ooco_gym.policy import policy_of
from ooco_gym.runtime.features import ACTION, ENTRY, TARGET, VICTIM
from ooco_gym.sim import state as s
from tests.envs.episodes_in_short import at_random, differences, make, play

ID = "ooco_gym/Serving-v1"
TABLES = {"batch": (ACTION, batching), "admit": (ENTRY, entering), "target": (TARGET, serving),
          "reclaim": (VICTIM, preemption_victim)}
SINGLE = {"cluster": "engine_7b", "rate_scale": 1.4, "offline": {"mode": "rate", "rate": 4.0}}
MEMORY_BOUND = {"cluster": "mixed_llama2_7b_40g", "workload": "azure_conv", "rate_scale": 0.07,
                "offline": {"mode": "rate", "rate": 4.0}}
SHARED = {"offline": {"mode": "rate", "rate": 16.0, "lengths": "mmlu",
                      "sharing": {"form": "few_shot", "ratio": 0.83, "groups": 57}}}
CASES = {
    "as trained": {}, "one engine": {"scenario": SINGLE}, "memory binds": {"scenario": MEMORY_BOUND},
    "prefixes are shared": {"scenario": SHARED, "base_policy": "deadline:prefix_caching=on"},
    "closed sessions": {"scenario": {"workload": {
        "name": "sharegpt", "sharing": {"form": "chat", "ratio": 0.4, "think_s": 4.0}, "sessions": "closed",
        "think_s": 1.5}}},
    "beside hygen": {"base_policy": "hygen:latency_budget_s=0.04",
                     "scenario": {"slo": {"ttft_s": 0.5, "tpot_s": 0.03}}},
}


def kind(env):
    return env.episodes.asked(0).name


def test_an_iteration_is_filled_first_then_requests_enter_it_and_arrivals_are_sent():
    """Between the two no time passes, and both are of one engine."""
    env, choose = make(ID), at_random(3)
    env.reset(seed=1, options={"window": 0})
    before, counts = None, dict.fromkeys(TABLES, 0)
    for _ in range(1_500):
        pending = env.simulation.state.pending
        now = (kind(env), int(pending.instance), env.simulation.now_s)
        if now[0] == "admit" and before is not None and before[0] == "batch":
            assert now[1:] == before[1:]
        if now[0] == "target":
            assert now[1] == -1 and env.simulation.state.requests["status"][pending.request] == s.FUTURE
        counts[now[0]] += 1
        before = now
        if env.step(choose(env))[3]:
            break
    assert all(counts[name] > 100 for name in ("batch", "admit", "target"))


def test_a_request_goes_where_it_is_sent():
    env, random, sent = make(ID), np.random.default_rng(2), set()
    env.reset(seed=1, options={"window": 0})
    for _ in range(1_000):
        if kind(env) != "target":
            env.step(1)
            continue
        legal = np.flatnonzero(env.action_masks()[2:])
        assert sorted(env.episodes.buffers.chosen[0, legal]) == [0, 1, 2, 3] and not env.action_masks()[0]
        first = candidate_table(env._observation())[0, serving.F.default]
        assert first == 1.0 and env.episodes.buffers.chosen[0, 0] == env.episodes.buffers.status[0, PLANNED]
        k, slot = int(random.choice(legal)), int(env.simulation.state.pending.request)
        engine = int(env.episodes.buffers.chosen[0, k])
        if env.step(2 + k)[3]:
            break
        assert env.simulation.state.requests["instance"][slot] == engine
        sent.add(engine)
    assert sent == {0, 1, 2, 3}


@pytest.mark.parametrize("case", ["as trained", "one engine", "memory binds", "closed sessions"])
def test_one_rule_through_two_drivers_gives_the_same_bytes(case):
    """The compiled rules whole, and decision by decision: where to, how filled, who enters next."""
    env = make(ID, **CASES[case])

    def as_the_rule(one):
        table, mask = candidate_table(one._observation()), one.action_masks()
        if kind(one) == "target":
            return 2 + int(np.argmax(table[:, serving.F.default]))
        if kind(one) == "admit":
            first = np.flatnonzero(table[:, entering.F.first])
            return 2 + int(first[0]) if len(first) else 0 if mask[0] else 1
        return 1

    play(env, as_the_rule)
    whole = Simulation(env.config.window(1, 0), policy_of(env.config.base_policy))
    assert not whole.advance()
    assert differences(env.simulation.state, whole.state) == []
