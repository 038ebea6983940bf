"""Sentences that say what figures show, no stronger than their intervals; a run's conditions and the command for it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.metrics.statistics import interval, paired_interval
from ooco_gym.peak import short_name
from ooco_gym.protocol import KEPT_UP
from ooco_gym.render.classes import class_words
from ooco_gym.render.figures import (
    WORK,
    Groups,
    TimeAxis,
    idle_seeds,
    online_quality,
    values_of,
    within_budget,
    work_name,
)
from ooco_gym.render.record import RunRecord
from ooco_gym.report import Table, percent
from ooco_gym.resources import load_yaml, names

THRASH = 0.25  # evictions for each finished offline request from which memory is said to thrash
EQUAL = 0.001  # of the offline output: differences below are not spelled out
MUCH_WASTE = 0.2  # recomputed over served tokens
PROTOCOL_WORDS = (
    "TTFT is the time from a request's arrival to its first token; TPOT the time from there to its finish over the "
    "output tokens but one. An online request violates if its TTFT is over the SLO, or its TPOT (outputs shorter than "
    "{short} tokens: its finish against arrival + TTFT + (n − 1) TPOT). TPOT counted from the first decode step on is "
    "reported beside it. Counted are the requests that arrive in the measured window, after {warmup:g} s of warm-up "
    "under the same policy and load; what is rejected or unfinished past its deadline violates. Offline service counts "
    "at completion; reference GPU-seconds are a request's prefill alone and its output tokens' share of a decode step "
    "of 64. Recomputed tokens are those of evictions and interruptions. A policy is ranked only if the upper 95 % "
    "limit of its violation rate is at most {budget:g} %.")


# --- What the figures show --------------------------------------------------------------------------------------------
def violation_words(groups: Groups, budget: float) -> list[str]:
    """Which policies keep the SLO, and which are over the budget."""
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


def latency_words(records: Sequence[RunRecord], budget: float) -> list[str]:
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


def load_words(records: Sequence[RunRecord]) -> list[str]:
    """How much arrives, when most, and how deep the queues get."""
    lines, first = [], records[0]
    if first.samples is not None and len(first.samples["t_s"]):
        online, offline = (first.summary[kind]["arrived"] / first.window_s for kind in ("online", "offline"))
        edges, which, _ = online_quality(first)
        counts = np.bincount(which, minlength=len(edges) - 1) / np.diff(edges)
        axis, index = TimeAxis(first), int(counts.argmax())
        highest = (f"; online load is highest, {counts[index]:.3g} a second, in the {_span(edges[1] - edges[0])} from "
                   f"{_clock(axis.at(edges[index:index + 1])[0], axis)}")
        lines.append(f"On average {online:.3g} online and {offline:.3g} offline requests a second arrive"
                     f"{highest if online > 0 else ''}.")
    for record in records:
        if record.samples is not None and len(record.samples["t_s"]):
            waiting = (record.samples["online_waiting"] + record.samples["offline_waiting"]).sum(axis=1)
            index = int(waiting.argmax())
            axis = TimeAxis(record)
            lines.append(f"Under {record.label} at most {waiting[index]:,.0f} requests wait for their prefill, at "
                         f"{_clock(axis.at(record.samples['t_s'][index:index + 1])[0], axis)}.")
    return lines


def instance_words(records: Sequence[RunRecord]) -> list[str]:
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


# --- Conditions, and how to play a run again --------------------------------------------------------------------------
def protocol_words(record: RunRecord) -> str:
    """The protocol's definitions with this record's figures."""
    protocol, slo = record.scenario["protocol"], record.scenario["slo"]
    return PROTOCOL_WORDS.format(short=slo["tpot_min_tokens"], warmup=float(protocol["warmup_s"]),
                                 budget=100 * float(protocol["violation_budget"]))


def conditions_table(record: RunRecord, seeds: Sequence[int]) -> Table:
    """The scenario that a record was played in, one row a part."""
    scenario = record.scenario
    slo, offline, predictor = scenario["slo"], scenario["offline"], scenario["predictor"]
    workload = _loaded("workload", scenario["workload"])
    arrived = record.summary["online"]["arrived"] / record.window_s
    parts = [
        ("cluster", _cluster(_loaded("cluster", scenario["cluster"]))),
        ("online workload", f"{short_name(scenario['workload'])}: {arrived:.3g} requests/s in the window, "
                            f"{scenario['rate_scale']:.4g} of the workload's own rate"),
        *([("", workload["description"])] if workload.get("description") else []),
        *([("assumed", workload["assumed"])] if workload.get("assumed") else []),
        ("SLO", f"{slo['name']}: TTFT {slo['ttft_s']:g} s, TPOT {1000 * slo['tpot_s']:g} ms, counted from "
                f"{slo['tpot_from'].replace('_', ' ')}"),
        *([("classes", class_words(scenario["classes"]))] if scenario.get("classes") else []),
        ("offline load", _offline(offline)),
        ("measured window", f"{record.window_s / 3600:.4g} h from {record.day_start_s / 3600:.4g} h on, after "
                            f"{scenario['protocol']['warmup_s']:g} s of warm-up"),
        ("seeds", ", ".join(map(str, seeds))),
        ("time model", f"{scenario['timing']}, jitter {scenario['jitter']:g}; policies believe: {predictor['name']}"),
        ("protocol", f"version {scenario['protocol'].get('version', '?')}"),
    ]
    return Table("Conditions", ("", "what"), tuple(parts))


def _offline(offline: Mapping[str, Any]) -> str:
    mode = str(offline.get("mode", "rate"))
    rate = f", {offline['rate']:g} requests/s" if mode == "rate" else ""
    return f"{offline.get('name', 'ooc')}: {mode}{rate}"


def _cluster(cluster: Mapping[str, Any]) -> str:
    pools = [f"{group.get('count', 1)} {role} of {group.get('tp', 1) * group.get('pp', 1)} × "
             f"{short_name(group['chip'])}"
             for role in ("relaxed", "strict", "mixed") for group in cluster.get(role) or ()]
    return f"{short_name(cluster)}: {short_name(cluster.get('model') or '?')}, {', '.join(pools)}"


def command_of(record: RunRecord) -> str | None:
    """The `ooco-gym simulate` that plays a record again, or None where a setting has no short name."""
    scenario = record.scenario
    if scenario["predictor"]["name"] != "exact" or dict(scenario["protocol"]) != load_yaml("protocol", "default"):
        return None
    if isinstance(scenario["timing"], Mapping):
        return None
    words = [f"policy={record.label.partition(' (')[0]}"]  # without the folder that tells two of them apart
    for group in ("workload", "cluster"):
        name = _short_name(group, scenario[group])
        if name is None:
            return None
        words.append(f"{group}={name}")
    slo, offline = scenario["slo"], scenario["offline"]
    if slo["name"] in names("slo"):
        words.append(f"slo={slo['name']}")
    words += [f"slo.{key}={slo[key]}" for key in ("ttft_s", "tpot_s", "tpot_from")
              if slo["name"] not in names("slo") or load_yaml("slo", slo["name"]).get(key, slo[key]) != slo[key]]
    if scenario.get("classes"):
        words.append(f"classes={_mapping_word(scenario['classes'])}")
    if offline.get("class"):
        words.append(f"+offline.class={offline['class']}")
    if offline.get("name", "ooc") != "ooc":
        words.append(f"offline={offline['name']}")
    words += [f"offline.{key}={offline[key]}" for key in ("mode", "rate", "jobs") if offline.get(key) is not None]
    words += [f"{key}={scenario[key]}" for key in ("rate_scale", "start_s", "duration_s", "seed")
              if scenario[key] is not None]
    words += [f"{key}={scenario[key]}" for key, usual in (("timing", "ooco"), ("jitter", 0.0))
              if scenario[key] != usual]
    return " ".join(["ooco-gym simulate", *map(shlex.quote, words)])


def _mapping_word(value: Any) -> str:
    """A mapping as a command line has it; what is null is left out."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_mapping_word(one)}" for key, one in value.items() if one is not None) + "}"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}"


def _short_name(group: str, value: Any) -> str | None:
    """How a command names a group's value: a shipped name, or the path of a file."""
    if isinstance(value, str):
        return value
    if value.get("class"):
        return None
    if value.get("path"):
        return str(value["path"])
    name = str(value.get("mix") or value.get("name"))
    if value.get("mix"):
        return name
    return name if name in names(group) and dict(load_yaml(group, name)) == dict(value) else None


def _loaded(group: str, value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    try:
        return load_yaml(group, value)
    except UserError:  # a mix or a trace file
        return {"name": str(value)}
