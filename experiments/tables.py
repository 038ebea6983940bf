"""What `capacity` and `compare` show in the terminal."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ooco_gym.cli.progress import progress

if TYPE_CHECKING:
    from experiments.jobs import Jobs


@contextmanager
def waiting(what: str, jobs: Jobs) -> Iterator[None]:
    """Shows how many simulations have been asked for and are done, while the body runs."""
    over = threading.Event()
    with progress(what) as bar:

        def follow() -> None:
            while not over.wait(0.25):
                bar.text(f"{what}: {jobs.finished} of {jobs.asked} simulations asked for so far")

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def capacity_table(rows: Sequence[Mapping[str, Any]], peaks: Sequence[Mapping[str, Any]],
                   paper: tuple[float, float]) -> None:
    """Prints the results of `capacity`, one row for each policy and TPOT definition."""
    from rich.console import Console
    from rich.table import Table

    first = rows[0]
    table = Table(title=f"sustainable offline load: {first['workload']} on {first['cluster']}, seeds {first['seeds']}",
                  caption=f"Paper: OOCO {paper[0]:g} to {paper[1]:g} times the better baseline (its Figure 6). In "
                          "brackets 95 % intervals over the seeds.")
    for column in ("policy", "TPOT from", "offline requests/s", "offline tokens/s", "violations", "limited by",
                   "ratio to best baseline"):
        table.add_column(column, justify="left" if column in ("policy", "TPOT from", "limited by") else "right")
    for place, row in enumerate(rows):
        if place and row["tpot_from"] != rows[place - 1]["tpot_from"]:
            table.add_section()
        table.add_row(
            row["tuned_as"] or row["policy"], row["tpot_from"], _with_interval(row, "max_offline_rate", "{:.2f}"),
            _with_interval(row, "max_offline_tokens_per_s", "{:,.0f}"), f"{100 * row['violation_rate']:.2f} %",
            row["limited_by"], _ratio(row))
    console = Console()
    console.print(table)
    for peak in peaks:
        console.print(f"peak factor ({peak['tpot_from']}): {peak['factor']:.4g} of the workload's own rate, "
                      f"{100 * peak['violation_rate']:.2f} % violate without offline work; idle floor "
                      f"{100 * peak['floor']:.2f} %", highlight=False)


def _with_interval(row: Mapping[str, Any], name: str, form: str) -> str:
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    if _missing(low):
        return form.format(row[name])
    return f"{form.format(row[name])} [{form.format(low)}, {form.format(high)}]"


def _ratio(row: Mapping[str, Any]) -> str:
    if row["ratio_to_best_baseline"] is None:
        return "no baseline holds"
    text = f"{row['ratio_to_best_baseline']:.2f} × {row['best_baseline']}"
    return text if _missing(row["ratio_low"]) else f"{text} [{row['ratio_low']:.2f}, {row['ratio_high']:.2f}]"


def compare_table(rows: Sequence[Mapping[str, Any]], baseline: str, title: str, caption: str) -> None:
    """Prints the results of `compare`: a block for each metric, means and paired differences."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, caption=caption)
    for column in ("metric", "policy", "mean", f"difference to {baseline}", "95 % interval"):
        table.add_column(column, justify="left" if column in ("metric", "policy") else "right")
    for place, row in enumerate(rows):
        first = place == 0 or row["metric"] != rows[place - 1]["metric"]
        if first and place:
            table.add_section()
        table.add_row(row["metric"] if first else "", row["policy"], _figure(row["mean"]),
                      _figure(row["difference"], "+"),
                      _interval(row["difference_low"], row["difference_high"]))
    Console().print(table)


def _missing(value: float | None) -> bool:
    return value is None or math.isnan(value)


def _figure(value: float | None, sign: str = "") -> str:
    return "" if value is None or math.isnan(value) else f"{value:{sign},.4g}"


def _interval(low: float | None, high: float | None) -> str:
    return "" if _missing(low) else f"[{_figure(low, '+')}, {_figure(high, '+')}]"
