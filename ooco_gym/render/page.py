"""The page of outcomes of `simulate`, `compare`, `capacity` and `evaluate`, and its parts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.metrics.chosen import counted
from ooco_gym.metrics.quality import judge, rules_of
from ooco_gym.metrics.statistics import interval_words
from ooco_gym.peak import title_of
from ooco_gym.policy.registry import as_mapping, parameters_in, spelled
from ooco_gym.render.metrics import RUN_METRICS, Row, compare, metrics_of
from ooco_gym.render.outcome import MOST_COLUMNS, WORDS, Outcome
from ooco_gym.report import (
    Section,
    Table,
    as_text,
    at_least,
    curve,
    duration,
    joined,
    number,
    percent,
    plot,
    write_page,
)
from ooco_gym.report.pages import Plot
from ooco_gym.report.tables import flat
from ooco_gym.report.templates import sentence
from ooco_gym.run import RunRecord
from ooco_gym.scenario import ResolvedScenario
from ooco_gym.sim.state import PS_PER_S

BINS, LEAST_BIN_S = 48, 60.0  # of a window: number of bins, and their least length
HOURS_FROM_S = 7200.0  # a longer window's axis is in hours
CLASS_METRICS: tuple[tuple[str, str, Callable[[float | None], str]], ...] = (
    ("arrived", "arrived", number), ("finished", "finished", number), ("violations", "violation_rate", percent),
    ("TTFT P99", "ttft_p99_s", duration), ("TPOT P99", "tpot_p99_s", duration),
    ("output tokens/s", "output_tokens_per_s", number))
PERCENTILES = {f"{name.lower()}_p{share}_s": f"{name} P{share}" for name in ("TTFT", "TPOT") for share in (50, 90, 99)}


def outcome_of(run: RunRecord, summary: Row, label: str, notes: Sequence[str] = ()) -> Outcome:
    """Returns the outcome of one run, whose policy is called `label`, with plots over time."""
    scenario = summary["scenario"]
    key, budget = (label, title_of(scenario["cluster"])), float(scenario["protocol"]["violation_budget"])
    batch, known = "batch" in summary, flat(summary)
    wanted = [one for one in RUN_METRICS if one in known and not (batch and one.startswith("online."))]
    rows = compare({key: [summary]}, metrics_of([summary["params"]], wanted, batch), key, budget)
    return Outcome(load_title(scenario["workload"], [key[1]], [summary["seed"]]), rows, None, budget, notes=notes,
                   intervals=interval_words(1),
                   plots=[*fleet_over_time({label: [summary]}), *plots_of(summary, run, label, budget)])


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


def write_report(path: str | os.PathLike[str], outcomes: Sequence[Outcome], *, more: Sequence[Table | None] = (),
                 conditions: Table | None = None, lead: str = "", plots: Sequence[Plot] = ()) -> Path:
    """Writes the page of outcomes as one HTML file, atomically.

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
        further = ([], []) if index else ([table for table in more if table], plots)
        parts.append(Section(one.title if len(outcomes) > 1 else "", [one.answer()] if index else [],
                             [*tables, *further[0]], [*one.chart(), *further[1], *one.plots], notes=one.notes))
    if conditions is not None:
        parts.append(Section("Conditions", tables=[conditions]))
    return write_page(path, outcomes[0].title, parts, f"{outcomes[0].answer()}\n{lead}".rstrip())


# --- Conditions and classes -----------------------------------------------------------------------------------------
def conditions(known: ResolvedScenario, price: float | None = None, chips: int | None = None) -> str:
    """Returns chips, model, SLOs, window and price, in a sentence.

    Args:
        known: the scenario.
        price: of a chip-hour, in any currency.
        chips: number of chips, if not that of the scenario's cluster.
    """
    names = known.cluster.hardware()[2]
    kinds = list(dict.fromkeys(names))
    counted = f"{chips} {joined(kinds)}" if chips else joined([f"{names.count(kind)} {kind}" for kind in kinds])
    return sentence(WORDS, "conditions", known=known, chips=counted, price=price,
                    hourly=price and price * (chips or len(names)))


def conditions_table(summary: Row) -> Table:
    """Returns the scenario of a run, one row per field."""
    scenario = summary["scenario"]
    first = {key: summary[key] for key in ("played", "arrivals_s", "window_s") if key in summary}
    for name, runs in (summary.get("runs") or {"": [summary]}).items():  # an engine's own options are the policy's
        tokens = dict.fromkeys(f"{one['kv_tokens']:,}" for one in runs[0].get("instances", ()))
        if tokens:
            first[f"KV tokens of an instance {name}".rstrip()] = joined([*tokens])
    known = flat({**first, **scenario, **{key: title_of(scenario[key]) for key in ("cluster", "workload")}})
    return Table("", ("", ""), [(key, one if isinstance(one, str) else as_text(one, ".6g"))
                                for key, one in known.items() if isinstance(one, (str, int, float))])


def class_table(summary: Row) -> Table | None:
    """Returns a table of the request classes and their outcomes; None without named classes."""
    rows = []
    for name, one in summary.get("classes", {}).items():
        bounds = one.get("censored", ())
        cells = [at_least(write(one.get(key)), key in bounds) for _, key, write in CLASS_METRICS]
        rows.append((name, sentence(WORDS, "promise", one=one), *cells))
    return Table("Classes of requests", ("class", "SLO", *(head for head, *_ in CLASS_METRICS)), rows, (
        "For offline classes, violations are missed deadlines among the decided requests. Tokens are those of requests "
        "completed in the window.")) if rows else None


def percentiles(runs: Mapping[str, Sequence[Row]]) -> Table | None:
    """Returns TTFT and TPOT by policy and online class, means over seeds; None without online arrivals."""
    rows = []
    for policy, each in runs.items():
        parts: dict[str, list[Row]] = {}
        for one in each:
            named = {name: about for name, about in one.get("classes", {}).items() if about["online"]}
            for name, about in (named or {"online": one["online"]}).items():
                parts.setdefault(name, []).append(about)
        for name, mine in sorted(parts.items()):
            cells = []
            for key in PERCENTILES:
                mean = float(np.mean(np.array([part[key] for part in mine], float)))
                cells.append(at_least(duration(mean), any(key in part["censored"] for part in mine)))
            if any(part["arrived"] for part in mine):
                rows.append((policy, name, *cells))
    return Table("Percentiles by class", ("policy", "class", *PERCENTILES.values()), rows) if rows else None


# --- Plots over time -------------------------------------------------------------------------------------------------
def plots_of(summary: Row, run: RunRecord, label: str, budget: float) -> list[Plot]:
    """Returns plots of TTFT, TPOT and violations over the window; `budget`: allowed violation rate.

    A request unfinished at the run's end counts with its waiting time by then.
    """
    if not summary["online"]["arrived"]:
        return []
    window_s, classes = float(summary.get("arrivals_s", summary["window_s"])), summary.get("classes", {})
    slos = [summary["scenario"]["classes"][name] for name, one in classes.items() if one["online"]]
    slos = [] if summary["online"].get("own_slos") else slos or [summary["scenario"]["slo"]]
    unit_s, axis = _axis(window_s)
    edges = np.linspace(0.0, window_s, 1 + int(np.clip(window_s / LEAST_BIN_S, 5, BINS)))
    middles = (edges[:-1] + edges[1:]) / 2 / unit_s
    requests, found = counted(run, online=True), dict[str, np.ndarray]()
    found["ttft_s"], found["tpot_s"], found["violated"] = requests.columns(
        partial(judge, rules=rules_of(run)), "ttft_s", "tpot_s", "violated")
    arrival_s = (requests["arrival_ps"] - round(run.window_s[0] * PS_PER_S)) / PS_PER_S
    which = np.digitize(arrival_s, edges[1:-1]).astype(np.int8)
    plots, dashed = [], "; dashed: SLO" if slos else ""
    for title, key, factor, of, limits in (
            (f"TTFT P99 by arrival (s){dashed}", "ttft_s", 1.0, 0.99, {slo["ttft_s"] for slo in slos}),
            (f"TPOT P99 by arrival (ms){dashed}", "tpot_s", 1000.0, 0.99, {slo["tpot_s"] for slo in slos}),
            ("SLO violations by arrival (%); dashed: limit", "violated", 100.0, None, {budget})):
        values = []
        for place in range(len(middles)):
            some = found[key][(which == place) & ~np.isnan(found[key])]
            values.append(factor * float(some.mean() if of is None else np.quantile(some, of)) if some.size else np.nan)
        promised = [curve("", [0.0, window_s / unit_s], [factor * limit] * 2, -1, "dashes") for limit in sorted(limits)]
        plots.append(plot(title, [*promised, curve(label, middles, values)], axis, log="y" if of is not None else ""))
    return plots


def mean_fleet(runs: Sequence[Row]) -> dict[str, np.ndarray]:
    """Returns the means over seeds of `fleet.over_time` of the summary."""
    parts = [one["fleet"]["over_time"] for one in runs]
    return {key: np.array(list(map(itemgetter(key), parts))).mean(axis=0) for key in parts[0]}


def fleet_over_time(runs: Mapping[str, Sequence[Row]]) -> list[Plot]:
    """Returns a plot of the chips that each policy's elastic fleet pays for, means over seeds, above the load (dashed,
    on the right); none of fixed fleets."""
    fleets = {name: mean_fleet(each) for name, each in runs.items() if "fleet" in each[0]}
    if not fleets:
        return []
    first = next(iter(fleets.values()))
    unit_s, axis = _axis(float(next(iter(runs.values()))[0]["window_s"]))
    x = first["t_s"] / unit_s
    load, chips = curve("", x, first["online_per_s"], -1, "dashes", yaxis="y2"), []
    for colour, (policy, one) in enumerate(fleets.items()):
        chips.append(curve(policy, x, one["chips"], colour))
        chips[-1]["line"]["shape"] = "hv"
    found = plot("Chips paid for; dashed: online requests that arrive", [load, *chips], axis, "chips",
                 yaxis_rangemode="tozero")
    found["layout"]["yaxis2"] = {"title": {"text": "requests/s", "standoff": 8}, "overlaying": "y", "side": "right",
                                 "showgrid": False, "rangemode": "tozero", "automargin": True}
    return [found]


def depths(run: RunRecord) -> list[Plot]:
    """Returns plots of waiting and running requests, and KV memory, over the window."""
    start_s, end_s = run.window_s
    t_s = np.asarray(run.samples.get("t_s", ())) - start_s
    inside = (t_s >= 0) & (t_s <= end_s - start_s)
    if not inside.any():
        return []
    unit_s, axis = _axis(end_s - start_s)
    x = t_s[inside] / unit_s
    counts = {name: run.samples[key][inside].sum(axis=1) for name, key in (
        ("online, waiting", "online_waiting"), ("online, running", "urgent"),
        ("offline, waiting", "offline_waiting"), ("offline, running", "offline"))}
    waiting = [curve(name, x, values, colour) for colour, (name, values) in enumerate(counts.items()) if values.any()]
    share = [curve(f"instance {index}", x, 100 * values, index)
             for index, values in enumerate(run.samples["kv_share"][inside].T[:8])]
    return [plot("Waiting and running requests", waiting, axis),
            plot("KV memory in use (%)", share, axis, yaxis_range=[0, 100])]


def _axis(window_s: float) -> tuple[float, str]:
    """Returns the seconds of a unit of the time axis, and its title."""
    unit, unit_s = ("h", 3600.0) if window_s >= HOURS_FROM_S else ("min", 60.0)
    return unit_s, f"time since the window's start ({unit})"
