"""The page of what runs came to: one for `simulate`, `compare`, `capacity`, `report` and all that they read."""

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
from ooco_gym.render.record import RunRecord, differing_conditions, grouped, with_distinct_labels
from ooco_gym.report import (
    Axis,
    Panel,
    Section,
    Series,
    Table,
    command_line,
    duration,
    joined,
    number,
    percent,
    plain_table,
    write_page,
)

BINS_S = (1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0, 14400.0)
MOST_BINS = 60
LEAST_BIN_S = 120.0  # where the window has five of them
HOURS_FROM_S = 7200.0  # windows that long have hours as their axis
CLASS_FIGURES: tuple[tuple[str, str, Callable[[float | None], str]], ...] = (
    ("arrived", "arrived", number), ("finished", "finished", number), ("violations", "violation_rate", percent),
    ("TTFT P99", "ttft_p99_s", duration), ("TPOT P99", "tpot_p99_s", duration),
    ("output tokens/s", "output_tokens_per_s", number))


def outcome_of(records: Sequence[RunRecord], notes: Sequence[str] = ()) -> Outcome:
    """What runs came to: a row a policy and cluster, over its seeds.

    Raises:
        UserError: no run, or a policy with a seed twice.
    """
    if not records:
        raise UserError("a report needs at least one run")
    groups = grouped(with_distinct_labels(records))
    first, base = records[0], baseline_among([label for label, _ in groups])
    budget = float(first.scenario["protocol"]["violation_budget"])
    rows = compare({key: [one.summary for one in members] for key, members in groups.items()},
                   metrics_of([one.summary.get("params", {}) for one in records]),
                   next(key for key in groups if key[0] == base), budget)
    seeds = sorted({one.seed for one in records})
    where, differing = joined(list(dict.fromkeys(cluster for _, cluster in groups))), differing_conditions(records)
    more = [f"the runs differ in more than policy and seed ({', '.join(differing)}): these figures are no comparison "
            "of policies."] if differing else []
    return Outcome(
        f"{short_name(first.scenario['workload'])} on {where}, seed{'s' if len(seeds) > 1 else ''} "
        f"{', '.join(map(str, seeds))}", rows, base if len(groups) > 1 else None, budget, notes=[*more, *notes],
        intervals=interval_words(min(map(len, groups.values()))),
        panels=panels_of([members[0] for members in groups.values()], budget))


def write_report(path: str | os.PathLike[str], outcomes: Sequence[Outcome], records: Sequence[RunRecord] = (), *,
                 title: str = "", sections: Sequence[Section] = (), lead: str = "") -> Path:
    """Writes the page of outcomes as one HTML file, atomically, with the command that makes it again.

    Args:
        path: the file.
        outcomes: the first one's answer is the page's.
        records: the runs of the first one, where they are known: their classes and conditions are shown.
        title: of the page; empty: the first one's.
        sections: further parts, before the conditions.
        lead: in the place of the answer.
    """
    parts = []
    for index, one in enumerate(outcomes):
        tables = one.tables()
        tables[0] = replace(tables[0], title="")  # it is the page's, or the section's
        if index == 0 and (classes := class_table(with_distinct_labels(records))):
            tables.append(classes)
        parts.append(Section(one.title if len(outcomes) > 1 else "", [one.answer()] if index else [], tables,
                             charts=[*one.chart(), *one.panels], legend=[key[0] for key in one.found], notes=one.notes))
    conditions = [Section("Conditions", tables=[conditions_table(records)])] if records else []
    again = [Section("How to make this again", commands=[line])] if (line := command_line()) else []
    return write_page(path, title or (outcomes[0].title if outcomes else "What runs came to"),
                      [*parts, *sections, *conditions, *again], lead or (outcomes[0].answer() if outcomes else ""))


def conditions_table(records: Sequence[RunRecord]) -> Table:
    """The scenario of the first record, a row a field; the clusters of all."""
    scenario, played = records[0].scenario, records[0].summary.get("played")
    clusters = dict.fromkeys(short_name(one.scenario["cluster"]) for one in records)
    return plain_table({**({"played": played} if played else {}), **scenario, "cluster": ", ".join(clusters),
                        "workload": short_name(scenario["workload"])})


def class_table(records: Sequence[RunRecord]) -> Table | None:
    """What became of each class of requests: means over the runs of a policy; None where no run names classes."""
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for record in records:
        for name, one in record.summary.get("classes", {}).items():
            found.setdefault((record.label, name), []).append(one)
    rows = []
    for (label, name), mine in found.items():
        known = [[one[key] for one in mine if one.get(key) is not None] for _, key, _ in CLASS_FIGURES]
        rows.append((label, name, promise_of(mine[0]), *(write(float(np.mean(some)) if some else None) for some, (
            _, _, write) in zip(known, CLASS_FIGURES, strict=True))))
    return Table("Classes of requests", ("policy", "class", "promise", *(head for head, *_ in CLASS_FIGURES)), rows, (
        "Violations of offline classes are requests that missed their deadline, of those for which that is decided; "
        "tokens are those of requests completed in the window.")) if rows else None


def promise_of(one: Mapping[str, Any]) -> str:
    """What a class is promised, of its figures in a summary."""
    if not one["online"]:
        return "nothing" if one["deadline_s"] is None else f"finished within {duration(one['deadline_s'])}"
    weight = "" if one["weight"] == 1 else f", weight {one['weight']:g}"
    return f"TTFT {one['ttft_slo_s']:g} s, TPOT {1000 * one['tpot_slo_s']:g} ms{weight}"


# --- Plots over time -------------------------------------------------------------------------------------------------
def panels_of(records: Sequence[RunRecord], budget: float) -> list[Panel]:
    """One plot a figure, a curve a record, in the colours of their order.

    Args:
        records: one of each policy.
        budget: share of online requests that may be late.
    """
    def p99(values: np.ndarray) -> float:
        return float(np.quantile(values, 0.99))

    judged = [online_quality(record) for record in records]
    classes, scenario = records[0].summary.get("classes", {}), records[0].scenario
    slos = [scenario["classes"][name] for name, one in classes.items() if one["online"]] or [scenario["slo"]]
    panels = [
        _panel(records, "TTFT P99 by arrival (s); dashed: SLO", [
            _by_bin(edges, which, one["ttft_s"], p99) for edges, which, one in judged],
            [slo["ttft_s"] for slo in slos], log=True),
        _panel(records, "TPOT P99 by arrival (ms); dashed: SLO", [
            _by_bin(edges, which, 1000 * one["tpot_s"], p99) for edges, which, one in judged],
            [1000 * slo["tpot_s"] for slo in slos], log=True),
        _panel(records, "late online requests by arrival (%); dashed: what is allowed", [
            _by_bin(edges, which, 100.0 * one["violated"], np.mean) for edges, which, one in judged], [100 * budget])]
    return [panel for panel in panels if panel.series]


def bin_s(window_s: float) -> float:
    """Width of the bins over time: the smallest usual one with enough requests in it and at most `MOST_BINS`."""
    least_s = min(LEAST_BIN_S, window_s / 5)
    return next((width for width in BINS_S if width >= least_s and window_s / width <= MOST_BINS),
                max(BINS_S[-1], window_s / MOST_BINS))


def online_quality(record: RunRecord) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Times of the counted online requests, and in which bin of the window each arrived. What was unfinished at the
    run's end enters with the time that it had waited by then.

    Returns:
        Edges of the bins (b + 1,) in seconds since the window's start, the bin of each request (n,), and `ttft_s`,
        `tpot_s` and `violated`, each (n,). TPOT counts from the first token; it is NaN for single tokens and for what
        never began.
    """
    mine = {key: values[record.requests["online"]] for key, values in record.requests.items()}
    first, steps = mine["first_token_s"], mine["output_tokens"] - 1.0
    ttft_s = np.where(np.isnan(first), record.end_s, first) - mine["arrival_s"]
    until = np.where(np.isnan(mine["finish_s"]), record.end_s, mine["finish_s"])
    tpot_s = np.where(steps > 0, (until - first) / np.maximum(steps, 1.0), np.nan)
    width = bin_s(record.window_s)
    edges = np.append(np.arange(0.0, record.window_s - 1e-9, width), record.window_s)
    which = np.clip((mine["arrival_s"] // width).astype(int), 0, len(edges) - 2)
    return edges, which, {"ttft_s": ttft_s, "tpot_s": tpot_s, "violated": mine["violated"].astype(bool)}


def _panel(records: Sequence[RunRecord], title: str, curves: Sequence[tuple[np.ndarray, np.ndarray]],
           limits: Sequence[float], log: bool = False) -> Panel:
    unit, unit_s = ("h", 3600.0) if records[0].window_s >= HOURS_FROM_S else ("min", 60.0)
    end = records[0].window_s / unit_s
    series = [Series((at / unit_s).tolist(), values.tolist(), colour=colour)
              for colour, (at, values) in enumerate(curves) if np.isfinite(values).any()]
    dashed = [Series([0.0, end], [limit] * 2, "dashes", colour=-1) for limit in dict.fromkeys(limits)]
    axis = Axis(f"time since the window's start ({unit})", limits=(0.0, end))
    return Panel(title, axis, Axis(log=log), [*dashed, *series] if series else [])


def _by_bin(edges: np.ndarray, which: np.ndarray, values: np.ndarray,
            of: Callable[[np.ndarray], Any]) -> tuple[np.ndarray, np.ndarray]:
    """Middles of the bins, and a figure of the values in each, NaN where it is empty: float64[bins] both."""
    known = ~np.isnan(values)
    inside = [values[known & (which == place)] for place in range(len(edges) - 1)]
    return (edges[:-1] + edges[1:]) / 2, np.array([of(some) if some.size else np.nan for some in inside], float)
