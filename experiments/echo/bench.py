"""Loads and comparisons: the online load that the instance serves alone, offline work that lasts, paired seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from experiments.jobs import Jobs
from ooco_gym.metrics.statistics import interval
from ooco_gym.resources import load_yaml
from ooco_gym.scenario import Scenario

BASELINE = "echo_bs"
VARIANTS = ("echo_bs", "echo_bs_e", "echo_bs_e_s", "echo")
NOTHING = {"mode": "rate", "rate": 0.0}
PRECISION = 0.03
Summaries = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Bench:
    """Where variants are measured.

    Attributes:
        jobs: runs simulations.
        scenario: the conditions, at the online load that the instance serves alone; its seed is not used.
        seeds: of the measured runs.
        pools: by offline dataset, how many requests there are from the beginning.
    """

    jobs: Jobs
    scenario: Scenario
    seeds: tuple[int, ...]
    pools: Mapping[str, int]

    def at(self, load: float, dataset: str, **changes: Any) -> Scenario:
        """The conditions at a share of that load, with a dataset's requests all there from the beginning."""
        return self.scenario.with_(rate_scale=load * self.scenario.online_scale(),
                                   offline=pool(dataset, self.pools[dataset]), **changes)

    def runs(self, scenario: Scenario, policies: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
        """Summaries by policy, one a seed."""
        asked = {policy: [self.jobs.submit(scenario.with_(seed=seed), policy) for seed in self.seeds]
                 for policy in policies}
        return {policy: [one.result() for one in futures] for policy, futures in asked.items()}


def pool(dataset: str, requests: int) -> dict[str, Any]:
    """So many offline requests of a dataset, all there from the beginning.

    A dataset whose prompts share groups' texts has more groups, so that a group has as many requests as in the
    dataset itself: several copies of it with other documents.
    """
    values = load_yaml("offline", dataset)
    sharing = values.get("sharing")
    if sharing is None:
        return {"mode": "jobs", "jobs": requests, "dataset": dataset}
    own = {"loogle_short": 1951, "loogle_long": 1100}.get(dataset, requests)
    groups = max(1, round(sharing["groups"] * requests / own))
    return {"mode": "jobs", "jobs": requests, "dataset": dataset, "sharing": {**sharing, "groups": groups}}


def load_alone(jobs: Jobs, scenario: Scenario, violations: float, seed: int) -> float:
    """The largest factor on the online rate at which the instance without offline work violates no more than that.

    Echo scales its trace "so that it will not violate the SLO in a workload only including online tasks" (7.2). Found
    by doubling and bisection on a seed of its own.
    """
    def kept(scale: float) -> bool:
        alone = scenario.with_(rate_scale=scale, offline=NOTHING, seed=seed)
        return jobs.submit(alone, BASELINE).result()["online"]["violation_rate"] <= violations

    low, high = 0.0, 1.0
    while kept(high):
        low, high = high, 2.0 * high
    while high - low > PRECISION * high:
        middle = (low + high) / 2
        low, high = (middle, high) if kept(middle) else (low, middle)
    return round(low, 3)


# --- Figures of runs ------------------------------------------------------------------------------------------------
def tokens(run: Mapping[str, Any]) -> float:
    """Prompt and output tokens of the offline requests that were completed, a second."""
    return run["offline"]["prompt_tokens_per_s"] + run["offline"]["output_tokens_per_s"]


def row_of(runs: Summaries, base: Summaries) -> dict[str, Any]:
    """A variant's figures: means with intervals over seeds, and ratios to the baseline on the same seeds."""
    online, offline = ([run[key] for run in runs] for key in ("online", "offline"))
    work = np.array([one["reference_gpu_s_per_s"] for one in offline])
    window_s = runs[0]["window_s"]
    return {
        "tokens_per_s": spread([tokens(run) for run in runs]),
        "requests_per_s": spread([one["finished"] / window_s for one in offline]),
        "speed_up": spread(np.array([tokens(run) for run in runs]) / [tokens(run) for run in base]),
        "work_speed_up": spread(work / [run["offline"]["reference_gpu_s_per_s"] for run in base]),
        "hit_rate": spread([one["hit_rate"] or 0.0 for one in offline]),
        **{key: spread([one[key] for one in online]) for key in (
            "ttft_attainment", "tpot_attainment", "deadline_attainment", "violation_rate", "ttft_mean_s",
            "tpot_mean_s")},
        "evictions": spread([one["evictions"] for one in offline]),
        "wasted_tokens_per_s": spread([one["wasted_tokens_per_s"] for one in offline]),
    }


def spread(values: Any) -> dict[str, Any]:
    """Mean, 95 % interval over seeds, and the values themselves."""
    mean, low, high = interval(np.asarray(values, float))
    return {"mean": mean, "low": low, "high": high, "values": [float(value) for value in values]}


def with_load(bench: Bench, scale: float) -> Bench:
    """The same bench where this factor is the load that the instance serves alone."""
    return replace(bench, scenario=bench.scenario.with_(rate_scale=scale))
