"""The study's results as tables, with the paper's figures beside them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.tables import console

Row = Mapping[str, Any]
Column = tuple[str, Callable[[Row], str]]
NAMES = {"echo_bs": "BS", "echo_bs_e": "BS+E", "echo_bs_e_s": "BS+E+S", "echo": "BS+E+S+M (Echo)"}
TITLES = {
    "estimator": "Estimator: mean absolute error (bias) on batches drawn apart (the paper gives none)",
    "ablation": "Offline throughput and online attainment (Figures 6 and 7; paper: BS+E slightly below BS, then "
                "BS+E+S, then Echo with up to 3.3 × BS; online TTFT 1 s and TPOT 50 ms kept by 90 %)",
    "hit_rate": "Prefix-cache hit rate of offline requests through the online peak (Figure 9; paper: 78.6 %, flat "
                "there only with the KV manager)",
    "readings": "What the paper leaves open, one change at a time",
    "cost": "Processor time of an iteration, decision and simulator together, by waiting offline requests",
}


def name_of(policy: str) -> str:
    """A variant as the paper calls it, and what was changed of it."""
    base, _, changed = policy.partition(":")
    return f"{NAMES.get(base, base)}{f' ({changed})' if changed else ''}"


def share(value: float | None) -> str:
    """A share in percent."""
    return "–" if value is None or not math.isfinite(value) else f"{100 * value:.1f} %"


def twice(value: float) -> str:
    """A ratio."""
    return f"{value:.2f}"


def whole(value: float) -> str:
    """A number without digits behind the point."""
    return f"{value:,.0f}"


def over_seeds(one: Row, write: Callable[[float], str]) -> str:
    """A mean with its interval over seeds."""
    if not math.isfinite(one["low"]) or write(one["low"]) == write(one["high"]):
        return write(one["mean"])
    return f"{write(one['mean'])} ({write(one['low'])} to {write(one['high'])})"


def _of(key: str, write: Callable[[float], str]) -> Callable[[Row], str]:
    return lambda row: over_seeds(row[key], write)


def _mean(key: str, write: Callable[[float], str]) -> Callable[[Row], str]:
    return lambda row: write(row[key]["mean"])


def _error(kind: str) -> Callable[[Row], str]:
    return lambda row: f"{share(row[f'{kind}_mape'])} ({100 * row[f'{kind}_bias']:+.1f} %)"


VARIANT: Column = ("variant", lambda row: name_of(row["policy"]))
FIGURES: tuple[Column, ...] = (
    ("offline tokens/s", _of("tokens_per_s", whole)), ("× BS", _of("speed_up", twice)),
    ("× BS by work", _of("work_speed_up", twice)), ("hit rate", _mean("hit_rate", share)),
    ("TTFT kept", _mean("ttft_attainment", share)), ("TPOT kept", _mean("tpot_attainment", share)),
    ("D(n) kept", _mean("deadline_attainment", share)), ("preempted", _mean("evictions", whole)),
    ("recomputed tokens/s", _mean("wasted_tokens_per_s", whole)))
COLUMNS: dict[str, Sequence[Column]] = {
    "estimator": (("T_p", lambda row: row["prefill_form"]), ("T_d", lambda row: row["decode_form"]),
                  ("prefill", _error("prefill")), ("decode", _error("decode")), ("mixed", _error("mixed")),
                  ("lam", lambda row: twice(row["overlap"]))),
    "ablation": (VARIANT, *FIGURES),
    "hit_rate": (VARIANT, ("whole time", _of("hit_rate", share)), ("trough", _of("hit_rate_trough", share)),
                 ("peak", _of("hit_rate_peak", share))),
    "readings": (VARIANT, *FIGURES),
    "cost": (VARIANT, ("waiting", lambda row: whole(row["waiting"])), ("iterations", lambda row: whole(
        row["iterations"])), ("µs an iteration", lambda row: f"{row['us']:.1f}")),
}


def blocks(part: str, result: Any) -> list[tuple[str, Sequence[Row]]]:
    """A part's tables: title and rows of each."""
    if part == "hit_rate":
        return [("", result["rows"])]
    if part not in ("ablation", "readings"):
        return [("", result)]
    keys = list(dict.fromkeys((row["load"], row["dataset"]) for row in result))
    return [(f"{dataset}, online load {100 * load:g} % of what the instance serves alone",
             [row for row in result if (row["load"], row["dataset"]) == (load, dataset)]) for load, dataset in keys]


def cells(part: str, rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Header and cells of one table."""
    columns = COLUMNS[part]
    return [name for name, _ in columns], [[write(row) for _, write in columns] for row in rows]


def terminal(summary: Mapping[str, Any]) -> None:
    """Prints all tables."""
    from rich.table import Table

    for part, result in summary["results"].items():
        console().print(TITLES[part], highlight=False, style="bold")
        for title, rows in blocks(part, result):
            header, lines = cells(part, rows)
            table = Table(title=title or None, title_justify="left")
            for place, heading in enumerate(header):
                table.add_column(heading, justify="left" if place == 0 else "right")
            for line in lines:
                table.add_row(*line)
            console().print(table)
