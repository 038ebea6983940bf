"""Sizes of a cluster: its instances multiplied, each division between roles measured, and the fewest that hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.common.rate_search import Point
from experiments.common.sustain import Bench, sustain
from ooco_gym.cluster import Cluster
from ooco_gym.errors import UserError
from ooco_gym.perf.engine_clock import EngineClock
from ooco_gym.perf.table import cost_table, prefill_alone_ps
from ooco_gym.report import duration, percent
from ooco_gym.sim.state import PS_PER_S

if TYPE_CHECKING:
    from ooco_gym.scenario import ResolvedScenario, Scenario
    from ooco_gym.workload import Trace

ROLES = ("relaxed", "strict", "mixed")
Size = Mapping[str, int]  # instances by role


@dataclass(frozen=True)
class Sized:
    """A number of instances in the best division that was found, and what it came to at the offline rate asked for."""

    size: Size
    point: Point
    holds: bool

    @property
    def instances(self) -> int:
        """In all roles together."""
        return sum(self.size.values())


@dataclass(frozen=True)
class Planner:
    """Sizes of one policy's cluster, measured on paired seeds.

    Attributes:
        policy: who schedules.
        scenario: load, time and the cluster of the policy's kind, whose first instance of each role is multiplied.
        bench: what measures.
    """

    policy: str
    scenario: Scenario
    bench: Bench

    @property
    def least(self) -> int:
        """The fewest instances that the policy takes."""
        return 1 if self.scenario.load_cluster().mixed else 2

    @property
    def chips_each(self) -> int:
        """Chips of an instance; those of a pool's roles are taken to be alike."""
        cluster = self.scenario.load_cluster()
        return max(pool.tp * pool.pp * pool.data_parallel for role in ROLES for pool in getattr(cluster, role)[:1])

    def instances_on(self, chips: int) -> int:
        """How many instances so many chips hold.

        Raises:
            UserError: fewer than the policy needs.
        """
        count = chips // self.chips_each
        if count < self.least:
            raise UserError(f"chips={chips}: '{self.policy}' needs {self.least * self.chips_each} or more: "
                            f"{self.least} instance{'s' * (self.least > 1)} with {self.chips_each} each")
        return count

    def measured(self, size: Size, rate: float) -> Point:
        """What a size comes to at an offline rate."""
        return replace(self.bench, scenario=self.scenario.with_(cluster=sized(self.scenario, size))).measure(
            self.policy, rate)

    def best(self, instances: int, rate: float) -> Sized:
        """So many instances in the division that strains the limits least."""
        found = [(size, self.measured(size, rate)) for size in divisions(self.scenario.load_cluster(), instances)]
        limits = self.bench.limits
        size, point = min(found, key=lambda one: float(limits.strain(*(
            figure.mean() for figure in (one[1].violations, one[1].kept_up, one[1].kept_up_service)))))
        return Sized(size, point, point.holds(limits))

    def fewest(self, rate: float, most: int) -> list[Sized]:
        """Sizes tried: doubled until one holds, then halved between; the last is the fewest that hold, and one instance
        fewer is among them, unless that is less than the policy takes.

        Raises:
            UserError: `most` instances are too few, or any number is.
        """
        self.check_alone()
        tried: dict[int, Sized] = {}
        fails, holds, count = self.least - 1, 0, self.least
        while not holds:
            tried[count] = self.best(count, rate)
            if tried[count].holds:
                holds = count
            elif count == most:
                raise UserError(f"most={most} instances are too few for '{self.policy}': "
                                f"{self.broken(tried[count].point)}; raise most, or lower the load")
            else:
                fails, count = count, min(2 * count, most)
        while holds - fails > 1:
            middle = (holds + fails) // 2
            tried[middle] = self.best(middle, rate)
            fails, holds = (fails, middle) if tried[middle].holds else (middle, holds)
        return [*(one for one in tried.values() if one.instances != holds), tried[holds]]

    def broken(self, point: Point) -> str:
        """What a size that does not hold comes to, in words."""
        words = f"{percent(point.violations.mean())} of the promises are broken"
        missed = {name: 1.0 - float(np.mean([run["online"][f"{name.lower()}_attainment"] for run in point.summaries]))
                  for name in ("TTFT", "TPOT")} if point.violations.any() else {}
        each = ", ".join(f"{name} of {percent(share)} of the online requests" for name, share in missed.items())
        return (f"{words}{f' ({each})' if each else ''}, and {percent(point.kept_up.mean(), 0)} of the offline work is "
                "kept up with")

    def check_alone(self) -> None:
        """Refuses promises that more requests break than may, each with an idle instance to itself.

        Raises:
            UserError: no number of the chips keeps the promise.
        """
        known = self.scenario.resolve()
        trace = known.promised(known.draw(known.start_s, known.duration_s))
        first_s, next_s = alone_s(known, trace)
        paced = trace.online & (trace.output_tokens >= known.slo.tpot_min_tokens)
        batch = ~trace.online & ~trace.online.any()     # beside online requests no plan counts deadlines
        ends_s = first_s + next_s * (trace.output_tokens - 1)
        for what, took_s, promised_s, judged in (
                ("TTFT", first_s, _own(trace, "ttft_slo_s", known.slo.ttft_s), trace.online),
                ("TPOT", next_s, _own(trace, "tpot_slo_s", known.slo.tpot_s), paced),
                ("deadline", ends_s, _own(trace, "deadline_s", np.inf), batch)):
            late = judged & (took_s > promised_s)
            share = late.sum() / max(1, (trace.online if what != "deadline" else judged & (promised_s < np.inf)).sum())
            if share > self.bench.limits.violations:
                worst = int(np.argmax(np.where(late, took_s, 0.0)))
                raise UserError(
                    f"no number of these chips keeps the promise: {percent(share)} of the requests break their {what} "
                    f"even alone on an idle instance, of which the worst takes {duration(took_s[worst])} where "
                    f"{duration(promised_s[worst])} is promised; promise more time, or take faster chips or more tp")

    def carried(self, size: Size) -> Any:
        """The largest offline rate that a size carries (`experiments.common.sustain.Sustained`)."""
        mine = self.scenario.with_(cluster=sized(self.scenario, size))
        return sustain(replace(self.bench, scenario=mine), self.policy)


def alone_s(known: ResolvedScenario, trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """What each request takes at least to its first token, and from one to the next, float64[n] seconds, on an instance
    of its own; a prompt of which others have a part may be cached, and takes nothing."""
    tables = [cost_table(one, 1) for _, one in known.deployments]
    first_ps = np.min([prefill_alone_ps(table, trace.prompt_tokens.astype(np.int64)) for table in tables], axis=0)
    if trace.session is not None or trace.prefix_hashes is not None:
        first_ps = np.zeros(len(trace))
    lines = np.min([table.decode_lines[1] for table in tables], axis=0)
    prompts = trace.prompt_tokens
    next_ps = np.maximum(lines[0] + lines[1] * prompts, lines[2] + lines[3] * prompts)
    clock = EngineClock.load(known.cluster.engine_clock)
    return (first_ps / PS_PER_S + clock.prefill_s + clock.sequence_s + clock.frontend_s,
            next_ps / PS_PER_S + clock.decode_s + clock.sequence_s)


def _own(trace: Trace, name: str, usual: float) -> np.ndarray:
    """A request's own promise, or the usual one, float64[n]."""
    values = getattr(trace, name)
    return np.full(len(trace), usual) if values is None else np.where(np.isnan(values), usual, values)


def asked_for(scenario: Scenario, chips: int | None) -> str:
    """Which chips a plan is about, in words."""
    model, _, names = scenario.load_cluster().hardware()
    return f"{'The fewest' if chips is None else chips} {' and '.join(dict.fromkeys(names))} chips with {model}"


def idle_words(rows: Sequence[Mapping[str, Any]], chips: int | None) -> str:
    """A sentence for each row whose instances leave some of the chips idle."""
    idle = [(row["policy"], int(chips) - row["chips"], row["chips"] // row["instances"]) for row in rows if chips]
    return "".join(f" Of chips={chips} {left} stand{'s' * (left == 1)} idle: an instance of `{policy}` has {each}."
                   for policy, left, each in idle if left)


def divisions(cluster: Cluster, instances: int) -> Iterator[Size]:
    """All ways to part so many instances between the cluster's roles."""
    if cluster.mixed:
        yield {"mixed": instances}
    else:
        yield from ({"relaxed": instances - strict, "strict": strict} for strict in range(1, instances))


def sized(scenario: Scenario, size: Size) -> dict[str, Any]:
    """The scenario's cluster with so many instances of each role, as a cluster file holds it.

    Raises:
        UserError: a role has instances of several kinds.
    """
    cluster = scenario.load_cluster()
    for role in ROLES:
        if len(getattr(cluster, role)) > 1:
            raise UserError(f"cluster '{cluster.name}': pool '{role}' has groups of different instances; expected one, "
                            "of which a plan takes more or fewer")
    values = {name: value for name, value in vars(cluster).items() if name not in ROLES}
    pools = {role: [vars(replace(getattr(cluster, role)[0], count=count))] for role, count in size.items()}
    return {**values, **pools, "twin": None, "name": f"{cluster.name}_{'_'.join(map(str, size.values()))}"}


def split_words(row: Mapping[str, Any]) -> str:
    """Instances by role, in words."""
    return ", ".join(f"{row[role]} {role}" for role in ROLES if row.get(role))
