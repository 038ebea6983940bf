"""Claims of elastic fleets (docs/elastic.md)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from experiments.registry import Test, claim
from experiments.study import Study, by
from ooco_gym.study.table import Answer, Metric

# Loads of docs/elastic.md, four hours around each one's ramp; rules as tuned on seeds 101 to 104, two hours of it: the
# cheapest setting of at most eight that was late for at most 3 %, of static counts also one fewer.
RAMPS = {"azure_code": {"workload": "azure_code", "rate_scale": 0.3, "start_s": 43200.0},
    "azure_conv": {"workload": "azure_conv", "rate_scale": 0.25, "start_s": 36000.0},
    "ooc": {"workload": "ooc", "rate_scale": 0.15, "start_s": 72000.0},
    "code and chat": {"workload": "azure_code+azure_conv", "rate_scale": 0.15, "start_s": 43200.0}}
FLEETS = {"static": ("instances", (6, 4, 5, 5)), "one fewer": ("instances", (5, 3, 4, 4)),
    "planner_sla": ("utilization", (0.5, 0.6, 0.5, 0.6)), "headroom": ("utilization", (0.7, 0.8, 0.8, 0.8)),
    "token_velocity": ("utilization", (0.45, 0.6, 0.5, 0.5)), "linear": ("utilization", (1.15, 1.5, 1.3, 1.4)),
    "linear with room": ("utilization", (1.1, 1.4, 1.2, 1.3)), "clairvoyant": ("utilization", (0.6, 0.7, 0.6, 0.7))}
SCALED = ["planner_sla", "headroom", "token_velocity"]


def _steered(fleets: Mapping[str, tuple[str, Sequence[float]]]) -> dict[str, Any]:
    """Returns the policies of some scaling rules by workload, in the order of `RAMPS`."""
    named = {}
    for name, (key, values) in fleets.items():
        rule = {"one fewer": "static", "linear with room": "linear"}.get(name, name)
        policies = [f"deadline:scale={rule},scale.{key}={value}" for value in values]
        named[name] = by("workload", dict(zip(RAMPS, policies, strict=False)))
    return named


def _fleet(study: Study, axes: Mapping[str, Any], **scenario: Any) -> tuple[Metric, Metric, Metric]:
    """Plays and shows elastic fleets; returns chips paid for, offline work and late online requests."""
    runs = study.play(axes, scenario={"timing": "ooco", "cluster": "elastic_7b", **scenario})
    chips, work, late = (runs[name] for name in (
        "fleet.chips", "offline.reference_gpu_s_per_s", "online.violation_rate"))
    study.show({"chips": chips, "late": late, "offline work": work, "starts": runs["fleet.starts"]})
    return chips, work, late


def _cheapest(cost: Metric, late: Metric, **labels: Any) -> np.ndarray:
    """Returns a cost by seed at the cheapest of some points that are late for at most 3 %; if none is, at the one that
    is least late."""
    costs = cost.where(labels).values
    return costs[_holding(costs, late.where(labels).values)]


def _holding(costs: np.ndarray, lates: np.ndarray) -> int:
    """Returns the index of that point, of costs and shares of late requests by point and seed."""
    mean = lates.mean(axis=1)
    return int(np.argmin(np.where(mean <= max(0.03, float(mean.min())), costs.mean(axis=1), np.inf)))


def _priced(chips: Metric, work: Metric, price: float) -> Metric:
    """Returns chips less offline work in reference GPUs at a price."""
    return replace(chips, values=chips.values - price * work.values)


@claim("Scaling and co-location on a ramp", "elastic.md#co-locate-scale-or-both", blocks=("9701:9706", "9801:9804"))
def elastic_ramp(study: Study) -> Iterator[Test]:
    """With at most 3 % violations the cheapest tuned controller pays for fewer chips than the fewest static ones where
    load doubles within four hours, with offline work beside it, and a learned forecast is not behind it by 2 %."""
    chips, work, late = _fleet(study, {"workload": RAMPS, "offline.rate": [1.0, 0.0],
        "policy": _steered(FLEETS)}, duration_s=14400.0)
    for load, rate, price in itertools.product(RAMPS, (1.0, 0.0), (0.0, 0.5)):
        if rate < price:
            continue
        here, cost = {"workload": load, "offline.rate": rate}, _priced(chips, work, price)
        static = _cheapest(cost, late, **here, policy=["static", "one fewer"])
        for who, names in (("scaled", SCALED), ("clairvoyant", ["clairvoyant"])):
            more = " without offline work" if rate == 0.0 else f", offline work at {price:g}" if price else ""
            yield Test(f"{load}: {who} over static{more}", Answer(_cheapest(cost, late, **here, policy=names) / static,
                chips.seeds), holds=(None, 1.0) if who == "scaled" and not more and load != "azure_conv" else None)
        if price == 0.0:
            mine = {**here, "policy": ["linear", "linear with room"]}
            costs, lates = cost.where(mine).values, late.where(mine).values
            at = _holding(costs, lates)
            yield Test(f"{load}: linear over scaled{more}", Answer(costs[at] / _cheapest(
                cost, late, **here, policy=SCALED), chips.seeds), holds=(None, 1.02) if not more else None)
            yield Test(f"{load}: late under linear{more}", Answer(lates[at], chips.seeds))


# Chips that offline requests at 1/s need alone.
APART = 1.0
DAY_FLEETS = {**{name: FLEETS[name] for name in ("planner_sla", "headroom", "linear with room", "clairvoyant")},
    "static": ("instances", (7, 4, 5, 5)), "one fewer": ("instances", (6, 3, 4, 4))}


@claim("Scaling and co-location over a day", "elastic.md#co-locate-scale-or-both", blocks=("9701:9702", "9801:9802"))
def elastic_day(study: Study) -> Iterator[Test]:
    """Over a day with at most 3 % violations, offline work beside online work on a fleet that scales costs less than
    on a static one, and than on chips of its own beside a fleet that scales."""
    chips, _, late = _fleet(study, {"workload": {name: {**values, "start_s": 0.0} for name, values in RAMPS.items()},
        "offline.rate": [1.0, 0.0], "policy": _steered(DAY_FLEETS)}, duration_s=86400.0)
    who = {"static": ["static", "one fewer"], "scaled": ["planner_sla", "headroom"], "linear": ["linear with room"],
        "clairvoyant": ["clairvoyant"]}
    for load in RAMPS:
        found = {(one, rate): APART * (rate == 0.0) + _cheapest(chips, late, **{"workload": load, "offline.rate": rate,
            "policy": names}) for (one, names), rate in itertools.product(who.items(), (1.0, 0.0))}
        for what, one in (("neither", ("static", 0.0)), ("co-location alone", ("static", 1.0)), ("scaling alone",
                ("scaled", 0.0)), ("both", ("scaled", 1.0)), ("both, linear", ("linear", 1.0)),
                ("both, clairvoyant", ("clairvoyant", 1.0))):
            yield Test(f"{load}: chips, {what}", Answer(found[one], chips.seeds))
        for what, other in (("co-location", ("static", 1.0)), ("scaling", ("scaled", 0.0))):
            yield Test(f"{load}: both over {what} alone", Answer(found["scaled", 1.0] / found[other], chips.seeds),
                holds=(None, 1.0))
