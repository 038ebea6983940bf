"""Metrics of summaries by dotted name: their titles and units, and policies compared by them on the same seeds."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ooco_gym.errors import unknown
from ooco_gym.metrics.statistics import interval, paired_interval, verdict
from ooco_gym.metrics.summary import keeps_prefixes
from ooco_gym.report import as_text, at_least, minus, number, with_interval
from ooco_gym.report.tables import flat, missing
from ooco_gym.resources import load_yaml

LATE, SERVED = "online.violation_rate", "offline.output_tokens_per_s"
MAKESPAN, BATCH_TOKENS, LEFT, DUE = (f"batch.{key}" for key in (
    "makespan_s", "total_tokens_per_s", "left", "late"))  # for offline requests alone
# Of a finite set of offline requests beside online ones.
JOBS = tuple(f"offline.jobs.{key}" for key in ("left", "makespan_s", "mean_completion_s", "in_time"))
GOODPUT = ("goodput.online_tokens_per_s", "goodput.offline_tokens_per_s", "aborted.online", "aborted.offline")
FLEET = ("fleet.chips", "fleet.starts", "fleet.per_hour")  # of an elastic one
COMPUTED = "offline.computed_tokens_per_s"  # in the window, for finished and unfinished requests
# Title and unit of metrics with their own title.
TITLES = {
    LATE: ("SLO violations", "%"), SERVED: ("offline output", "tokens/s"),
    COMPUTED: ("offline computed", "tokens/s"),
    "online.worst_10min_violation_rate": ("SLO violations, worst 10 minutes", "%"),
    "online.ttft_p50_s": ("TTFT P50", "s"), "online.ttft_p99_s": ("TTFT P99", "s"),
    "online.tpot_p50_s": ("TPOT P50", "ms"), "online.tpot_p99_s": ("TPOT P99", "ms"),
    "online.tpot_decode_p99_s": ("TPOT P99 from the first decode", "ms"),
    MAKESPAN: ("makespan", "s"), BATCH_TOKENS: ("total throughput", "tokens/s"),
    LEFT: ("unfinished at the end", "requests"), DUE: ("missed deadlines", "requests"),
    **dict(zip(JOBS, (("jobs left", "requests"), ("makespan of the jobs", "s"), ("mean completion of the jobs", "s"),
                      ("jobs done in time", "%")), strict=True)),
    **dict(zip(FLEET, (("chips paid for", ""), ("starts", ""), ("cost an hour", "")), strict=True)),
    **dict(zip(GOODPUT, (("online goodput", "tokens/s"), ("offline goodput", "tokens/s"),
                         ("online requests that left", ""), ("offline requests that left", "")), strict=True)),
    "jobs.arrived": ("jobs of several requests", ""), "jobs.done": ("of these, done", ""),
    "jobs.completion_mean_s": ("mean completion of a job", "s"), "jobs.slowdown_mean": ("mean slow-down of a job", ""),
    "jobs.completion_p99_s": ("P99 completion of a job", "s"),
    "cost.goodput_per_s": ("online goodput", "1/s"),
    "cost.chip_hours_per_million_tokens": ("chip-hours per million tokens", ""),
    "cost.per_million_tokens": ("cost per million tokens", ""), "cost.of_all": ("cost of all requests", ""),
    "offline.reference_gpu_s_per_s": ("offline work", "reference GPU-s/s"),
    "offline.wasted_tokens_per_s": ("recomputed", "tokens/s"), "offline.age_p99_s": ("offline queueing P99", "s"),
    "kv_offloading.hit_rate": ("hits in host memory only", "%"),
    "utilization.compute_share": ("compute utilization", "%"),
    "utilization.kv_mean_share": ("KV memory in use", "%"),
    "utilization.busy_share": ("busy time", "%"),
    "sustained.rate": ("sustained offline load", "requests/s"),
    "sustained.total_tokens_per_s": ("offline total", "tokens/s"),
}
UNITS = {"tokens_per_s": "tokens/s", "_s_per_s": "s/s", "_per_s": "1/s", "_s": "s", "_rate": "%", "_share": "%",
         "_attainment": "%"}  # for other metrics, by the end of their names
FACTORS = {"%": 100.0, "ms": 1000.0}
# Of a single run.
RUN_METRICS = (
    "online.arrived", "online.finished", "online.unserved", "online.worst_10min_violation_rate", "online.ttft_p50_s",
    "online.ttft_p99_s", "online.tpot_p50_s", "online.tpot_p99_s", "online.tpot_decode_p99_s", "offline.arrived",
    "offline.finished", *GOODPUT, *JOBS, "jobs.arrived", "jobs.done", "jobs.completion_mean_s", "jobs.completion_p99_s",
    "jobs.slowdown_mean", "offline.reference_gpu_s_per_s", "offline.wasted_tokens_per_s", "offline.evictions",
    "offline.interruptions", "offline.migrations", "offline.age_p99_s", "kv_offloading.hit_rate", *FLEET,
    "utilization.compute_share", "utilization.kv_mean_share", "utilization.busy_share",
    "cost.chip_hours_per_million_tokens", "cost.per_million_tokens", "cost.of_all")
# Also shown for policies with prefix caching.
CACHE_METRICS = ("online.hit_rate", "offline.hit_rate", "offline.prompt_tokens_per_s",
                 "offline.computed_prompt_tokens_per_s")
ESTIMATE = ("mean", "ci_low", "ci_high")
DIFFERENCE = ("difference", "difference_low", "difference_high")
Row = Mapping[str, Any]


# --- Of summaries ---------------------------------------------------------------------------------------------------
def compare(summaries: Mapping[Any, Sequence[Row]], metrics: Sequence[str], baseline: Any,
            budget: float) -> list[dict[str, Any]]:
    """Compares summaries of policies, or of (policy, cluster), one per seed; returns a row per
    metric and policy.

    A row has `metric` (dotted name), `policy`, `cluster`, `mean`, `ci_low`, `ci_high`, `values`
    (one per seed), `censored` (some values are lower bounds) and `feasible` (the violation rate's
    upper limit is within `budget`; None: undecided). It has `difference`, `difference_low` and
    `difference_high` to the key `baseline`; these are None for the baseline itself, for lower
    bounds, and if the seeds differ.

    Raises:
        UserError: a metric that summaries do not have.
    """
    feasible, seeds = {}, {}
    for key, runs in summaries.items():
        seeds[key] = [run.get("seed") for run in runs]
        online = [run["online"] for run in runs]
        at_most = [one.get("violation_rate_at_most", one["violation_rate"]) for one in online]
        feasible[key] = verdict([one["violation_rate"] for one in online], at_most, budget)
    rows = []
    for metric in metrics:
        part, _, name = metric.rpartition(".")
        values, bounds = {}, {}
        for key, runs in summaries.items():
            values[key] = np.array([metric_value(run, metric) for run in runs])
            bounds[key] = any(name in flat(run).get(f"{part}.censored", ()) for run in runs)
        for key, mine in values.items():
            policy, cluster = key if isinstance(key, tuple) else (key, None)
            mean, low, high = interval(mine)
            paired = key != baseline and seeds[key] == seeds[baseline] and not (bounds[key] or bounds[baseline])
            difference = paired_interval(mine, values[baseline]) if paired else (None, None, None)
            rows.append({"metric": metric, "policy": policy, "cluster": cluster, "mean": mean, "ci_low": low,
                         "ci_high": high, **dict(zip(DIFFERENCE, difference, strict=True)),
                         "values": mine.tolist(), "censored": bounds[key], "feasible": feasible[key]})
    return rows


def metric_value(summary: Row, metric: str) -> float:
    """Returns a dotted metric of a summary; NaN if it has no value.

    Raises:
        UserError: the summary has no such number.
    """
    known = flat(summary)
    value = known.get(metric, "")
    if isinstance(value, str):
        raise unknown("metric", metric, [name for name in known if name.startswith(("online.", "offline."))])
    return math.nan if value is None else float(value)


def metrics_of(params: Sequence[Row], wanted: Sequence[str] = (), batch: bool = False) -> list[str]:
    """Returns the metrics to show: `wanted` (default: `compare`'s), and cache metrics if policies
    use prefix caching.

    For a `batch` of offline requests alone, the metrics of its completion are added.
    """
    cached = CACHE_METRICS if any(map(keeps_prefixes, params)) else ()
    first = [LATE, *((MAKESPAN, BATCH_TOKENS, LEFT, DUE) * batch), SERVED, COMPUTED]
    return list(dict.fromkeys([*first, *(wanted or load_yaml("", "compare")["metrics"]), *cached]))


# --- As text ----------------------------------------------------------------------------------------------------------
def unit(metric: str) -> str:
    """Returns the unit in which a metric is shown; empty if it has none."""
    return TITLES[metric][1] if metric in TITLES else next(
        (one for end, one in UNITS.items() if metric.endswith(end)), "")


def heading(metric: str) -> str:
    """Returns a metric's title with its unit."""
    title = TITLES[metric][0] if metric in TITLES else re.sub(r"[._]", " ", metric)
    return f"{title} ({unit(metric)})" if unit(metric) else title


def shown(metric: str, value: float | None, sign: str = "") -> str:
    """Returns a metric in its unit, without the unit's name."""
    value = None if missing(value) else FACTORS.get(unit(metric), 1.0) * value  # type: ignore[operator]
    return minus(as_text(value, f"{sign}.2f") if unit(metric) == "%" else number(value, 3, sign))


def cell(row: Row, metric: str, keys: Sequence[str] = ESTIMATE) -> str:
    """Returns a row's value, or its difference to the baseline, with the interval."""
    sign, bound = ("", bool(row.get("censored"))) if keys is ESTIMATE else ("+", False)
    return at_least(with_interval(*(row[key] for key in keys), form=partial(shown, metric, sign=sign)), bound)
