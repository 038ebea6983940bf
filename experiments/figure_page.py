"""How figures are shown: a section of a page with table and plot, the table of verdicts, and `docs/reproduction.md`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.common.output import merged, spread, write_texts
from experiments.figure_points import Row
from ooco_gym.documents import read_json
from ooco_gym.files import write_json
from ooco_gym.report import Column, Section, Table, error_bars, layout, number, with_interval
from ooco_gym.report.pages import COLOURS
from ooco_gym.report.tables import NONE, TO

TITLE = "The papers' figures, played anew"
BEGIN = "<!-- figures: written by ooco-gym figure; what stands outside is not touched -->"


# --- A figure's section ---------------------------------------------------------------------------------------------
def section_of(spec: Mapping[str, Any], found: Mapping[str, Any], rows: Sequence[Row]) -> Section:
    """A figure with what the paper states, what came out, its plot and its table."""
    sentences = [f"{spec['figure']} of {spec['paper']} ({spec['read']}): {spec['statement']}",
                 *(f"{test['what']}: {_ours(test)} (reproduced {_range(test['reproduced'])}, direction "
                   f"{_range(test['direction'])}): {test['verdict']}." for test in found["tests"]),
                 f"Verdict: {found['verdict']}." + (f" {found['why']}" if found["why"] else "")]
    figures = [plot_of(spec["plot"], rows)] if spec.get("plot") else []
    return Section(f"{found['name']}: {spec['title']}", sentences, [table_of(rows)], figures,
                   commands=[found["command"]])


def table_of(rows: Sequence[Row]) -> Table:
    """All points: axes, then metrics as means with intervals over seeds."""
    axes, metrics = dict.fromkeys(axis for row in rows for axis in row.at), rows[0].values
    return Table.of([*(Column(axis, lambda row, axis=axis: str(row.at.get(axis, "")), align="l") for axis in axes),
                     *(Column(name, lambda row, name=name: _written(spread(row.values[name]), "mean", "low", "high"))
                       for name in metrics)], rows)


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
            found = [spread(row.values[metric]) for row in mine]
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


# --- The page of verdicts -------------------------------------------------------------------------------------------
def _ours(found: Mapping[str, Any]) -> str:
    return _written(found, "ours", "ci_low", "ci_high")


def _range(ends: Sequence[float | None] | None) -> str:
    low, high = ends or (None, None)
    if low is None or high is None:
        return NONE if low is high else f"from {low:g}" if high is None else f"up to {high:g}"
    return f"{low:g} to {high:g}"


def table_of_verdicts(figures: Sequence[Mapping[str, Any]]) -> Table:
    """A row a figure, for the terminal."""
    return Table.of((Column("figure", "name", align="l"), Column("measured", "measured", align="l"),
                     Column("ours (95 %)", _ours), Column("verdict", "verdict", align="l")), figures)


def body(figures: Sequence[Mapping[str, Any]]) -> str:
    """The marked part of `docs/reproduction.md`: counts, then a table for each paper."""
    counts = {verdict: sum(one["verdict"] == verdict for one in figures)
              for verdict in ("reproduced", "direction only", "not", "not comparable")}
    words = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    parts = [f"{len(figures)} figures and tables: {words}."]
    columns = (Column("figure", lambda one: f"`{one['name']}`: {one['figure']}", align="l"),
               Column("the paper states", "statement", align="l"),
               Column("ours (95 %)", lambda one: "; ".join(f"{test['what']}: {_ours(test)}" for test in one["tests"]),
                      align="l"),
               Column("counts as reproduced",
                      lambda one: "; ".join(_range(test["reproduced"]) for test in one["tests"]), align="l"),
               Column("verdict", lambda one: f"**{one['verdict']}**", align="l"), Column("why", "why", align="l"))
    for paper in dict.fromkeys(one["paper"] for one in figures):
        parts += [f"## {paper}", Table.of(columns, [one for one in figures if one["paper"] == paper]).markdown()]
    return "\n\n".join(parts)


def by_number(name: str) -> list[Any]:
    """The order of figures: papers by name, their figures by number."""
    return [(part.isdigit(), int(part) if part.isdigit() else part) for part in re.split(r"(\d+)", name)]


def write_results(figures: Sequence[Mapping[str, Any]], out: Path, page: str | None, kept: str | None) -> list[Path]:
    """Writes the verdicts as JSON (`kept`; None: beside the page, of its name) and as a Markdown page (None:
    `reproduction.md` in the run folder); figures of an earlier run that were not played stay."""
    path = Path(page) if page else out / "reproduction.md"
    data = Path(kept) if kept else path.with_suffix(".json")
    earlier = {one["name"]: one for one in read_json(data)["figures"]} if data.is_file() else {}
    every = sorted((earlier | {one["name"]: one for one in figures}).values(), key=lambda one: by_number(one["name"]))
    write_json(data, {"schema": "ooco-gym/reproduction/1", "figures": every})
    return [data, *write_texts({path: merged(path, TITLE, body(every), BEGIN)})]
