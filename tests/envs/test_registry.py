"""What every registered environment keeps, without naming one: conventions, determinism, masks, plain figures."""

from __future__ import annotations

import json
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from ooco_gym.envs import ENVIRONMENTS

STEPS = 400
pytestmark = pytest.mark.parametrize("name", ENVIRONMENTS)


def trajectory(name, seed):
    """Everything that an agent is given in the first steps under random legal actions."""
    env, seen = gym.make(name), []
    observation, info = env.reset(seed=seed)
    env.action_space.seed(seed)
    for _ in range(STEPS):
        seen.append((tuple(part.tobytes() for part in observation.values()), info["action_mask"].tobytes()))
        observation, reward, terminated, truncated, info = env.step(env.action_space.sample(mask=info["action_mask"]))
        seen.append(reward)
        if terminated or truncated:
            break
    env.close()
    return seen


def test_gymnasium_checker_is_content(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gym.make(name).unwrapped, skip_render_check=True)


def test_same_seed_same_bytes(name):
    assert trajectory(name, 3) == trajectory(name, 3)
    assert trajectory(name, 3) != trajectory(name, 4)


def test_the_mask_is_there_by_both_conventions(name):
    env = gym.make(name)
    observation, info = env.reset(seed=1)
    inside: Any = env.unwrapped
    assert info["action_mask"].dtype == np.int8
    assert np.array_equal(info["action_mask"], observation["action_mask"])
    assert np.array_equal(inside.action_masks(), info["action_mask"].astype(bool))


def test_the_summary_is_plain_figures(name):
    """Scripts write it as JSON and print it."""
    env = gym.make(name)
    env.reset(seed=1)
    inside: Any = env.unwrapped
    summary = inside.summary()
    assert json.loads(json.dumps(summary)) == summary
    assert {type(value) for value in summary.values()} == {float}
