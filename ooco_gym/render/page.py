"""The page of what runs came to: one for `simulate`, `compare`, `capacity`, `report` and all that they read."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ooco_gym.errors import UserError
from ooco_gym.metrics.statistics import interval_words
from ooco_gym.peak import short_name
from ooco_gym.protocol import baseline_among
from ooco_gym.render.classes import class_table, class_words
from ooco_gym.render.courses import HOURS_FROM_S, panels_of, work_table
from ooco_gym.render.outcome import Outcome, compare, metrics_of
from ooco_gym.render.record import RunRecord, differing_conditions, grouped, one_seed, with_distinct_labels
from ooco_gym.report import Section, Table, joined, write_page
from ooco_gym.report.tables import missing
from ooco_gym.resources import load_yaml

SAMPLE_S = 60.0  # from one sample of a run to the next


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
        *([("classes", class_words(scenario["classes"]))] if scenario.get("classes") else []),
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
