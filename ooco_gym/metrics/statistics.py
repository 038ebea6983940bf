"""Confidence intervals for policies compared on the same seeds: bootstrap over seeds, and over windows within them.

Seeds are few (three to ten), and the plain percentile bootstrap is too narrow then. Its percentiles are therefore moved
outwards so that they match Student's t at that number of seeds ("expanded percentile interval", Hesterberg 2015); with
three seeds the interval spans the seeds themselves, with thirty the correction has all but gone.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

RESAMPLES = 10_000
ADVISED_SEEDS = 5


def paired_interval(a: Any, b: Any, n_boot: int = RESAMPLES, seed: int = 0,
                    confidence: float = 0.95) -> tuple[float, float, float]:
    """Mean of the paired differences `a - b` with its bootstrap interval.

    Args:
        a: figures of one policy, shape (seeds,) or (seeds, windows).
        b: figures of the other on the same seeds and windows, same shape.
        n_boot: resamples.
        seed: key of the resampling; equal keys give equal intervals.
        confidence: share of the interval.

    Returns:
        (mean, low, high); low and high are NaN where one figure alone gives no spread.

    Raises:
        ValueError: the shapes differ, or hold nothing.
    """
    left, right = np.asarray(a, float), np.asarray(b, float)
    if left.shape != right.shape:
        raise ValueError(f"paired figures need one shape, got {left.shape} and {right.shape}")
    return interval(left - right, n_boot, seed, confidence)


def interval(values: Any, n_boot: int = RESAMPLES, seed: int = 0,
             confidence: float = 0.95) -> tuple[float, float, float]:
    """Mean of `values` with its bootstrap interval: over seeds, shape (seeds,), or hierarchical, (seeds, windows).

    The hierarchical form draws seeds with replacement, then windows within each drawn seed. A NaN among the figures
    makes the result NaN: a figure that is missing is never silently left out.

    Returns:
        (mean, low, high) as for `paired_interval`.

    Raises:
        ValueError: no value, or more than two axes.
    """
    figures = np.asarray(values, float)
    if figures.size == 0 or figures.ndim not in (1, 2):
        raise ValueError(f"an interval needs figures of shape (seeds,) or (seeds, windows), got {figures.shape}")
    if figures.ndim == 2 and figures.shape[0] == 1:
        figures = figures[0]  # windows of a single seed: they are all that varies
    if figures.ndim == 2 and figures.shape[1] == 1:
        figures = figures[:, 0]
    mean = float(figures.mean())
    if figures.size == 1 or not np.isfinite(figures).all():
        return mean, math.nan, math.nan
    if np.ptp(figures) == 0.0:
        return mean, mean, mean
    tail = expanded_tail(figures.shape[0], confidence)
    if figures.ndim == 1:
        low, high = _flat(figures, n_boot, seed, tail)
    else:
        low, high = _hierarchical(figures, n_boot, seed, tail)
    return mean, low, high


def interval_words(seeds: int, windows: int | None = None) -> str:
    """What the intervals of a table are, in one sentence for its footnote.

    Args:
        seeds: how many were resampled.
        windows: of these seeds in all, where they were resampled within the seeds.
    """
    if seeds < 2 and (windows is None or windows < 2):
        return f"One seed gives no interval; at least {ADVISED_SEEDS} seeds are advised."
    over = f"{seeds} seed{'s' if seeds > 1 else ''}"
    if windows is not None and windows > seeds:
        over += f" and their {windows} windows"
    text = f"95 % intervals: bootstrap over {over}, widened to match Student's t"
    return f"{text}; so few seeds say little, at least {ADVISED_SEEDS} are advised." if seeds < ADVISED_SEEDS else \
        f"{text}."


def within(rates: Any, budget: float) -> bool:
    """Whether the upper 95 % limit of the mean of violation rates is at most `budget` (feasibility before score).

    Args:
        rates: one a seed, shape (seeds,); None or NaN where no online request arrived: nothing was
            served, so nothing was kept, and the answer is no.
        budget: largest share of online requests that may violate.
    """
    mean, _, high = interval(np.array([math.nan if rate is None else rate for rate in rates]))
    return bool((mean if math.isnan(high) else high) <= budget)


def resampled_interval(values: Any, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """The interval that figures of bootstrap resamples give, where the figure is no mean (a crossing, a ratio).

    Args:
        values: the figure of each resample, shape (resamples,).
        n: how many independent figures (seeds) were resampled.
        confidence: share of the interval.

    Returns:
        (low, high); NaN where a single figure gives no spread.
    """
    if n < 2:
        return math.nan, math.nan
    tail = expanded_tail(n, confidence)
    return float(np.quantile(values, tail)), float(np.quantile(values, 1 - tail))


def expanded_tail(n: int, confidence: float = 0.95) -> float:
    """Probability left in each tail of the bootstrap distribution to cover like Student's t with `n` figures."""
    from scipy import stats

    quantile = stats.t.ppf(0.5 + confidence / 2, n - 1) * math.sqrt(n / (n - 1))
    return float(stats.norm.cdf(-quantile))


def _flat(values: np.ndarray, n_boot: int, seed: int, tail: float) -> tuple[float, float]:
    from scipy.stats import bootstrap

    result = bootstrap((values,), np.mean, n_resamples=n_boot, confidence_level=1 - 2 * tail, method="percentile",
                       rng=_generator(seed))
    return float(result.confidence_interval.low), float(result.confidence_interval.high)


def _hierarchical(values: np.ndarray, n_boot: int, seed: int, tail: float) -> tuple[float, float]:
    rng = _generator(seed)
    seeds, windows = values.shape
    means = np.empty(n_boot)
    chunk = max(1, 2_000_000 // values.size)  # bounds the memory of one draw
    for begin in range(0, n_boot, chunk):
        count = min(chunk, n_boot - begin)
        rows = rng.integers(seeds, size=(count, seeds, 1))
        columns = rng.integers(windows, size=(count, seeds, windows))
        means[begin:begin + count] = values[rows, columns].mean(axis=(1, 2))
    return float(np.quantile(means, tail)), float(np.quantile(means, 1 - tail))


def _generator(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=seed))
