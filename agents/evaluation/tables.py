"""Shows an evaluation: a table for people at the terminal, and the same as Markdown; and what other tables share.

Plots of an evaluation as one HTML page that needs no network: profiles, and throughput against violations.

What is said plainly of a policy under a distribution shift: does it keep the budget, and does it serve enough?
"""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agents.evaluation.scoring import (
    HEADLINE,
    METRICS,
    VIOLATION_LIMIT,
    budget_words,
    grid,
    interval_note,
    mean_interval,
    too_few,
    upper_violation_limit,
    without_online,
)
from ooco_gym.files import atomic_write
from ooco_gym.report import colours, layout, percent
from ooco_gym.report.pages import FONT, LIMIT_COLOUR

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


def write_page(path: str | os.PathLike[str], summary: Mapping[str, Any]) -> None:
    """Writes the figures of each suite, with the sentences that say what they show.

    Args:
        path: of the page.
        summary: of `evaluate`.
    """
    title = html.escape(f"Evaluation on {summary['env']}")
    parts = [f"<h1>{title}</h1>"]
    script: Any = True  # the library itself goes into the page once
    for suite in summary.get("suites") or [summary]:
        if summary.get("suites"):
            parts.append(f"<h2>{html.escape('Shift: ' + suite['shift'] if suite['shift'] else 'No shift')}</h2>")
        parts.append(f"<p>{html.escape(note(suite))}</p>")
        parts.append("<ul>" + "".join(f"<li>{html.escape(line)}</li>" for line in budget(suite)) + "</ul>")
        for figure in (pareto_figure(suite), profile_figure(suite)):
            parts.append(figure.to_html(full_html=False, include_plotlyjs=script))
            script = False
    style = f"body{{font-family:{FONT};max-width:1100px;margin:2em auto;padding:0 1em;color:#222}}"
    text = (f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{title}</title><style>{style}</style>"
            f"</head><body>{''.join(parts)}</body></html>\n")
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def pareto_figure(suite: Mapping[str, Any]) -> Any:
    """Offline service against violations, each with its interval; hollow where a policy is not feasible."""
    import plotly.graph_objects as go

    figure, colour = go.Figure(), colours([entry["policy"] for entry in suite["policies"]])
    cells = {(row["policy"], row["metric"]): row for row in suite["results"]}
    for entry in suite["policies"]:
        name = entry["policy"]
        rate, service = cells[name, "violation_rate"], cells[name, HEADLINE]
        if rate["mean"] is None:
            continue
        figure.add_scatter(
            x=[100 * rate["mean"]], y=[service["mean"]], mode="markers", name=name, error_x=_bars(rate, 100.0),
            error_y=_bars(service, 1.0),
            marker={"size": 12 if entry["learned"] else 9, "color": colour[name],
                    "symbol": ("diamond" if entry["learned"] else "circle") + ("" if entry["feasible"] else "-open")},
            hovertemplate=f"{html.escape(name)}<br>%{{x:.3g}} % violate<br>%{{y:.4g}} ref. GPU-s/s<extra></extra>")
    limit = 100 * suite["violation_limit"]
    figure.add_vline(x=limit, line={"color": LIMIT_COLOUR, "dash": "dash", "width": 1.6})  # type: ignore[arg-type]
    figure.add_annotation(x=limit, y=1.0, yref="paper", yanchor="bottom", showarrow=False,
                          text=f"limit {percent(suite['violation_limit'], 0)}", font={"color": LIMIT_COLOUR})
    figure.update_xaxes(title_text="online requests that violate (%)", rangemode="tozero")
    figure.update_yaxes(title_text="offline service (reference GPU-s/s)")
    return layout(figure, 520, top=110)


def profile_figure(suite: Mapping[str, Any]) -> Any:
    """Performance profile: share of runs and windows with more than a normalised service, with 95 % bands."""
    import plotly.graph_objects as go

    figure, profile = go.Figure(), suite["profile"]
    colour, taus = colours(list(profile["shares"])), profile["thresholds"]
    for name, share in profile["shares"].items():
        figure.add_scatter(x=[*taus, *taus[::-1]], y=[*share["high"], *share["low"][::-1]], fill="toself",
                           fillcolor=colour[name], opacity=0.13, line={"width": 0}, hoverinfo="skip",
                           showlegend=False, legendgroup=name)
        figure.add_scatter(x=taus, y=share["value"], mode="lines", name=name, legendgroup=name,
                           line={"color": colour[name], "width": 2})
    unit = "the fluid bound" if suite["normalised_by"] == "bound" else f"the {suite['normalised_by']}"
    figure.update_xaxes(title_text=f"offline service as a share of {unit}")
    figure.update_yaxes(title_text="share of runs and windows with more", range=[0, 1.02])
    return layout(figure, 460, top=110)


def _bars(row: Mapping[str, Any], factor: float) -> dict[str, Any] | None:
    if row["ci_low"] is None or row["ci_high"] is None:
        return None
    return {"type": "data", "symmetric": False, "array": [factor * (row["ci_high"] - row["mean"])],
            "arrayminus": [factor * (row["mean"] - row["ci_low"])], "thickness": 1.5, "width": 5}


Records = Sequence[Mapping[str, Any]]


def under_shift(shift: str, records: Records, heuristic: Records, best: str) -> dict[str, Any]:
    """A policy beside the best heuristic on the same windows of a shift.

    Args:
        shift: its name.
        records: of the policy, of one run or of several.
        heuristic: of the best heuristic.
        best: that heuristic's name.

    Returns:
        `holds_budget`; `behind`: less service than the heuristic by an interval clear of zero; `service_minus_best`:
        that difference (mean, low, high); `words`: all of it in one or two sentences.
    """
    upper, rate = upper_violation_limit(records), float(grid(records, "violation_rate").mean())
    holds = upper is not None and upper <= VIOLATION_LIMIT
    gain = mean_interval(grid(records, HEADLINE) - grid(heuristic, HEADLINE))
    behind = gain[2] is not None and gain[2] < 0.0
    words = _budget(shift, rate, upper, holds)
    if not holds and not without_online(heuristic):
        words += f" The best heuristic, {best}, has {grid(heuristic, 'violation_rate').mean():.2%} there."
    if behind:
        words += (f"{' Do not use it there:' if holds else ' And'} it serves less than {best}: "
                  f"{bracketed(*gain, said='+.4f')} reference GPU-s/s.")
    return {"holds_budget": holds, "behind": behind, "service_minus_best": list(gain), "words": words}


def _budget(shift: str, rate: float, upper: float | None, holds: bool) -> str:
    if upper is None:
        return f"Under '{shift}' no online request arrived: nothing can be said of the budget."
    if holds:
        return f"Under '{shift}' it holds the violation budget: {rate:.2%}, upper limit {upper:.2%}."
    if rate > VIOLATION_LIMIT:
        return f"Do not use it under '{shift}': it breaks the violation budget of {VIOLATION_LIMIT:.0%}, at {rate:.2%}."
    return (f"Under '{shift}' it is not shown to hold the violation budget: {rate:.2%}, upper limit {upper:.2%}, "
            f"over {VIOLATION_LIMIT:.0%}.")
