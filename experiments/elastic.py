"""`ooco-gym plan elastic=true`: what a fleet that scales pays for by the hour, against the fewest chips always on.

Each policy's fleet is played within its group's `min` and `max`, steered by the policy's `scale` rule or the cluster's.
Beside it the same scheduler has a fleet whose instances are always on: the fewest within the same limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.sizes import Planner
from ooco_gym.errors import UserError
from ooco_gym.files import as_json
from ooco_gym.metrics.costs import HOUR_S, cost_metrics
from ooco_gym.metrics.statistics import spread
from ooco_gym.policy.registry import split_name
from ooco_gym.render.outcome import WORDS
from ooco_gym.render.page import conditions, conditions_table, fleet_over_time, mean_fleet
from ooco_gym.report import Column, Section, Table, console, number, percent, write_page
from ooco_gym.report.templates import sentence
from ooco_gym.scenario import Scenario

DAY_H = 24.0
Row = Mapping[str, Any]
COLUMNS = (Column("policy", "policy"), Column("holds", lambda row: "yes" if row["holds"] else "no"),
           Column("violations", lambda row: row["violations"]["mean"], percent), Column("chips, mean", "chips", ".3g"),
           Column("chips, most in a part", lambda row: max(row["over_time"]["chips"]), ".3g"),
           Column("starts a day", "starts_per_day", number), Column("cost a day", "cost_per_day", ".4g"),
           Column("chips always on", "static_chips", ".3g"),
           Column("violations of these", lambda row: row["static_violations"]["mean"], percent),
           Column("cost a day of these", "static_cost_per_day", ".4g"))


def window_of(base: Scenario, elastic: bool) -> Scenario:
    """Returns the scenario with the window of a plan, if none is given: an hour, or for elastic fleets a day.

    Raises:
        UserError: a plan of an elastic fleet for a cluster without groups that scale.
    """
    if elastic and not (cluster := base.load_cluster()).scales:
        raise UserError(f"elastic=true is of instances that start and stop: no group of cluster '{cluster.name}' has "
                        "min and max; use for example cluster=elastic_7b")
    if base.duration_s is not None:
        return base
    midnight = elastic and base.start_s is None and not base.from_file
    return base.with_(duration_s=HOUR_S * (DAY_H if elastic else 1.0), **({"start_s": 0.0} if midnight else {}))


def planned(planners: Sequence[Planner], rate: float, price: float | None, options: Row, question: str) -> list[Row]:
    """Plans each policy's elastic fleet; prints and writes the tables and the fleets over time; returns the rows.

    Raises:
        UserError: `chips` is given, or no number of instances that are always on is enough.
    """
    if options["chips"] is not None:
        raise UserError(f"chips={options['chips']} is of fleets that do not scale; leave it out, or elastic=true")
    rows, runs = [], {}
    for planner in planners:
        point = planner.bench.measure(planner.policy, rate)
        runs[planner.policy] = point.summaries
        scheduler, given = split_name(planner.policy)
        kept = ",".join(one for one in given.split(",") if one and not one.startswith("scale"))
        static = replace(planner, policy=f"{scheduler}:{kept}" if kept else scheduler)
        always = static.fewest(rate, int(options["most"]))[-1]
        starts = [one["fleet"]["starts"] * DAY_H * HOUR_S / one["window_s"] for one in point.summaries]
        rows.append({
            "policy": planner.policy, "holds": point.holds(planner.bench.limits),
            "violations": spread(point.violations), "kept_up": float(point.kept_up.mean()),
            "chips": _mean(point.summaries, "chips"), "starts_per_day": float(np.mean(starts)),
            "over_time": mean_fleet(point.summaries), "cost_per_day": _cost(point.summaries, price),
            "static_chips": _mean(always.point.summaries, "chips"),
            "static_violations": spread(always.point.violations),
            "static_cost_per_day": _cost(always.point.summaries, price)})
    bench, note = planners[0].bench, ("Chips are those paid for, from the begin of a start to the end of a drain. "
                                      "Chips always on: the fewest with which the same scheduler keeps the limits.")
    seeds = f"Means over {len(bench.seeds)} seed{'s' * (len(bench.seeds) > 1)}."
    table = Table.of(COLUMNS, rows, question, f"{seeds} {bench.limits.words()} {note}")
    scenario = bench.scenario
    hours = _hours(rows, float(scenario.window()[0]))
    for one in (table, hours):
        one.show(console(), unbroken=2)
    answer = sentence(WORDS, "plan_elastic", rows=rows)
    console().print(answer, highlight=False)
    write_page(Path(options["out"]) / "plan.html", "How many chips, and when", [
        Section("", tables=[table, hours], plots=fleet_over_time(runs)),
        Section("Conditions", tables=[conditions_table({"scenario": scenario.describe()})])],
        f"{answer}\n{conditions(scenario.resolve())}")
    return as_json(rows, 6)


def _mean(runs: Sequence[Row], name: str) -> float:
    return float(np.mean([one["fleet"][name] for one in runs]))


def _cost(runs: Sequence[Row], price: float | None) -> float | None:
    """Returns the mean cost of a day; None without prices."""
    costs = [cost_metrics(one, one["fleet"]["chips"], price).get("per_hour") for one in runs]
    known = [one for one in costs if one is not None]
    return DAY_H * float(np.mean(known)) if known else None


def _hours(rows: Sequence[Row], start_s: float) -> Table:
    """Returns chips by time of day, of equal parts of the window (of a day: hours), above the load."""
    body, over = [], rows[0]["over_time"]
    for place, t_s in enumerate(over["t_s"]):
        minutes = round((start_s + t_s) / 60)
        body.append([f"{minutes // 60 % 24:02}:{minutes % 60:02}", number(over["online_per_s"][place]),
                     *(number(row["over_time"]["chips"][place]) for row in rows)])
    return Table("Chips paid for by time", ["from", "online requests/s", *(row["policy"] for row in rows)], body)
