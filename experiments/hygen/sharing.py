"""Figure 6 of HyGen: prefix sharing maximisation on few-shot work; and fairness against throughput (Algorithm 4)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.hygen.bench import Bench, at_once, excesses, offline_tokens, ratio, spread
from ooco_gym.errors import UserError

MARGIN = 1.5  # how many times the requests that would just have lasted are advised
CACHED = {"prefix_caching": "on"}
ORDERS: Mapping[str, Mapping[str, Any]] = {
    "FCFS, no cache": {"waiting_order": "arrival", "prefix_caching": "off"},
    "FCFS": {"waiting_order": "arrival", **CACHED},
    "PSM": {"waiting_order": "prefix", "utility": 1.0, **CACHED},
}


def shared(bench: Bench, budget_s: float, metric: str) -> list[dict[str, Any]]:
    """Offline throughput by order, at one latency budget, on work that shares prefixes.

    Returns:
        A row for each order: throughput, its ratio to FCFS with the cache and without, the online excess.

    Raises:
        UserError: the offline work ran out.
    """
    alone = bench.runs("sarathi")
    runs = dict(zip(ORDERS, at_once([lambda changed=changed: bench.runs("hygen", {
        **changed, "latency_budget_s": budget_s}) for changed in ORDERS.values()]), strict=True))
    check_lasts(bench, runs)
    tokens = {name: offline_tokens(mine) for name, mine in runs.items()}
    return [{"order": name, "latency_budget_s": budget_s, "offline": spread(tokens[name]),
             "requests": spread(_served(mine)), "ratio": ratio(tokens[name], tokens["FCFS"]),
             "ratio_without_cache": ratio(tokens[name], tokens["FCFS, no cache"]),
             "excess": spread(excesses(metric, mine, alone))} for name, mine in runs.items()]


def fairness(full: Bench, steady: Bench, budget_s: float, utilities: Sequence[float]) -> list[dict[str, Any]]:
    """Starvation against throughput over the fairness ratio u, at one latency budget.

    Args:
        full: with more offline work than can be served: what is served of it is the throughput.
        steady: with offline work that goes on arriving, at a rate that every order can serve: who waits how long.
        budget_s: latency budget of an iteration.
        utilities: values of u.

    Returns:
        A row for each u: throughput, P99 and longest age of offline requests (seconds to their first token).

    Raises:
        UserError: the offline work that was to be more than can be served ran out.
    """
    values = [{"waiting_order": "prefix", "utility": float(u), "latency_budget_s": budget_s, **CACHED}
              for u in utilities]
    most, waits = (at_once([lambda bench=bench, one=one: bench.runs("hygen", one) for one in values])
                   for bench in (full, steady))
    check_lasts(full, {f"u = {float(u):g}": mine for u, mine in zip(utilities, most, strict=True)})
    return [{"utility": float(u), "offline": spread(offline_tokens(mine)), "requests": spread(_served(mine)),
             **{key: spread(np.array([one["offline"][key] for one in waiting], float))
                for key in ("age_p99_s", "age_max_s")}}
            for u, mine, waiting in zip(utilities, most, waits, strict=True)]


def check_lasts(bench: Bench, runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Refuses runs whose offline work, which is to be more than can be served, ran out before the window ended.

    Raises:
        UserError: says how many requests would have lasted, at the mean rate at which they were served at most.
    """
    over = [(one["offline"]["last_finish_s"] or 0.0, name, one) for name, some in runs.items() for one in some
            if not one["offline"]["left"]]
    if not over:
        return
    last_s, name, run = min(over, key=lambda one: one[0])
    jobs, warmup_s = int(bench.scenario.offline["jobs"]), float(bench.scenario.load_protocol()["warmup_s"])
    total_s, served_s = warmup_s + run["window_s"], warmup_s + last_s
    least = MARGIN * jobs * total_s / max(served_s, 1.0)
    raise UserError(f"hygen.shared_jobs={jobs} are too few: under '{name}' on seed {run['seed']} all were served "
                    f"{served_s:,.0f} s after the start, and the window ends at {total_s:,.0f} s; expected more "
                    f"than can be served, such as hygen.shared_jobs={math.ceil(least / 1000) * 1000}")


def _served(runs: Sequence[Mapping[str, Any]]) -> np.ndarray:
    return np.array([one["offline"]["finished"] / one["window_s"] for one in runs])
