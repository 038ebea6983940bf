"""`ooco-gym bench`: speed of simulator and environments on this machine, with targets.

Each measurement runs several times, each time in a fresh process, so that it has its own peak of
memory; the median is reported. Rates are per second of processor time, to exclude other load.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ooco_gym.errors import unknown
from ooco_gym.metrics import summarise, write_requests
from ooco_gym.report import Table, number, track
from ooco_gym.scenario import DAY_S, Scenario
from ooco_gym.schema import whole
from ooco_gym.sim import state as s
from ooco_gym.simulation import Run, Simulation, requests_of, simulate
from ooco_gym.workload import Trace, write_trace

if TYPE_CHECKING:
    from omegaconf import DictConfig

SCHEMA = "ooco-gym/bench/5"
HOUR_S = 3600.0
STEADY_S, STEADY_RATE_PER_S = 7200.0, 5.2
MIXED_SEATS, MIXED_REQUESTS, MIXED_WARM_S, MIXED_SPAN_S = 64, 6000, 60.0, 1200.0
MIXED = {"model": "qwen2_5_7b", "mixed": [{"chip": "ascend_910c"}]}
FLEET_PAIRS, LARGE_FLEET_PAIRS, LARGE_FLEET_S = 32, 512, 900.0
PAIR = Scenario(workload="ooc", duration_s=HOUR_S, warmup_s=0.0, drain_s=0.0)
SIDE_BY_SIDE, WARM_STEPS, STEPS = 64, 20, 5000  # episodes of a vector; steps before timing, and timed
LEARNED = 100_000  # decisions of the measured training


class Target(NamedTuple):
    """One metric of the bench: its target (a minimum if `more` is better, else a maximum), and its meaning."""

    name: str
    target: float
    more: bool
    unit: str
    note: str


METRICS = (
    Target("decode_iterations_per_s", 1e6, True, "1/s", "decode steps with 200 concurrent requests that arrive and "
                                                        "finish"),
    Target("mixed_iterations_per_s", 3e5, True, "1/s", "mixed iterations with all 64 running slots occupied"),
    Target("day_wall_s", 5.0, False, "s", "24 hours of OOC on pair_7b under OOCO, including load generation"),
    Target("fleet_wall_s", 90.0, False, "s", "64 instances and a million requests under OOCO, including load "
                                             "generation"),
    Target("fleet_gb_a_million", 0.25, False, "GB", "memory of a million more requests on 64 instances"),
    Target("large_fleet_us", 15.0, False, "us", "a request on 1,024 instances under OOCO, in a 15-minute run"),
    Target("large_fleet_ratio", 1.5, False, "", "time of a request on 1,024 instances over that on 64"),
    Target("env_steps_per_s", 6e4, True, "1/s", "steps of PrefillGate-v1 through gym.make (three holds, then a start)"),
    Target("vector_decisions_per_s", 5e5, True, "1/s", "steps of 64 episodes of PrefillGate-v1 through gym.make_vec, "
                                                       "one thread"),
    Target("learned_gating_per_s", 3e4, True, "1/s", "training decisions of PrefillGate-v1 per wall-clock second"),
    Target("learned_eviction_per_s", 3e4, True, "1/s", "training decisions of Eviction-v1 per wall-clock second"),
    Target("warm_start_s", 2.0, False, "s", "time from process start to the first simulated event"),
    Target("cold_compile_s", 60.0, False, "s", "time from process start to the first simulated event, nothing compiled "
                                               "before"),
)


def main(cfg: DictConfig) -> dict[str, Any]:
    """Runs the command; returns medians, all values and a description of the machine.

    Raises:
        UserError: an unknown measurement, or a count that is not positive.
    """
    for key in ("repeats", "fleet_requests"):
        whole(key, cfg[key], 1)
    names = list(MEASUREMENTS) if cfg.only is None else [cfg.only] if isinstance(cfg.only, str) else list(cfg.only)
    for name in names:
        if name not in MEASUREMENTS:
            raise unknown("measurement", name, MEASUREMENTS)
    options = {"fleet_requests": cfg.fleet_requests}
    _measure("warm_start", options, 1)  # compiles what is missing
    values: dict[str, list[float]] = {}
    for name in track(names, "measuring"):
        values |= _measure(name, options, cfg.repeats)
    medians = {target.name: statistics.median(values[target.name]) if target.name in values else None
               for target in METRICS}
    medians_table(medians).show(unbroken=3)
    return {"schema": SCHEMA, **medians, "values": values, "machine": machine(),
            "targets": {target.name: target.target for target in METRICS}}


def medians_table(medians: dict[str, Any]) -> Table:
    """Returns a table of measured values with their targets, and whether they miss them."""
    measured = [(target, medians[target.name]) for target in METRICS if medians[target.name] is not None]
    rows = [(target.name, number(value), f"{'≥' if target.more else '<'} {number(target.target)} {target.unit}",
             "missed" if (value < target.target) == target.more else "", target.note) for target, value in measured]
    return Table("medians on this machine", ("metric", "measured", "target", "", "what"), rows)


def machine() -> dict[str, Any]:
    """Returns the machine's processor, cores, versions and load."""
    model = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    return {"cpu": model, "cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("numpy", "numba")},
            "load_1min": os.getloadavg()[0] if hasattr(os, "getloadavg") else None}


# --- The loop: decode steps, mixed iterations, a day, a fleet ---------------------------------------------------------
def _simulation(waiting: int, online: int, duration_s: float, policy: str, cluster: Any = "pair_7b") -> Simulation:
    """Returns a simulation of `waiting` offline requests at once, and `online` ones over a time."""
    draws, n = np.random.Generator(np.random.Philox(7)), waiting + online
    prompt, output = (draws.lognormal(mean, spread, n).astype(np.int32) + 1 for mean, spread in ((6.0, 0.6),
                                                                                                (6.78, 0.5)))
    arrival_s = np.concatenate([np.zeros(waiting), np.sort(draws.uniform(0.0, duration_s, online))])
    with tempfile.TemporaryDirectory() as folder:
        path = write_trace(Trace(arrival_s, prompt, output, np.arange(n) >= waiting), os.path.join(folder, "t.parquet"))
        return Simulation(Scenario(workload=str(path), cluster=cluster, duration_s=duration_s, warmup_s=0.0,
                                   drain_s=0.0, start_s=0.0, offline={"mode": "rate", "rate": 0.0}), policy)


def _per_s(simulation: Simulation, from_s: float, to_s: float, steps: Callable[[], int]) -> float:
    """Returns the increase of `steps` over a span, per second of processor time."""
    simulation.advance(from_s)
    before, begun = steps(), time.thread_time()
    simulation.advance(to_s)
    taken_s = time.thread_time() - begun
    return (steps() - before) / taken_s


def measure_decode(options: dict[str, Any]) -> dict[str, Any]:
    """Measures decode steps of a steady state of about 200 requests."""
    simulation = _simulation(0, int(STEADY_RATE_PER_S * STEADY_S), STEADY_S, "base_pd")
    instances = simulation.state.instances
    strict = instances["role"] == s.STRICT
    return {"decode_iterations_per_s": _per_s(simulation, 300.0, STEADY_S,
                                              lambda: int(instances["decode_steps"][strict].sum()))}


def measure_mixed(options: dict[str, Any]) -> dict[str, Any]:
    """Measures mixed iterations of 64 requests."""
    policy = f"vllm_fcfs:max_num_seqs={MIXED_SEATS},prefix_caching='off'"
    simulation = _simulation(MIXED_REQUESTS, 3, HOUR_S, policy, MIXED)
    instances = simulation.state.instances
    found = _per_s(simulation, MIXED_WARM_S, MIXED_WARM_S + MIXED_SPAN_S, lambda: int(instances["steps_begun"].sum()))
    assert instances["online_waiting"].sum() > 0, "the waiting requests have run out: the batch was not full"
    return {"mixed_iterations_per_s": found}


def measure_day(options: dict[str, Any]) -> dict[str, Any]:
    """Measures the embedded day on the pair."""
    run = simulate(Scenario(workload="ooc", start_s=0.0, duration_s=DAY_S, offline={"mode": "rate", "rate": 1.0}))
    return {"day_wall_s": run.wall_s}


def measure_fleet(options: dict[str, Any]) -> dict[str, Any]:
    """Measures 64 instances and a million requests, with all outputs of `simulate` but the page."""
    per_s = len(requests_of(PAIR)[0]) / HOUR_S * FLEET_PAIRS
    duration_s = min(1.03 * options["fleet_requests"] / per_s, DAY_S)  # a little more, as the load varies
    few, before = _whole(HOUR_S / 60), _peak_gb()
    run = _whole(duration_s)
    grown_gb = _peak_gb() - before
    return {"fleet_wall_s": run.wall_s, "fleet_gb_a_million": 1e6 * grown_gb / (len(run.requests) - len(few.requests))}


def _whole(duration_s: float) -> Run:
    """Returns a run of 64 instances over `duration_s`, after its metrics and request table."""
    run = simulate(_fleet(FLEET_PAIRS, duration_s))
    summarise(run)
    with tempfile.TemporaryDirectory() as folder:
        write_requests(run, os.path.join(folder, "requests.parquet"))
    return run


def _peak_gb() -> float:
    """Returns the peak resident memory of this process."""
    import resource  # not on every system

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e9


def measure_large_fleet(options: dict[str, Any]) -> dict[str, Any]:
    """Measures a quarter of an hour of 1,024 instances, and of 64."""
    us = []
    for pairs in (FLEET_PAIRS, LARGE_FLEET_PAIRS):
        simulation, begun = Simulation(_fleet(pairs, LARGE_FLEET_S)), time.thread_time()
        simulation.advance()
        us.append(1e6 * (time.thread_time() - begun) / simulation.state.requests.size)
    return {"large_fleet_us": us[1], "large_fleet_ratio": us[1] / us[0]}


def _fleet(pairs: int, duration_s: float) -> Scenario:
    """Returns a scenario of `pairs` relaxed and as many strict instances, under a pair's load for each two."""
    pool = [{"chip": "ascend_910c", "count": pairs}]
    return Scenario(cluster={"model": "qwen2_5_7b", "relaxed": pool, "strict": pool}, workload="ooc",
                    duration_s=duration_s, warmup_s=0.0, drain_s=300.0, rate_scale=pairs * PAIR.online_scale(),
                    offline={"mode": "rate", "rate": float(pairs)})


def measure_start(options: dict[str, Any]) -> dict[str, Any]:
    """Simulates the first events in a new process; the caller measures its whole life."""
    Simulation(Scenario(duration_s=1.0, warmup_s=0.0, drain_s=0.0, rate_scale=1.0)).advance(1.0)
    return {}


# --- Environments -----------------------------------------------------------------------------------------------------
def measure_envs(options: dict[str, Any]) -> dict[str, Any]:
    """Measures PrefillGate-v1's decisions per second, with single episodes and with a vector."""
    import gymnasium as gym

    name = "ooco_gym/PrefillGate-v1"
    vector = gym.make_vec(name, num_envs=SIDE_BY_SIDE, vectorization_mode="vector_entry_point")
    return {"env_steps_per_s": decisions_per_s(gym.make(name), 1),
            "vector_decisions_per_s": decisions_per_s(vector, SIDE_BY_SIDE)}


def decisions_per_s(env: Any, episodes: int) -> float:
    """Returns decisions per second of single episodes or a vector; steps with a reset are excluded."""
    actions = [np.int64(one) if episodes == 1 else np.full(episodes, one, np.int64) for one in (0, 0, 0, 2)]
    env.reset(seed=1000)
    over, counted, taken_s = False, 0, 0.0
    for step in range(WARM_STEPS + STEPS):
        if over and episodes == 1:
            env.reset(seed=1000 + step)
        begun = time.thread_time()
        _, _, terminated, truncated, _ = env.step(actions[step % len(actions)])
        took, before = time.thread_time() - begun, over and episodes > 1  # a vector resets by itself
        over = bool(np.any(terminated | truncated))
        if step >= WARM_STEPS and not (before or over):
            counted, taken_s = counted + episodes, taken_s + took
    env.close()
    return counted / taken_s


def measure_learning(options: dict[str, Any]) -> dict[str, Any]:
    """Measures decisions per second of `ooco-gym train` with default parameters, without validation."""
    return _learned("learned_gating", "prefillgate") | _learned("learned_eviction", "eviction")


def _learned(name: str, env: str) -> dict[str, float]:
    """Returns decisions per second of learning."""
    with tempfile.TemporaryDirectory() as out:
        train = [sys.executable, "-m", "ooco_gym", "train", f"env={env}", f"total_timesteps={LEARNED}",
                 "validation.windows=0", "resumable=false", f"out={out}/run"]
        subprocess.run(train, check=True, stdout=sys.stderr)
        with open(f"{out}/run/summary.json", encoding="utf-8") as file:
            summary = json.load(file)
    return {f"{name}_per_s": summary["decisions_per_s"]}


# --- Processes --------------------------------------------------------------------------------------------------------
MEASUREMENTS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "decode": measure_decode, "mixed": measure_mixed, "day": measure_day, "fleet": measure_fleet,
    "large_fleet": measure_large_fleet,
    "envs": measure_envs, "learning": measure_learning, "warm_start": measure_start, "cold_compile": measure_start,
}


def _measure(name: str, options: dict[str, Any], repeats: int) -> dict[str, list[float]]:
    """Returns a list of values for each metric from all repeats, each in a new process."""
    code = ("import json, sys\nfrom ooco_gym.commands.bench import MEASUREMENTS\n"
            "print(json.dumps(MEASUREMENTS[sys.argv[1]](json.loads(sys.argv[2]))))")
    values: dict[str, list[float]] = {}
    for _ in range(1 if name == "cold_compile" else repeats):  # it takes a minute
        with tempfile.TemporaryDirectory() as folder:
            cache = {"NUMBA_CACHE_DIR": folder} if name == "cold_compile" else {}
            begun = time.perf_counter()
            done = subprocess.run([sys.executable, "-c", code, name, json.dumps(options)], capture_output=True,
                                  text=True, env={**os.environ, **cache}, check=False)
            wall_s = time.perf_counter() - begun
        if done.returncode != 0:
            raise RuntimeError(f"the measurement '{name}' failed:\n{done.stderr}")
        found = json.loads(done.stdout.strip().splitlines()[-1])
        found |= {f"{name}_s": wall_s} if MEASUREMENTS[name] is measure_start else {}
        for key, value in found.items():
            values.setdefault(key, []).append(value)
    return values
