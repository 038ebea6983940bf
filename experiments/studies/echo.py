"""`ooco-gym experiment echo`: Echo beside its paper's figures (arXiv 2504.03651, section 7; docs/baselines/echo.md).

Parts: the estimator, Figures 6 and 7 (ablation), 8 to 10 (hit_rate), what the paper leaves open (readings), and the
processor time of a decision (cost).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from baselines.echo_estimator import DECODE_FORMS, PREFILL_FORMS, fit
from experiments.common.output import check_page, offline_tokens, spread
from experiments.common.policies import seeds_of
from experiments.common.runner import Jobs
from experiments.common.store import Store
from experiments.studies.echo_page import terminal, write_results
from ooco_gym.errors import UserError, unknown
from ooco_gym.files import cache_path
from ooco_gym.perf import cost_table
from ooco_gym.resources import load_yaml
from ooco_gym.scenario import Scenario

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from ooco_gym.simulation import Run

BASELINE = "echo_bs"
VARIANTS = ("echo_bs", "echo_bs_e", "echo_bs_e_s", "echo")
NOTHING = {"mode": "rate", "rate": 0.0}
PRECISION = 0.03
Summaries = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Bench:
    """Where variants are measured.

    Attributes:
        jobs: runs simulations.
        scenario: the conditions, at the online load that the instance serves alone; its seed is not used.
        seeds: of the measured runs.
        pools: by offline dataset, how many requests there are from the beginning.
    """

    jobs: Jobs
    scenario: Scenario
    seeds: tuple[int, ...]
    pools: Mapping[str, int]

    def at(self, load: float, dataset: str, **changes: Any) -> Scenario:
        """The conditions at a share of that load, with a dataset's requests all there from the beginning."""
        return self.scenario.with_(rate_scale=load * self.scenario.online_scale(),
                                   offline=pool(dataset, self.pools[dataset]), **changes)

    def runs(self, scenario: Scenario, policies: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
        """Summaries by policy, one a seed."""
        asked = {policy: [self.jobs.submit(scenario.with_(seed=seed), policy) for seed in self.seeds]
                 for policy in policies}
        return {policy: [one.result() for one in futures] for policy, futures in asked.items()}


def pool(dataset: str, requests: int) -> dict[str, Any]:
    """So many offline requests of a dataset, all there from the beginning.

    A dataset whose prompts share groups' texts has more groups, so that a group has as many requests as in the
    dataset itself: several copies of it with other documents.
    """
    values = load_yaml("offline", dataset)
    sharing = values.get("sharing")
    if sharing is None:
        return {"mode": "jobs", "jobs": requests, "dataset": dataset}
    own = {"loogle_short": 1951, "loogle_long": 1100}.get(dataset, requests)
    groups = max(1, round(sharing["groups"] * requests / own))
    return {"mode": "jobs", "jobs": requests, "dataset": dataset, "sharing": {**sharing, "groups": groups}}


def load_alone(jobs: Jobs, scenario: Scenario, violations: float, seed: int) -> float:
    """The largest factor on the online rate at which the instance without offline work violates no more than that.

    Echo scales its trace "so that it will not violate the SLO in a workload only including online tasks" (7.2). Found
    by doubling and bisection on a seed of its own.
    """
    def kept(scale: float) -> bool:
        alone = scenario.with_(rate_scale=scale, offline=NOTHING, seed=seed)
        return jobs.submit(alone, BASELINE).result()["online"]["violation_rate"] <= violations

    low, high = 0.0, 1.0
    while kept(high):
        low, high = high, 2.0 * high
    while high - low > PRECISION * high:
        middle = (low + high) / 2
        low, high = (middle, high) if kept(middle) else (low, middle)
    return round(low, 3)


# --- Figures of runs ------------------------------------------------------------------------------------------------
def row_of(runs: Summaries, base: Summaries) -> dict[str, Any]:
    """A variant's figures: means with intervals over seeds, and ratios to the baseline on the same seeds."""
    online, offline = ([run[key] for run in runs] for key in ("online", "offline"))
    work = np.array([one["reference_gpu_s_per_s"] for one in offline])
    window_s = runs[0]["window_s"]
    return {
        "tokens_per_s": spread([offline_tokens(run) for run in runs]),
        "requests_per_s": spread([one["finished"] / window_s for one in offline]),
        "speed_up": spread(np.array([offline_tokens(run) for run in runs]) / [offline_tokens(run) for run in base]),
        "work_speed_up": spread(work / [run["offline"]["reference_gpu_s_per_s"] for run in base]),
        "hit_rate": spread([one["hit_rate"] or 0.0 for one in offline]),
        **{key: spread([one[key] for one in online]) for key in (
            "ttft_attainment", "tpot_attainment", "deadline_attainment", "violation_rate", "ttft_mean_s",
            "tpot_mean_s")},
        "evictions": spread([one["evictions"] for one in offline]),
        "wasted_tokens_per_s": spread([one["wasted_tokens_per_s"] for one in offline]),
    }


def with_load(bench: Bench, scale: float) -> Bench:
    """The same bench where this factor is the load that the instance serves alone."""
    return replace(bench, scenario=bench.scenario.with_(rate_scale=scale))


BIN_S = 900.0


def simulate_served(scenario: Scenario, policy: str) -> dict[str, Any]:
    """Simulates a scenario; returns its summary with `curves` (`curves_of`). A worker process runs this."""
    from ooco_gym.metrics.summary import summarise
    from ooco_gym.simulation import simulate

    run = simulate(scenario, policy=policy, sample_s=BIN_S)
    return {**summarise(run), "curves": curves_of(run)}


def curves_of(run: Run) -> dict[str, list[float | None]]:
    """Figures of each quarter of an hour of the measured window.

    `hit_rate` is the share of prompt tokens found in the prefix cache, of the offline requests whose first token came
    in that time (None: there was none). Active requests and the share of memory that they hold are the samples that
    follow its end (the last one, where none does).
    """
    from ooco_gym.sim.state import PS_PER_S

    if "t_s" not in run.samples:
        raise UserError("echo.duration_s: the run is shorter than the interval of its samples; take 600 or more")
    begin_s, end_s = run.window_s
    edges_s = np.arange(begin_s, end_s + 1.0, BIN_S)
    offline = run.requests[(run.requests["online"] == 0) & (run.requests["first_token_ps"] > 0)]
    index = np.digitize(offline["first_token_ps"] / PS_PER_S, edges_s) - 1
    inside = (index >= 0) & (index < len(edges_s) - 1)
    bins = len(edges_s) - 1
    prompts = np.bincount(index[inside], offline["prompt_tokens"][inside], bins)
    found = np.bincount(index[inside], np.maximum(offline["cached_tokens"], 0)[inside], bins)
    online = run.requests[run.requests["online"] == 1]
    arrivals = np.histogram(online["arrival_ps"] / PS_PER_S, edges_s)[0] / BIN_S
    at = np.minimum(np.searchsorted(run.samples["t_s"], edges_s[1:] - 1e-6), len(run.samples["t_s"]) - 1)
    return {"t_s": (edges_s[:-1] + BIN_S / 2 - begin_s).tolist(),
            "hit_rate": [float(a / b) if b else None for a, b in zip(found, prompts, strict=True)],
            "online_per_s": arrivals.tolist(),
            **{name: run.samples[key][at].sum(axis=1).tolist() for name, key in (("online_active", "urgent"),
                                                                               ("offline_active", "offline"))},
            "kv_share": run.samples["kv_share"][at].mean(axis=1).tolist()}


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
    cache = Store(cache_path("echo"), on=bool(options["cache"]))
    results: dict[str, Any] = {}
    with Jobs(options["workers"], cache, run=simulate_served) as jobs, jobs.progress("experiment echo"):
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
    from ooco_gym.simulation import Simulation

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
