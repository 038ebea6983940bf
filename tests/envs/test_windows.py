"""Windows: those kept begin again as if built anew; what an environment's file varies stays where it is given."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

import ooco_gym  # noqa: F401  registers the environments
from ooco_gym.cli import main
from ooco_gym.envs.prefill_gate import PrefillGateVectorEnv
from ooco_gym.resources import load_yaml

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
