"""`ooco-gym bench`: how fast the simulator and the environments are on this machine, beside the targets.

Each measurement runs in a fresh process of its own (so that one leaves nothing behind for the next, and the peak of
memory is its own), several times; the median is reported. Rates are per second of this core's processor time, so that
what else the machine does is not in them.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable
from importlib import metadata
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ooco_gym.errors import unknown, whole_number
from ooco_gym.policy import policy_of, rules
from ooco_gym.policy.decisions import POINTS, call_rule
from ooco_gym.report import Table, number, track
from ooco_gym.scenario import DAY_S, Scenario
from ooco_gym.sim import state as s
from ooco_gym.simulation import Simulation, requests_of, simulate
from ooco_gym.workload import Trace, write_trace
from ooco_gym.workload.sharing import hash_blocks

if TYPE_CHECKING:
    from omegaconf import DictConfig

SCHEMA = "ooco-gym/bench/3"
HOUR_S = 3600.0
STEADY_S, STEADY_RATE_PER_S = 7200.0, 5.2
MIXED_SEATS, MIXED_REQUESTS, MIXED_WARM_S, MIXED_SPAN_S = 64, 6000, 60.0, 1200.0
MIXED = {"model": "qwen2_5_7b", "mixed": [{"chip": "ascend_910c"}]}
FLEET_PAIRS = 32
WAITING = 1000  # offline requests where decisions are timed
DECISIONS, WARM_DECISIONS, MOST_DECISIONS = 300, 5, 20_000  # timed, taken before, taken at most to find those
MORE_RUN = (1000, 2000, 4000)  # than there are seats, where their number does not bind
SIDE_BY_SIDE, WARM_STEPS, STEPS = 64, 20, 5000  # episodes of a vector; steps before the clock runs, and after
CANDIDATES, HIDDEN, RUNNING = 64, 32, 64  # of an exported policy, and requests of the engine that asks it
TURNS, CALLS, C_CALLS = 7, 400, 20_000


class Figure(NamedTuple):
    """One figure of the bench: its target (at least it where `more` is better, else at most), and what it means."""

    name: str
    target: float
    more: bool
    unit: str
    note: str


FIGURES = (
    Figure("decode_iterations_per_s", 1e6, True, "1/s", "decode steps, 200 requests at a time that come and go"),
    Figure("mixed_iterations_per_s", 3e5, True, "1/s", "mixed iterations, 64 seats always taken, no prefix cache"),
    Figure("mixed_cached_iterations_per_s", 1e5, True, "1/s", "the same with a prefix cache, prompts beginning alike"),
    Figure("slowest_decision_mean_us", 100.0, False, "us", "costliest decision point of all policies, 1,000 waiting"),
    Figure("day_wall_s", 5.0, False, "s", "24 hours of OOC on pair_7b under OOCO, the load's generation included"),
    Figure("fleet_wall_s", 90.0, False, "s", "64 instances and a million requests under OOCO, generation included"),
    Figure("fleet_peak_gb", 2.0, False, "GB", "most memory resident in that process"),
    Figure("env_steps_per_s", 6e4, True, "1/s", "steps of Gating-v0 through gym.make, three holds and a start in turn"),
    Figure("vector_decisions_per_s", 5e5, True, "1/s", "the same of 64 episodes through gym.make_vec, by one thread"),
    Figure("c_us", 20.0, False, "us", "an exported deep set among 64 candidates in C, -O3 -march=native"),
    Figure("features_us", 150.0, False, "us", "what a policy sees of an engine with 64 requests running"),
    Figure("warm_start_s", 2.0, False, "s", "a new process from its start to the first simulated event"),
    Figure("cold_compile_s", 60.0, False, "s", "the same with nothing compiled before"),
)


def main(cfg: DictConfig) -> dict[str, Any]:
    """Runs the command; returns the figures (medians), all their values and a description of the machine.

    Raises:
        UserError: an unknown measurement, or a count that is not positive.
    """
    for key in ("repeats", "fleet_requests"):
        whole_number(key, cfg[key], 1)
    names = list(MEASUREMENTS) if cfg.only is None else [cfg.only] if isinstance(cfg.only, str) else list(cfg.only)
    for name in names:
        if name not in MEASUREMENTS:
            raise unknown("measurement", name, MEASUREMENTS)
    for name in cfg.decisions:
        policy_of(name)
    options = {"fleet_requests": cfg.fleet_requests, "decisions": list(cfg.decisions)}
    if set(names) - {"export"}:
        _measure("warm_start", options, 1)  # so that what is compiled already is on disk
    values: dict[str, list[float]] = {}
    for name in track(names, "measuring"):
        values |= _measure(name, options, cfg.repeats)
    figures = {figure.name: statistics.median(values[figure.name]) if figure.name in values else None
               for figure in FIGURES}
    figures_table(figures).show(unbroken=3)
    return {"schema": SCHEMA, **figures, "values": values, "machine": machine(),
            "targets": {figure.name: figure.target for figure in FIGURES}}


def figures_table(figures: dict[str, Any]) -> Table:
    """What was measured, beside the targets, and marked where one is missed."""
    measured = [(figure, figures[figure.name]) for figure in FIGURES if figures[figure.name] is not None]
    rows = [(figure.name, number(value), f"{'≥' if figure.more else '<'} {number(figure.target)} {figure.unit}",
             figure.note) for figure, value in measured]
    missed = [index for index, (figure, value) in enumerate(measured) if (value < figure.target) == figure.more]
    return Table("medians on this machine", ("figure", "measured", "target", "what"), rows, align="lrrl", marked=missed)


def machine() -> dict[str, Any]:
    """What was measured on: processor, cores, versions, load."""
    model = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    return {"cpu": model, "cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("numpy", "numba")},
            "load_1min": os.getloadavg()[0] if hasattr(os, "getloadavg") else None}


# --- The loop: decode steps, mixed iterations, a day, a fleet ---------------------------------------------------------
def _simulation(trace: Trace, policy: str, duration_s: float, outside: tuple[str, ...] = (),
                cluster: Any = "pair_7b") -> Simulation:
    """A simulation of a trace alone, measured from its start."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_trace(trace, os.path.join(folder, "trace.parquet"))
        return Simulation(Scenario(workload=str(path), cluster=cluster, duration_s=duration_s, warmup_s=0.0,
                                   drain_s=0.0, start_s=0.0, offline={"mode": "rate", "rate": 0.0}), policy,
                          outside=outside)


def _trace(waiting: int, online: int, duration_s: float, seed: int) -> Trace:
    """So many offline requests at once, and online ones over a time; of prompts over 512 tokens, 50 share that."""
    draws, n = np.random.Generator(np.random.Philox(seed)), waiting + online
    prompt, output = (draws.lognormal(mean, spread, n).astype(np.int32) + 1 for mean, spread in ((6.0, 0.6),
                                                                                                (6.78, 0.5)))
    arrival_s = np.concatenate([np.zeros(waiting), np.sort(draws.uniform(0.0, duration_s, online))])
    hashes = hash_blocks(prompt, np.minimum(prompt // 512, 1), np.arange(n) // 50, np.arange(n), "bench")
    return Trace(arrival_s, prompt, output, np.arange(n) >= waiting, prefix_hashes=hashes)


def _per_s(simulation: Simulation, from_s: float, to_s: float, steps: Callable[[], int]) -> float:
    """What `steps` counts of a span, by a second of this core's time."""
    simulation.advance(from_s)
    before, begun = steps(), time.thread_time()
    simulation.advance(to_s)
    taken_s = time.thread_time() - begun
    return (steps() - before) / taken_s


def measure_decode(options: dict[str, Any]) -> dict[str, Any]:
    """Decode steps of a steady state of about 200 requests."""
    simulation = _simulation(_trace(0, int(STEADY_RATE_PER_S * STEADY_S), STEADY_S, 7), "base_pd", STEADY_S)
    instances = simulation.state.instances
    strict = instances["role"] == s.STRICT
    return {"decode_iterations_per_s": _per_s(simulation, 300.0, STEADY_S,
                                              lambda: int(instances["decode_steps"][strict].sum()))}


def measure_mixed(options: dict[str, Any]) -> dict[str, Any]:
    """Mixed iterations of 64 requests, without and with a prefix cache."""
    found = {}
    for name, caching in (("mixed_iterations_per_s", "off"), ("mixed_cached_iterations_per_s", "on")):
        policy = f"vllm_fcfs:max_num_seqs={MIXED_SEATS},prefix_caching='{caching}'"
        simulation = _simulation(_trace(MIXED_REQUESTS, 3, HOUR_S, 11), policy, HOUR_S, cluster=MIXED)
        instances = simulation.state.instances
        found[name] = _per_s(simulation, MIXED_WARM_S, MIXED_WARM_S + MIXED_SPAN_S,
                             lambda instances=instances: int(instances["steps_begun"].sum()))
        assert instances["online_waiting"].sum() > 0, "the waiting requests have run out: the batch was not full"
    return found


def measure_day(options: dict[str, Any]) -> dict[str, Any]:
    """The embedded day on the pair."""
    run = simulate(Scenario(workload="ooc", start_s=0.0, duration_s=DAY_S, offline={"mode": "rate", "rate": 1.0}))
    return {"day_wall_s": run.wall_s}


def measure_fleet(options: dict[str, Any]) -> dict[str, Any]:
    """64 instances, a million requests."""
    import resource  # not on every system

    pair = Scenario(workload="ooc", duration_s=HOUR_S, warmup_s=0.0, drain_s=0.0)
    per_s = len(requests_of(pair)[0]) / HOUR_S * FLEET_PAIRS
    duration_s = min(1.03 * options["fleet_requests"] / per_s, DAY_S)  # a little more: the load is not constant
    run = simulate(Scenario(cluster="fleet_64", workload="ooc", duration_s=duration_s, warmup_s=0.0, drain_s=300.0,
                            rate_scale=FLEET_PAIRS * pair.online_scale(),
                            offline={"mode": "rate", "rate": float(FLEET_PAIRS)}))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"fleet_wall_s": run.wall_s, "fleet_peak_gb": peak * (1 if sys.platform == "darwin" else 1024) / 1e9}


def measure_start(options: dict[str, Any]) -> dict[str, Any]:
    """The first simulated events in a new process; the caller measures its whole life."""
    Simulation(Scenario(duration_s=1.0, warmup_s=0.0, drain_s=0.0, rate_scale=1.0)).advance(1.0)
    return {}


# --- Decisions --------------------------------------------------------------------------------------------------------
def measure_decisions(options: dict[str, Any]) -> dict[str, Any]:
    """The costliest decision point of all policies, in the mean."""
    found = [one for name in options["decisions"] if (one := decision_us(name)) is not None]
    return {"slowest_decision_mean_us": max(found)} if found else {}


def decision_us(policy: str) -> float | None:
    """Mean microseconds of the costliest decision point with about `WAITING` requests waiting; None where it never has
    so many, as it drops or ignores them."""
    chosen = policy_of(policy)
    seats = int(chosen.values.get("max_num_seqs", 0))
    for running in (seats, 0, *(seats + more for more in MORE_RUN)):  # how many leave the queue at once
        simulation = _simulation(_trace(WAITING + running, 600, 600.0, 11), policy, HOUR_S,
                                 tuple(point.name for point in POINTS), MIXED if chosen.mixed else "pair_7b")
        times, idle = _decisions(simulation)
        if times:
            return max(float(np.maximum(0.0, np.array(one) - np.median(idle)).mean()) for one in times.values()) / 1000
    return None


def _decisions(simulation: Simulation) -> tuple[dict[Any, list[int]], list[int]]:
    """Nanoseconds of a compiled rule called from Python, by decision point, and of a rule that does nothing."""
    state, times, idle = simulation.state, {}, []
    for decision in range(MOST_DECISIONS):
        if not simulation.advance() or sum(map(len, times.values())) >= DECISIONS:
            break
        pending = state.pending
        where = (int(pending.instance), int(pending.request), int(pending.count))
        point, begun = simulation.pending, time.thread_time_ns()
        call_rule(state, rules.first_come, *where)
        between = time.thread_time_ns()
        answer = int(call_rule(state, simulation.rules[int(pending.point) - 1], *where))
        took = time.thread_time_ns() - between
        idle.append(between - begun)
        simulation.answer(answer)
        queued = int((state.instances["offline_waiting"] + state.instances["online_waiting"]).sum())
        if decision >= WARM_DECISIONS and WAITING / 2 <= queued <= 1.5 * WAITING:
            times.setdefault(point, []).append(took)
    return times, idle


# --- Environments -----------------------------------------------------------------------------------------------------
def measure_envs(options: dict[str, Any]) -> dict[str, Any]:
    """Decisions a second of Gating-v0, of one episode after another and of a vector."""
    import gymnasium as gym

    name = "ooco_gym/Gating-v0"
    vector = gym.make_vec(name, num_envs=SIDE_BY_SIDE, vectorization_mode="vector_entry_point")
    return {"env_steps_per_s": decisions_per_s(gym.make(name), 1),
            "vector_decisions_per_s": decisions_per_s(vector, SIDE_BY_SIDE)}


def decisions_per_s(env: Any, episodes: int) -> float:
    """Decisions a second of one episode after another, or of a vector of so many; steps in which one was reset are
    left out."""
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


# --- Exported policies, in an engine ----------------------------------------------------------------------------------
def measure_export(options: dict[str, Any]) -> dict[str, Any]:
    """Microseconds of the features of an engine, and of a decision in C where there is a compiler."""
    from ooco_gym.runtime.beliefs import Learned
    from ooco_gym.runtime.c_source import sources
    from ooco_gym.runtime.features import ArrivalRates, Blocks
    from ooco_gym.vllm.replica import Replica

    engine, replica, kept = _engine(), Replica(), (Learned(), ArrivalRates(), Blocks(), 0.03)
    observed = timeit.repeat(lambda: replica.observe(engine, *kept), timer=time.process_time, repeat=TURNS,
                             number=CALLS)
    figures = {"features_us": 1e6 * min(observed) / CALLS}  # the best mean: what else runs only adds
    compiler = next((name for name in ("gcc", "clang", "cc") if shutil.which(name)), None)
    if compiler is None:
        return figures
    with tempfile.TemporaryDirectory() as folder:
        for name, text in sources(*_policy()).items():
            with open(os.path.join(folder, name), "w", encoding="ascii") as file:
                file.write(text)
        subprocess.run([compiler, "-std=c11", "-O3", "-march=native", "policy.c", "policy_selftest.c", "-o", "selftest",
                        "-lm"], cwd=folder, check=True, capture_output=True)
        said = [subprocess.run([os.path.join(folder, "selftest"), str(C_CALLS)], check=True, capture_output=True,
                               text=True).stdout for _ in range(TURNS)]
    return {**figures, "c_us": min(float(one.splitlines()[-1].split()[0]) for one in said)}


def _policy() -> tuple[dict[str, Any], dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Manifest, arrays and reference vectors of a deep set with random weights."""
    from ooco_gym.runtime.features import ENGINE, ENTRY
    from ooco_gym.runtime.networks import Sizes, built, shapes_of

    network = {"form": "candidate_scorer", "hidden": HIDDEN, "kinds": 1}
    sizes, random = Sizes(len(ENGINE), 1, CANDIDATES, len(ENTRY), CANDIDATES + 2), np.random.default_rng(0)
    arrays = {name: (np.ones(shape) if name.endswith("deviation") else random.normal(size=shape) / shape[-1] ** 0.5)
              .astype(np.float32) for name, shape in shapes_of(network, sizes).items()}
    asked = {"cluster": random.uniform(0, 1, (16, sizes.cluster)).astype(np.float32),
             "candidates": random.uniform(0, 1, (16, sizes.places, sizes.features)).astype(np.float32),
             "action_mask": np.ones((16, sizes.actions), np.int8), "decision": np.ones((16, 1), np.float32)}
    inputs = {key: {"shape": one.shape[1:], "features": [{"low": 0.0, "high": 1.0}] * one.shape[-1]}
              for key, one in asked.items()}
    manifest = {"kind": "candidates", "name": "bench", "decision_point": {"name": "admit", "meaning": "random weights"},
                "environment": "none", "licence": "Apache-2.0", "network": network, "inputs": inputs,
                "actions": ["no", "partner", *(f"candidate {place}" for place in range(CANDIDATES))]}
    return manifest, arrays, {**asked, "logits": built(network, arrays, sizes)(*asked.values())[1]}


def _engine() -> Any:
    """An engine under load: 64 requests run, of them 40 online, and both queues are long."""
    from ooco_gym.runtime.features import LOOK_OFFLINE, LOOK_ONLINE
    from ooco_gym.runtime.rules import Engine, Line, Request

    def request(name: int, online: bool, made: int) -> Any:
        tokens, now = 50 + 37 * name % 3000, 100.0
        return Request(name, online, name, now - name % 10, 8.0, 0.05, tokens + made, made,
                       tokens + made - 1 if made else 0, tokens // 16 if made else 0, now - name % 9 if made else None)

    running = [request(place, place < 40, 1 + place) for place in range(RUNNING)]
    online, offline = (Line([request(100 + place, line, 0) for place in range(look)])
                       for line, look in ((True, LOOK_ONLINE), (False, LOOK_OFFLINE)))
    return Engine(100.0, running, online, offline, 800, 8000, 16, 128, 2048, 0.05, (12, 20_000, 500, 500_000))


MEASUREMENTS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "decode": measure_decode, "mixed": measure_mixed, "day": measure_day, "fleet": measure_fleet,
    "decisions": measure_decisions, "envs": measure_envs, "export": measure_export,
    "warm_start": measure_start, "cold_compile": measure_start,
}


def _measure(name: str, options: dict[str, Any], repeats: int) -> dict[str, list[float]]:
    """All repeats of a measurement, each in a new process: a list of values for each figure."""
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
        figures = json.loads(done.stdout.strip().splitlines()[-1])
        figures |= {f"{name}_s": wall_s} if MEASUREMENTS[name] is measure_start else {}
        for key, value in figures.items():
            values.setdefault(key, []).append(value)
    return values
