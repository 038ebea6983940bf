"""How an evaluation is shown: tables in the terminal and in Markdown, sentences, and a page of
charts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

from agents.evaluation import scoring
from ooco_gym.render import write_report
from ooco_gym.render.reading import evaluated
from ooco_gym.report import NONE, Table, percent, with_interval

TITLES = {
    "episode_reward": "reward",
    "offline_reference_gpu_s_per_s": "offline ref. GPU-s/s",
    "offline_output_tokens_per_s": "offline output tokens/s",
    "violation_rate": "violations",
    "wasted_tokens_per_s": "wasted tokens/s",
}
_COMPARED = ("episode_reward", scoring.HEADLINE, "violation_rate")


# --- Tables ---------------------------------------------------------------------------------------------------------
def cell(figure: Mapping[str, Any], metric: str, value: str = "mean") -> str:
    """A metric's value with its interval, `mean [low, high]`; `value` is the key of the first."""
    form = percent if metric == "violation_rate" else ".4g"
    return with_interval(figure[value], figure["ci_low"], figure["ci_high"], form, none=NONE)


def _title(summary: Mapping[str, Any]) -> str:
    """The title of an evaluation: its environment's id without the module that registers it."""
    return f"Evaluation on {str(summary['env']).rpartition(':')[2]}"


def score_table(suite: Mapping[str, Any], title: str = "") -> Table:
    """One row for each policy: rank, name, and each metric as `mean [low, high]`; ranked policies
    first."""
    cells = {(row["policy"], row["metric"]): row for row in suite["results"]}
    rows = []
    for entry in sorted(suite["policies"], key=lambda entry: (entry["rank"] is None, entry["rank"] or 0)):
        figures = [cell(cells[entry["policy"], metric], metric) for metric in scoring.METRICS]
        rows.append([entry["rank"], entry["policy"], *figures])
    return Table(title, [f"rank by {TITLES[scoring.HEADLINE]}", "policy", *TITLES.values()], rows, align="l")


def difference_table(suite: Mapping[str, Any]) -> Table:
    """One row for each policy: its paired differences to the reference, with the verdict."""
    by = {(row["policy"], row["metric"]): row for row in suite["paired"]}
    few = scoring.too_few(suite["results"][0]["n_windows"])  # stated once, below the tables

    def judged(row: Mapping[str, Any], metric: str) -> str:
        return cell(row, metric, "mean_difference") + ("" if row["verdict"] == few else f" {row['verdict']}")

    rows = []
    for entry in suite["policies"]:
        name = entry["policy"]
        if name != suite["reference"]:
            rows.append([name, *(judged(by[name, metric], metric) for metric in _COMPARED)])
    return Table(f"Paired differences to {suite['reference']}, the best policy that was not learned",
                 ["policy", *(f"Δ {TITLES[metric]}" for metric in _COMPARED)], rows, align="l")


def aggregate_table(suite: Mapping[str, Any]) -> Table:
    """One row for each policy: its normalised service, and the probability that it beats the
    reference."""
    def shown(figure: Mapping[str, Any] | None, form: Any) -> str | None:
        return None if figure is None else with_interval(*figure.values(), form=form)

    rows = [[entry["policy"], entry["runs"], shown(entry["iqm"], ".3g"),
             shown(entry["probability_of_improvement"], partial(percent, digits=1))] for entry in suite["policies"]]
    return Table("", ["policy", "runs", "IQM", "P(improvement)"], rows, align="l")


# --- Sentences ------------------------------------------------------------------------------------------------------
def note(suite: Mapping[str, Any]) -> str:
    """Sentences on how to read the tables and on the policies that are not ranked."""
    out = [entry["policy"] for entry in suite["policies"] if not entry["feasible"]]
    windows = suite["results"][0]["n_windows"]
    runs = {row["policy"]: row["n_runs"] for row in suite["results"] if row.get("n_runs", 1) > 1}
    notes = suite.get("notes") or []
    text = (f"Means over {suite['episodes']} {'' if notes else 'held-out '}windows that all policies share. "
            f"{scoring.interval_note(windows)} ")
    if runs:
        text += (f"Over training runs crossed with the windows for "
                 f"{', '.join(f'{name} ({count} runs)' for name, count in runs.items())}. ")
    text += ("Ranked by offline reference GPU-s/s among the policies whose upper limit of the violation rate is at "
             f"most {suite['violation_limit']:.0%}.")
    text += "".join(f" Note: {one}." for one in notes)
    few = scoring.too_few(windows)
    if few and suite["paired"]:
        text += f" Nothing is called better or worse: {few}."
    if all(row["mean"] is None for row in suite["results"] if row["metric"] == "violation_rate"):
        return f"{text} No online request arrived: there is no violation rate, and no policy is ranked."
    return text + (f" Not ranked: {', '.join(out)}." if out else "")


def budget(suite: Mapping[str, Any]) -> list[str]:
    """One sentence for each policy on whether it keeps the violation budget, learned policies first."""
    order = sorted(suite["policies"], key=lambda entry: not entry["learned"])
    return [scoring.budget_words(entry, suite["results"], suite["violation_limit"]) for entry in order]


# --- The whole evaluation -------------------------------------------------------------------------------------------
def markdown(summary: Mapping[str, Any]) -> str:
    """The whole evaluation as Markdown, one part for each suite."""
    parts = [f"# {_title(summary)}"]
    for suite in summary.get("suites") or [summary]:
        parts += [f"## Shift: {suite['shift']}" if suite["shift"] else "## No shift"] if summary.get("suites") else []
        parts += [note(suite), score_table(suite).markdown(), "\n".join(f"- {line}" for line in budget(suite))]
        if suite["paired"]:
            table = difference_table(suite)
            parts += [f"{table.title}:", table.markdown()]
        parts += ["IQM: interquartile mean of the service of all runs and windows as a share of the "
                  f"{suite['normalised_by']}. P(improvement): how likely a run has more service than "
                  f"{suite['reference']} in the same window, whatever its violations.",
                  aggregate_table(suite).markdown()]
    return "\n\n".join(parts) + "\n"


def show(summary: Mapping[str, Any]) -> None:
    """Prints the tables of each suite."""
    for suite in summary.get("suites") or [summary]:
        score_table(suite, _title(summary) + (f", shift {suite['shift']}" if suite.get("shift") else "")).show()
        if suite["paired"]:
            difference_table(suite).show()
        print(note(suite))
        if suite.get("shift"):
            print(*budget(suite))


def write_figures(path: str | os.PathLike[str], summary: Mapping[str, Any]) -> None:
    """Writes the page of an evaluation: charts and differences of each suite."""
    write_report(path, evaluated(summary), title=_title(summary))
