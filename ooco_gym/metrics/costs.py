"""Cost of a run's chips."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ooco_gym.schema import number

HOUR_S, MILLION = 3600.0, 1e6


def chips_of(deployments: Sequence[tuple[str, Any]]) -> int:
    """Returns the number of chips of a resolved scenario's instances."""
    return sum(one.tp * one.pp for _, one in deployments)


def price_of(options: Mapping[str, Any]) -> float | None:
    """Returns a command's price of a chip-hour, or None.

    Raises:
        UserError: it is no number of at least 0.
    """
    return number("price_per_chip_hour", options["price_per_chip_hour"], 0, null="no price")


def cost_metrics(summary: Mapping[str, Any], chips: float, price: float | None) -> dict[str, Any]:
    """Returns `cost` of a summary (docs/outputs.md): chips, goodput, and chip-hours per million
    tokens.

    Tokens are prompt and output tokens of all completed requests. With a price, costs in money are
    added.

    Args:
        summary: of a run.
        chips: of its cluster; of an elastic fleet those paid for count, at its groups' own prices, if they have some.
        price: of a chip-hour, in any currency, or None.
    """
    fleet = summary.get("fleet", {})
    chips = fleet.get("chips", chips)
    price = fleet["per_hour"] / chips if chips and "per_hour" in fleet else price
    online, batch = summary["online"], summary.get("batch")
    if batch:
        tokens = batch["total_tokens_per_s"]
    else:
        tokens = online["total_tokens_per_s"] + summary["offline"]["total_tokens_per_s"]
    hours = chips / HOUR_S * MILLION / tokens if tokens else None
    late, goodput = online["violation_rate"], None
    if late is not None:
        goodput = online["arrived"] * (1 - late) / summary["arrivals_s"]
    if "aborted" in summary:  # some that kept their SLOs until they left
        goodput = summary["goodput"]["online_requests_per_s"]
    found = {"chips": chips, "chip_hours_per_million_tokens": hours, "goodput_per_s": goodput}
    if price is not None:
        found["per_hour"] = chips * price
        found["per_million_tokens"] = None if hours is None else hours * price
    if price is not None and batch:
        span_s = batch["makespan_s"]
        found["of_all"] = None if span_s is None else chips * price * span_s / HOUR_S
    return found
