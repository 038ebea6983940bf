"""How figures are shown: a section of a page with table and plot, and the table of verdicts."""

from __future__ import annotations

import itertools
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
    """A figure with what the paper states, what came out, its plot and its table."""
    sentences = [f"{spec['figure']} of {spec['paper']} ({spec['read']}): {spec['statement']}",
                 *(f"{test['what']}: {ours(test)} (reproduced {ranges(test['reproduced'])}, direction "
                   f"{ranges(test['direction'])}): {in_words(test)}." for test in found["tests"]),
                 f"Verdict: {in_words(found)}." + (f" {found['why']}" if found["why"] else "")]
    plots = plots_of(spec["plot"], rows) if spec.get("plot") else []
    return Section(f"{found['name']}: {spec['title']}", sentences, [table_of(rows)], plots, [found["command"]])


def section_of_claim(spec: Mapping[str, Any], found: Mapping[str, Any], rows: Sequence[Row]) -> Section:
    """A claim with what came out on all seeds and on each block, and its points."""
    sentences = [spec["statement"], *(f"{test['what']}: {by_blocks(test)} (holds: {ranges(test['holds'])}): "
                                      f"{test['verdict']}." for test in found["tests"]),
                 f"The claim: {found['verdict']}."]
    return Section(f"{found['name']}: {spec['title']}", sentences, [table_of(rows)], commands=[found["command"]])


def by_blocks(test: Mapping[str, Any]) -> str:
    """A test's number with its interval, and those of its blocks."""
    blocks = " and ".join(ours(one) for one in test["blocks"])
    return ours(test) + (f", by blocks {blocks}" if blocks else "")


def table_of(rows: Sequence[Row]) -> Table:
    """All points: axes, then metrics as means with intervals over seeds."""
    axes, metrics = dict.fromkeys(axis for row in rows for axis in row.at), rows[0].values
    return Table.of([*(Column(axis, lambda row, axis=axis: str(row.at.get(axis, "")), align="l") for axis in axes),
                     *(Column(name, lambda row, name=name: _written(
                         estimate(row.values[name], row.seeds), "mean", "low", "high")) for name in metrics)], rows)


def _written(found: Mapping[str, Any], *keys: str) -> str:
    mean, low, high = (found[key] for key in keys)
    return with_interval(mean, low, high, number, TO)


def plots_of(how: Mapping[str, Any], rows: Sequence[Row]) -> list[Plot]:
    """The figure in the original's manner: bars or lines of each metric `y` along the axis `x`, a plot for each label
    of `panels`, a colour for each of `series`, a dashed `line`."""
    metrics = [how["y"]] if isinstance(how["y"], str) else list(how["y"])
    panels = _labels(rows, how["panels"]) if how.get("panels") else [None]
    kind = "bars" if how["kind"] == "bars" else "lines+markers"
    plots = []
    for label, metric in itertools.product(panels, metrics):
        traces = []
        for colour, name in enumerate(_labels(rows, how["series"]) if how.get("series") else [metric]):
            mine = [row for row in rows if (label is None or row.at[how["panels"]] == label)
                    and (not how.get("series") or row.at[how["series"]] == name)]
            found = [estimate(row.values[metric], row.seeds) for row in mine]
            x = [str(row.at[how["x"]]) if kind == "bars" else row.at[how["x"]] for row in mine]
            y, low, high = ([one[key] for one in found] for key in ("mean", "low", "high"))
            traces.append(curve(str(name), x, y, colour, kind, error_y=errors(y, low, high)))
        if how.get("line") is not None:
            ends = [trace["x"][place] for trace in traces for place in (0, -1) if trace["x"]]
            traces.append(curve("", ends, [float(how["line"])] * len(ends), -1, "dashes"))
        plots.append(plot(metric if label is None else f"{label} · {metric}", traces, str(how["x"]),
                          log=str(how.get("log", ""))))
    return plots


def _labels(rows: Sequence[Row], axis: str) -> list[Any]:
    return list(dict.fromkeys(row.at[axis] for row in rows))


# --- The table of verdicts ------------------------------------------------------------------------------------------
def ours(found: Mapping[str, Any]) -> str:
    """A test's number with its interval."""
    return _written(found, "ours", "ci_low", "ci_high")


def ranges(ends: Sequence[float | None] | None) -> str:
    low, high = ends or (None, None)
    if low is None or high is None:
        return NONE if low is high else f"from {low:g}" if high is None else f"up to {high:g}"
    return f"{low:g} to {high:g}"


def table_of_verdicts(figures: Sequence[Mapping[str, Any]]) -> Table:
    """A row a figure, for the terminal."""
    return Table.of((Column("figure", "name", align="l"), Column("measured", "measured", align="l"),
                     Column("ours (95 %)", ours), Column("verdict", in_words, align="l")), figures)


def in_words(found: Mapping[str, Any]) -> str:
    """A verdict, which is called `not` where it is read by scripts."""
    return "not reproduced" if found["verdict"] == "not" else str(found["verdict"])


def by_number(name: str) -> list[Any]:
    """The order of figures: papers by name, their figures by number."""
    return [(part.isdigit(), int(part) if part.isdigit() else part) for part in re.split(r"(\d+)", name)]
