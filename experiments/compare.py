"""`ooco-gym compare`: policies on the same seeds, and what differs between them beyond chance (docs/protocol.md).

Each policy runs on the cluster of its kind: the one that is given, or its twin of equal hardware. With `sustain=true`
each runs at the highest offline rate that it sustains (`experiments.field`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments import field
from experiments.common.policies import base_policy, baseline_of, names_of, seeds_of
from experiments.common.runner import Jobs
from experiments.common.store import Store
from ooco_gym.commands.simulate import say_played, scenario_of
from ooco_gym.errors import UserError
from ooco_gym.render import write_report
from ooco_gym.render.outcome import compare, metrics_of
from ooco_gym.render.reading import compared

if TYPE_CHECKING:
    from omegaconf import DictConfig

SCHEMA = "ooco-gym/compare/1"


def main(cfg: DictConfig) -> dict[str, Any]:
    """Runs the command; returns its summary (`docs/outputs.md`)."""
    from omegaconf import OmegaConf

    options: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    if options["sustain"]:
        return field.main(cfg, options)
    for key in ("page", "figures", "cells"):
        if options[key] is not None:
            raise UserError(f"{key} is of sustain=true, which measures the rate that each policy sustains; add that, "
                            f"or leave {key} out")
    policies, seeds = names_of(options, "policies", "policy"), seeds_of(options["seeds"])
    baseline = baseline_of(options, policies)
    scenario = scenario_of(cfg)
    said, note = say_played(scenario, seeds=len(seeds)), scenario.scale_note()
    scenario = scenario.with_(rate_scale=scenario.online_scale())
    placed = {name: scenario.on_kind(base_policy(name).mixed) for name in policies}
    with Jobs(options["workers"], Store(on=bool(options["cache"]))) as jobs, jobs.progress("compare"):
        asked = {name: [jobs.submit(placed[name].with_(seed=seed), name) for seed in seeds] for name in policies}
        summaries = {name: [future.result() for future in futures] for name, futures in asked.items()}
    named = {(name, placed[name].load_cluster().name): runs for name, runs in summaries.items()}
    rows = compare(named, metrics_of([base_policy(name).values for name in policies], options["metrics"]),
                   next(key for key in named if key[0] == baseline), float(options["violation_budget"]))
    summary = {"schema": SCHEMA, "baseline": baseline, "seeds": list(seeds), "scenario": scenario.describe(),
               **({"played": said[0]} if said else {}), "results": rows, "runs": summaries,
               "notes": [f"{line}." for line in (*said, note) if line]}
    outcomes = compared(summary, options)
    replace(outcomes[0], notes=summary["notes"][len(said):]).show()  # the others were said first
    write_report(Path(options["out"]) / "compare.html", outcomes)
    return summary
