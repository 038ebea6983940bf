"""Searches: the largest load, or the fewest instances, that hold.

`walked` goes up to the first value that does not hold, `bisected` halves the bracket; all searches
are made of them. `first_crossing` so finds the highest sustainable offline rate (OOCO 5.2), with
every seed at each rate. With many seeds, `crossing_near` lets a few of them find the neighbourhood,
and simulates all only around it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ooco_gym.metrics.statistics import expanded_tail
from ooco_gym.protocol import KEPT_UP, KEPT_UP_SERVICE, VIOLATION_BUDGET
from ooco_gym.report import percent

MOST_RATES = 24
MOST_RESAMPLES = 4000
MOST_FACTOR = 1e4  # of a load
EDGE = 1.25  # factor to a further rate, if the interval reaches beyond the outermost one
EDGES = 3    # most such rates on one side


@dataclass(frozen=True)
class Limits:
    """The limits within which an offline rate is sustainable.

    Attributes:
        violations: largest share of online requests that may violate, mean over seeds (OOCO: 3 %).
        kept_up: smallest share of offline arrivals in the window's second half that is done in it,
            mean over seeds.
        kept_up_service: the same for reference GPU time, begun in it, so that hard requests are not
            neglected.
    """

    violations: float = VIOLATION_BUDGET
    kept_up: float = KEPT_UP
    kept_up_service: float = KEPT_UP_SERVICE

    def words(self) -> str:
        """Returns the limits in a sentence."""
        late = f"at most {percent(self.violations)} of the online requests violate their SLOs"
        kept = [f"{percent(share, 0)} {of}" for share, of in (
            (self.kept_up, "of the requests are completed in it (those in progress at its edges count by their "
                           "computed share)"),
            (self.kept_up_service, "of their reference GPU time is started in it")) if share > 0]
        if not kept:
            return f"A rate holds if {late}, even if the offline backlog grows."
        return (f"A rate holds if {late} and, of the offline work that arrives in the window's second half, at least "
                f"{', and at least '.join(kept)}.")

    def strain(self, violations: np.ndarray, kept_up: np.ndarray, kept_up_service: np.ndarray) -> np.ndarray:
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
        service_per_s: offline reference GPU-seconds completed per second.
        wasted_per_s: tokens recomputed per second.
        summaries: each seed's summary.
    """

    rate: float
    violations: np.ndarray
    kept_up: np.ndarray
    kept_up_service: np.ndarray
    total_tokens_per_s: np.ndarray
    service_per_s: np.ndarray
    wasted_per_s: np.ndarray
    summaries: Sequence[Mapping[str, Any]] = ()

    def holds(self, limits: Limits) -> bool:
        """Returns whether this rate is sustainable: few violations, and a backlog that does not grow."""
        kept_up = self.kept_up.mean() >= limits.kept_up and self.kept_up_service.mean() >= limits.kept_up_service
        return bool(kept_up and self.violations.mean() <= limits.violations)


@dataclass(frozen=True)
class Plan:
    """Parameters of a search for the highest sustainable rate.

    Attributes:
        first: lowest rate of the grid, in requests per second.
        factor: ratio between successive grid rates, above 1.
        last: highest rate tried.
        precision: bisection ends when the bracket is this share of its upper end.
        screen: number of first seeds that walk the grid before all are simulated around their
            crossing; 0: all seeds walk.
    """

    first: float = 0.1
    factor: float = 1.5
    last: float = 200.0
    precision: float = 0.04
    screen: int = 0

    def grid(self) -> list[float]:
        """Returns the rates, ascending, without 0."""
        rates, rate = [], self.first
        while rate <= self.last * (1 + 1e-9):
            rates.append(rate)
            rate *= self.factor
        return rates


@dataclass(frozen=True)
class Crossing:
    """The rates between which a policy stops being sustainable.

    Attributes:
        best: the highest sustainable rate found below the first crossing; None if not even rate 0
            is sustainable.
        failed: the lowest unsustainable rate found; None if the grid ended before.
        reason: the limit that `failed` exceeds: `violations`, `backlog`, or `none`.
        points: all rates evaluated, ascending.
    """

    best: Point | None
    failed: Point | None
    reason: str
    points: list[Point] = field(default_factory=list)


def first_crossing(evaluate: Callable[[float], Point], plan: Plan, limits: Limits) -> Crossing:
    """Searches for the largest offline rate below the first unsustainable one.

    Violations need not be monotone in the rate, so the grid is walked from below and only the first
    crossing is bisected; sustainable rates above it are ignored.
    """
    points: dict[float | None, Point] = {}

    def holds(rate: float) -> bool:
        points[rate] = points[rate] if rate in points else evaluate(rate)
        return points[rate].holds(limits)

    best, failed = walked(holds, [0.0, *plan.grid()])
    if best is not None and failed is not None:
        best, failed = bisected(holds, best, failed, lambda low, high: high - low > plan.precision * high
                                and high > plan.first * plan.precision)
    best, failed = points.get(best), points.get(failed)
    return Crossing(best, failed, reason_of(failed, limits), sorted(points.values(), key=lambda point: point.rate))


def reason_of(failed: Point | None, limits: Limits) -> str:
    """Returns the limit that a rate exceeds."""
    if failed is None:
        return "none"
    return "violations" if failed.violations.mean() > limits.violations else "backlog"


def crossings(points: list[Point], limits: Limits, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rates at which bootstrap samples of the seeds reach the limits, interpolated
    between evaluated rates.

    Args:
        points: evaluated rates, ascending.
        limits: of a sustainable rate.
        draws: seeds of each resample by index, shape (resamples, seeds).

    Returns:
        (rates, total_tokens_per_s) at each resample's first crossing, shape (resamples,); the last
        rate if it never crosses, 0 if rate 0 already exceeds the limits.
    """
    rates = np.array([point.rate for point in points])
    means = {}
    for name in ("violations", "kept_up", "kept_up_service", "total_tokens_per_s"):
        values = np.stack([getattr(point, name) for point in points])
        means[name] = values[:, draws].mean(axis=-1)
    strain = limits.strain(means["violations"], means["kept_up"], means["kept_up_service"])
    found = [_cross(rates, strain[:, index], means["total_tokens_per_s"][:, index]) for index in range(len(draws))]
    return np.array([rate for rate, _ in found]), np.array([served for _, served in found])


def resamples(seeds: int) -> np.ndarray:
    """Returns all resamples of the seeds with replacement; a keyed sample of them if there are more
    than `MOST_RESAMPLES`.

    Returns:
        Indices of seeds, shape (resamples, seeds).
    """
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
    """Returns a bracket from `best`, which holds, to `failed`, halved while it is `wide`; of whole
    numbers the middle is rounded down."""
    while wide(best, failed):
        middle = (best + failed) // 2 if isinstance(best, int) else 0.5 * (best + failed)
        best, failed = (middle, failed) if holds(middle) else (best, middle)
    return best, failed


def largest_factor(violations: Callable[[float], float], limit: float, first: float, precision: float
                   ) -> tuple[float, float] | None:
    """Returns the largest load factor with violations within `limit`: doubling upwards, then bisection.

    Args:
        violations: share of violating requests at a factor.
        limit: largest share allowed.
        first: a factor that is surely small enough.
        precision: bisection ends when the bracket is this share of its upper end.

    Returns:
        (factor, its violations), or None if even `first` exceeds the limit.
    """
    shares: dict[float, float] = {}

    def holds(factor: float) -> bool:
        shares[factor] = violations(factor)
        return shares[factor] <= limit

    doubled = itertools.takewhile(lambda factor: factor < MOST_FACTOR, (first * 2.0**n for n in itertools.count()))
    best, failed = walked(holds, doubled)
    if best is None:
        return None
    failed = 2 * best if failed is None else failed
    best, _ = bisected(holds, best, failed, lambda low, high: high - low > precision * high)
    return best, shares[best]


def crossing_near(evaluate: Callable[[float], Point], near: float, plan: Plan, limits: Limits) -> Crossing:
    """Searches for the first crossing around the rate `near`, with the plan's precision.

    Args:
        evaluate: returns the results of an offline rate on all seeds.
        near: a rate that a few seeds, or other ones, sustained; 0: unknown.
        plan: the search; its grid is not used.
        limits: of a sustainable rate.
    """
    points = [evaluate(0.0)]
    rate = (near or plan.first) if points[0].holds(limits) else None
    while rate is not None and len(points) < MOST_RATES:
        points = sorted([*points, evaluate(rate)], key=lambda point: point.rate)
        rate = next_rate(points, plan, limits)
    best, failed = bracket(points, limits)
    return Crossing(best, failed, reason_of(failed, limits), points)


def bracket(points: Sequence[Point], limits: Limits) -> tuple[Point | None, Point | None]:
    """Returns the rate before the lowest unsustainable one, and that one; None for missing ones.

    Args:
        points: evaluated rates, ascending.
        limits: of a sustainable rate.
    """
    at = next((index for index, point in enumerate(points) if not point.holds(limits)), len(points))
    return (points[at - 1] if at else None), (points[at] if at < len(points) else None)


def next_rate(points: Sequence[Point], plan: Plan, limits: Limits) -> float | None:
    """Returns the rate to evaluate next, or None if the crossing and its interval lie between evaluated rates."""
    best, failed = bracket(points, limits)
    lowest, highest = points[1].rate, points[-1].rate
    stride = min(plan.factor, (1.0 - plan.precision) ** -min(64, 2 ** (len(points) - 2)))  # strides grow
    if best is None:
        return None
    if failed is None:
        return highest * stride if highest < plan.last else None
    if best.rate == 0.0:
        return failed.rate / stride if failed.rate > plan.first * plan.precision else None
    if failed.rate - best.rate > plan.precision * failed.rate * (1 + 1e-9):
        return 0.5 * (best.rate + failed.rate)
    below, above = _beyond(points, limits)
    if above and highest < plan.last and sum(point.rate > failed.rate for point in points) < EDGES:
        return highest * EDGE
    if below and sum(0 < point.rate < best.rate for point in points) < EDGES:
        return lowest / EDGE
    return None


def _beyond(points: Sequence[Point], limits: Limits) -> tuple[bool, bool]:
    """Returns whether the crossing's interval reaches below the lowest rate above 0, and above the highest."""
    seeds = len(points[0].violations)
    if seeds < 2:
        return False, False
    rates, _ = crossings(list(points), limits, resamples(seeds))
    tail = expanded_tail(seeds)
    return bool(np.mean(rates < points[1].rate) > tail), bool(np.mean(rates >= points[-1].rate) > tail)
