"""Environments on closed sessions: the checkers, vector and single, snapshots, the base policy's own play."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from ooco_gym import Simulation
from ooco_gym.policy import policy_of
from ooco_gym.sim import state as s
from tests.envs.episodes_in_short import alike, arguments, at_random, base_policy, differences, make, play
from tests.sim.invariants import edges

CHAT = {"name": "sharegpt", "sharing": {"form": "chat", "ratio": 0.4, "think_s": 4.0}, "sessions": "closed",
        "think_s": {"median": 2.0, "sigma": 1.0}}
IDS = ("ooco_gym/Serving-v1", "ooco_gym/Colocation-v1", "ooco_gym/PrefillGate-v1")
SCENARIO = {"ooco_gym/Serving-v1": {"workload": CHAT}, "ooco_gym/Colocation-v1": {"workload": CHAT, "rate_scale": 1.0},
            "ooco_gym/PrefillGate-v1": {"workload": CHAT, "rate_scale": 3.0}}


def short(name: str) -> dict[str, Any]:
    return arguments(name, scenario=SCENARIO[name], window_s=20.0, warmup_s=10.0)


def turns_of(env: Any) -> int:
    """Turns that have arrived after another one has finished; each did."""
    state = env.simulation.state
    waits, turns = edges(state)
    came = state.requests["status"][turns] != s.FUTURE
    assert (state.requests["status"][waits[came]] == s.FINISHED).all()
    return int(came.sum())


@pytest.mark.parametrize("name", IDS)
def test_the_checker_passes_and_the_base_policy_plays_as_the_simulator(name: str) -> None:
    env: Any = gym.make(name, disable_env_checker=True, **short(name)).unwrapped
    check_env(env, skip_render_check=True)
    play(env, base_policy)
    assert turns_of(env) > 10
    whole = Simulation(env.config.window(1, 0), policy_of(env.config.base_policy))
    whole.advance()
    if name != "ooco_gym/Serving-v1":  # its base policy's action is not all that its rules do
        assert differences(env.simulation.state, whole.state) == []


@pytest.mark.parametrize("name", IDS)
def test_a_restored_episode_goes_on_as_it_did(name: str) -> None:
    env, other = make(name, **short(name)), make(name, **short(name))
    env.reset(seed=1, options={"window": 0})
    choose = at_random(4)
    for _ in range(20):
        env.step(choose(env))
    state, told = env.snapshot(), []
    for where in (env, env, other):
        observation, _ = where.restore(pickle.loads(pickle.dumps(state)))
        choose, steps, over = at_random(5), [observation], False
        while not over and len(steps) < 400:
            observation, reward, _, over, info = where.step(choose(where))
            steps.append((observation, reward, info))
        told.append((steps, turns_of(where)))
    assert alike(told[0], told[1]) and alike(told[0], told[2])
    assert told[0][1] > 0


@pytest.mark.parametrize("name", IDS)
def test_the_vector_equals_single_environments(name: str) -> None:
    vector: Any = gym.make_vec(name, num_envs=2, **short(name))
    singles = [make(name, **short(name)) for _ in range(2)]
    for options in (None, None):
        seen, _ = vector.reset(seed=[3, 4], options=options)
        alone = [env.reset(seed=seed)[0] for env, seed in zip(singles, (3, 4), strict=True)]
        for _ in range(120):
            assert all(np.array_equal(seen[key][i], alone[i][key]) for i in range(2) for key in alone[i])
            actions = np.array([at_random(7)(env) for env in singles])
            seen, rewards, _, over, _ = vector.step(actions)
            steps = [env.step(action) for env, action in zip(singles, actions, strict=True)]
            alone = [step[0] for step in steps]
            assert rewards.tolist() == [step[1] for step in steps]
            assert over.tolist() == [step[3] for step in steps]
            if over.any():
                break
