"""Functions that evaluate a point of a figure in a worker process, given scenario, policy and options of `play`."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import replace
from typing import Any

import numpy as np

from baselines.hygen import service_error
from ooco_gym.metrics.summary import summarise
from ooco_gym.perf.command import colocated_throughput, describe_iteration, prefill_saturation
from ooco_gym.policy import get_policy
from ooco_gym.scenario import Scenario
from ooco_gym.sim.state import PS_PER_S
from ooco_gym.simulation import Run, Simulation, simulate
from ooco_gym.study.runs import NO_SAMPLES_S
from ooco_gym.workload import load_workload, write_trace
from ooco_gym.workload.offline import offline_trace

SIZES = (1, 4, 16, 64, 128, 256, 512, 1024, 4096)  # prompt tokens, or decoding requests
CONTEXTS = (128, 1024, 8192)  # tokens per decoding request
CURVES = {"online_active": "urgent", "offline_active": "offline", "kv_share": "kv_share"}
SAMPLES = 10  # samples per interval


def simulated(scenario: Scenario, policy: str) -> dict[str, Any]:
    """Returns the summary of a simulation, with the policy's `params`."""
    begun = time.process_time()
    run = simulate(scenario, policy=policy, sample_s=NO_SAMPLES_S)
    return {**summarise(run), "params": run.params, "iterations": int(run.instances["steps_begun"].sum()),
            "cpu_s": time.process_time() - begun}


def profiled(scenario: Scenario, policy: str) -> dict[str, Any]:
    """Returns the parameters that a policy's profiler finds by test runs (HyGen 4.2); none if they are given."""
    chosen = get_policy(policy)
    assert chosen.profile is not None
    return dict(chosen.profile(chosen, scenario.resolve()))


def over_time(scenario: Scenario, policy: str, *, bin_s: float) -> dict[str, Any]:
    """Returns a run by intervals of `bin_s`: rows along the axis `hour` of arrivals, running requests and cache hits.

    `hit_rate` covers offline requests with their first token in the interval; tokens count at a
    request's last token.
    """
    run = simulate(scenario, policy=policy, sample_s=bin_s / SAMPLES)
    begin_s, end_s = run.window_s
    edges_s = np.arange(begin_s, end_s + 1e-6, bin_s)
    place = np.digitize(run.samples["t_s"], edges_s) - 1
    stretches, means = range(len(edges_s) - 1), {}
    for name, key in CURVES.items():
        means[name] = np.array([run.samples[key][place == index].sum(axis=1).mean() for index in stretches])
    columns = {**_online(run, edges_s), **_offline(run, edges_s), **means,
               "kv_share": means["kv_share"] / len(run.instances)}
    rows = []
    for index in stretches:
        figures = {name: float(values[index]) for name, values in columns.items()}
        known = {name: None if np.isnan(value) else value for name, value in figures.items()}
        rows.append({"at": {"hour": round((edges_s[index] - begin_s) / 3600.0, 4)}, **known})
    return {"rows": rows}


def _online(run: Run, edges_s: np.ndarray) -> dict[str, np.ndarray]:
    mine = run.requests[run.requests["online"] == 1]
    tokens = mine["prompt_tokens"].astype(float) + mine["output_tokens"]
    arrivals = np.histogram(mine["arrival_ps"] / PS_PER_S, edges_s, weights=np.ones(len(mine)))[0]
    return {"online_per_s": arrivals / np.diff(edges_s), "online_total_tokens_per_s": _rate(mine, tokens, edges_s)}


def _offline(run: Run, edges_s: np.ndarray) -> dict[str, np.ndarray]:
    mine = run.requests[run.requests["online"] == 0]
    begun = mine[mine["first_token_ps"] > 0]
    prompts, hits = (np.histogram(begun["first_token_ps"] / PS_PER_S, edges_s, weights=values)[0] for values in (
        begun["prompt_tokens"].astype(float), np.maximum(begun["cached_tokens"], 0).astype(float)))
    tokens = mine["prompt_tokens"].astype(float) + mine["output_tokens"]
    return {"offline_total_tokens_per_s": _rate(mine, tokens, edges_s),
            "hit_rate": np.divide(hits, prompts, out=np.full(len(hits), np.nan), where=prompts > 0)}


def _rate(requests: np.ndarray, tokens: np.ndarray, edges_s: np.ndarray) -> np.ndarray:
    done = requests["finish_ps"] > 0
    return np.histogram(requests["finish_ps"][done] / PS_PER_S, edges_s, weights=tokens[done])[0] / np.diff(edges_s)


def predictor_error(scenario: Scenario, policy: str) -> dict[str, Any]:
    """Returns the mean absolute error of HyGen's predictor on a run's batches, as a share (HyGen 5.3)."""
    simulation = Simulation(scenario, policy)
    simulation.advance(simulation.window_s[1])
    return {"error": service_error(simulation.state)}


def traffic(scenario: Scenario, policy: str, *, bin_s: float, near_s: float) -> dict[str, Any]:
    """Returns a workload's online arrivals over time: rows along the axis `hour` of their rate in each `bin_s`.

    Over the preceding `near_s` there are the ratio of the highest to the lowest rate, and the mean
    plus 1.96 standard deviations (Echo 5.3).
    """
    del policy
    start_s, duration_s = scenario.window()
    trace = load_workload(scenario.workload, start_s=start_s, duration_s=duration_s, seed=scenario.seed,
                          rate_scale=scenario.online_scale())
    rate = np.histogram(trace.arrival_s - start_s, np.arange(0.0, duration_s + 1e-6, bin_s))[0] / bin_s
    near, rows = round(near_s / bin_s), []
    for index in range(near, len(rate)):  # from the first interval with a full past
        before, value = rate[index - near:index], rate[index]
        bound = before.mean() + 1.96 * before.std()
        rows.append({"at": {"hour": round((start_s + (index + 0.5) * bin_s) / 3600.0, 4)}, "online_per_s": float(value),
                     "swing": float(before.max() / max(before.min(), 1.0 / bin_s)), "expected_most": float(bound),
                     "covered": float(value <= bound)})
    return {"rows": rows}


def roofline(scenario: Scenario, policy: str) -> dict[str, Any]:
    """Returns latencies of a prefill or decode iteration on the first instance, over sizes and
    contexts (OOCO's Figure 3).

    Rows are along `phase`, `size` (prompt tokens or requests) and `context`.
    """
    del policy
    deployment, rows = scenario.load_cluster().deployments(scenario.timing)[0][1], []
    for size in SIZES:
        batches = {"prefill": {0: {"prefill": [(size, size)]}},
                   "decode": {context: {"decode": [context] * size} for context in CONTEXTS}}
        for phase, by_context in batches.items():
            for context, batch in by_context.items():
                found = describe_iteration(deployment, **batch)
                rows.append({"at": {"phase": phase, "size": size, "context": context}, "latency_s": found.latency_s,
                             "tokens_per_s": found.tokens_per_s, "compute_share": found.resource_shares["compute"],
                             "saturation_tokens": float(prefill_saturation(deployment) or 0)})
    return {"rows": rows}


def throughput(scenario: Scenario, policy: str) -> dict[str, Any]:
    """Returns the highest tokens per second of a mixed instance if each request has the mean lengths of
    Azure's conversations (as OOCO's Table 6)."""
    del policy
    _, deployment = scenario.load_cluster().deployments(scenario.timing)[0]
    return {"tokens_per_s": colocated_throughput(deployment).tokens_per_s}


def lengths(scenario: Scenario, policy: str) -> dict[str, Any]:
    """Returns mean lengths in tokens of a day's online requests and of as many offline ones."""
    del policy
    trace = load_workload(scenario.workload, start_s=0.0, duration_s=86_400.0, seed=scenario.seed, rate_scale=0.2)
    offline = offline_trace(dict(scenario.offline), duration_s=20_000.0, seed=scenario.seed)
    return {"prompt_tokens": float(trace.prompt_tokens.mean()), "output_tokens": float(trace.output_tokens.mean()),
            "offline_prompt_tokens": float(offline.prompt_tokens.mean()),
            "offline_output_tokens": float(offline.output_tokens.mean())}


def jobs_to_end(scenario: Scenario, policy: str) -> dict[str, Any]:
    """Returns figures of the jobs that arrive in a window of a generated workload, played alone to the end of all.

    `token_latency_s` is the mean over jobs of completion over tokens generated (Autellix 6.2), `makespan_s` the time to
    the last job's end; the others are those of `jobs` in a summary.
    """
    start_s, duration_s = scenario.window()
    trace = load_workload(scenario.workload, start_s=start_s, duration_s=duration_s, seed=scenario.seed,
                          rate_scale=scenario.rate_scale or 1.0)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "jobs.parquet")
        write_trace(trace.shift(-start_s), path)
        closed = {"sessions": "closed"} if trace.after is not None else {}
        alone = replace(scenario, workload={"path": path, "class": "offline", **closed}, offline=None, start_s=None,
                        duration_s=None, rate_scale=1.0)
        run = simulate(alone, policy=policy, sample_s=NO_SAMPLES_S)
    assert run.job is not None
    found, requests = run.summary["jobs"], run.requests
    _, place = np.unique(run.job, return_inverse=True)
    begin, end = np.full(place.max() + 1, np.iinfo(np.int64).max), np.zeros(place.max() + 1, np.int64)
    np.minimum.at(begin, place, requests["arrival_ps"])
    np.maximum.at(end, place, requests["finish_ps"])
    tokens = np.bincount(place, requests["output_tokens"])
    return {**{key: value for key, value in found.items() if not isinstance(value, list)},
            "hit_rate": run.summary["offline"]["hit_rate"],
            "token_latency_s": float(((end - begin) / PS_PER_S / tokens).mean()),
            "makespan_s": float((end.max() - begin.min()) / PS_PER_S)}
