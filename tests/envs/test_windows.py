"""Windows that are kept begin again as if they had been built anew."""

import gymnasium as gym
import numpy as np
import pytest

import ooco_gym  # noqa: F401  registers the environments
from ooco_gym import UserError
from ooco_gym.envs.gating import GatingVectorEnv

SHORT = {"window_s": 20.0, "warmup_s": 20.0}


def played(env, episodes: int) -> list[tuple[tuple[int, int], bytes]]:
    """Windows played and the bytes of all that the environment said, episode by episode of the first place."""
    env.reset(seed=1)
    found, said = [], []
    while len(found) < episodes:
        window = env.windows[0]
        observation, reward, _, truncated, _ = env.step(env.partner_actions())
        said.append(observation["cluster"][0].tobytes() + reward[0].tobytes())
        if truncated[0]:
            found.append((window, b"".join(said[:-1])))  # the last one is of the next episode
            said = []
    return found


def test_a_window_from_the_bank_begins_as_it_did_at_first():
    arguments = {"num_envs": 2, "autoreset_mode": "SameStep", "train_seeds": [5, 6], **SHORT}
    with_bank, again = GatingVectorEnv(bank=4, **arguments), {}
    for window, said in played(with_bank, 12):
        assert window[0] in (5, 6) and window[1] < 2
        assert again.setdefault(window, said) == said
    assert len(again) == 4 and len(with_bank.episodes._bank) == 4
    for window, said in again.items():
        single = gym.make("ooco_gym/Gating-v0", **SHORT).unwrapped
        observation, _ = single.reset(seed=window[0], options={"window": window[1]})
        pieces, over = [], False
        while not over:
            observation, reward, _, over, _ = single.step(single.partner_action())
            pieces.append(observation["cluster"].tobytes() + np.float64(reward).tobytes())
        assert b"".join(pieces[:-1]) == said


def test_a_bank_is_a_number():
    with pytest.raises(UserError, match="bank=-1 must be a whole number"):
        GatingVectorEnv(num_envs=1, bank=-1)
