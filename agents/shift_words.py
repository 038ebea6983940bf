"""What is said plainly of a policy under a distribution shift: does it keep the budget, and does it serve enough?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agents.scoring import HEADLINE, VIOLATION_LIMIT, grid, mean_interval, upper_violation_limit, without_online
from agents.tables import bracketed

Records = Sequence[Mapping[str, Any]]


def under_shift(shift: str, records: Records, heuristic: Records, best: str) -> dict[str, Any]:
    """A policy beside the best heuristic on the same windows of a shift.

    Args:
        shift: its name.
        records: of the policy, of one run or of several.
        heuristic: of the best heuristic.
        best: that heuristic's name.

    Returns:
        `holds_budget`; `behind`: less service than the heuristic by an interval clear of zero; `service_minus_best`:
        that difference (mean, low, high); `words`: all of it in one or two sentences.
    """
    upper, rate = upper_violation_limit(records), float(grid(records, "violation_rate").mean())
    holds = upper is not None and upper <= VIOLATION_LIMIT
    gain = mean_interval(grid(records, HEADLINE) - grid(heuristic, HEADLINE))
    behind = gain[2] is not None and gain[2] < 0.0
    words = _budget(shift, rate, upper, holds)
    if not holds and not without_online(heuristic):
        words += f" The best heuristic, {best}, has {grid(heuristic, 'violation_rate').mean():.2%} there."
    if behind:
        words += (f"{' Do not use it there:' if holds else ' And'} it serves less than {best}: "
                  f"{bracketed(*gain, said='+.4f')} reference GPU-s/s.")
    return {"holds_budget": holds, "behind": behind, "service_minus_best": list(gain), "words": words}


def _budget(shift: str, rate: float, upper: float | None, holds: bool) -> str:
    if upper is None:
        return f"Under '{shift}' no online request arrived: nothing can be said of the budget."
    if holds:
        return f"Under '{shift}' it holds the violation budget: {rate:.2%}, upper limit {upper:.2%}."
    if rate > VIOLATION_LIMIT:
        return f"Do not use it under '{shift}': it breaks the violation budget of {VIOLATION_LIMIT:.0%}, at {rate:.2%}."
    return (f"Under '{shift}' it is not shown to hold the violation budget: {rate:.2%}, upper limit {upper:.2%}, "
            f"over {VIOLATION_LIMIT:.0%}.")
