"""`ooco-gym capacity`: how much offline work a policy sustains beside online requests (OOCO 5.2, docs/protocol.md).

For each cell (a workload on a cluster) the peak factor is found once. Then each policy's offline rate is raised on
paired seeds to the first rate that exceeds the limits, under one TPOT definition. Hardware (each policy on a cluster of
its kind), arrivals, lengths and SLOs are equal. Ratios are to the better of base P/D and online priority (tuned). A
protocol's `capacity` part overrides options of the command (`conf/protocol/paper.yaml`); `+preset=field` runs all
policies (docs/field.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.peaks import PeakPlan, peak_entry
from ooco_gym.cli.commands import read_choice
from ooco_gym.errors import UserError, unknown
from ooco_gym.files import as_json
from ooco_gym.metrics.statistics import interval, resampled_estimate, within
from ooco_gym.peak import label, title_of
from ooco_gym.policy import get_policy, spelled
from ooco_gym.protocol import SEEDS, WINDOW_S, protocol_values
from ooco_gym.render import write_report
from ooco_gym.render.reading import load_words, sustained
from ooco_gym.report import show_notes
from ooco_gym.resources import conf_root, load_yaml
from ooco_gym.run_notes import SEARCHED, say_clock, say_played
from ooco_gym.scenario import left_open, scenario_of
from ooco_gym.schema import check_keys, plain
from ooco_gym.study.options import names_of, seeds_of
from ooco_gym.study.runs import Jobs
from ooco_gym.study.search import Crossing, Limits, Point, SearchPlan
from ooco_gym.study.sustain import Bench, placed
from ooco_gym.study.tuning import parts_of, tune, with_settings
from ooco_gym.workload import from_file, of_trace

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from ooco_gym.scenario import Scenario

SCHEMA = "ooco-gym/capacity/4"
SCENARIO_KEYS = ("workload", "cluster", "slo", "duration_s")  # of a cell
BASELINES = ("base_pd", "online_priority")
MIXED_BASELINES = ("vllm_fcfs", "vllm_priority")  # their counterparts on mixed instances without a twin
PART = "capacity"  # part of a protocol with options of this command
TPOT_FROM = ("first_token", "first_decode")
Found = dict[tuple[str, str | None], Crossing]  # by policy and how it was tuned; None: default parameters


def main(cfg: DictConfig) -> dict[str, Any]:
    """Runs the command; returns its summary (`docs/outputs.md`)."""
    options = by_protocol(plain(cfg))
    policies = names_of(options)
    options = with_settings(options, policies)
    if options["lead"] not in (None, *policies):
        raise unknown("lead", options["lead"], policies)
    if options["tpot_from"] not in TPOT_FROM:
        raise unknown("tpot_from", options["tpot_from"], TPOT_FROM)
    cells = cells_of(scenario_of(cfg), options, policies)
    for cell in cells:
        say_played(cell.scenario, SEARCHED)
    say_clock(*(cell.scenario for cell in cells), policies=policies)
    rows: list[dict[str, Any]] = []
    with Jobs.of(options) as jobs, jobs.progress("capacity"):
        loads = [at_load(cell.scenario, options, jobs) for cell in cells]
        cells = [cell.at(*load) for cell, load in zip(cells, loads, strict=True)]
        for cell in () if options["only_peak"] else cells:
            found = measured(cell, list(dict.fromkeys([*policies, *cell.baselines])), options, jobs)
            ranked = rows_of(cell, found, float(options["limits"]["violations"]), options["lead"])
            rows += [row for row in ranked if row["policy"] in policies]
    summary = _summary(cells, [peak for _, peak in loads], rows, options, jobs)
    outcomes = sustained(summary, options)
    for outcome in outcomes:
        outcome.show()
    if rows:
        write_report(Path(options["out"]) / "capacity.html", outcomes)
    else:
        show_notes([f"{cell.name}, {load_words(peak)}" for cell, (_, peak) in zip(cells, loads, strict=True)])
    return summary


def by_protocol(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options, with the protocol's `capacity` part in place of unchanged defaults."""
    own = protocol_values(given["protocol"]).get(PART) or {}
    check_keys(f"protocol.{PART}", own, given)

    def merge(options: Mapping[str, Any], values: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
        merged = dict(options)
        for key, value in values.items():
            if isinstance(value, Mapping) and isinstance(options[key], Mapping):
                merged[key] = merge(options[key], value, usual[key])
            elif options[key] == usual[key]:
                merged[key] = value
        return merged

    return merge(given, own, load_yaml("", "capacity"))


# --- Cells ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Cell:
    """One condition under which all policies are measured: a workload on a cluster.

    Attributes:
        name: workload and cluster.
        scenario: at its load.
        plan: the search for rates.
        trial: the search while tuning.
        tpot_from: the definition of TPOT.
        baselines: the policies to whose best the ratios are.
        params: set for every policy that has them, such as `prefix_caching`.
        shown: further entries of the cell's rows.
    """

    name: str
    scenario: Scenario
    plan: SearchPlan
    trial: SearchPlan
    tpot_from: str = TPOT_FROM[0]
    baselines: Sequence[str] = BASELINES
    params: Mapping[str, Any] = field(default_factory=dict)
    shown: Mapping[str, Any] = field(default_factory=dict)

    def full_name(self, policy: str) -> str:
        """Returns the policy with the cell's parameters, as it is simulated; its own values take precedence."""
        base, _, text = policy.partition(":")
        own = {pair.partition("=")[0] for pair in text.split(",")}
        known = {param.name for param in get_policy(base).params} - own
        return spelled(policy, {name: value for name, value in self.params.items() if name in known})

    def at(self, scenario: Scenario, peak: Mapping[str, Any]) -> Cell:
        """Returns the cell at its load."""
        shown = {"workload": peak["workload"], "peak_factor": peak["factor"], "idle_floor": peak["floor"]}
        return replace(self, scenario=scenario, shown={**self.shown, **shown})


def cells_of(base: Scenario, options: Mapping[str, Any], policies: Sequence[str]) -> list[Cell]:
    """Returns the cells to measure, one without changes if `cells` is null; their load is still to be found.

    Raises:
        UserError: an empty list, an unknown key, name or policy, two cells of one name, or a policy for a kind of
            instances which neither the cluster nor its twin has.
    """
    if options["cells"] == []:
        raise UserError("cells is empty; expected workloads or mappings, such as cells=[ooc,azure_conv], or null for "
                        "the one of the options")
    found: dict[str, Cell] = {}
    for index, given in enumerate(options["cells"] or [{}]):
        where, given = f"cells[{index}]", {"workload": given} if isinstance(given, str) else given
        if not isinstance(given, Mapping):
            raise UserError(f"{where}={given!r}: expected a workload, or such as {{workload: ooc, cluster: pair_72b}}")
        check_keys(where, given, (*SCENARIO_KEYS, "params", "search"))
        _check_names(where, given)
        own = given.get("search") or {}
        check_keys(f"{where}.search", own, SearchPlan.__dataclass_fields__)
        cell = {key: given[key] for key in SCENARIO_KEYS if key in given}
        trace = "workload" in cell and from_file(of_trace(cell["workload"]))  # whose open fields are a trace's
        scenario = base.with_(**{**(left_open(options) if trace else {}), **cell})
        for name in (*policies, *(options["baselines"] or ())):
            scenario.on_kind(get_policy(name).mixed)
        cluster = scenario.load_cluster()
        usual = MIXED_BASELINES if cluster.mixed and cluster.twin is None else BASELINES
        name = f"{title_of(scenario.workload)} on {cluster.name}"
        if name in found:
            raise UserError(f"cells: '{name}' is given twice; expected different workloads or clusters")
        found[name] = Cell(name, scenario, plan=SearchPlan(**{**options["search"], **own}),
                           trial=SearchPlan(**{**options["search"], **options["tuning"]["search"], **own}),
                           tpot_from=options["tpot_from"], baselines=options["baselines"] or usual,
                           params={**(options["params"] or {}), **(given.get("params") or {})},
                           shown={"tpot_from": options["tpot_from"], "seeds": list(seeds_of(options["seeds"]))})
    return list(found.values())


def _check_names(where: str, given: Mapping[str, Any]) -> None:
    """Raises UserError for a cell's workload, cluster or SLO that is neither a known name nor a file."""
    for group in ("workload", "cluster", "slo"):
        if isinstance(given.get(group), str):
            try:
                read_choice([conf_root()], group, given[group])
            except UserError as error:
                raise UserError(f"{where}: {error}") from error


def at_load(scenario: Scenario, options: Mapping[str, Any], jobs: Jobs) -> tuple[Scenario, dict[str, Any]]:
    """Returns a scenario at a share of its peak factor under one definition of TPOT, and that factor (`peak_entry`)."""
    slo = {**asdict(scenario.load_slo()), "tpot_from": options["tpot_from"]}
    ttft_s = (options["ttft_s"] or {}).get(slo["name"])
    scenario = scenario.with_(slo={**slo, "ttft_s": ttft_s} if ttft_s else slo)
    peak = peak_entry(scenario, jobs, seeds_of(options["seeds"]), PeakPlan(**options["peak"]),
                      find=bool(options["find_peak"] or (options["only_peak"] and scenario.from_file)),
                      write=bool(options["write_peak"]))
    return scenario.with_(rate_scale=float(options["load"]) * float(peak["factor"])), peak


# --- Measurements ---------------------------------------------------------------------------------------------------
def measured(cell: Cell, policies: Sequence[str], options: Mapping[str, Any], jobs: Jobs) -> Found:
    """Returns what each policy sustains in a cell; all are searched in parallel."""
    tuning, limits = options["tuning"], Limits(**options["limits"])
    first, rest = parts_of(cell.scenario, tuning, policies)
    bench = Bench(jobs, rest, seeds_of(options["seeds"]), cell.tpot_from, limits, cell.plan)
    trial = replace(bench, scenario=first, seeds=seeds_of(tuning["seeds"], "tuning.seeds"), plan=cell.trial)

    def measure(policy: str) -> Found:
        return found_by(cell, policy, bench, trial, (tuning["policies"] or {}).get(policy) or (), tuning["shipped"])

    found: Found = {}
    for one in jobs.at_once(measure, policies):
        found |= one
    return found


def found_by(cell: Cell, policy: str, bench: Bench, trial: Bench, settings: Sequence[Mapping[str, Any]],
             shipped: bool) -> Found:
    """Returns what a policy sustains with default parameters and, if there are candidates, as tuned on other seeds.

    Without `shipped`, only the tuned variant is measured if it differs from the default.
    """
    best, near, own_near = policy, None, None
    if settings:
        best, near, own_near = tune(policy, [spelled(policy, values) for values in settings],
                                    lambda one, rate: trial.measure(cell.full_name(one), rate), trial.plan,
                                    trial.limits)
    found: Found = {}
    if shipped or best == policy:
        found[policy, None] = bench.search(cell.full_name(policy), own_near)
    if best != policy:
        found[policy, best] = bench.search(cell.full_name(best), near)
    return found


# --- Rows -----------------------------------------------------------------------------------------------------------
def rows_of(cell: Cell, found: Found, budget: float, lead: str | None = None) -> list[dict[str, Any]]:
    """Returns one row for each policy of a cell, and one more as tuned; the best first.

    Args:
        cell: the condition; ratios are to the best of its baselines, tuned if available.
        found: what the policies sustain.
        budget: violation rate allowed on a seed, and upper limit without offline work for a policy to be ranked.
        lead: the policy whose lead over each other one is computed, tuned if available; None: none.
    """
    last = {policy: (policy, tuned_as) for policy, tuned_as in found}  # the tuned one, which follows the default
    base = max((last[name] for name in cell.baselines), key=lambda key: found[key].total_tokens_per_s)
    most = max(found.values(), key=lambda one: one.total_tokens_per_s)
    rows = []
    for (policy, tuned_as), one in found.items():
        rows.append(as_json({
            "cell": cell.name, "policy": policy, "tuned_as": tuned_as, **cell.shown, "condition": cell.name,
            "best_baseline": base[0], "best_baseline_tuned_as": base[1],
            "cluster": label("cluster", placed(cell.scenario, policy).cluster),
            "kind": "mixed" if get_policy(policy).mixed else "pools", **_row(one, cell.tpot_from, budget),
            **_ratio(one, found[base]), "lead": _lead(found[last[lead]], one) if lead else None,
            "behind": _lead(most, one)}))
    return sorted(rows, key=lambda row: (not row["feasible"], -row["offline_total_tokens_per_s"]["mean"]))


def _row(found: Crossing, definition: str, budget: float) -> dict[str, Any]:
    """Returns a policy's own part of its row."""
    at, alone, seeds = found.best or found.points[0], found.points[0], found.seeds
    rate, low, high = resampled_estimate(found.resampled[0], seeds)
    own_rates, _ = found.of(np.repeat(np.arange(seeds)[:, None], seeds, axis=1))
    never = alone.summaries[0]["online"].get("infeasible")
    return {
        "rate": rate, "ci_low": low, "ci_high": high, "total_tokens_per_s": found.total_tokens_per_s,
        "violation_rate": at.violations.mean(), "n_seeds": seeds, **({"infeasible": never} if never else {}),
        "feasible": within(alone.violations, budget), "limited_by": _limit(found, definition),
        "seeds_over": np.mean(at.violations > budget),
        "max_offline_rate": {"estimate": rate, "ci_low": low, "ci_high": high,
                             "held": found.best.rate if found.best else 0.0, "values": own_rates},
        **_figures(at, definition),
        "curve": [{"offline_rate": point.rate, "violation_rates": point.violations,
                   "kept_up_share": point.kept_up.mean(), "total_tokens_per_s": point.total_tokens_per_s.mean()}
                  for point in found.points]}


def _ratio(found: Crossing, over: Crossing) -> dict[str, float | None]:
    """Returns offline tokens over the baseline's, paired by resample; None if that sustains nothing."""
    ratio, low, high = None, None, None
    if over.total_tokens_per_s > 0:
        ratio = found.total_tokens_per_s / over.total_tokens_per_s
        if found.seeds > 1 and (over.resampled[1] > 0).all():
            ratio, low, high = resampled_estimate(found.resampled[1] / over.resampled[1], found.seeds)
    return {"ratio": ratio, "ratio_low": low, "ratio_high": high}


def _lead(ahead: Crossing, found: Crossing) -> dict[str, float]:
    """Returns the difference in sustained offline tokens per second from another policy, paired by resample."""
    differences = ahead.resampled[1] - found.resampled[1]
    return dict(zip(("estimate", "low", "high"), resampled_estimate(differences, ahead.seeds), strict=True))


def _limit(found: Crossing, definition: str) -> str:
    """Returns what limits the rate: `backlog`, `none`, or the SLO violated most at the first unsustainable rate."""
    if found.failed is None:
        return "none"
    if found.failed.violations.mean() <= found.limits.violations:
        return "backlog"
    ttft, tpot = (1.0 - _column(found.failed, "online", name) for name in _slos(definition))
    return "TTFT" if ttft.mean() >= tpot.mean() else "TPOT"


def _slos(definition: str) -> tuple[str, str]:
    return "ttft_attainment", f"tpot_attainment_{definition}"


def _column(point: Point, part: str, name: str) -> np.ndarray:
    return np.array([summary[part].get(name) for summary in point.summaries], float)


def _figures(point: Point, definition: str) -> dict[str, dict[str, Any]]:
    """Returns a policy's metrics at an offline rate: means over seeds, intervals, and values by seed."""
    ttft, tpot = _slos(definition)
    of = partial(_column, point)
    columns = {
        "offline_total_tokens_per_s": point.total_tokens_per_s,
        "offline_computed_tokens_per_s": of("offline", "computed_tokens_per_s"),
        "offline_reference_gpu_s_per_s": of("offline", "reference_gpu_s_per_s"),
        "overall_total_tokens_per_s": of("online", "total_tokens_per_s") + point.total_tokens_per_s,
        "wasted_tokens_per_s": of("offline", "wasted_tokens_per_s"),
        "wasted_gpu_share": of("offline", "wasted_gpu_s_per_s") / [len(one["instances"]) for one in point.summaries],
        "hit_rate": of("offline", "hit_rate"), "hit_rate_online": of("online", "hit_rate"),
        "violations": point.violations,
        "ttft_violations": 1.0 - of("online", ttft), "tpot_violations": 1.0 - of("online", tpot)}
    return {name: dict(zip(("mean", "ci_low", "ci_high", "values"), (*interval(values), values), strict=True))
            for name, values in columns.items()}


# --- The summary ----------------------------------------------------------------------------------------------------
def _summary(cells: Sequence[Cell], peaks: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]],
             options: Mapping[str, Any], jobs: Jobs) -> dict[str, Any]:
    seeds, tuning, baselines = seeds_of(options["seeds"]), options["tuning"], options["baselines"]
    window_s = min(float(cell.scenario.window()[1]) for cell in cells)
    return {"schema": SCHEMA, "seeds": list(seeds), "window_s": window_s, "tpot_from": options["tpot_from"],
            "notes": _notes(window_s, seeds, Limits(**options["limits"])),
            "cells": [_described(cell) for cell in cells],
            "tuning": {"seeds": list(seeds_of(tuning["seeds"], "tuning.seeds")), "policies": tuning["policies"] or {}},
            **jobs.counts(), "workers": jobs.workers, "cpu_s": jobs.cpu_s,
            **{key: peaks[0][key] for key in ("workload", "cluster")}, "peaks": peaks,
            "baseline": baselines[0] if baselines and len(baselines) == 1 else "the best baseline",
            **{key: options[key] for key in ("lead", "protocol", "load")}, "results": rows}


def _described(cell: Cell) -> dict[str, Any]:
    """Returns a cell as in the summary: its inputs, with the load."""
    scenario = cell.scenario
    return {"name": cell.name, "workload": title_of(scenario.workload),
            "offline": scenario.offline.get("dataset") or scenario.offline.get("name", "ooc"),
            "cluster": label("cluster", scenario.cluster), "slo": scenario.describe()["slo"],
            "rate_scale": scenario.rate_scale, "window_s": float(scenario.window()[1]), "params": dict(cell.params),
            "online_rate_per_s": scenario.rates()[0]}


def _notes(window_s: float, seeds: Sequence[int], limits: Limits) -> list[str]:
    """Returns a sentence on the limits, and one for each way in which a measurement is below the protocol."""
    notes = [limits.words()]
    if window_s < WINDOW_S:
        notes.append(f"the window of {window_s:g} s is shorter than the protocol's {WINDOW_S:g} s, with the same "
                     "limits, so a growing backlog is detected less reliably; treat these results as a trial.")
    if len(seeds) < SEEDS:
        notes.append(f"{len(seeds)} seed{'s are' if len(seeds) > 1 else ' is'} fewer than the protocol's {SEEDS}: a "
                     "single burst can decide the result.")
    return notes
