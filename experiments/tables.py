"""What `capacity` and `compare` show in the terminal."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ooco_gym.metrics.statistics import interval_words
from ooco_gym.report.terminal import progress

if TYPE_CHECKING:
    from rich.console import Console

    from experiments.jobs import Jobs

NO_TERMINAL_WIDTH = 160


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


def console() -> Console:
    """Where tables are printed: as wide as the terminal, wide enough for them where there is none."""
    from rich.console import Console

    screen = Console()
    return screen if screen.is_terminal else Console(width=NO_TERMINAL_WIDTH)


def show_notes(notes: Sequence[str]) -> None:
    """Prints what a reader should not overlook, one line each."""
    for note in notes:
        console().print(f"[yellow]note[/yellow] {note}", highlight=False)


def capacity_table(rows: Sequence[Mapping[str, Any]], peaks: Sequence[Mapping[str, Any]],
                   paper: tuple[float, float], place: str) -> None:
    """Prints the results of `capacity` on a `place`, one table for each TPOT definition, its footnotes below."""
    from rich.table import Table

    screen = console()
    screen.print(f"sustainable offline load: {place}; paper: OOCO {paper[0]:g} to {paper[1]:g} times the better "
                 "baseline (Figure 6)", highlight=False)
    for peak in peaks:
        if not rows:
            screen.print(f"TPOT from {peak['tpot_from'].replace('_', ' ')}: {_peak_line(peak)}", highlight=False)
            continue
        mine = [row for row in rows if row["tpot_from"] == peak["tpot_from"]]
        table = Table(title=f"TPOT from {peak['tpot_from'].replace('_', ' ')}", title_justify="left",
                      caption="\n".join([_peak_line(peak), *footnotes(mine)]), caption_justify="left")
        for column in ("policy", "offline\nrequests/s", "\n95 %", "\ntokens/s", "recomputed\ntokens/s",
                       "\nviolations", "\nlimited by", "ratio of\ntokens/s", "\n95 %"):
            left = column.strip() in ("policy", "limited by")
            table.add_column(column, justify="left" if left else "right", no_wrap=True)
        for row in mine:
            table.add_row(*_capacity_cells(row))
        screen.print(table)


def footnotes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a table of `capacity` counts, and what was tuned in it."""
    base = rows[0]["best_baseline_tuned_as"] or rows[0]["best_baseline"]
    lines = ["tokens/s: prompt and output tokens of the offline requests that were finished in the window, whenever "
             f"they arrived; ratio: of these, over {base}'s, the better baseline's"]
    default: dict[str, float] = {row["tuned_as"]: row["default"]["max_offline_rate"] for row in rows if row["tuned_as"]}
    tuned: list[str] = [*default, *([base] if rows[0]["best_baseline_tuned_as"] and base not in default else [])]
    for policy in tuned:
        shipped = f"; as shipped it sustains {default[policy]:.2f} requests/s" if policy in default else ""
        lines.append(f"{policy}: tuned, on other seeds, as its paper leaves this open ({_meaning(policy)}){shipped}")
    return [*lines, interval_words(len(rows[0]["seeds"]))]


def _meaning(policy: str) -> str:
    """The parameters that a policy's name sets, in words."""
    from ooco_gym.policy import get_policy

    names = [pair.partition("=")[0] for pair in policy.partition(":")[2].split(",")]
    return ", ".join(f"{param.name}: {re.sub(r'^[a-z_]+=[^ ]+: ', '', param.doc)}"
                     for param in get_policy(policy).params if param.name in names)


def _peak_line(peak: Mapping[str, Any]) -> str:
    if peak["floor"] is None:
        return f"load: {peak['factor']:.4g} of the workload's own rate, as given"
    return (f"peak factor {peak['factor']:.4g} of the workload's own rate ({peak['rate_per_s']:.3g} requests/s in the "
            f"day's mean): {100 * peak['violation_rate']:.2f} % violate without offline work, "
            f"{100 * peak['floor']:.2f} % alone on an idle cluster")


def _capacity_cells(row: Mapping[str, Any]) -> list[str]:
    ratio = row["ratio_to_best_baseline"]
    return [
        row["tuned_as"] or row["policy"], f"{row['max_offline_rate']:.2f}",
        _range(row["max_offline_rate_low"], row["max_offline_rate_high"]),
        f"{row['max_offline_tokens_per_s']:,.0f}", f"{row['wasted_tokens_per_s']:,.0f}",
        f"{100 * row['violation_rate']:.2f} %", row["limited_by"], "none holds" if ratio is None else f"{ratio:.2f}",
        _range(row["ratio_low"], row["ratio_high"]),
    ]


def compare_table(rows: Sequence[Mapping[str, Any]], baseline: str, title: str, caption: str) -> None:
    """Prints the results of `compare`: a block for each metric, means and paired differences."""
    from rich.table import Table

    table = Table(title=title, caption=caption)
    for column in ("metric", "policy", "mean", f"difference to {baseline}", "95 % interval"):
        table.add_column(column, justify="left" if column in ("metric", "policy") else "right")
    for place, row in enumerate(rows):
        first = place == 0 or row["metric"] != rows[place - 1]["metric"]
        if first and place:
            table.add_section()
        own = row["policy"] == baseline
        table.add_row(row["metric"] if first else "", row["policy"], _figure(row["mean"]),
                      "" if own else _figure(row["difference"], "+"),
                      _interval(row["difference_low"], row["difference_high"], "+"))
    console().print(table)


def _range(low: float | None, high: float | None) -> str:
    return "" if _missing(low) else f"{low:.2f}–{high:.2f}"


def _missing(value: float | None) -> bool:
    return value is None or math.isnan(value)


def _figure(value: float | None, sign: str = "") -> str:
    return "–" if _missing(value) else f"{value:{sign},.3g}"


def _interval(low: float | None, high: float | None, sign: str = "") -> str:
    return "" if _missing(low) else f"{_figure(low, sign)} to {_figure(high, sign)}"
