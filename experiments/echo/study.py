"""The study: each part on its bench, as tables in the terminal, in Markdown, as plots and in the summary."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from baselines.echo_fit import DECODE_FORMS, PREFILL_FORMS, fit
from experiments.cache import Cache
from experiments.echo.bench import BASELINE, VARIANTS, Bench, load_alone, row_of, spread, with_load
from experiments.echo.page import write_results
from experiments.echo.served import simulate_served
from experiments.echo.tables import terminal
from experiments.jobs import Jobs
from experiments.marked_page import check_page
from experiments.options import seeds_of
from experiments.tables import waiting
from ooco_gym.errors import unknown
from ooco_gym.peak import cache_folder
from ooco_gym.perf import cost_table
from ooco_gym.scenario import Scenario

if TYPE_CHECKING:
    from omegaconf import DictConfig

SCHEMA = "ooco-gym/echo/1"
PARTS = ("estimator", "ablation", "hit_rate", "readings", "cost")


def main(cfg: DictConfig) -> dict[str, Any]:
    """Runs the parts that `cfg.echo.parts` names.

    Raises:
        UserError: an unknown part, or a scenario that cannot be played.
    """
    from omegaconf import OmegaConf

    options: dict[str, Any] = OmegaConf.to_container(cfg.echo, resolve=True)  # type: ignore[assignment]
    parts = list(options["parts"])
    for part in parts:
        if part not in PARTS:
            raise unknown("part (echo.parts)", part, PARTS)
    check_page("echo.page", options["page"])
    scenario = Scenario(cluster=options["cluster"], workload=options["online"], duration_s=options["duration_s"],
                        rate_scale=1.0)
    seeds = seeds_of(options["seeds"], "echo.seeds")
    cache = Cache(cache_folder() / "echo", on=bool(options["cache"]))
    results: dict[str, Any] = {}
    with Jobs(options["workers"], cache, run=simulate_served) as jobs, waiting("experiment echo", jobs):
        bench = Bench(jobs, scenario, seeds, options["pools"])
        scale = options["rate_scale"]
        if scale is None and set(parts) - {"estimator"}:
            scale = load_alone(jobs, scenario, float(options["alone_violations"]), int(options["alone_seed"]))
        if scale is not None:
            bench = with_load(bench, float(scale))
        for part in parts:
            results[part] = RUN[part](bench, options)
    summary = {"schema": SCHEMA, "options": options, "rate_scale": scale, "seeds": list(seeds), "results": results}
    terminal(summary)
    return {**summary, "pages": [str(path) for path in write_results(summary, Path(cfg.out))]}


def estimator(bench: Bench, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Error of each form of the estimator on batches that it was not fitted to."""
    del options
    _, deployment = bench.scenario.load_cluster().deployments(bench.scenario.timing)[0]
    table = cost_table(deployment)
    return [{"prefill_form": prefill, "decode_form": decode, **one.coefficients,
             **{f"{kind}_mape": one.mape[kind] for kind in one.mape},
             **{f"{kind}_bias": one.bias[kind] for kind in one.bias}}
            for prefill in PREFILL_FORMS for decode in DECODE_FORMS for one in [fit(table, 256, prefill, decode)]]


def ablation(bench: Bench, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Figure 6 and 7: the four variants, and those with S once more with deadlines from the first token."""
    rows = []
    scenarios = {(load, dataset): bench.at(load, dataset) for load in options["loads"] for dataset in bench.pools}
    policies = [*VARIANTS, *(f"{name}:due_from=first_token" for name in VARIANTS[2:])]
    for scenario in scenarios.values():  # all at once, so that no worker waits for another condition
        for policy in policies:
            for seed in bench.seeds:
                bench.jobs.submit(scenario.with_(seed=seed), policy)
    for (load, dataset), scenario in scenarios.items():
        runs = bench.runs(scenario, policies)
        rows += [{"load": load, "dataset": dataset, "policy": policy, **row_of(runs[policy], runs[BASELINE])}
                 for policy in policies]
    return rows


def hit_rate(bench: Bench, options: Mapping[str, Any]) -> dict[str, Any]:
    """Figures 8, 9 and 10: from quieter hours to the peak."""
    day = options["day"]
    scenario = bench.at(float(day["load"]), day["dataset"], start_s=float(day["start_s"]),
                        duration_s=float(day["duration_s"]))
    scenario = scenario.with_(offline={**scenario.offline, **_more(scenario.offline, float(day["pools"]))})
    runs = bench.runs(scenario, list(day["policies"]))
    return {"load": day["load"], "dataset": day["dataset"], "start_s": day["start_s"],
            "curves": {policy: [run["curves"] for run in found] for policy, found in runs.items()},
            "rows": [{"policy": policy, "hit_rate": spread([run["offline"]["hit_rate"] for run in found]),
                      **_peak_and_trough(found)} for policy, found in runs.items()]}


def _more(offline: Mapping[str, Any], times: float) -> dict[str, Any]:
    grown: dict[str, Any] = {"jobs": round(offline["jobs"] * times)}
    if offline.get("sharing"):
        grown["sharing"] = {**offline["sharing"], "groups": round(offline["sharing"]["groups"] * times)}
    return grown


def _peak_and_trough(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Hit rate in the fifth of the time with the most online requests, and in the fifth with the fewest."""
    values: dict[str, list[float]] = {"trough": [], "peak": []}
    for run in runs:
        curves = run["curves"]
        known = [(rate, hit) for rate, hit in zip(curves["online_per_s"], curves["hit_rate"], strict=True)
                 if hit is not None]
        known.sort()
        fifth = max(1, len(known) // 5)
        values["trough"].append(sum(hit for _, hit in known[:fifth]) / fifth)
        values["peak"].append(sum(hit for _, hit in known[-fifth:]) / fifth)
    return {f"hit_rate_{name}": spread(found) for name, found in values.items()}


def readings(bench: Bench, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the paper leaves open, one change at a time."""
    rows = []
    for chosen in options["readings"]:
        scenario = bench.at(float(chosen["load"]), chosen["dataset"])
        policies = ["echo", *(f"echo:{words}" for words in chosen["changes"])]
        runs = bench.runs(scenario, [BASELINE, *policies])
        rows += [{"load": chosen["load"], "dataset": chosen["dataset"], "policy": policy,
                  **row_of(runs[policy], runs[BASELINE])} for policy in policies]
    return rows


def cost(bench: Bench, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Processor time of an iteration, with the simulator's own part, by how many offline requests wait."""
    from ooco_gym.sim.driver import Simulation

    chosen, rows = options["cost"], []
    for waiting_requests in chosen["waiting"]:
        scenario = bench.at(float(chosen["load"]), chosen["dataset"], duration_s=float(chosen["duration_s"]))
        scenario = scenario.with_(offline={**scenario.offline, **_more(
            scenario.offline, waiting_requests / scenario.offline["jobs"])}, warmup_s=0.0, seed=bench.seeds[0])
        for policy in VARIANTS:
            simulation = Simulation(scenario, policy)
            simulation.advance(1.0)
            begun, steps = time.process_time(), int(simulation.state.instances["steps_begun"].sum())
            simulation.advance(float(chosen["duration_s"]))
            spent_s = time.process_time() - begun
            spec = simulation.state.instances[0]
            rows.append({"policy": policy, "waiting": waiting_requests, "still_waiting": int(spec["offline_waiting"]),
                         "iterations": int(spec["steps_begun"]) - steps,
                         "us": 1e6 * spent_s / max(1, int(spec["steps_begun"]) - steps)})
    return rows


RUN = {"estimator": estimator, "ablation": ablation, "hit_rate": hit_rate, "readings": readings, "cost": cost}
