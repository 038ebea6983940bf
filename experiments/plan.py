"""`ooco-gym plan`: the fewest chips, and their split, that keep the SLOs with offline work; what chips sustain.

For each policy the cluster's instances are multiplied: mixed ones by their number, pools by every split between relaxed
and strict. A size is sufficient if violations are within `limits.violations` and the offline backlog does not grow, on
average over paired seeds. Echo's two questions (arXiv 2504.03651, 5.4) are covered: the least resources for the online
SLOs alone (`offline.rate=0`), and the offline work that given resources sustain. For a trace of offline requests alone
a size is sufficient if no deadline is missed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from experiments.elastic import planned, window_of
from experiments.sizes import NO_JOBS, BatchBench, Planner, Sized, p99_of_jobs, sized
from ooco_gym.cluster import ROLES
from ooco_gym.errors import UserError
from ooco_gym.files import as_json, atomic_write
from ooco_gym.metrics.costs import HOUR_S, MILLION, price_of
from ooco_gym.metrics.statistics import spread
from ooco_gym.metrics.summary import infeasible_words
from ooco_gym.peak import title_of
from ooco_gym.policy import get_policy
from ooco_gym.render.outcome import WORDS
from ooco_gym.render.page import conditions, conditions_table
from ooco_gym.report import (
    Column,
    Section,
    Table,
    console,
    curve,
    duration,
    joined,
    number,
    percent,
    plot,
    show_notes,
    write_page,
)
from ooco_gym.report.pages import Plot
from ooco_gym.report.templates import sentence
from ooco_gym.run_notes import say_clock, say_played
from ooco_gym.scenario import scenario_of
from ooco_gym.schema import number as checked
from ooco_gym.schema import plain, whole
from ooco_gym.study.options import names_of, seeds_of
from ooco_gym.study.runs import Jobs
from ooco_gym.study.search import Limits, SearchPlan
from ooco_gym.study.sustain import Bench

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from ooco_gym.scenario import Scenario

SCHEMA = "ooco-gym/plan/2"
NONE_LATE = Limits(1e-9, 0.0, 0.0)  # no missed deadlines
ASKED = ("a trace of offline requests alone has no arrival rate to sustain: give a deadline, as 'classes={offline: "
         "{deadline_s: 3600}}' or in a column deadline_s, for jobs job_slo_s=600, or how many chips there are, chips=2")
Row = Mapping[str, Any]


def main(cfg: DictConfig) -> dict[str, Any]:
    """Plans for each policy; prints and writes the table and the frontier, and each plan's cluster as a file.

    Raises:
        UserError: too few instances, or an invalid option.
    """
    options = plain(cfg)
    policies, seeds, price = names_of(options), seeds_of(options["seeds"]), price_of(options)
    base, batch = _load(window_of(scenario_of(cfg), options["elastic"]))
    if base.load_cluster().roles == ROLES:
        raise UserError(f"cluster '{base.load_cluster().name}': plan finds a number of mixed instances, or of relaxed "
                        "and strict ones; leave out one kind")
    if batch and options["elastic"]:
        raise UserError("elastic=true: a trace of offline requests alone has no load that rises and falls")
    if options["job_slo_s"] is not None:
        checked("job_slo_s", options["job_slo_s"], 0, 1e9, "seconds")
        if not batch:
            raise UserError(NO_JOBS)
    for key in ("chips", "most"):
        whole(key, options[key], 1, 1_000_000, null="the fewest" * (key == "chips"))
    said = say_played(base)
    say_clock(base, policies=policies)
    rate = float(options["offline"]["rate"] or 0.0)
    limits = NONE_LATE if batch else Limits(**options["limits"])
    rows: list[dict[str, Any]] = []
    question = _question(base, batch, rate, options)
    with Jobs.of(options) as jobs, jobs.progress("plan"):
        planners = []
        for policy in policies:
            scenario = base.on_kind(get_policy(policy).mixed)
            bench = Bench(jobs, scenario, seeds, scenario.load_slo().tpot_from, limits, SearchPlan(**options["search"]))
            if batch:
                bench = BatchBench(**vars(bench), job_slo_s=options["job_slo_s"])
            planners.append(Planner(policy, bench))
        if options["elastic"]:
            found = planned(planners, rate, price, options, question)
            return {"schema": SCHEMA, "question": question, "limits": limits.words(), "offline_rate": rate,
                    "seeds": list(seeds), "results": found, **jobs.counts()}
        rows += [(_batch_row if batch else _row)(planner, rate, options) for planner in planners]
    for row in rows:
        row["cluster_file"] = str(Path(options["out"]) / f"{re.sub(r'[^a-z0-9.]+', '_', row['policy'])}.yaml")
        with atomic_write(row["cluster_file"]) as temporary:
            temporary.write_text(yaml.safe_dump(as_json(row["cluster"], 6), sort_keys=False), encoding="utf-8")
    table = Table.of(BATCH_COLUMNS, rows, question, "Total tokens are prompt and output tokens over the makespan.") if (
        batch) else _table(rows, question, len(seeds), limits)
    table.show(console(), unbroken=2)
    show_notes(never := infeasible_words(rows[0].get("infeasible")))
    _, _, chips = base.load_cluster().hardware()
    answer = sentence(WORDS, "plan", rows=rows, chip=joined(list(dict.fromkeys(chips))), asked=options["chips"])
    lead = conditions(base.resolve(), price, min(row["chips"] for row in rows))
    console().print(answer, highlight=False)
    shown = {**({"played": said[0]} if said else {}),
             "scenario": base.on_kind(get_policy(policies[0]).mixed).describe()}
    write_page(Path(options["out"]) / "plan.html", "How many chips", [
        Section("", tables=[table], plots=[_frontier(rows, batch)], notes=[*(f"{one}." for one in said[1:]), *never]),
        Section("Conditions", tables=[conditions_table(shown)])], f"{answer}\n{lead}")
    return {"schema": SCHEMA, "question": question, "limits": "" if batch else limits.words(), "offline_rate": rate,
            "seeds": list(seeds), "results": as_json(rows, 6), **jobs.counts()}


def _load(base: Scenario) -> tuple[Scenario, bool]:
    """Returns the scenario at its load, and whether it is a trace of offline requests alone, which is played whole."""
    batch = False
    if base.from_file:
        whole = base.with_(duration_s=None)
        batch = whole.with_(rate_scale=whole.online_scale()).resolve().batch
        base = whole if batch else base.with_(duration_s=min(base.window()[1], whole.window()[1]))
    given = base.rate_scale is not None or base.online_rate is not None
    return base.with_(rate_scale=base.online_scale() if given else 1.0), batch


# --- Rows -----------------------------------------------------------------------------------------------------------
def _row(planner: Planner, rate: float, options: Row) -> dict[str, Any]:
    """Returns one policy's row: its fewest instances, or the given ones, their results, and the frontier."""
    most, each, price = int(options["most"]), planner.chips_each, options["price_per_chip_hour"]
    online = replace(planner.bench, scenario=planner.bench.scenario.online_alone())
    alone = replace(planner, bench=online).fewest(0.0, most)[-1]
    tried = planner.tried(rate, options["chips"], most)
    chosen, point = tried[-1], tried[-1].point
    frontier = {}
    for count in sorted({alone.instances + more for more in range(int(options["frontier"]))} | {chosen.instances}):
        size = chosen.size if count == chosen.instances else planner.best(count, rate).size
        found = planner.sustained(size)
        largest = (found.rate, found.total_tokens_per_s)
        if count == chosen.instances and chosen.holds:  # the search may have stopped at a lower rate
            largest = max(largest, (rate, float(point.total_tokens_per_s.mean())))
        frontier[count] = {"chips": count * each, **size, "offline_rate": largest[0], "total_tokens_per_s": largest[1]}
    fewer = max((one for one in tried if one.instances < chosen.instances), key=lambda one: one.instances, default=None)
    tokens = float(point.total_tokens_per_s.mean())
    extra = (chosen.instances - alone.instances) * each
    deadlines = [run["offline"]["violation_rate"] for run in point.summaries
                 if run["offline"].get("violation_rate") is not None]
    return {
        "policy": planner.policy, "chips": chosen.instances * each, "instances": chosen.instances, **chosen.size,
        "holds": chosen.holds, "violations": spread(point.violations),
        "total_tokens_per_s": spread(point.total_tokens_per_s),
        "deadlines_missed": float(np.mean(deadlines)) if deadlines else None,
        **({"infeasible": never} if (never := point.summaries[0]["online"].get("infeasible")) else {}),
        "seeds_over": int((point.violations > planner.bench.limits.violations).sum()),
        "one_fewer": None if fewer is None else {**fewer.size, "violations": float(fewer.point.violations.mean()),
                                                 "kept_up": float(fewer.point.kept_up.mean()), "holds": fewer.holds},
        "online_alone_chips": alone.instances * each, "carried_rate": frontier[chosen.instances]["offline_rate"],
        "carried_total_tokens_per_s": frontier[chosen.instances]["total_tokens_per_s"],
        "frontier": list(frontier.values()),
        "cost_per_hour": None if price is None else chosen.instances * each * float(price),
        # Cost of the chips beyond those that online requests need alone.
        "cost_per_million_offline_total_tokens": None if price is None or not tokens else
        extra * float(price) * MILLION / (tokens * HOUR_S),
        "cluster": sized(planner.bench.scenario, chosen.size)}


def _batch_row(planner: Planner, _: float, options: Row) -> dict[str, Any]:
    """Returns one policy's row for a trace of offline requests alone, and the results of each size tried.

    Raises:
        UserError: neither deadlines nor a number of chips.
    """
    each, scenario = planner.chips_each, planner.bench.scenario
    if options["chips"] is None and options["job_slo_s"] is None and not all(
            summary["offline"].get("deadlines") for summary in planner.best(planner.least, 0.0).point.summaries):
        raise UserError(f"{title_of(scenario.workload)}: {ASKED}")
    tried = planner.tried(0.0, options["chips"], int(options["most"]))
    chosen = tried[-1]
    more = [planner.best(chosen.instances + count, 0.0) for count in range(1, int(options["frontier"]))]
    sizes = {one.instances: _batch_metrics(one, each, options) for one in (*tried, *more)}
    fewer = max((count for count in sizes if count < chosen.instances), default=None)
    return {"policy": planner.policy, "instances": chosen.instances, **chosen.size, "holds": chosen.holds,
            **sizes[chosen.instances], "one_fewer": None if fewer is None else sizes[fewer],
            "frontier": [sizes[count] for count in sorted(sizes)], "cluster": sized(scenario, chosen.size)}


def _batch_metrics(one: Sized, each: int, options: Row) -> dict[str, Any]:
    price = options["price_per_chip_hour"]
    ends = [run["batch"]["makespan_s"] for run in one.point.summaries]
    chips, end_s = one.instances * each, None if None in ends else float(np.mean(ends))
    tokens = float(one.point.total_tokens_per_s.mean())
    cost = None if price is None or end_s is None else chips * price * end_s / HOUR_S
    due = options["job_slo_s"] is not None or any(run["offline"].get("deadlines") for run in one.point.summaries)
    jobs = p99_of_jobs(one.point)
    return {"chips": chips, "makespan_s": end_s, "total_tokens_per_s": tokens,
            "job_completion_p99_s": jobs,
            "late_share": float(one.point.violations.mean()) if due else None,
            "cost_per_hour": None if price is None else chips * price, "cost": cost,
            "cost_per_million_total_tokens": None if cost is None or end_s is None or not tokens else
            cost * MILLION / (tokens * end_s)}


# --- Words ----------------------------------------------------------------------------------------------------------
def _question(scenario: Scenario, batch: bool, rate: float, options: Row) -> str:
    """Returns the plan's question, in words."""
    model, _, names = scenario.load_cluster().hardware()
    asked = f"{options['chips'] or 'The fewest'} {' and '.join(dict.fromkeys(names))} chips with {model}"
    title = title_of(scenario.workload)
    if batch:
        known = scenario.resolve()
        rows = len(known.draw(known.start_s, known.duration_s))
        limit = options["job_slo_s"]
        by = "by their deadlines" if limit is None else f"with 99 % of the jobs done within {duration(float(limit))}"
        return f"{asked} to complete the {rows:,} offline requests of {title} {by}"
    online, offline = scenario.rates()
    given = options["online_rate"]
    load = f"{number(online if given is None else float(given))} online requests a second"
    if given is None and not scenario.from_file:
        load += " (mean of the day)"
    added = f"{number(offline)} offline ones of the trace and {number(rate)} more" if offline else \
        f"{number(rate)} offline ones"
    limit, slo = percent(float(options["limits"]["violations"]), 0), scenario.load_slo()
    slo_words = "the SLO of its class" if scenario.classes else (
        f"a TTFT of {slo.ttft_s:g} s or a TPOT of {1000 * slo.tpot_s:g} ms")
    return f"{asked} for {title} at {load} and {added}: at most {limit} of the online requests may violate {slo_words}"


def _split(row: Row) -> str:
    return ", ".join(f"{row[role]} {role}" for role in ROLES if row.get(role))


def _frontier(rows: Sequence[Row], batch: bool) -> Plot:
    """Returns a plot of a result of each size tried over its chips, one colour per policy."""
    key, title, unit = ("makespan_s", "Makespan by chips", "seconds") if batch else (
        "total_tokens_per_s", "Offline work that chips sustain", "offline total tokens/s")
    traces = []
    for place, row in enumerate(rows):
        chips, values = [one["chips"] for one in row["frontier"]], [one[key] for one in row["frontier"]]
        traces.append(curve(str(row["policy"]), chips, values, place, "lines+markers"))
    return plot(title, traces, "chips", unit)


COLUMNS = (Column("policy", "policy"), Column("chips", "chips"), Column("split", _split))
BATCH_COLUMNS = (*COLUMNS,
    Column("in time", lambda row: "–" if row["late_share"] is None else "yes" if row["holds"] else "no"),
    Column("P99 of a job", "job_completion_p99_s", duration),
    Column("makespan", "makespan_s", duration), Column("total tokens/s", "total_tokens_per_s", number),
    Column("makespan, one fewer", lambda row: (row["one_fewer"] or {}).get("makespan_s"), duration),
    Column("total cost", "cost", ".3g"),
    Column("cost per million total tokens", "cost_per_million_total_tokens", ".3g"))


def _table(rows: Sequence[Row], question: str, seeds: int, limits: Limits) -> Table:
    """Returns the table, one row per policy."""
    columns = (*COLUMNS, Column("holds", lambda row: "yes" if row["holds"] else "no"),
               Column("violations", lambda row: row["violations"]["mean"], percent),
               Column("seeds beyond the limits", lambda row: f"{row['seeds_over']} of {seeds}"),
               Column("one fewer", lambda row: "–" if row["one_fewer"] is None else
                      f"{percent(row['one_fewer']['violations'])}, {percent(row['one_fewer']['kept_up'], 0)} "
                      "completed"),
               Column("chips for online only", "online_alone_chips"),
               Column("additional offline/s sustained", "carried_rate", ".3g"),
               Column("cost/h", "cost_per_hour", ".4g"),
               Column("cost per million offline total tokens", "cost_per_million_offline_total_tokens", ".3g"))
    return Table.of(columns, rows, question, f"Means over {seeds} seed{'s' * (seeds > 1)}. {limits.words()} One fewer: "
                                             "violations, and the completed share of the arriving offline work. "
                                             "Additional offline load is synthetic, with the lengths that `offline` "
                                             "names, on top of the trace's own. Offline tokens (prompt and output) "
                                             "cost what the chips beyond those for online requests only cost.")
