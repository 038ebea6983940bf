"""Shows an evaluation: a table for people at the terminal, and the same as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agents.scoring import HEADLINE, METRICS, interval_note, too_few

_TITLES = {
    "episode_reward": "reward",
    "offline_reference_gpu_s_per_s": "offline ref. GPU-s/s",
    "offline_output_tokens_per_s": "offline tokens/s",
    "violation_rate": "violations",
    "wasted_tokens_per_s": "wasted tokens/s",
}


def rows(summary: Mapping[str, Any]) -> list[list[str]]:
    """One row a policy: rank, name, and each metric as `mean [low, high]`; ranked policies first."""
    cells = {(row["policy"], row["metric"]): row for row in summary["results"]}
    order = sorted(summary["policies"], key=lambda entry: (entry["rank"] is None, entry["rank"] or 0))
    return [
        ["–" if entry["rank"] is None else str(entry["rank"]), entry["policy"],
         *(_cell(cells[entry["policy"], metric], metric) for metric in METRICS)]
        for entry in order
    ]


def differences(summary: Mapping[str, Any]) -> list[list[str]]:
    """One row a policy: the paired difference to the reference in service and in violations, and the verdict."""
    by = {(row["policy"], row["metric"]): row for row in summary["paired"]}
    names = [entry["policy"] for entry in summary["policies"] if entry["policy"] != summary["reference"]]
    shown = ("episode_reward", HEADLINE, "violation_rate")
    few = too_few(summary["results"][0]["n_seeds"], "seeds")  # said once, below the tables
    return [[name, *(_cell(by[name, metric], metric) + (
        "" if by[name, metric]["verdict"] == few else f" {by[name, metric]['verdict']}") for metric in shown)]
            for name in names]


def note(summary: Mapping[str, Any]) -> str:
    """What the tables mean, and which policies are not ranked."""
    out = [entry["policy"] for entry in summary["policies"] if not entry["feasible"]]
    seeds, windows = (summary["results"][0][key] for key in ("n_seeds", "n_windows"))
    text = (f"Means over {summary['episodes']} held-out windows that all policies share. "
            f"{interval_note(seeds, windows)} Ranked by offline reference GPU-s/s among the policies "
            f"whose upper limit of the violation rate is at most {summary['violation_limit']:.0%}.")
    few = too_few(seeds, "seeds")
    if few and summary["paired"]:
        text += f" Nothing is called better or worse: {few}."
    if all(row["mean"] is None for row in summary["results"] if row["metric"] == "violation_rate"):
        return f"{text} No online request arrived: there is no violation rate, and no policy is ranked."
    return text + (f" Not ranked: {', '.join(out)}." if out else "")


_HEAD = ["rank", "policy", *(_TITLES[metric] for metric in METRICS)]
_DIFFERENCE_HEAD = ["policy", "Δ reward", "Δ offline ref. GPU-s/s", "Δ violations"]


def markdown(summary: Mapping[str, Any]) -> str:
    """The whole evaluation as Markdown."""
    parts = [f"# Evaluation on {summary['env']}", note(summary), _markdown_table(_HEAD, rows(summary))]
    if summary["paired"]:
        parts += [f"Paired differences to the best heuristic, {summary['reference']}:",
                  _markdown_table(_DIFFERENCE_HEAD, differences(summary))]
    return "\n\n".join(parts) + "\n"


def show(summary: Mapping[str, Any]) -> None:
    """Prints both tables."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()

    def table(title: str, head: list[str], body: list[list[str]]) -> None:
        view = Table(title=title, title_justify="left")
        for column in head:
            view.add_column(column, overflow="fold")
        for row in body:
            view.add_row(*map(escape, row))
        console.print(view)

    table(f"Evaluation on {summary['env']}", _HEAD, rows(summary))
    if summary["paired"]:
        table(f"Paired differences to the best heuristic, {summary['reference']}", _DIFFERENCE_HEAD,
              differences(summary))
    console.print(note(summary))


def _markdown_table(head: list[str], body: list[list[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *body]]
    return "\n".join(lines)


def _cell(row: Mapping[str, Any], metric: str) -> str:
    mean = row.get("mean", row.get("mean_difference"))
    numbers = [_number(value, metric) for value in (mean, row["ci_low"], row["ci_high"])]
    return numbers[0] if row["ci_low"] is None else f"{numbers[0]} [{numbers[1]}, {numbers[2]}]"


def _number(value: float | None, metric: str) -> str:
    if value is None:
        return "–"
    return f"{value:.2%}" if metric == "violation_rate" else f"{value:.4g}"
