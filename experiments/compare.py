"""`ooco-gym compare`: policies on the same seeds, and what differs between them beyond chance (docs/protocol.md).

Each policy runs on the cluster of its kind: the one that is given, or its twin of equal hardware. With `sustain=true`
each runs at the highest offline rate that it sustains; `+preset=field` is the whole field on one page (docs/field.md).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.common.peaks import at_its_load
from experiments.common.policies import baseline_of, check_names, names_of, seeds_of
from experiments.common.rate_search import Plan
from experiments.common.runner import Jobs
from experiments.common.store import Store
from experiments.common.tuning import parts_of, tuned_on, with_settings, words_of
from experiments.sustained import Cell, definitions_of, measured, rows_of, summed_up
from ooco_gym.commands.simulate import SEARCHED, notes_of, of_cell, say_clock, say_played, scenario_of
from ooco_gym.errors import UserError, check_keys, unknown
from ooco_gym.peak import short_name
from ooco_gym.policy import get_policy
from ooco_gym.render import write_report
from ooco_gym.render.outcome import compare, metrics_of
from ooco_gym.render.reading import compared

if TYPE_CHECKING:
    from omegaconf import DictConfig

SCHEMA, SUSTAIN_SCHEMA = "ooco-gym/compare/2", "ooco-gym/field/2"
CELL_KEYS = ("workload", "cluster", "slo", "duration_s", "params", "search", "without")
SCENARIO_KEYS = CELL_KEYS[:4]


def main(cfg: DictConfig) -> dict[str, Any]:
    """Runs the command; returns its summary (`docs/outputs.md`)."""
    from omegaconf import OmegaConf

    options: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    policies, seeds = names_of(options, "policies", "policy"), seeds_of(options["seeds"])
    options = with_settings(options, policies)
    baseline = baseline_of(options, policies)
    if options["sustain"]:
        return _sustained(cfg, options, policies, baseline)
    if options["cells"] is not None:
        raise UserError("cells is of sustain=true, which measures the rate that each policy sustains; add that, or "
                        "leave cells out")
    scenario = scenario_of(cfg)
    note = scenario.scale_note()
    first, scenario = parts_of(scenario.with_(rate_scale=scenario.online_scale()), options["tuning"], policies)
    said = say_played(scenario, seeds=len(seeds))
    say_clock(scenario)
    with Jobs(options["workers"], Store(on=bool(options["cache"]))) as jobs, jobs.progress("compare"):
        tuned = tuned_on(first, policies, options, jobs)
        tuning = words_of(scenario, options, tuned, policies) if tuned else ""
        policies = list(dict.fromkeys(one for name in policies for one in (name, tuned.get(name, name))))
        on = {name: scenario.on_kind(get_policy(name).mixed) for name in policies}
        asked = {name: [jobs.submit(on[name].with_(seed=seed), name) for seed in seeds] for name in policies}
        summaries = {name: [future.result() for future in futures] for name, futures in asked.items()}
    named = {(name, on[name].load_cluster().name): runs for name, runs in summaries.items()}
    rows = compare(named, metrics_of([get_policy(name).values for name in policies], options["metrics"]),
                   next(key for key in named if key[0] == baseline), float(options["violation_budget"]))
    summary = {"schema": SCHEMA, "baseline": baseline, "seeds": list(seeds), "scenario": scenario.describe(),
               **({"played": said[0]} if said else {}), **({"tuned": tuned} if tuned else {}), "results": rows,
               "runs": summaries, "notes": [f"{line}." for line in (*said, note, tuning) if line]}
    fresh = {name: [line for line in runs[0].get("notes", ()) if line not in said] for name, runs in summaries.items()}
    summary["notes"] += notes_of({name: {**runs[0], "notes": fresh[name], "scenario": summary["scenario"]}
                                  for name, runs in summaries.items()})
    outcome = compared(summary, options)
    replace(outcome, notes=summary["notes"][len(said):]).show()  # the others were said first
    write_report(Path(options["out"]) / "compare.html", [outcome])
    return summary


# --- At the rates that are sustained ---------------------------------------------------------------------------------
def _sustained(cfg: DictConfig, options: Mapping[str, Any], policies: Sequence[str], baseline: str) -> dict[str, Any]:
    begun = time.perf_counter()
    if options["lead"] not in (None, *policies):
        raise unknown("lead", options["lead"], policies)
    with Jobs(options["workers"], Store(on=bool(options["cache"]))) as jobs, jobs.progress("compare"):
        cells = cells_of(cfg, options, policies, jobs)
        for cell in cells:
            say_played(cell.scenario, SEARCHED)
        say_clock(*(cell.scenario for cell in cells))
        entries = measured(cells, policies, options, jobs)
    rows = rows_of(entries, [baseline], float(options["limits"]["violations"]), options["lead"])
    return summed_up("compare", SUSTAIN_SCHEMA, cells, rows, options, jobs, time.perf_counter() - begun,
                     {"baseline": baseline, "lead": options["lead"]})


def cells_of(cfg: DictConfig, options: Mapping[str, Any], policies: Sequence[str], jobs: Jobs) -> list[Cell]:
    """The conditions to compare under, each at its load.

    Raises:
        UserError: a cell with an unknown key, two of one name, no load that the cluster carries, or a policy that
            schedules instances which neither the cluster nor its twin has.
    """
    base, definitions = scenario_of(cfg), definitions_of(options)
    cells: list[Cell] = []
    for where, given in given_cells(options["cells"], CELL_KEYS):
        own = given.get("search") or {}
        check_keys(f"{where}.search", own, Plan.__dataclass_fields__)
        scenario = of_cell(base, {key: given[key] for key in SCENARIO_KEYS if key in given}, options)
        for policy in policies:
            scenario.on_kind(get_policy(policy).mixed)
        scenario = at_its_load(scenario, jobs, seeds_of(options["seeds"]))
        name = f"{short_name(given.get('workload', base.workload))} on {scenario.load_cluster().name}"
        if name in [cell.name for cell in cells]:
            raise UserError(f"cells: '{name}' is there twice; expected different workloads or clusters")
        cells.append(Cell(name, scenario, Plan(**{**options["search"], **own}),
                          Plan(**{**options["search"], **options["tuning"]["search"], **own}), definitions,
                          {**(options["params"] or {}), **(given.get("params") or {})},
                          _without(where, given.get("without") or (), policies, options)))
    return cells


def given_cells(cells: Any, keys: Sequence[str]) -> list[tuple[str, Mapping[str, Any]]]:
    """The conditions that `cells` names, each with its place in it; one of no change where it names none.

    Raises:
        UserError: it is an empty list, or a condition has an unknown key or name.
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
