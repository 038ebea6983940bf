"""Finding the sustainable offline rate: a grid upwards to the first crossing, then bisection (PROTOCOL; OOCO 5.2)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Limits:
    """When an offline rate holds.

    Attributes:
        violations: largest share of online requests that may violate, mean over seeds (OOCO: 3 %).
        kept_up: smallest share of what arrived offline in the second half that is completed, mean over seeds.
        kept_up_service: the same by reference GPU time, so that hard requests are not left lying; laxer, for it jumps
            with each long request at the window's edge.
    """

    violations: float = 0.03
    kept_up: float = 0.98
    kept_up_service: float = 0.95

    def strain(self, violations: np.ndarray, kept_up: np.ndarray, kept_up_service: np.ndarray) -> np.ndarray:
        """How near figures are to the first limit that they meet: 1 is at the limit."""
        short = (1.0 - kept_up) / max(1e-9, 1.0 - self.kept_up)
        easy = (1.0 - kept_up_service) / max(1e-9, 1.0 - self.kept_up_service)
        return np.maximum(violations / self.violations, np.maximum(short, easy))


@dataclass(frozen=True)
class Point:
    """What one offline rate led to; arrays of shape (seeds,).

    Attributes:
        rate: offline requests per second.
        violations: share of online requests that violate.
        kept_up: completed in the window's second half, over what arrived in it; 1 where nothing arrived.
        kept_up_service: the same by reference GPU time.
        tokens_per_s: offline prompt and output tokens completed per second.
        service_per_s: offline reference GPU-seconds completed per second.
        wasted_per_s: tokens recomputed per second.
        summaries: of each seed the whole summary.
    """

    rate: float
    violations: np.ndarray
    kept_up: np.ndarray
    kept_up_service: np.ndarray
    tokens_per_s: np.ndarray
    service_per_s: np.ndarray
    wasted_per_s: np.ndarray
    summaries: Sequence[Mapping[str, Any]] = ()

    def holds(self, limits: Limits) -> bool:
        """Whether this rate is sustainable: few violations, and a backlog that does not grow."""
        kept_up = self.kept_up.mean() >= limits.kept_up and self.kept_up_service.mean() >= limits.kept_up_service
        return bool(kept_up and self.violations.mean() <= limits.violations)


@dataclass(frozen=True)
class Plan:
    """How to search.

    Attributes:
        first: lowest rate of the grid, in requests per second.
        factor: from one rate of the grid to the next, above 1.
        last: highest rate tried.
        precision: bisection ends when the bracket is this share of its upper end.
        beyond: further rates of the grid taken after the crossing, for the curve.
    """

    first: float = 0.1
    factor: float = 1.5
    last: float = 200.0
    precision: float = 0.04
    beyond: int = 1

    def grid(self) -> list[float]:
        """The rates, ascending, without 0."""
        rates, rate = [], self.first
        while rate <= self.last * (1 + 1e-9):
            rates.append(rate)
            rate *= self.factor
        return rates


@dataclass(frozen=True)
class Crossing:
    """Where a policy stops being sustainable.

    Attributes:
        best: the highest rate found that holds, below the first crossing; None where not even rate 0 does.
        failed: the lowest rate found that does not hold; None where the grid ended before.
        reason: which limit `failed` broke: `violations`, `backlog`, or `none`.
        points: everything evaluated, by rate.
    """

    best: Point | None
    failed: Point | None
    reason: str
    points: list[Point] = field(default_factory=list)


def first_crossing(evaluate: Callable[[float], Point], plan: Plan, limits: Limits) -> Crossing:
    """Searches the largest offline rate below the first that does not hold.

    Violations need not be monotone in the rate, so the grid is walked from below and only the first crossing is
    bisected; rates above it that happen to hold again do not count.
    """
    points: dict[float, Point] = {}

    def try_rate(rate: float) -> Point:
        points[rate] = points[rate] if rate in points else evaluate(rate)
        return points[rate]

    best, failed = None, None
    ahead = [0.0, *plan.grid()]
    while ahead and failed is None:
        point = try_rate(ahead.pop(0))
        best, failed = (point, None) if point.holds(limits) else (best, point)
    if failed is not None and best is not None:
        for rate in ahead[:plan.beyond]:
            try_rate(rate)
        while failed.rate - best.rate > plan.precision * failed.rate and failed.rate > plan.first * plan.precision:
            middle = try_rate(0.5 * (best.rate + failed.rate))
            if middle.holds(limits):
                best = middle
            else:
                failed = middle
    return Crossing(best, failed, _reason(failed, limits), sorted(points.values(), key=lambda point: point.rate))


def _reason(failed: Point | None, limits: Limits) -> str:
    if failed is None:
        return "none"
    return "violations" if failed.violations.mean() > limits.violations else "backlog"


def crossings(points: list[Point], limits: Limits, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where resamples of the seeds cross, from the rates already evaluated: by straight lines between neighbours.

    Args:
        points: evaluated rates, ascending.
        limits: when a rate holds.
        draws: seeds of each resample by place, shape (resamples, seeds).

    Returns:
        (rates, tokens_per_s) at each resample's first crossing, shape (resamples,); one that never crosses has the
        last rate, one that is over from the start 0.
    """
    rates = np.array([point.rate for point in points])
    means = {name: np.stack([getattr(point, name) for point in points])[:, draws].mean(axis=-1)
             for name in ("violations", "kept_up", "kept_up_service", "tokens_per_s")}
    strain = limits.strain(means["violations"], means["kept_up"], means["kept_up_service"])
    found = [_cross(rates, strain[:, place], means["tokens_per_s"][:, place]) for place in range(len(draws))]
    return np.array([rate for rate, _ in found]), np.array([served for _, served in found])


def resamples(seeds: int, most: int = 4000) -> np.ndarray:
    """All ways to draw as many seeds as there are, with replacement; where they are too many, a keyed sample of them.

    Returns:
        Places of seeds, shape (resamples, seeds).
    """
    if seeds**seeds <= most:
        return np.array(list(itertools.product(range(seeds), repeat=seeds)))
    return np.random.Generator(np.random.Philox(key=seeds)).integers(seeds, size=(most, seeds))


def _cross(rates: np.ndarray, strain: np.ndarray, tokens: np.ndarray) -> tuple[float, float]:
    over = np.flatnonzero(strain > 1.0)
    if over.size == 0:
        return float(rates[-1]), float(tokens[-1])
    place = int(over[0])
    if place == 0:
        return 0.0, 0.0
    share = (1.0 - strain[place - 1]) / (strain[place] - strain[place - 1])
    rate = rates[place - 1] + share * (rates[place] - rates[place - 1])
    return float(rate), float(tokens[place - 1] + share * (tokens[place] - tokens[place - 1]))


def largest_factor(violations: Callable[[float], float], limit: float, first: float, precision: float,
                   last: float = 1e4) -> tuple[float, float] | None:
    """Finds the largest load factor whose violations stay within `limit`: doubling upwards, then bisection.

    Args:
        violations: share of violating requests at a factor.
        limit: largest share allowed.
        first: a factor small enough to be surely fine.
        precision: bisection ends when the bracket is this share of its upper end.
        last: largest factor tried.

    Returns:
        (factor, violations there), or None where even `first` is over the limit.
    """
    low, low_share = first, violations(first)
    if low_share > limit:
        return None
    high = 2 * low
    while high < last and (share := violations(high)) <= limit:
        low, low_share, high = high, share, 2 * high
    while high - low > precision * high:
        middle = 0.5 * (low + high)
        share = violations(middle)
        if share <= limit:
            low, low_share = middle, share
        else:
            high = middle
    return low, low_share
