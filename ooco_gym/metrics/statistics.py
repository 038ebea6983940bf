"""Confidence intervals for policies compared on the same seeds: bootstrap over seeds.

With few seeds (three to ten) the plain percentile bootstrap is too narrow. Its percentiles are
therefore widened to match Student's t ("expanded percentile interval", Hesterberg 2015). With three
seeds the interval spans the seeds' range; with thirty the correction is negligible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

RESAMPLES, CONFIDENCE = 10_000, 0.95
ADVISED_SEEDS = 5
LEVEL, SAME = 0.01, 1e-9  # relative differences that are a tie where one seed gives no interval, and a rounding
_CHUNK = 1_000_000  # values drawn at once, to bound memory
Statistic = Callable[..., np.ndarray]


def paired_interval(a: Any, b: Any, n_boot: int = RESAMPLES, seed: int = 0) -> tuple[float, float, float]:
    """Returns the mean of the paired differences `a - b` of two policies on the same seeds, with
    its interval.

    Raises:
        ValueError: the shapes differ, or are empty.
    """
    left, right = np.asarray(a, float), np.asarray(b, float)
    if left.shape != right.shape:
        raise ValueError(f"paired metrics need one shape, got {left.shape} and {right.shape}")
    return interval(left - right, n_boot, seed)


def apart(difference: Sequence[float | None], scale: float) -> bool:
    """Returns whether policies differ, by their difference's (mean, low, high): its interval does not contain 0, or
    without one (NaN, None) it is beyond 1 % of `scale`. Words, ranks and tables all go by it."""
    mean, low, high = (math.nan if one is None else one for one in difference)
    return abs(mean) > (LEVEL if math.isnan(low) else SAME) * scale and not low <= 0.0 <= high


def interval(values: Any, n_boot: int = RESAMPLES, seed: int = 0) -> tuple[float, float, float]:
    """Returns the mean of `values`, shape (seeds,), with its 95 % bootstrap interval: (mean, low,
    high).

    The ends are NaN for a single value. A NaN among the values makes the result NaN, so that a
    missing value is never silently dropped. Equal keys (`seed`) give equal intervals.

    Raises:
        ValueError: no value, or more than one axis.
    """
    array = np.asarray(values, float)
    if array.size == 0 or array.ndim != 1:
        raise ValueError(f"an interval needs metrics of shape (seeds,), got {array.shape}")
    mean = float(array.mean())
    if array.size == 1 or not np.isfinite(array).all():
        return mean, math.nan, math.nan
    if np.ptp(array) == 0.0:
        return mean, mean, mean
    means = resampled([array[None]], lambda drawn: drawn.mean(axis=(-2, -1)), n_boot, seed)
    return mean, *resampled_interval(means, array.size)


def resampled(arrays: Sequence[np.ndarray], statistic: Statistic, n_boot: int = RESAMPLES, seed: int = 0) -> np.ndarray:
    """Returns each resample's statistic, (n_boot, ...): windows are drawn once for all arrays, runs for each."""
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
    """Returns mean, 95 % interval (`low`, `high`) and `values` over seeds; infinite values count as NaN."""
    values = np.asarray(values, float)
    mean, low, high = interval(np.where(np.isfinite(values), values, np.nan))
    return {"mean": mean, "low": low, "high": high, "values": values.tolist()}


def interval_words(seeds: int) -> str:
    """Returns a table's footnote about its intervals over seeds."""
    if seeds < 2:
        return f"One seed gives no interval; at least {ADVISED_SEEDS} seeds are advised."
    text = f"95 % intervals: bootstrap over {seeds} seeds, widened to match Student's t"
    return f"{text}; at least {ADVISED_SEEDS} seeds are advised." if seeds < ADVISED_SEEDS else \
        f"{text}."


def within(rates: Any, budget: float) -> bool:
    """Returns whether the upper 95 % limit of the mean of violation rates, one per seed, is at most
    `budget`.

    A None or NaN, from a run without online requests, makes the answer False.
    """
    mean, _, high = interval(np.array([math.nan if rate is None else rate for rate in rates]))
    return bool((mean if math.isnan(high) else high) <= budget)


def verdict(least: Any, most: Any, budget: float) -> bool | None:
    """Returns whether violation rates, one per seed, are `within` a budget; None if undecided
    requests could change it.

    In `least` no undecided request violates, in `most` all do.
    """
    if within(most, budget):
        return True
    return None if within(least, budget) else False


def resampled_interval(values: Any, n: int) -> tuple[float, float]:
    """Returns the 95 % interval (low, high) from bootstrap resamples of a statistic other than the
    mean.

    `n` is the number of independent values (seeds); a single one gives NaN.
    """
    if n < 2:
        return math.nan, math.nan
    tail = expanded_tail(n)
    return float(np.quantile(values, tail)), float(np.quantile(values, 1 - tail))


def resampled_estimate(values: Any, n: int) -> tuple[float, float, float]:
    """Returns the median of resamples of `n` seeds, with their interval: (estimate, low, high)."""
    return float(np.median(values)), *resampled_interval(values, n)


@cache
def expanded_tail(n: int) -> float:
    """Returns the bootstrap's tail probability that matches Student's t with `n` values: the quantile of t bisects the
    sums 26.7.3 and 26.7.4 of Abramowitz and Stegun, as scipy.special takes half a second to load."""
    low, high = 0.0, math.pi / 2
    for _ in range(64):
        angle = (low + high) / 2
        term, total = math.sin(angle) * (1.0 if n % 2 else math.cos(angle)), 0.0
        for k in range(3 - n % 2, n, 2):
            total += term
            term *= math.cos(angle) ** 2 * (k - 1) / k
        within_t = total if n % 2 else (angle + total) * 2 / math.pi
        low, high = (angle, high) if within_t < CONFIDENCE else (low, angle)
    return float(f"{math.erfc(math.tan(low) * math.sqrt(n / 2)) / 2:.11g}")  # the same on every processor
