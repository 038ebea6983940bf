"""A plan for offline requests alone: the fewest chips that meet all deadlines, and makespan and cost by chips."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.sizes import Planner, Size, Sized, asked_for, sized, split_words
from ooco_gym.errors import UserError
from ooco_gym.metrics.costs import HOUR_S, MILLION
from ooco_gym.peak import title_of
from ooco_gym.report import Column, Table, duration, number, percent
from ooco_gym.scenario import Scenario
from ooco_gym.study.search import Limits, Point
from ooco_gym.study.sustain import placed

FRONTIER = ("makespan_s", "Makespan by chips", "seconds")
NONE_LATE = Limits(1e-9, 0.0, 0.0)  # no missed deadlines
ASKED = ("a trace of offline requests alone has no arrival rate to sustain: give a deadline, as 'classes={offline: "
         "{deadline_s: 3600}}' or in a column deadline_s, or how many chips there are, chips=2")


@dataclass(frozen=True)
class BatchPlanner(Planner):
    """Cluster sizes of one policy, each simulated until all requests are done."""

    def measured(self, size: Size, rate: float) -> Point:
        """Returns a size's results; violations are the share of deadlines missed or undecided."""
        scenario = placed(self.scenario.with_(cluster=sized(self.scenario, size)), self.policy)
        runs = self.bench.jobs.all([scenario.with_(seed=seed) for seed in self.bench.seeds], self.policy)
        offline = [one["offline"] for one in runs]
        late = np.array([(one.get("deadline_misses", 0) + one.get("deadline_undecided", 0)) / max(
            1, one.get("deadlines", 0)) for one in offline])
        tokens = np.array([one["batch"]["total_tokens_per_s"] or 0.0 for one in runs])
        whole = np.ones(len(runs))
        return Point(rate, late, whole, whole, tokens, whole, whole, runs)

    def broken(self, point: Point) -> str:
        """Returns the share of missed deadlines and the makespan, in words."""
        ends = [run["batch"]["makespan_s"] for run in point.summaries]
        done = "" if None in ends else f"; the makespan is {duration(float(np.mean(ends)))}"
        return f"{percent(point.violations.mean())} of the deadlines are missed{done}"


def planned(planner: BatchPlanner, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns one policy's row: its fewest instances, or the given ones, and the results of each
    size tried.

    Raises:
        UserError: neither deadlines nor a number of chips.
    """
    each, chips = planner.chips_each, options["chips"]
    if chips is None:
        least = planner.best(planner.least, 0.0)
        if not all(one["offline"].get("deadlines") for one in least.point.summaries):
            raise UserError(f"{title_of(planner.scenario.workload)}: {ASKED}")
        tried = planner.fewest(0.0, int(options["most"]))
        chosen = tried[-1]
    else:
        chosen = planner.best(planner.instances_on(int(chips)), 0.0)
        tried = [chosen]
    more = [planner.best(chosen.instances + count, 0.0) for count in range(1, int(options["frontier"]))]
    sizes = {one.instances: _figures(one, each, options["price_per_chip_hour"]) for one in (*tried, *more)}
    fewer = max((count for count in sizes if count < chosen.instances), default=None)
    return {"policy": planner.policy, "instances": chosen.instances, **chosen.size, "holds": chosen.holds,
            **sizes[chosen.instances], "one_fewer": None if fewer is None else sizes[fewer],
            "frontier": [sizes[count] for count in sorted(sizes)], "cluster": sized(planner.scenario, chosen.size)}


def _figures(one: Sized, each: int, price: float | None) -> dict[str, Any]:
    ends = [run["batch"]["makespan_s"] for run in one.point.summaries]
    chips, end_s = one.instances * each, None if None in ends else float(np.mean(ends))
    tokens = float(one.point.total_tokens_per_s.mean())
    cost = None if price is None or end_s is None else chips * price * end_s / HOUR_S
    due = any(run["offline"].get("deadlines") for run in one.point.summaries)
    return {"chips": chips, "makespan_s": end_s, "total_tokens_per_s": tokens,
            "late_share": float(one.point.violations.mean()) if due else None,
            "cost_per_hour": None if price is None else chips * price, "cost": cost,
            "cost_per_million_total_tokens": None if cost is None or end_s is None or not tokens else
            cost * MILLION / (tokens * end_s)}


def question(scenario: Scenario, options: Mapping[str, Any]) -> str:
    """Returns the plan's question, in words."""
    known = scenario.resolve()
    rows = len(known.draw(known.start_s, known.duration_s))
    asked = f"{asked_for(scenario, options['chips'])} to complete"
    return f"{asked} the {rows:,} offline requests of {title_of(scenario.workload)} by their deadlines"


def table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """Returns the table, one row per policy."""
    columns = (Column("policy", "policy"), Column("chips", "chips"), Column("split", split_words),
               Column("deadlines met",
                      lambda row: "–" if row["late_share"] is None else "yes" if row["holds"] else "no"),
               Column("makespan", "makespan_s", duration), Column("total tokens/s", "total_tokens_per_s", number),
               Column("makespan, one fewer", lambda row: (row["one_fewer"] or {}).get("makespan_s"), duration),
               Column("total cost", "cost", ".3g"),
               Column("cost per million total tokens", "cost_per_million_total_tokens", ".3g"))
    return Table.of(columns, rows, title, "Total tokens are prompt and output tokens over the makespan.")
