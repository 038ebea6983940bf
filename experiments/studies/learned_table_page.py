"""The learned table's figures, and how they are shown: at the terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agents.evaluation.heuristics import CLAIRVOYANT
from agents.evaluation.scoring import (
    HEADLINE,
    VIOLATION_LIMIT,
    grid,
    mean_interval,
    numbers,
    too_few,
    upper_violation_limit,
    without_online,
)
from agents.evaluation.tables import under_shift
from ooco_gym.metrics.crossed import estimate, iqm, optimality_gap, probability_of_improvement
from ooco_gym.report import Table, minus, percent, with_interval

METRICS = {"service": HEADLINE, "reward": "episode_reward", "violation_rate": "violation_rate",
           "waste": "wasted_tokens_per_s"}
_KEYS = ("mean", "ci_low", "ci_high")
Records = Sequence[Mapping[str, Any]]


def figure(values: np.ndarray) -> dict[str, float | None]:
    """Mean with its interval, of figures (runs, windows); None where a figure is missing."""
    return _shown(mean_interval(values))


def lead(records: Records, best: Records, metric: str = HEADLINE) -> np.ndarray:
    """Differences of a policy to another, (runs, windows), on the windows that both played: look-ahead plays fewer."""
    mine, other = grid(records, metric), grid(best, metric)
    both = min(mine.shape[1], other.shape[1])
    return mine[:, :both] - other[:, :both]


def row_of(name: str, kind: str, records: Records | None, best: Records | None,
           bounds: np.ndarray | None = None) -> dict[str, Any]:
    """One policy's row, with its differences to the best heuristic window by window; of the bound, its service."""
    if records is None or best is None:
        assert bounds is not None
        return {"policy": name, "kind": kind, "n_windows": bounds.shape[1], "service": figure(bounds)}
    upper = upper_violation_limit(records)
    runs, n_windows = grid(records, HEADLINE).shape
    row: dict[str, Any] = {"policy": name, "kind": kind, "runs": runs, "n_windows": n_windows,
                           **{key: figure(grid(records, metric)) for key, metric in METRICS.items()}}
    rate = dict.fromkeys(_KEYS) if without_online(records) else row["violation_rate"]
    row["violation_rate"] = {**rate, "upper_limit": upper}
    row["feasible"] = upper is not None and upper <= VIOLATION_LIMIT
    row["minus_best_tuned"] = {key: figure(lead(records, best, metric)) for key, metric in METRICS.items()}
    return row


def compared(played: Mapping[str, Records], best: str, learned: str, bounds: np.ndarray | None) -> dict[str, Any]:
    """What the table is about: the learned policy against the best heuristic, and against what could be had."""
    looking = clairvoyant(played, best)
    service = {name: grid(played[name], HEADLINE) for name in (best, learned, looking or best) if name in played}
    gap = None if looking is None else figure(lead(played[looking], played[best]))
    low = None if gap is None else gap["ci_low"]
    touches = low is None or low <= 0.0
    few = too_few(service[best].shape[1], "windows")
    looked_few = few or too_few(service[looking or best].shape[1], "windows")
    found: dict[str, Any] = {
        "clairvoyant": looking, "clairvoyant_minus_best_tuned": gap,
        "no_headroom": None if looked_few or looking is None else touches,
        "no_headroom_reason": _reason(looking, touches, looked_few, _looked(played)),
        "learned_minus_best_tuned": None, "share_of_gap_closed": None, "verdict": "no learned policy"}
    if learned not in played:
        return found
    difference = figure(lead(played[learned], played[best]))
    found["learned_minus_best_tuned"] = difference
    found["learned_minus_best_tuned_reward"] = figure(lead(played[learned], played[best], "episode_reward"))
    found["probability_of_improvement"] = _named(estimate(service[learned], probability_of_improvement,
                                                          [service[best]]))
    if bounds is not None:
        shares = service[learned][:, :bounds.shape[1]] / bounds
        found["of_bound"] = {"iqm": _named(estimate(shares, iqm)),
                             "optimality_gap": _named(estimate(shares, optimality_gap))}
    if looking is not None and gap is not None and gap["mean"] is not None and gap["mean"] > 0.0 and not touches:
        n = service[looking].shape[1]
        mine, others = service[learned][:, :n], [service[best][:, :n], service[looking]]
        share = float(_closed(mine, *others))  # to the first order it varies as mine - (1 - share) best - share most
        found["share_of_gap_closed"] = _named(estimate(mine, _closed, others, weights=(1.0 - share, share)))
    found["each_run"] = each_run(played[learned], played[best])
    upper = upper_violation_limit(played[learned])
    found["verdict"] = _verdict(difference, upper is not None and upper <= VIOLATION_LIMIT, few)
    return found


def beside_searched(played: Mapping[str, Records], searched: str | None, learned: str) -> dict[str, Any] | None:
    """The learned policy against the best that `tune` came to; None without one of them."""
    if searched is None or learned not in played:
        return None
    return {"policy": searched, "learned_minus": figure(lead(played[learned], played[searched]))}


def clairvoyant(played: Mapping[str, Records], best: str) -> str | None:
    """The clairvoyant look-ahead with the most service of those within the violation budget, or with no more violations
    than the best heuristic in the same windows; or None."""
    fair = [name for name in _looked(played) if grid(played[name], "violation_rate").mean() <= VIOLATION_LIMIT
            or lead(played[name], played[best], "violation_rate").mean() <= 1e-12]
    return max(fair, key=lambda name: float(grid(played[name], HEADLINE).mean()), default=None)


def shifted(shift: str, learned: Records, heuristic: Records, best: str) -> dict[str, Any]:
    """What a distribution shift does to the learned policy, with a plain statement on the budget and the service."""
    mine, other = (row_of(name, kind, records, heuristic)
                   for name, kind, records in (("learned", "learned", learned), (best, "heuristic", heuristic)))
    return {"shift": shift, "n_windows": grid(learned, HEADLINE).shape[1], "learned": mine, "best_tuned": other,
            **under_shift(shift, learned, heuristic, best)}


def each_run(learned: Records, best: Records) -> list[dict[str, Any]]:
    """Each training run by itself: whether it holds the budget, and its difference to the best heuristic."""
    found = []
    for run in dict.fromkeys(record["run"] for record in learned):
        records = [record for record in learned if record["run"] == run]
        upper, difference = upper_violation_limit(records), figure(lead(records, best))
        feasible = upper is not None and upper <= VIOLATION_LIMIT
        few = too_few(len(records), "windows")
        found.append({"run": run, "feasible": feasible, "service_minus_best_tuned": difference,
                      "violation_rate": {**figure(grid(records, "violation_rate")), "upper_limit": upper},
                      "verdict": _verdict(difference, feasible, few)})
    return found


def variant_of(name: str, records: Records, recipe: Records) -> dict[str, Any]:
    """A run with one thing changed beside the recipe's run of the same seed, window by window."""
    return {"variant": name, "n_windows": grid(records, HEADLINE).shape[1], "service": figure(grid(records, HEADLINE)),
            "violation_rate": figure(grid(records, "violation_rate")), "minus_recipe": figure(lead(records, recipe))}


def _looked(played: Mapping[str, Records]) -> list[str]:
    return [name for name in played if name.startswith(CLAIRVOYANT)]


def _reason(looking: str | None, touches: bool, few: str | None, looked: Sequence[str]) -> str | None:
    """Why there is no headroom, or no verdict on it."""
    if not looked:
        return "no look-ahead was played"
    if few:
        return few
    if looking is None:
        return "every look-ahead was over the violation budget, and had more violations than the best heuristic"
    return "the interval of the clairvoyant rollout's gain touches zero" if touches else None


def _closed(mine: np.ndarray, best: np.ndarray, most: np.ndarray) -> np.ndarray:
    """Share of the gap between two policies that a third one closes, in the means."""
    base = best.mean(axis=(-2, -1))
    return (mine.mean(axis=(-2, -1)) - base) / (most.mean(axis=(-2, -1)) - base)


def _named(found: Any) -> dict[str, float | None]:
    return _shown(numbers(found))


def _shown(found: Sequence[float | None]) -> dict[str, float | None]:
    """By their names; a bound that there is not, where no policy can keep the budget, is no number."""
    return {key: None if value is None or np.isnan(value) else value for key, value in zip(_KEYS, found, strict=True)}


def _verdict(difference: Mapping[str, float | None], feasible: bool, few: str | None) -> str:
    if few:
        return few
    low, high = difference["ci_low"], difference["ci_high"]
    if low is None or high is None:
        return "no difference shown"
    if not feasible:
        return "over the violation budget, or not shown to be within it"
    return "better" if low > 0.0 else "worse" if high < 0.0 else "no difference shown"


SCHEMA = "ooco-gym/learned-table/1"
TITLE = "Learned policies on held-out windows"
BY_OTHER_CODE = "windows_by_other_code"
HEAD = ["environment", "best tuned heuristic", "its service", "learned", "its violations", "learned − best tuned",
        "learned − searched", "clairvoyant − best tuned", "of the gap", "verdict"]
ROW_HEAD = ["policy", "service", "violations", "at most", "reward", "wasted tokens/s", "service − best tuned"]


def overview(summary: Mapping[str, Any]) -> list[list[str]]:
    """One row an environment, as in `HEAD`."""
    found = []
    for one in summary["environments"].values():
        rows = {row["policy"]: row for row in one["rows"]}
        learned, best = rows.get("learned", {}), rows[one["best_tuned"]]
        gap = one["share_of_gap_closed"]
        shown = "no headroom" if one["no_headroom"] else _cell(gap, ".0%") if gap else "–"
        found.append([one["name"], f"`{one['best_tuned']}`", _cell(best["service"]), _cell(learned.get("service")),
                      _cell(learned.get("violation_rate"), ".2%"),
                      _cell(one["learned_minus_best_tuned"], "+.4f"),
                      _cell((one.get("searched") or {}).get("learned_minus"), "+.4f"),
                      _cell(one["clairvoyant_minus_best_tuned"], "+.4f"), shown, verdict_of(one)])
    return found


def verdict_of(one: Mapping[str, Any]) -> str:
    """The verdict on the mean, with how many runs hold the budget by themselves where not all do."""
    runs = one.get("each_run") or []
    held = sum(run["feasible"] for run in runs)
    return one["verdict"] + (f"; {held} of {len(runs)} runs hold the budget" if held < len(runs) else "")


def rows(one: Mapping[str, Any]) -> list[list[str]]:
    """One row a policy of an environment, as in `ROW_HEAD`, those with the least service first."""
    order = sorted(one["rows"], key=lambda row: row["service"]["mean"] or 0.0)
    found = []
    for row in order:
        rate = row.get("violation_rate")
        upper = None if rate is None else rate["upper_limit"]
        limit = "" if rate is None else "–" if upper is None else percent(upper) + ("" if row["feasible"] else " ✗")
        name = f"`{row['policy']}`" if row["kind"] in ("heuristic", "tuned") else row["policy"]
        if row["kind"] == "learned":
            name = f"**learned** ({row['runs']} runs)"
        name += " (tuned)" if row["kind"] == "tuned" else ""
        name += " (best)" if row["policy"] == one["best_tuned"] else ""
        difference = None if row["policy"] == one["best_tuned"] else row.get("minus_best_tuned", {}).get("service")
        found.append([name, _cell(row["service"]), _cell(rate, ".2%") if rate else "", limit,
                      _cell(row.get("reward"), ".4g") if "reward" in row else "",
                      _cell(row.get("waste"), ".4g") if "waste" in row else "",
                      _cell(difference, "+.4f") if difference else ""])
    return found


def markdown(summary: Mapping[str, Any]) -> str:
    """The whole table as Markdown; docs/evaluation.md says how to read it."""
    parts = [f"# {TITLE}", Table("", HEAD, overview(summary), align="l").markdown()]
    for one in summary["environments"].values():
        parts += [f"## {one['name']}", Table("", ROW_HEAD, rows(one), align="l").markdown()]
        if one["shifts"]:
            parts.append("\n".join(f"- {shift['words']}" for shift in one["shifts"]))
    others = sum(one.get(BY_OTHER_CODE, 0) for one in summary["environments"].values())
    if others:
        parts.append(f"{others} of the records were played by another version of the code.")
    return "\n\n".join(parts) + "\n"


def show(summary: Mapping[str, Any]) -> None:
    """Prints one row an environment."""
    Table(TITLE, HEAD, overview(summary), align="l").show()


def _cell(figure: Mapping[str, Any] | None, form: str = ".4f") -> str:
    """`mean [low, high]`; a dash where there is none."""
    found = figure or {}
    text = with_interval(found.get("mean"), found.get("ci_low"), found.get("ci_high"), form)
    return minus(text.replace("%", " %"))
