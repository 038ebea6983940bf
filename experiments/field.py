"""`ooco-gym compare sustain=true`: the highest offline rate that each policy sustains, all policies in one table.

Equal hardware (each policy on the cluster of its kind), the same arrivals, lengths and SLOs, the same seeds. The rate
is searched as `capacity` does; what a policy did there (throughput, waste, cache hits, violations) stands beside it.
`ooco-gym compare +preset=field` is the whole field on one page (docs/field.md).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.capacity import definitions_of, notes_of
from experiments.common.output import check_page
from experiments.common.policies import (
    base_policy,
    baseline_of,
    check_names,
    is_learned,
    names_of,
    seeds_of,
)
from experiments.common.rate_search import Limits, Plan, Point, candidates_of, tune
from experiments.common.runner import Jobs
from experiments.common.store import Store
from experiments.common.sustain import Bench, Sustained, glance_of, placed, sustain
from experiments.field_page import write_results
from ooco_gym.commands.simulate import SEARCHED, of_cell, say_played, scenario_of
from ooco_gym.errors import UserError, check_keys, unknown
from ooco_gym.metrics.statistics import interval, resampled_interval, within
from ooco_gym.peak import label, short_name
from ooco_gym.policy import get_policy, spelled
from ooco_gym.render import reading, write_report

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from ooco_gym.scenario import Scenario

SCHEMA = "ooco-gym/field/1"
CELL_KEYS = ("workload", "cluster", "slo", "duration_s", "params", "search", "without")


@dataclass(frozen=True)
class Cell:
    """One condition under which all policies are measured.

    Attributes:
        name: workload and cluster.
        scenario: at its load.
        plan: how rates are searched.
        trial: the same while tuning.
        params: set for every policy that has them, such as `prefix_caching`.
        without: policies that are not measured here.
    """

    name: str
    scenario: Scenario
    plan: Plan
    trial: Plan
    params: Mapping[str, Any] = field(default_factory=dict)
    without: tuple[str, ...] = ()

    def full_name(self, policy: str) -> str:
        """The policy with the cell's own parameters, as it is simulated; its own setting of one stays.

        Learned ones play beside the partner that they name, as it is.
        """
        if is_learned(policy):
            return policy
        base, _, text = policy.partition(":")
        own = {pair.partition("=")[0] for pair in text.split(",")}
        known = {param.name for param in get_policy(base).params} - own
        return spelled(policy, {name: value for name, value in self.params.items() if name in known})


@dataclass(frozen=True)
class Entry:
    """A policy in one cell: as it ships, or as tuned; what it sustains under each definition of TPOT."""

    cell: Cell
    policy: str
    tuned_as: str | None
    found: Mapping[str, Sustained]


def main(cfg: DictConfig, options: Mapping[str, Any]) -> dict[str, Any]:
    """Runs the comparison; returns its summary (`docs/outputs.md`)."""
    begun = time.perf_counter()
    policies, seeds = names_of(options, "policies", "policy"), seeds_of(options["seeds"])
    baseline = baseline_of(options, policies)
    if options["lead"] not in (None, *policies):
        raise unknown("lead", options["lead"], policies)
    for key in ("page", "figures"):
        check_page(key, options[key])
    cells, definitions = cells_of(cfg, options, policies), definitions_of(options)
    window_s = min(float(cell.scenario.window()[1]) for cell in cells)
    for cell in cells:
        say_played(cell.scenario, SEARCHED)
    limits, tuning = Limits(**options["limits"]).in_window(window_s), options["tuning"]
    with Jobs(options["workers"], Store(on=bool(options["cache"]))) as jobs, jobs.progress("compare"):

        def measure(cell: Cell, policy: str) -> list[Entry]:
            bench = Bench(jobs, cell.scenario, seeds, definitions[0], limits, cell.plan)
            trial = replace(bench, seeds=seeds_of(tuning["seeds"], "tuning.seeds"), plan=cell.trial)
            return entries_of(cell, policy, bench, trial, definitions, tuning["policies"] or {}, tuning["shipped"])

        pairs = [(cell, policy) for cell in cells for policy in policies if policy not in cell.without]
        with ThreadPoolExecutor(len(pairs)) as threads:
            asked = [threads.submit(measure, *pair) for pair in pairs]
            try:
                for done in as_completed(asked):
                    done.result()
            except BaseException:  # one mistake ends all: what is done is in the cache
                jobs.stop()
                raise
        entries = [entry for one in asked for entry in one.result()]
    rows = rows_of(entries, baseline, limits.violations, options["lead"])
    summary = {"schema": SCHEMA, "baseline": baseline, "lead": options["lead"], "seeds": list(seeds),
               "window_s": window_s, "tpot_from": definitions[0], "notes": notes_of(window_s, seeds),
               "cells": [_described(cell) for cell in cells], "simulations": jobs.different,
               "simulated_anew": jobs.simulated, "workers": jobs.workers, "wall_s": time.perf_counter() - begun,
               "cpu_s": jobs.cpu_s,
               "tuning": _tuning(options), "results": rows}
    outcomes = reading.sustained(summary, options)
    for outcome in outcomes:
        outcome.show()
    write_report(Path(options["out"]) / "compare.html", outcomes)
    write_results(summary, Path(options["out"]), options["page"], options["figures"])
    return summary


def cells_of(cfg: DictConfig, options: Mapping[str, Any], policies: Sequence[str]) -> list[Cell]:
    """The conditions to compare under, each at its load.

    Raises:
        UserError: a cell with an unknown key, two of one name, a load that is not known, or a policy that schedules
            instances which neither the cluster nor its twin has.
    """
    base, cells = scenario_of(cfg), []
    if options["cells"] == []:
        raise UserError("cells is empty; expected workloads or mappings, such as cells=[ooc,azure_conv], or null for "
                        "the one of the options")
    for index, given in enumerate(options["cells"] or [{}]):
        given = {"workload": given} if isinstance(given, str) else given
        if not isinstance(given, Mapping):
            raise UserError(f"cells[{index}]={given!r}: expected a workload, or such as {{workload: ooc, slo: xllm}}")
        check_keys(f"cells[{index}]", given, CELL_KEYS)
        check_names(f"cells[{index}]", given)
        own = given.get("search") or {}
        check_keys(f"cells[{index}].search", own, Plan.__dataclass_fields__)
        fields = ("workload", "cluster", "slo", "duration_s")
        scenario = of_cell(base, {key: given[key] for key in fields if key in given}, options)
        scenario = scenario.with_(rate_scale=scenario.online_scale())
        for policy in policies:
            placed(scenario, policy)
        name = f"{short_name(given.get('workload', base.workload))} on {scenario.load_cluster().name}"
        cells.append(Cell(name, scenario, Plan(**{**options["search"], **own}),
                          Plan(**{**options["search"], **options["tuning"]["search"], **own}),
                          {**(options["params"] or {}), **(given.get("params") or {})},
                          _without(f"cells[{index}]", given.get("without") or (), policies, options)))
    names = [cell.name for cell in cells]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"cells: '{name}' is there twice; expected different workloads or clusters")
    return cells


def _without(where: str, given: Sequence[str], policies: Sequence[str], options: Mapping[str, Any]) -> tuple[str, ...]:
    """The policies that a cell leaves out.

    Raises:
        UserError: one is not compared at all, or others are compared with it.
    """
    for policy in given:
        if policy not in policies:
            raise unknown(f"{where}.without", policy, policies)
        if policy in (options["lead"], baseline_of(options, policies)):
            raise UserError(f"{where}.without: '{policy}' is what the others are compared with, and cannot be left out")
    return tuple(given)


def entries_of(cell: Cell, policy: str, bench: Bench, trial: Bench, definitions: Sequence[str],
               settings: Mapping[str, Sequence[Mapping[str, Any]]], shipped: bool = True) -> list[Entry]:
    """What a policy sustains as it ships and, where settings are to be tried, as tuned on the validation seeds.

    Without `shipped`, a policy that is tuned to something else is measured so alone.
    """

    def sustained(name: str, near: float | None = None) -> dict[str, Sustained]:
        return {definition: sustain(replace(bench, tpot_from=definition), cell.full_name(name), near)
                for definition in definitions}

    if not settings.get(policy):
        return [Entry(cell, policy, None, sustained(policy))]
    best = tune(policy, candidates_of(policy, settings[policy]),
                lambda one, rate: trial.measure(cell.full_name(one), rate), trial.plan, trial.limits)
    entries = []
    if shipped or best.policy == policy:
        entries.append(Entry(cell, policy, None, sustained(policy, best.default_rate)))
    if best.policy != policy:
        entries.append(Entry(cell, policy, best.policy, sustained(best.policy, best.rate)))
    return entries


def rows_of(entries: Sequence[Entry], baseline: str, budget: float, lead: str | None = None) -> list[dict[str, Any]]:
    """One row for each policy and cell, and one more for it as tuned; the best of a cell first.

    Args:
        entries: what was found.
        baseline: the policy that the ratios are over, as tuned where it is.
        budget: violation rate that a seed may have, and that the upper 95 % limit without offline work must not exceed
            to be ranked.
        lead: the policy whose lead over each other one is taken, as tuned where it is; None: none.
    """
    rows = []
    for cell in dict.fromkeys(entry.cell.name for entry in entries):
        mine = [entry for entry in entries if entry.cell.name == cell]
        base, ahead = ([entry for entry in mine if entry.policy == name] for name in (baseline, lead))
        block = [{**_row(entry, base[-1], budget), "lead": _lead(ahead[-1], entry) if ahead else None}
                 for entry in mine]
        rows += sorted(block, key=lambda row: (not row["feasible"], -row["offline_tokens_per_s"]["mean"]))
    return rows


def _row(entry: Entry, base: Entry, budget: float) -> dict[str, Any]:
    headline = next(iter(entry.found))
    found, over = entry.found[headline], base.found[headline]
    crossing = found.crossing
    at = crossing.best if crossing.best is not None else crossing.points[0]
    seeds = len(at.violations)
    ratio, low, high = _ratio(found, over, seeds)
    return {
        "cell": entry.cell.name, "policy": entry.policy, "tuned_as": entry.tuned_as,
        **glance_of(found, entry.cell.name, at),
        "cluster": label("cluster", placed(entry.cell.scenario, entry.policy).cluster),
        "kind": "mixed" if base_policy(entry.policy).mixed else "pools",
        "feasible": within(crossing.points[0].violations, budget),
        "limited_by": _limit(crossing.failed, crossing.reason, headline),
        "seeds_over": float(np.mean(at.violations > budget)),
        **{f"max_offline_rate{'' if definition == headline else '_' + definition}": _crossing(one, seeds)
           for definition, one in entry.found.items()},
        "ratio": ratio, "ratio_low": low, "ratio_high": high,
        **figures_of(at, headline),
        "curve": [{"offline_rate": point.rate, "violation_rates": point.violations.tolist(),
                   "kept_up_share": float(point.kept_up.mean()), "tokens_per_s": float(point.tokens_per_s.mean())}
                  for point in crossing.points],
    }


def _ratio(found: Sustained, over: Sustained, seeds: int) -> tuple[float | None, float | None, float | None]:
    """Offline tokens a second over the baseline's, paired by resample; None where the baseline sustains nothing."""
    if over.tokens_per_s <= 0:
        return None, None, None
    ratio = found.tokens_per_s / over.tokens_per_s
    if seeds < 2 or (over.tokens <= 0).any():
        return ratio, None, None
    return ratio, *resampled_interval(found.tokens / over.tokens, seeds)


def _lead(ahead: Entry, entry: Entry) -> dict[str, float | None]:
    """How many offline tokens a second a policy sustains more than another one, paired by resample."""
    ours, theirs = (next(iter(one.found.values())) for one in (ahead, entry))
    more = ours.tokens - theirs.tokens  # at the crossings, between the rates that were simulated
    low, high = resampled_interval(more, len(ours.own_rates))
    plain = [None if math.isnan(value) else value for value in (low, high)]
    return {"mean": float(more.mean()), "low": plain[0], "high": plain[1]}


def _crossing(found: Sustained, seeds: int) -> dict[str, Any]:
    """The highest rate that held in the mean over seeds, its interval, and where each seed by itself crosses."""
    return _figure(found.rate, *resampled_interval(found.rates, seeds), found.own_rates)


def _limit(failed: Point | None, reason: str, definition: str) -> str:
    """What ends the range: `backlog`, `none`, or which promise is broken most often at the rate that did not hold."""
    if failed is None or reason != "violations":
        return reason
    shares = _violations(failed, definition)
    return "TTFT" if shares["ttft_violations"].mean() >= shares["tpot_violations"].mean() else "TPOT"


def _violations(point: Point, definition: str) -> dict[str, np.ndarray]:
    online = [one["online"] for one in point.summaries]
    return {"violations": point.violations,
            "ttft_violations": 1.0 - np.array([one["ttft_attainment"] for one in online], float),
            "tpot_violations": 1.0 - np.array([one[f"tpot_attainment_{definition}"] for one in online], float)}


def figures_of(point: Point, definition: str) -> dict[str, dict[str, Any]]:
    """What a policy did at an offline rate: each figure's mean over seeds, interval, and value on each seed."""
    online = [one["online"] for one in point.summaries]
    offline = [one["offline"] for one in point.summaries]
    served = np.array([one["prompt_tokens_per_s"] + one["output_tokens_per_s"] for one in online], float)
    instances = np.array([len(one["instances"]) for one in point.summaries], float)
    columns = {
        "offline_tokens_per_s": point.tokens_per_s,
        "offline_reference_gpu_s_per_s": point.service_per_s,
        "overall_tokens_per_s": served + point.tokens_per_s,
        "wasted_tokens_per_s": point.wasted_per_s,
        "wasted_gpu_share": np.array([one["wasted_gpu_s_per_s"] for one in offline], float) / instances,
        "hit_rate": np.array([_number(one.get("hit_rate")) for one in offline]),
        "hit_rate_online": np.array([_number(one.get("hit_rate")) for one in online]),
        **_violations(point, definition),
    }
    return {name: _figure(*interval(values), values) for name, values in columns.items()}


def _figure(mean: float, low: float, high: float, values: np.ndarray) -> dict[str, Any]:
    """A figure with its interval and its value on each seed; None where there is none."""
    plain = [None if math.isnan(value) else float(value) for value in (mean, low, high, *values)]
    return {"mean": plain[0], "ci_low": plain[1], "ci_high": plain[2], "values": plain[3:]}


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _described(cell: Cell) -> dict[str, Any]:
    """A cell as the summary holds it: what was given, with the load."""
    from ooco_gym.workload import workload_mean_rate

    scenario = cell.scenario
    return {"name": cell.name, "workload": short_name(scenario.workload),
            "offline": scenario.offline.get("dataset") or scenario.offline.get("name", "ooc"),
            "cluster": label("cluster", scenario.cluster), "slo": scenario.describe()["slo"],
            "rate_scale": scenario.rate_scale, "window_s": float(scenario.window()[1]), "params": dict(cell.params),
            "online_rate_per_s": scenario.online_scale() * workload_mean_rate(scenario.workload)}


def _tuning(options: Mapping[str, Any]) -> dict[str, Any]:
    return {"seeds": list(seeds_of(options["tuning"]["seeds"], "tuning.seeds")),
            "policies": options["tuning"]["policies"] or {}}
