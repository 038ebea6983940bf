"""Nothing that an agent sees depends on how long unfinished outputs will be."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest
from numba import types

from ooco_gym.compile import jit
from ooco_gym.envs.buffers import buffers_at
from ooco_gym.envs.stepping import observe, offer
from ooco_gym.sim import state as s
from ooco_gym.sim.state import state_at
from tests.envs.episodes_in_short import IDS, alike, at_random, make, random_legal

LATER_S = 12


@jit(types.void(types.int64, types.int64))
def look_again(buffers_address, i):
    """Offers and observes the open decision of an episode anew."""
    buffers = buffers_at(buffers_address)
    state = state_at(buffers.handles[i])
    offer(state, buffers, i)
    observe(state, buffers, i)


def unfinished(state):
    """Requests whose outputs have an end that is not known yet."""
    return ~np.isin(state.requests["status"], (s.FINISHED, s.REJECTED))


def seen(env):
    return env._observation()


@contextmanager
def put_back_after(env):
    """What is done to the episode in the block is undone at its end; a snapshot takes future requests as built."""
    state, requests = env.snapshot(), env.simulation.state.requests.copy()
    yield
    env.restore(state)
    env.simulation.state.requests[:] = requests


def longer(state, random):
    """Other lengths for all unfinished outputs, and the worth that comes with them; the runs in progress stay."""
    slots = np.flatnonzero(unfinished(state))
    requests = state.requests
    left = requests["generated_tokens"][slots].astype(np.int64) + 1
    drawn = left + random.integers(0, 3000, len(slots))
    requests["output_tokens"][slots] = np.maximum(requests["output_tokens"][slots], drawn)
    requests["service_ps"][slots] += 1_000_000_000
    return len(slots)


def check_decisions(env, most=60):
    """Plays at random; at each decision other lengths must change nothing of what is seen."""
    random, choose, changed = np.random.default_rng(5), np.random.default_rng(6), 0
    for _ in range(most):
        before = seen(env)
        look_again(env.episodes.address, 0)
        assert alike(seen(env), before), "to look twice changes nothing"
        with put_back_after(env):
            changed += longer(env.simulation.state, random)
            look_again(env.episodes.address, 0)
            after = seen(env)
        assert [key for key in before if not np.array_equal(before[key], after[key])] == []
        if env.step(random_legal(choose, env))[3]:
            break
    assert changed > 0


@pytest.mark.parametrize("name", IDS)
def test_lengths_of_unfinished_outputs_are_hidden(name):
    env = make(name)
    env.reset(seed=1, options={"window": 0})
    check_decisions(env)


def play_apart(name, change, most):
    """Two episodes alike but for the outputs of requests that arrive after the compared decisions; what they see."""
    random, pair = np.random.default_rng(3), [make(name) for _ in range(2)]
    for env in pair:
        env.reset(seed=1, options={"window": 0})
    change(pair[1].simulation.state)
    begun_s = pair[0].simulation.now_s
    for _ in range(most):
        yield [seen(env) for env in pair]
        action = random_legal(random, pair[0])
        over = [env.step(action)[3] for env in pair]
        if any(over) or pair[0].simulation.now_s > begun_s + LATER_S:
            return


@pytest.mark.parametrize("name", IDS)
def test_requests_that_have_not_arrived_are_hidden(name):
    """A request that has not arrived yet may as well be another."""

    def change(state):
        future = np.flatnonzero(state.requests["status"] == s.FUTURE)
        arrival_ps = state.requests["arrival_ps"][future]  # NEVER: of a turn that waits for others, perhaps briefly
        late = future[(arrival_ps > state.clock.now_ps + LATER_S * s.PS_PER_S) & (arrival_ps < s.NEVER)]
        assert len(late) > 0
        state.requests["output_tokens"][late] += 500

    checked = 0
    for one, other in play_apart(name, change, 30):
        assert alike(one, other)
        checked += 1
    assert checked > 1


@pytest.mark.parametrize("name", IDS)
def test_a_run_of_decode_steps_is_seen_as_one_step(name):
    """How many steps a run has says when its shortest output ends: `busy` and `progress` speak of the step at hand."""
    found = 0
    env, choose = make(name), at_random(4)
    env.reset(seed=1, options={"window": 0})
    for _ in range(200):
        before = seen(env)
        with put_back_after(env):
            for spec in env.simulation.state.instances:
                if spec["activity"] == s.DECODE and spec["steps"] > 1:
                    spec["end_ps"] += 7 * (spec["end_ps"] - spec["start_ps"])
                    spec["steps"] *= 8
                    found += 1
            look_again(env.episodes.address, 0)
            after = seen(env)
        assert alike(before, after)
        if env.step(choose(env))[3]:
            break
    assert found > 0 or name in ("ooco_gym/PrefillGate-v1", "ooco_gym/Interruption-v1", "ooco_gym/Batching-v1",
                                 "ooco_gym/Admission-v2", "ooco_gym/Jobs-v1",
                                 "ooco_gym/PreemptionVictim-v1", "ooco_gym/Retention-v1",
                                 "ooco_gym/Routing-v2", "ooco_gym/Scaling-v1", "ooco_gym/Serving-v1")
