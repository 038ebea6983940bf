"""What a paper leaves open is tuned for its policy, on validation seeds and with a stated budget (PROTOCOL)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.search import Limits, Plan, Point, first_crossing
from ooco_gym.policy import spelled


@dataclass(frozen=True)
class Tuning:
    """How a policy was tuned.

    Attributes:
        policy: the winner, `name:param=value,…`.
        candidates: everything that was tried, the default first.
        rate: highest offline rate that the winner held on the validation seeds.
        default_rate: the same for the default.
    """

    policy: str
    candidates: tuple[str, ...]
    rate: float
    default_rate: float


def candidates_of(name: str, settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Settings of a policy's parameters as policy names."""
    return [spelled(name, values) for values in settings]


def tune(default: str, others: Sequence[str], evaluate: Callable[[str, float], Point], plan: Plan, limits: Limits,
         step: float = 1.08, most_steps: int = 12) -> Tuning:
    """Races candidates: the default's crossing is searched, then the rate raised while any candidate holds.

    Args:
        default: the policy as it ships.
        others: candidates against it.
        evaluate: what a policy does at an offline rate, on the validation seeds.
        plan: the search for the default's crossing.
        limits: when a rate holds.
        step: factor of the rate from one heat of the race to the next.
        most_steps: heats at most.

    Returns:
        The candidate that held the highest rate; among equals the one with the fewest violations there.
    """
    start = first_crossing(lambda rate: evaluate(default, rate), plan, limits)
    default_rate = start.best.rate if start.best is not None else 0.0
    rate = max(default_rate, plan.first)
    field: list[str] = [default, *others]
    winner, best_rate = default, default_rate
    for _ in range(most_steps):
        heat = {policy: evaluate(policy, rate) for policy in field}
        held = [policy for policy in field if heat[policy].holds(limits)]
        if not held:
            break
        winner = min(held, key=lambda policy: float(heat[policy].violations.mean()))
        best_rate, field, rate = rate, held, rate * step
    return Tuning(winner, (default, *others), best_rate, default_rate)
