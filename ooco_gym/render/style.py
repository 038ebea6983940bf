"""One look for all figures: colours that colour-blind readers tell apart, axes, time bins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ooco_gym.render.record import Record

# Okabe and Ito's colours for policies; Tol's muted ones for kinds of work, so that no colour has two meanings.
POLICY_COLOURS = {"ooco": "#0072B2", "ooco_xllm": "#56B4E9", "base_pd": "#D55E00", "online_priority": "#009E73",
                  "always": "#E69F00", "never": "#7F7F7F", "random": "#000000"}
OTHER_COLOURS = ("#CC79A7", "#332288", "#117733", "#882255", "#999933", "#88CCEE")
WORK_COLOURS = {"online prefill": "#882255", "offline prefill": "#DDCC77", "decode": "#44AA99", "idle": "#ECECEC",
                "prefill of either class": "#CC6677"}
KV_COLOUR, LIMIT_COLOUR, GRID_COLOUR = "#111111", "#B00020", "#E3E3E3"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
BINS_S = (10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0, 14400.0)
MOST_BINS = 300
FEW_MINUTES_S = 120.0
DAY_LIKE_S = (12 * 3600.0, 36 * 3600.0)  # windows with a tick every three hours


def colours(labels: Sequence[str]) -> dict[str, str]:
    """A colour for each label: a policy's own, or, for learned ones and variants, the next free one."""
    chosen: dict[str, str] = {}
    for label in labels:
        own = POLICY_COLOURS.get(label)
        free = [colour for colour in OTHER_COLOURS if colour not in chosen.values()]
        chosen[label] = own or (free or OTHER_COLOURS)[0]
    return chosen


def bin_s(window_s: float, least_s: float = FEW_MINUTES_S) -> float:
    """Width of the bins over time: the smallest usual one of at least `least_s` with at most `MOST_BINS` of them."""
    least_s = min(least_s, window_s / 5)  # a short window keeps a handful of bins
    fitting = [width for width in BINS_S if width >= least_s and window_s / width <= MOST_BINS]
    return fitting[0] if fitting else max(BINS_S[-1], window_s / MOST_BINS)


class TimeAxis:
    """Places of a record on the time axis: time of day for hours, minutes since the window's start for less."""

    def __init__(self, record: Record) -> None:
        self.window_s = record.window_s
        self.short = record.window_s < 7200.0
        self.origin_s = 0.0 if self.short else record.day_start_s
        self.unit_s = 60.0 if self.short else 3600.0
        workload = record.scenario["workload"]
        path = workload.get("path") if isinstance(workload, Mapping) else None
        self.title = ("time since the window's start (min)" if self.short
                      else "time in the trace (h)" if path else "time of day (h; over 24 is the next day)"
                      if (record.day_start_s + record.window_s) > 25 * 3600 else "time of day (h)")

    @property
    def tick(self) -> float | None:
        """Distance of ticks that suits a day; None leaves it to the figure."""
        return 3.0 if not self.short and DAY_LIKE_S[0] <= self.window_s <= DAY_LIKE_S[1] else None

    def at(self, seconds: np.ndarray) -> np.ndarray:
        """Seconds since the window's start as places on the axis."""
        return np.round((self.origin_s + np.asarray(seconds)) / self.unit_s, 5)


def layout(figure: Any, height: int, legend: bool = True, top: int = 60) -> Any:
    """Gives a figure the common look and returns it."""
    figure.update_layout(
        template="plotly_white", height=height, showlegend=legend, font={"family": FONT, "size": 13, "color": "#222"},
        margin={"l": 80, "r": 30, "t": top, "b": 60}, hovermode="closest", paper_bgcolor="white", plot_bgcolor="white",
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.01, "xanchor": "left", "x": 0.0,
                "font": {"size": 12}},
    )
    figure.update_xaxes(gridcolor=GRID_COLOUR, zeroline=False, linecolor="#999", ticks="outside")
    figure.update_yaxes(gridcolor=GRID_COLOUR, zeroline=False, linecolor="#999", title_standoff=8)
    return figure


def percent(share: float | None, digits: int = 2) -> str:
    """A share as text, in percent."""
    return "–" if share is None or np.isnan(share) else f"{100 * share:.{digits}f} %"


def lean(values: Any) -> np.ndarray:
    """Figures for a page, as float32: half the size and still seven digits."""
    return np.asarray(values, np.float32)
