"""What policies sustain under several conditions, one row each, for `ooco-gym capacity`.

Hardware (each policy on a cluster of its kind), arrivals, lengths, SLOs and seeds are equal. Each
row also has the policy's metrics at its highest sustained rate (throughput, waste, cache hits,
violations).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ooco_gym.metrics.statistics import interval, resampled_estimate, resampled_interval, within
from ooco_gym.peak import label, title_of
from ooco_gym.policy import get_policy, spelled
from ooco_gym.protocol import SEEDS, WINDOW_S
from ooco_gym.render import write_report
from ooco_gym.render.reading import sustained
from ooco_gym.study.options import seeds_of
from ooco_gym.study.runs import Jobs
from ooco_gym.study.search import Limits, Plan, Point
from ooco_gym.study.sustain import Bench, Sustained, placed, sustain
from ooco_gym.study.tuning import candidates_of, parts_of, tune

if TYPE_CHECKING:
    from ooco_gym.scenario import Scenario

TPOT_FROM = ("first_token", "first_decode")


@dataclass(frozen=True)
class Cell:
    """One condition under which all policies are measured.

    Attributes:
        name: workload and cluster.
        scenario: at its load.
        plan: the search for rates.
        trial: the search while tuning.
        tpot_from: the definition of TPOT.
        params: set for every policy that has them, such as `prefix_caching`.
        shown: further entries of the condition's rows.
    """

    name: str
    scenario: Scenario
    plan: Plan
    trial: Plan
    tpot_from: str = TPOT_FROM[0]
    params: Mapping[str, Any] = field(default_factory=dict)
    shown: Mapping[str, Any] = field(default_factory=dict)

    def full_name(self, policy: str) -> str:
        """Returns the policy with the cell's parameters, as it is simulated; its own values take precedence."""
        base, _, text = policy.partition(":")
        own = {pair.partition("=")[0] for pair in text.split(",")}
        known = {param.name for param in get_policy(base).params} - own
        return spelled(policy, {name: value for name, value in self.params.items() if name in known})


@dataclass(frozen=True)
class Entry:
    """A policy in one cell, with default or tuned parameters, and what it sustains."""

    cell: Cell
    policy: str
    tuned_as: str | None
    found: Sustained


def measured(cell: Cell, policies: Sequence[str], options: Mapping[str, Any], jobs: Jobs) -> list[Entry]:
    """Returns the rates that each policy sustains in a cell; all are searched in parallel."""
    tuning, seeds = options["tuning"], seeds_of(options["seeds"])
    limits = Limits(**options["limits"])

    def measure(policy: str) -> list[Entry]:
        first, rest = parts_of(cell.scenario, tuning, policies)
        bench = Bench(jobs, rest, seeds, cell.tpot_from, limits, cell.plan)
        trial = replace(bench, scenario=first, seeds=seeds_of(tuning["seeds"], "tuning.seeds"), plan=cell.trial)
        return entries_of(cell, policy, bench, trial, tuning["policies"] or {}, tuning["shipped"])

    entries: list[Entry] = []
    for found in jobs.at_once(measure, policies):
        entries += found
    return entries


def notes_of(window_s: float, seeds: Sequence[int], limits: Limits) -> list[str]:
    """Returns a sentence on the limits, and one for each way in which a measurement is below the protocol."""
    notes = [limits.words()]
    if window_s < WINDOW_S:
        notes.append(f"the window of {window_s:g} s is shorter than the protocol's {WINDOW_S:g} s, with the same "
                     "limits, so a growing backlog is detected less reliably; treat these results as a trial.")
    if len(seeds) < SEEDS:
        notes.append(f"{len(seeds)} seed{'s are' if len(seeds) > 1 else ' is'} fewer than the protocol's {SEEDS}: a "
                     "single burst can decide the result.")
    return notes


def entries_of(cell: Cell, policy: str, bench: Bench, trial: Bench,
               settings: Mapping[str, Sequence[Mapping[str, Any]]], shipped: bool = True) -> list[Entry]:
    """Returns the entries of a policy with default parameters and, if candidates are given, as
    tuned on validation seeds.

    Without `shipped`, only the tuned variant is measured if it differs from the default.
    """

    def sustained(name: str, near: float | None = None) -> Sustained:
        return sustain(bench, cell.full_name(name), near)

    if not settings.get(policy):
        return [Entry(cell, policy, None, sustained(policy))]
    best = tune(policy, candidates_of(policy, settings[policy]),
                lambda one, rate: trial.measure(cell.full_name(one), rate), trial.plan, trial.limits)
    entries = []
    if shipped or best.policy == policy:
        entries.append(Entry(cell, policy, None, sustained(policy, best.default_rate)))
    if best.policy != policy:
        entries.append(Entry(cell, policy, best.policy, sustained(best.policy, best.rate)))
    return entries


def rows_of(entries: Sequence[Entry], baselines: Sequence[str], budget: float,
            lead: str | None = None) -> list[dict[str, Any]]:
    """Returns one row for each policy and cell, and one more as tuned; the best of a cell first.

    Args:
        entries: the measurements.
        baselines: ratios of a cell are to the best of these, tuned if available.
        budget: violation rate allowed on a seed, and upper limit without offline work for a policy
            to be ranked.
        lead: the policy whose lead over each other one is computed, tuned if available; None: none.
    """
    rows = []
    for cell in dict.fromkeys(entry.cell.name for entry in entries):
        mine = {(entry.policy, entry.tuned_as): entry for entry in entries if entry.cell.name == cell}
        last = {policy: entry for (policy, _), entry in mine.items()}  # the tuned one, which follows the default
        base = max((last[name] for name in baselines),
                   key=lambda one: one.found.total_tokens_per_s)
        best = max(mine.values(), key=lambda one: one.found.total_tokens_per_s)
        block = [{**_row(entry, base, budget), "lead": _lead(last[lead], entry) if lead else None,
                  "behind": _lead(best, entry)} for entry in mine.values()]
        rows += sorted(block, key=lambda row: (not row["feasible"], -row["offline_total_tokens_per_s"]["mean"]))
    return rows


def _row(entry: Entry, base: Entry, budget: float) -> dict[str, Any]:
    found, over, definition = entry.found, base.found, entry.cell.tpot_from
    crossing = found.crossing
    at = crossing.best if crossing.best is not None else crossing.points[0]
    seeds = len(at.violations)
    ratio, low, high = _ratio(found, over, seeds)
    rate_low, rate_high = map(_plain, resampled_interval(found.rates, seeds))
    return {
        "cell": entry.cell.name, "policy": entry.policy, "tuned_as": entry.tuned_as, **entry.cell.shown,
        "condition": entry.cell.name, "rate": found.rate, "ci_low": rate_low, "ci_high": rate_high,
        "total_tokens_per_s": found.total_tokens_per_s, "violation_rate": float(at.violations.mean()),
        "n_seeds": seeds, "best_baseline": base.policy,
        "best_baseline_tuned_as": base.tuned_as,
        "cluster": label("cluster", placed(entry.cell.scenario, entry.policy).cluster),
        "kind": "mixed" if get_policy(entry.policy).mixed else "pools",
        **({"infeasible": never} if (never := crossing.points[0].summaries[0]["online"].get("infeasible")) else {}),
        "feasible": within(crossing.points[0].violations, budget),
        "limited_by": _limit(crossing.failed, crossing.reason, definition),
        "seeds_over": float(np.mean(at.violations > budget)),
        "max_offline_rate": _crossing(found, seeds),
        "ratio": ratio, "ratio_low": low, "ratio_high": high,
        **figures_of(at, definition),
        "curve": [{"offline_rate": point.rate, "violation_rates": point.violations.tolist(),
                   "kept_up_share": float(point.kept_up.mean()),
                   "total_tokens_per_s": float(point.total_tokens_per_s.mean())}
                  for point in crossing.points],
    }


def _ratio(found: Sustained, over: Sustained, seeds: int) -> tuple[float | None, float | None, float | None]:
    """Returns offline tokens over the baseline's, paired by resample; None if that sustains nothing."""
    if over.total_tokens_per_s <= 0:
        return None, None, None
    if seeds < 2 or (over.tokens <= 0).any():
        return found.total_tokens_per_s / over.total_tokens_per_s, None, None
    return resampled_estimate(found.tokens / over.tokens, seeds)


def _lead(ahead: Entry, entry: Entry) -> dict[str, float | None]:
    """Returns the difference in sustained offline tokens per second from another policy, paired by resample."""
    ours, theirs = ahead.found, entry.found
    found = resampled_estimate(ours.tokens - theirs.tokens, len(ours.own_rates))
    return dict(zip(("estimate", "low", "high"), map(_plain, found), strict=True))


def _crossing(found: Sustained, seeds: int) -> dict[str, Any]:
    """Returns the rate at which bootstrap samples reach the limits, with its interval, the highest
    simulated rate within the limits on average, and each seed's own rate."""
    estimate, low, high = map(_plain, resampled_estimate(found.rates, seeds))
    return {"estimate": estimate, "ci_low": low, "ci_high": high, "held": found.held,
            "values": found.own_rates.tolist()}


def _limit(failed: Point | None, reason: str, definition: str) -> str:
    """Returns what limits the rate: `backlog`, `none`, or the SLO violated most at the first unsustainable rate."""
    if failed is None or reason != "violations":
        return reason
    shares = _violations(failed, definition)
    return "TTFT" if shares["ttft_violations"].mean() >= shares["tpot_violations"].mean() else "TPOT"


def _violations(point: Point, definition: str) -> dict[str, np.ndarray]:
    online = [one["online"] for one in point.summaries]
    return {"violations": point.violations,
            "ttft_violations": 1.0 - np.array([one["ttft_attainment"] for one in online], float),
            "tpot_violations": 1.0 - np.array([one[f"tpot_attainment_{definition}"] for one in online], float)}


def figures_of(point: Point, definition: str) -> dict[str, dict[str, Any]]:
    """Returns a policy's metrics at an offline rate: means over seeds, intervals, and values by seed."""
    online = [one["online"] for one in point.summaries]
    offline = [one["offline"] for one in point.summaries]
    served = np.array([one["total_tokens_per_s"] for one in online], float)
    instances = np.array([len(one["instances"]) for one in point.summaries], float)
    columns = {
        "offline_total_tokens_per_s": point.total_tokens_per_s,
        "offline_computed_tokens_per_s": np.array([_number(one.get("computed_tokens_per_s")) for one in offline]),
        "offline_reference_gpu_s_per_s": point.service_per_s,
        "overall_total_tokens_per_s": served + point.total_tokens_per_s,
        "wasted_tokens_per_s": point.wasted_per_s,
        "wasted_gpu_share": np.array([one["wasted_gpu_s_per_s"] for one in offline], float) / instances,
        "hit_rate": np.array([_number(one.get("hit_rate")) for one in offline]),
        "hit_rate_online": np.array([_number(one.get("hit_rate")) for one in online]),
        **_violations(point, definition),
    }
    return {name: _figure(*interval(values), values) for name, values in columns.items()}


def _figure(mean: float, low: float, high: float, values: np.ndarray) -> dict[str, Any]:
    """Returns a metric with its interval and its values by seed; NaN becomes None."""
    plain = [_plain(float(value)) for value in (mean, low, high, *values)]
    return {"mean": plain[0], "ci_low": plain[1], "ci_high": plain[2], "values": plain[3:]}


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else value


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _described(cell: Cell) -> dict[str, Any]:
    """Returns a cell as in the summary: its inputs, with the load."""
    scenario = cell.scenario
    return {"name": cell.name, "workload": title_of(scenario.workload),
            "offline": scenario.offline.get("dataset") or scenario.offline.get("name", "ooc"),
            "cluster": label("cluster", scenario.cluster), "slo": scenario.describe()["slo"],
            "rate_scale": scenario.rate_scale, "window_s": float(scenario.window()[1]), "params": dict(cell.params),
            "online_rate_per_s": scenario.rates()[0]}


def summed_up(schema: str, cells: Sequence[Cell], rows: Sequence[Mapping[str, Any]], options: Mapping[str, Any],
              jobs: Jobs, wall_s: float, more: Mapping[str, Any]) -> dict[str, Any]:
    """Returns and prints the command's summary with `more`; writes a page if there are rows."""
    seeds, tuning = seeds_of(options["seeds"]), options["tuning"]
    window_s = min(float(cell.scenario.window()[1]) for cell in cells)
    summary = {"schema": schema, "seeds": list(seeds), "window_s": window_s, "tpot_from": cells[0].tpot_from,
               "notes": notes_of(window_s, seeds, Limits(**options["limits"])),
               "cells": [_described(cell) for cell in cells],
               "tuning": {"seeds": list(seeds_of(tuning["seeds"], "tuning.seeds")),
                          "policies": tuning["policies"] or {}},
               "simulations": jobs.different, "simulated_anew": jobs.simulated, "workers": jobs.workers,
               "wall_s": wall_s, "cpu_s": jobs.cpu_s, **more, "results": rows}
    outcomes = sustained(summary, options)
    for outcome in outcomes:
        outcome.show()
    if rows:
        write_report(Path(options["out"]) / "capacity.html", outcomes)
    return summary
