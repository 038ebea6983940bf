"""Turns the records of played windows into means, intervals, feasibility and paired differences.

Every policy plays the same windows, so differences are taken window by window. A policy is feasible only if the upper
95 % limit of its violation rate is at most the limit; what is not feasible is not ranked (docs/training.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ooco_gym.metrics.statistics import ADVISED_SEEDS, interval, interval_words

CONFIDENCE = 0.95
VIOLATION_LIMIT = 0.03
# metric -> (key of a record's summary; None: the record's own reward, True if more is better)
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
    return np.array([record["reward"] if key is None else record["summary"][key] for record in records], float)


def by_seed(records: Records, metric: str) -> np.ndarray:
    """Returns the metric as (seeds, windows): `ooco_gym.metrics.statistics` resamples seeds, then windows in them."""
    figures = values(records, metric)
    seeds = list(dict.fromkeys(record["seed"] for record in records))
    return np.array([[f for f, record in zip(figures, records, strict=True) if record["seed"] == s] for s in seeds])


def too_few(count: int, what: str) -> str | None:
    """Why `count` seeds or windows (`what`) allow no verdict; None where they do.

    Below five, Student's t asks for more than resampling can give: the interval of so few figures runs from the
    smallest to the largest of them and no further, and misses the mean more often than one time in twenty.
    """
    return None if count >= ADVISED_SEEDS else f"too few {what} for a verdict: {count}, at least {ADVISED_SEEDS}"


def interval_note(count: int, windows: int | None = None, what: str = "seeds") -> str:
    """What the intervals are, in a sentence; `windows` as for `interval_words`."""
    if count >= ADVISED_SEEDS or (count < 2 and (windows or 0) < 2):
        return interval_words(count, windows).replace("seed", what.removesuffix("s"))
    over = f"{count} {what if count > 1 else what.removesuffix('s')}"
    over += "" if windows is None or windows <= count else f" and {'their' if count > 1 else 'its'} {windows} windows"
    return (f"Intervals: bootstrap over {over}, which with fewer than {ADVISED_SEEDS} {what} is narrower than a 95 % "
            f"interval; at least {ADVISED_SEEDS} are advised.")


def without_online(records: Records) -> bool:
    """Whether the records count online requests, and none arrived: then there is no violation rate."""
    return all(record["summary"].get("online_arrived") == 0 for record in records)


def mean_interval(figures: np.ndarray) -> tuple[float, float | None, float | None]:
    """Mean and 95 % bootstrap interval of figures (seeds, windows); None where one window gives no spread."""
    mean, low, high = interval(figures, confidence=CONFIDENCE)
    return mean, None if np.isnan(low) else low, None if np.isnan(high) else high


def upper_violation_limit(records: Records) -> float | None:
    """Upper 95 % limit of the violation rate; None where fewer than two windows were played, or where no online
    request arrived in any.

    The bootstrap over windows says nothing about rates that were never seen; where the records count requests, the
    exact binomial limit of the pooled counts (Clopper-Pearson) holds as well, and the larger one is returned.
    """
    if without_online(records):
        return None
    limit = mean_interval(by_seed(records, "violation_rate"))[2]
    counts = [(r["summary"].get("online_violated"), r["summary"].get("online_arrived")) for r in records]
    if limit is None or any(violated is None or arrived is None for violated, arrived in counts):
        return limit
    from scipy.stats import binomtest

    violated, arrived = (int(sum(column)) for column in zip(*counts, strict=True))
    return max(limit, float(binomtest(violated, arrived).proportion_ci(CONFIDENCE, method="exact").high))


def score(played: Mapping[str, Records], env: str, learned: Mapping[str, bool]) -> dict[str, Any]:
    """Scores all policies: `results` (one row a policy and metric), `policies` (feasibility, rank), `paired`.

    Args:
        played: records of the same windows for each policy.
        env: the environment's name, repeated in each row.
        learned: whether a policy is learned; the best of the others is the reference of `paired`.
    """
    results = [_row(policy, env, metric, records) for policy, records in played.items() for metric in METRICS]
    limits = {policy: upper_violation_limit(records) for policy, records in played.items()}
    feasible = {policy: limit is not None and limit <= VIOLATION_LIMIT for policy, limit in limits.items()}
    service = {policy: float(values(records, HEADLINE).mean()) for policy, records in played.items()}
    ranked = sorted((policy for policy in played if feasible[policy]), key=lambda policy: -service[policy])
    reference = _reference(played, learned, ranked)
    policies = [
        {"policy": policy, "learned": learned[policy], "violation_upper_limit": limits[policy],
         "feasible": feasible[policy], "rank": ranked.index(policy) + 1 if policy in ranked else None}
        for policy in played
    ]
    paired = [] if reference is None else [
        _difference(policy, reference, metric, played, feasible[policy] and feasible[reference])
        for policy in played if policy != reference for metric in METRICS
    ]
    return {"results": results, "policies": policies, "reference": reference, "paired": paired,
            "violation_limit": VIOLATION_LIMIT, "confidence": CONFIDENCE}


def _row(policy: str, env: str, metric: str, records: Records) -> dict[str, Any]:
    mean, low, high = mean_interval(by_seed(records, metric))
    if metric == "violation_rate" and without_online(records):
        mean = low = high = None
    return {"policy": policy, "env": env, "metric": metric, "mean": mean, "ci_low": low, "ci_high": high,
            "n_seeds": len({record["seed"] for record in records}), "n_windows": len(records)}


def _reference(played: Mapping[str, Records], learned: Mapping[str, bool], ranked: Sequence[str]) -> str | None:
    """The best heuristic: the first feasible one by service, or else the one with the fewest violations."""
    heuristics = [policy for policy in played if not learned[policy]]
    for policy in ranked:
        if policy in heuristics:
            return policy
    return min(heuristics, key=lambda p: float(values(played[p], "violation_rate").mean()), default=None)


def _difference(
    policy: str, reference: str, metric: str, played: Mapping[str, Records], both_feasible: bool
) -> dict[str, Any]:
    """Paired difference policy − reference with its interval, and what the interval and its seeds allow to say."""
    mean, low, high = mean_interval(by_seed(played[policy], metric) - by_seed(played[reference], metric))
    if metric == "violation_rate" and without_online(played[policy]):
        mean = low = high = None
    few = too_few(len({record["seed"] for record in played[policy]}), "seeds")
    verdict = few or "no difference shown"
    if metric in _SERVICE and not both_feasible:
        verdict = "not ranked"  # more service bought with violations is no better service
    elif not few and low is not None and high is not None and (low > 0.0 or high < 0.0):
        verdict = "better" if (low > 0.0) == METRICS[metric][1] else "worse"
    return {"policy": policy, "reference": reference, "metric": metric, "mean_difference": mean, "ci_low": low,
            "ci_high": high, "n_windows": len(played[policy]), "verdict": verdict}
