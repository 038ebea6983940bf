"""Windows: those kept begin again as if built anew; what an environment's file varies stays where it is given."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import ooco_gym  # noqa: F401  registers the environments
from ooco_gym.cli import main
from ooco_gym.envs.buffers import UNTIL_PS
from ooco_gym.envs.prefill_gate import PrefillGateVectorEnv
from ooco_gym.resources import load_yaml
from tests.envs.episodes_in_short import IDS, WINDOW, alike, arguments, at_random, make, play

SHORT = {"window_s": 20.0, "warmup_s": 20.0}


def played(env, episodes: int) -> list[tuple[tuple[int, int], bytes]]:
    """Windows played and the bytes of all that the environment said, episode by episode of the first place."""
    env.reset(seed=1)
    found, said = [], []
    while len(found) < episodes:
        window = env.windows[0]
        observation, reward, _, truncated, _ = env.step(env.base_actions())
        said.append(observation["cluster"][0].tobytes() + reward[0].tobytes())
        if truncated[0]:
            found.append((window, b"".join(said[:-1])))  # the last one is of the next episode
            said = []
    return found


def test_a_window_from_the_bank_begins_as_it_did_at_first():
    arguments = {"num_envs": 2, "autoreset_mode": "SameStep", "train_seeds": [5, 6], **SHORT}
    with_bank, again = PrefillGateVectorEnv(bank=4, **arguments), {}
    for window, said in played(with_bank, 12):
        assert window[0] in (5, 6) and window[1] < 2
        assert again.setdefault(window, said) == said
    assert len(again) == 4 and len(with_bank.episodes._bank) == 4
    for window, said in again.items():
        single = gym.make("ooco_gym/PrefillGate-v1", **SHORT).unwrapped
        observation, _ = single.reset(seed=window[0], options={"window": window[1]})
        pieces, over = [], False
        while not over:
            observation, reward, _, over, _ = single.step(single.base_action())
            pieces.append(observation["cluster"].tobytes() + np.float64(reward).tobytes())
        assert b"".join(pieces[:-1]) == said


ID = "ooco_gym/Batching-v1"
LOW, HIGH = load_yaml("env", "batching")["vary"]["rate_scale"]


def scales(**arguments):
    config = gym.make(ID, disable_env_checker=True, **arguments).unwrapped.config
    return {config.window(seed, 0).rate_scale for seed in range(5)}


def test_each_window_has_a_load_of_its_own():
    found = scales()
    assert len(found) == 5 and all(LOW <= scale <= HIGH for scale in found)


@pytest.mark.parametrize(("arguments", "scale"), [
    ({"shift": "load"}, 2.1), ({"shift": "instances"}, 7.0), ({"scenario": {"rate_scale": 0.3}}, 0.3)])
def test_what_is_given_is_not_drawn(arguments, scale):
    assert scales(**arguments) == {scale}


def test_a_command_says_that_what_it_is_given_would_be_drawn_anew(tmp_path, capsys):
    words = ["headroom", "env=batching", f"out={tmp_path / 'run'}"]
    assert main([*words, "env.scenario.rate_scale=1.5"]) == 2
    assert "expected a range to draw from: env.vary.rate_scale=[1.5]" in capsys.readouterr().err


# --- An episode whose window ends while the load goes on is cut: it shows the decision that would have come next -----
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
