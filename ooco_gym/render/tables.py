"""Tables that a terminal and a page show alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooco_gym.metrics.statistics import interval, interval_words, paired_interval
from ooco_gym.metrics.summary import keeps_prefixes
from ooco_gym.render.record import Record
from ooco_gym.render.totals import NO_ONLINE, Groups, idle_seeds, values_of, within_budget


@dataclass(frozen=True)
class Table:
    """Rows of text under a head; the first column names the row. `note` says how to read it."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.head):
                raise ValueError(f"table '{self.title}': a row has {len(row)} cells, its head {len(self.head)}")

    def show(self, console: Any = None) -> None:
        """Prints the table with rich; one with more columns than rows on its side, as a terminal is narrow."""
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table as View

        head, rows = self.head, self.rows
        if len(head) > len(rows) + 1:
            head, *rows = zip(self.head, *self.rows, strict=True)
        view = View(title=self.title, title_justify="left", caption=self.note or None, caption_justify="left")
        for place, column in enumerate(head):
            view.add_column(escape(column), justify="left" if place == 0 else "right", overflow="fold")
        for row in rows:
            view.add_row(*map(escape, row))
        (console or Console()).print(view)


def _seconds(value: float) -> str:
    return f"{1000 * value:.1f} ms" if value < 1 else f"{value:.2f} s" if value < 1000 else f"{value:,.0f} s"


def _percent(value: float) -> str:
    return f"{100 * value:.2f} %"


def _points(value: float) -> str:
    return f"{100 * value:.2f} points"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.3g}"


Show = Callable[[float], str]
FIGURES: tuple[tuple[str, str, str, Show], ...] = (
    ("violations (TPOT from first token)", "online", "violation_rate_first_token", _percent),
    ("violations (from first decode)", "online", "violation_rate_first_decode", _percent),
    ("worst 10 min", "online", "worst_10min_violation_rate", _percent),
    ("TTFT P99", "online", "ttft_p99_s", _seconds),
    ("TPOT P99", "online", "tpot_p99_s", _seconds),
    ("offline output tokens/s", "offline", "output_tokens_per_s", _number),
    ("offline ref. GPU-s/s", "offline", "reference_gpu_s_per_s", "{:.3f}".format),
    ("recomputed tokens/s", "offline", "wasted_tokens_per_s", _number),
    ("offline queueing P99", "offline", "age_p99_s", _seconds),
)
CACHE_FIGURES: tuple[tuple[str, Show], ...] = (
    ("hit_rate", _percent), ("prompt_tokens_per_s", _number), ("computed_prompt_tokens_per_s", _number))
DIFFERENCES = (0, 5, 6, 7)  # of FIGURES
WITH_INTERVAL = (0, 5, 6)


def comparison_table(groups: Groups, budget: float) -> Table:
    """The headline figures of each policy: mean over seeds, the most important ones with their 95 % interval."""
    rows = []
    for label, members in groups.items():
        cells = [_cell(interval(values_of(members, room, name)), show, place in WITH_INTERVAL)
                 for place, (_, room, name, show) in enumerate(FIGURES)]
        rows.append((label, *cells, _ranked(members, budget)))
    seeds = sorted({record.seed for members in groups.values() for record in members})
    one = len(seeds) == 1
    note = (f"{'Seed' if one else 'Means over seeds'} {', '.join(map(str, seeds))}"
            f"{'' if one else ', intervals in brackets'}. {interval_words(min(map(len, groups.values())))} "
            f"Ranked: the upper limit of the violation rate is at most {100 * budget:g} %.")
    head = ("policy", *(title for title, *_ in FIGURES), "ranked")
    return Table("Policies on the same load", head, tuple(rows), note)


def _ranked(members: Sequence[Record], budget: float) -> str:
    """The last cell: whether a policy is ranked, and why not where it has no violation rate."""
    idle = idle_seeds(members)
    if idle:
        return f"no: {NO_ONLINE}" + ("" if len(idle) == len(members) else f" on seed {', '.join(map(str, idle))}")
    return "yes" if within_budget(members, budget) else "no"


def cache_table(groups: Groups) -> Table | None:
    """What the prefix cache found under the policies that keep blocks: means over seeds; None where none does."""
    head = ("policy", *(f"{room} {what}" for room in ("online", "offline") for what in (
        "hit rate", "prompt tokens/s", "of them computed")))
    rows = []
    for label, members in groups.items():
        if any(keeps_prefixes(record.summary.get("params", {})) for record in members):
            cells = [_cell(interval(_cached(members, room, name)), show, name == "hit_rate")
                     for room in ("online", "offline") for name, show in CACHE_FIGURES]
            rows.append((label, *cells))
    note = ("Hit rates are of the prompts that arrived in the window and were admitted; tokens of those completed in "
            "it, whenever they arrived.")
    return Table("Prefix cache", head, tuple(rows), note) if rows else None


def _cached(members: Sequence[Record], room: str, name: str) -> np.ndarray:
    """A figure of the cache, NaN where a run was simulated before it was kept: float64[records]."""
    figures = [record.summary[room].get(name) for record in members]
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
        for place in DIFFERENCES:
            _, room, name, show = FIGURES[place]
            result = paired_interval(values_of(members, room, name), values_of(base, room, name))
            cells.append(_cell(result, _signed(show), True))
        rows.append((label, *cells))
    titles = tuple(f"Δ {FIGURES[place][0]}" for place in DIFFERENCES)
    note = ("Differences are taken seed by seed on the same arrivals; brackets are their 95 % intervals. Where a "
            "bracket holds 0, no difference is shown." if len(seeds) > 1 else "One seed: no interval can be given.")
    return Table(f"Differences to {reference}, paired by seed", ("policy", *titles), tuple(rows), note)


def _cell(figures: tuple[float, float, float], show: Show, with_interval: bool) -> str:
    mean, low, high = figures
    if np.isnan(mean):
        return "–"
    if not with_interval or np.isnan(low):
        return show(mean)
    return f"{show(mean)} [{show(low)}, {show(high)}]"


def _signed(show: Show) -> Show:
    """A difference's sign, figure and, between percentages, its unit."""
    plain = _points if show is _percent else show
    return lambda value: f"{'+' if value > 0 else '−' if value < 0 else ''}{plain(abs(value))}"
