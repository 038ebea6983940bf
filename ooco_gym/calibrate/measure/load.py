"""The requests that the real engine serves for comparison, and how fast they come."""

from __future__ import annotations

from typing import Any

import numpy as np

from ooco_gym.errors import UserError

Requests = list[list[float]]
"""`[arrival_s, prompt_tokens, output_tokens]` of each, sorted by arrival."""


def lengths(plan: dict[str, Any], count: int, longest: int, draws: np.random.Generator) -> np.ndarray:
    """Prompt and output lengths: lognormal, clipped so that a request fits the engine.

    Args:
        plan: `prompt_tokens` and `output_tokens`, each with `median` and `sigma`.
        count: how many.
        longest: most tokens of one request.
        draws: random numbers.

    Returns:
        int64[count, 2].
    """
    columns = []
    for key in ("prompt_tokens", "output_tokens"):
        columns.append(np.rint(draws.lognormal(np.log(plan[key]["median"]), plan[key]["sigma"], count)))
    prompt = np.clip(columns[0], 1, longest // 2)
    output = np.clip(columns[1], 1, longest - prompt - 1)
    return np.stack([prompt, output], axis=-1).astype(np.int64)


def burst(plan: dict[str, Any], longest: int, draws: np.random.Generator) -> Requests:
    """All at once, to see how many the engine completes in a second."""
    return [[0.0, int(p), int(o)] for p, o in lengths(plan, plan["burst"], longest, draws)]


def capacity_per_s(records: list[dict[str, Any]]) -> float:
    """Requests that a full engine completes in a second: the middle half of a burst, by the time of completion."""
    ends = np.sort([record["last_token_s"] for record in records])
    first, last = len(ends) // 4, 3 * len(ends) // 4
    if last - first < 1 or ends[last] <= ends[first]:
        raise UserError(f"engine.serve.burst={len(records)} requests are too few to measure a capacity; raise it")
    return float((last - first) / (ends[last] - ends[first]))


def poisson(plan: dict[str, Any], rate_per_s: float, longest: int, draws: np.random.Generator) -> Requests:
    """Requests that come at random at `rate_per_s` for `duration_s`; at most `max_requests` of them."""
    count = min(int(plan["max_requests"]), max(1, int(draws.poisson(rate_per_s * plan["duration_s"]))))
    arrivals = np.cumsum(draws.exponential(1.0 / rate_per_s, count))
    return [[float(arrival), int(p), int(o)]
            for arrival, (p, o) in zip(arrivals, lengths(plan, count, longest, draws), strict=True)]


def check(plan: dict[str, Any]) -> None:
    """Checks a plan before an engine is started for it.

    Raises:
        UserError: a load, a duration, a count or a length that is not positive.
    """
    for key in ("prompt_tokens", "output_tokens"):
        median, sigma = plan[key]["median"], plan[key]["sigma"]
        if not (median >= 1 and sigma >= 0):
            raise UserError(f"engine.serve.{key}: median={median} must be at least 1 and sigma={sigma} at least 0")
    for name, load in (plan["loads"] or {}).items():
        if not load > 0:
            raise UserError(f"engine.serve.loads.{name}={load} must be positive: a share of the measured capacity")
    for key in ("duration_s", "max_requests", "burst"):
        if not plan[key] > 0:
            raise UserError(f"engine.serve.{key}={plan[key]} must be positive")
