"""Shows an evaluation: a table for people at the terminal, and the same as Markdown; and what other tables share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agents.scoring import HEADLINE, METRICS, budget_words, interval_note, too_few

TITLES = {
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
    few = too_few(summary["results"][0]["n_windows"], "windows")  # said once, below the tables
    return [[name, *(_cell(by[name, metric], metric) + (
        "" if by[name, metric]["verdict"] == few else f" {by[name, metric]['verdict']}") for metric in shown)]
            for name in names]


def aggregates(summary: Mapping[str, Any]) -> list[list[str]]:
    """One row a policy, as in `AGGREGATE_HEAD`: its normalised service, and how likely it beats the reference."""
    return [[entry["policy"], str(entry["runs"]), *(_aggregate(entry[key], percent) for key, percent in (
        ("iqm", False), ("probability_of_improvement", True), ("optimality_gap", True)))]
        for entry in summary["policies"]]


def note(summary: Mapping[str, Any]) -> str:
    """What the tables mean, and which policies are not ranked."""
    out = [entry["policy"] for entry in summary["policies"] if not entry["feasible"]]
    windows = summary["results"][0]["n_windows"]
    runs = {row["policy"]: row["n_runs"] for row in summary["results"] if row.get("n_runs", 1) > 1}
    notes = summary.get("notes") or []
    text = (f"Means over {summary['episodes']} {'' if notes else 'held-out '}windows that all policies share. "
            f"{interval_note(windows, what='windows')} ")
    if runs:
        text += (f"Over training runs crossed with the windows for "
                 f"{', '.join(f'{name} ({count} runs)' for name, count in runs.items())}. ")
    text += ("Ranked by offline reference GPU-s/s among the policies whose upper limit of the violation rate is at "
             f"most {summary['violation_limit']:.0%}.")
    text += "".join(f" Note: {one}." for one in notes)
    few = too_few(windows, "windows")
    if few and summary["paired"]:
        text += f" Nothing is called better or worse: {few}."
    if all(row["mean"] is None for row in summary["results"] if row["metric"] == "violation_rate"):
        return f"{text} No online request arrived: there is no violation rate, and no policy is ranked."
    return text + (f" Not ranked: {', '.join(out)}." if out else "")


def budget(summary: Mapping[str, Any]) -> list[str]:
    """One sentence a policy: whether it holds the violation budget; the learned ones first."""
    order = sorted(summary["policies"], key=lambda entry: not entry["learned"])
    return [budget_words(entry, summary["results"], summary["violation_limit"]) for entry in order]


def aggregate_note(summary: Mapping[str, Any]) -> str:
    """What the aggregates are, in a sentence."""
    unit = "the window's fluid bound" if summary["normalised_by"] == "bound" else f"the {summary['normalised_by']}"
    return (f"IQM: interquartile mean of the service of all runs and windows as a share of {unit}. P(improvement): how "
            f"likely a run has more service than {summary['reference']} in the same window, whatever its violations.")


AGGREGATE_HEAD = ["policy", "runs", "IQM", "P(improvement)", "gap to the bound"]
_HEAD = ["rank", "policy", *(TITLES[metric] for metric in METRICS)]
_DIFFERENCE_HEAD = ["policy", "Δ reward", "Δ offline ref. GPU-s/s", "Δ violations"]


def markdown(summary: Mapping[str, Any]) -> str:
    """The whole evaluation as Markdown: one part for each suite."""
    parts = [f"# Evaluation on {summary['env']}"]
    for suite in summary.get("suites") or [summary]:
        shift = suite.get("shift")
        parts += [f"## Shift: {shift}" if shift else "## No shift"] if summary.get("suites") else []
        parts += [note(suite), markdown_table(_HEAD, rows(suite)), "\n".join(f"- {line}" for line in budget(suite))]
        if suite["paired"]:
            parts += [f"Paired differences to the best heuristic, {suite['reference']}:",
                      markdown_table(_DIFFERENCE_HEAD, differences(suite))]
        parts += [aggregate_note(suite), markdown_table(AGGREGATE_HEAD, aggregates(suite))]
    return "\n\n".join(parts) + "\n"


def show(summary: Mapping[str, Any]) -> None:
    """Prints the tables of each suite."""
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

    for suite in summary.get("suites") or [summary]:
        where = summary["env"] + (f", shift {suite['shift']}" if suite.get("shift") else "")
        table(f"Evaluation on {where}", _HEAD, rows(suite))
        if suite["paired"]:
            table(f"Paired differences to the best heuristic, {suite['reference']}", _DIFFERENCE_HEAD,
                  differences(suite))
        console.print(escape(note(suite)))
        if suite.get("shift"):
            console.print(escape(" ".join(budget(suite))))


def markdown_table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = ["| " + " | ".join(cells) + " |" for cells in [list(head), ["---"] * len(head), *body]]
    return "\n".join(lines)


def bracketed(mean: float | None, low: float | None, high: float | None,
              said: str | Callable[[float], str] = ".4g", none: str = "–") -> str:
    """A figure with its interval, `mean [low, high]`; alone where it has none.

    Args:
        mean: the figure.
        low, high: ends of its interval.
        said: how a number is written: a format, or a function.
        none: what is written where there is no figure.
    """
    if mean is None:
        return none
    shown = [said(value) if callable(said) else f"{value:{said}}" for value in (mean, low, high) if value is not None]
    return f"{shown[0]} [{shown[1]}, {shown[2]}]" if len(shown) == 3 else shown[0]


def said_of(metric: str) -> str:
    """How a metric's figures are written, for `bracketed`."""
    return ".2%" if metric == "violation_rate" else ".4g"


def _cell(row: Mapping[str, Any], metric: str) -> str:
    return bracketed(row.get("mean", row.get("mean_difference")), row["ci_low"], row["ci_high"], said_of(metric))


def _aggregate(figure: Mapping[str, Any] | None, percent: bool) -> str:
    return "–" if figure is None else bracketed(figure["value"], figure["ci_low"], figure["ci_high"],
                                                ".1%" if percent else ".3g")
