"""One validation window as a picture: memory, queues, latency and violations over time, and what was decided when.

Drawn with Pillow, which TensorBoard and W&B bring along, so that no plotting library is needed where one trains.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ooco_gym.envs.buffers import DECLINE_ACTION, FIXED, PARTNER_ACTION
from ooco_gym.envs.decision import actual
from ooco_gym.envs.features import CLUSTER, DECISIONS
from ooco_gym.report.pages import GRID_COLOUR, LIMIT_COLOUR

WIDTH, LEFT, RIGHT, TOP, PANEL, GAP, STRIP, BIN = 1000, 64, 20, 34, 108, 34, 30, 4
_BLUE, _ORANGE, _GREEN, _GREY, _DARK = "#0072B2", "#D55E00", "#009E73", "#9A9A9A", "#222222"
_MARKS = ((DECLINE_ACTION, "no", _GREY), (PARTNER_ACTION, "as the partner", _BLUE), (FIXED, "a candidate", _ORANGE))
_PLACES = {feature.name: place for place, feature in enumerate(CLUSTER)}
# title, unit, lines (feature, colour, words), a limit to draw
_PANELS = (
    ("Free KV memory", "%", (("kv_free", _BLUE, "where it is decided"),
                             ("strict_kv_free", _ORANGE, "strict instances")), None),
    ("Step latency of the strict instances over the TPOT SLO", "%", (("strict_latency", _ORANGE, "believed"),), 100.0),
    ("Waiting for prefill", "requests", (("offline_waiting", _GREEN, "offline"), ("online_waiting", _ORANGE, "online")),
     None),
    ("Online arrivals", "requests/s", (("online_rate_60s", _BLUE, "average over 60 s"),), None),
    ("Online requests that missed an SLO", "%", (("violations", _ORANGE, "so far"),
                                                 ("recent_violations", _BLUE, "last ten minutes")), 3.0),
)


class Moment(NamedTuple):
    """One decision of a window.

    Attributes:
        at_s: simulated seconds since the window's start.
        kind: place in `ooco_gym.envs.features.DECISIONS`.
        action: what was answered; of several parts, all of them.
        cluster: float32[C], what was seen of the cluster.
    """

    at_s: float
    kind: int
    action: Any
    cluster: np.ndarray


def timeline(moments: Sequence[Moment], title: str) -> np.ndarray:
    """Draws a window. Returns uint8[height, width, 3].

    Args:
        moments: its decisions, in order; at least one.
        title: what it is of.
    """
    from PIL import Image, ImageDraw

    kinds = sorted({moment.kind for moment in moments})
    height = TOP + len(_PANELS) * (PANEL + GAP) + GAP + len(kinds) * (STRIP + 6) + 46
    image = Image.new("RGB", (WIDTH, height), "white")
    canvas = _Canvas(ImageDraw.Draw(image), np.array([moment.at_s for moment in moments]))
    canvas.text(LEFT, 8, f"A validation window: {title}", 15)
    seen = np.array([moment.cluster for moment in moments])
    top = TOP + 18
    for name, unit, lines, limit in _PANELS:
        canvas.panel(top, name, unit, [(_figures(seen, feature), colour, words) for feature, colour, words in lines],
                     limit)
        top += PANEL + GAP
    canvas.strips(top + 4, moments, kinds)
    canvas.time_axis(height - 34)
    return np.asarray(image)


def _figures(seen: np.ndarray, name: str) -> np.ndarray:
    """A feature over time in its unit; shares in percent."""
    place = _PLACES[name]
    feature = CLUSTER[place]
    figures = np.array([actual(feature, float(value)) for value in seen[:, place]])
    return 100.0 * figures if feature.unit == "share" else figures


class _Canvas:
    """Places things on the picture; the time axis spans the decisions."""

    def __init__(self, draw: Any, at_s: np.ndarray) -> None:
        self.draw, self.at_s = draw, at_s
        self.first_s, self.last_s = float(min(at_s[0], 0.0)), float(max(at_s[-1], at_s[0] + 1.0))
        self.x = LEFT + (at_s - self.first_s) / (self.last_s - self.first_s) * (WIDTH - LEFT - RIGHT)

    def text(self, x: float, y: float, words: str, size: int = 12, colour: str = _DARK, anchor: str = "la") -> None:
        from PIL import ImageFont

        self.draw.text((x, y), words, fill=colour, font=ImageFont.load_default(size), anchor=anchor)

    def panel(self, top: float, title: str, unit: str, lines: Sequence[tuple[np.ndarray, str, str]],
              limit: float | None) -> None:
        """Lines over time with their scale, which starts at 0."""
        most = max([float(figures.max()) for figures, _, _ in lines] + ([limit] if limit is not None else []))
        scale = nice(max(most, 1e-9))
        bottom = top + PANEL
        for share in (0.0, 0.5, 1.0):
            y = bottom - share * PANEL
            self.draw.line((LEFT, y, WIDTH - RIGHT, y), fill=GRID_COLOUR)
            self.text(LEFT - 6, y, f"{share * scale:g}", 11, anchor="rm")
        if limit is not None:
            y = bottom - limit / scale * PANEL
            self.draw.line((LEFT, y, WIDTH - RIGHT, y), fill=LIMIT_COLOUR, width=1)
        self.text(LEFT, top - 17, f"{title} ({unit})")
        self.legend(top - 17, [(words, colour) for _, colour, words in lines])
        for figures, colour, _ in lines:
            y = bottom - np.clip(figures / scale, 0.0, 1.0) * PANEL
            self.draw.line(list(zip(self.x.tolist(), y.tolist(), strict=True)), fill=colour, width=1)

    def legend(self, top: float, words: Sequence[tuple[str, str]]) -> None:
        """Words in their colours, flush right."""
        from PIL import ImageFont

        right = float(WIDTH - RIGHT)
        for text, colour in reversed(words):
            self.text(right, top, text, 12, colour, "ra")
            right -= 16 + ImageFont.load_default(12).getlength(text)

    def strips(self, top: float, moments: Sequence[Moment], kinds: Sequence[int]) -> None:
        """One row a kind of decision: over time, the shares of the answers, stacked."""
        self.text(LEFT, top - 17, "Decisions: share of each kind of answer")
        self.legend(top - 17, [(words, colour) for _, words, colour in _MARKS])
        bins = ((self.x - LEFT) // BIN).astype(int)
        marks = np.array([_mark(moment.action) for moment in moments])
        asked = np.array([moment.kind for moment in moments])
        for row, kind in enumerate(kinds):
            y = top + row * (STRIP + 6)
            self.text(LEFT - 6, y + STRIP / 2, DECISIONS[kind], 11, anchor="rm")
            for place in np.unique(bins[asked == kind]):
                inside = marks[(asked == kind) & (bins == place)]
                self._stack(LEFT + float(place) * BIN, y, np.bincount(inside, minlength=len(_MARKS)) / len(inside))

    def _stack(self, x: float, top: float, shares: np.ndarray) -> None:
        bottom = top + STRIP
        for share, (_, _, colour) in zip(shares, _MARKS, strict=True):
            if share:
                self.draw.rectangle((x, bottom - share * STRIP, x + BIN - 1, bottom), fill=colour)
                bottom -= share * STRIP

    def time_axis(self, top: float) -> None:
        """Minutes since the window's start."""
        step = nice((self.last_s - self.first_s) / 60.0 / 6.0)
        for minute in np.arange(np.ceil(self.first_s / 60.0 / step) * step, self.last_s / 60.0 + 1e-9, step):
            x = LEFT + (minute * 60.0 - self.first_s) / (self.last_s - self.first_s) * (WIDTH - LEFT - RIGHT)
            self.draw.line((x, top - 6, x, top - 2), fill=_DARK)
            self.text(x, top, f"{minute:g}", 11, anchor="ma")
        self.text((LEFT + WIDTH - RIGHT) / 2, top + 15, "time since the window's start (min)", anchor="ma")


def _mark(action: Any) -> int:
    """Place in `_MARKS` of an answer; settings of several parts count as a candidate."""
    return min(int(action), len(_MARKS) - 1) if np.size(action) == 1 else len(_MARKS) - 1


def nice(value: float) -> float:
    """The smallest of 1, 2, 2.5, 5 and 10 times a power of ten that is at least `value` (> 0)."""
    power = 10.0 ** np.floor(np.log10(value))
    return float(next(step * power for step in (1.0, 2.0, 2.5, 5.0, 10.0) if step * power >= value * (1 - 1e-9)))
