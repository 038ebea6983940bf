"""Self-contained HTML pages: sentences, tables and Plotly figures in one template, which embeds Plotly once.

A page needs no network, and follows the reader's choice of a light or a dark look.
"""

from __future__ import annotations

import html
import math
import os
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ooco_gym.files import atomic_write
from ooco_gym.report.tables import Table, missing
from ooco_gym.version import __version__

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#999933")  # Okabe, Ito; Tol
GREY, GRID_COLOUR = "#666", "#E3E3E3"
WIDTH, HEIGHT = 450, 285  # of a small plot
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
PLOT_OPTIONS = {"responsive": True, "displaylogo": False, "modeBarButtonsToRemove": ["select2d", "lasso2d"]}


# --- Figures --------------------------------------------------------------------------------------------------------
def layout(figure: Any, height: int, **more: Any) -> Any:
    """Gives a complete Plotly figure the common look and returns it; `more` is what else `update_layout` takes. Sizes
    are in pixels."""
    figure.update_layout(
        template="plotly_white", height=height, hovermode="closest", paper_bgcolor="white", plot_bgcolor="white",
        font={"family": FONT, "size": 13, "color": "#222"}, margin={"l": 80, "r": 30, "t": 60, "b": 60},
        legend={"font": {"size": 12}})
    figure.update_xaxes(gridcolor=GRID_COLOUR, zeroline=False, linecolor="#999", ticks="outside")
    figure.update_yaxes(gridcolor=GRID_COLOUR, zeroline=False, linecolor="#999", title_standoff=8)
    return figure.update_layout(**more)


def error_bars(mean: Sequence[Any], low: Sequence[Any], high: Sequence[Any]) -> dict[str, Any] | None:
    """Intervals of points as Plotly's error bars, none where an end is missing; None where no point has one."""
    points = [None if any(map(missing, point)) else point for point in zip(mean, low, high, strict=True)]
    if not any(points):
        return None
    return {"type": "data", "symmetric": False, "array": [one[2] - one[0] if one else 0.0 for one in points],
            "arrayminus": [one[0] - one[1] if one else 0.0 for one in points]}


# --- Small plots as SVG: the same figures give the same bytes, and nothing has to be loaded -------------------------
@dataclass(frozen=True)
class Axis:
    """An axis: its label, whether it is logarithmic, and its limits (of the data unless given)."""

    label: str = ""
    log: bool = False
    limits: tuple[float, float] | None = None

    def scale(self, values: Sequence[float], start: float, end: float) -> tuple[Callable[[float], float], list[float]]:
        """From values to pixels between `start` and `end`, and round values within the limits."""
        known = [value for value in values if math.isfinite(value) and (value > 0 or not self.log)] or [1.0]
        low, high = self.limits or (min(known) if self.log else min(0.0, *known), max(known))
        if high <= low:
            high = low + (abs(low) or 1.0)
        on_axis: Callable[[float], float] = math.log10 if self.log else float
        first, last = on_axis(low), on_axis(high)
        length, slack = last - first, 1e-9 * (last - first)

        def place(value: float) -> float:
            return start + min((on_axis(max(value, low)) - first) / length, 1.0) * (end - start)

        if self.log:
            steps = range(1, 10) if length < 1 else (1, 2, 5) if length <= 2 else (1,)
            ticks = [step * 10.0**decade for decade in range(math.floor(first), math.ceil(last) + 1) for step in steps]
        else:
            size = 10.0 ** math.floor(math.log10(length / 5))
            step = size * next(many for many in (1, 2, 5, 10) if many * size >= length / 5)
            ticks = [number * step for number in range(math.floor(low / step), math.ceil(high / step) + 1)]
        return place, [value for value in ticks if first - slack <= on_axis(value) <= last + slack]


@dataclass(frozen=True)
class Series:
    """Points that belong together: their coordinates, `line`, `dots` or `dashes`, and a number in `COLOURS` or -1:
    grey."""

    x: Sequence[float]
    y: Sequence[float]
    style: Literal["line", "dots", "dashes"] = "line"
    colour: int = 0


@dataclass(frozen=True)
class Panel:
    """One plot."""

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series] = ()

    def svg(self) -> str:
        """The plot as an SVG document."""
        left, right, top, bottom = 58, WIDTH - 14, 46, HEIGHT - 44
        x, x_ticks = self.x.scale([value for one in self.series for value in one.x], left, right)
        y, y_ticks = self.y.scale([value for one in self.series for value in one.y], bottom, top)
        parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
                 f'height="{HEIGHT}" font-family="Helvetica, Arial, sans-serif" font-size="11">',
                 f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
                 _text(left, 16, self.title, "start", 'font-weight="bold" font-size="12"')]
        for value in x_ticks:
            parts += [_line(x(value), top, x(value), bottom, "#eee"),
                      _text(x(value), bottom + 14, f"{value:,.10g}", "middle")]
        for value in y_ticks:
            parts += [_line(left, y(value), right, y(value), "#eee"),
                      _text(left - 5, y(value) + 4, f"{value:,.10g}", "end")]
        middle = (top + bottom) / 2
        parts += [_line(left, bottom, right, bottom, GREY), _line(left, top, left, bottom, GREY),
                  _text((left + right) / 2, HEIGHT - 10, self.x.label, "middle"),
                  _text(13, middle, self.y.label, "middle", f'transform="rotate(-90 13 {middle:g})"')]
        for one in self.series:
            colour = GREY if one.colour < 0 else COLOURS[one.colour % len(COLOURS)]
            points = [(x(a), y(b)) for a, b in zip(one.x, one.y, strict=True) if math.isfinite(a) and math.isfinite(b)]
            if one.style == "dots":
                parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.2" fill="{colour}"/>' for a, b in points]
            else:
                path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
                dashes = ' stroke-dasharray="5 3"' * (one.style == "dashes")
                parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"{dashes}/>')
        return "\n".join([*parts, "</svg>", ""])


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _text(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#222"{" " + more if more else ""}>'
            f"{html.escape(text)}</text>")


# --- Pages ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        title: its heading; empty: none, and no link to it.
        sentences: what is to be seen, as a list.
        tables: below the sentences.
        figures: Plotly figures, below the tables.
        commands: how to make it again.
        notes: what a reader should not overlook, below the tables.
        charts: plots, in the place of figures where nothing has to be loaded, and `legend`, the names of their colours.
    """

    title: str
    sentences: Sequence[str] = ()
    tables: Sequence[Table] = ()
    figures: Sequence[Any] = ()
    commands: Sequence[str] = ()
    notes: Sequence[str] = ()
    charts: Sequence[Panel] = ()
    legend: Sequence[str] = ()


def page(title: str, sections: Sequence[Section], lead: str = "") -> str:
    """A whole page as HTML: title, a sentence under it, links to the sections, and the sections."""
    from importlib.resources import files

    style, script = files("ooco_gym.report").joinpath("page.css").read_text(encoding="utf-8"), ""
    if any(part.figures for part in sections):
        from plotly.offline import get_plotlyjs

        script = f"<script>{get_plotlyjs()}</script>\n"
    links = " ".join(f'<a href="#s{index}">{html.escape(part.title)}</a>' for index, part in enumerate(sections)
                     if part.title)
    body = "\n".join(_section(index, part) for index, part in enumerate(sections))
    return (f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{html.escape(title)}</title>\n<style>\n{style}</style>\n"
            f"{script}</head>\n<body>\n<h1>{html.escape(title)}</h1>\n"
            f'<p class="lead">{_prose(lead)}</p>\n<nav>{links}</nav>\n{body}\n'
            f'<p class="note">Made by ooco-gym {__version__}.</p>\n</body>\n</html>\n')


def _section(index: int, part: Section) -> str:
    pieces = [f'<section id="s{index}">']
    if part.title:
        pieces.append(f"<h2>{html.escape(part.title)}</h2>")
    if part.sentences:
        seen = "".join(f"<li>{_prose(line)}</li>" for line in part.sentences)
        pieces.append(f'<ul class="seen">{seen}</ul>')
    pieces += [table.html() for table in part.tables]
    if part.notes:
        pieces.append(f'<p class="warn">{"<br>".join(map(_prose, part.notes))}</p>')
    if part.charts:
        names = "".join(f'<span><i style="background:{COLOURS[index % len(COLOURS)]}"></i>{html.escape(name)}</span>'
                        for index, name in enumerate(part.legend) if len(part.legend) > 1)
        plots = "".join(one.svg() for one in part.charts)
        pieces.append(f'<p class="legend">{names}</p><div class="charts">{plots}</div>')
    pieces += [figure.to_html(full_html=False, include_plotlyjs=False, div_id=f"figure{index}-{number}",
                              config=PLOT_OPTIONS, default_width="100%") for number, figure in enumerate(part.figures)]
    if part.commands:
        pieces.append(f"<pre>{html.escape(chr(10).join(part.commands))}</pre>")
    return "\n".join([*pieces, "</section>"])


def _prose(text: str) -> str:
    """A sentence, names in backquotes set as such."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def command_line() -> str:
    """The command that runs, as it was given, to be typed again; empty outside of a command."""
    from hydra.core.hydra_config import HydraConfig

    if not HydraConfig.initialized():
        return ""
    running = HydraConfig.get()
    return shlex.join(["ooco-gym", str(running.job.name), *running.overrides.task])


def write_page(path: str | os.PathLike[str], title: str, sections: Sequence[Section], lead: str = "") -> Path:
    """Writes `page` as one HTML file, atomically, and returns its path."""
    with atomic_write(path) as temporary:
        temporary.write_text(page(title, sections, lead), encoding="utf-8")
    return Path(path)
