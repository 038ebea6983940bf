"""`ooco-gym capacity`: how much offline work a policy sustains beside online requests (OOCO 5.2, docs/protocol.md).

For one workload on one cluster, or several such cells: the peak factor once, then each policy's offline rate raised on
paired seeds to the first rate that does not hold, under both TPOT definitions, against the better of base P/D and
online priority (tuned). Policies that schedule mixed instances run on the cluster's twin of equal hardware, at the same
load. A protocol's `capacity` part replaces settings of the command (`conf/protocol/paper.yaml`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from experiments.common.peaks import PeakPlan, peak_entry
from experiments.common.policies import names_of, seeds_of
from experiments.common.rate_search import Plan
from experiments.common.runner import Jobs
from experiments.common.store import Store
from experiments.common.tuning import with_settings
from experiments.compare import given_cells
from experiments.sustained import Cell, definitions_of, measured, rows_of, summed_up
from ooco_gym.commands.simulate import SEARCHED, of_cell, say_clock, say_played, scenario_of
from ooco_gym.errors import check_keys
from ooco_gym.peak import short_name
from ooco_gym.policy import get_policy
from ooco_gym.protocol import protocol_values
from ooco_gym.render.reading import load_words
from ooco_gym.report import show_notes
from ooco_gym.resources import load_yaml

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from ooco_gym.scenario import Scenario

SCHEMA = "ooco-gym/capacity/3"
BASELINES = ("base_pd", "online_priority")
MIXED_BASELINES = ("vllm_fcfs", "vllm_priority")  # their like on mixed instances without a twin
PART = "capacity"  # of a protocol: settings of this command


def main(cfg: DictConfig) -> dict[str, Any]:
    """Runs the command; returns its summary (`docs/outputs.md`)."""
    from omegaconf import OmegaConf

    begun = time.perf_counter()
    given: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    options = by_protocol(given)
    policies = names_of(options, "policies", "policy")
    options = with_settings(options, policies)
    base = scenario_of(cfg)
    scenarios = [of_cell(base, one, options) for _, one in given_cells(options["cells"], ("workload", "cluster"))]
    for one in scenarios:
        say_played(one, SEARCHED)
    say_clock(*scenarios)
    baselines = {where_of(one): _baselines(one, policies, options["baselines"]) for one in scenarios}
    rows: list[dict[str, Any]] = []
    with Jobs(options["workers"], Store(on=bool(options["cache"]))) as jobs, jobs.progress("capacity"):
        cells = [cell_of(one, options, definition, jobs) for one in scenarios for definition in definitions_of(options)]
        peaks = [peak for _, peak in cells]
        for condition, names in {} if options["only_peak"] else baselines.items():
            mine = [cell for cell, _ in cells if cell.condition == condition]
            entries = measured(mine, list(dict.fromkeys([*policies, *names])), options, jobs)
            rows += [row for row in rows_of(entries, names, float(options["limits"]["violations"]))
                     if row["policy"] in policies]
    more = {**{key: peaks[0][key] for key in ("workload", "cluster")}, "baseline": "the best baseline", "peaks": peaks,
            **{key: options[key] for key in ("protocol", "load")}}
    wall_s = time.perf_counter() - begun
    summary = summed_up("capacity", SCHEMA, [cell for cell, _ in cells], rows, options, jobs, wall_s, more)
    if not rows:
        show_notes([f"{cell.condition}, {load_words(peak)}" for cell, peak in cells])
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


def where_of(scenario: Scenario) -> str:
    """A condition in words: the workload and the cluster."""
    return f"{short_name(scenario.workload)} on {scenario.load_cluster().name}"


def _baselines(scenario: Scenario, policies: Sequence[str], named: Sequence[str] | None) -> tuple[str, ...]:
    """The baselines: those named, else base P/D and online priority where the cluster or its twin has their pools.

    Raises:
        UserError: a policy schedules instances that neither the cluster nor its twin has.
    """
    for name in (*policies, *(named or ())):
        scenario.on_kind(get_policy(name).mixed)
    if named:
        return tuple(named)
    cluster = scenario.load_cluster()
    return MIXED_BASELINES if cluster.mixed and cluster.twin is None else BASELINES


def cell_of(scenario: Scenario, options: Mapping[str, Any], tpot_from: str, jobs: Jobs) -> tuple[Cell, dict[str, Any]]:
    """A condition at a share of its peak factor under one definition of TPOT, and that factor."""
    where, slo = where_of(scenario), {**asdict(scenario.load_slo()), "tpot_from": tpot_from}
    ttft_s = (options["ttft_s"] or {}).get(slo["name"])
    scenario = scenario.with_(slo={**slo, "ttft_s": ttft_s} if ttft_s else slo)
    peak = peak_entry(scenario, jobs, seeds_of(options["seeds"]), PeakPlan(**options["peak"]),
                      find=bool(options["find_peak"] or (options["only_peak"] and scenario.from_file)),
                      write=bool(options["write_peak"]))
    scenario = scenario.with_(rate_scale=float(options["load"]) * float(peak["factor"]))
    shown = {"workload": peak["workload"], "tpot_from": tpot_from, "seeds": list(seeds_of(options["seeds"])),
             "peak_factor": peak["factor"], "idle_floor": peak["floor"]}
    plan, trial = options["search"], {**options["search"], **options["tuning"]["search"]}
    name = where if options["tpot_from"] else f"{where}, TPOT from {tpot_from.replace('_', ' ')}"
    return Cell(name, scenario, Plan(**plan), Plan(**trial), (tpot_from,), condition=where, shown=shown), dict(peak)
