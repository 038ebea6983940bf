"""The study's results as tables, with the paper's figures beside them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.tables import console
from experiments.validity.markdown import table as markdown_table

Row = Mapping[str, Any]
NAMES = {"mean_ttft": "mean TTFT", "p99_ttft": "P99 TTFT", "mean_tbt": "mean TBT", "p99_tbt": "P99 TBT"}


def share(value: float) -> str:
    """A share in percent."""
    return "–" if value is None or not math.isfinite(value) else f"{100 * value:.1f} %"


def spread_words(one: Row, write: Callable[[float], str]) -> str:
    """A mean with its interval over seeds."""
    if not math.isfinite(one["mean"]):
        return "–"
    if not math.isfinite(one["low"]):
        return write(one["mean"])
    return f"{write(one['mean'])} ({write(one['low'])} to {write(one['high'])})"


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _twice(value: float) -> str:
    return f"{value:.2f}"


def _ms(value: float) -> str:
    return f"{1000 * value:.1f}"


def _changed(row: Row) -> str:
    return ", ".join(f"{key}={value}" for key, value in row["changed"].items()) or "as shipped"


def _of(key: str, write: Callable[[float], str]) -> Callable[[Row], str]:
    return lambda row: spread_words(row[key], write)


# Title and columns of each part: heading, how a row writes it.
TABLES: dict[str, tuple[str, Sequence[tuple[str, Callable[[Row], str]]]]] = {
    "latency": ("Online latency above pure online service, and throughput in tokens/s (Figures 3 and 4; paper: overall "
                "up to 3.87 × Sarathi, offline up to 5.84 × HyGen*)", (
                    ("SLO", lambda row: NAMES[row["metric"]]), ("tolerance", lambda row: share(row["tolerance"])),
                    ("budget ms", lambda row: _ms(row["latency_budget_s"])),
                    ("HyGen", _of("hygen_excess", share)), ("kept", lambda row: f"{row['kept']} of {row['seeds']}"),
                    ("HyGen*", _of("star_excess", share)), ("Sarathi++", _of("sarathi_pp_excess", share)),
                    ("HyGen offline", _of("hygen_offline", _whole)), ("HyGen* offline", _of("star_offline", _whole)),
                    ("× HyGen*", _of("offline_ratio", _twice)), ("overall × Sarathi", _of("overall_ratio", _twice)))),
    "rates": ("Online load (Figures 10 and 15), one SLO", (
        ("online requests/s", lambda row: f"{row['online_rate']:g}"),
        ("budget ms", lambda row: _ms(row["latency_budget_s"])), ("HyGen", _of("hygen_excess", share)),
        ("kept", lambda row: f"{row['kept']} of {row['seeds']}"), ("HyGen*", _of("star_excess", share)),
        ("Sarathi++", _of("sarathi_pp_excess", share)), ("HyGen offline", _of("hygen_offline", _whole)),
        ("HyGen* offline", _of("star_offline", _whole)), ("× HyGen*", _of("offline_ratio", _twice)),
        ("overall × Sarathi", _of("overall_ratio", _twice)))),
    "readings": ("Other readings of what the paper leaves open, each profiled anew", (
        ("changed", _changed), ("budget ms", lambda row: _ms(row["latency_budget_s"])),
        ("excess", _of("excess", share)), ("offline tokens/s", _of("offline", _whole)),
        ("overall × Sarathi", _of("overall_ratio", _twice)), ("evictions", lambda row: _whole(row["evictions"])),
        ("recomputed tokens/s", lambda row: _whole(row["wasted"])))),
    "sharing": ("Prefix sharing maximisation on few-shot work (Figure 6; paper: up to 4 ×, simulated)", (
        ("work", lambda row: row["work"]), ("order", lambda row: row["order"]),
        ("budget ms", lambda row: _ms(row["latency_budget_s"])),
        ("offline tokens/s", _of("offline", _whole)), ("requests/s", _of("requests", _twice)),
        ("× FCFS", _of("ratio", _twice)), ("× FCFS without cache", _of("ratio_without_cache", _twice)),
        ("excess", _of("excess", share)))),
    "fairness": ("The fairness ratio u (Algorithm 4)", (
        ("u", lambda row: f"{row['utility']:g}"), ("offline tokens/s", _of("offline", _whole)),
        ("requests/s", _of("requests", _twice)), ("age P99 s", _of("age_p99_s", _whole)),
        ("longest wait s", _of("age_max_s", _whole)))),
}


def markdown(part: str, rows: Sequence[Row]) -> str:
    """A part's table in Markdown, under its title."""
    title, columns = TABLES[part]
    return f"## {title}\n\n" + markdown_table([name for name, _ in columns],
                                              [[write(row) for _, write in columns] for row in rows])


def terminal(part: str, rows: Sequence[Row]) -> None:
    """Prints a part's table."""
    from rich.table import Table

    title, columns = TABLES[part]
    table = Table(title=title, title_justify="left")
    for name, _ in columns:
        table.add_column(name, justify="left" if name in ("SLO", "changed", "work", "order") else "right")
    for row in rows:
        table.add_row(*(write(row) for _, write in columns))
    console().print(table)
