"""`ooco-gym compare`: policies on the same seeds, and their significant differences (docs/protocol.md).

Each policy runs on a cluster of its kind: the given one, or its twin of equal hardware.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ooco_gym.metrics.costs import cost_metrics, price_of
from ooco_gym.policy import get_policy
from ooco_gym.render import write_report
from ooco_gym.render.metrics import FLEET, GOODPUT, JOBS, compare, metrics_of
from ooco_gym.render.page import conditions, conditions_table, percentiles
from ooco_gym.render.reading import compared
from ooco_gym.report import joined
from ooco_gym.report.tables import flat
from ooco_gym.run_notes import notes_of, say_clock, say_played
from ooco_gym.scenario import scenario_of
from ooco_gym.schema import plain
from ooco_gym.study.options import baseline_of, names_of, seeds_of
from ooco_gym.study.runs import Jobs
from ooco_gym.study.tuning import parts_of, tuned_on, with_settings, words_of

if TYPE_CHECKING:
    from omegaconf import DictConfig

SCHEMA = "ooco-gym/compare/2"


def main(cfg: DictConfig) -> dict[str, Any]:
    """Runs the command; returns its summary (`docs/outputs.md`)."""
    options = plain(cfg)
    policies, seeds, price = names_of(options), seeds_of(options["seeds"]), price_of(options)
    options = with_settings(options, policies)
    baseline = baseline_of(options, policies)
    scenario = scenario_of(cfg)
    note = scenario.scale_note()
    first, scenario = parts_of(scenario.with_(rate_scale=scenario.online_scale()), options["tuning"], policies)
    said = say_played(scenario, seeds=len(seeds))
    say_clock(scenario, policies=policies)
    with Jobs.of(options) as jobs, jobs.progress("compare"):
        tuned = tuned_on(first, policies, options, jobs)
        tuning = words_of(scenario, options, tuned, policies) if tuned else ""
        policies = list(dict.fromkeys(one for name in policies for one in (name, tuned.get(name, name))))
        on = {name: scenario.on_kind(get_policy(name).mixed) for name in policies}
        asked, summaries = {}, {}
        for name, one in on.items():
            asked[name] = [jobs.submit(one.with_(seed=seed), name) for seed in seeds]
        for name, one in on.items():
            chips, runs = len(one.load_cluster().hardware()[2]), [future.result() for future in asked[name]]
            summaries[name] = [{**run, "cost": cost_metrics(run, chips, price)} for run in runs]
    costs = [f"cost.{key}" for key in ("goodput_per_s", "chip_hours_per_million_tokens", "per_million_tokens")
             if key != "per_million_tokens" or price is not None]
    batch = all("batch" in run for runs in summaries.values() for run in runs)
    named = {(name, on[name].load_cluster().name): runs for name, runs in summaries.items()}
    known = set[str].intersection(*(set(flat(run)) for runs in summaries.values() for run in runs))
    asked_of_jobs = [one for one in (*GOODPUT, *JOBS, *FLEET) if one in known and one not in options["metrics"]]
    metrics = metrics_of([get_policy(name).values for name in policies], [*costs, *asked_of_jobs, *options["metrics"]],
                         batch)
    rows = compare(named, metrics, next(key for key in named if key[0] == baseline), float(options["violation_budget"]))
    summary = {"schema": SCHEMA, "baseline": baseline, "seeds": list(seeds), "scenario": scenario.describe(),
               **({"played": said[0]} if said else {}), **({"tuned": tuned} if tuned else {}), "results": rows,
               "runs": summaries, "notes": [f"{line}." for line in (*said, note, tuning) if line]}
    first_runs = {}
    for name, runs in summaries.items():
        notes = [line for line in runs[0].get("notes", ()) if line not in said]
        first_runs[name] = {**runs[0], "notes": notes, "scenario": summary["scenario"]}
    summary["notes"] += notes_of(first_runs)
    outcome = compared(summary, options)
    replace(outcome, notes=summary["notes"][len(said):]).show()  # the others were printed first
    clusters = joined(list(dict.fromkeys(cluster for _, cluster in named)))
    write_report(Path(options["out"]) / "compare.html", [outcome], more=[percentiles(summaries)],
                 conditions=conditions_table({**summary, "scenario": {**summary["scenario"], "cluster": clusters}}),
                 lead=conditions(on[baseline].resolve(), price))
    return summary
