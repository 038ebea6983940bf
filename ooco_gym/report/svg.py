"""Small plots as SVG text: the same figures give the same bytes, with nothing to install.

(Plotly, which our interactive pages use, writes static pictures only through a browser.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#999933")  # Okabe, Ito; Tol
WIDTH, HEIGHT, COLUMNS = 450, 285, 2
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 46, 44
_GREY = "#666"


@dataclass(frozen=True)
class Axis:
    """An axis: its label, whether it is logarithmic, its limits (of the data unless given), its ticks likewise."""

    label: str = ""
    log: bool = False
    limits: tuple[float, float] | None = None
    ticks: Sequence[tuple[float, str]] = ()


@dataclass(frozen=True)
class Series:
    """Points that belong together.

    Attributes:
        name: in the legend; '' leaves it out.
        x: abscissae.
        y: ordinates.
        style: "line", "dots" or "dashes".
        reach: y up to which a whisker goes from each point; empty for none.
        colour: number in `COLOURS`; -1: grey.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    style: str = "line"
    reach: Sequence[float] = ()
    colour: int = 0


@dataclass(frozen=True)
class Panel:
    """One plot."""

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series] = field(default_factory=list)


def draw(panels: Sequence[Panel]) -> str:
    """The panels, two in a row, as one SVG."""
    columns = min(COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    width, height = columns * WIDTH, rows * HEIGHT
    body = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" font-family="Helvetica, Arial, sans-serif" font-size="11">',
            f'<rect width="{width}" height="{height}" fill="#fff"/>']
    for number, panel in enumerate(panels):
        row, column = divmod(number, columns)
        body += [f'<g transform="translate({column * WIDTH} {row * HEIGHT})">', *_panel(panel), "</g>"]
    return "\n".join([*body, "</svg>", ""])


def _panel(panel: Panel) -> list[str]:
    x = Scale(panel.x, [value for item in panel.series for value in item.x], _LEFT, WIDTH - _RIGHT)
    y = Scale(panel.y, [value for item in panel.series for value in (*item.y, *item.reach)], HEIGHT - _BOTTOM, _TOP)
    parts = [text(_LEFT, 16, panel.title, "start", 'font-weight="bold" font-size="12"')]
    for value, label in x.ticks():
        at = x(value)
        parts += [line(at, _TOP, at, HEIGHT - _BOTTOM, "#eee"), text(at, HEIGHT - _BOTTOM + 14, label)]
    for value, label in y.ticks():
        at = y(value)
        parts += [line(_LEFT, at, WIDTH - _RIGHT, at, "#eee"), text(_LEFT - 5, at + 4, label, "end")]
    parts += [line(_LEFT, HEIGHT - _BOTTOM, WIDTH - _RIGHT, HEIGHT - _BOTTOM, _GREY),
              line(_LEFT, _TOP, _LEFT, HEIGHT - _BOTTOM, _GREY)]
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    parts.append(text(middle, HEIGHT - 10, panel.x.label))
    centre = (_TOP + HEIGHT - _BOTTOM) / 2
    parts.append(text(13, centre, panel.y.label, "middle", f'transform="rotate(-90 13 {centre:g})"'))
    for item in panel.series:
        parts += _series(item, x, y)
    return parts + _legend(panel.series)


def _series(item: Series, x: Scale, y: Scale) -> list[str]:
    colour = _colour(item)
    points = [(x(a), y(b)) for a, b in zip(item.x, item.y, strict=True) if math.isfinite(a) and math.isfinite(b)]
    parts = [line(a, b, a, y(end), colour, 'stroke-width="1.5"')
             for (a, b), end in zip(points, item.reach, strict=False)]
    if item.style == "dots":
        return parts + [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.2" fill="{colour}"/>' for a, b in points]
    dashes = ' stroke-dasharray="5 3"' if item.style == "dashes" else ""
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
    return [*parts, f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"{dashes}/>']


def _legend(series: Sequence[Series]) -> list[str]:
    """The series' names in a row under the title."""
    parts, at = [], float(_LEFT)
    for item in series:
        if item.name:
            parts.append(line(at, 29, at + 14, 29, _colour(item), 'stroke-width="3"'
                               + (' stroke-dasharray="5 3"' if item.style == "dashes" else "")))
            parts.append(text(at + 18, 33, item.name, "start"))
            at += 30 + 5.8 * len(item.name)
    return parts


class Scale:
    """From values to pixels, between `start` and `end`."""

    def __init__(self, axis: Axis, values: Sequence[float], start: float, end: float) -> None:
        self.axis, self.start, self.end = axis, start, end
        known = [value for value in values if math.isfinite(value) and (value > 0 or not axis.log)] or [1.0]
        low, high = axis.limits or (min(known), max(known))
        if axis.limits is None and not axis.log:
            low = min(0.0, low)
        if high <= low:
            high = low + (abs(low) or 1.0)
        self.low, self.high = (math.log10(low), math.log10(high)) if axis.log else (low, high)

    def __call__(self, value: float) -> float:
        at = math.log10(max(value, 1e-300)) if self.axis.log else value
        share = min(max((at - self.low) / (self.high - self.low), 0.0), 1.0)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[tuple[float, str]]:
        """Round values within the limits, each with its label."""
        if self.axis.ticks:
            return list(self.axis.ticks)
        if self.axis.log:
            decades = range(math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9) + 1)
            steps = range(1, 10) if not decades else (1, 2, 5) if len(decades) <= 2 else (1,)
            every = max(1, len(decades) // 6)
            shown = [step * 10.0 ** decade for decade in range(math.floor(self.low), math.ceil(self.high) + 1)
                     if decade % every == 0 for step in steps]
            return [(value, f"{value:,.10g}") for value in shown
                    if self.low - 1e-9 <= math.log10(value) <= self.high + 1e-9]
        span = self.high - self.low
        step = next(m * 10.0 ** math.floor(math.log10(span / 5)) for m in (1, 2, 5, 10)
                    if m * 10.0 ** math.floor(math.log10(span / 5)) >= span / 5)
        first = math.ceil(self.low / step - 1e-9)
        return [(number * step, f"{number * step:,.10g}") for number in range(
            first, math.floor(self.high / step + 1e-9) + 1)]


def _colour(item: Series) -> str:
    return _GREY if item.colour < 0 else COLOURS[item.colour % len(COLOURS)]


def line(x1: float, y1: float, x2: float, y2: float, colour: str, more: str = "") -> str:
    """A straight line; `more` are further attributes."""
    return (f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"'
            f'{" " + more if more else ""}/>')


def text(x: float, y: float, text: str, anchor: str = "middle", more: str = "") -> str:
    """A word or a few, escaped; `more` are further attributes."""
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#222"{" " + more if more else ""}>'
            f"{escape(text)}</text>")
