"""The faster MaskablePPO draws, judges and learns as sb3-contrib's does."""

import numpy as np
import pytest
import torch
from gating_double import GatingDouble
from gymnasium import spaces
from sb3_contrib import MaskablePPO
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.vec_env import DummyVecEnv

from agents.learning.models import CandidatePolicy, LeanMaskablePPO, TimedRolloutBuffer

KINDS = {"theirs": MaskablePPO, "ours": LeanMaskablePPO}


class LevelsDouble(GatingDouble):
    """Two actions at once: a candidate or one of the fixed ones, and a level that changes nothing."""

    def __init__(self):
        super().__init__()
        self.action_space = spaces.MultiDiscrete([6, 4])  # as long as the mask

    def _draw(self):
        super()._draw()
        self.mask[-1] = 1  # each of the two has a legal value

    def step(self, action):
        return super().step(int(action[0]))


class Kept(KVWriter):
    """Keeps what is logged."""

    def __init__(self, rows):
        self.rows = rows

    def write(self, key_values, key_excluded, step=0):
        self.rows.append(dict(key_values))


def learn(kind, env=GatingDouble, rollouts=2, **changes):
    """A model after a few rollouts and updates, with what it logged; drawn and shuffled by the same seeds."""
    arguments = {"n_steps": 30, "batch_size": 48, "n_epochs": 3, "gamma": 1.0, "ent_coef": 0.01, "seed": 5,
                 "learning_rate": 3e-3, "rollout_buffer_class": TimedRolloutBuffer,
                 "rollout_buffer_kwargs": {"discount_per_s": 0.9, "gae_lambda_per_s": 0.9},
                 "policy_kwargs": {"hidden": 16}, **changes}
    model = KINDS[kind](CandidatePolicy, DummyVecEnv([env] * 4), device="cpu", **arguments)
    logged: list[dict] = []
    logger = Logger(folder=None, output_formats=[Kept(logged)])
    model.set_logger(logger)
    model.learn(4 * 30 * rollouts)
    logger.dump()
    return model, logged


@pytest.mark.parametrize("changes", [{}, {"target_kl": 1e-4}, {"env": LevelsDouble}], ids=str)
def test_rollouts_updates_and_figures_are_those_of_sb3_contrib(changes):
    (theirs, their_log), (ours, our_log) = (learn(kind, **changes) for kind in KINDS)
    for name in ("actions", "values", "log_probs", "advantages", "returns"):
        flat = ours.rollout_buffer.swap_and_flatten(getattr(ours.rollout_buffer, name))  # theirs has been, to learn
        np.testing.assert_allclose(flat, getattr(theirs.rollout_buffer, name), rtol=1e-4, atol=1e-5, err_msg=name)
    for key, value in theirs.policy.state_dict().items():
        torch.testing.assert_close(ours.policy.state_dict()[key], value, rtol=1e-3, atol=1e-5)
    assert ours._n_updates == theirs._n_updates
    for one, other in zip(their_log, our_log, strict=True):
        for key in (key for key in one if key.startswith("train/") and key != "train/loss"):
            assert other[key] == pytest.approx(one[key], rel=1e-3, abs=1e-5), key
