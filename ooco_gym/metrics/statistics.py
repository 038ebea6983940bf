"""Confidence intervals for policies compared on the same seeds: bootstrap over seeds.

Seeds are few (three to ten), and the plain percentile bootstrap is too narrow then. Its percentiles are therefore moved
outwards so that they match Student's t at that number of seeds ("expanded percentile interval", Hesterberg 2015); with
three seeds the interval spans the seeds themselves, with thirty the correction has all but gone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

RESAMPLES, CONFIDENCE = 10_000, 0.95
ADVISED_SEEDS = 5
_CHUNK = 1_000_000  # figures of one draw, which bounds its memory
Statistic = Callable[..., np.ndarray]


def paired_interval(a: Any, b: Any, n_boot: int = RESAMPLES, seed: int = 0) -> tuple[float, float, float]:
    """Mean of the paired differences `a - b`, figures of two policies on the same seeds, with its interval.

    Raises:
        ValueError: the shapes differ, or hold nothing.
    """
    left, right = np.asarray(a, float), np.asarray(b, float)
    if left.shape != right.shape:
        raise ValueError(f"paired figures need one shape, got {left.shape} and {right.shape}")
    return interval(left - right, n_boot, seed)


def interval(values: Any, n_boot: int = RESAMPLES, seed: int = 0) -> tuple[float, float, float]:
    """Mean of `values`, shape (seeds,), with its 95 % bootstrap interval: (mean, low, high), the ends NaN where one
    figure alone gives no spread. A NaN among the figures makes the result NaN: a figure that is missing is never
    silently left out. Equal keys (`seed`) give equal intervals.

    Raises:
        ValueError: no value, or more than one axis.
    """
    figures = np.asarray(values, float)
    if figures.size == 0 or figures.ndim != 1:
        raise ValueError(f"an interval needs figures of shape (seeds,), got {figures.shape}")
    mean = float(figures.mean())
    if figures.size == 1 or not np.isfinite(figures).all():
        return mean, math.nan, math.nan
    if np.ptp(figures) == 0.0:
        return mean, mean, mean
    means = resampled([figures[None]], lambda drawn: drawn.mean(axis=(-2, -1)), n_boot, seed)
    return mean, *resampled_interval(means, figures.size)


def resampled(arrays: Sequence[np.ndarray], statistic: Statistic, n_boot: int = RESAMPLES, seed: int = 0) -> np.ndarray:
    """The statistic of each resample, (n_boot, ...): windows are drawn once for all arrays, runs for each."""
    random = np.random.Generator(np.random.Philox(key=seed))
    windows = arrays[0].shape[1]
    chunk = max(1, _CHUNK // max(array.size for array in arrays))
    found = []
    for begin in range(0, n_boot, chunk):
        count = min(chunk, n_boot - begin)
        columns = random.integers(windows, size=(count, 1, windows))
        rows = [random.integers(len(array), size=(count, len(array), 1)) for array in arrays]
        found.append(statistic(*(array[row, columns] for array, row in zip(arrays, rows, strict=True))))
    return np.concatenate(found)


def spread(values: Any) -> dict[str, Any]:
    """Mean of figures over seeds, its 95 % interval (`low`, `high`), and the `values`; an infinite one is NaN."""
    values = np.asarray(values, float)
    mean, low, high = interval(np.where(np.isfinite(values), values, np.nan))
    return {"mean": mean, "low": low, "high": high, "values": values.tolist()}


def interval_words(seeds: int) -> str:
    """Footnote of a table that says what its intervals are, resampled over seeds."""
    if seeds < 2:
        return f"One seed gives no interval; at least {ADVISED_SEEDS} seeds are advised."
    text = f"95 % intervals: bootstrap over {seeds} seeds, widened to match Student's t"
    return f"{text}; so few seeds say little, at least {ADVISED_SEEDS} are advised." if seeds < ADVISED_SEEDS else \
        f"{text}."


def within(rates: Any, budget: float) -> bool:
    """Whether the upper 95 % limit of the mean of violation rates, one a seed, is at most `budget` (feasibility before
    score). None or NaN where no online request arrived: nothing was served, so nothing was kept, and the answer is
    no."""
    mean, _, high = interval(np.array([math.nan if rate is None else rate for rate in rates]))
    return bool((mean if math.isnan(high) else high) <= budget)


def verdict(least: Any, most: Any, budget: float) -> bool | None:
    """Whether violation rates, one a seed, are `within` a budget: None where requests that the end of a run left
    undecided could turn the answer, for they are late in none of `least` and all late in `most`."""
    if within(most, budget):
        return True
    return None if within(least, budget) else False


def resampled_interval(values: Any, n: int) -> tuple[float, float]:
    """The 95 % interval (low, high) that a figure of bootstrap resamples gives, where it is no mean (a crossing, a
    ratio), of `n` independent figures (seeds); NaN where a single one gives no spread."""
    if n < 2:
        return math.nan, math.nan
    tail = expanded_tail(n)
    return float(np.quantile(values, tail)), float(np.quantile(values, 1 - tail))


def resampled_estimate(values: Any, n: int) -> tuple[float, float, float]:
    """What resamples of `n` seeds say of a figure that is no mean: their median, and the interval of the same
    resamples, within which the median lies whatever they are: (estimate, low, high)."""
    return float(np.median(values)), *resampled_interval(values, n)


def expanded_tail(n: int) -> float:
    """Probability left in each tail of the bootstrap distribution to cover like Student's t with `n` figures."""
    from scipy.special import ndtr, stdtrit  # scipy.stats takes four times as long to load

    return float(ndtr(-stdtrit(n - 1, 0.5 + CONFIDENCE / 2) * math.sqrt(n / (n - 1))))
