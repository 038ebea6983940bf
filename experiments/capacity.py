"""`ooco-gym capacity`: how much offline work a policy sustains beside online requests (OOCO 5.2, docs/protocol.md).

For one workload on one cluster, or several such cells: the peak factor once, then each policy's offline rate raised on
paired seeds to the first rate that does not hold, under both TPOT definitions, against the better of base P/D and
online priority (tuned). Policies that schedule mixed instances run on the cluster's twin of equal hardware, at the same
load. A protocol's `capacity` part replaces settings of the command (`conf/protocol/paper.yaml`). With `least.find` the
question is how few instances keep the promises (`experiments.least`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments import least
from experiments.capacity_page import write_results
from experiments.common.output import check_page
from experiments.common.peaks import PeakPlan, peak_entry
from experiments.common.policies import base_policy, check_names, names_of, seeds_of
from experiments.common.rate_search import Limits, Plan, Tuning, candidates_of, tune
from experiments.common.runner import Jobs
from experiments.common.store import Store
from experiments.common.sustain import Bench, Sustained, placed, row_of, sustain
from ooco_gym.commands.simulate import SEARCHED, of_cell, say_played, scenario_of
from ooco_gym.errors import UserError, check_keys, unknown
from ooco_gym.peak import label, short_name
from ooco_gym.protocol import SEEDS, WINDOW_S, protocol_values
from ooco_gym.render import write_report
from ooco_gym.render.reading import load_words, sustained
from ooco_gym.report import show_notes
from ooco_gym.resources import load_yaml

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from ooco_gym.scenario import Scenario

SCHEMA = "ooco-gym/capacity/1"
BASELINES = ("base_pd", "online_priority")
MIXED_BASELINES = ("vllm_fcfs", "vllm_priority")  # their like on mixed instances without a twin
TPOT_FROM = ("first_token", "first_decode")
PART = "capacity"  # of a protocol: settings of this command
PAPER_RATIO = (1.17, 3.0)  # OOCO over the better baseline, all cells of its Figure 6


@dataclass(frozen=True)
class Study:
    """One TPOT definition: what is measured, and how the baselines were tuned."""

    tpot_from: str
    bench: Bench
    peak: Mapping[str, Any]
    tuned: Mapping[str, Tuning]


def main(cfg: DictConfig) -> dict[str, Any]:
    """Runs the command; returns its summary (`docs/outputs.md`)."""
    from omegaconf import OmegaConf

    given: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    options = by_protocol(given)
    policies = names_of(options, "policies", "policy")
    for key in ("page", "figures"):
        check_page(key, options[key])
    scenarios = scenarios_of(scenario_of(cfg), options)
    for one in [] if options["least"]["find"] else scenarios:
        say_played(one, SEARCHED)
    baselines = [_baselines(one, policies, options["baselines"]) for one in scenarios]
    definitions = definitions_of(options)
    with Jobs(options["workers"], Store(on=bool(options["cache"]))) as jobs, jobs.progress("capacity"):
        if options["least"]["find"]:
            return least.main(scenarios[0], options, policies, jobs)
        cells = [_cell(one, options, policies, base, definitions, jobs)
                 for one, base in zip(scenarios, baselines, strict=True)]
    rows = [row for found, _ in cells for row in found]
    peaks = [peak for _, loads in cells for peak in loads]
    window_s = min(float(one.window()[1]) for one in scenarios)
    notes = notes_of(window_s, seeds_of(options["seeds"]))
    summary = {"schema": SCHEMA, "workload": peaks[0]["workload"], "cluster": peaks[0]["cluster"],
               "window_s": window_s, "protocol": options["protocol"], "load": options["load"],
               "notes": notes, "results": rows, "peaks": peaks, "simulations": jobs.different,
               "simulated_anew": jobs.simulated}
    outcomes = sustained(summary, options)
    for outcome in outcomes:
        outcome.show()
    if rows:
        write_report(Path(options["out"]) / "capacity.html", outcomes)
        write_results(summary, Path(options["out"]), options["page"], options["figures"])
    else:
        show_notes([f"{where_of(scenario)}, {load_words(peak)}" for scenario, (_, loads) in zip(
            scenarios, cells, strict=True) for peak in loads])
    return summary


def by_protocol(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options with what the protocol's `capacity` part says in place of those that are as shipped."""
    own = protocol_values(given["protocol"]).get(PART) or {}
    check_keys(f"protocol.{PART}", own, given)
    shipped = load_yaml("", "capacity")

    def merge(options: Mapping[str, Any], values: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
        merged = dict(options)
        for key, value in values.items():
            if isinstance(value, Mapping) and isinstance(options[key], Mapping):
                merged[key] = merge(options[key], value, usual[key])
            elif options[key] == usual[key]:
                merged[key] = value
        return merged

    return merge(given, own, shipped)


def scenarios_of(base: Scenario, options: Mapping[str, Any]) -> list[Scenario]:
    """The conditions that `cells` names, or the one of the options.

    Raises:
        UserError: a cell with an unknown key or name.
    """
    if not options["cells"]:
        return [base]
    scenarios = []
    for index, cell in enumerate(options["cells"]):
        cell = {"workload": cell} if isinstance(cell, str) else cell
        if not isinstance(cell, Mapping):
            raise UserError(f"cells[{index}]={cell!r}: expected a workload, or such as {{workload: ooc, cluster: "
                            "pair_72b}")
        check_keys(f"cells[{index}]", cell, ("workload", "cluster"))
        check_names(f"cells[{index}]", cell)
        scenarios.append(of_cell(base, cell, options))
    return scenarios


def where_of(scenario: Scenario) -> str:
    """A condition in words: the workload and the cluster."""
    return f"{short_name(scenario.workload)} on {scenario.load_cluster().name}"


def _cell(scenario: Scenario, options: Mapping[str, Any], policies: list[str], baselines: tuple[str, ...],
          definitions: Sequence[str], jobs: Jobs) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of one condition, and its loads."""
    with ThreadPoolExecutor(len(definitions)) as threads:
        benches = list(threads.map(lambda definition: _bench(scenario, options, definition, jobs), definitions))
        peaks = [dict(peak) for _, peak in benches]
        studies = [] if options["only_peak"] else list(threads.map(
            lambda one: _study(options, [*policies, *baselines], *one), benches))
    return _measure(studies, policies, baselines, bool(options["tuning"]["shipped"])), peaks


def notes_of(window_s: float, seeds: Sequence[int]) -> list[str]:
    """Where a measurement is less than the protocol asks for, one sentence each."""
    notes = []
    if window_s < WINDOW_S:
        notes.append(f"the window of {window_s:g} s is shorter than the protocol's {WINDOW_S:g} s: what is in "
                     "progress at its edges weighs more, so a backlog is told from it less surely; take these figures "
                     "for a trial.")
    if len(seeds) < SEEDS:
        notes.append(f"{len(seeds)} seed{'s are' if len(seeds) > 1 else ' is'} fewer than the protocol's "
                     f"{SEEDS}: one burst more or less decides the crossing.")
    return notes


def _baselines(scenario: Scenario, policies: Sequence[str], named: Sequence[str] | None) -> tuple[str, ...]:
    """The baselines: those named, else base P/D and online priority where the cluster or its twin has their pools.

    Raises:
        UserError: a policy schedules instances that neither the cluster nor its twin has.
    """
    for name in (*policies, *(named or ())):
        scenario.on_kind(base_policy(name).mixed)
    if named:
        return tuple(named)
    cluster = scenario.load_cluster()
    return MIXED_BASELINES if cluster.mixed and cluster.twin is None else BASELINES


def definitions_of(options: Mapping[str, Any]) -> list[str]:
    chosen = options["tpot_from"] or TPOT_FROM
    chosen = [chosen] if isinstance(chosen, str) else [str(definition) for definition in chosen]
    for definition in chosen:
        if definition not in TPOT_FROM:
            raise unknown("tpot_from", definition, TPOT_FROM)
    return chosen


def _bench(scenario: Scenario, options: Mapping[str, Any], tpot_from: str,
           jobs: Jobs) -> tuple[Bench, Mapping[str, Any]]:
    """Scales the load to a share of its peak factor under one TPOT definition."""
    slo = {**asdict(scenario.load_slo()), "tpot_from": tpot_from}
    ttft_s = (options["ttft_s"] or {}).get(slo["name"])
    scenario = scenario.with_(slo={**slo, "ttft_s": ttft_s} if ttft_s else slo)
    peak = peak_entry(scenario, jobs, seeds_of(options["seeds"]), PeakPlan(**options["peak"]),
                      find=bool(options["find_peak"] or (options["only_peak"] and scenario.from_file)),
                      write=bool(options["write_peak"]))
    scenario = scenario.with_(rate_scale=float(options["load"]) * float(peak["factor"]))
    limits, plan = Limits(**options["limits"]).in_window(scenario.window()[1]), Plan(**options["search"])
    return Bench(jobs, scenario, seeds_of(options["seeds"]), tpot_from, limits, plan), peak


def _study(options: Mapping[str, Any], wanted: Sequence[str], bench: Bench, peak: Mapping[str, Any]) -> Study:
    """Tunes what is wanted and needs tuning, on validation seeds."""
    trial = replace(bench, seeds=seeds_of(options["tuning"]["seeds"], "tuning.seeds"),
                    plan=Plan(**{**options["search"], **options["tuning"]["search"]}))
    tuned = {name: tune(name, candidates_of(name, values), trial.measure, trial.plan, trial.limits)
             for name, values in (options["tuning"]["policies"] or {}).items() if name in wanted}
    return Study(bench.tpot_from, bench, peak, tuned)


def _measure(studies: list[Study], policies: list[str], baselines: tuple[str, ...],
             shipped: bool) -> list[dict[str, Any]]:
    """Searches every policy under every definition, all at once: they share the processes, each waits its turn."""
    wanted = list(dict.fromkeys([*policies, *baselines]))
    cells = [(study, name) for study in studies for name in wanted]
    if not cells:
        return []
    with ThreadPoolExecutor(len(cells)) as threads:
        found = dict(zip([(study.tpot_from, name) for study, name in cells],
                         threads.map(lambda cell: _best_of(*cell), cells), strict=True))
    rows = []
    for study in studies:
        theirs = {name: found[study.tpot_from, name][0] for name in baselines}
        best_name = max(theirs, key=lambda name: theirs[name].tokens_per_s)
        for name in policies:
            best, default = found[study.tpot_from, name]
            where = f"{study.peak['workload']} on {label('cluster', study.bench.scenario.cluster)}"
            for one in [best, *([default] if shipped and default is not best else [])]:
                rows.append({**_place(study, name), **row_of(one, name, theirs[best_name], where),
                             "best_baseline": best_name, "paper_ratio": list(PAPER_RATIO),
                             "default": _default(study, name, default) if one is best else None})
    return rows


def _best_of(study: Study, name: str) -> tuple[Sustained, Sustained]:
    """What a policy sustains as tuned, and as it ships; the tuned values are kept only where they do better."""
    tuning = study.tuned.get(name)
    default = sustain(study.bench, name, tuning.default_rate if tuning else None)
    if tuning is None or tuning.policy == name:
        return default, default
    return sustain(study.bench, tuning.policy, tuning.rate), default


def _place(study: Study, policy: str) -> dict[str, Any]:
    cluster = label("cluster", placed(study.bench.scenario, policy).cluster)
    return {"workload": study.peak["workload"], "cluster": cluster, "tpot_from": study.tpot_from,
            "seeds": list(study.bench.seeds), "peak_factor": study.peak["factor"], "idle_floor": study.peak["floor"]}


def _default(study: Study, name: str, default: Sustained) -> dict[str, Any] | None:
    """The untuned policy's figures beside the tuned one's, with the budget that the tuning had."""
    tuning = study.tuned.get(name)
    if tuning is None:
        return None
    return {"max_offline_rate": default.rate, "max_offline_tokens_per_s": default.tokens_per_s,
            "candidates": list(tuning.candidates), "validation_rate": tuning.rate,
            "validation_rate_default": tuning.default_rate}
