"""The crossing searched outwards from a rate near it: few simulations where many seeds are paired.

A grid from below (`crossing.first_crossing`) simulates every seed at rates that a few seeds already decide. Here those
few find the neighbourhood, and all seeds are simulated at the two rates on either side of their crossing, with further
ones where the interval would otherwise reach beyond what was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from experiments.common.crossing import Crossing, Limits, Plan, Point, crossings, reason_of, resamples
from ooco_gym.metrics.statistics import expanded_tail

MOST_RATES = 24
EDGE = 1.25  # from the outermost rate to the next, where the interval reaches beyond it
EDGES = 3    # such rates on one side


def crossing_near(evaluate: Callable[[float], Point], near: float, plan: Plan, limits: Limits) -> Crossing:
    """The first crossing among rates around `near`, bracketed as narrowly as the plan says.

    Args:
        evaluate: what an offline rate leads to, on all seeds.
        near: a rate that a few seeds, or other ones, sustained; 0: none is known.
        plan: the search; its grid is not walked.
        limits: when a rate holds.
    """
    points = [evaluate(0.0)]
    rate = (near or plan.first) if points[0].holds(limits) else None
    while rate is not None and len(points) < MOST_RATES:
        points = sorted([*points, evaluate(rate)], key=lambda point: point.rate)
        rate = next_rate(points, plan, limits)
    best, failed = bracket(points, limits)
    return Crossing(best, failed, reason_of(failed, limits), points)


def bracket(points: Sequence[Point], limits: Limits) -> tuple[Point | None, Point | None]:
    """The lowest rate that does not hold, and the one before it; None where there is none.

    Args:
        points: evaluated rates, ascending.
        limits: when a rate holds.
    """
    at = next((index for index, point in enumerate(points) if not point.holds(limits)), len(points))
    return (points[at - 1] if at else None), (points[at] if at < len(points) else None)


def next_rate(points: Sequence[Point], plan: Plan, limits: Limits) -> float | None:
    """The rate to evaluate next, or None where the crossing and its interval lie within what was evaluated."""
    best, failed = bracket(points, limits)
    lowest, highest = points[1].rate, points[-1].rate
    stride = min(plan.factor, (1.0 - plan.precision) ** -min(64, 2 ** (len(points) - 2)))  # ever wider
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
    """Whether the interval of the crossing reaches below the lowest rate with offline work, or above the highest."""
    seeds = len(points[0].violations)
    if seeds < 2:
        return False, False
    rates, _ = crossings(list(points), limits, resamples(seeds))
    tail = expanded_tail(seeds)
    return bool(np.mean(rates < points[1].rate) > tail), bool(np.mean(rates >= points[-1].rate) > tail)
