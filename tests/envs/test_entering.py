"""The decision `admit`, alone: where it is asked, and what entering does."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from ooco_gym import Simulation, candidate_table
from ooco_gym.envs import entering
from ooco_gym.envs.base import DecisionEnv
from ooco_gym.envs.vector import register
from ooco_gym.policy import policy_of
from ooco_gym.policy.latency_budget import OPEN_LEFT, WHOLE
from ooco_gym.sim import state as s
from tests.envs.episodes_in_short import ENTERING, SHORT, differences, play


class EnteringEnv(DecisionEnv):
    """Asks this decision only."""

    id = "tests/Entering-v0"
    decisions = (entering.DECISION,)
    default_scenario = "batching"


register(EnteringEnv)
MEMORY_BOUND = {"cluster": "mixed_llama2_7b_40g", "workload": "azure_conv", "rate_scale": 0.04,
                "offline": {"mode": "rate", "rate": 2.0}}
SHARED = {"offline": {"mode": "rate", "rate": 8.0, "lengths": "mmlu",
                      "sharing": {"form": "few_shot", "ratio": 0.83, "groups": 57}}}
CASES = {
    "as trained": {}, "four engines": {"cluster": "engines_7b", "scenario": {"rate_scale": 5.0}},
    "memory binds": {"scenario": MEMORY_BOUND},
    "swapped out": {"scenario": MEMORY_BOUND, "base_policy": "deadline:preempted=swap,tpot_share=1.5"},
    "prefixes are shared": {"scenario": SHARED, "base_policy": "deadline:prefix_caching=on"},
}


def make(scenario=None, **changes):
    arguments = {"scenario": {**ENTERING, **(scenario or {})}, **SHORT, **changes}
    return gym.make(EnteringEnv.id, disable_env_checker=True, **arguments).unwrapped


def as_the_rule(env):
    """The base policy's rule request by request: what it would try next, while it fits in."""
    first = np.flatnonzero(candidate_table(env._observation())[:, entering.F.first])
    return 2 + int(first[0]) if len(first) else 0 if env.action_masks()[0] else 1


@pytest.mark.parametrize("case", CASES)
def test_one_rule_through_two_drivers_gives_the_same_bytes(case):
    """The compiled rule whole, and request by request through the environment."""
    env = make(**CASES[case])
    assert len(play(env, as_the_rule)) > 20
    whole = Simulation(env.config.window(1, 0), policy_of(env.config.base_policy))
    assert not whole.advance()
    assert differences(env.simulation.state, whole.state) == []


@pytest.mark.parametrize("case", CASES)
def test_a_request_that_is_chosen_enters_and_no_other_does(case):
    env = make(**CASES[case])
    random, entered = np.random.default_rng(5), 0
    env.reset(seed=2, options={"window": 0})
    for _ in range(150):
        state, buffers = env.simulation.state, env.episodes.buffers
        chosen, instance = buffers.chosen[0].copy(), int(state.pending.instance)
        assert len(set(chosen[chosen >= 0])) == (chosen >= 0).sum() == env.action_masks()[2:].sum()
        assert (state.requests["status"][chosen[chosen >= 0]] == s.WAITING).all()
        assert not state.requests["online"][chosen[chosen >= 0]].any() and buffers.iteration[0, OPEN_LEFT] > 0
        waiting, steps = state.requests["status"] == s.WAITING, int(state.instances["steps_begun"][instance])
        k, left = int(random.integers(env.action_masks()[2:].sum())), int(buffers.iteration[0, OPEN_LEFT])
        over = env.step(2 + k)[3]
        state = env.simulation.state
        if int(state.instances["steps_begun"][instance]) == steps and not over:  # asked again in the same iteration
            gone = np.flatnonzero(waiting & (state.requests["status"] != s.WAITING))
            assert gone.tolist() == [chosen[k]] and state.requests["instance"][chosen[k]] == instance
            assert state.requests["num_scheduled_tokens"][chosen[k]] == left - buffers.iteration[0, OPEN_LEFT] > 0
        entered += 1
        assert (state.instances["stage"] == WHOLE).all()
        if over:
            break
    assert entered > 20


def test_to_admit_none_is_legal_where_the_iteration_has_other_work():
    """Not at first: the backlog is there before any other work is."""
    env, seen = make(scenario={"rate_scale": 0.05, "offline": {"mode": "backlog"}}, warmup_s=0.0), set()

    def watch(one):
        legal, tokens = bool(one.action_masks()[0]), int(one.episodes.buffers.iteration[0, 0])
        assert legal == (tokens > 0)
        seen.add(legal)
        return 0 if legal else int(np.flatnonzero(one.action_masks())[-1])

    play(env, watch)
    assert seen == {True, False}
