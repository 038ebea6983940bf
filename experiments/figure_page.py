"""Presentation of figures: a section of a page with table and plot, and the table of verdicts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.figure_points import Row
from experiments.figure_tests import estimate
from ooco_gym.report import Column, Section, Table, curve, errors, number, plot, with_interval
from ooco_gym.report.pages import Plot
from ooco_gym.report.tables import NONE, TO


# --- A figure's section ---------------------------------------------------------------------------------------------
def section_of(spec: Mapping[str, Any], found: Mapping[str, Any], rows: Sequence[Row]) -> Section:
    """Returns a section on a figure: the paper's statement, the results, plot and table."""
    sentences = [f"{spec['figure']} of {spec['paper']} ({spec['read']}): {spec['statement']}",
                 *(f"{test['what']}: {ours(test)} (reproduced {ranges(test['reproduced'])}, direction "
                   f"{ranges(test['direction'])}): {in_words(test)}." for test in found["tests"]),
                 f"Result: {in_words(found)}." + (f" {found['why']}" if found["why"] else "")]
    plots = plots_of(spec["plot"], rows) if spec.get("plot") else []
    return Section(f"{found['name']}: {spec['title']}", sentences, [table_of(rows)], plots, [found["command"]])


def section_of_claim(spec: Mapping[str, Any], found: Mapping[str, Any], rows: Sequence[Row]) -> Section:
    """Returns a section on a claim: its results on all seeds and on each block, and its points."""
    sentences = [spec["statement"], *(f"{test['what']}: {by_blocks(test)} (holds: {ranges(test['holds'])}): "
                                      f"{test['verdict']}." for test in found["tests"]),
                 f"Result: {found['verdict']}."]
    return Section(f"{found['name']}: {spec['title']}", sentences, [table_of(rows)], commands=[found["command"]])


def by_blocks(test: Mapping[str, Any]) -> str:
    """Returns a test's number with its interval, and those of its blocks."""
    blocks = " and ".join(ours(one) for one in test["blocks"])
    return ours(test) + (f", by blocks {blocks}" if blocks else "")


def table_of(rows: Sequence[Row]) -> Table:
    """Returns a table of all points: axes, then metrics as means with intervals over seeds."""
    axes, metrics = dict.fromkeys(axis for row in rows for axis in row.at), rows[0].values
    columns = [Column(axis, lambda row, axis=axis: str(row.at.get(axis, "")), align="l") for axis in axes]
    columns += [Column(name, lambda row, name=name: _estimated(row, name)) for name in metrics]
    return Table.of(columns, rows)


def _estimated(row: Row, metric: str) -> str:
    return _written(estimate(row.values[metric], row.seeds), "mean", "low", "high")


def _written(found: Mapping[str, Any], *keys: str) -> str:
    mean, low, high = (found[key] for key in keys)
    return with_interval(mean, low, high, number, TO)


def plots_of(how: Mapping[str, Any], rows: Sequence[Row]) -> list[Plot]:
    """Returns the figure in the original's style: bars or lines of each metric `y` along the axis
    `x`.

    There is a plot for each label of `panels`, a colour for each of `series`, and a dashed `line`.
    """
    metrics = [how["y"]] if isinstance(how["y"], str) else list(how["y"])
    plots = []
    for panel in _labels(rows, how.get("panels")):
        in_panel = [row for row in rows if panel is None or row.at[how["panels"]] == panel]
        for metric in metrics:
            traces = []
            for colour, series in enumerate(_labels(rows, how.get("series"))):
                mine = [row for row in in_panel if series is None or row.at[how["series"]] == series]
                traces.append(_trace(metric if series is None else str(series), mine, metric, how, colour))
            if how.get("line") is not None:
                ends = [trace["x"][place] for trace in traces for place in (0, -1) if trace["x"]]
                traces.append(curve("", ends, [float(how["line"])] * len(ends), -1, "dashes"))
            title = metric if panel is None else f"{panel} · {metric}"
            plots.append(plot(title, traces, str(how["x"]), log=str(how.get("log", ""))))
    return plots


def _trace(name: str, rows: Sequence[Row], metric: str, how: Mapping[str, Any], colour: int) -> dict[str, Any]:
    """Returns bars or a line of one metric, with its intervals."""
    found = [estimate(row.values[metric], row.seeds) for row in rows]
    mean, low, high = [one["mean"] for one in found], [one["low"] for one in found], [one["high"] for one in found]
    x, kind = [row.at[how["x"]] for row in rows], "lines+markers"
    if how["kind"] == "bars":
        x, kind = list(map(str, x)), "bars"
    return curve(name, x, mean, colour, kind, error_y=errors(mean, low, high))


def _labels(rows: Sequence[Row], axis: str | None) -> list[Any]:
    """Returns the labels of an axis in order; [None] without an axis."""
    return list(dict.fromkeys(row.at[axis] for row in rows)) if axis else [None]


# --- The table of verdicts ------------------------------------------------------------------------------------------
def ours(found: Mapping[str, Any]) -> str:
    """Returns a test's number with its interval."""
    return _written(found, "ours", "ci_low", "ci_high")


def ranges(ends: Sequence[float | None] | None) -> str:
    low, high = ends or (None, None)
    if low is None or high is None:
        return NONE if low is high else f"from {low:g}" if high is None else f"up to {high:g}"
    return f"{low:g} to {high:g}"


def table_of_verdicts(figures: Sequence[Mapping[str, Any]]) -> Table:
    """Returns a table for the terminal, one row per figure."""
    return Table.of((Column("figure", "name", align="l"), Column("measured", "measured", align="l"),
                     Column("ours (95 %)", ours), Column("verdict", in_words, align="l")), figures)


def in_words(found: Mapping[str, Any]) -> str:
    """Returns a verdict in words; scripts read `not` for `not reproduced`."""
    return "not reproduced" if found["verdict"] == "not" else str(found["verdict"])


def by_number(name: str) -> list[Any]:
    """Returns the sort key of figures: papers by name, their figures by number."""
    return [(part.isdigit(), int(part) if part.isdigit() else part) for part in re.split(r"(\d+)", name)]
