"""What was played and how to play it again, in words and commands."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ooco_gym.errors import UserError
from ooco_gym.peak import short_name
from ooco_gym.render.record import Record
from ooco_gym.report import Table
from ooco_gym.resources import load_yaml, names
from ooco_gym.scenario import workload_name

PROTOCOL_WORDS = (
    "TTFT is the time from a request's arrival to its first token; TPOT the time from there to its finish over the "
    "output tokens but one. An online request violates if its TTFT is over the SLO, or its TPOT (outputs shorter than "
    "{short} tokens: its finish against arrival + TTFT + (n − 1) TPOT). TPOT counted from the first decode step on is "
    "reported beside it. Counted are the requests that arrive in the measured window, after {warmup:g} s of warm-up "
    "under the same policy and load; what is rejected or unfinished past its deadline violates. Offline service counts "
    "at completion; reference GPU-seconds are a request's prefill alone and its output tokens' share of a decode step "
    "of 64. Recomputed tokens are those of evictions and interruptions. A policy is ranked only if the upper 95 % "
    "limit of its violation rate is at most {budget:g} %.")


def protocol_words(record: Record) -> str:
    """The protocol's definitions with this record's figures."""
    protocol, slo = record.scenario["protocol"], record.scenario["slo"]
    return PROTOCOL_WORDS.format(short=slo["tpot_min_tokens"], warmup=float(protocol["warmup_s"]),
                                 budget=100 * float(protocol["violation_budget"]))


def conditions_table(record: Record, seeds: Sequence[int]) -> Table:
    """The scenario that a record was played in, one row a part."""
    scenario = record.scenario
    slo, offline, predictor = scenario["slo"], scenario["offline"], scenario["predictor"]
    workload = _loaded("workload", scenario["workload"])
    arrived = record.summary["online"]["arrived"] / record.window_s
    parts = [
        ("cluster", _cluster(_loaded("cluster", scenario["cluster"]))),
        ("online workload", f"{workload_name(scenario['workload'])}: {arrived:.3g} requests/s in the window, "
                            f"{scenario['rate_scale']:.4g} of the workload's own rate"),
        *([("", workload["description"])] if workload.get("description") else []),
        *([("assumed", workload["assumed"])] if workload.get("assumed") else []),
        ("SLO", f"{slo['name']}: TTFT {slo['ttft_s']:g} s, TPOT {1000 * slo['tpot_s']:g} ms, counted from "
                f"{slo['tpot_from'].replace('_', ' ')}"),
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


def command_of(record: Record) -> str | None:
    """The `ooco-gym simulate` that plays a record again, or None where a setting has no short name."""
    scenario = record.scenario
    if scenario["predictor"]["name"] != "exact" or dict(scenario["protocol"]) != load_yaml("protocol", "default"):
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
    if offline.get("name", "ooc") != "ooc":
        words.append(f"offline={offline['name']}")
    words += [f"offline.{key}={offline[key]}" for key in ("mode", "rate", "jobs") if offline.get(key) is not None]
    words += [f"{key}={scenario[key]}" for key in ("rate_scale", "start_s", "duration_s", "seed")
              if scenario[key] is not None]
    words += [f"{key}={scenario[key]}" for key, usual in (("timing", "ooco"), ("jitter", 0.0))
              if scenario[key] != usual]
    return " ".join(["ooco-gym simulate", *map(shlex.quote, words)])


def _short_name(group: str, value: Any) -> str | None:
    """How a command names a group's value: a shipped name, or the path of a file."""
    if isinstance(value, str):
        return value
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
