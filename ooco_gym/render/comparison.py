"""The page of a comparison of runs: its sections and tables, and the commands that make it again."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.metrics.statistics import interval, interval_words, paired_interval
from ooco_gym.metrics.summary import keeps_prefixes
from ooco_gym.render import figures, words
from ooco_gym.render.classes import class_table
from ooco_gym.render.figures import NO_ONLINE, Groups, idle_seeds, values_of, within_budget
from ooco_gym.render.record import (
    RunRecord,
    differing_conditions,
    grouped,
    one_seed,
    record_of,
    scenario_name,
    with_distinct_labels,
)
from ooco_gym.report import Section, Table, duration, number, percent, with_interval, write_page

if TYPE_CHECKING:
    from ooco_gym.simulation import Run


def report(path: str | os.PathLike[str], runs: Sequence[Run | RunRecord], extra_tables: Sequence[Section | Table] = (),
           *, title: str | None = None, commands: Sequence[str] = (), lead: str = "",
           first: Section | None = None) -> Path:
    """Writes the report of several runs as one HTML file, atomically.

    Args:
        path: the file.
        runs: runs or records of policies on the same conditions, any seeds. Figures over time show one seed of each,
            the others one interval over all.
        extra_tables: further parts, shown after the comparison.
        title: the page's title; None: the workload and the cluster.
        commands: what makes the whole comparison again; None of them: `simulate` for each run, then `report`.
        lead: a sentence under the title.
        first: a part before all others.

    Returns:
        The path.

    Raises:
        UserError: no run, or a policy with the same seed twice.
    """
    records = with_distinct_labels([run if isinstance(run, RunRecord) else record_of(run) for run in runs])
    if not records:
        raise UserError("a report needs at least one run")
    extra = [Section(part.title, tables=[replace(part, title="")]) if isinstance(part, Table) else part
             for part in extra_tables]
    sections = comparison_sections(records, commands)
    title = title or f"Co-location of online and offline requests: {scenario_name(records[0].scenario)}"
    begin = [] if first is None else [first]
    return write_page(path, title, [*begin, sections[0], *extra, *sections[1:]], lead)


def comparison_sections(records: Sequence[RunRecord], commands: Sequence[str] = ()) -> list[Section]:
    """The parts of a comparison: headline, violations, throughput, load, latency, instances, words."""
    groups = grouped(records)
    budget = float(records[0].scenario["protocol"]["violation_budget"])
    shown = one_seed(groups)
    seeds = sorted({record.seed for record in records})
    differing = differing_conditions(records)
    warning = ("" if not differing else f"The runs differ in more than policy and seed ({', '.join(differing)}): "
               "figures beside each other are not a comparison of policies.")
    again = list(commands) or simulate_commands(records)
    classes = class_table({label: [record.summary for record in members] for label, members in groups.items()})
    tables = (comparison_table(groups, budget), classes, cache_table(groups), difference_table(groups))
    rows = [table for table in tables if table is not None]
    sections = [
        Section("Headline", words.violation_words(groups, budget) + words.service_words(groups, budget), rows,
                commands=again, warning=warning),
        Section("Violations against the budget", (), (),
                [figures.violation_figure(groups, budget)],
                "Filled points are means over seeds with their 95 % interval, rings single seeds.", again),
        Section("Offline throughput", words.waste_words(groups), (), [figures.throughput_figure(groups, budget)],
                "Completed within the window. Hatched: not ranked, because too many online requests violate or none "
                "arrived. The dashed line is what was offered.", again),
    ]
    if shown:
        mine = [command for command in map(words.command_of, shown) if command] if not commands else again
        which = f"Seed {', '.join(map(str, sorted({record.seed for record in shown})))}."
        sections += [
            Section("Load over time", words.load_words(shown), (), [figures.load_figure(shown)], which, mine),
            Section("Online latency against the SLO", words.latency_words(shown, budget), (),
                    [figures.latency_figure(shown, budget)],
                    f"{which} By time of arrival; crosses mark intervals over the budget. What was unfinished at the "
                    "end enters with the time that it had waited by then.", mine),
            Section("What the instances were doing", words.instance_words(shown), (),
                    [figures.instance_figure(shown)],
                    f"{which} Shares in the sentences are means over the whole run, warm-up and drain included.", mine),
        ]
    table = words.conditions_table(records[0], seeds)
    return [*sections, Section("Protocol and scenario", [words.protocol_words(records[0])],
                               [replace(table, title="")], commands=again)]


def simulate_commands(records: Sequence[RunRecord]) -> list[str]:
    """Commands that simulate all records again, and make the report of them."""
    commands, folders = [], []
    for index, record in enumerate(records, start=1):
        command = words.command_of(record)
        if command is None:
            continue
        folders.append(f"run-{index}")
        commands.append(f"{command} out={folders[-1]}")
    return [*commands, f"ooco-gym report 'runs=[{','.join(folders)}]' out=report"] if folders else []


# --- Tables ----------------------------------------------------------------------------------------------------------
Show = Callable[[float], str]
FIGURES: tuple[tuple[str, str, str, Show], ...] = (
    ("violations (TPOT from first token)", "online", "violation_rate_first_token", percent),
    ("violations (from first decode)", "online", "violation_rate_first_decode", percent),
    ("worst 10 min", "online", "worst_10min_violation_rate", percent),
    ("TTFT P99", "online", "ttft_p99_s", duration),
    ("TPOT P99", "online", "tpot_p99_s", duration),
    ("offline output tokens/s", "offline", "output_tokens_per_s", number),
    ("offline ref. GPU-s/s", "offline", "reference_gpu_s_per_s", "{:.3f}".format),
    ("recomputed tokens/s", "offline", "wasted_tokens_per_s", number),
    ("offline queueing P99", "offline", "age_p99_s", duration),
)
CACHE_FIGURES: tuple[tuple[str, Show], ...] = (
    ("hit_rate", percent), ("prompt_tokens_per_s", number), ("computed_prompt_tokens_per_s", number))
DIFFERENCES = (0, 5, 6, 7)  # of FIGURES
WITH_INTERVAL = (0, 5, 6)


def comparison_table(groups: Groups, budget: float) -> Table:
    """The headline figures of each policy: mean over seeds, the most important ones with their 95 % interval."""
    rows = []
    for label, members in groups.items():
        cells = [_cell(interval(values_of(members, kind, name)), show, index in WITH_INTERVAL)
                 for index, (_, kind, name, show) in enumerate(FIGURES)]
        rows.append((label, *cells, _ranked(members, budget)))
    seeds = sorted({record.seed for members in groups.values() for record in members})
    one = len(seeds) == 1
    note = (f"{'Seed' if one else 'Means over seeds'} {', '.join(map(str, seeds))}"
            f"{'' if one else ', intervals in brackets'}. {interval_words(min(map(len, groups.values())))} "
            f"Ranked: the upper limit of the violation rate is at most {100 * budget:g} %.")
    head = ("policy", *(title for title, *_ in FIGURES), "ranked")
    return Table("Policies on the same load", head, tuple(rows), note)


def _ranked(members: Sequence[RunRecord], budget: float) -> str:
    """The last cell: whether a policy is ranked, and why not where it has no violation rate."""
    idle = idle_seeds(members)
    if idle:
        return f"no: {NO_ONLINE}" + ("" if len(idle) == len(members) else f" on seed {', '.join(map(str, idle))}")
    return "yes" if within_budget(members, budget) else "no"


def cache_table(groups: Groups) -> Table | None:
    """What the prefix cache found under the policies that keep blocks: means over seeds; None where none does."""
    head = ("policy", *(f"{kind} {what}" for kind in ("online", "offline") for what in (
        "hit rate", "prompt tokens/s", "of them computed")))
    rows = []
    for label, members in groups.items():
        if any(keeps_prefixes(record.summary.get("params", {})) for record in members):
            cells = [_cell(interval(_cached(members, kind, name)), show, name == "hit_rate")
                     for kind in ("online", "offline") for name, show in CACHE_FIGURES]
            rows.append((label, *cells))
    note = ("Hit rates are of the prompts that arrived in the window and were admitted; tokens of those completed in "
            "it, whenever they arrived.")
    return Table("Prefix cache", head, tuple(rows), note) if rows else None


def _cached(members: Sequence[RunRecord], kind: str, name: str) -> np.ndarray:
    """A figure of the cache, NaN where a run was simulated before it was kept: float64[records]."""
    figures = [record.summary[kind].get(name) for record in members]
    return np.array([np.nan if value is None else value for value in figures], float)


def difference_table(groups: Groups) -> Table | None:
    """Paired differences of each policy to the first, with intervals; None where the seeds are not the same or one."""
    (reference, base), *others = groups.items()
    seeds = [record.seed for record in base]
    if not others or any([record.seed for record in members] != seeds for _, members in others):
        return None
    rows = []
    for label, members in others:
        cells = []
        for index in DIFFERENCES:
            _, kind, name, show = FIGURES[index]
            result = paired_interval(values_of(members, kind, name), values_of(base, kind, name))
            cells.append(_cell(result, _signed(show), True))
        rows.append((label, *cells))
    titles = tuple(f"Δ {FIGURES[index][0]}" for index in DIFFERENCES)
    note = ("Differences are taken seed by seed on the same arrivals; brackets are their 95 % intervals. Where a "
            "bracket holds 0, no difference is shown." if len(seeds) > 1 else "One seed: no interval can be given.")
    return Table(f"Differences to {reference}, paired by seed", ("policy", *titles), tuple(rows), note)


def _cell(figures: tuple[float, float, float], show: Show, bracket: bool) -> str:
    mean, low, high = figures
    return with_interval(mean, low if bracket else None, high, show)


def _signed(show: Show) -> Show:
    """A difference's sign, figure and, between percentages, its unit."""
    plain = (lambda value: f"{100 * value:.2f} points") if show is percent else show
    return lambda value: f"{'+' if value > 0 else '−' if value < 0 else ''}{plain(abs(value))}"
