"""PreemptionVictim-v1: where it asks, what giving way does, that its features are those an engine can compute."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numba import types

from baselines.deadline import compose_within, settings_of
from ooco_gym import Simulation, candidate_table
from ooco_gym.compile import jit
from ooco_gym.envs.preemption_victim import F
from ooco_gym.policy import policy_of
from ooco_gym.policy.decisions import COMPOSE, addresses, hook
from ooco_gym.policy.latency_budget import OPEN_FIELDS
from ooco_gym.policy.mixed import RECOMPUTE, preempt
from ooco_gym.policy.reclaiming import fits_host, lacking, relief
from ooco_gym.sim import state as s
from tests.envs.episodes_in_short import base_policy, differences, make, play

ID = "ooco_gym/PreemptionVictim-v1"
SHARED = {"rate_scale": 0.06, "offline": {"mode": "rate", "rate": 4.0, "lengths": "ooc",
                                          "sharing": {"form": "few_shot", "ratio": 0.5, "groups": 10}}}
CASES = {
    "as trained": {}, "prefixes are shared": {"scenario": SHARED, "base_policy": "deadline:prefix_caching=on"},
    "beside vLLM's by priority": {"base_policy": "vllm_priority"},
    "beside one that swaps": {"base_policy": "deadline:preempted=swap"},
    "many online requests": {"scenario": {"rate_scale": 0.08}, "candidates": 20},
}


def figures(env, name):
    """A figure of all candidates."""
    return candidate_table(env._observation())[:, getattr(F, name)]


@jit(types.int64(types.int64, types.int64))
def _lacking(handle, instance):
    return lacking(s.state_at(handle), instance)[0]


def lacking_in(state):
    """Blocks that the instance lacks which is asked."""
    handle = s.handle_of(state)
    return _lacking(handle.address, int(state.pending.instance))


# --- One rule, through the environment and as a policy's own --------------------------------------------------------
@hook(COMPOSE)
def least_computed_gives_way(view):
    """`deadline`, before whose iterations the request with the fewest computed tokens gives way while blocks lack."""
    state, instance = view.state, view.instance
    while lacking(state, instance)[0] > 0:
        ways, least = 0, -1
        for place in range(state.instances[instance].running):
            slot = np.int64(state.members[s.BATCH, instance, place])
            if state.requests[slot].urgent or relief(state, instance, slot) <= 0:
                continue
            ways += 1 + fits_host(state, instance, slot)
            other = np.int64(state.members[s.BATCH, instance, max(0, least)])
            if least < 0 or state.requests[slot].num_computed_tokens < state.requests[other].num_computed_tokens:
                least = place
        if ways < 2:  # nothing to choose: the rule that composes takes what it needs
            break
        preempt(state, instance, least, RECOMPUTE)
    return compose_within(state, instance, settings_of(state))


def least_computed(env):
    computed, chosen = env.simulation.state.requests["num_computed_tokens"], env.episodes.buffers.chosen[0]
    order = zip(computed[chosen], figures(env, "swap"), figures(env, "place"), range(len(chosen)), strict=True)
    return 2 + min(one for one in order if chosen[one[-1]] >= 0)[-1]


@pytest.mark.parametrize("case", ["as trained", "prefixes are shared", "beside one that swaps",
                                  "many online requests"])
def test_one_rule_through_two_drivers_gives_the_same_bytes(case):
    """The fewest computed tokens first: request by request through the environment, and compiled."""
    env = make(ID, **CASES[case])
    assert len(play(env, least_computed)) > 20
    whole = Simulation(env.config.window(1, 0), policy_of(env.config.base_policy))
    theirs, rules = whole._hooks, replace(whole.policy, compose=least_computed_gives_way).hooks()
    for hooks, until_s in zip((theirs, addresses(rules), theirs), (*whole.window_s, None), strict=True):
        whole._hooks = hooks
        assert not whole.advance(until_s)
    assert differences(env.simulation.state, whole.state) == []


@pytest.mark.parametrize("case", CASES)
def test_a_request_that_is_chosen_gives_way_and_no_other_does(case):
    env, random, given, lacks = make(ID, **CASES[case]), np.random.default_rng(5), {"lost": 0, "swapped": 0}, 0
    env.reset(seed=2, options={"window": 0})
    for _ in range(150):
        state, buffers = env.simulation.state, env.episodes.buffers
        instance, short = int(state.pending.instance), lacking_in(state)
        slots = buffers.chosen[0][buffers.chosen[0] >= 0]
        assert short > 0 and env.action_masks()[1:].sum() == 1 + len(slots) and not env.action_masks()[0]
        running = state.members[s.BATCH, instance, : int(state.instances["running"][instance])]
        assert set(slots) <= set(running.tolist()) and not state.requests["online"][slots].any()
        k, before = int(random.integers(len(slots))), state.requests["evictions"].copy()
        slot, swapped = int(slots[k]), buffers.iteration[0, OPEN_FIELDS + k] == s.SWAP
        steps = int(state.instances["steps_begun"][instance])
        computed = int(state.requests["num_computed_tokens"][slot])
        over = env.step(2 + k)[3]
        state = env.simulation.state
        asked_again = int(state.instances["steps_begun"][instance]) == steps and not over
        if asked_again and int(state.pending.instance) == instance:
            assert np.flatnonzero(state.requests["evictions"] != before).tolist() == [slot]
            assert state.requests["status"][slot] == s.WAITING and state.requests["blocks"][slot] == 0
            assert state.requests["host_tokens"][slot] == (computed if swapped else 0)
            assert 0 < lacking_in(state) < short
            lacks += 1
        given["swapped" if swapped else "lost"] += 1
        if over:
            break
    assert given["lost"] > 10 and lacks > 0
    assert given["swapped"] > 0


def test_where_memory_is_plentiful_nothing_is_asked():
    last = play(make(ID, scenario={"cluster": "mixed_7b"}), base_policy)
    assert len(last) == 2 and last[-1].info["summary"]["evictions"] == 0
    assert play(make(ID), base_policy)[-1].info["summary"]["evictions"] > 0
