"""Sentences that say what figures show, computed from the same numbers and no stronger than their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ooco_gym.metrics.statistics import interval, paired_interval
from ooco_gym.render.over_time import WORK, TimeAxis, online_quality, work_name
from ooco_gym.render.record import Record
from ooco_gym.render.totals import Groups, idle_seeds, values_of, within_budget
from ooco_gym.report import percent

KEPT_UP = 0.98  # PROTOCOL, capacity: the backlog holds if this share of what arrived in the second half is completed
THRASH = 0.25  # evictions for each finished offline request from which memory is said to thrash
EQUAL = 0.001  # of the offline output: differences below are not spelled out
MUCH_WASTE = 0.2  # recomputed over served tokens


def violation_words(groups: Groups, budget: float) -> list[str]:
    """Who keeps the promises, and from when on one that does not breaks them."""
    lines = []
    for label, members in groups.items():
        idle = idle_seeds(members)
        if idle:
            where = "" if len(idle) == len(members) else f" on seed {', '.join(map(str, idle))}"
            lines.append(f"Under {label} no online request arrived in the window{where}: there is no violation rate, "
                         "and it is not ranked.")
            continue
        mean, low, high = interval(values_of(members, "online", "violation_rate"))
        kept = within_budget(members, budget)
        bracket = "" if np.isnan(low) else f" [{percent(low)}, {percent(high)}]"
        if kept:
            verdict = f"within the {percent(budget, 0)} allowed"
        elif not np.isnan(low) and mean <= budget:
            verdict = (f"on average within the {percent(budget, 0)} allowed, but the interval is not, "
                       "so it is not ranked")
        else:
            verdict = f"more than the {percent(budget, 0)} allowed, so it is not ranked"
        lines.append(f"Under {label}, {percent(mean)}{bracket} of the online requests violate their SLO: {verdict}.")
    return lines


def service_words(groups: Groups, budget: float) -> list[str]:
    """What was served offline, whether it kept up, and what the first policy gains over the others."""
    lines = []
    ranked = [label for label, members in groups.items() if within_budget(members, budget)]
    for label, members in groups.items():
        kept = values_of(members, "offline", "kept_up_share")
        behind = kept < KEPT_UP  # NaN, where nothing arrived, is not behind
        if behind.any():
            some = "" if behind.all() else f" on {behind.sum()} of {len(kept)} seeds"
            lines.append(f"{label} does not keep up with the offline load{some}: of what arrived in the window's "
                         f"second half, {percent(float(kept[behind].mean()), 1)} was completed in it, and the backlog "
                         "grows.")
    seeds = {label: [record.seed for record in members] for label, members in groups.items()}
    first = next(iter(groups))
    for label in list(groups)[1:]:
        if seeds[label] != seeds[first]:
            continue
        lines.append(_service_difference(groups, first, label, [name for name in (first, label) if name not in ranked]))
    return lines


def _service_difference(groups: Groups, first: str, other: str, unranked: Sequence[str]) -> str:
    mine, theirs = (values_of(groups[label], "offline", "output_tokens_per_s") for label in (first, other))
    mean, low, high = paired_interval(mine, theirs)
    base = float(theirs.mean())
    size = f"{abs(mean):,.0f} offline output tokens a second" + (
        f" ({percent(abs(mean) / base, 1)})" if base > 0 else "")
    if np.isnan(low) and abs(mean) < EQUAL * base:
        text = f"On one seed, {first} and {other} complete the same offline output to within {percent(EQUAL, 1)}"
    elif np.isnan(low):
        text = f"On one seed, {first} completes {size} {'more' if mean >= 0 else 'fewer'} than {other}"
    elif low > 0 or high < 0:
        text = (f"{first} completes {size} {'more' if mean > 0 else 'fewer'} than {other} "
                f"(95 % interval of the difference: {low:+,.0f} to {high:+,.0f})")
    else:
        text = (f"Between {first} and {other} no difference in offline output is shown "
                f"(95 % interval of the difference: {low:+,.0f} to {high:+,.0f} tokens a second)")
    if any(idle_seeds(groups[label]) for label in (first, other)):
        text += "; without online requests this is no ranking"
    elif unranked:
        text += (f"; as {' and '.join(unranked)} break{'s' if len(unranked) == 1 else ''} the SLO budget, this is no "
                 "ranking")
    return text + "."


def waste_words(groups: Groups) -> list[str]:
    """Recomputed tokens, and memory that thrashes."""
    lines = []
    for label, members in groups.items():
        served = values_of(members, "offline", "prompt_tokens_per_s") + values_of(members, "offline",
                                                                                "output_tokens_per_s")
        wasted = values_of(members, "offline", "wasted_tokens_per_s")
        evicted, done = (values_of(members, "offline", name).sum() for name in ("evictions", "finished"))
        if served.sum() > 0 and wasted.sum() > MUCH_WASTE * served.sum():
            lines.append(f"{label} recomputes {percent(wasted.sum() / served.sum(), 0)} as many tokens as it serves "
                         "offline.")
        if evicted > THRASH * max(1.0, done):
            lines.append(f"Memory thrashes under {label}: {evicted:,.0f} evictions for {done:,.0f} finished offline "
                         "requests.")
    return lines or ["No policy recomputes more than a fifth of what it serves offline, and memory does not thrash."]


def latency_words(records: Sequence[Record], budget: float) -> list[str]:
    """When each record is worst, and how long it is over the budget."""
    lines = []
    for record in records:
        edges, which, quality = online_quality(record)
        bins = len(edges) - 1
        counts = np.bincount(which, minlength=bins)
        broken = np.bincount(which, quality["violated"], minlength=bins)
        if not counts.sum():
            lines.append(f"{record.label}: no online request arrived (seed {record.seed}).")
            continue
        if not broken.sum():
            lines.append(f"{record.label}: no online request violates (seed {record.seed}).")
            continue
        rate = np.divide(broken, counts, out=np.zeros(bins), where=counts > 0)
        over, worst, axis = rate > budget, int(rate.argmax()), TimeAxis(record)
        at = axis.at(np.array([edges[worst]]))[0]
        lines.append(f"{record.label} (seed {record.seed}): over the budget in {over.sum()} of {bins} intervals of "
                     f"{_span(edges[1] - edges[0])}, which hold {percent(broken[over].sum() / broken.sum(), 0)} of all "
                     f"its violations; the worst one begins at {_clock(at, axis)}, "
                     f"with {percent(float(rate[worst]), 0)}.")
    return lines


def load_words(records: Sequence[Record]) -> list[str]:
    """How much arrives, when most, and how deep the queues get."""
    lines, first = [], records[0]
    if first.samples is not None and len(first.samples["t_s"]):
        online, offline = (first.summary[room]["arrived"] / first.window_s for room in ("online", "offline"))
        edges, which, _ = online_quality(first)
        counts = np.bincount(which, minlength=len(edges) - 1) / np.diff(edges)
        axis, place = TimeAxis(first), int(counts.argmax())
        highest = (f"; online load is highest, {counts[place]:.3g} a second, in the {_span(edges[1] - edges[0])} from "
                   f"{_clock(axis.at(edges[place:place + 1])[0], axis)}")
        lines.append(f"On average {online:.3g} online and {offline:.3g} offline requests a second arrive"
                     f"{highest if online > 0 else ''}.")
    for record in records:
        if record.samples is not None and len(record.samples["t_s"]):
            waiting = (record.samples["online_waiting"] + record.samples["offline_waiting"]).sum(axis=1)
            place = int(waiting.argmax())
            axis = TimeAxis(record)
            lines.append(f"Under {record.label} at most {waiting[place]:,.0f} requests wait for their prefill, at "
                         f"{_clock(axis.at(record.samples['t_s'][place:place + 1])[0], axis)}.")
    return lines


def instance_words(records: Sequence[Record]) -> list[str]:
    """What the instances were busy with, by role, over the whole run."""
    lines = []
    for record in records:
        roles: dict[str, list[Mapping[str, Any]]] = {}
        for one in record.summary["instances"]:
            roles.setdefault(one["role"], []).append(one)
        parts = []
        for role, members in roles.items():
            mean = {key: float(np.mean([one[key] for one in members])) for key in (
                "busy_share", "online_prefill_share", "offline_prefill_share", "decode_share", "kv_mean_share")}
            kinds = ", ".join(f"{work_name(key, record)} {percent(mean[key], 0)}" for key in WORK if mean[key] > 0)
            parts.append(f"{role} busy {percent(mean['busy_share'], 0)} of the time ({kinds or 'idle'}), KV memory "
                         f"{percent(mean['kv_mean_share'], 0)} full on average")
        lines.append(f"{record.label}: {'; '.join(parts)}.")
    return lines


def _span(seconds: float) -> str:
    return f"{seconds / 60:g} minutes" if seconds > 60 else "minute" if seconds == 60 else f"{seconds:g} seconds"


def _clock(value: float, axis: TimeAxis) -> str:
    if axis.short:
        return f"minute {value:.3g}"
    minutes = round(value * 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}"
