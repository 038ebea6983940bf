"""What a policy sustains: simulations at offline rates, and the search for the highest one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.policy import get_policy
from ooco_gym.study.runs import Jobs
from ooco_gym.study.search import Crossing, Limits, Point, SearchPlan, crossing_near, first_crossing

if TYPE_CHECKING:
    from ooco_gym.scenario import Scenario


@dataclass(frozen=True)
class Bench:
    """The setting in which all policies are measured.

    Attributes:
        jobs: runs simulations.
        scenario: cluster, workload at its peak factor, SLO; seed and offline rate are replaced.
        seeds: paired seeds.
        tpot_from: the TPOT definition of violations. All scenarios are simulated under `first_decode`; a violation
            under it is one under `first_token`, too, so that one simulation serves both.
        limits: of a sustainable rate.
        plan: the search for rates.
    """

    jobs: Jobs
    scenario: Scenario
    seeds: tuple[int, ...]
    tpot_from: str = "first_token"
    limits: Limits = field(default_factory=Limits)
    plan: SearchPlan = field(default_factory=SearchPlan)

    def measure(self, policy: str, rate: float) -> Point:
        """Simulates a policy at an offline rate on every seed, on the cluster of its kind.

        Raises:
            UserError: a seed has no online request, so that nothing limits the offline rate.
        """
        scenario = settling(placed(self.scenario, policy))
        runs = self.jobs.all([scenario.with_(seed=seed, offline_rate=rate) for seed in self.seeds], policy)
        idle = [run["seed"] for run in runs if run["online"][f"violation_rate_{self.tpot_from}"] is None]
        if idle:
            raise UserError(f"seeds: no online request arrives in the window of seed {idle[0]}, so no offline rate "
                            "would be too high; raise rate_scale or duration_s")

        def offline(name: str, empty: float) -> np.ndarray:
            return np.array([empty if run["offline"][name] is None else run["offline"][name] for run in runs], float)

        return Point(rate, np.array([late_at_most(run, self.tpot_from) for run in runs]),
                     offline("kept_up_share", 1.0), offline("kept_up_service_share", 1.0),
                     offline("total_tokens_per_s", 0.0), runs)

    def search(self, policy: str, near: float | None = None) -> Crossing:
        """Searches for the policy's sustainable offline rate.

        Args:
            policy: its name.
            near: a rate from which to search, if other seeds have already done the plan's screening.
        """
        few = self.plan.screen
        if not 0 < few < len(self.seeds):
            return first_crossing(lambda rate: self.measure(policy, rate), self.plan, self.limits)
        if near is None:
            found = replace(self, seeds=self.seeds[:few]).search(policy).best
            near = found.rate if found is not None else 0.0
        return crossing_near(lambda rate: self.measure(policy, rate), near, self.plan, self.limits)


def placed(scenario: Scenario, policy: str) -> Scenario:
    """Returns the scenario on a cluster of the policy's kind, at the same load (`Scenario.on_kind`).

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
