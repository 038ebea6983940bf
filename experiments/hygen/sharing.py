"""Figure 6 of HyGen: prefix sharing maximisation on few-shot work; and fairness against throughput (Algorithm 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.hygen.bench import Bench, at_once, excesses, offline_tokens, ratio, spread

CACHED = {"prefix_caching": "on"}
ORDERS: Mapping[str, Mapping[str, Any]] = {
    "FCFS, no cache": {"waiting_order": "arrival", "prefix_caching": "off"},
    "FCFS": {"waiting_order": "arrival", **CACHED},
    "PSM": {"waiting_order": "prefix", "utility": 1.0, **CACHED},
}


def shared(bench: Bench, slo: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Offline throughput by order, each profiled for the same SLO, on work that shares prefixes.

    Returns:
        A row for each order: the budget found, throughput, its ratio to FCFS with the cache, the online excess.
    """
    alone = bench.runs("sarathi")
    found = dict(zip(ORDERS, at_once([lambda changed=changed: bench.profiled("hygen", slo, changed)
                                      for changed in ORDERS.values()]), strict=True))
    runs = {name: one.runs for name, one in found.items()}
    base = offline_tokens(runs["FCFS"])
    return [{"order": name, "latency_budget_s": found[name].setting,
             "offline": spread(offline_tokens(mine)), "requests": spread(_served(mine)),
             "ratio": ratio(offline_tokens(mine), base), "ratio_without_cache": ratio(
                 offline_tokens(mine), offline_tokens(runs["FCFS, no cache"])),
             "excess": spread(excesses(str(slo["slo_metric"]), mine, alone))} for name, mine in runs.items()]


def fairness(bench: Bench, budget_s: float, utilities: Sequence[float]) -> list[dict[str, Any]]:
    """Starvation against throughput over the fairness ratio u, at one latency budget, with work that goes on arriving.

    Returns:
        A row for each u: throughput, P99 and longest age of offline requests (seconds to their first token).
    """
    values = [{"waiting_order": "prefix", "utility": float(u), "latency_budget_s": budget_s, **CACHED}
              for u in utilities]
    runs = at_once([lambda one=one: bench.runs("hygen", one) for one in values])
    return [{"utility": float(u), "offline": spread(offline_tokens(mine)), "requests": spread(_served(mine)),
             **{key: spread(np.array([one["offline"][key] for one in mine], float))
                for key in ("age_p99_s", "age_max_s")}} for u, mine in zip(utilities, runs, strict=True)]


def _served(runs: Sequence[Mapping[str, Any]]) -> np.ndarray:
    return np.array([one["offline"]["finished"] / one["window_s"] for one in runs])
