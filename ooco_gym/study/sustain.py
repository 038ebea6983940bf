"""What a policy sustains: simulations at offline rates, their crossing, and resamples for intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.policy import get_policy
from ooco_gym.study.runs import Jobs
from ooco_gym.study.search import (
    Crossing,
    Limits,
    Plan,
    Point,
    crossing_near,
    crossings,
    first_crossing,
    resamples,
)

if TYPE_CHECKING:
    from ooco_gym.scenario import Scenario


@dataclass(frozen=True)
class Bench:
    """The setting in which all policies are measured.

    Attributes:
        jobs: runs simulations.
        scenario: cluster, workload at its peak factor, SLO; seed and offline rate are replaced.
        seeds: paired seeds.
        tpot_from: the TPOT definition of violations. All scenarios are simulated under
            `first_decode`; a violation under it is one under `first_token`, too, so that one
            simulation serves both.
        limits: of a sustainable rate.
        plan: the search for rates.
    """

    jobs: Jobs
    scenario: Scenario
    seeds: tuple[int, ...]
    tpot_from: str = "first_token"
    limits: Limits = field(default_factory=Limits)
    plan: Plan = field(default_factory=Plan)

    def measure(self, policy: str, rate: float) -> Point:
        """Simulates a policy at an offline rate on every seed, on the cluster of its kind."""
        scenario = settling(placed(self.scenario, policy))
        scenarios = [scenario.with_(seed=seed, offline_rate=rate) for seed in self.seeds]
        return point_of(rate, self.jobs.all(scenarios, policy), self.tpot_from)

    def search(self, policy: str, near: float | None = None) -> Crossing:
        """Searches for the policy's sustainable offline rate.

        Args:
            policy: its name.
            near: a rate from which to search, if other seeds have already done the plan's
                screening.
        """
        few = self.plan.screen
        if not 0 < few < len(self.seeds):
            return first_crossing(lambda rate: self.measure(policy, rate), self.plan, self.limits)
        if near is None:
            found = replace(self, seeds=self.seeds[:few]).search(policy).best
            near = found.rate if found is not None else 0.0
        return crossing_near(lambda rate: self.measure(policy, rate), near, self.plan, self.limits)


def placed(scenario: Scenario, policy: str) -> Scenario:
    """Returns the scenario on a cluster of the policy's kind, at the same load
    (`Scenario.on_kind`).

    Raises:
        UserError: the cluster is of the other kind and has no twin.
    """
    return scenario.with_(rate_scale=scenario.online_scale()).on_kind(get_policy(policy).mixed)


def settling(scenario: Scenario) -> Scenario:
    """Returns the scenario whose runs last until the verdicts of both TPOT definitions are settled.

    A trace's window is made explicit, so that it does not depend on the rate.
    """
    slo = {**asdict(scenario.load_slo()), "tpot_from": "first_decode"}
    window = dict(zip(("start_s", "duration_s"), scenario.window(), strict=True)) if scenario.from_file else {}
    return scenario.with_(slo=slo, **window)


def late_at_most(summary: Mapping[str, Any], tpot_from: str) -> float:
    """Returns the share of online requests that violate or are undecided at the run's end, an upper bound."""
    online = summary["online"]
    return (online[f"violation_rate_{tpot_from}"] or 0.0) + online["undecided"] / max(online["arrived"], 1)


def point_of(rate: float, summaries: list[dict[str, Any]], tpot_from: str) -> Point:
    """Collects the results at an offline rate from the summaries of its seeds.

    Raises:
        UserError: a seed has no online request, so that nothing limits the offline rate.
    """
    idle = [one["seed"] for one in summaries if one["online"][f"violation_rate_{tpot_from}"] is None]
    if idle:
        raise UserError(f"seeds: no online request arrives in the window of seed {idle[0]}, so no offline rate would "
                        "be too high; raise rate_scale or duration_s")

    def column(part: str, name: str, empty: float = 0.0) -> np.ndarray:
        return np.array([empty if one[part][name] is None else one[part][name] for one in summaries], float)

    return Point(rate, np.array([late_at_most(one, tpot_from) for one in summaries]),
                 column("offline", "kept_up_share", 1.0), column("offline", "kept_up_service_share", 1.0),
                 column("offline", "total_tokens_per_s"), column("offline", "reference_gpu_s_per_s"),
                 column("offline", "wasted_tokens_per_s"), summaries)


@dataclass(frozen=True)
class Sustained:
    """The offline rate that a policy sustains.

    Attributes:
        policy: with its changed parameters, `name:param=value,…`.
        crossing: result of the search.
        rates: crossings of resamples of the seeds, requests per second, shape (resamples,); the
            same resamples for every policy.
        tokens: offline tokens per second there, shape (resamples,).
        own_rates: each seed's own crossing, among the rates measured for all, shape (seeds,).
    """

    policy: str
    crossing: Crossing
    rates: np.ndarray
    tokens: np.ndarray
    own_rates: np.ndarray

    @property
    def rate(self) -> float:
        """Sustainable offline rate, requests per second: the median over resamples; 0 if there is none."""
        return float(np.median(self.rates))

    @property
    def held(self) -> float:
        """The highest simulated rate within the limits on average, at which other metrics are taken."""
        return self.crossing.best.rate if self.crossing.best else 0.0

    @property
    def total_tokens_per_s(self) -> float:
        """Offline throughput at the crossing in prompt and output tokens per second, the median over resamples."""
        return float(np.median(self.tokens))


def sustain(bench: Bench, policy: str, near: float | None = None) -> Sustained:
    """Searches for what a policy sustains (from `near`), with the crossings of resamples of the seeds."""
    crossing, seeds = bench.search(policy, near), len(bench.seeds)
    own, _ = crossings(crossing.points, bench.limits, np.repeat(np.arange(seeds)[:, None], seeds, axis=1))
    return Sustained(policy, crossing, *crossings(crossing.points, bench.limits, resamples(seeds)), own)
