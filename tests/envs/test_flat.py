"""`flat=True`: one vector for an observation, equal to Gymnasium's own flattening, in one episode and in many."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces.utils import flatten, flatten_space, unflatten
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from agents.environments import make_env
from ooco_gym import UserError
from tests.envs.episodes_in_short import IDS, alike, arguments, at_random, make, play

GATING = "ooco_gym/PrefillGate-v1"
BRIEF: dict[str, Any] = {"window_s": 12.0, "warmup_s": 20.0}


@pytest.mark.parametrize("name", IDS)
def test_an_observation_is_what_gymnasium_makes_of_the_parts(name: str) -> None:
    parts, flat = make(name), make(name, flat=True)
    assert flat.observation_space == flatten_space(parts.observation_space)
    assert flat.observation_space.dtype == np.float32 and flat.parts_space == parts.observation_space
    ours, theirs = play(flat, at_random(1), most=40), play(parts, at_random(1), most=40)
    for one, other in zip(ours, theirs, strict=True):
        assert one.observation.dtype == np.float32
        assert np.array_equal(one.observation, flatten(parts.observation_space, other.observation))
        assert alike(unflatten(flat.parts_space, one.observation), other.observation)
        assert alike(one[1:], other[1:]), "all else is the same, the mask in the info as well"
    assert np.array_equal(flat.action_masks(), parts.action_masks())


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("name", [GATING, "ooco_gym/OnlineTuning-v1"])
def test_a_vector_of_them_is_gymnasiums_of_single_ones(name: str, mode: AutoresetMode) -> None:
    given = arguments(name, **BRIEF, flat=True)
    ours: Any = gym.make_vec(name, num_envs=3, vectorization_mode="vector_entry_point", autoreset_mode=mode, **given)
    theirs: Any = SyncVectorEnv([lambda: gym.make(name, disable_env_checker=True, **given)] * 3, autoreset_mode=mode)
    assert ours.observation_space == theirs.observation_space
    assert alike(ours.reset(seed=1)[0], theirs.reset(seed=1)[0])
    ended = 0
    for _ in range(400):
        actions = ours.base_actions()
        mine, other = ours.step(actions), theirs.step(actions)
        assert alike(mine[:4], other[:4])
        over = mine[3]
        ended += int(over.sum())
        if mode == AutoresetMode.SAME_STEP:
            for i in np.flatnonzero(over):
                assert alike(mine[4]["final_obs"][i], other[4]["final_obs"][i])
        if mode == AutoresetMode.DISABLED and over.any():
            both = [env.reset(options={"reset_mask": over.copy()})[0] for env in (ours, theirs)]
            assert alike(*both)
        if ended > 4:
            break
        if not (mode == AutoresetMode.DISABLED and over.any()):
            assert np.array_equal(ours.action_masks(), mine[4]["action_mask"] > 0)
    assert ended > 0


def test_what_needs_the_parts_says_so() -> None:
    with pytest.raises(UserError, match="env.flat=true: commands need the parts of an observation"):
        make_env({"id": GATING, "flat": True})
