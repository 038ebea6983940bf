"""Figures and tables of `ooco-gym headroom`: means, paired differences to the best heuristic, shares of the bound."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agents.contenders import CLAIRVOYANT
from agents.scoring import feasible_first, interval_note, too_few
from agents.tables import bracketed, markdown_table, said_of
from ooco_gym.metrics.statistics import interval

SERVICE, VIOLATIONS, REWARD = "offline_reference_gpu_s_per_s", "violation_rate", "reward_total"
METRICS = (SERVICE, VIOLATIONS, REWARD, "wasted_gpu_s_per_s", "evictions")
_COMPARED = (SERVICE, VIOLATIONS, REWARD)
Played = Mapping[str, Sequence[Mapping[str, Any]]]


def score(played: Played, heuristics: Sequence[str], bound: str, budget: float) -> dict[str, Any]:
    """Means with intervals, differences to the best heuristic window by window, and what that says.

    The best heuristic has the most offline service of those within the budget (in the mean); if none is, the fewest
    violations. The verdict is of the clairvoyant rollout with the most service at no more violations than that; its
    `headroom` is true, false, or None where there are too few windows to say, as its `reason` then does.

    Args:
        played: contender -> one record a window, the same windows for all.
        heuristics: names of those that are heuristics.
        bound: name of the bound, which has service alone.
        budget: share of online requests that may miss an SLO.
    """
    rows = [{"policy": name, **{metric: _interval(_values(records, metric)) for metric in METRICS
                                if metric in records[0]}} for name, records in played.items()]
    best = max(heuristics, key=lambda name: feasible_first(_mean(played[name], VIOLATIONS),
                                                           _mean(played[name], SERVICE), budget))
    for row in rows:
        records = played[row["policy"]]
        row["difference"] = {metric: _interval(_values(records, metric) - _values(played[best], metric))
                             for metric in _COMPARED if metric in records[0]}
        if bound in played:
            row["share_of_bound"] = _mean(records, SERVICE) / _mean(played[bound], SERVICE)
    return {"best_heuristic": best, "violation_budget": budget, "rows": rows,
            "decisions_per_s": _mean(played["partner"], "decisions"), "verdict": _verdict(played, rows, best)}


def _verdict(played: Played, rows: Sequence[Mapping[str, Any]], best: str) -> dict[str, Any]:
    few = too_few(len(played[best]), "windows")
    if few:
        return {"headroom": None, "policy": None, "reason": few}
    limit = _mean(played[best], VIOLATIONS)
    fair = [row for row in rows if row["policy"].startswith(CLAIRVOYANT) and row[VIOLATIONS]["mean"] <= limit + 1e-12]
    if not fair:
        return {"headroom": False, "policy": None, "reason": "every look-ahead had more violations"}
    row = max(fair, key=lambda one: one[SERVICE]["mean"])
    gain = row["difference"][SERVICE]
    return {"headroom": gain["low"] is not None and gain["low"] > 0.0, "policy": row["policy"],
            "relative_gain": gain["mean"] / _mean(played[best], SERVICE) if _mean(played[best], SERVICE) else None,
            "gain": gain, "violations": row["difference"][VIOLATIONS]}


def _values(records: Sequence[Mapping[str, Any]], metric: str) -> np.ndarray:
    return np.array([record[metric] for record in records], float)


def _mean(records: Sequence[Mapping[str, Any]], metric: str) -> float:
    return float(_values(records, metric).mean())


def _interval(values: np.ndarray) -> dict[str, float | None]:
    """Mean with its 95 % interval; windows are drawn independently, each by its own seed and number."""
    mean, low, high = interval(values)
    return {key: None if math.isnan(value) else value
            for key, value in (("mean", mean), ("low", low), ("high", high))}


_HEAD = ["policy", "offline ref. GPU-s/s", "violations", "reward", "Δ offline ref. GPU-s/s", "Δ violations", "Δ reward",
         "of bound"]
_SHOWN, _WHOLE = (0, 1, 2, 3, 4, 7), (0, 4)  # columns at the terminal; of these, those with their intervals


def table(summary: Mapping[str, Any]) -> list[list[str]]:
    """One row a contender, as in `_HEAD`: those with the least service first."""
    rows = sorted(summary["rows"], key=lambda row: row[SERVICE]["mean"] if row[SERVICE]["mean"] is not None else 0.0)
    best = summary["best_heuristic"]
    return [[row["policy"] + (" (best heuristic)" if row["policy"] == best else ""),
             *(_cell(row.get(metric), metric) for metric in _COMPARED),
             *("" if row["policy"] == best else _cell(row["difference"].get(metric), metric) for metric in _COMPARED),
             f"{row['share_of_bound']:.0%}" if "share_of_bound" in row else ""] for row in rows]


def words(summary: Mapping[str, Any]) -> str:
    """What came out, in sentences."""
    verdict = summary["verdict"]
    n = summary["episodes"]
    text = f"{n} windows of {summary['window_s']:g} s that all share. {interval_note(n, what='windows')} "
    if verdict["headroom"] is None:
        return f"{text}{verdict['reason'].capitalize()}."
    if verdict["policy"] is None:
        return text + f"No headroom shown: {verdict['reason']} than {summary['best_heuristic']}."
    gain = verdict["gain"]
    says = "Headroom" if verdict["headroom"] else "No headroom shown"
    return text + (f"{says}: {verdict['policy']} does {_cell(gain, SERVICE)} reference GPU-s/s more than "
                   f"{summary['best_heuristic']}" + (f" ({verdict['relative_gain']:+.1%})" if verdict["relative_gain"]
                                                     is not None else "") + ", and its violations differ by "
                   f"{_cell(verdict['violations'], VIOLATIONS)}.")


def markdown(summary: Mapping[str, Any], name: str) -> str:
    """The whole result as Markdown."""
    return f"# Headroom of {name}\n\n{words(summary)}\n\n{markdown_table(_HEAD, table(summary))}\n"


def show(summary: Mapping[str, Any], name: str) -> None:
    """Prints the table."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console, view = Console(), Table(title=f"Headroom of {name}", title_justify="left")
    for place in _SHOWN:
        view.add_column(_HEAD[place], overflow="fold")
    for row in table(summary):
        view.add_row(*(escape(row[place] if place in _WHOLE else row[place].split(" [")[0]) for place in _SHOWN))
    console.print(view)
    console.print(escape(words(summary)))


def _cell(figure: Mapping[str, float | None] | None, metric: str) -> str:
    return "" if figure is None else bracketed(figure["mean"], figure["low"], figure["high"], said_of(metric), none="")
