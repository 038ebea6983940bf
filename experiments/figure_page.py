"""How figures are shown: a section of a page with table and plot, and the table of verdicts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.figure_points import Row
from experiments.figure_tests import estimate
from ooco_gym.report import Column, Section, Table, error_bars, layout, number, with_interval
from ooco_gym.report.pages import COLOURS
from ooco_gym.report.tables import NONE, TO


# --- A figure's section ---------------------------------------------------------------------------------------------
def section_of(spec: Mapping[str, Any], found: Mapping[str, Any], rows: Sequence[Row]) -> Section:
    """A figure with what the paper states, what came out, its plot and its table."""
    sentences = [f"{spec['figure']} of {spec['paper']} ({spec['read']}): {spec['statement']}",
                 *(f"{test['what']}: {ours(test)} (reproduced {ranges(test['reproduced'])}, direction "
                   f"{ranges(test['direction'])}): {test['verdict']}." for test in found["tests"]),
                 f"Verdict: {found['verdict']}." + (f" {found['why']}" if found["why"] else "")]
    figures = [plot_of(spec["plot"], rows)] if spec.get("plot") else []
    return Section(f"{found['name']}: {spec['title']}", sentences, [table_of(rows)], figures,
                   commands=[found["command"]])


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


def plot_of(plot: Mapping[str, Any], rows: Sequence[Row]) -> Any:
    """The figure in the original's manner: bars or lines of each metric `y` along the axis `x`, a panel for each label
    of `panels`, a colour for each of `series`, a dotted `line`."""
    from plotly.subplots import make_subplots

    metrics = [plot["y"]] if isinstance(plot["y"], str) else list(plot["y"])
    axis, series = plot.get("panels"), plot.get("series")
    panels = [(label, metric) for label in (_labels(rows, axis) if axis else [None]) for metric in metrics]
    columns = min(len(panels), 4)
    lines = -(-len(panels) // columns)
    titles = [" · ".join(str(part) for part in (label, metric) if part is not None) for label, metric in panels]
    figure = make_subplots(rows=lines, cols=columns, subplot_titles=titles, vertical_spacing=0.3 / max(lines, 2))
    for place, (label, metric) in enumerate(panels):
        at: dict[str, Any] = {"row": place // columns + 1, "col": place % columns + 1}
        for index, name in enumerate(_labels(rows, series) if series else [metric]):
            mine = [row for row in rows if (axis is None or row.at[axis] == label)
                    and (series is None or row.at[series] == name)]
            found = [estimate(row.values[metric], row.seeds) for row in mine]
            x, y, low, high = [row.at[plot["x"]] for row in mine], *([one[key] for one in found] for key in (
                "mean", "low", "high"))
            look = {"name": str(name), "legendgroup": str(name), "showlegend": place == 0, **at,
                    "error_y": error_bars(y, low, high)}
            colour = COLOURS[index % len(COLOURS)]
            if plot["kind"] == "bars":
                figure.add_bar(x=[str(value) for value in x], y=y, marker_color=colour, **look)
            else:
                figure.add_scatter(x=x, y=y, mode="lines+markers", line={"color": colour}, **look)
        figure.update_xaxes(title_text=str(plot["x"]), type="log" if "x" in plot.get("log", "") else None, **at)
        figure.update_yaxes(type="log" if "y" in plot.get("log", "") else None, **at)
        if plot.get("line") is not None:
            figure.add_hline(y=float(plot["line"]), line_dash="dot", line_color="#888", **at)
    return layout(figure, 340 * lines + 90, barmode="group")


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
                     Column("ours (95 %)", ours), Column("verdict", "verdict", align="l")), figures)


def by_number(name: str) -> list[Any]:
    """The order of figures: papers by name, their figures by number."""
    return [(part.isdigit(), int(part) if part.isdigit() else part) for part in re.split(r"(\d+)", name)]
