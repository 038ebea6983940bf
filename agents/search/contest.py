"""Compares searches: each optimises its policy on as many windows, then all run on held-out
windows.

`ooco-gym demo` and `ooco-gym zoo` thus compare learned policies with heuristics that are tuned
alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agents.environments import split_seeds
from agents.search.episodes import Field, configs_of
from ooco_gym.metrics.statistics import RESAMPLES, resampled_interval
from ooco_gym.policy import get_policy
from ooco_gym.report.terminal import progress
from ooco_gym.resources import load_yaml
from ooco_gym.study.population import Candidate


def search_config(name: str, options: Mapping[str, Any], out: str) -> dict[str, Any]:
    """Returns a search's configuration: that of `train`, changed by the common and the search's own
    `options`.

    Args:
        name: of the search in `options["searches"]`, which holds settings of `agent=cma` by name.
        options: `env`, `seed`, `agent` (of all searches), `reference` and `searches`.
        out: the search's folder.
    """
    settings = {key: value for key, value in load_yaml("", "train").items() if key != "defaults"}
    return {**settings, "env": options["env"], "logger": "none", "seed": options["seed"], "overwrite": True, "out": out,
            "agent": {**options["agent"], "reference": options["reference"], **options["searches"][name]}}


def play_held_out(env: Mapping[str, Any], played: Mapping[str, str], windows: int,
                  conditions: Sequence[Mapping[str, Any]] | None = None, seeds: Sequence[int] | None = None
                  ) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Runs policies on windows that no search has seen.

    Args:
        env: the environment's configuration.
        played: policies by name.
        windows: number of windows under each condition.
        conditions: changes of the scenario, as `agent.conditions`; None: the environment as it is.
        seeds: seeds of the windows; None: the environment's test split.

    Returns:
        OUTCOME[windows] of each policy by its name, and int64[windows]: the condition of each
        window.
    """
    configs = configs_of(env, conditions or [{}], "conditions")
    field = Field(configs, list(seeds or split_seeds(env, "test")), windows * len(configs), None)
    with progress("simulating held-out windows", len(played) * windows * len(configs)) as bar:
        found = field.population.play([Candidate(get_policy(one)) for one in played.values()], played=bar.advance)
    return dict(zip(played, found, strict=True)), field.conditions


def ratio(mine: np.ndarray, theirs: np.ndarray, conditions: np.ndarray | None = None) -> dict[str, float]:
    """Ratio of two services: `ratio`, and its 95 % interval `ci_low`, `ci_high`.

    A condition's ratio is of the sums over its windows; several conditions give the geometric mean.
    Windows are resampled in pairs.
    """
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
