"""Searches: the largest load, or the fewest instances, that hold.

`walked` goes up to the first value that does not hold, `bisected` halves the bracket; all searches are made of them.
`first_crossing` so finds the highest sustainable offline rate (OOCO 5.2), with every seed at each rate. With many
seeds, `crossing_near` lets a few of them find the neighbourhood, and simulates all only around it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ooco_gym.metrics.statistics import expanded_tail
from ooco_gym.protocol import KEPT_UP, KEPT_UP_SERVICE, VIOLATION_BUDGET
from ooco_gym.report import percent

MOST_RATES = 24
MOST_RESAMPLES = 4000
EDGE = 1.25  # factor to a further rate, if the interval reaches beyond the outermost one
EDGES = 3    # most such rates on one side


@dataclass(frozen=True)
class Limits:
    """The limits within which an offline rate is sustainable.

    Attributes:
        violations: largest share of online requests that may violate, mean over seeds (OOCO: 3 %).
        kept_up: smallest share of offline arrivals in the window's second half that is done in it, mean over seeds.
        kept_up_service: the same for reference GPU time, begun in it, so that hard requests are not neglected.
    """

    violations: float = VIOLATION_BUDGET
    kept_up: float = KEPT_UP
    kept_up_service: float = KEPT_UP_SERVICE

    def words(self) -> str:
        late = f"at most {percent(self.violations)} of the online requests violate their SLOs"
        kept = [f"{percent(share, 0)} {of}" for share, of in (
            (self.kept_up, "of the requests are completed in it (those in progress at its edges count by their "
                           "computed share)"),
            (self.kept_up_service, "of their reference GPU time is started in it")) if share > 0]
        if not kept:
            return f"A rate holds if {late}, even if the offline backlog grows."
        return (f"A rate holds if {late} and, of the offline work that arrives in the window's second half, at least "
                f"{', and at least '.join(kept)}.")

    def strain(self, violations: Any, kept_up: Any, kept_up_service: Any) -> Any:
        """Returns the largest ratio of a value to its limit; 1 is at the limit."""
        short = (1.0 - kept_up) / max(1e-9, 1.0 - self.kept_up)
        easy = (1.0 - kept_up_service) / max(1e-9, 1.0 - self.kept_up_service)
        return np.maximum(violations / self.violations, np.maximum(short, easy))


@dataclass(frozen=True)
class Point:
    """The results at one offline rate; arrays of shape (seeds,).

    Attributes:
        rate: offline requests per second.
        violations: share of online requests that violate.
        kept_up: done in the window's second half, over arrivals in it; 1 if nothing arrived.
        kept_up_service: begun in it, over arrivals, by reference GPU time.
        total_tokens_per_s: offline prompt and output tokens completed per second.
        summaries: each seed's summary.
    """

    rate: float
    violations: np.ndarray
    kept_up: np.ndarray
    kept_up_service: np.ndarray
    total_tokens_per_s: np.ndarray
    summaries: Sequence[Mapping[str, Any]] = ()

    def holds(self, limits: Limits) -> bool:
        """Returns whether this rate is sustainable: few violations, and a backlog that does not grow."""
        kept_up = self.kept_up.mean() >= limits.kept_up and self.kept_up_service.mean() >= limits.kept_up_service
        return bool(kept_up and self.violations.mean() <= limits.violations)


@dataclass(frozen=True)
class SearchPlan:
    """Parameters of a search for the highest sustainable rate.

    Attributes:
        first: lowest rate of the grid, in requests per second.
        factor: ratio between successive grid rates, above 1.
        last: highest rate tried.
        precision: bisection ends when the bracket is this share of its upper end.
        screen: number of first seeds that walk the grid before all are simulated around their crossing; 0: all walk.
    """

    first: float = 0.1
    factor: float = 1.5
    last: float = 200.0
    precision: float = 0.04
    screen: int = 0

    def grid(self) -> Iterable[float]:
        """Yields the rates, ascending, from 0."""
        yield 0.0
        rate = self.first
        while rate <= self.last * (1 + 1e-9):
            yield rate
            rate *= self.factor


@dataclass(frozen=True)
class Crossing:
    """What a policy sustains: the results at the rates of a search, ascending, between two of which it exceeds the
    limits."""

    points: Sequence[Point]
    limits: Limits

    @property
    def seeds(self) -> int:
        return len(self.points[0].violations)

    @cached_property
    def failed(self) -> Point | None:
        """The lowest unsustainable rate; None if the search ended before."""
        return next((point for point in self.points if not point.holds(self.limits)), None)

    @property
    def best(self) -> Point | None:
        """The rate before the lowest unsustainable one; None if not even rate 0 is sustainable."""
        held = list(itertools.takewhile(lambda point: point.holds(self.limits), self.points))
        return held[-1] if held else None

    def of(self, draws: np.ndarray) -> np.ndarray:
        """Returns where samples of the seeds reach the limits, interpolated between evaluated rates.

        Args:
            draws: seeds of each sample by index, shape (samples, seeds).

        Returns:
            Rates and total tokens per second at each sample's first crossing, shape (2, samples); those of the last
            rate if it never crosses, 0 if rate 0 already exceeds the limits.
        """
        rates, means = np.array([point.rate for point in self.points]), []
        for name in ("violations", "kept_up", "kept_up_service", "total_tokens_per_s"):
            means.append(np.stack([getattr(point, name) for point in self.points])[:, draws].mean(axis=-1))
        strain, tokens = self.limits.strain(*means[:3]), means[3]
        return np.array([_cross(rates, strain[:, index], tokens[:, index]) for index in range(len(draws))]).T

    @cached_property
    def resampled(self) -> np.ndarray:
        """Rates, and offline prompt and output tokens per second, that resamples of the seeds sustain, shape (2,
        resamples); the same resamples for every policy. Their medians are `rate` and `total_tokens_per_s`."""
        return self.of(resamples(self.seeds))

    @property
    def rate(self) -> float:
        """The sustainable offline rate, requests per second; 0 if there is none."""
        return float(np.median(self.resampled[0]))

    @property
    def total_tokens_per_s(self) -> float:
        """Offline throughput at the sustainable rate."""
        return float(np.median(self.resampled[1]))


def first_crossing(evaluate: Callable[[float], Point], plan: SearchPlan, limits: Limits) -> Crossing:
    """Searches for the largest offline rate below the first unsustainable one.

    Violations need not be monotone in the rate, so the grid is walked from below and only the first crossing is
    bisected; sustainable rates above it are ignored.
    """
    points: list[Point] = []

    def holds(rate: float) -> bool:
        points.append(evaluate(rate))
        return points[-1].holds(limits)

    best, failed = walked(holds, plan.grid())
    if best is not None and failed is not None:
        bisected(holds, best, failed, lambda low, high: high - low > plan.precision * high
                 and high > plan.first * plan.precision)
    return Crossing(sorted(points, key=lambda point: point.rate), limits)


def resamples(seeds: int) -> np.ndarray:
    """Returns all resamples of the seeds with replacement, by index, shape (resamples, seeds); a keyed sample of them
    if there are more than `MOST_RESAMPLES`."""
    if seeds**seeds <= MOST_RESAMPLES:
        return np.array(list(itertools.product(range(seeds), repeat=seeds)))
    return np.random.Generator(np.random.Philox(key=seeds)).integers(seeds, size=(MOST_RESAMPLES, seeds))


def _cross(rates: np.ndarray, strain: np.ndarray, tokens: np.ndarray) -> tuple[float, float]:
    over = np.flatnonzero(strain > 1.0)
    if over.size == 0:
        return float(rates[-1]), float(tokens[-1])
    index = int(over[0])
    if index == 0:
        return 0.0, 0.0
    share = (1.0 - strain[index - 1]) / (strain[index] - strain[index - 1])
    rate = rates[index - 1] + share * (rates[index] - rates[index - 1])
    return float(rate), float(tokens[index - 1] + share * (tokens[index] - tokens[index - 1]))


def walked(holds: Callable[[Any], bool], values: Iterable[Any]) -> tuple[Any, Any]:
    """Returns the last of ascending values before the first that does not hold, and that one; None for missing ones."""
    best = None
    for value in values:
        if not holds(value):
            return best, value
        best = value
    return best, None


def bisected(holds: Callable[[Any], bool], best: Any, failed: Any, wide: Callable[[Any, Any], bool]) -> tuple[Any, Any]:
    """Returns a bracket from `best`, which holds, to `failed`, halved while it is `wide`; of whole numbers the middle
    is rounded down."""
    while wide(best, failed):
        middle = (best + failed) // 2 if isinstance(best, int) else 0.5 * (best + failed)
        best, failed = (middle, failed) if holds(middle) else (best, middle)
    return best, failed


def crossing_near(evaluate: Callable[[float], Point], near: float, plan: SearchPlan, limits: Limits) -> Crossing:
    """Searches for the first crossing around the rate `near`, with the plan's precision.

    Args:
        evaluate: returns the results of an offline rate on all seeds.
        near: a rate that a few seeds, or other ones, sustained; 0: unknown.
        plan: the search; its grid is not used.
        limits: of a sustainable rate.
    """
    found = Crossing([evaluate(0.0)], limits)
    rate = near or plan.first if found.best else None
    while rate is not None and len(found.points) < MOST_RATES:
        found = Crossing(sorted([*found.points, evaluate(rate)], key=lambda point: point.rate), limits)
        rate = next_rate(found, plan)
    return found


def next_rate(found: Crossing, plan: SearchPlan) -> float | None:
    """Returns the rate to evaluate next, or None if the crossing and its interval lie between evaluated rates."""
    best, failed, rates = found.best, found.failed, [point.rate for point in found.points]
    lowest, highest = rates[1], rates[-1]
    stride = min(plan.factor, (1.0 - plan.precision) ** -min(64, 2 ** (len(rates) - 2)))  # strides grow
    if best is None:
        return None
    if failed is None:
        return highest * stride if highest < plan.last else None
    if best.rate == 0.0:
        return failed.rate / stride if failed.rate > plan.first * plan.precision else None
    if failed.rate - best.rate > plan.precision * failed.rate * (1 + 1e-9):
        return 0.5 * (best.rate + failed.rate)
    # Further rates are evaluated while the crossing's interval reaches beyond the outermost ones.
    tail = expanded_tail(found.seeds) if found.seeds > 1 else 1.0
    sampled = found.resampled[0]
    above, below = np.mean(sampled >= highest) > tail, np.mean(sampled < lowest) > tail
    if above and highest < plan.last and sum(rate > failed.rate for rate in rates) < EDGES:
        return highest * EDGE
    if below and sum(0 < rate < best.rate for rate in rates) < EDGES:
        return lowest / EDGE
    return None
