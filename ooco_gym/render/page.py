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
from ooco_gym.render.record import RunRecord, differing_conditions, grouped, one_seed, with_distinct_labels
from ooco_gym.report import (
    Axis,
    Panel,
    Section,
    Series,
    Table,
    duration,
    joined,
    number,
    percent,
    write_page,
)
from ooco_gym.report.tables import missing
from ooco_gym.resources import load_yaml
from ooco_gym.workload import from_file

SAMPLE_S = 60.0  # from one sample of a run to the next
BINS_S = (1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0, 14400.0)
MOST_BINS = 60
LEAST_BIN_S = 120.0  # where the window has five of them
HOURS_FROM_S = 7200.0  # windows that long have the time of day as their axis
CLASS_FIGURES: tuple[tuple[str, str, Callable[[float | None], str]], ...] = (
    ("arrived", "arrived", number), ("finished", "finished", number), ("violations", "violation_rate", percent),
    ("TTFT P99", "ttft_p99_s", duration), ("TPOT P99", "tpot_p99_s", duration),
    ("output tokens/s", "output_tokens_per_s", number))
WORK = ("busy", "online_prefill", "offline_prefill", "decode")


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
    where = joined(list(dict.fromkeys(cluster for _, cluster in groups)))
    shown, differing = one_seed(groups), differing_conditions(records)
    more = [f"the runs differ in more than policy and seed ({', '.join(differing)}): these figures are no comparison "
            "of policies."] if differing else []
    if any(not one.samples or not len(one.samples["t_s"]) for one in records):
        more.append(f"load and memory are sampled every {SAMPLE_S:g} s, of which a run here has none: how they were "
                    "over time cannot be said.")
    return Outcome(
        f"{short_name(first.scenario['workload'])} on {where}, seed{'s' if len(seeds) > 1 else ''} "
        f"{', '.join(map(str, seeds))}", rows, base if len(groups) > 1 else None, budget, notes=[*more, *notes],
        intervals=interval_words(min(map(len, groups.values()))), panels=panels_of(shown, budget) if shown else ())


def write_report(path: str | os.PathLike[str], outcomes: Sequence[Outcome], commands: Sequence[str] = (),
                 records: Sequence[RunRecord] = (), *, title: str = "", sections: Sequence[Section] = (),
                 lead: str = "") -> Path:
    """Writes the page of outcomes as one HTML file, atomically.

    Args:
        path: the file.
        outcomes: the first one's answer is the page's.
        commands: what makes it again.
        records: the runs of the first one, where they are known: their classes, instances and conditions are shown.
        title: of the page; empty: the first one's.
        sections: further parts, before the conditions.
        lead: in the place of the answer.
    """
    parts = []
    for index, one in enumerate(outcomes):
        tables = one.tables()
        tables[0] = replace(tables[0], title="")  # it is the page's, or the section's
        if index == 0 and records:
            known = with_distinct_labels(records)
            by_label: dict[str, list[Any]] = {}
            for record in known:
                by_label.setdefault(record.label, []).append(record.summary)
            classes = class_table(by_label)
            tables += [*([classes] if classes else []), work_table(one_seed(grouped(known)) or known[:1])]
        parts.append(Section(one.title if len(outcomes) > 1 else "", [one.answer()] if index else [], tables,
                             charts=[*one.chart(), *one.panels], legend=[key[0] for key in one.found], notes=one.notes))
    conditions = [Section("Conditions", tables=[conditions_table(records)])] if records else []
    again = [Section("How to make this again", commands=commands)] if commands else []
    return write_page(path, title or (outcomes[0].title if outcomes else "What runs came to"),
                      [*parts, *sections, *conditions, *again], lead or (outcomes[0].answer() if outcomes else ""))


def conditions_table(records: Sequence[RunRecord]) -> Table:
    """The scenario of the first record, one row a part; the clusters of all."""
    record = records[0]
    scenario, protocol = record.scenario, record.scenario["protocol"]
    slo, offline = scenario["slo"], scenario["offline"]
    workload = _loaded("workload", scenario["workload"])
    arrived = record.summary["online"]["arrived"] / record.window_s
    mode = str(offline.get("mode", "rate"))
    clusters = dict.fromkeys(_cluster(_loaded("cluster", one.scenario["cluster"])) for one in records)
    return Table("", ("", "what"), [
        ("clusters" if len(clusters) > 1 else "cluster", "; ".join(clusters)),
        ("online workload", f"{short_name(scenario['workload'])}: {arrived:.3g} requests/s in the window, "
                            f"{scenario['rate_scale']:.4g} of the workload's own rate"),
        *([("", record.summary["played"])] if record.summary.get("played") else []),
        *((word, workload[key]) for word, key in (("", "description"), ("assumed", "assumed")) if workload.get(key)),
        ("SLO", f"{slo['name']}: TTFT {slo['ttft_s']:g} s, TPOT {1000 * slo['tpot_s']:g} ms, counted from "
                f"{slo['tpot_from'].replace('_', ' ')}"),
        *([("classes", "; ".join(f"{name}: {promise_of(one)}" for name, one in scenario["classes"].items()))]
          if scenario.get("classes") else []),
        *([] if record.summary.get("played") and mode == "rate" and not offline["rate"] else [
            ("offline load", f"{offline.get('name', 'ooc')}: "
                             + (f"{offline['rate']:g} requests/s" if mode == "rate" else mode))]),
        ("measured window", " ".join([
            f"{record.window_s / 3600:.4g} h" if record.window_s >= HOURS_FROM_S else f"{record.window_s / 60:.4g} min",
            *([] if missing(record.day_start_s) else [f"from {record.day_start_s / 3600:.4g} h on"]),
            *([] if record.summary.get("played") else [f"after {protocol['warmup_s']:g} s of warm-up"])])),
        ("time model", f"{short_name(scenario['timing'])}, jitter {scenario['jitter']:g}; policies believe: "
                       f"{scenario['predictor']['name']}"),
        ("protocol", f"version {protocol.get('version', '?')} (docs/protocol.md says what counts)"),
    ])


def _cluster(cluster: Mapping[str, Any]) -> str:
    pools = [f"{group.get('count', 1)} {role} of {group.get('tp', 1) * group.get('pp', 1)} × "
             f"{short_name(group['chip'])}"
             for role in ("relaxed", "strict", "mixed") for group in cluster.get(role) or ()]
    return f"{short_name(cluster)}: {short_name(cluster.get('model') or '?')}, {', '.join(pools)}"


def _loaded(group: str, value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    try:
        return load_yaml(group, value)
    except UserError:  # a mix or a trace file
        return {"name": str(value)}


# --- Classes of requests ---------------------------------------------------------------------------------------------
def class_table(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table | None:
    """What became of each class: means over runs; None where no run names classes.

    Args:
        runs: summaries by policy, of one run each seed.
    """
    rows = []
    for label, summaries in runs.items():
        named = [one["classes"] for one in summaries if "classes" in one]
        for name in dict.fromkeys(name for classes in named for name in classes):
            mine = [classes[name] for classes in named if name in classes]
            known = {key: [one[key] for one in mine if one.get(key) is not None] for key in dict.fromkeys(
                key for _, key, _ in CLASS_FIGURES)}
            rows.append((label, name, promise_of(mine[0]), *(
                write(float(np.mean(known[key])) if known[key] else None) for _, key, write in CLASS_FIGURES)))
    return Table("Classes of requests", ("policy", "class", "promise", *(head for head, *_ in CLASS_FIGURES)), rows, (
        "Violations of offline classes are requests that missed their deadline, of those for which that is decided; "
        "tokens are those of requests completed in the window.")) if rows else None


def promise_of(one: Mapping[str, Any]) -> str:
    """What a class is promised, of a scenario's description or of a summary."""
    if not one["online"]:
        seconds = one["deadline_s"]
        return ("nothing" if seconds is None else
                f"finished within {f'{seconds / 3600:g} h' if seconds >= 3600 else f'{seconds:g} s'}")
    ttft_s, tpot_s = (one.get(f"{key}_slo_s", one.get(f"{key}_s")) for key in ("ttft", "tpot"))
    weight = "" if one["weight"] == 1 else f", weight {one['weight']:g}"
    return f"TTFT {ttft_s:g} s, TPOT {1000 * (tpot_s or 0.0):g} ms{weight}"


# --- Plots over time -------------------------------------------------------------------------------------------------
def panels_of(records: Sequence[RunRecord], budget: float) -> list[Panel]:
    """One plot a figure, a curve a record, in the colours of their order.

    Args:
        records: one of each policy, with requests.
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
    for title, keys, factor in (("online arrivals (requests/s)", ("online_arrivals_per_s",), 1.0),
                                ("waiting for their prefill (requests)", ("online_waiting", "offline_waiting"), 1.0),
                                ("KV memory in use, mean of the instances (%)", ("kv_share",), 100.0)):
        if all(record.samples and len(record.samples["t_s"]) for record in records):
            panels.append(_panel(records, title, [_sampled(record, keys, factor) for record in records]))
    return [panel for panel in panels if panel.series]


def work_table(records: Sequence[RunRecord]) -> Table:
    """What the instances of each role did, in the mean over the whole run, warm-up and drain included."""
    rows = []
    for record in records:
        for role in dict.fromkeys(one["role"] for one in record.summary["instances"]):
            mine = [one for one in record.summary["instances"] if one["role"] == role]
            shares = [float(np.mean([one[f"{key}_share"] for one in mine])) for key in (*WORK, "kv_mean")]
            rows.append((record.label, f"{len(mine)} {role}", *(percent(share, 1) for share in shares)))
    head = ("policy", "instances", *(key.replace("_", " ") for key in WORK), "KV memory in use")
    return Table("What the instances did", head, rows,
                 "Shares of the whole run's time, warm-up and drain included, mean over the instances of a role.", "")


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
    assert record.requests is not None
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
           limits: Sequence[float] = (), log: bool = False) -> Panel:
    long = records[0].window_s >= HOURS_FROM_S
    begin_s, unit_s = (records[0].day_start_s, 3600.0) if long else (0.0, 60.0)
    clock = "time in the trace" if from_file(records[0].scenario["workload"]) else "time of day"
    ends = [begin_s / unit_s, (begin_s + records[0].window_s) / unit_s]
    series = [Series(((begin_s + at) / unit_s).tolist(), values.tolist(), colour=colour)
              for colour, (at, values) in enumerate(curves) if np.isfinite(values).any()]
    dashed = [Series(ends, [limit] * 2, "dashes", colour=-1) for limit in dict.fromkeys(limits)]
    axis = Axis(f"{clock} (h)" if long else "time since the window's start (min)", limits=(ends[0], ends[1]))
    return Panel(title, axis, Axis(log=log), [*dashed, *series] if series else [])


def _by_bin(edges: np.ndarray, which: np.ndarray, values: np.ndarray,
            of: Callable[[np.ndarray], Any]) -> tuple[np.ndarray, np.ndarray]:
    """Middles of the bins, and a figure of the values in each, NaN where it is empty: float64[bins] both."""
    known = ~np.isnan(values)
    inside = [values[known & (which == place)] for place in range(len(edges) - 1)]
    return (edges[:-1] + edges[1:]) / 2, np.array([of(some) if some.size else np.nan for some in inside], float)


def _sampled(record: RunRecord, keys: Sequence[str], factor: float) -> tuple[np.ndarray, np.ndarray]:
    """Samples averaged over bins, sums of several keys; a share is the mean over instances, anything else their sum."""
    assert record.samples is not None
    ends = record.samples["t_s"]
    values = factor * np.sum([record.samples[key] for key in keys], axis=0).astype(float)
    if values.ndim == 2:
        values = values.mean(axis=1) if keys[0].endswith("share") else values.sum(axis=1)
    interval = float(ends[1] - ends[0]) if len(ends) > 1 else float(ends[0])
    width = max(bin_s(record.window_s), interval)
    bins, place = np.unique(((ends - interval / 2) // width).astype(int), return_inverse=True)
    return (bins + 0.5) * width, np.bincount(place, values) / np.bincount(place)
