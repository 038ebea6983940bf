"""The page of outcomes of `simulate`, `compare`, `capacity` and `evaluate`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.metrics.chosen import counted
from ooco_gym.metrics.quality import judge, rules_of
from ooco_gym.metrics.statistics import interval_words
from ooco_gym.peak import title_of
from ooco_gym.policy.registry import as_mapping, parameters_in, spelled
from ooco_gym.render.outcome import RUN_METRICS, Outcome, Row, compare, metrics_of
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
from ooco_gym.report.tables import flat
from ooco_gym.sim.state import FINISHED, PS_PER_S

if TYPE_CHECKING:
    from ooco_gym.simulation import Run

MOST_COLUMNS = 9  # wider tables are transposed
BINS, LEAST_BIN_S = 48, 60.0  # of a window: number of bins, and their least length
CLASS_FIGURES: tuple[tuple[str, str, Callable[[float | None], str]], ...] = (
    ("arrived", "arrived", number), ("finished", "finished", number), ("violations", "violation_rate", percent),
    ("TTFT P99", "ttft_p99_s", duration), ("TPOT P99", "tpot_p99_s", duration),
    ("output tokens/s", "output_tokens_per_s", number))


def outcome_of(run: Run, summary: Row, label: str, notes: Sequence[str] = ()) -> Outcome:
    """Returns the outcome of one run, whose policy is called `label`, with plots over time."""
    scenario = summary["scenario"]
    key, budget = (label, title_of(scenario["cluster"])), float(scenario["protocol"]["violation_budget"])
    batch, known = "batch" in summary, flat(summary)
    wanted = [one for one in RUN_METRICS if one in known and not (batch and one.startswith("online."))]
    rows = compare({key: [summary]}, metrics_of([summary["params"]], wanted, batch), key, budget)
    return Outcome(load_title(scenario["workload"], [key[1]], [summary["seed"]]), rows, None, budget, notes=notes,
                   intervals=interval_words(1), plots=plots_of(summary, run, label, budget))


def policy_words(config: Row) -> str:
    """Returns the policy of a command's configuration: its name, and parameters that differ from its file's."""
    policy = config["policy"]
    if not isinstance(policy, Mapping):
        return str(policy)
    try:
        usual = as_mapping(str(policy.get("file", policy["name"])))
    except UserError:  # the user's own YAML file
        usual = {}
    return spelled(str(policy["name"]), {key: value for key, value in parameters_in(policy).items()
                                         if usual.get(key) != value})


def load_title(workload: Any, clusters: Sequence[str], seeds: Sequence[int]) -> str:
    """Returns a load's title: workload, clusters and seeds."""
    return (f"{title_of(workload)} on {joined(list(dict.fromkeys(clusters)))}, seed{'s' if len(seeds) > 1 else ''} "
            f"{', '.join(map(str, sorted(seeds)))}")


def write_report(path: str | os.PathLike[str], outcomes: Sequence[Outcome], *, more: Sequence[Table] = (),
                 conditions: Table | None = None, lead: str = "", plots: Sequence[Plot] = ()) -> Path:
    """Writes the page of outcomes as one HTML file, atomically, with the command that reproduces
    it.

    Args:
        path: the file.
        outcomes: the first one's title and answer are the page's.
        more: further tables of the first outcome.
        conditions: the scenario, if there is only one.
        lead: a paragraph below the answer.
        plots: further plots of the first outcome.
    """
    parts = []
    for index, one in enumerate(outcomes):
        tables = one.tables()
        tables[0] = replace(tables[0], title="")  # the page or section has the title
        tables = [table.turned() if len(table.head) > MOST_COLUMNS else table for table in tables]
        parts.append(Section(one.title if len(outcomes) > 1 else "", [one.answer()] if index else [],
                             [*tables, *(more if index == 0 else ())],
                             [*one.chart(), *(plots if index == 0 else ()), *one.plots], notes=one.notes))
    if conditions is not None:
        parts.append(Section("Conditions", tables=[conditions]))
    if line := command_line():
        parts.append(Section("How to reproduce this page", commands=[line]))
    return write_page(path, outcomes[0].title, parts, f"{outcomes[0].answer()}\n{lead}".rstrip())


def conditions_table(summary: Row) -> Table:
    """Returns the scenario of a run, one row per field."""
    scenario = summary["scenario"]
    first = {key: summary[key] for key in ("played", "arrivals_s", "window_s") if key in summary}
    for name, runs in (summary.get("runs") or {"": [summary]}).items():  # an engine's own options are the policy's
        tokens = dict.fromkeys(f"{one['kv_tokens']:,}" for one in runs[0].get("instances", ()))
        if tokens:
            first[f"KV tokens of an instance {name}".rstrip()] = joined([*tokens])
    return plain_table({**first, **scenario, "cluster": title_of(scenario["cluster"]),
                        "workload": title_of(scenario["workload"])})


def class_table(summary: Row) -> Table | None:
    """Returns a table of the request classes and their outcomes; None without named classes."""
    rows = []
    for name, one in summary.get("classes", {}).items():
        bounds = one.get("censored", ())
        cells = [at_least(write(one.get(key)), key in bounds) for _, key, write in CLASS_FIGURES]
        rows.append((name, promise_of(one), *cells))
    return Table("Classes of requests", ("class", "SLO", *(head for head, *_ in CLASS_FIGURES)), rows, (
        "For offline classes, violations are missed deadlines among the decided requests. Tokens are those of requests "
        "completed in the window.")) if rows else None


def promise_of(one: Mapping[str, Any]) -> str:
    """Returns a class's SLO from its metrics in a summary, and the number of requests with their own SLO."""
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
def plots_of(summary: Row, run: Run, label: str, budget: float) -> list[Plot]:
    """Returns plots of TTFT, TPOT and violations over the window; `budget`: allowed violation rate."""
    if not summary["online"]["arrived"]:
        return []
    window_s, classes = float(summary.get("arrivals_s", summary["window_s"])), summary.get("classes", {})
    slos = [summary["scenario"]["classes"][name] for name, one in classes.items() if one["online"]]
    slos = [] if summary["online"].get("own_slos") else slos or [summary["scenario"]["slo"]]
    unit, unit_s = ("h", 3600.0) if window_s >= 7200.0 else ("min", 60.0)
    edges = np.linspace(0.0, window_s, 1 + int(np.clip(window_s / LEAST_BIN_S, 5, BINS)))
    middles = (edges[:-1] + edges[1:]) / 2 / unit_s
    which = np.digitize(online_quality(run, "arrival_s"), edges[1:-1]).astype(np.int8)
    plots, dashed = [], "; dashed: SLO" if slos else ""
    for title, key, factor, of, limits in (
            (f"TTFT P99 by arrival (s){dashed}", "ttft_s", 1.0, 0.99, {slo["ttft_s"] for slo in slos}),
            (f"TPOT P99 by arrival (ms){dashed}", "tpot_s", 1000.0, 0.99, {slo["tpot_s"] for slo in slos}),
            ("SLO violations by arrival (%); dashed: limit", "late", 100.0, None, {budget})):
        quality = online_quality(run, key)
        values = []
        for place in range(len(middles)):
            some = quality[(which == place) & ~np.isnan(quality)]
            value = np.nan
            if some.size:
                value = factor * float(np.mean(some) if of is None else np.quantile(some, of))
            values.append(value)
        promised = [curve("", [0.0, window_s / unit_s], [factor * limit] * 2, -1, "dashes") for limit in sorted(limits)]
        plots.append(plot(title, [*promised, curve(label, middles, values)],
                          f"time since the window's start ({unit})", log="y" if of is not None else ""))
    return plots


def online_quality(run: Run, name: str) -> np.ndarray:
    """Returns `arrival_s`, `ttft_s`, `tpot_s` or `late` (bool) of the counted online requests,
    (n,).

    A request unfinished at the run's end counts with its waiting time by then. TPOT counts from the
    first token; it is NaN for single tokens and for requests that never began.
    """
    requests, rules, start_ps = counted(run, online=True), rules_of(run), round(run.window_s[0] * PS_PER_S)
    end_s = run.simulated_s - run.window_s[0]

    def times_s(some: np.ndarray, name: str) -> np.ndarray:
        return (some[name] - start_ps) / PS_PER_S

    def ttft_s(some: np.ndarray) -> np.ndarray:
        first_s = np.where(some["generated_tokens"] >= 1, times_s(some, "first_token_ps"), end_s)
        return first_s - times_s(some, "arrival_ps")

    def tpot_s(some: np.ndarray) -> np.ndarray:
        until_s = np.where(some["status"] == FINISHED, times_s(some, "finish_ps"), end_s)
        steps, several = some["output_tokens"] - 1.0, (some["generated_tokens"] >= 1) & (some["output_tokens"] > 1)
        return np.where(several, (until_s - times_s(some, "first_token_ps")) / np.maximum(steps, 1.0), np.nan)

    values = {"arrival_s": lambda some: times_s(some, "arrival_ps"), "ttft_s": ttft_s, "tpot_s": tpot_s,
              "late": lambda some: judge(some, rules).violated}
    return requests.each(values[name])
