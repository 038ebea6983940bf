"""An episode whose window ends while the load goes on is cut: it shows the decision that would have come next."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from ooco_gym.envs.buffers import UNTIL_PS
from tests.envs.episodes_in_short import IDS, WINDOW, alike, arguments, at_random, make, play


def in_a_longer_window(env, choose):
    """The last observation of an episode, and what its last action leads to if the window goes on; None: nothing."""
    env.reset(seed=WINDOW[0], options={"window": WINDOW[1]})
    over = False
    while not over:
        before, action = env.snapshot(), choose(env)
        last, _, terminated, truncated, _ = env.step(action)
        over = terminated or truncated
    env.restore(before)
    simulation = env.simulation
    env.episodes.buffers.status[0, UNTIL_PS] = simulation.state.clock.window_end_ps = simulation.end_ps
    following, _, terminated, truncated, _ = env.step(action)
    assert truncated or not terminated
    return last, following


@pytest.mark.parametrize("name", IDS)
def test_a_cut_episode_ends_with_the_decision_that_a_longer_window_asks_next(name):
    env = make(name)
    last, following = in_a_longer_window(env, at_random(8))
    assert alike(last, following)
    assert last["decision"].sum() == 1.0 and last["cluster"].any() and last["action_mask"].any()


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("name", ["ooco_gym/Gating-v2", "ooco_gym/PrefillGate-v1", "ooco_gym/Batching-v1"])
def test_vectors_give_the_last_observation_and_mask_of_a_cut_episode(name, mode):
    single = make(name, window_s=30.0)
    steps = play(single, lambda env: env.base_action())
    envs: Any = gym.make_vec(name, num_envs=2, autoreset_mode=mode, **arguments(name, window_s=30.0))
    envs.reset(seed=[WINDOW[0], 7], options={"window": WINDOW[1]})
    for _ in steps[1:]:
        observation, _, terminated, truncated, infos = envs.step(envs.base_actions())
    assert truncated[0] and not terminated[0] and steps[-1].truncated
    same = mode == AutoresetMode.SAME_STEP
    last = infos["final_obs"][0] if same else {key: part[0] for key, part in observation.items()}
    mask = (infos["final_info"] if same else infos)["action_mask"][0]
    assert alike(last, steps[-1].observation) and np.array_equal(mask, last["action_mask"])
    assert last["decision"].any() and last["cluster"].any()


def test_an_episode_is_terminated_where_no_decision_follows():
    """Nothing is evicted under a light load: the value of what follows does not depend on the agent."""
    quiet = {"rate_scale": 0.001, "offline": {"mode": "rate", "rate": 0.1}}
    last = play(make("ooco_gym/Eviction-v1", scenario=quiet), lambda env: env.base_action())[-1]
    assert last.terminated and not last.truncated and not last.observation["decision"].any()
    assert np.flatnonzero(last.observation["action_mask"]).tolist() == [1]
    envs: Any = gym.make_vec("ooco_gym/Eviction-v1", num_envs=2, autoreset_mode="SameStep",
                             **arguments("ooco_gym/Eviction-v1", scenario=quiet))
    envs.reset(seed=WINDOW[0])
    _, _, terminated, truncated, infos = envs.step(np.ones(2, int))
    assert terminated.all() and not truncated.any() and not infos["final_obs"][0]["decision"].any()
