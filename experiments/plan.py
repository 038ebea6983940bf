"""`ooco-gym plan`: the fewest chips, and their split, that keep the SLOs with offline work; what
chips sustain.

For each policy the cluster's instances are multiplied: mixed ones by their number, pools by every
split between relaxed and strict. A size is sufficient if violations are within `limits.violations`
and the offline backlog does not grow, on average over paired seeds. Echo's two questions (arXiv
2504.03651, 5.4) are covered: the least resources for the online SLOs alone (`offline.rate=0`), and
the offline work that given resources sustain.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from agents.settings import plain
from experiments import batch_plan
from experiments.sizes import Planner, asked_for, frontier_plot, sized, split_words
from ooco_gym.files import as_json, atomic_write
from ooco_gym.from_config import scenario_of
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
    joined,
    number,
    percent,
    show_notes,
    write_page,
)
from ooco_gym.report.templates import sentence
from ooco_gym.run_notes import say_clock, say_played
from ooco_gym.study.options import names_of, seeds_of
from ooco_gym.study.runs import Jobs, Store
from ooco_gym.study.search import Limits, Plan
from ooco_gym.study.sustain import Bench

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from ooco_gym.scenario import Scenario

SCHEMA = "ooco-gym/plan/2"
FRONTIER = ("total_tokens_per_s", "Offline work that chips sustain", "offline total tokens/s")


# --- The command ----------------------------------------------------------------------------------------------------
def main(cfg: DictConfig) -> dict[str, Any]:
    """Plans for each policy; prints and writes the table and the frontier, and each plan's cluster
    as a file.

    Raises:
        UserError: too few instances, or an invalid option.
    """
    begun = time.perf_counter()
    options = plain(cfg)
    policies, seeds, price = names_of(options), seeds_of(options["seeds"]), price_of(options)
    base = scenario_of(cfg)
    batch = base.from_file and (whole := base.with_(duration_s=None)).with_(
        rate_scale=whole.online_scale()).resolve().batch
    base = whole if batch else base
    given = base.rate_scale is not None or base.online_rate is not None
    if base.from_file and not batch:
        base = base.with_(duration_s=min(base.window()[1], base.with_(duration_s=None).window()[1]))
    base = base.with_(rate_scale=base.online_scale() if given else 1.0)
    said = say_played(base)
    say_clock(base, policies=policies)
    rate, limits = float(options["offline"]["rate"] or 0.0), Limits(**options["limits"])
    rows: list[dict[str, Any]] = []
    if batch:
        limits = batch_plan.NONE_LATE
    with Jobs(options["workers"], Store(on=bool(options["cache"]))) as jobs, jobs.progress("plan"):
        for policy in policies:
            scenario = base.on_kind(get_policy(policy).mixed)
            bench = Bench(jobs, scenario, seeds, scenario.load_slo().tpot_from, limits, Plan(**options["search"]))
            rows.append(batch_plan.planned(batch_plan.BatchPlanner(policy, scenario, bench), options) if batch else
                        _planned(Planner(policy, scenario, bench), rate, options))
    out = Path(options["out"])
    for row in rows:
        row["cluster_file"] = str(out / f"{re.sub(r'[^a-z0-9.]+', '_', row['policy'])}.yaml")
        with atomic_write(row["cluster_file"]) as temporary:
            temporary.write_text(yaml.safe_dump(as_json(row["cluster"], 6), sort_keys=False), encoding="utf-8")
    question = batch_plan.question(base, options) if batch else _question(base, rate, options)
    table = batch_plan.table(rows, question) if batch else _table(rows, question, len(seeds), limits)
    plots = frontier_plot(rows, *(batch_plan.FRONTIER if batch else FRONTIER))
    table.show(console(), unbroken=2)
    _, _, chips = base.load_cluster().hardware()
    show_notes(never := infeasible_words(rows[0].get("infeasible")))
    answer = sentence(WORDS, "plan", rows=rows, chip=joined(list(dict.fromkeys(chips))), asked=options["chips"])
    lead = conditions(base.resolve(), price, min(row["chips"] for row in rows))
    console().print(answer, highlight=False)
    played = base.on_kind(get_policy(policies[0]).mixed).describe()
    shown = {**({"played": said[0]} if said else {}), "scenario": played}
    write_page(out / "plan.html", "How many chips", [
        Section("", tables=[table], plots=plots, notes=[*(f"{one}." for one in said[1:]), *never]),
        Section("Conditions", tables=[conditions_table(shown)])],
               f"{answer}\n{lead}")
    return {"schema": SCHEMA, "question": question, "limits": "" if batch else limits.words(), "offline_rate": rate,
            "seeds": list(seeds), "results": as_json(rows, 6), "simulations": jobs.different,
            "simulated_anew": jobs.simulated, "wall_s": time.perf_counter() - begun}


def _planned(planner: Planner, rate: float, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns one policy's row: its fewest instances, or the given ones, their results, and the frontier."""
    chips, most, each = options["chips"], int(options["most"]), planner.chips_each
    alone = replace(planner, scenario=planner.scenario.online_alone()).fewest(0.0, most)[-1]
    if chips is None:
        tried = planner.fewest(rate, most)
        chosen = tried[-1]
    else:
        chosen = planner.best(planner.instances_on(int(chips)), rate)
        tried = [chosen]
    frontier = []
    for count in sorted({alone.instances + more for more in range(int(options["frontier"]))} | {chosen.instances}):
        size = chosen.size if count == chosen.instances else planner.best(count, rate).size
        found = planner.carried(size)
        largest = (found.rate, found.total_tokens_per_s)
        if count == chosen.instances and chosen.holds:  # the search may have stopped at a lower rate
            largest = max(largest, (rate, float(chosen.point.total_tokens_per_s.mean())))
        frontier.append({"chips": count * each, **size, "offline_rate": largest[0], "total_tokens_per_s": largest[1]})
    carried = next(one for one in frontier if one["chips"] == chosen.instances * each)
    fewer = max((one for one in tried if one.instances < chosen.instances), key=lambda one: one.instances, default=None)
    price, point = options["price_per_chip_hour"], chosen.point
    tokens = float(point.total_tokens_per_s.mean())
    extra = (chosen.instances - alone.instances) * each
    return {
        "policy": planner.policy, "chips": chosen.instances * each, "instances": chosen.instances, **chosen.size,
        "holds": chosen.holds, "violations": spread(point.violations),
        "total_tokens_per_s": spread(point.total_tokens_per_s),
        "deadlines_missed": _deadlines_missed(point.summaries),
        **({"infeasible": never} if (never := point.summaries[0]["online"].get("infeasible")) else {}),
        "seeds_over": int((point.violations > planner.bench.limits.violations).sum()),
        "one_fewer": None if fewer is None else {**fewer.size, "violations": float(fewer.point.violations.mean()),
                                                 "kept_up": float(fewer.point.kept_up.mean()), "holds": fewer.holds},
        "online_alone_chips": alone.instances * each, "carried_rate": carried["offline_rate"],
        "carried_total_tokens_per_s": carried["total_tokens_per_s"], "frontier": frontier,
        "cost_per_hour": None if price is None else chosen.instances * each * float(price),
        # Cost of the chips beyond those that online requests need alone.
        "cost_per_million_offline_total_tokens": None if price is None or not tokens else
        extra * float(price) * MILLION / (tokens * HOUR_S),
        "cluster": sized(planner.scenario, chosen.size)}


def _deadlines_missed(runs: Sequence[Mapping[str, Any]]) -> float | None:
    """Returns the share of decided offline deadlines that were missed; None without deadlines."""
    shares = [run["offline"]["violation_rate"] for run in runs if run["offline"].get("violation_rate") is not None]
    return float(np.mean(shares)) if shares else None


def _question(scenario: Scenario, rate: float, options: Mapping[str, Any]) -> str:
    """Returns the plan's question, in words."""
    online, offline = scenario.rates()
    load = f"{number(online)} online requests a second"
    if options["online_rate"] is not None:
        load = f"{number(float(options['online_rate']))} online requests a second"
    elif not scenario.from_file:
        load += " (mean of the day)"
    added = f"{number(offline)} offline ones of the trace and {number(rate)} more" if offline else \
        f"{number(rate)} offline ones"
    limit, slo = percent(float(options["limits"]["violations"]), 0), scenario.load_slo()
    slo_words = "the SLO of its class" if scenario.classes else (
        f"a TTFT of {slo.ttft_s:g} s or a TPOT of {1000 * slo.tpot_s:g} ms")
    return (f"{asked_for(scenario, options['chips'])} for {title_of(scenario.workload)} at {load} and {added}: at "
            f"most {limit} of the online requests may violate {slo_words}")


def _table(rows: Sequence[Mapping[str, Any]], question: str, seeds: int, limits: Limits) -> Table:
    """Returns the table, one row per policy."""
    columns = (Column("policy", "policy"), Column("chips", "chips"),
               Column("split", split_words),
               Column("holds", lambda row: "yes" if row["holds"] else "no"),
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
