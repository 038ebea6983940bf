"""The page of what runs came to: one for `simulate`, `compare`, `capacity`, `evaluate`, `demo` and `report`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.metrics.statistics import interval_words
from ooco_gym.peak import short_name
from ooco_gym.protocol import baseline_among
from ooco_gym.render.outcome import Outcome, compare, metrics_of
from ooco_gym.render.record import RunRecord, differing_conditions, grouped
from ooco_gym.report import (
    Section,
    Table,
    at_least,
    command_line,
    curve,
    duration,
    joined,
    number,
    percent,
    plain_table,
    plot,
    write_page,
)
from ooco_gym.report.pages import Plot

BINS, LEAST_BIN_S = 48, 60.0  # of a window: so many, fewer where they would be shorter
CLASS_FIGURES: tuple[tuple[str, str, Callable[[float | None], str]], ...] = (
    ("arrived", "arrived", number), ("finished", "finished", number), ("violations", "violation_rate", percent),
    ("TTFT P99", "ttft_p99_s", duration), ("TPOT P99", "tpot_p99_s", duration),
    ("output tokens/s", "output_tokens_per_s", number))


def outcome_of(records: Sequence[RunRecord], notes: Sequence[str] = (), plots: bool = True) -> Outcome:
    """What runs came to: a row a policy and cluster, over its seeds; with `plots` over time.

    Raises:
        UserError: no run, or a policy with a seed twice.
    """
    if not records:
        raise UserError("a report needs at least one run")
    groups, scenario = grouped(records), records[0].scenario
    base, budget = baseline_among([label for label, _ in groups]), float(scenario["protocol"]["violation_budget"])
    rows = compare({key: [one.summary for one in members] for key, members in groups.items()},
                   metrics_of([one.summary.get("params", {}) for one in records]),
                   next(key for key in groups if key[0] == base), budget)
    more = [f"the runs differ in more than policy and seed ({', '.join(differing)}): these figures are no comparison "
            "of policies."] if (differing := differing_conditions(records)) else []
    return Outcome(
        load_title(scenario["workload"], [cluster for _, cluster in groups], {one.seed for one in records}), rows,
        base if len(groups) > 1 else None, budget, notes=[*more, *notes],
        intervals=interval_words(min(map(len, groups.values()))),
        plots=plots_of([members[0] for members in groups.values()], budget) if plots else ())


def load_title(workload: Any, clusters: Sequence[str], seeds: Sequence[int] | set[int]) -> str:
    """What is played, for titles."""
    return (f"{short_name(workload)} on {joined(list(dict.fromkeys(clusters)))}, seed{'s' if len(seeds) > 1 else ''} "
            f"{', '.join(map(str, sorted(seeds)))}")


def write_report(path: str | os.PathLike[str], outcomes: Sequence[Outcome], records: Sequence[RunRecord] = (), *,
                 title: str = "") -> Path:
    """Writes the page of outcomes as one HTML file, atomically, with the command that makes it again.

    Args:
        path: the file.
        outcomes: the first one's answer is the page's.
        records: the runs of the first one, where they are known: their classes and conditions are shown.
        title: of the page; empty: the first one's.
    """
    parts = []
    for index, one in enumerate(outcomes):
        tables = one.tables()
        tables[0] = replace(tables[0], title="")  # it is the page's, or the section's
        if index == 0 and (classes := class_table(records)):
            tables.append(classes)
        parts.append(Section(one.title if len(outcomes) > 1 else "", [one.answer()] if index else [], tables,
                             plots=[*one.chart(), *one.plots], notes=one.notes))
    conditions = [Section("Conditions", tables=[conditions_table(records)])] if records else []
    again = [Section("How to make this again", commands=[line])] if (line := command_line()) else []
    return write_page(path, title or outcomes[0].title, [*parts, *conditions, *again], outcomes[0].answer())


def conditions_table(records: Sequence[RunRecord]) -> Table:
    """The scenario of the first record, a row a field; the clusters of all."""
    scenario, played = records[0].scenario, records[0].summary.get("played")
    clusters = dict.fromkeys(short_name(one.scenario["cluster"]) for one in records)
    window = {key: records[0].summary[key] for key in ("arrivals_s", "window_s") if key in records[0].summary}
    return plain_table({**({"played": played} if played else {}), **window, **scenario, "cluster": ", ".join(clusters),
                        "workload": short_name(scenario["workload"])})


def class_table(records: Sequence[RunRecord]) -> Table | None:
    """What became of each class of requests: means over the runs of a policy; None where no run names classes."""
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for record in records:
        for name, one in record.summary.get("classes", {}).items():
            found.setdefault((record.label, name), []).append(one)
    rows = []
    for (label, name), mine in found.items():
        cells = []
        for _, key, write in CLASS_FIGURES:
            some = [one[key] for one in mine if one.get(key) is not None]
            cells.append(at_least(write(float(np.mean(some)) if some else None),
                                  any(key in one.get("censored", ()) for one in mine)))
        rows.append((label, name, promise_of(mine[0]), *cells))
    return Table("Classes of requests", ("policy", "class", "promise", *(head for head, *_ in CLASS_FIGURES)), rows, (
        "Violations of offline classes are requests that missed their deadline, of those for which that is decided; "
        "tokens are those of requests completed in the window.")) if rows else None


def promise_of(one: Mapping[str, Any]) -> str:
    """What a class is promised, of its figures in a summary, and what single requests of it are of their own."""
    own = one.get("own_slos" if one["online"] else "own_deadlines", 0)
    single = f"own {'SLO' if one['online'] else 'deadline'} of {own:,} requests" if own else ""
    if own and own >= one["arrived"]:
        usual = ""
    elif not one["online"]:
        usual = "" if one["deadline_s"] is None else f"finished within {duration(one['deadline_s'])}"
    else:
        usual = f"TTFT {one['ttft_slo_s']:g} s, TPOT {1000 * one['tpot_slo_s']:g} ms"
    weight = f"weight {one['weight']:g}" if one["online"] and one["weight"] != 1 else ""
    return ", ".join(part for part in (usual, single, weight) if part) or "nothing"


# --- Plots over time -------------------------------------------------------------------------------------------------
def plots_of(records: Sequence[RunRecord], budget: float) -> list[Plot]:
    """TTFT, TPOT and late requests over the window, a curve a record (one of each policy), in the colours of their
    order; `budget`: share of online requests that may be late."""
    summary, scenario = records[0].summary, records[0].scenario
    window_s, classes = float(summary.get("arrivals_s", summary["window_s"])), summary.get("classes", {})
    slos = [scenario["classes"][name] for name, one in classes.items() if one["online"]] or [scenario["slo"]]
    if summary["online"].get("own_slos"):
        slos = []  # single requests have their own
    unit, unit_s = ("h", 3600.0) if window_s >= 7200.0 else ("min", 60.0)
    edges = np.linspace(0.0, window_s, 1 + int(np.clip(window_s / LEAST_BIN_S, 5, BINS)))
    middles, end = (edges[:-1] + edges[1:]) / 2 / unit_s, window_s / unit_s
    found, plots, dashed = [online_quality(record) for record in records], [], "; dashed: SLO" if slos else ""
    for title, key, factor, of, limits in (
            (f"TTFT P99 by arrival (s){dashed}", "ttft_s", 1.0, 0.99, {slo["ttft_s"] for slo in slos}),
            (f"TPOT P99 by arrival (ms){dashed}", "tpot_s", 1000.0, 0.99, {slo["tpot_s"] for slo in slos}),
            ("late online requests by arrival (%); dashed: what is allowed", "late", 100.0, None, {budget})):
        traces = []
        for colour, (record, one) in enumerate(zip(records, found, strict=True)):
            which = np.digitize(one["arrival_s"], edges[1:-1])
            inside = [one[key][(which == place) & ~np.isnan(one[key])] for place in range(len(middles))]
            values = [factor * float(np.mean(some) if of is None else np.quantile(some, of)) if some.size else np.nan
                      for some in inside]
            traces.append(curve(record.label, middles, values, colour))
        promised = [curve("", [0.0, end], [factor * limit] * 2, -1, "dashes") for limit in sorted(limits)]
        plots.append(plot(title, [*promised, *traces], f"time since the window's start ({unit})",
                          log="y" if of is not None else ""))
    return plots


def online_quality(record: RunRecord) -> dict[str, np.ndarray]:
    """Of the counted online requests `arrival_s`, `ttft_s`, `tpot_s` and `late` (0 or 1), each (n,). What was
    unfinished at the run's end enters with the time that it had waited by then. TPOT counts from the first token; it is
    NaN for single tokens and for what never began."""
    mine = {key: values[record.requests["online"]] for key, values in record.requests.items()}
    first, steps = mine["first_token_s"], mine["output_tokens"] - 1.0
    until = np.where(np.isnan(mine["finish_s"]), record.end_s, mine["finish_s"])
    return {"arrival_s": mine["arrival_s"],
            "ttft_s": np.where(np.isnan(first), record.end_s, first) - mine["arrival_s"],
            "tpot_s": np.where(steps > 0, (until - first) / np.maximum(steps, 1.0), np.nan),
            "late": mine["violated"].astype(float)}
