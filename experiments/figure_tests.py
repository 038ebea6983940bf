"""The tests of figures' statements: each yields one number per seed, compared with two ranges.

| form | its number |
|---|---|
| `value` | a metric |
| `ratio`, `difference` | ratio or difference of a metric at points `a` and the best points `b` equal elsewhere |
| `log_ratio` | such a ratio of geometric means over seeds, `floor` added to both |
| `kept` | the share of points at which a metric is at most `most` (a number or an axis), or at least `least` |
| `monotone` | the share of steps along an axis at which a metric rises, or falls |
| `order` | the share of neighbours in `order`, labels of an axis from most to least, in the right order |
| `correlation` | correlation of two metrics along an axis |

If several points or pairs remain, `take` selects: `mean` (the default), `most` or `least`. `slack`
is a relative tolerance (`kept`: added to the limit).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.figure_points import Row
from ooco_gym.errors import UserError, check_keys, unknown
from ooco_gym.metrics.statistics import resampled_estimate, spread

MOST = 1e6  # replaces infinite ratios: quantiles between infinities are undefined
VERDICTS = ("reproduced", "direction only", "not")
Test = Mapping[str, Any]
KEYS = ("form", "what", "of", "with", "at", "a", "b", "best", "take", "along", "falls", "order", "most", "least",
        "slack", "floor", "reproduced", "direction", "holds")


def judged(test: Test, rows: Sequence[Row]) -> dict[str, Any]:
    """Returns a test's number with its interval over seeds, the ranges, and its verdict.

    Raises:
        UserError: an unknown form or key, or labels that leave no point.
    """
    check_keys("tests", test, KEYS)
    if test.get("form") not in FORMS:
        raise unknown("form of a test", str(test.get("form")), FORMS)
    found = estimate(FORMS[test["form"]](test, rows), rows[0].seeds)
    if test["form"] == "log_ratio":
        found = {key: float(np.exp(found[key])) for key in ("mean", "low", "high")}
    passed = [key for key in ("reproduced", "direction") if inside(found["mean"], *(test.get(key) or (1.0, 0.0)))]
    verdict = VERDICTS[0] if "reproduced" in passed else VERDICTS[1] if passed else VERDICTS[2]
    return {"what": test["what"], "ours": found["mean"], "ci_low": found["low"], "ci_high": found["high"],
            "reproduced": test.get("reproduced"), "direction": test.get("direction"), "verdict": verdict}


def estimate(values: np.ndarray, seeds: int) -> dict[str, Any]:
    """Returns a number with its interval (`mean`, `low`, `high`) from a row's values (`Row`)."""
    if seeds in (0, len(values)):
        return spread(values)
    return dict(zip(("mean", "low", "high"), resampled_estimate(values, seeds), strict=True))


def verdict_of(tests: Sequence[Mapping[str, Any]]) -> str:
    """Returns a figure's verdict, the worst of its tests."""
    return VERDICTS[max(VERDICTS.index(one["verdict"]) for one in tests)]


def inside(value: float, low: float | None, high: float | None) -> bool:
    """Returns whether a number lies between two ends; None: no end."""
    return bool(not np.isnan(value) and (low is None or value >= low) and (high is None or value <= high))


# --- Points ---------------------------------------------------------------------------------------------------------
def chosen(rows: Sequence[Row], where: Mapping[str, Any]) -> list[Row]:
    """Returns the rows with these labels; a list allows several.

    Raises:
        UserError: there are none.
    """
    found = list(rows)
    for axis, label in where.items():
        allowed = label if isinstance(label, list) else [label]
        found = [row for row in found if row.at[axis] in allowed]
    if not found:
        raise UserError(f"tests: no point has {dict(where)}")
    return found


def pairs(test: Test, rows: Sequence[Row]) -> tuple[np.ndarray, np.ndarray]:
    """Returns a metric at points `a`, and at the best (`best: high` or `low`) of the points `b`
    with equal other labels.

    Both are arrays of shape (pairs, seeds).
    """
    kept, pick = chosen(rows, test.get("at") or {}), np.argmin if test.get("best") == "low" else np.argmax
    ours, theirs = [], []
    for row in chosen(kept, test["a"]):
        here = {axis: label for axis, label in row.at.items() if axis not in {*test["a"], *test["b"]}}
        others = [other.values[test["of"]] for other in chosen(kept, {**here, **test["b"]})]
        ours.append(row.values[test["of"]])
        theirs.append(others[int(pick([one.mean() for one in others]))])
    return np.array(ours), np.array(theirs)


def _groups(rows: Sequence[Row], apart: set[str]) -> list[list[Row]]:
    """Groups rows that differ only in the axes `apart`."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(str({axis: label for axis, label in row.at.items() if axis not in apart}), []).append(row)
    return list(groups.values())


def _taken(values: np.ndarray, take: str) -> np.ndarray:
    """Returns the mean of values (points, seeds) over points, or those of the point with the extreme mean."""
    if take == "mean":
        return values.mean(axis=0)
    means = np.where(np.isfinite(values.mean(axis=1)), values.mean(axis=1), np.nan)
    return values[int(np.nanargmax(means) if take == "most" else np.nanargmin(means))]


# --- Forms ----------------------------------------------------------------------------------------------------------
def _value(test: Test, rows: Sequence[Row]) -> np.ndarray:
    mine = chosen(rows, test.get("at") or {})
    return _taken(np.array([row.values[test["of"]] for row in mine]), test.get("take", "mean"))


def _compared(test: Test, rows: Sequence[Row]) -> np.ndarray:
    a, b = pairs(test, rows)
    if test["form"] == "log_ratio":
        values = np.log(a + float(test.get("floor", 0.0))) - np.log(b + float(test.get("floor", 0.0)))
    else:
        values = a - b if test["form"] == "difference" else _over(a, b, rows[0])
    return _taken(values, test.get("take", "mean"))


def _over(a: np.ndarray, b: np.ndarray, row: Row) -> np.ndarray:
    """Returns ratios; in a resample where `b` sustains nothing `MOST`, or 1 if `a` does neither."""
    ratios = np.divide(a, b, out=np.full(a.shape, np.nan), where=b != 0)
    if row.seeds in (0, a.shape[-1]):
        return ratios
    return np.where(b != 0, ratios, np.where(a > 0, MOST, 1.0))


def _kept(test: Test, rows: Sequence[Row]) -> np.ndarray:
    limit, slack, flags = test.get("most", test.get("least")), float(test.get("slack", 0.0)), []
    for row in chosen(rows, test.get("at") or {}):
        bound = float(row.at[limit]) if isinstance(limit, str) else float(limit)
        value = row.values[test["of"]]
        flags.append(value <= bound + slack if "most" in test else value >= bound - slack)
    return np.mean(flags, axis=0)


def _steps(test: Test, series: Sequence[np.ndarray], falls: bool) -> np.ndarray:
    """Returns the share of steps in the right direction."""
    values, slack = np.array(series), float(test.get("slack", 0.0))
    before, after = (values[1:], values[:-1]) if falls else (values[:-1], values[1:])
    return (after >= before - slack * np.abs(before)).mean(axis=0)


def _monotone(test: Test, rows: Sequence[Row]) -> np.ndarray:
    shares = []
    for group in _groups(chosen(rows, test.get("at") or {}), {test["along"]}):  # in the order of the axis
        shares.append(_steps(test, [row.values[test["of"]] for row in group], bool(test.get("falls"))))
    return np.mean(shares, axis=0)


def _order(test: Test, rows: Sequence[Row]) -> np.ndarray:
    (axis, labels), = test["order"].items()
    shares = []
    for group in _groups(chosen(rows, {**(test.get("at") or {}), axis: labels}), {axis}):
        by_label = {row.at[axis]: row.values[test["of"]] for row in group}
        shares.append(_steps(test, [by_label[label] for label in labels if label in by_label], falls=True))
    return np.mean(shares, axis=0)


def _correlation(test: Test, rows: Sequence[Row]) -> np.ndarray:
    found = []
    for group in _groups(chosen(rows, test.get("at") or {}), {test["along"]}):
        x = np.array([row.values[test["of"]] for row in group])
        y = np.array([row.values[test["with"]] for row in group])
        found.append([np.corrcoef(x[:, seed], y[:, seed])[0, 1] for seed in range(x.shape[1])])
    return np.mean(found, axis=0)


FORMS: Mapping[str, Callable[[Test, Sequence[Row]], np.ndarray]] = {
    "value": _value, "ratio": _compared, "difference": _compared, "log_ratio": _compared, "kept": _kept,
    "monotone": _monotone, "order": _order, "correlation": _correlation}
