"""A minute of training on a real environment is worth something in most windows that it has not met."""

import numpy as np
import pytest

from tests.agents.composing import composed

pytest.importorskip("sb3_contrib")
from agents.environments import split_seeds, windows
from agents.evaluation.players import BatchPlayer, load_learned, play
from agents.learning import train
from ooco_gym.resources import merged

SHORT = {"window_s": 60.0, "warmup_s": 60.0}
GAMES = 96  # windows of the validation split


def config(out, **changes):
    """Packing from random play, without a start and without a choice on validation."""
    base = composed("train", "env=packing")
    agent = {"imitate": {"rule": None}, "learning_rate": 1e-3, "n_envs": 32, "discount_per_s": 0.97,
             "gae_lambda_per_s": 0.9}
    short = {"window_s": 60.0, "seed": 2, "env": SHORT, "validation": {"windows": 0}, "resumable": False,
             "checkpoint_every_steps": None, "agent": agent}
    return merged(base, {**short, **changes, "out": str(out)})


@pytest.mark.slow
def test_a_minute_of_training_improves_on_the_policy_that_it_began_with(tmp_path):
    settings = config(tmp_path / "learned", total_timesteps=30_000)
    train.main(settings)
    train.main({**settings, "total_timesteps": 1, "agent": {**settings["agent"], "learning_rate": 0.0},
                "out": str(tmp_path / "untrained")})
    games = windows(split_seeds(settings["env"], "validation"), GAMES)

    def rewards(folder):
        records = play(settings["env"], BatchPlayer(load_learned(str(folder)).decide), games)
        return np.array([record["reward"] for record in records])

    gain = rewards(tmp_path / "learned") - rewards(tmp_path / "untrained")
    # A few windows at a day's peak, where promises break, are most of the deviation: so the signs are what is tested.
    better = np.count_nonzero(gain > 0.0)
    assert better > GAMES / 2 + 3.0 * np.sqrt(GAMES) / 2, f"{better} of {GAMES}"
    assert gain.mean() > 0.0, f"{gain.mean():.2f}"
