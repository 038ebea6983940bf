"""Turns records of windows into means, intervals, feasibility, aggregates and paired differences.

Every policy runs on the same windows, so differences are taken window by window. A policy may be
several training runs: intervals then resample runs and windows (`ooco_gym.metrics.crossed`). A
policy is feasible only if the upper 95 % limit of its violation rate is at most the limit. Only
feasible policies are ranked (docs/evaluation.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ooco_gym.errors import finite
from ooco_gym.metrics.crossed import (
    Estimate,
    estimate,
    iqm,
    probability_of_improvement,
)
from ooco_gym.metrics.crossed import mean as whole_mean
from ooco_gym.metrics.statistics import ADVISED_SEEDS, apart
from ooco_gym.protocol import VIOLATION_BUDGET as VIOLATION_LIMIT

CONFIDENCE = 0.95
# metric -> (key of a record's summary, None for the record's own reward; True if more is better)
METRICS: dict[str, tuple[str | None, bool]] = {
    "episode_reward": (None, True),
    "offline_reference_gpu_s_per_s": ("offline_reference_gpu_s_per_s", True),
    "offline_output_tokens_per_s": ("output_tokens_per_s", True),
    "violation_rate": ("violation_rate", False),
    "wasted_tokens_per_s": ("wasted_tokens_per_s", False),
}
HEADLINE = "offline_reference_gpu_s_per_s"
_SERVICE = (HEADLINE, "offline_output_tokens_per_s")
Records = Sequence[Mapping[str, Any]]


def values(records: Records, metric: str) -> np.ndarray:
    """Returns the metric of each window, in the records' order."""
    key = METRICS[metric][0]
    said = [(one, one["reward"] if key is None else one["summary"].get(key)) for one in records]
    return np.array([finite(f"{key or 'the reward'} of window {one['window']} of seed {one['seed']}", value)
                     for one, value in said])


def grid(records: Records, metric: str) -> np.ndarray:
    """Returns the metric as (runs, windows): one row for each training run (`run` of a record); a
    heuristic has one.

    Raises:
        ValueError: the runs do not have the same windows in the same order.
    """
    figures: dict[Any, list[float]] = {}
    games: dict[Any, list[tuple[int, int]]] = {}
    for value, record in zip(values(records, metric), records, strict=True):
        figures.setdefault(record.get("run"), []).append(float(value))
        games.setdefault(record.get("run"), []).append((record["seed"], record["window"]))
    if any(played != next(iter(games.values())) for played in games.values()):
        raise ValueError("runs of one policy must cover the same windows in the same order")
    return np.array(list(figures.values()))


def without_online(records: Records) -> bool:
    """Whether no online request arrived in any record, so that there is no violation rate."""
    return all(record["summary"].get("online_arrived") == 0 for record in records)


def mean_interval(figures: np.ndarray) -> tuple[float, float | None, float | None]:
    """Mean and 95 % bootstrap interval of values (runs, windows); None for limits that one window
    cannot give."""
    return numbers(estimate(figures))


def numbers(found: Estimate) -> tuple[float, float | None, float | None]:
    """An estimate, with None for limits that it lacks."""
    return found.value, None if np.isnan(found.low) else found.low, None if np.isnan(found.high) else found.high


def feasible_first(violations: float, gain: float, limit: float) -> tuple[bool, float]:
    """The key by which policies are chosen (largest first). Policies within the violation budget
    come first, by their gain, then the others, by fewest violations.

    Args:
        violations: share of online requests that violate, as mean or upper limit.
        gain: reward, or service.
    """
    feasible = violations <= limit
    return feasible, gain if feasible else -violations


def upper_violation_limit(records: Records, highest: float | None = None) -> float | None:
    """Upper 95 % limit of the violation rate; None for fewer than two windows, or if no online
    request arrived.

    The bootstrap over windows cannot see rates that never occurred. If the records count requests,
    the exact binomial limit of the pooled counts (Clopper-Pearson) is taken too, and the larger one
    is returned. The runs of one policy meet the same requests, which count once.

    Args:
        highest: upper end of the rate's bootstrap interval, if known.
    """
    if without_online(records):
        return None
    limit = mean_interval(grid(records, "violation_rate"))[2] if highest is None else highest
    counts = [(r["summary"].get("online_violated"), r["summary"].get("online_arrived")) for r in records]
    if limit is None or any(violated is None or arrived is None for violated, arrived in counts):
        return limit
    from scipy.stats import binomtest

    runs = len({record.get("run") for record in records})
    violated, arrived = (sum(column) / runs for column in zip(*counts, strict=True))
    exact = binomtest(math.ceil(violated), math.floor(arrived)).proportion_ci(CONFIDENCE, method="exact")
    return max(limit, float(exact.high))


def score(played: Mapping[str, Records], env: str, learned: Mapping[str, bool]) -> dict[str, Any]:
    """Scores all policies: `results` (one row a policy and metric), `policies` (feasibility, rank,
    aggregates of service relative to the reference's mean), `paired`.

    Args:
        played: records of the same windows for each policy; several training runs have each window
            once a run.
        env: the environment's name, repeated in each row.
        learned: whether a policy is learned; the best of the others is the reference of `paired`.
    """
    results = [_row(policy, env, metric, records) for policy, records in played.items() for metric in METRICS]
    highest = {row["policy"]: row["ci_high"] for row in results if row["metric"] == "violation_rate"}
    limits = {policy: upper_violation_limit(records, highest[policy]) for policy, records in played.items()}
    feasible = {policy: limit is not None and limit <= VIOLATION_LIMIT for policy, limit in limits.items()}
    ranked = [policy for policy in played if feasible[policy]]
    heuristics = {policy: records for policy, records in played.items() if not learned[policy]}
    reference = best_heuristic(heuristics, limits)
    shares = {policy: grid(records, HEADLINE) for policy, records in played.items()}
    mean = float(shares[reference].mean()) if reference is not None else 0.0
    if mean:
        shares = {policy: figures / mean for policy, figures in shares.items()}
    policies = []
    for policy in played:
        better = [other for other in ranked if _ahead(shares[other], shares[policy])]
        policies.append({
            "policy": policy, "learned": learned[policy], "runs": len(shares[policy]),
            "violation_upper_limit": limits[policy], "feasible": feasible[policy],
            "rank": 1 + len(better) if policy in ranked else None,
            **_aggregates(shares[policy], shares.get(reference or ""))})
    paired = [] if reference is None else [
        _difference(policy, reference, metric, played, feasible[policy] and feasible[reference])
        for policy in played if policy != reference for metric in METRICS
    ]
    return {"results": results, "policies": policies, "reference": reference, "paired": paired,
            "violation_limit": VIOLATION_LIMIT, "confidence": CONFIDENCE,
            "normalised_by": f"mean of {reference}" if mean else "1"}


def _ahead(one: np.ndarray, other: np.ndarray) -> bool:
    """Returns whether a policy's service (runs, windows) is shown to be more than another's on the same windows."""
    found = estimate(one, lambda mine, theirs: whole_mean(mine) - whole_mean(theirs), [other])
    return found.value > 0.0 and apart(found, float(one.mean()))


def best_heuristic(played: Mapping[str, Records], limits: Mapping[str, float | None]) -> str | None:
    """Returns the feasible policy with the most offline service. Without one, policies within the
    limit on average come first, then the fewest violations. None if `played` is empty.

    Args:
        limits: upper limits of the violation rates.
    """

    def order(policy: str) -> tuple[bool, bool, float]:
        rate, service = (float(values(played[policy], metric).mean()) for metric in ("violation_rate", HEADLINE))
        upper = limits[policy]
        feasible = upper is not None and upper <= VIOLATION_LIMIT
        return feasible, *feasible_first(rate, service, VIOLATION_LIMIT)

    return max(played, key=order, default=None)


def _row(policy: str, env: str, metric: str, records: Records) -> dict[str, Any]:
    figures = grid(records, metric)
    mean, low, high = mean_interval(figures)
    if metric == "violation_rate" and without_online(records):
        mean = low = high = None
    return {"policy": policy, "env": env, "metric": metric, "mean": mean, "ci_low": low, "ci_high": high,
            "n_runs": figures.shape[0], "n_seeds": len({record["seed"] for record in records}),
            "n_windows": figures.shape[1]}


def _aggregates(mine: np.ndarray, reference: np.ndarray | None) -> dict[str, Any]:
    """Interquartile mean, and the probability of more service than the reference."""
    found = {"iqm": estimate(mine, iqm), "probability_of_improvement": None if reference is None or reference is mine
             else estimate(mine, probability_of_improvement, [reference])}
    keys = ("value", "ci_low", "ci_high")
    return {name: None if one is None else dict(zip(keys, numbers(one), strict=True)) for name, one in found.items()}


def _difference(
    policy: str, reference: str, metric: str, played: Mapping[str, Records], both_feasible: bool
) -> dict[str, Any]:
    """Paired difference policy − reference with its interval, and the verdict that they allow."""
    figures = grid(played[policy], metric) - grid(played[reference], metric)
    mean, low, high = mean_interval(figures)
    if metric == "violation_rate" and without_online(played[policy]):
        mean = low = high = None
    windows, verdict = figures.shape[1], "no difference shown"
    if metric in _SERVICE and not both_feasible:
        verdict = "not ranked"  # more service with too many violations is no improvement
    elif windows < ADVISED_SEEDS:  # a bootstrap interval would miss the mean more than one time in twenty
        verdict = f"too few windows for a verdict: {windows}, at least {ADVISED_SEEDS}"
    elif low is not None and high is not None and (low > 0.0 or high < 0.0):
        verdict = "better" if (low > 0.0) == METRICS[metric][1] else "worse"
    return {"policy": policy, "reference": reference, "metric": metric, "mean_difference": mean, "ci_low": low,
            "ci_high": high, "n_windows": windows, "verdict": verdict}


def budget_words(suite: Mapping[str, Any]) -> list[str]:
    """Says in a sentence for each policy, learned ones first, whether it keeps the violation budget."""
    means = {row["policy"]: row["mean"] for row in suite["results"] if row["metric"] == "violation_rate"}
    limit, said = suite["violation_limit"], []
    for entry in sorted(suite["policies"], key=lambda entry: not entry["learned"]):
        name, upper, mean = entry["policy"], entry["violation_upper_limit"], means[entry["policy"]]
        if mean is None or upper is None:
            said.append(f"{name}: the violation budget cannot be tested.")
            continue
        verdict = "meets" if upper <= limit else "exceeds" if mean > limit else "is not shown to meet"
        said.append(f"{name} {verdict} the violation budget of {limit:.0%}: {mean:.2%} of online requests violate, "
                    f"upper limit {upper:.2%}.")
    return said
