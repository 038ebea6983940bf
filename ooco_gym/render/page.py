"""One HTML page for a comparison: tables, figures, what they show, and how to make them again. It needs no network."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ooco_gym.errors import UserError
from ooco_gym.files import atomic_write
from ooco_gym.render import conditions, over_time, totals, words
from ooco_gym.render.record import (
    Record,
    differing_conditions,
    grouped,
    one_seed,
    record_of,
    scenario_name,
    with_distinct_labels,
)
from ooco_gym.render.tables import Table, cache_table, comparison_table, difference_table
from ooco_gym.version import __version__

if TYPE_CHECKING:
    from ooco_gym.sim.driver import Run

PLOT_OPTIONS = {"responsive": True, "displaylogo": False, "modeBarButtonsToRemove": ["select2d", "lasso2d"]}


@dataclass(frozen=True)
class Section:
    """A part of the page: sentences, tables and a figure, and the commands that give them."""

    title: str
    sentences: Sequence[str] = ()
    tables: Sequence[Table] = ()
    figure: Any = None
    note: str = ""
    commands: Sequence[str] = ()
    warning: str = ""
    more_figures: Sequence[Any] = ()


def report(path: str | os.PathLike[str], runs: Sequence[Run | Record], extra_tables: Sequence[Section | Table] = (),
           *, title: str | None = None, commands: Sequence[str] = (), lead: str = "") -> Path:
    """Writes the report of several runs as one HTML file, atomically.

    Args:
        path: the file.
        runs: runs or records of policies on the same conditions, any seeds. Figures over time show one seed of each,
            the others one interval over all.
        extra_tables: further parts, shown after the comparison.
        title: the page's title; None: the workload and the cluster.
        commands: what makes the whole comparison again; None of them: `simulate` for each run, then `report`.
        lead: a sentence under the title.

    Returns:
        The path.

    Raises:
        UserError: no run, or a policy with the same seed twice.
    """
    records = with_distinct_labels([run if isinstance(run, Record) else record_of(run) for run in runs])
    if not records:
        raise UserError("a report needs at least one run")
    extra = [Section(part.title, tables=[replace(part, title="")]) if isinstance(part, Table) else part
             for part in extra_tables]
    sections = comparison_sections(records, commands)
    text = page(title or f"Co-location of online and offline requests: {scenario_name(records[0].scenario)}",
                lead, [sections[0], *extra, *sections[1:]])
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return Path(path)


def comparison_sections(records: Sequence[Record], commands: Sequence[str] = ()) -> list[Section]:
    """The parts of a comparison: headline, violations, throughput, load, latency, instances, conditions."""
    groups = grouped(records)
    budget = float(records[0].scenario["protocol"]["violation_budget"])
    shown = one_seed(groups)
    seeds = sorted({record.seed for record in records})
    differing = differing_conditions(records)
    warning = ("" if not differing else f"The runs differ in more than policy and seed ({', '.join(differing)}): "
               "figures beside each other are not a comparison of policies.")
    again = list(commands) or simulate_commands(records)
    tables = (comparison_table(groups, budget), cache_table(groups), difference_table(groups))
    rows = [table for table in tables if table is not None]
    sections = [
        Section("Headline", words.violation_words(groups, budget) + words.service_words(groups, budget), rows,
                commands=again, warning=warning),
        Section("Violations against the budget", (), (),
                totals.violation_figure(groups, budget),
                "Filled points are means over seeds with their 95 % interval, rings single seeds.", again),
        Section("Offline throughput", words.waste_words(groups), (), totals.throughput_figure(groups, budget),
                "Completed within the window. Hatched: not ranked, because too many online requests violate or none "
                "arrived. The dashed line is what was offered.", again),
    ]
    if shown:
        mine = [command for command in map(conditions.command_of, shown) if command] if not commands else again
        which = f"Seed {', '.join(map(str, sorted({record.seed for record in shown})))}."
        sections += [
            Section("Load over time", words.load_words(shown), (), over_time.load_figure(shown), which, mine),
            Section("Online latency against the SLO", words.latency_words(shown, budget), (),
                    over_time.latency_figure(shown, budget),
                    f"{which} By time of arrival; crosses mark intervals over the budget. What was unfinished at the "
                    "end enters with the time that it had waited by then.", mine),
            Section("What the instances were doing", words.instance_words(shown), (), over_time.instance_figure(shown),
                    f"{which} Shares in the sentences are means over the whole run, warm-up and drain included.", mine),
        ]
    table = conditions.conditions_table(records[0], seeds)
    return [*sections, Section("Protocol and scenario", [conditions.protocol_words(records[0])],
                               [replace(table, title="")], commands=again)]


def simulate_commands(records: Sequence[Record]) -> list[str]:
    """Commands that simulate all records again, and make the report of them."""
    commands, folders = [], []
    for place, record in enumerate(records):
        command = conditions.command_of(record)
        if command is None:
            continue
        folders.append(f"run-{place + 1}")
        commands.append(f"{command} out={folders[-1]}")
    return [*commands, f"ooco-gym report 'runs=[{','.join(folders)}]' out=report"] if folders else []


def page(title: str, lead: str, sections: Sequence[Section]) -> str:
    """The whole page, plotly.js embedded once."""
    from importlib.resources import files

    from plotly.offline import get_plotlyjs

    style = files("ooco_gym.render").joinpath("page.css").read_text(encoding="utf-8")
    links = " ".join(f'<a href="#s{place}">{html.escape(part.title)}</a>' for place, part in enumerate(sections))
    body = "\n".join(_section(place, part) for place, part in enumerate(sections))
    return (f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{html.escape(title)}</title>\n<style>\n{style}</style>\n"
            f"<script>{get_plotlyjs()}</script>\n</head>\n<body>\n<h1>{html.escape(title)}</h1>\n"
            f'<p class="lead">{html.escape(lead)}</p>\n<nav>{links}</nav>\n{body}\n'
            f'<p class="note">Made by ooco-gym {__version__}.</p>\n</body>\n</html>\n')


def _section(place: int, part: Section) -> str:
    pieces = [f'<section id="s{place}">', f"<h2>{html.escape(part.title)}</h2>"]
    if part.warning:
        pieces.append(f'<p class="warn">{html.escape(part.warning)}</p>')
    if part.sentences:
        seen = "".join(f"<li>{html.escape(line)}</li>" for line in part.sentences)
        pieces.append(f'<ul class="seen">{seen}</ul>')
    pieces += [_table(table) for table in part.tables]
    for number, figure in enumerate([part.figure, *part.more_figures]):
        if figure is not None:
            pieces.append(figure.to_html(full_html=False, include_plotlyjs=False, div_id=f"figure{place}-{number}",
                                         config=PLOT_OPTIONS, default_width="100%"))
    if part.note:
        pieces.append(f'<p class="note">{html.escape(part.note)}</p>')
    if part.commands:
        pieces.append("<details><summary>How to make this again</summary><pre>"
                      + html.escape("\n".join(part.commands)) + "</pre></details>")
    return "\n".join([*pieces, "</section>"])


def _cell(text: str) -> str:
    """A cell; its interval goes on a line of its own."""
    value, bracket, interval = text.partition(" [")
    return html.escape(value) + (f'<br><span class="ci">[{html.escape(interval)}</span>' if bracket else "")


def _table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in table.head)
    rows = "".join("<tr>" + "".join(f"<td>{_cell(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
    title = f"<h3>{html.escape(table.title)}</h3>" if table.title else ""
    note = f'<p class="note">{html.escape(table.note)}</p>' if table.note else ""
    kind = ' class="words"' if len(table.head) == 2 else ""
    return (f'{title}<div class="scroll"><table{kind}><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
            f"{note}")
