"""Snapshots: an episode that is restored goes on as it did, bit by bit."""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ooco_gym
from ooco_gym.policy import get_policy
from tests.envs.episodes_in_short import make

SHORT: dict[str, Any] = {"window_s": 60.0, "warmup_s": 20.0}
NAMES = ("PrefillGate", "Eviction", "Migration", "Packing", "OnlineTuning", "Colocation", "Routing", "Batching",
         "Serving", "PreemptionVictim")


@cache
def environment(name: str, copy: int = 0) -> Any:
    return make(f"ooco_gym/{name}-v{1 + (name == 'Routing')}")


def walk(env: Any, steps: int, seed: int) -> list[Any]:
    """Random legal actions; all that was told on the way, to the last bit."""
    random, told = np.random.default_rng(seed), []
    for _ in range(steps):
        if not env.episodes.open(0):
            break
        if env.episodes.controls is not None:
            action = random.integers(env.episodes.controls.counts)
        else:
            action = int(random.choice(np.flatnonzero(env.action_masks())))
        observation, reward, _, over, info = env.step(action)
        told.append((*(part.tobytes() for part in observation.values()), reward, over,
                     repr({key: value for key, value in info.items() if key != "action_mask"})))
    return told


@given(name=st.sampled_from(NAMES), window=st.integers(0, 3), before=st.integers(0, 60), aside=st.integers(0, 80),
       after=st.integers(1, 60))
@settings(max_examples=25, deadline=None)
def test_a_restored_episode_goes_on_as_it_did(name: str, window: int, before: int, aside: int, after: int) -> None:
    env, other = environment(name), environment(name, 1)
    env.reset(seed=11, options={"window": window})
    walk(env, before, 1)
    state = env.snapshot()
    first = walk(env, after, 2)
    observation, info = env.restore(state)
    assert env.observation_space.contains(observation)
    assert np.array_equal(info["action_mask"], observation["action_mask"])
    walk(env, aside, 3)
    env.restore(state)
    assert walk(env, after, 2) == first
    other.restore(pickle.loads(pickle.dumps(state)))
    assert other.window == env.window
    assert walk(other, after, 2) == first


@given(order=st.lists(st.integers(0, 4), min_size=2, max_size=6))
@settings(max_examples=10, deadline=None)
def test_snapshots_may_be_restored_in_any_order(order: list[int]) -> None:
    """An earlier one after a later one, and back: requests that had arrived are put back to where they were."""
    env = environment("PrefillGate")
    env.reset(seed=12, options={"window": 1})
    states, told = [], []
    for _ in range(5):
        states.append(env.snapshot())
        told.append(walk(env, 25, 4))
    for index in order:
        env.restore(states[index])
        assert walk(env, 25, 4) == told[index]


def test_the_end_and_its_summary_are_the_same_again() -> None:
    env = environment("PrefillGate")
    env.reset(seed=15, options={"window": 0})
    walk(env, 20, 7)
    state = env.snapshot()
    first = walk(env, 10_000, 8)
    summary = env.summary()
    env.restore(state)
    assert walk(env, 10_000, 8) == first
    assert env.summary() == summary
    ended = env.snapshot()
    env.reset(seed=15, options={"window": 0})
    env.restore(ended)
    assert env.summary() == summary
    with pytest.raises(ooco_gym.UserError, match="over"):
        env.step(1)


def test_restoring_other_snapshots_is_refused() -> None:
    env = gym.make("ooco_gym/PrefillGate-v1", **SHORT).unwrapped
    with pytest.raises(ooco_gym.UserError, match="reset"):
        env.snapshot()
    env.reset(seed=1)
    with pytest.raises(ooco_gym.UserError, match="snapshot"):
        env.restore({"now": 0})
    for other in (gym.make("ooco_gym/Eviction-v1", **SHORT), gym.make("ooco_gym/PrefillGate-v1", window_s=30.0)):
        with pytest.raises(ooco_gym.UserError, match="configuration"):
            other.unwrapped.restore(env.snapshot())


def _pulls_as_slack() -> Any:
    return replace(get_policy("ooco"), pull=get_policy("slack").pull)


@pytest.mark.parametrize(("name", "mine", "others"), [
    ("PrefillGate", {"base_policy": {"name": "ooco"}}, [
        {"base_policy": {"name": "slack"}}, {"base_policy": _pulls_as_slack()},
        {"reward": {"service": 2.0}}]),
    ("Packing", {}, [{"levels": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]}]),
    ("OnlineTuning", {"controls": {"gate_gain": "x4"}}, [{"controls": {"gate_gain": "x3"}}]),
])
def test_a_snapshot_belongs_to_its_base_policy_levels_and_weights(name: str, mine: dict[str, Any],
                                                              others: list[dict[str, Any]]) -> None:
    env: Any = gym.make(f"ooco_gym/{name}-v1", **SHORT, **mine).unwrapped
    env.reset(seed=1)
    state = env.snapshot()
    for arguments in others:
        with pytest.raises(ooco_gym.UserError, match="configuration"):
            gym.make(f"ooco_gym/{name}-v1", **SHORT, **arguments).unwrapped.restore(state)
    same: Any = gym.make(f"ooco_gym/{name}-v1", **SHORT, **{**mine, "base_policy": "ooco"}).unwrapped
    same.restore(pickle.loads(pickle.dumps(state)))  # the same base policy, however it is written
