"""Tables of `compare sustain=true`: in the terminal, and as Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.tables import console
from ooco_gym.metrics.statistics import interval_words

Row = Mapping[str, Any]
NONE = "–"


def field_table(summary: Mapping[str, Any]) -> None:
    """Prints one table a cell: what each policy sustains, and what it did at that rate."""
    from rich.table import Table

    screen = console()
    for cell in summary["cells"]:
        table = Table(title=heading(cell, summary["results"]), title_justify="left", caption_justify="left",
                      caption=interval_words(len(summary["seeds"])))
        for head in ("policy", "\ncluster", "offline\nrequests/s", "\n95 %", "offline\ntokens/s",
                     f"over {summary['baseline']}'s\ntokens/s (95 %)", "wasted\ntokens/s", "\nhit rate",
                     "\nviolations", "\nlimited by"):
            left = head in ("policy", "\ncluster", "\nlimited by")
            table.add_column(head, justify="left" if left else "right", no_wrap=head in ("policy", "\ncluster"))
        for row in summary["results"]:
            if row["cell"] == cell["name"]:
                found = row["max_offline_rate"]
                table.add_row(name_of(row), row["cluster"], number(found["mean"]), _between(found),
                              whole(row["offline_tokens_per_s"]["mean"]), ratio(row),
                              whole(row["wasted_tokens_per_s"]["mean"]), percent(row["hit_rate"]["mean"], 0),
                              percent(row["violations"]["mean"]), row["limited_by"])
        screen.print(table)


def heading(cell: Row, rows: Sequence[Row]) -> str:
    """A cell's title: its name, and the twin of equal hardware that some of its rows ran on."""
    twins = sorted({row["cluster"] for row in rows if row["cell"] == cell["name"]} - {cell["cluster"]})
    return f"{cell['name']} or, of equal hardware, {', '.join(twins)}" if twins else str(cell["name"])


def columns(summary: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """Heads of the columns of a cell's table, each with whether it is set flush left."""
    other = [f"from {name.replace('_', ' ')}" for name in others(summary)]
    return [("policy", True), ("cluster", True), ("offline requests/s (95 %)", False),
            *((f"TPOT {name}", False) for name in other),
            ("reference GPU-s/s", False), ("offline tokens/s", False), ("all tokens/s", False),
            (f"tokens over {summary['baseline']}'s (95 %)", False), ("wasted tokens/s", False),
            ("of GPU time", False), ("hit rate", False), ("violations", False), ("TTFT", False), ("TPOT", False),
            ("limited by", True)]


def cells(row: Row, summary: Mapping[str, Any]) -> list[str]:
    """A row of a cell's table, under `columns`."""
    return [name_of(row), row["cluster"], rate(row["max_offline_rate"]),
            *(number(row[f"max_offline_rate_{name}"]["mean"]) for name in others(summary)),
            number(row["offline_reference_gpu_s_per_s"]["mean"]), whole(row["offline_tokens_per_s"]["mean"]),
            whole(row["overall_tokens_per_s"]["mean"]), ratio(row), whole(row["wasted_tokens_per_s"]["mean"]),
            percent(row["wasted_gpu_share"]["mean"], 1), percent(row["hit_rate"]["mean"], 0),
            percent(row["violations"]["mean"]), percent(row["ttft_violations"]["mean"]),
            percent(row["tpot_violations"]["mean"]), row["limited_by"]]


def others(summary: Mapping[str, Any]) -> list[str]:
    """The definitions of TPOT beside the one that the table is made under."""
    return [name for name in ("first_token", "first_decode")
            if summary["results"] and f"max_offline_rate_{name}" in summary["results"][0]]


def overview(summary: Mapping[str, Any]) -> list[str]:
    """Markdown of the one table: policies in rows, cells in columns; who was tuned has a row as it ships, too."""
    rows: Sequence[Row] = summary["results"]
    names = [cell["name"] for cell in summary["cells"]]
    lines = {}
    for row in sorted(rows, key=lambda row: row["tuned_as"] is not None):  # as shipped first
        if row["tuned_as"]:
            shipped = lines.get((row["policy"], False), {})  # where no setting did better, it stays
            lines.setdefault((row["policy"], True), dict(shipped))[row["cell"]] = row
        else:
            lines.setdefault((row["policy"], False), {})[row["cell"]] = row
    ranked = sorted(lines, key=lambda key: -_mean_ratio([lines[key][name] for name in names]))
    body = [[_labelled(policy, tuned and (policy, False) in lines), lines[policy, tuned][names[0]]["kind"],
             *(_glance(lines[policy, tuned][name]) for name in names)] for policy, tuned in ranked]
    return markdown([("policy", True), ("instances", True), *((name, False) for name in names)], body)


def _labelled(policy: str, tuned: bool) -> str:
    return f"`{policy}`, tuned" if tuned else f"`{policy}`"


def _mean_ratio(rows: Sequence[Row]) -> float:
    """Geometric mean over cells of a policy's ratio, to sort by; what sustains nothing counts as a thousandth."""
    return math.exp(sum(math.log(max(row["ratio"] or 0.0, 1e-3)) for row in rows) / len(rows))


def _glance(row: Row) -> str:
    if row["max_offline_rate"]["mean"] <= 0:
        return "none"
    text = rate(row["max_offline_rate"])
    if row["ratio"] is not None:
        text += f" **{row['ratio']:.2f}×**"
    return text if row["feasible"] else f"{text} †"


def markdown(heads: Sequence[tuple[str, bool]], body: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table's lines."""
    return ["| " + " | ".join(head for head, _ in heads) + " |",
            "|" + "|".join(" --- " if left else " ---: " for _, left in heads) + "|",
            *("| " + " | ".join(row) + " |" for row in body)]


def name_of(row: Row) -> str:
    """The policy with what tuning set, `†` where it may not be ranked."""
    return (row["tuned_as"] or row["policy"]) + ("" if row["feasible"] else " †")


def rate(figure: Row) -> str:
    """A rate with its interval."""
    return number(figure["mean"]) if figure["ci_low"] is None else f"{number(figure['mean'])} ({_between(figure)})"


def _between(figure: Row) -> str:
    if figure["ci_low"] is None:
        return NONE
    return f"{number(figure['ci_low'])}–{number(figure['ci_high'])}"


def ratio(row: Row) -> str:
    """The ratio with its interval."""
    if row["ratio"] is None:
        return NONE
    return f"{row['ratio']:.2f}" + ("" if row["ratio_low"] is None
                                    else f" ({row['ratio_low']:.2f}–{row['ratio_high']:.2f})")


def number(value: float | None) -> str:
    """Two digits after the point."""
    return NONE if value is None else f"{value:.2f}"


def whole(value: float | None) -> str:
    """A whole number."""
    return NONE if value is None else f"{value:,.0f}"


def percent(value: float | None, digits: int = 2) -> str:
    """A share in percent."""
    return NONE if value is None else f"{100 * value:.{digits}f} %"
