"""Statistics of policies that were trained several times and evaluated on the same windows: (runs,
windows).

Runs and windows are crossed: every run is evaluated on every window; a heuristic is one run.
Intervals resample whole runs and whole windows, so that effects of a window common to all runs
stay. Resampling runs within windows only, as rliable's stratified bootstrap does (Agarwal et al.
2021, section 4.1), would ignore the sampling of windows. Percentiles are widened to match Student's
t, as in `ooco_gym.metrics.statistics`, with Satterthwaite's (1946) degrees of freedom for the two
sources of variance.

Interquartile mean, probability of improvement, performance profile and optimality gap are
rliable's, with windows as its tasks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ooco_gym.metrics.statistics import CONFIDENCE, RESAMPLES, Statistic, resampled


class Estimate(NamedTuple):
    """A statistic with its interval; `low` and `high` are NaN if there was nothing to resample."""

    value: float
    low: float
    high: float


def mean(values: np.ndarray) -> np.ndarray:
    """Returns the mean over the last two axes (runs, windows)."""
    return values.mean(axis=(-2, -1))


def iqm(values: np.ndarray) -> np.ndarray:
    """Returns the interquartile mean over the last two axes: the mean of the middle half, as `scipy.stats.trim_mean`
    has it (whose import takes a second)."""
    flat = values.reshape(*values.shape[:-2], -1)
    cut = flat.shape[-1] // 4
    return np.partition(flat, (cut, flat.shape[-1] - cut - 1), axis=-1)[..., cut : flat.shape[-1] - cut].mean(axis=-1)


def probability_of_improvement(mine: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns the probability that a run of one policy (..., runs, windows) exceeds another
    policy's in the same window.

    Ties count half. It is the Mann-Whitney U of each window over the number of pairs, averaged over
    windows.
    """
    left, right = mine[..., :, None, :], other[..., None, :, :]
    return ((left > right) + 0.5 * (left == right)).mean(axis=(-3, -2, -1))


def estimate(values: Any, statistic: Statistic = mean, others: Sequence[Any] = (), n_boot: int = RESAMPLES,
             seed: int = 0, weights: Sequence[float] | None = None) -> Estimate:
    """Returns a statistic of values (runs, windows) with its 95 % bootstrap interval.

    Args:
        values: of one policy, shape (runs, windows), or (windows,) for one run.
        statistic: maps arrays (..., runs, windows), `values` and `others`, to (...).
        others: values of other policies on the same windows; their runs are resampled
            independently.
        n_boot: number of resamples.
        seed: key of the resampling; equal keys give equal intervals.
        weights: multiple of each of `others` that is subtracted from `values`, window by window, so
            that the difference varies over runs and windows as the statistic does; None: 1 for a
            single other.

    Raises:
        ValueError: no value, different numbers of windows, or not one weight per other.
    """
    arrays = [_grid(one) for one in (values, *others)]
    if len({array.shape[1] for array in arrays}) > 1:
        raise ValueError(f"metrics of the same windows are needed, got shapes {[array.shape for array in arrays]}")
    weights = (1.0,) * min(1, len(others)) if weights is None else weights
    if len(weights) != len(others):
        raise ValueError(f"metrics of {len(others)} others need one weight each, got {list(weights)}")
    value = float(statistic(*arrays))
    if not all(np.isfinite(array).all() for array in arrays) or all(array.size == 1 for array in arrays):
        return Estimate(value, math.nan, math.nan)
    drawn = resampled(arrays, statistic, n_boot, seed)
    taken = [weight * other.mean(axis=0) for weight, other in zip(weights, arrays[1:], strict=True)]
    tail = crossed_tail(arrays[0] - sum(taken, np.zeros(arrays[0].shape[1])))
    return Estimate(value, float(np.quantile(drawn, tail)), float(np.quantile(drawn, 1 - tail)))


def crossed_tail(values: np.ndarray) -> float:
    """Returns the probability in each tail of the bootstrap of values (runs, windows) that matches
    Student's t.

    For a single run it is `statistics.expanded_tail` of its windows.
    """
    from scipy.special import ndtr, stdtrit

    spreads, shares, counts = [], [], []
    for axis in (1, 0):
        means = values.mean(axis=axis)
        if len(means) > 1:
            spreads.append(float(means.var(ddof=1)) / len(means))
            shares.append((len(means) - 1) / len(means))
            counts.append(len(means) - 1)
    total = sum(spreads)
    if total <= 0.0:
        return 0.5 - CONFIDENCE / 2
    freedom = total**2 / sum(spread**2 / count for spread, count in zip(spreads, counts, strict=True))
    grown = total / sum(spread * share for spread, share in zip(spreads, shares, strict=True))
    return float(ndtr(-stdtrit(freedom, 0.5 + CONFIDENCE / 2) * math.sqrt(grown)))


def _grid(values: Any) -> np.ndarray:
    array = np.asarray(values, float)
    array = array[None, :] if array.ndim == 1 else array
    if array.ndim != 2 or array.size == 0:
        raise ValueError(f"metrics of shape (runs, windows) are needed, got {array.shape}")
    return array
