"""Sizes of a cluster: its instances multiplied, all their splits, and the fewest within the limits."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ooco_gym.cluster import ROLES
from ooco_gym.errors import UserError
from ooco_gym.metrics.summary import infeasible_words
from ooco_gym.report import duration, percent
from ooco_gym.scenario import Scenario
from ooco_gym.study.search import Crossing, Point, bisected, walked
from ooco_gym.study.sustain import Bench, placed

Size = Mapping[str, int]  # instances by role
NO_JOBS = "job_slo_s: limits jobs of a trace of offline requests alone (docs/workloads.md); it has none"


@dataclass(frozen=True)
class Sized:
    """A number of instances in the best split found, and its results at the offline rate."""

    size: Size
    point: Point
    holds: bool

    @property
    def instances(self) -> int:
        """The number of instances in all roles together."""
        return sum(self.size.values())


@dataclass(frozen=True)
class Planner:
    """Sizes of one policy's cluster, measured on paired seeds.

    Attributes:
        policy: the scheduler.
        bench: measures, on load, time and a cluster of the policy's kind, whose first instance of each role is
            multiplied.
    """

    policy: str
    bench: Bench

    @property
    def least(self) -> int:
        """The fewest instances with which the policy works."""
        return 1 if self.bench.scenario.load_cluster().mixed else 2

    @property
    def chips_each(self) -> int:
        """Chips per instance; the instances of a pool's roles are assumed to be equal."""
        cluster = self.bench.scenario.load_cluster()
        return max(pool.tp * pool.pp * pool.data_parallel for role in ROLES for pool in getattr(cluster, role)[:1])

    def on(self, size: Size) -> Bench:
        """Returns the bench with a cluster of this size."""
        return replace(self.bench, scenario=self.bench.scenario.with_(cluster=sized(self.bench.scenario, size)))

    def sustained(self, size: Size) -> Crossing:
        return self.on(size).search(self.policy)

    def best(self, instances: int, rate: float) -> Sized:
        """Returns the split of instances between the cluster's roles with the lowest ratio to the limits."""
        limits, sizes = self.bench.limits, [{"mixed": instances}]
        if not self.bench.scenario.load_cluster().mixed:
            sizes = [{"relaxed": instances - strict, "strict": strict} for strict in range(1, instances)]

        def strain(one: Sized) -> float:
            point = one.point
            return float(limits.strain(point.violations.mean(), point.kept_up.mean(), point.kept_up_service.mean()))

        found = []
        for size in sizes:
            point = self.on(size).measure(self.policy, rate)
            found.append(Sized(size, point, point.holds(limits)))
        return min(found, key=strain)

    def tried(self, rate: float, chips: int | None, most: int) -> list[Sized]:
        """Returns the sizes tried; the last is the fewest that hold, or the one on so many chips.

        Raises:
            UserError: fewer chips than the policy needs, or as `fewest`.
        """
        if chips is None:
            return self.fewest(rate, most)
        count, least, each = int(chips) // self.chips_each, self.least, self.chips_each
        if count < least:
            raise UserError(f"chips={chips}: '{self.policy}' needs {least * each} or more: {least} "
                            f"instance{'s' * (least > 1)} with {each} each")
        return [self.best(count, rate)]

    def fewest(self, rate: float, most: int) -> list[Sized]:
        """Returns the sizes tried, by doubling until one is within the limits and then bisecting; the last is the
        fewest.

        One instance fewer is among them, unless the policy needs more.

        Raises:
            UserError: `most` instances are too few, or no number is enough.
        """
        if most < self.least:
            raise UserError(f"most={most}: '{self.policy}' needs {self.least} instances or more")
        tried: dict[int, Sized] = {}

        def fails(count: int) -> bool:
            tried[count] = self.best(count, rate)
            if tried[count].holds:
                return False
            never = [summary["online"].get("infeasible") for summary in tried[count].point.summaries]
            if np.mean([one["share"] if one else 0.0 for one in never]) > self.bench.limits.violations:
                words = infeasible_words(next(filter(None, never)))[0].partition(";")[0]
                raise UserError(f"no number of instances is enough for '{self.policy}': {words}")
            return True

        counts = itertools.takewhile(lambda count: count < most, (self.least * 2**n for n in itertools.count()))
        few, enough = walked(fails, [*counts, most])
        if enough is None:
            raise UserError(f"most={most} instances are too few for '{self.policy}': {_broken(tried[most].point)}; "
                            "raise most, lower the load or relax the SLO")
        _, enough = bisected(fails, self.least - 1 if few is None else few, enough, lambda low, high: high - low > 1)
        return [*(one for one in tried.values() if one.instances != enough), tried[enough]]


def _broken(point: Point) -> str:
    """Returns the violations of a size beyond the limits, in words."""
    late, runs = percent(point.violations.mean()), point.summaries
    if "batch" in runs[0]:
        ends = [run["batch"]["makespan_s"] for run in runs]
        done = "" if None in ends else f"; the makespan is {duration(float(np.mean(ends)))}"
        jobs_s = p99_of_jobs(point)
        if jobs_s is not None and not runs[0]["offline"].get("deadlines"):
            return f"99 % of the jobs are done within {duration(jobs_s)}{done}"
        return f"{late} of the deadlines are missed{done}"
    missed = []
    for name in ("TTFT", "TPOT") if point.violations.any() else ():
        kept = np.mean([run["online"][f"{name.lower()}_attainment"] for run in runs])
        missed.append(f"{name} {percent(1.0 - float(kept))}")
    each = f" ({', '.join(missed)})" if missed else ""
    return (f"{late} of the online requests violate an SLO{each}, and {percent(point.kept_up.mean(), 0)} of the "
            "arriving offline work is completed")


def p99_of_jobs(point: Point) -> float | None:
    """Returns the P99 of jobs' completion in seconds, the mean over seeds; None without jobs, or if all have left."""
    found = [run["jobs"]["completion_p99_s"] for run in point.summaries if "jobs" in run]
    return None if not found or None in found else float(np.mean(found))


@dataclass(frozen=True)
class BatchBench(Bench):
    """A bench for a trace of offline requests alone, each run until all are done.

    Attributes:
        job_slo_s: within which 99 % of the jobs must be done, if not None.
    """

    job_slo_s: float | None = None

    def measure(self, policy: str, rate: float) -> Point:
        """Simulates a policy on every seed; violations are the share of deadlines missed or undecided, and all if the
        jobs' P99 is beyond their SLO."""
        scenario = placed(self.scenario, policy)
        runs = self.jobs.all([scenario.with_(seed=seed) for seed in self.seeds], policy)
        late = [(run["offline"].get("deadline_misses", 0) + run["offline"].get("deadline_undecided", 0))
                / max(1, run["offline"].get("deadlines", 0)) for run in runs]
        if self.job_slo_s is not None:
            if "jobs" not in runs[0]:
                raise UserError(NO_JOBS)
            beyond = [(run["jobs"]["completion_p99_s"] or np.inf) > self.job_slo_s for run in runs]
            late = np.maximum(late, beyond).tolist()
        tokens, whole = [run["batch"]["total_tokens_per_s"] or 0.0 for run in runs], np.ones(len(runs))
        return Point(rate, np.array(late), whole, whole, np.array(tokens), runs)


def sized(scenario: Scenario, size: Size) -> dict[str, Any]:
    """Returns the scenario's cluster with `size` instances by role, as in a cluster file; those that scale are
    always on.

    Raises:
        UserError: a role has instances of several kinds.
    """
    cluster = scenario.load_cluster()
    for role in ROLES:
        if len(getattr(cluster, role)) > 1:
            raise UserError(f"cluster '{cluster.name}': pool '{role}' has groups of different instances; expected one "
                            "group, whose count a plan changes")
    values = {name: value for name, value in vars(cluster).items() if name not in ROLES}
    pools = {}
    for role, count in size.items():
        group = getattr(cluster, role)[0]
        always_on = {"min": count, "max": count} if group.scales else {}
        pools[role] = [vars(replace(group, count=count, **always_on))]
    return {**values, **pools, "twin": None, "name": f"{cluster.name}_{'_'.join(map(str, size.values()))}"}
