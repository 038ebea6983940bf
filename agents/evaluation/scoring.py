"""Turns records of windows into means, intervals, feasibility, aggregates and paired differences.

Every policy runs on the same windows, so differences are taken window by window. A policy may be several training
runs: intervals then resample runs and windows (`ooco_gym.metrics.crossed`). A policy is feasible only if the upper
95 % limit of its violation rate is at most the limit. Only feasible policies are ranked (docs/evaluation.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ooco_gym.metrics.crossed import estimate, iqm, probability_of_improvement
from ooco_gym.metrics.crossed import mean as whole_mean
from ooco_gym.metrics.statistics import ADVISED_SEEDS, apart
from ooco_gym.protocol import VIOLATION_BUDGET as VIOLATION_LIMIT
from ooco_gym.schema import number

CONFIDENCE = 0.95
# metric -> (key of a record's summary, None for the record's own reward; True if more is better)
METRICS: dict[str, tuple[str | None, bool]] = {
    "episode_reward": (None, True),
    "offline_reference_gpu_s_per_s": ("offline_reference_gpu_s_per_s", True),
    "offline_output_tokens_per_s": ("output_tokens_per_s", True),
    "violation_rate": ("violation_rate", False),
    "wasted_tokens_per_s": ("wasted_tokens_per_s", False),
}
HEADLINE, LATE = "offline_reference_gpu_s_per_s", "violation_rate"
_SERVICE = (HEADLINE, "offline_output_tokens_per_s")
Interval = tuple[Any, Any, Any]  # mean, low, high; None: without interval
Records = Sequence[Mapping[str, Any]]


def interval_of(values: np.ndarray, *how: Any) -> Interval:
    """Mean (or another statistic, by `how` of `crossed.estimate`) and 95 % bootstrap interval of values (runs,
    windows); None for limits that one window cannot give."""
    found = estimate(values, *how)
    return found.value, None if np.isnan(found.low) else found.low, None if np.isnan(found.high) else found.high


def feasible_first(violations: float, gain: float, limit: float) -> tuple[bool, float]:
    """The key by which policies are chosen (largest first): those within the violation budget come first, by their gain
    (reward, or service), then the others, by fewest violations (a share, as mean or upper limit)."""
    feasible = violations <= limit
    return feasible, gain if feasible else -violations


def validated(timesteps: int, records: Records) -> dict[str, float]:
    """Means of validation windows after so many decisions."""
    entry = {"timesteps": timesteps, "reward": float(np.mean([record["reward"] for record in records])),
             "violation_rate": float(np.mean([record["summary"].get("violation_rate", 0.0) for record in records])),
             "windows": len(records)}
    for key in ("offline_reference_gpu_s_per_s", "output_tokens_per_s", "wasted_tokens_per_s"):
        if all(key in record["summary"] for record in records):
            entry[key] = float(np.mean([record["summary"][key] for record in records]))
    return entry


def upper_violation_limit(rates: np.ndarray, violated: Any = None, arrived: Any = None) -> float | None:
    """Upper 95 % limit of violation rates (runs, windows); None for a single window, or if no online request arrived.

    The bootstrap over windows cannot see rates that never occurred. With the numbers of requests of all records, the
    exact binomial limit of the pooled counts (Clopper-Pearson) is taken too, and the larger one is returned. The runs
    of one policy meet the same requests, which count once.
    """
    if arrived is not None and not np.any(arrived):
        return None
    limit = interval_of(rates)[2]
    if limit is None or violated is None or arrived is None:
        return limit
    from scipy.stats import binomtest

    counts = (math.ceil(np.sum(violated) / len(rates)), math.floor(np.sum(arrived) / len(rates)))
    return max(limit, float(binomtest(*counts).proportion_ci(CONFIDENCE, method="exact").high))


class Windows:
    """The records of one policy as arrays: `values` of each metric, float64[runs, windows] (several training runs,
    `run` of a record, have the same windows in the same order), their intervals, and `limit` of violations."""

    def __init__(self, records: Records) -> None:
        runs = len({record.get("run") for record in records})
        self.seeds = len({record["seed"] for record in records})
        self.values = {}
        for metric, (key, _) in METRICS.items():
            values = [number(f"{key or 'the reward'} of window {record['window']} of seed {record['seed']}",
                             record["reward"] if key is None else record["summary"].get(key)) for record in records]
            self.values[metric] = np.array(values).reshape(runs, -1)
        violated = [record["summary"].get("online_violated") for record in records]
        arrived = [record["summary"].get("online_arrived") for record in records]
        self.limit = upper_violation_limit(self.values[LATE], None if None in violated else violated,
                                           None if None in arrived else arrived)
        self.idle = None not in arrived and not any(arrived)

    def interval(self, metric: str, other: Windows | None = None) -> Interval:
        """The interval of a metric, or of its paired difference to another policy's; there is no violation rate
        without online requests."""
        if metric == LATE and self.idle:
            return None, None, None
        return interval_of(self.values[metric] if other is None else self.values[metric] - other.values[metric])


def score(played: Mapping[str, Records], env: str, learned: Mapping[str, bool]) -> dict[str, Any]:
    """Scores all policies: `results` (one row a policy and metric), `policies` (feasibility, rank, aggregates of
    service relative to the reference's mean), `paired`.

    Args:
        played: records of the same windows for each policy; several training runs have each window once a run.
        env: the environment's name, repeated in each row.
        learned: whether a policy is learned; the best of the others is the reference of `paired`.
    """
    found = {policy: Windows(records) for policy, records in played.items()}
    feasible = {policy: one.limit is not None and one.limit <= VIOLATION_LIMIT for policy, one in found.items()}
    reference = best_heuristic({policy: one for policy, one in found.items() if not learned[policy]})
    shares = {policy: one.values[HEADLINE] for policy, one in found.items()}
    mean = 0.0 if reference is None else float(shares[reference].mean())
    if mean:
        shares = {policy: each / mean for policy, each in shares.items()}
    results, policies, paired = [], [], []
    for policy, one in found.items():
        runs, windows = one.values[HEADLINE].shape
        better = [other for other in played if feasible[other] and _ahead(shares[other], shares[policy])]
        versus = None if reference == policy else reference
        policies.append({
            "policy": policy, "learned": learned[policy], "runs": runs, "violation_upper_limit": one.limit,
            "feasible": feasible[policy], "rank": 1 + len(better) if feasible[policy] else None,
            "iqm": _named(interval_of(shares[policy], iqm)), "probability_of_improvement": None if versus is None else
            _named(interval_of(shares[policy], probability_of_improvement, [shares[versus]]))})
        for metric in METRICS:
            results.append({"policy": policy, "env": env, "metric": metric, **_named(one.interval(metric), "mean"),
                            "n_runs": runs, "n_seeds": one.seeds, "n_windows": windows})
            if versus is not None:
                between = one.interval(metric, found[versus])
                paired.append({"policy": policy, "reference": versus, "metric": metric,
                               **_named(between, "mean_difference"), "n_windows": windows,
                               "verdict": _verdict(metric, between, windows, feasible[policy] and feasible[versus])})
    return {"results": results, "policies": policies, "reference": reference, "paired": paired,
            "violation_limit": VIOLATION_LIMIT, "confidence": CONFIDENCE,
            "normalised_by": f"mean of {reference}" if mean else "1"}


def _named(interval: Interval, value: str = "value") -> dict[str, float | None]:
    return dict(zip((value, "ci_low", "ci_high"), interval, strict=True))


def _ahead(one: np.ndarray, other: np.ndarray) -> bool:
    """Returns whether a policy's service (runs, windows) is shown to be more than another's on the same windows."""
    found = estimate(one, lambda mine, theirs: whole_mean(mine) - whole_mean(theirs), [other])
    return found.value > 0.0 and apart(found, float(one.mean()))


def best_heuristic(found: Mapping[str, Windows]) -> str | None:
    """Returns the feasible policy with the most offline service. Without one, policies within the limit on average come
    first, then the fewest violations. None if there is no policy."""
    def order(policy: str) -> tuple[bool, bool, float]:
        rate, service = (float(found[policy].values[metric].mean()) for metric in (LATE, HEADLINE))
        upper = found[policy].limit
        return upper is not None and upper <= VIOLATION_LIMIT, *feasible_first(rate, service, VIOLATION_LIMIT)

    return max(found, key=order, default=None)


def _verdict(metric: str, between: Interval, windows: int, both_feasible: bool) -> str:
    """What the interval of a paired difference allows to say."""
    if metric in _SERVICE and not both_feasible:
        return "not ranked"  # more service with too many violations is no improvement
    if windows < ADVISED_SEEDS:  # a bootstrap interval would miss the mean more than one time in twenty
        return f"too few windows for a verdict: {windows}, at least {ADVISED_SEEDS}"
    _, low, high = between
    if low is None or high is None or low <= 0.0 <= high:
        return "no difference shown"
    return "better" if (low > 0.0) == METRICS[metric][1] else "worse"


def budget_words(suite: Mapping[str, Any]) -> list[str]:
    """Says in a sentence for each policy, learned ones first, whether it keeps the violation budget."""
    means = {row["policy"]: row["mean"] for row in suite["results"] if row["metric"] == LATE}
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
