"""Figures of policies that were trained several times and played through the same windows: (runs, windows).

Runs and windows are crossed: every run plays every window, and a heuristic is one run. Intervals resample runs and
windows, each as a whole, so that what all runs have in common in a window stays in common; runs within windows alone,
as rliable's stratified bootstrap has it (Agarwal et al. 2021, section 4.1), would take the windows for all there are.
Percentiles are moved outwards to cover like Student's t, as in `ooco_gym.metrics.statistics`; of two sources of spread
the degrees of freedom are Satterthwaite's (1946).

Interquartile mean, probability of improvement, performance profile and optimality gap are those of rliable (a window is
what it calls a task).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ooco_gym.metrics.statistics import CONFIDENCE, RESAMPLES, Statistic, resampled


class Estimate(NamedTuple):
    """A figure with its interval; `low` and `high` are NaN where nothing was there to resample."""

    value: float
    low: float
    high: float


def mean(values: np.ndarray) -> np.ndarray:
    """Mean over the last two axes (runs, windows)."""
    return values.mean(axis=(-2, -1))


def iqm(values: np.ndarray) -> np.ndarray:
    """Interquartile mean over the last two axes: of what is left without the lowest and the highest quarter."""
    from scipy.stats import trim_mean

    flat = values.reshape(*values.shape[:-2], -1)
    return np.asarray(trim_mean(flat, 0.25, axis=-1))


def probability_of_improvement(mine: np.ndarray, other: np.ndarray) -> np.ndarray:
    """How likely a run of one policy (..., runs, windows) has more than a run of another in the same window; ties count
    half: the Mann-Whitney U of each window over the number of pairs, in the mean of the windows."""
    left, right = mine[..., :, None, :], other[..., None, :, :]
    return ((left > right) + 0.5 * (left == right)).mean(axis=(-3, -2, -1))


def estimate(values: Any, statistic: Statistic = mean, others: Sequence[Any] = (), n_boot: int = RESAMPLES,
             seed: int = 0, weights: Sequence[float] | None = None) -> Estimate:
    """A statistic of figures (runs, windows) with its 95 % bootstrap interval.

    Args:
        values: figures of one policy, shape (runs, windows), or (windows,) of one run.
        statistic: takes arrays (..., runs, windows), `values` and `others`, and returns (...).
        others: figures of other policies in the same windows; their runs are resampled on their own.
        n_boot: resamples.
        seed: key of the resampling; equal keys give equal intervals.
        weights: how much of each of `others` is taken from `values` in a window, so that what is left varies between
            runs and between windows as the statistic does; None: the whole of a single other.

    Raises:
        ValueError: no figure, not as many windows in each, or not as many weights as others.
    """
    arrays = [_grid(one) for one in (values, *others)]
    if len({array.shape[1] for array in arrays}) > 1:
        raise ValueError(f"figures of the same windows are needed, got shapes {[array.shape for array in arrays]}")
    weights = (1.0,) * min(1, len(others)) if weights is None else weights
    if len(weights) != len(others):
        raise ValueError(f"figures of {len(others)} others need a weight each, got {list(weights)}")
    value = float(statistic(*arrays))
    if not all(np.isfinite(array).all() for array in arrays) or all(array.size == 1 for array in arrays):
        return Estimate(value, math.nan, math.nan)
    drawn = resampled(arrays, statistic, n_boot, seed)
    taken = [weight * other.mean(axis=0) for weight, other in zip(weights, arrays[1:], strict=True)]
    tail = crossed_tail(arrays[0] - sum(taken, np.zeros(arrays[0].shape[1])))
    return Estimate(value, float(np.quantile(drawn, tail)), float(np.quantile(drawn, 1 - tail)))


def crossed_tail(values: np.ndarray) -> float:
    """Probability left in each tail of the bootstrap of figures (runs, windows), to cover like Student's t.

    Of a single run it is `statistics.expanded_tail` of its windows.
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
    figures = np.asarray(values, float)
    figures = figures[None, :] if figures.ndim == 1 else figures
    if figures.ndim != 2 or figures.size == 0:
        raise ValueError(f"figures of shape (runs, windows) are needed, got {figures.shape}")
    return figures
