"""Sizes of a cluster: its instances multiplied, all their splits, and the fewest within the limits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ooco_gym.cluster import Cluster
from ooco_gym.errors import UserError
from ooco_gym.metrics.summary import infeasible_words
from ooco_gym.report import curve, percent, plot
from ooco_gym.report.pages import Plot
from ooco_gym.study.search import Point, bisected, walked
from ooco_gym.study.sustain import Bench, sustain

if TYPE_CHECKING:
    from ooco_gym.scenario import Scenario

ROLES = ("relaxed", "strict", "mixed")
Size = Mapping[str, int]  # instances by role


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
        scenario: load, time and a cluster of the policy's kind, whose first instance of each role
            is multiplied.
        bench: runs the measurements.
    """

    policy: str
    scenario: Scenario
    bench: Bench

    @property
    def least(self) -> int:
        """The fewest instances with which the policy works."""
        return 1 if self.scenario.load_cluster().mixed else 2

    @property
    def chips_each(self) -> int:
        """Chips per instance; the instances of a pool's roles are assumed to be equal."""
        cluster = self.scenario.load_cluster()
        return max(pool.tp * pool.pp * pool.data_parallel for role in ROLES for pool in getattr(cluster, role)[:1])

    def instances_on(self, chips: int) -> int:
        """Returns the number of instances on `chips` chips.

        Raises:
            UserError: fewer than the policy needs.
        """
        count = chips // self.chips_each
        if count < self.least:
            raise UserError(f"chips={chips}: '{self.policy}' needs {self.least * self.chips_each} or more: "
                            f"{self.least} instance{'s' * (self.least > 1)} with {self.chips_each} each")
        return count

    def measured(self, size: Size, rate: float) -> Point:
        """Returns the results of a size at an offline rate."""
        return replace(self.bench, scenario=self.scenario.with_(cluster=sized(self.scenario, size))).measure(
            self.policy, rate)

    def best(self, instances: int, rate: float) -> Sized:
        """Returns the split of `instances` instances with the lowest ratio to the limits."""
        limits = self.bench.limits

        def strain(one: tuple[Size, Point]) -> float:
            point = one[1]
            means = (point.violations.mean(), point.kept_up.mean(), point.kept_up_service.mean())
            return float(limits.strain(*means))

        found = [(size, self.measured(size, rate)) for size in divisions(self.scenario.load_cluster(), instances)]
        size, point = min(found, key=strain)
        return Sized(size, point, point.holds(limits))

    def fewest(self, rate: float, most: int) -> list[Sized]:
        """Returns the sizes tried, by doubling until one is within the limits and then bisecting;
        the last is the fewest.

        One instance fewer is among them, unless the policy needs more.

        Raises:
            UserError: `most` instances are too few, or no number is enough.
        """
        tried: dict[int, Sized] = {}

        def fails(count: int) -> bool:
            tried[count] = self.best(count, rate)
            if tried[count].holds:
                return False
            never = [one["online"].get("infeasible") for one in tried[count].point.summaries]
            if np.mean([one["share"] if one else 0.0 for one in never]) > self.bench.limits.violations:
                words = infeasible_words(next(filter(None, never)))[0].partition(";")[0]
                raise UserError(f"no number of instances is enough for '{self.policy}': {words}")
            return True

        counts = itertools.takewhile(lambda count: count < most, (self.least * 2**n for n in itertools.count()))
        few, enough = walked(fails, [*counts, most])
        if enough is None:
            raise UserError(f"most={most} instances are too few for '{self.policy}': "
                            f"{self.broken(tried[most].point)}; raise most, lower the load or relax the SLO")
        _, enough = bisected(fails, self.least - 1 if few is None else few, enough, lambda low, high: high - low > 1)
        return [*(one for one in tried.values() if one.instances != enough), tried[enough]]

    def broken(self, point: Point) -> str:
        """Returns the violations of a size beyond the limits, in words."""
        words = f"{percent(point.violations.mean())} of the online requests violate an SLO"
        missed = []
        for name in ("TTFT", "TPOT") if point.violations.any() else ():
            kept = np.mean([run["online"][f"{name.lower()}_attainment"] for run in point.summaries])
            missed.append(f"{name} {percent(1.0 - float(kept))}")
        each = ", ".join(missed)
        return (f"{words}{f' ({each})' if each else ''}, and {percent(point.kept_up.mean(), 0)} of the arriving "
                "offline work is completed")

    def carried(self, size: Size) -> Any:
        """Returns the largest offline rate that a size sustains (`ooco_gym.study.sustain.Sustained`)."""
        mine = self.scenario.with_(cluster=sized(self.scenario, size))
        return sustain(replace(self.bench, scenario=mine), self.policy)


def asked_for(scenario: Scenario, chips: int | None) -> str:
    """Returns the chips of a plan, in words."""
    model, _, names = scenario.load_cluster().hardware()
    return f"{'The fewest' if chips is None else chips} {' and '.join(dict.fromkeys(names))} chips with {model}"


def divisions(cluster: Cluster, instances: int) -> Iterator[Size]:
    """Yields all splits of `instances` instances between the cluster's roles."""
    if cluster.mixed:
        yield {"mixed": instances}
    else:
        yield from ({"relaxed": instances - strict, "strict": strict} for strict in range(1, instances))


def sized(scenario: Scenario, size: Size) -> dict[str, Any]:
    """Returns the scenario's cluster with `size` instances by role, as in a cluster file.

    Raises:
        UserError: a role has instances of several kinds.
    """
    cluster = scenario.load_cluster()
    for role in ROLES:
        if len(getattr(cluster, role)) > 1:
            raise UserError(f"cluster '{cluster.name}': pool '{role}' has groups of different instances; expected one "
                            "group, whose count a plan changes")
    values = {name: value for name, value in vars(cluster).items() if name not in ROLES}
    pools = {role: [vars(replace(getattr(cluster, role)[0], count=count))] for role, count in size.items()}
    return {**values, **pools, "twin": None, "name": f"{cluster.name}_{'_'.join(map(str, size.values()))}"}


def frontier_plot(rows: Sequence[Mapping[str, Any]], key: str, title: str, unit: str) -> list[Plot]:
    """Returns a plot of a result of each size tried over its chips, one colour per policy."""
    traces = []
    for place, row in enumerate(rows):
        chips, values = [one["chips"] for one in row["frontier"]], [one[key] for one in row["frontier"]]
        traces.append(curve(str(row["policy"]), chips, values, place, "lines+markers"))
    return [plot(title, traces, "chips", unit)]


def split_words(row: Mapping[str, Any]) -> str:
    """Returns instances by role, in words."""
    return ", ".join(f"{row[role]} {role}" for role in ROLES if row.get(role))
