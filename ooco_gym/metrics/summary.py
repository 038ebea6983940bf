"""A run's metrics, for scripts, tests and sweeps (`docs/outputs.md`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ooco_gym.metrics.chosen import Chosen, counted
from ooco_gym.metrics.instances import fleet_metrics, instance_metrics, offloading_metrics, utilization_metrics
from ooco_gym.metrics.jobs import job_metrics
from ooco_gym.metrics.kept_up import kept_up_metrics
from ooco_gym.metrics.quality import (
    Rules,
    end_ps_of,
    judge,
    judge_deadlines,
    mean,
    quantile,
    rules_of,
    seen_until,
    worst_window_rate,
)
from ooco_gym.metrics.requests import reasons_of
from ooco_gym.report import percent
from ooco_gym.rounding import steady
from ooco_gym.run import RunRecord
from ooco_gym.sim.batch import ITL_FIRST_PS, ITL_WIDTH
from ooco_gym.sim.state import ABORTED, FINISHED, FUTURE, NEVER, PS_PER_S, REJECTED
from ooco_gym.workload import RequestClass

QUANTILES = (("p50", 0.50), ("p90", 0.90), ("p99", 0.99))


def summarise(run: RunRecord) -> dict[str, Any]:
    """Returns a run's metrics under the protocol's definitions.

    Online metrics cover requests that arrived in the measured window; offline service covers
    completions in it, whenever they arrived. Times are seconds, rates per second of simulated time,
    shares between 0 and 1. Undefined values (no request, no second token) are None. Times cover all
    arrivals: an event that did not happen by the run's end counts as later, and metrics that are
    therefore lower bounds are listed in `censored`.

    Returns:
        A JSON-able mapping, with the names of `docs/outputs.md`.
    """
    return {
        "policy": run.policy,
        "seed": run.scenario.seed,
        "simulated_s": run.simulated_s,
        "window_s": run.window_s[1] - run.window_s[0],
        "arrivals_s": run.arrival_window_s[1] - run.arrival_window_s[0],
        "online": online_metrics(run),
        "offline": offline_metrics(run),
        **rejected_metrics(run),
        **goodput_metrics(run),
        **session_metrics(run),
        **job_metrics(run),
        **offloading_metrics(run),
        **fleet_metrics(run),
        **batch_metrics(run),
        **({} if run.class_id is None else {"classes": class_metrics(run)}),
        "utilization": utilization_metrics(run),
        "instances": instance_metrics(run),
        "wall_s": run.wall_s,
    }


def keeps_prefixes(params: Mapping[str, Any]) -> bool:
    """Returns whether a policy with these parameters uses prefix caching."""
    return params.get("prefix_caching") == "on"


def online_metrics(run: RunRecord) -> dict[str, Any]:
    """Returns the service quality of online requests that arrived in the window.

    `violation_rate` uses the scenario's `slo.tpot_from`; the rates under both definitions of TPOT
    are given, too. All are shares of arrivals. An `undecided` request, unfinished at the end
    without a violation so far, neither violates (except in `violation_rate_at_most`) nor attains.
    If classes differ in weight, these rates and the worst one are weighted.
    """
    requests, rules, weights = counted(run, online=True), rules_of(run), _weights(run)
    started, finished, violated, undecided, ttft_missed, tpot_missed, deadline_missed = requests.columns(
        lambda some: judge(some, rules), "started", "finished", "violated", "undecided", "ttft_missed", "tpot_missed",
        "deadline_missed")
    measured = {
        "arrived": len(requests),
        **_counts(run, requests, finished, started, undecided),
        **_infeasible(run, requests, violated, weights),
        "violation_rate": _share(violated, weights),
        "violation_rate_at_most": _share(violated | undecided, weights),
        **_either(requests, rules, weights, finished),
        "ttft_attainment": _mean(started & ~ttft_missed),
        "tpot_attainment": _mean(finished & ~tpot_missed),
        "deadline_attainment": _mean(finished & ~deadline_missed),
        "worst_10min_violation_rate": _plain(worst_window_rate(
            requests.each(lambda some: some["arrival_ps"] / PS_PER_S), violated, *run.window_s, weights=weights)),
    }
    measured |= _times({
        **_latencies(requests, rules, started, finished),
        **_spread("tpot_decode", _column(requests, rules, "tpot_decode_s"), finished),
        "lateness_p99_s": quantile(_column(requests, rules, "lateness_s"), finished, 0.99),
        "normalized_latency_s": mean(_column(requests, rules, "normalized_latency_s"), finished)})
    return measured | _gaps(run, requests) | _served(run, run.requests["online"] == 1)


def _infeasible(run: RunRecord, requests: Chosen, violated: np.ndarray, weights: np.ndarray | None) -> dict[str, Any]:
    """Returns requests that violate their SLO even alone on an idle cluster, whatever the policy does, under
    `infeasible`; empty without any. `ttft_s` and `tpot_s` are the SLOs that they need at least."""
    if run.least_ps is None:
        return {}
    first, rest = run.least_ps[:, requests.mask]
    zero, given = 0 * first, {name: requests[name] for name in ("output_tokens", "ttft_slo_ps", "tpot_slo_ps")}
    best = judge({**given, "arrival_ps": zero, "first_token_ps": first, "first_decode_ps": first, "max_gap_ps": zero,
                  "finish_ps": first + rest, "status": zero + FINISHED, "generated_tokens": given["output_tokens"]},
                 rules_of(run))
    kept, slow = ~best.violated, rest > (given["output_tokens"] - 1) * given["tpot_slo_ps"]
    others = _share(violated[kept], None if weights is None else weights[kept]) if kept.any() else None
    return {} if kept.all() else {"infeasible": {
        "requests": int((~kept).sum()), "of": len(kept), "share": _share(~kept, weights),
        "violation_rate_of_others": others,
        **{name: float(times[missed].max()) if missed.any() else None for name, times, missed in (
            ("ttft_s", best.ttft_s, best.ttft_missed), ("tpot_s", best.tpot_s, best.tpot_missed & slow))}}}


def _column(requests: Chosen, rules: Rules, name: str) -> np.ndarray:
    """Returns one array of `Quality` for all of some requests."""
    return requests.columns(lambda some: judge(some, rules), name)[0]


def _either(requests: Chosen, rules: Rules, weights: np.ndarray | None, finished: np.ndarray) -> dict[str, Any]:
    """Returns violation rate and attainment under both definitions of TPOT."""
    measured = {}
    for name, from_decode in (("first_token", False), ("first_decode", True)):
        own = replace(rules, from_decode=from_decode)
        violated, missed = requests.columns(lambda some, own=own: judge(some, own), "violated", "tpot_missed")
        measured |= {f"violation_rate_{name}": _share(violated, weights),
                    f"tpot_attainment_{name}": _mean(finished & ~missed)}
    return measured


def _counts(run: RunRecord, requests: Chosen, finished: np.ndarray, started: np.ndarray, undecided: np.ndarray,
            promise: Any = None) -> dict[str, Any]:
    """Returns numbers of online requests: finished, without a token, undecided, and with an SLO of
    their own.

    An SLO of their own differs from `promise` (`ttft_s`, `tpot_s`; None: the scenario's).
    """
    promise = promise or run.scenario.slo
    own = requests["ttft_slo_ps"] != round(promise.ttft_s * PS_PER_S)
    own |= requests["tpot_slo_ps"] != round(promise.tpot_s * PS_PER_S)
    return {"finished": int(finished.sum()), "unserved": int((~started).sum()), "undecided": int(undecided.sum()),
            "own_slos": int(own.sum())}


def rejected_metrics(run: RunRecord) -> dict[str, Any]:
    """Returns counts of requests that can never be served, under `rejected`; empty without any."""
    requests = run.requests[(run.requests["counted"] == 1) & (run.requests["status"] == REJECTED)]
    if not len(requests):
        return {}
    online, reasons = int(requests["online"].sum()), reasons_of(run, requests)
    tokens = requests["prompt_tokens"].astype(np.int64) + requests["output_tokens"]
    return {"rejected": {"online": online, "offline": len(requests) - online,
                         "reasons": {reason: reasons.count(reason) for reason in sorted(set(reasons))},
                         "shortest_tokens": int(tokens.min())}}


def goodput_metrics(run: RunRecord) -> dict[str, Any]:
    """Returns requests and tokens/s, prompt and output, of those completed in the window that kept their SLOs or
    deadline under `goodput`, and numbers of requests that have left, under `aborted`; empty where no class is named, no
    request has a deadline and none may leave."""
    if run.class_id is None and run.due_ps is None:
        return {}
    done, window_s, goodput = completed_within(run.requests, run.window_s), run.window_s[1] - run.window_s[0], {}
    for online, name in ((1, "online"), (0, "offline")):
        chosen = done & (run.requests["online"] == online)
        mine = Chosen(run.requests, chosen)
        kept = ~mine.columns(lambda some: judge(some, rules_of(run)), "violated")[0] if online else (
            mine["finish_ps"] <= (NEVER if run.due_ps is None else run.due_ps[chosen]))
        tokens = mine["prompt_tokens"].astype(np.int64) + mine["output_tokens"]
        goodput |= {f"{name}_requests_per_s": float(kept.sum() / window_s),
                    f"{name}_tokens_per_s": float(tokens[kept].sum() / window_s)}
    found: dict[str, Any] = {"goodput": goodput}
    if run.leaves:
        gone = run.requests[(run.requests["counted"] == 1) & (run.requests["status"] == ABORTED)]
        online, started = gone["online"] == 1, gone["generated_tokens"] > 0
        found["aborted"] = {"online": int(online.sum()), "offline": int((~online).sum()),
                            "without_a_token": int((~started).sum())}
    return found


def infeasible_words(found: Mapping[str, Any] | None) -> list[str]:
    """Returns a sentence on the requests of `infeasible`, if any."""
    if not found:
        return []
    least = [f"slo.{name} of {found[name]:.4g}" for name in ("ttft_s", "tpot_s") if found[name] is not None]
    others = f"; of the others {percent(found['violation_rate_of_others'])} violate theirs"
    return [f"{found['requests']:,} of {found['of']:,} online requests can never meet their SLO on these chips, even "
            f"alone on an idle cluster: they need {' and '.join(least)} or more, or faster or more chips an instance"
            f"{others * (found['requests'] < found['of'])}."]


def session_metrics(run: RunRecord) -> dict[str, Any]:
    """Returns metrics of closed sessions, under `sessions`; empty for open sessions.

    They are turns that arrived in the window after another turn, turns planned in the window that
    never arrived, and the shift of arrivals.
    """
    if run.turns is None:
        return {}
    start_ps, end_ps = (round(edge * PS_PER_S) for edge in run.window_s)
    planned_ps, waits = np.rint(run.turns.planned_s * PS_PER_S), run.turns.waits
    planned = waits & (planned_ps >= start_ps) & (planned_ps < end_ps)
    here = waits & (run.requests["counted"] == 1)
    shift_s = (run.requests["arrival_ps"] - planned_ps)[here] / PS_PER_S
    return {"sessions": {"mode": "closed", "think": run.turns.think, "turns": int(here.sum()),
                         "turns_not_reached": int((planned & (run.requests["status"] == FUTURE)).sum()),
                         "shift_s": {"mean": _mean(shift_s),
                                     "p99": float(np.quantile(shift_s, 0.99)) if shift_s.size else None}}}


def batch_metrics(run: RunRecord) -> dict[str, Any]:
    """Returns makespan and throughput of a trace's offline requests that run alone, under `batch`.

    The makespan lasts from their first arrival to their last end; None if some are unfinished. The
    numbers of unfinished and late requests are added. Empty if online requests arrived, or
    synthetic offline requests were added.
    """
    mine = counted(run, online=False)
    if not run.scenario.file_alone or len(counted(run, online=True)) or not len(mine):
        return {}
    rejected, finish_ps = mine["status"] == REJECTED, mine["finish_ps"]
    due = _deadlines(run, mine.mask)
    left = int(len(mine) - (rejected | np.isin(mine["status"], (FINISHED, ABORTED))).sum())
    found = {"left": left, "late": due["deadline_misses"] + due["deadline_undecided"] if due else None}
    if left or rejected.all():
        return {"batch": dict.fromkeys(("makespan_s", "output_tokens_per_s", "total_tokens_per_s")) | found}
    span_s = int(finish_ps[~rejected].max() - mine["arrival_ps"].min()) / PS_PER_S
    output, prompt = (int(mine[f"{kind}_tokens"][~rejected].sum()) for kind in ("output", "prompt"))
    return {"batch": {"makespan_s": span_s, "output_tokens_per_s": output / span_s,
                      "total_tokens_per_s": (output + prompt) / span_s, **found}}


def class_metrics(run: RunRecord) -> dict[str, dict[str, Any]]:
    """Returns each class's SLO and metrics, for a run with named classes (docs/outputs.md).

    `online` and `offline` are included if they have requests.
    """
    assert run.class_id is not None
    return {one.name: _class_metrics(run, one, run.class_id == index) for index, one in enumerate(run.scenario.classes)
            if index > 1 or (run.class_id == index).any()}


def _class_metrics(run: RunRecord, one: RequestClass, chosen: np.ndarray) -> dict[str, Any]:
    inside = (run.requests["counted"] == 1) & chosen
    requests, served = Chosen(run.requests, inside), _served(run, chosen)
    measured: dict[str, Any] = {"online": one.online, "arrived": len(requests)}
    if one.online:
        rules = rules_of(run)
        started, finished, violated, undecided, ttft_missed, tpot_missed = requests.columns(
            lambda some: judge(some, rules), "started", "finished", "violated", "undecided", "ttft_missed",
            "tpot_missed")
        measured |= {"weight": one.weight, "ttft_slo_s": one.ttft_s, "tpot_slo_s": one.tpot_s,
                    **_counts(run, requests, finished, started, undecided, one),
                    "violations": int(violated.sum()), "violation_rate": _mean(violated),
                    "ttft_misses": int(ttft_missed.sum()), "tpot_misses": int(tpot_missed.sum())}
        return measured | _times(_latencies(requests, rules, started, finished)) | served
    done, window_s = _completed(run, chosen), run.window_s[1] - run.window_s[0]
    measured |= {"deadline_s": one.deadline_s, "finished": len(done),
                "reference_gpu_s_per_s": float((done["service_ps"] / PS_PER_S).sum()) / window_s}
    ages = {"age_p99_s": quantile(*queueing_age_s(requests, end_ps_of(run)), 0.99)}
    return measured | _deadlines(run, inside, one.deadline_s) | _times(ages) | served


def _completed(run: RunRecord, chosen: np.ndarray) -> Chosen:
    """Returns the selected requests (bool[n]) that finished in the window."""
    return Chosen(run.requests, chosen & completed_within(run.requests, run.window_s))


def _deadlines(run: RunRecord, inside: np.ndarray, deadline_s: float | None = None) -> dict[str, Any]:
    """Returns numbers of deadlines of some offline requests (bool[n]), of own ones, and of misses;
    empty without deadlines.

    Own deadlines differ from the class's `deadline_s`.
    """
    if deadline_s is None and (run.due_ps is None or (run.due_ps[inside] >= NEVER).all()):
        return {}
    requests = Chosen(run.requests, inside)
    due_ps = np.full(len(requests), NEVER) if run.due_ps is None else run.due_ps[inside]
    missed, undecided = judge_deadlines(requests, due_ps, end_ps_of(run))
    some, usual_ps = due_ps < NEVER, -1.0 if deadline_s is None else deadline_s * PS_PER_S
    own = some & (np.abs(due_ps - requests["arrival_ps"] - usual_ps) > 1.0)
    return {"deadlines": int(some.sum()), "own_deadlines": int(own.sum()), "deadline_misses": int(missed.sum()),
            "deadline_undecided": int(undecided.sum()), "violation_rate": _mean(missed[some & ~undecided])}


def _weights(run: RunRecord) -> np.ndarray | None:
    """Returns the weight of each counted online request, float64[n]; None if all are equal."""
    if run.class_id is None:
        return None
    each = np.array([one.weight for one in run.scenario.classes])[run.class_id]
    mine = each[(run.requests["counted"] == 1) & (run.requests["online"] == 1)]
    return None if not mine.size or (mine == mine[0]).all() else mine


def _share(flags: np.ndarray, weights: np.ndarray | None) -> float | None:
    """Returns the mean of flags, weighted if there are weights."""
    return _mean(flags) if weights is None else float(np.average(flags, weights=weights))


def offline_metrics(run: RunRecord) -> dict[str, Any]:
    """Returns offline service completed within the window, wasted computation and queueing ages.

    `arrived` counts arrivals and `finished` completions in the window; rates are over the window.
    `age_p99_s` is the time from arrival to first token (or to the end) of requests that arrived in
    the window. `left` counts arrived requests unfinished at the window's end. If it is 0, a backlog
    ran out, and `last_finish_s`, the last completion on the window's clock, says when (negative: in
    the warm-up). Waste, evictions, pulls by strict instances (`migrations`) and interrupted
    prefills are those within the window, of all classes.
    """
    window_s = run.window_s[1] - run.window_s[0]
    offline = Chosen(run.requests, run.requests["online"] == 0)
    done = _completed(run, offline.mask)
    served_s = float((done["service_ps"] / PS_PER_S).sum())
    mine = counted(run, online=False)
    return {
        "arrived": len(mine),
        "finished": len(done),
        **_served(run, offline.mask),
        "reference_gpu_s_per_s": served_s / window_s,
        **_deadlines(run, mine.mask),
        **kept_up_metrics(offline, run.arrival_window_s, run.simulated_s),
        "wasted_tokens_per_s": run.counters["wasted_tokens"] / window_s,
        "wasted_gpu_s_per_s": run.counters["wasted_ps"] / PS_PER_S / window_s,
        **{name: int(run.counters[name]) for name in ("evictions", "migrations", "interruptions")},
        **_ages(mine, end_ps_of(run)),
        **_what_is_left(offline, run.window_s),
        **(_jobs(run, mine) if run.scenario.offline.mode == "jobs" else {}),
    }


def _jobs(run: RunRecord, mine: Chosen) -> dict[str, Any]:
    """Returns what a finite batch asks: how many are left at the run's end, the time until the last one is done (None
    while some are left), the mean time until one is done (of those done), and the share done in time."""
    done, due = mine["status"] == FINISHED, _deadlines(run, mine.mask)
    ages_s = (mine["finish_ps"] - mine["arrival_ps"])[done] / PS_PER_S
    left = int((~done & ~np.isin(mine["status"], (REJECTED, ABORTED))).sum())
    late = due.get("violation_rate")
    return {"jobs": {"jobs": len(mine), "left": left, "mean_completion_s": _mean(ages_s),
                     "makespan_s": None if left or not done.any() else float(ages_s.max()),
                     "in_time": None if late is None else 1.0 - late}}


def _ages(requests: Chosen, end_ps: int) -> dict[str, Any]:
    ages = queueing_age_s(requests, end_ps)
    return _times({"age_p99_s": quantile(*ages, 0.99), "age_max_s": quantile(*ages, 1.0)})


def _what_is_left(offline: Chosen, window_s: tuple[float, float]) -> dict[str, Any]:
    """Returns the number of offline requests unfinished at the window's end, and the last completion before it."""
    start_ps, end_ps = (round(edge * PS_PER_S) for edge in window_s)
    finish_ps = offline["finish_ps"]
    done = (offline["status"] == FINISHED) & (finish_ps < end_ps)
    gone = done | ((offline["status"] == ABORTED) & (finish_ps < end_ps))
    last_ps = int(finish_ps[done].max()) if done.any() else None
    return {"left": int((~gone & (offline["arrival_ps"] < end_ps)).sum()),
            "last_finish_s": None if last_ps is None else (last_ps - start_ps) / PS_PER_S}


def _served(run: RunRecord, chosen: np.ndarray) -> dict[str, Any]:
    """Returns token rates and prefix cache metrics of requests (bool[n], of one class).

    `…_tokens_per_s` count requests completed in the window, whenever they arrived;
    `computed_tokens_per_s` counts tokens computed in it, of finished requests or not (None if not
    recorded). `computed_prompt_tokens_per_s` is what completed requests' first prefills computed;
    the other prompt tokens were cached. `looked_up_prompt_tokens` are prompts that arrived and were
    admitted in the window (0 on pools, which keep no prefixes), and `missed_prompt_tokens` their
    uncached tokens. `hit_rate` is the cached share (None on pools), `block_hit_rate` that of whole
    blocks, which alone can be hits. A preempted request's own cached tokens are no hits.
    """
    done, window_s = _completed(run, chosen), run.window_s[1] - run.window_s[0]
    rates = {f"{kind}_tokens_per_s": float(done[f"{kind}_tokens"].sum() / window_s) for kind in ("prompt", "output")}
    progress = None
    if run.done is not None:
        progress = int(run.done.computed_tokens[chosen].sum(dtype=np.int64))
    computed = done["prompt_tokens"] - np.maximum(done["cached_tokens"], 0)
    inside = (run.requests["counted"] == 1) & (run.requests["cached_tokens"] >= 0)
    looked = Chosen(run.requests, chosen & inside)
    prompts, hits = int(looked["prompt_tokens"].sum()), int(looked["cached_tokens"].sum())
    size = run.scenario.cluster.block_tokens
    blocks = int((looked["prompt_tokens"] // size).sum())
    return {**rates, "total_tokens_per_s": sum(rates.values()),
            "computed_tokens_per_s": None if progress is None else progress / window_s,
            "computed_prompt_tokens_per_s": float(computed.sum() / window_s),
            "looked_up_prompt_tokens": prompts,
            "missed_prompt_tokens": prompts - hits,
            "hit_rate": hits / prompts if prompts else None,
            "block_hit_rate": int((looked["cached_tokens"] // size).sum()) / blocks if blocks else None}


def gap_quantile_s(counts: np.ndarray, share: float) -> float | None:
    """Returns a quantile of inter-token times, in seconds, from their logarithmic histogram with bins of 2 %."""
    total = int(counts.sum())
    if total == 0:
        return None
    reached = np.cumsum(counts)
    index = int(np.searchsorted(reached, share * total))
    inside = (share * total - (reached[index] - counts[index])) / counts[index]
    return float(ITL_FIRST_PS / PS_PER_S * steady(math.exp((index - 1 + inside) * ITL_WIDTH)))


def completed_within(requests: np.ndarray, window_s: tuple[float, float]) -> np.ndarray:
    """Returns a mask of the requests that finished in a window (seconds; its end excluded)."""
    start_ps, end_ps = (round(edge * PS_PER_S) for edge in window_s)
    finish_ps = requests["finish_ps"]
    return (requests["status"] == FINISHED) & (finish_ps >= start_ps) & (finish_ps < end_ps)


def queueing_age_s(requests: Chosen, end_ps: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns seconds from arrival to first token (or the run's end), and a mask of those with one."""
    def age_s(some: np.ndarray) -> np.ndarray:
        until_ps = np.where(some["generated_tokens"] >= 1, some["first_token_ps"], seen_until(some, end_ps))
        return (until_ps - some["arrival_ps"]) / PS_PER_S

    return requests.each(age_s), requests["generated_tokens"] >= 1


def _gaps(run: RunRecord, requests: Chosen) -> dict[str, float | None]:
    """Returns inter-token times: the mean from the requests' own times, the quantile from the histogram."""
    several = requests.but(run.requests["generated_tokens"] >= 2)
    gaps = int((several["generated_tokens"] - 1).sum())
    total_s = float(several.each(lambda some: (some["last_token_ps"] - some["first_token_ps"]) / PS_PER_S).sum())
    return {"itl_mean_s": total_s / gaps if gaps else None, "itl_p99_s": gap_quantile_s(run.itl, 0.99)}


Bounded = tuple[float | None, bool]  # a value, and whether it is a lower bound


def _times(found: Mapping[str, Bounded]) -> dict[str, Any]:
    """Returns values by name, and under `censored` the names of lower bounds."""
    return {**{name: value for name, (value, _) in found.items()},
            "censored": [name for name, (_, bound) in found.items() if bound]}


def _latencies(requests: Chosen, rules: Rules, started: np.ndarray, finished: np.ndarray) -> dict[str, Bounded]:
    return _spread("ttft", _column(requests, rules, "ttft_s"), started) | _spread(
        "tpot", _column(requests, rules, "tpot_s"), finished)


def _spread(name: str, values: np.ndarray, exact: np.ndarray) -> dict[str, Bounded]:
    return {f"{name}_mean_s": mean(values, exact),
            **{f"{name}_{label}_s": quantile(values, exact, share) for label, share in QUANTILES}}


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if values.size else None


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else value
