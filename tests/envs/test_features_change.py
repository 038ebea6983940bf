"""In an hour of random play every feature of an observation changes, but for those that the pages name."""

from __future__ import annotations

import json
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from ooco_gym import candidate_table
from ooco_gym.envs import ENVIRONMENTS

QUIET = json.loads((Path(__file__).parents[2] / "results" / "quiet_features.json").read_text(encoding="utf-8"))
HOUR_S = 3_600.0
BUSY = ("Batching-v1", "Colocation-v1", "Routing-v2", "Serving-v1")  # many decisions a second: ten minutes are played


def unchanged(name: str) -> list[str]:
    """The features of an environment that had one value throughout an hour of random play, `part.name`."""
    made = gym.make(name)
    env = made.unwrapped
    parameters = len(env.action_space.nvec) if hasattr(env.action_space, "nvec") else None
    tables = env.feature_tables()
    low = {part: np.full(len(table), np.inf) for part, table in tables.items()}
    high = {part: np.full(len(table), -np.inf) for part, table in tables.items()}
    random, played_s, seed = np.random.default_rng(0), 0.0, 0
    while played_s < (HOUR_S / 6 if name.endswith(BUSY) else HOUR_S):
        seed += 1
        observation, over = env.reset(seed=seed)[0], False
        while not over:
            table, mask = candidate_table(observation, parameters), env.action_masks()
            rows = table if parameters else table[mask[-len(table):]]
            for part, values in (("cluster", observation["cluster"][None]), ("candidates", rows)):
                if len(values):
                    low[part] = np.minimum(low[part], values.min(axis=0))
                    high[part] = np.maximum(high[part], values.max(axis=0))
            if parameters:
                action = random.integers(env.action_space.nvec)
            else:
                action = random.choice(np.flatnonzero(mask))
            observation, _, _, over, _ = env.step(action)
        played_s += env.config.window_s
    return [f"{part}.{row['name']}" for part in ("cluster", "candidates") for row, least, most in zip(
        tables[part], low[part], high[part], strict=True) if least >= most]


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_feature_changes_in_an_hour_of_random_play_but_for_those_that_pages_name(name: str) -> None:
    new = set(unchanged(name)) - set(QUIET.get(name, ()))
    assert not new, f"constant, and not listed in results/quiet_features.json: {sorted(new)}"
