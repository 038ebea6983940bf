"""`ooco-gym capacity`: how much offline work a policy sustains beside online requests (OOCO 5.2, docs/protocol.md).

For each cell (a workload on a cluster) the peak factor is found once. Then each policy's offline
rate is raised on paired seeds to the first rate that exceeds the limits, under both TPOT
definitions. Ratios are to the better of base P/D and online priority (tuned). Policies for mixed
instances run on the cluster's twin of equal hardware at the same load. A protocol's `capacity` part
overrides options of the command (`conf/protocol/paper.yaml`); `+preset=field` runs all policies
(docs/field.md).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from agents.settings import plain
from experiments.peaks import PeakPlan, peak_entry
from experiments.sustained import TPOT_FROM, Cell, measured, rows_of, summed_up
from ooco_gym.cli.commands import read_choice
from ooco_gym.errors import UserError, check_keys, unknown
from ooco_gym.from_config import of_cell, scenario_of
from ooco_gym.peak import title_of
from ooco_gym.policy import get_policy
from ooco_gym.protocol import protocol_values
from ooco_gym.render.reading import load_words
from ooco_gym.report import show_notes
from ooco_gym.resources import conf_root, load_yaml
from ooco_gym.run_notes import SEARCHED, say_clock, say_played
from ooco_gym.study.options import names_of, seeds_of
from ooco_gym.study.runs import Jobs, Store
from ooco_gym.study.search import Plan
from ooco_gym.study.tuning import with_settings

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from ooco_gym.scenario import Scenario

SCHEMA = "ooco-gym/capacity/4"
CELL_KEYS = ("workload", "cluster", "slo", "duration_s", "params", "search")
SCENARIO_KEYS = CELL_KEYS[:4]
BASELINES = ("base_pd", "online_priority")
MIXED_BASELINES = ("vllm_fcfs", "vllm_priority")  # their counterparts on mixed instances without a twin
PART = "capacity"  # part of a protocol with options of this command


def main(cfg: DictConfig) -> dict[str, Any]:
    """Runs the command; returns its summary (`docs/outputs.md`)."""
    begun = time.perf_counter()
    given = plain(cfg)
    options = by_protocol(given)
    policies = names_of(options)
    options = with_settings(options, policies)
    if options["lead"] not in (None, *policies):
        raise unknown("lead", options["lead"], policies)
    if options["tpot_from"] not in TPOT_FROM:
        raise unknown("tpot_from", options["tpot_from"], TPOT_FROM)
    conditions = conditions_of(scenario_of(cfg), options, policies)
    for one in conditions:
        say_played(one.scenario, SEARCHED)
    say_clock(*(one.scenario for one in conditions), policies=policies)
    rows: list[dict[str, Any]] = []
    with Jobs(options["workers"], Store(on=bool(options["cache"]))) as jobs, jobs.progress("capacity"):
        cells = [cell_of(one, options, options["tpot_from"], jobs) for one in conditions]
        peaks = [peak for _, peak in cells]
        for condition, (cell, _) in () if options["only_peak"] else zip(conditions, cells, strict=True):
            entries = measured(cell, list(dict.fromkeys([*policies, *condition.baselines])), options, jobs)
            ranked = rows_of(entries, condition.baselines, float(options["limits"]["violations"]), options["lead"])
            rows += [row for row in ranked if row["policy"] in policies]
    baselines = options["baselines"]
    more = {**{key: peaks[0][key] for key in ("workload", "cluster")}, "peaks": peaks, "lead": options["lead"],
            "baseline": baselines[0] if baselines and len(baselines) == 1 else "the best baseline",
            **{key: options[key] for key in ("protocol", "load")}}
    wall_s = time.perf_counter() - begun
    summary = summed_up(SCHEMA, [cell for cell, _ in cells], rows, options, jobs, wall_s, more)
    if not rows:
        show_notes([f"{cell.name}, {load_words(peak)}" for cell, peak in cells])
    return summary


def by_protocol(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options, with the protocol's `capacity` part in place of unchanged defaults."""
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


@dataclass(frozen=True)
class Condition:
    """One measured condition: a workload on a cluster, the baselines of the ratios, and other keys of `cells`."""

    name: str
    scenario: Scenario
    baselines: tuple[str, ...]
    given: Mapping[str, Any]


def conditions_of(base: Scenario, options: Mapping[str, Any], policies: Sequence[str]) -> list[Condition]:
    """Returns the conditions to measure.

    Raises:
        UserError: an unknown key or policy, two conditions of one name, or a policy for a kind of
            instances which neither the cluster nor its twin has.
    """
    found: list[Condition] = []
    for where, given in given_cells(options["cells"], CELL_KEYS):
        check_keys(f"{where}.search", given.get("search") or {}, Plan.__dataclass_fields__)
        scenario = of_cell(base, {key: given[key] for key in SCENARIO_KEYS if key in given}, options)
        baselines = _baselines(scenario, policies, options["baselines"])
        name = f"{title_of(scenario.workload)} on {scenario.load_cluster().name}"
        if name in [one.name for one in found]:
            raise UserError(f"cells: '{name}' is given twice; expected different workloads or clusters")
        found.append(Condition(name, scenario, baselines, given))
    return found


def given_cells(cells: Any, keys: Sequence[str]) -> list[tuple[str, Mapping[str, Any]]]:
    """Returns the conditions in `cells`, each with its place; one without changes if there are
    none.

    Raises:
        UserError: an empty list, or an unknown key or name in a condition.
    """
    if cells == []:
        raise UserError("cells is empty; expected workloads or mappings, such as cells=[ooc,azure_conv], or null for "
                        "the one of the options")
    found = []
    for index, given in enumerate(cells or [{}]):
        given = {"workload": given} if isinstance(given, str) else given
        if not isinstance(given, Mapping):
            raise UserError(f"cells[{index}]={given!r}: expected a workload, or such as {{workload: ooc, cluster: "
                            "pair_72b}")
        check_keys(f"cells[{index}]", given, keys)
        check_names(f"cells[{index}]", given)
        found.append((f"cells[{index}]", given))
    return found


def check_names(where: str, given: Mapping[str, Any]) -> None:
    """Raises UserError for a cell's workload, cluster or SLO that is neither a known name nor a file."""
    for group in ("workload", "cluster", "slo"):
        if isinstance(given.get(group), str):
            try:
                read_choice([conf_root()], group, given[group])
            except UserError as error:
                raise UserError(f"{where}: {error}") from error


def _baselines(scenario: Scenario, policies: Sequence[str], named: Sequence[str] | None) -> tuple[str, ...]:
    """Returns the named baselines; default: base P/D and online priority, if the cluster or its
    twin has pools.

    Raises:
        UserError: a policy for a kind of instances that neither the cluster nor its twin has.
    """
    for name in (*policies, *(named or ())):
        scenario.on_kind(get_policy(name).mixed)
    if named:
        return tuple(named)
    cluster = scenario.load_cluster()
    return MIXED_BASELINES if cluster.mixed and cluster.twin is None else BASELINES


def cell_of(condition: Condition, options: Mapping[str, Any], tpot_from: str, jobs: Jobs
            ) -> tuple[Cell, dict[str, Any]]:
    """Returns a condition at a share of its peak factor under one definition of TPOT, and that factor."""
    scenario, given = condition.scenario, condition.given
    slo = {**asdict(scenario.load_slo()), "tpot_from": tpot_from}
    ttft_s = (options["ttft_s"] or {}).get(slo["name"])
    scenario = scenario.with_(slo={**slo, "ttft_s": ttft_s} if ttft_s else slo)
    seeds = seeds_of(options["seeds"])
    peak = peak_entry(scenario, jobs, seeds, PeakPlan(**options["peak"]),
                      find=bool(options["find_peak"] or (options["only_peak"] and scenario.from_file)),
                      write=bool(options["write_peak"]))
    scenario = scenario.with_(rate_scale=float(options["load"]) * float(peak["factor"]))
    shown = {"workload": peak["workload"], "tpot_from": tpot_from, "seeds": list(seeds),
             "peak_factor": peak["factor"], "idle_floor": peak["floor"]}
    own = given.get("search") or {}
    cell = Cell(condition.name, scenario, plan=Plan(**{**options["search"], **own}),
                trial=Plan(**{**options["search"], **options["tuning"]["search"], **own}), tpot_from=tpot_from,
                params={**(options["params"] or {}), **(given.get("params") or {})}, shown=shown)
    return cell, dict(peak)
