"""Compares searches (`ooco-gym demo`, `ooco-gym zoo`): each optimises its policy on as many windows, then all run on
held-out windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agents.environments import split_seeds
from agents.search.episodes import Field
from ooco_gym.metrics.statistics import RESAMPLES, resampled_interval
from ooco_gym.report.terminal import progress
from ooco_gym.resources import load_yaml


def search_config(name: str, options: Mapping[str, Any], out: str) -> dict[str, Any]:
    """Returns the configuration of `train` for the search `name` of `options["searches"]` (settings of `agent=cma` by
    name) in the folder `out`; `env`, `seed`, `agent`, `reference`, and further keys of `train`, are common to all."""
    settings = {key: options.get(key, value) for key, value in load_yaml("", "train").items() if key != "defaults"}
    return {**settings, "env": options["env"], "logger": "none", "seed": options["seed"], "overwrite": True, "out": out,
            "agent": {**options["agent"], "reference": options["reference"], **options["searches"][name]}}


def play_held_out(env: Mapping[str, Any], played: Mapping[str, str], windows: int,
                  conditions: Sequence[Mapping[str, Any]] | None = None, seeds: Sequence[int] | None = None
                  ) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Runs policies (by name) on windows that no search has seen, `windows` under each of `conditions` (changes of the
    scenario; None: the environment as it is), by `seeds` (None: of its test split).

    Returns:
        OUTCOME[windows] of each policy by its name, and int64[windows]: the condition of each window.
    """
    field = Field(env, conditions, "conditions", list(seeds or split_seeds(env, "test")),
                  windows * len(conditions or [{}]))
    with progress("simulating held-out windows", len(played) * len(field.conditions)) as bar:
        found = field.play(list(played.values()), bar.advance)
    return dict(zip(played, found, strict=True)), field.conditions


def ratio(mine: np.ndarray, theirs: np.ndarray, conditions: np.ndarray | None = None) -> dict[str, float]:
    """Ratio of two services, `ratio`, and its 95 % interval `ci_low`, `ci_high`: a condition's is of the sums over its
    windows, several give the geometric mean. Windows are resampled in pairs."""
    conditions = np.zeros(len(mine), np.int64) if conditions is None else conditions
    logs, means = np.zeros(RESAMPLES), []
    generator = np.random.default_rng(0)
    for condition in np.unique(conditions):
        a, b = (part[conditions == condition] for part in (mine, theirs))
        draws = generator.integers(len(a), size=(RESAMPLES, len(a)))
        logs += np.log(a[draws].sum(axis=1) / b[draws].sum(axis=1))
        means.append(np.log(a.sum() / b.sum()))
    low, high = resampled_interval(np.exp(logs / len(means)), len(mine))
    return {"ratio": float(np.exp(np.mean(means))), "ci_low": low, "ci_high": high}
