"""One bench for all of HyGen's figures: a scenario, seeds, and simulations, from the cache where they are known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from baselines.hygen_profile import METRICS, PROFILE_NAMES, excess, longest_iteration_s, search, served_rate, trials_of
from experiments.jobs import Jobs
from ooco_gym.metrics.statistics import interval
from ooco_gym.policy import get_policy
from ooco_gym.scenario import Scenario

SETTING = {"hygen": "latency_budget_s", "hygen_star": "offline_qps"}  # what the profiler finds for each
Summaries = Sequence[Mapping[str, Any]]


def named(policy: str, values: Mapping[str, Any]) -> str:
    """A policy with parameters as one name: `hygen:latency_budget_s=0.041,utility=0.5`."""
    parts = [f"{key}={_written(value)}" for key, value in values.items()]
    return f"{policy}:{','.join(parts)}" if parts else policy


def _written(value: Any) -> str:
    if isinstance(value, float):
        return ".inf" if math.isinf(value) else f"{value:.9f}"
    return f'"{value}"' if value in ("on", "off") else str(value)  # bare, YAML takes these for flags


@dataclass(frozen=True)
class Bench:
    """Where policies are measured.

    Attributes:
        jobs: runs simulations.
        scenario: the load; its seed is not used.
        seeds: of the measured runs.
        online_rate: online requests a second of the scenario.
        windows: test runs of the profiler (`profile_windows`).
    """

    jobs: Jobs
    scenario: Scenario
    seeds: tuple[int, ...]
    online_rate: float
    windows: int

    def at(self, scale: float, online_rate: float) -> Bench:
        """The same bench at another online load."""
        return replace(self, scenario=self.scenario.with_(rate_scale=scale), online_rate=online_rate)

    def runs(self, policy: str, values: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """Summaries of a policy, one a seed."""
        name = named(policy, values or {})
        asked = [self.jobs.submit(self.scenario.with_(seed=seed), name) for seed in self.seeds]
        return [one.result() for one in asked]

    def profiled(self, policy: str, slo: Mapping[str, Any], values: Mapping[str, Any] | None = None) -> Profiled:
        """A policy's runs with what its profiler finds for an SLO, by test runs that all SLOs share.

        Args:
            policy: `hygen` or `hygen_star`.
            slo: `slo_metric`, `tolerance`, and the second ones where there are two.
            values: other parameters.
        """
        found = at_once([lambda seed=seed: self._search(policy, slo, values or {}, seed) for seed in self.seeds])
        asked = [self.jobs.submit(self.scenario.with_(seed=seed), named(policy, {**_run_values(values or {}), **one}))
                 for seed, one in zip(self.seeds, found, strict=True)]
        return Profiled(float(np.mean([one[SETTING[policy]] for one in found])), [one.result() for one in asked])

    def _search(self, policy: str, slo: Mapping[str, Any], values: Mapping[str, Any], seed: int) -> dict[str, float]:
        base = get_policy(policy).with_values({"profile_windows": self.windows, **values, **slo})
        setting = SETTING[policy]
        highest = served_rate if policy == "hygen_star" else lambda _: longest_iteration_s(base, self.scenario)

        def run(trial: Scenario, value: float) -> Mapping[str, Any]:
            return self.jobs.submit(trial, named(policy, {**_run_values(values), setting: value})).result()

        return search(setting, base.values, highest, run, trials_of(self.scenario.with_(seed=seed), base.values))


@dataclass(frozen=True)
class Profiled:
    """What the profiler found (its mean over the seeds, where it searched for each) and the runs with it."""

    setting: float
    runs: list[dict[str, Any]]


def _run_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters that change a run, not only how it is profiled: test runs are shared by all that profile alike."""
    return {key: value for key, value in values.items() if key not in PROFILE_NAMES}


def at_once(calls: Sequence[Any], workers: int = 8) -> list[Any]:
    """Results of calls without arguments, made side by side: what waits for one leaves the simulator to others."""
    with ThreadPoolExecutor(workers) as pool:
        return [one.result() for one in [pool.submit(call) for call in calls]]


# --- Figures of runs ------------------------------------------------------------------------------------------------
def offline_tokens(runs: Summaries) -> np.ndarray:
    """Offline prompt and output tokens completed a second, one a seed."""
    return np.array([one["offline"]["prompt_tokens_per_s"] + one["offline"]["output_tokens_per_s"] for one in runs])


def all_tokens(runs: Summaries) -> np.ndarray:
    """Prompt and output tokens completed a second, of both classes."""
    online = [one["online"]["prompt_tokens_per_s"] + one["online"]["output_tokens_per_s"] for one in runs]
    return offline_tokens(runs) + np.array(online)


def excesses(metric: str, runs: Summaries, alone: Summaries) -> np.ndarray:
    """By how much each run exceeds the one without offline work on the same seed, as a share."""
    return np.array([excess(metric, one["online"], other["online"]) for one, other in zip(runs, alone, strict=True)])


def spread(values: np.ndarray) -> dict[str, Any]:
    """Mean, 95 % interval over seeds, and the values themselves."""
    finite = np.where(np.isfinite(values), values, np.nan)
    mean, low, high = interval(finite)
    return {"mean": mean, "low": low, "high": high, "values": [float(value) for value in values]}


def ratio(values: np.ndarray, other: np.ndarray) -> dict[str, Any]:
    """Ratio of two policies' figures on the same seeds, with its interval; None where the other has nothing."""
    return spread(values / np.where(other > 0, other, np.nan))


__all__ = ["METRICS", "SETTING", "Bench", "all_tokens", "at_once", "excesses", "named", "offline_tokens", "ratio",
           "spread"]
