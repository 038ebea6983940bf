"""Robust fits: log residuals, bounds, several starts, and folds in which every row is predicted unseen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

SCALE = 0.05
"""Relative error beyond which a residual counts by its size rather than by its square."""


class Free(NamedTuple):
    """A parameter to be found.

    Attributes:
        name: field of the parameters.
        start: where the search begins.
        low: least value.
        high: greatest value.
        above: what is added to it (1 for exponents), so that the search is over `log(value - above)`.
        off: whether a value at `low` means that the term does not count, and 0 is written.
    """

    name: str
    start: float
    low: float
    high: float
    above: float = 0.0
    off: bool = False


def values(free: Sequence[Free], point: np.ndarray) -> dict[str, float]:
    """Parameters by name at a point of the search."""
    return {item.name: item.above + float(np.exp(x)) for item, x in zip(free, point, strict=True)}


def settled(free: Sequence[Free], point: np.ndarray) -> dict[str, float]:
    """Parameters by name at the end of a search, with 0 for terms that do not count."""
    found = values(free, point)
    for item, x in zip(free, point, strict=True):
        if item.off and x <= np.log(item.low) + 0.05:
            found[item.name] = 0.0
    return found


def least_squares(free: Sequence[Free], predict: Callable[[dict[str, float]], np.ndarray], seconds: np.ndarray,
                  weights: np.ndarray | None = None, starts: int = 3, seed: int = 0) -> tuple[dict[str, float], float]:
    """Finds parameters for which `predict` is nearest to `seconds`, by soft absolute log residuals.

    Args:
        free: parameters, searched on a logarithmic scale within their bounds.
        predict: from parameters by name to seconds, float64[n].
        seconds: measured, float64[n], positive.
        weights: of the residuals, float64[n]; None: all alike.
        starts: searches, the first from the given starts, the others from points around them.
        seed: of these points.

    Returns:
        The best parameters by name, and their cost.
    """
    from scipy.optimize import least_squares as search

    low = np.log([item.low for item in free])
    high = np.log([item.high for item in free])
    start = np.clip(np.log([item.start for item in free]), low + 1e-6, high - 1e-6)
    measured, draws = np.log(seconds), np.random.default_rng(seed)
    weight = 1.0 if weights is None else weights

    def residuals(point: np.ndarray) -> np.ndarray:
        return weight * (np.log(np.maximum(predict(values(free, point)), 1e-12)) - measured)

    best, cost = start, np.inf
    for number in range(starts):
        begin = start if number == 0 else np.clip(start + draws.normal(0, 0.7, len(free)), low + 1e-6, high - 1e-6)
        result = search(residuals, begin, bounds=(low, high), loss="soft_l1", f_scale=SCALE, max_nfev=200)
        if result.cost < cost - 1e-9:
            best, cost = result.x, float(result.cost)
    return settled(free, best), cost


def folds(groups: np.ndarray, seed: int, most: int = 5) -> np.ndarray:
    """Spreads groups over folds at random: the fold of each row, int64[n]."""
    names, index = np.unique(groups, return_inverse=True)
    order = np.random.default_rng(seed).permutation(len(names))
    return (order % min(most, len(names)))[index]


def sample(rows: int, most: int, seed: int) -> np.ndarray:
    """Indices of at most `most` rows, drawn without repetition, in order."""
    if rows <= most:
        return np.arange(rows)
    return np.sort(np.random.default_rng(seed).choice(rows, most, replace=False))


def errors(predicted: np.ndarray, seconds: np.ndarray) -> dict[str, float | int]:
    """Mean (`mape`), median, 90th and 95th percentile and worst of the relative errors, in percent, and the rows."""
    relative = 100.0 * np.abs(predicted / seconds - 1.0)
    bias = 100.0 * float(np.median(predicted / seconds - 1.0))
    median, p90 = (float(value) for value in np.percentile(relative, (50, 90)))
    return {"mape": float(relative.mean()), "median": median, "p90": p90,
            "p95": float(np.percentile(relative, 95)), "worst": float(relative.max()),
            "median_bias": bias, "rows": len(relative)}
