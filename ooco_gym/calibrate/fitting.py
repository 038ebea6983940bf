"""Robust fits: log residuals, bounds, several starts, and folds in which every row is predicted unseen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

SCALE = 0.05
"""Relative error from which a residual's cost grows linearly rather than quadratically."""


class Free(NamedTuple):
    """A parameter to be found between `low` and `high`, starting at `start`.

    The search is over `log(value - above)` (`above` is 1 for exponents). With `off`, a value at
    `low` switches the term off and is written as 0.
    """

    name: str
    start: float
    low: float
    high: float
    above: float = 0.0
    off: bool = False


class Fitted(NamedTuple):
    """The parameters found, including fixed ones, the number of rows, and the cost of the search."""

    found: dict[str, float]
    rows: int
    cost: float


def started(free: Sequence[Free], start: Mapping[str, float] | None) -> list[Free]:
    """Returns the free parameters with another fit's values as starts, where it has them."""
    if start is None:
        return list(free)
    return [item._replace(start=min(max(start.get(item.name, item.start) - item.above, item.low * 1.1),
                                    item.high / 1.1)) for item in free]


def least_squares(free: Sequence[Free], predict: Callable[[dict[str, float]], np.ndarray], seconds: np.ndarray,
                  starts: int = 3, seed: int = 0) -> tuple[dict[str, float], float]:
    """Finds parameters within their bounds, on a logarithmic scale, that minimise soft absolute log
    residuals.

    Args:
        free: the parameters.
        predict: maps parameters by name to seconds, float64[n].
        seconds: measured, float64[n].
        starts: number of searches, from the given starts and random points around them.
        seed: of these points.

    Returns:
        The best parameters by name, 0 for terms that are off, and their cost.
    """
    from scipy.optimize import least_squares as search

    low = np.log([item.low for item in free])
    high = np.log([item.high for item in free])
    start = np.clip(np.log([item.start for item in free]), low + 1e-6, high - 1e-6)
    measured, draws = np.log(seconds), np.random.default_rng(seed)

    def values(point: np.ndarray) -> dict[str, float]:
        return {item.name: item.above + float(np.exp(x)) for item, x in zip(free, point, strict=True)}

    def residuals(point: np.ndarray) -> np.ndarray:
        return np.log(np.maximum(predict(values(point)), 1e-12)) - measured

    best, cost = start, np.inf
    for number in range(starts):
        begin = start if number == 0 else np.clip(start + draws.normal(0, 0.7, len(free)), low + 1e-6, high - 1e-6)
        result = search(residuals, begin, bounds=(low, high), loss="soft_l1", f_scale=SCALE, max_nfev=200)
        if result.cost < cost - 1e-9:
            best, cost = result.x, float(result.cost)
    none = {item.name: 0.0 for item, x in zip(free, best, strict=True) if item.off and x <= np.log(item.low) + 0.05}
    return values(best) | none, cost


def alike(*columns: np.ndarray) -> np.ndarray:
    """Returns a number for each row, equal for rows that are equal in all columns, int64[n]."""
    codes = [np.unique(values.astype(str) if values.dtype == object else values, return_inverse=True)[1]
             for values in columns]
    return np.unique(np.stack(codes, axis=1), axis=0, return_inverse=True)[1].reshape(-1)


def folds(groups: np.ndarray, seed: int, most: int = 5) -> np.ndarray:
    """Assigns groups to folds at random; returns each row's fold, int64[n]."""
    names, index = np.unique(groups, return_inverse=True)
    order = np.random.default_rng(seed).permutation(len(names))
    return (order % min(most, len(names)))[index]


def sample(rows: int, most: int, seed: int) -> np.ndarray:
    """Returns sorted indices of at most `most` rows, drawn without replacement."""
    if rows <= most:
        return np.arange(rows)
    return np.sort(np.random.default_rng(seed).choice(rows, most, replace=False))


def errors(predicted: np.ndarray, seconds: np.ndarray) -> dict[str, float | int]:
    """Returns mean (`mape`), median, 90th and 95th percentile and worst relative error in percent, and rows."""
    signed = 100.0 * (predicted / seconds - 1.0)
    relative = np.abs(signed)
    median, p90, p95 = (float(value) for value in np.percentile(relative, (50, 90, 95)))
    return {"mape": float(relative.mean()), "median": median, "p90": p90, "p95": p95, "worst": float(relative.max()),
            "median_bias": float(np.median(signed)), "rows": len(relative)}
