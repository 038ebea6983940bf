"""`ooco-gym bench`: how fast the simulator and the environments are on this machine, beside the targets.

Each measurement runs in a fresh process of its own (so that one leaves nothing behind for the next, and the peak of
memory is its own), several times; the median is reported.
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
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ooco_gym import jobs
from ooco_gym.errors import unknown, whole_number
from ooco_gym.policy import policy_of, rules
from ooco_gym.policy.decisions import POINTS, call_rule
from ooco_gym.report import Table, track
from ooco_gym.scenario import Scenario
from ooco_gym.sim import state as s
from ooco_gym.simulation import Simulation, requests_of, simulate
from ooco_gym.workload import Trace, write_trace
from ooco_gym.workload.sharing import hash_blocks

if TYPE_CHECKING:
    from omegaconf import DictConfig

SCHEMA = "ooco-gym/bench/2"
HOUR_S, DAY_S = 3600.0, 86_400.0
FLEET_PAIRS = 32
STEADY_S, STEADY_RATE_PER_S = 7200.0, 5.2
MIXED_SEATS, MIXED_REQUESTS, MIXED_WARM_S, MIXED_SPAN_S = 64, 6000, 60.0, 1200.0
CROWD = 1000  # waiting offline requests where decisions are timed
DECISIONS, WARM_DECISIONS = 300, 5  # timed, and taken before
MOST_DECISIONS = 20_000  # decisions taken to find those to be timed
MORE_RUN = (1000, 2000, 4000)  # than there are seats, where their number does not bind
SIDE_BY_SIDE = 64  # episodes of a vector environment
WARM_STEPS = 20  # taken before the clock runs
VECTOR_STEPS = 5000  # steps from the beginning of an episode on: its first thousand are slower than those that follow
ENV_S = 2.0  # of each measurement of an environment, resets included: where decisions are rare it has fewer steps
MIXED = {"model": "qwen2_5_7b", "mixed": [{"chip": "ascend_910c"}]}
CANDIDATES, HIDDEN, RUNNING = 64, 32, 64  # of an exported policy, and requests of the engine that asks it
TURNS, CALLS, C_CALLS = 7, 400, 20_000


class Figure(NamedTuple):
    """One figure of the bench: its target (at least it where `more` is better, else at most), and what it means."""

    name: str
    target: float | None
    more: bool
    unit: str
    note: str


FIGURES = (
    Figure("decode_iterations_per_s", 1e6, True, "1/s", "decode steps of a strict instance at about 200 requests in "
           "the batch, finishing and being replaced (base P/D, "
           "prompts of 480, outputs of 1,000 tokens on average); processor time of the loop alone"),
    Figure("simulated_tokens_per_s", 2e8, True, "1/s", "output tokens decoded in the same run"),
    Figure("pure_decode_iterations_per_s", None, True, "1/s", "200 requests that nothing disturbs: closed form alone"),
    Figure("single_step_iterations_per_s", None, True, "1/s", "the first run, one step at a time (bulk off)"),
    Figure("mixed_iterations_per_s", 3e5, True, "1/s", "iterations of a mixed instance whose 64 seats are always taken "
           "(vllm_fcfs, the same lengths), no prefix cache; processor time of the loop alone"),
    Figure("mixed_cached_iterations_per_s", 1e5, True, "1/s", "the same with the prefix cache on, 50 prompts each with "
           "their first 512 tokens in common"),
    Figure("slowest_decision_mean_us", 100.0, False, "us", "the costliest decision point of all policies with "
           "1,000 requests waiting, in the mean; processor time of the rule alone"),
    Figure("slowest_decision_worst_us", None, False, "us", "the longest of all these decisions"),
    Figure("day_wall_s", 5.0, False, "s", "24 hours of OOC on pair_7b under OOCO at one offline request a second, "
           "generation of the load included"),
    Figure("fleet_wall_s", 90.0, False, "s", "64 instances (fleet_64), 32 times the pair's online and offline load "
           "under OOCO, generation included"),
    Figure("fleet_peak_gb", 2.0, False, "GB", "most memory resident in that process"),
    Figure("fleet_requests", None, True, "", "requests of that run"),
    Figure("env_steps_per_s", 60_000.0, True, "1/s", "steps of Gating-v0 from Python through gym.make with its default "
           "wrappers, three holds and a start in turn, resets left out; processor time"),
    Figure("vector_decisions_per_s", 500_000.0, True, "1/s", "the same of 64 episodes of Gating-v0 side by side, in "
           f"all, through gym.make_vec, over the first {VECTOR_STEPS:,} steps of each; one thread, processor time"),
    Figure("vector_ratio", None, True, "", "vector_decisions_per_s over env_steps_per_s"),
    Figure("vector_all_cores_per_s", None, True, "1/s", "the same 64 episodes stepped by vector_threads threads; time "
           "by the clock, in which whatever else the machine does shows"),
    Figure("vector_all_cores_ratio", 3.0, True, "", "vector_all_cores_per_s over env_steps_per_s"),
    Figure("vector_threads", None, True, "", "threads of that run: one for each core that this process may use"),
    Figure("numpy_us", None, False, "us", "a decision of an exported policy among 64 candidates in numpy, as an "
           "engine asks for it: a deep set with 32 hidden numbers; processor time"),
    Figure("c_us", 20.0, False, "us", "the same in C, compiled for this processor: -O3 -march=native"),
    Figure("onnx_us", 60.0, False, "us", "the same in onnxruntime"),
    Figure("features_us", 150.0, False, "us", "what a policy sees of an engine with 64 requests running, from "
           "plain descriptions of them; processor time"),
    Figure("warm_start_s", 2.0, False, "s", "a new process from its start to the first simulated event"),
    Figure("cold_compile_s", 60.0, False, "s", "the same with nothing compiled before"),
)


def main(cfg: DictConfig) -> dict[str, Any]:
    """Runs the command; returns the figures (medians), all their values and a description of the machine.

    Raises:
        UserError: an unknown measurement, or a count that is not positive.
    """
    for key in ("repeats", "fleet_requests", "env_steps"):
        whole_number(key, cfg[key], 1)
    names = list(MEASUREMENTS) if cfg.only is None else [cfg.only] if isinstance(cfg.only, str) else list(cfg.only)
    for name in names:
        if name not in MEASUREMENTS:
            raise unknown("measurement", name, MEASUREMENTS)
    for name in cfg.decisions:
        policy_of(name)
    options = {"fleet_requests": cfg.fleet_requests, "env_steps": cfg.env_steps, "decisions": list(cfg.decisions)}
    values: dict[str, list[float]] = {}
    if set(names) - {"export"}:
        _measure("warm_start", options, 1)  # so that what is compiled already is on disk
    for name in track(names, "measuring", total=len(names)):
        values |= _measure(name, options, cfg.repeats)
    figures = {figure.name: None for figure in FIGURES} | {key: statistics.median(v) for key, v in values.items()}
    figures_table(figures).show(unbroken=3)
    for figure in FIGURES:
        if figures[figure.name] is not None:
            print(f"{figure.name}: {figure.note}.")
    return {"schema": SCHEMA, **figures, "values": values, "machine": machine(),
            "targets": {figure.name: figure.target for figure in FIGURES if figure.target is not None}}


def figures_table(figures: dict[str, Any]) -> Table:
    """What was measured, beside the targets, and marked where one is missed; then each policy and environment."""
    rows, missed = [], []
    for figure in FIGURES:
        value, target = figures[figure.name], figure.target
        if value is not None:
            if target is not None and (value < target) == figure.more:
                missed.append(len(rows))
            rows.append((figure.name, _amount(value, figure.unit),
                         "" if target is None else f"{'≥' if figure.more else '<'} {_amount(target, figure.unit)}"))
    for key, value in figures.items():
        kind, _, name = key.partition("/")
        if kind in ("decision_us", "env"):
            rows.append((name, _amount(value, "us" if kind == "decision_us" else "1/s"), ""))
    return Table("medians on this machine", ("figure", "measured", "target"), rows, marked=missed)


def _amount(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}".strip() if value >= 1000 else f"{value:.3g} {unit}".strip()


def machine() -> dict[str, Any]:
    """What was measured on: processor, cores, versions, load."""
    import numba
    import numpy

    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    except OSError:
        pass
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {"cpu": model, "cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version(),
            "numpy": numpy.__version__, "numba": numba.__version__, "load_1min": load}


# --- The loop: decode steps, a day, a fleet ---------------------------------------------------------------------------
def _simulation(trace: Trace, policy: str, duration_s: float, bulk: bool = True, outside: tuple[str, ...] = (),
                **conditions: Any) -> Simulation:
    """A simulation of a trace alone, measured from its start."""
    path = os.path.join(tempfile.gettempdir(), f"ooco-gym-bench-{os.getpid()}.parquet")
    write_trace(trace, path)
    try:
        return Simulation(Scenario(workload=path, duration_s=duration_s, warmup_s=0.0, drain_s=0.0, start_s=0.0,
                                   offline={"mode": "rate", "rate": 0.0}, **conditions), policy, bulk=bulk,
                          outside=outside)
    finally:
        os.unlink(path)


def _steady_trace(duration_s: float) -> Trace:
    """Poisson arrivals and spread lengths at which a strict instance of pair_7b decodes about 200 requests in time."""
    draws = np.random.Generator(np.random.Philox(7))
    n = int(STEADY_RATE_PER_S * duration_s)
    return Trace(arrival_s=np.sort(draws.uniform(0.0, duration_s, n)),
                 prompt_tokens=draws.lognormal(6.0, 0.6, n).astype(np.int32) + 1,
                 output_tokens=draws.lognormal(6.78, 0.5, n).astype(np.int32) + 1, online=np.ones(n, bool))


def _strict_rates(simulation: Simulation, from_s: float, to_s: float) -> dict[str, float]:
    """Steps and tokens that the strict instance decodes in a span, a second of this core's time."""
    simulation.advance(from_s)
    instances = simulation.state.instances
    strict = instances["role"] == s.STRICT
    before = np.array([instances[key][strict].sum() for key in ("decode_steps", "decoded_tokens")])
    begun = time.thread_time()  # what else the machine does is not in it
    simulation.advance(to_s)
    cpu_s = time.thread_time() - begun
    steps, tokens = np.array([instances[key][strict].sum() for key in ("decode_steps", "decoded_tokens")]) - before
    return {"iterations_per_s": float(steps / cpu_s), "tokens_per_s": float(tokens / cpu_s),
            "batch": float(tokens / max(1, steps))}


def measure_decode(options: dict[str, Any]) -> dict[str, Any]:
    """Decode rates of a steady state of about 200 requests, in bulk and one step at a time."""
    trace = _steady_trace(STEADY_S)
    rates = _strict_rates(_simulation(trace, "base_pd", STEADY_S), 300.0, STEADY_S)
    single = _strict_rates(_simulation(trace, "base_pd", STEADY_S, bulk=False), 300.0, 1800.0)
    return {"decode_iterations_per_s": rates["iterations_per_s"], "simulated_tokens_per_s": rates["tokens_per_s"],
            "single_step_iterations_per_s": single["iterations_per_s"], "decode_mean_batch": rates["batch"]}


def measure_pure(options: dict[str, Any]) -> dict[str, Any]:
    """200 requests of equal length that decode undisturbed: the closed form alone."""
    n = 200
    trace = Trace(arrival_s=np.zeros(n), prompt_tokens=np.full(n, 100, np.int32),
                  output_tokens=np.full(n, 3000, np.int32), online=np.ones(n, bool))
    rates = _strict_rates(_simulation(trace, "base_pd", STEADY_S), 30.0, 90.0)
    return {"pure_decode_iterations_per_s": rates["iterations_per_s"]}


def measure_day(options: dict[str, Any]) -> dict[str, Any]:
    """The embedded day on the pair."""
    run = simulate(Scenario(workload="ooc", start_s=0.0, duration_s=DAY_S, offline={"mode": "rate", "rate": 1.0}),
                   "ooco")
    return {"day_wall_s": run.wall_s, "day_requests": len(run.requests)}


def measure_fleet(options: dict[str, Any]) -> dict[str, Any]:
    """64 instances, a million requests."""
    import resource  # not on every system

    pair = Scenario(workload="ooc", duration_s=HOUR_S, warmup_s=0.0, drain_s=0.0)
    per_s = len(requests_of(pair)[0]) / HOUR_S * FLEET_PAIRS
    duration_s = min(1.03 * options["fleet_requests"] / per_s, DAY_S)  # a little more: the load is not constant
    scenario = Scenario(cluster="fleet_64", workload="ooc", duration_s=duration_s, warmup_s=0.0, drain_s=300.0,
                        rate_scale=FLEET_PAIRS * pair.online_scale(),
                        offline={"mode": "rate", "rate": float(FLEET_PAIRS)})
    run = simulate(scenario, "ooco")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    unit = 1.0 if sys.platform == "darwin" else 1024.0
    return {"fleet_wall_s": run.wall_s, "fleet_peak_gb": peak * unit / 1e9, "fleet_requests": len(run.requests),
            "fleet_simulated_s": run.simulated_s}


def measure_start(options: dict[str, Any]) -> dict[str, Any]:
    """The first simulated events in a new process; the caller measures its whole life."""
    simulation = Simulation(Scenario(duration_s=1.0, warmup_s=0.0, drain_s=0.0, rate_scale=1.0), "ooco")
    simulation.advance(1.0)
    return {}


# --- Mixed iterations -------------------------------------------------------------------------------------------------
def crowd(waiting: int, online_per_s: float, duration_s: float) -> Trace:
    """So many offline requests at once, and online ones at a steady rate; of prompts over 512 tokens, 50 share that."""
    draws = np.random.Generator(np.random.Philox(11))
    online = int(online_per_s * duration_s)
    n = waiting + online
    prompt = draws.lognormal(6.0, 0.6, n).astype(np.int32) + 1
    output = draws.lognormal(6.78, 0.5, n).astype(np.int32) + 1
    arrival_s = np.concatenate([np.zeros(waiting), np.sort(draws.uniform(0.0, duration_s, online))])
    hashes = hash_blocks(prompt, np.minimum(prompt // 512, 1), np.arange(n) // 50, np.arange(n), "bench")
    return Trace(arrival_s, prompt, output, np.arange(n) >= waiting, prefix_hashes=hashes)


def _iterations_per_s(caching: str) -> float:
    """Iterations of a mixed instance whose 64 seats are always taken, a second of this core's time."""
    policy = f"vllm_fcfs:max_num_seqs={MIXED_SEATS},prefix_caching='{caching}'"
    simulation = _simulation(crowd(MIXED_REQUESTS, 1e-3, HOUR_S), policy, HOUR_S, cluster=MIXED)
    simulation.advance(MIXED_WARM_S)
    instances = simulation.state.instances
    before, begun = int(instances["steps_begun"].sum()), time.thread_time()
    simulation.advance(MIXED_WARM_S + MIXED_SPAN_S)
    cpu_s = time.thread_time() - begun
    if int(instances["online_waiting"].sum()) == 0:
        raise RuntimeError("the waiting requests have run out: the batch was not full")
    return (int(instances["steps_begun"].sum()) - before) / cpu_s


def measure_mixed(options: dict[str, Any]) -> dict[str, Any]:
    """Mixed iterations of 64 requests, without and with a prefix cache."""
    return {"mixed_iterations_per_s": _iterations_per_s("off"),
            "mixed_cached_iterations_per_s": _iterations_per_s("on")}


# --- Decisions ------------------------------------------------------------------------------------------------------
def measure_decisions(options: dict[str, Any]) -> dict[str, Any]:
    """Of each policy `decision_us/POLICY`, the mean of its costliest decision point, and the slowest of all."""
    found = {name.partition(":")[0]: one for name in options["decisions"] if (one := decision_us(name, CROWD))}
    return {**{f"decision_us/{name}": mean for name, (mean, _) in found.items()},
            **({"slowest_decision_mean_us": max(mean for mean, _ in found.values()),
                "slowest_decision_worst_us": max(worst for _, worst in found.values())} if found else {})}


def decision_us(policy: str, waiting: int) -> tuple[float, float] | None:
    """(Mean of the costliest decision point, worst of all decisions) with about so many waiting, in microseconds;
    None where it never has so many waiting, as it drops or ignores them.

    Each is the time of a compiled rule called from Python less that of a rule that does nothing, in processor time of
    the thread: wall time on a machine that does nothing else.
    """
    seats = int(policy_of(policy).values.get("max_num_seqs", 0))
    for running in (seats, 0, *(seats + more for more in MORE_RUN)):  # how many leave the queue at once
        found = _timed_decisions(policy, waiting, running)
        if found is not None:
            return found
    return None


def _timed_decisions(policy: str, waiting: int, running: int) -> tuple[float, float] | None:
    simulation = _simulation(crowd(waiting + running, 1.0, 600.0), policy, HOUR_S,
                             outside=tuple(point.name for point in POINTS),
                             cluster=MIXED if policy_of(policy).mixed else "pair_7b")
    state, times, idle = simulation.state, {}, []
    for decision in range(MOST_DECISIONS):
        if not simulation.advance() or sum(map(len, times.values())) >= DECISIONS:
            break
        pending = state.pending
        where = (int(pending.instance), int(pending.request), int(pending.count))
        point, rule = simulation.pending, simulation.rules[int(pending.point) - 1]
        idle.append(_timed(lambda where=where: call_rule(state, rules.first_come, *where))[0])
        took, answer = _timed(lambda rule=rule, where=where: int(call_rule(state, rule, *where)))
        simulation.answer(answer)
        queued = int((state.instances["offline_waiting"] + state.instances["online_waiting"]).sum())
        if decision >= WARM_DECISIONS and waiting / 2 <= queued <= 1.5 * waiting:
            times.setdefault(point, []).append(took)
    nothing = float(np.median(idle))
    if not times:
        return None
    found = [np.maximum(0.0, np.array(one) - nothing) / 1000.0 for one in times.values()]
    return max(float(one.mean()) for one in found), max(float(one.max()) for one in found)


def _timed(function: Any) -> tuple[int, Any]:
    begun = time.thread_time_ns()
    result = function()
    return time.thread_time_ns() - begun, result


# --- Environments -----------------------------------------------------------------------------------------------------
def measure_envs(options: dict[str, Any]) -> dict[str, Any]:
    """Decisions a second of each environment: `env/ID/single` and `env/ID/vector` of this core's time, and
    `env/ID/all_cores` by the clock, of a vector whose threads are `vector_threads`: one for each core."""
    import gymnasium as gym

    from ooco_gym.envs import ENVIRONMENTS

    figures, threads = {}, jobs.threads()
    for name in ENVIRONMENTS:
        vector = partial(gym.make_vec, name, num_envs=SIDE_BY_SIDE, vectorization_mode="vector_entry_point")
        figures[f"env/{name}/single"] = decisions_per_s(gym.make(name), 1, options["env_steps"])
        figures[f"env/{name}/vector"] = decisions_per_s(vector(), SIDE_BY_SIDE, VECTOR_STEPS)
        figures[f"env/{name}/all_cores"] = decisions_per_s(vector(threads=threads), SIDE_BY_SIDE, VECTOR_STEPS,
                                                           time.perf_counter)
    single, vector, all_cores = (figures[f"env/ooco_gym/Gating-v0/{one}"] for one in ("single", "vector", "all_cores"))
    return {**figures, "env_steps_per_s": single, "vector_decisions_per_s": vector, "vector_ratio": vector / single,
            "vector_all_cores_per_s": all_cores, "vector_all_cores_ratio": all_cores / single,
            "vector_threads": threads}


def decisions_per_s(env: Any, episodes: int, steps: int, clock: Callable[[], float] = time.thread_time) -> float:
    """Decisions a second by a clock, of one episode after another, or of a vector of so many; steps in which one was
    reset are left out. At most `steps`, fewer where they take more than `ENV_S`."""
    actions = _actions(env.action_space if episodes == 1 else env.single_action_space)
    if episodes > 1:
        actions = [np.stack([one] * episodes) for one in actions]
    env.reset(seed=1000)
    resets, counted, taken_s, until_s = False, 0, 0.0, time.perf_counter() + ENV_S
    for step in range(WARM_STEPS + steps):
        if resets and episodes == 1:
            env.reset(seed=1000 + step)
        begun = clock()
        _, _, terminated, truncated, _ = env.step(actions[step % len(actions)])
        took = clock() - begun
        before, resets = resets and episodes > 1, bool(np.any(terminated | truncated))  # a vector resets by itself
        if step >= WARM_STEPS and not (before or resets):
            counted, taken_s = counted + episodes, taken_s + took
        if counted and time.perf_counter() > until_s:
            break
    env.close()
    return counted / taken_s


def _actions(space: Any) -> list[Any]:
    """What is played in turn: three times the first action and once the last; of a vector of choices, the middle."""
    if hasattr(space, "nvec"):
        return [np.asarray(space.nvec) // 2]
    return [np.int64(0), np.int64(0), np.int64(0), np.int64(min(2, space.n - 1))]


# --- Exported policies, in an engine --------------------------------------------------------------------------------
def measure_export(options: dict[str, Any]) -> dict[str, Any]:
    """Microseconds of the features of an engine, and of a decision in each form that this machine can run."""
    from ooco_gym.runtime import Policy, write_bundle
    from ooco_gym.runtime.beliefs import Learned
    from ooco_gym.runtime.features import ArrivalRates, Blocks
    from ooco_gym.vllm.replica import Replica

    engine, replica, kept = _engine(), Replica(), (Learned(), ArrivalRates(), Blocks(), 0.03)
    figures = {"features_us": best_us(lambda: replica.observe(engine, *kept))}
    forms = ["npz", "c", *(["onnx"] if find_spec("onnx") and find_spec("onnxruntime") else [])]
    manifest, arrays, reference = _policy()
    asked = {key: value[0] for key, value in reference.items() if key != "logits"}
    with tempfile.TemporaryDirectory() as folder:
        write_bundle(folder, manifest, arrays, reference, forms)
        for form, key in (("npz", "numpy_us"), ("onnx", "onnx_us")):
            if form in forms:
                policy = Policy.load(folder, form=form)
                figures[key] = best_us(lambda policy=policy: policy.decide(asked))
        compiler = next((name for name in ("gcc", "clang", "cc") if shutil.which(name)), None)
        if compiler is not None:
            program, sources = f"{folder}/selftest", [f"{folder}/{name}.c" for name in ("policy", "policy_selftest")]
            subprocess.run([compiler, "-std=c11", "-O3", "-march=native", *sources, "-o", program, "-lm"], check=True,
                           capture_output=True)
            said = [subprocess.run([program, str(C_CALLS)], check=True, capture_output=True, text=True).stdout
                    for _ in range(TURNS)]
            figures["c_us"] = min(float(one.splitlines()[-1].split()[0]) for one in said)
    return figures


def best_us(call: Callable[[], Any]) -> float:
    """Microseconds of processor time of a call: the best mean of several turns, for what else runs only adds."""
    return 1e6 * min(timeit.repeat(call, timer=time.process_time, repeat=TURNS, number=CALLS)) / CALLS


def _policy() -> tuple[dict[str, Any], dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Manifest, arrays and reference vectors of a deep set with 32 hidden numbers and random weights."""
    from ooco_gym.runtime.features import ENGINE, ENTRY
    from ooco_gym.runtime.networks import Sizes, built, shapes_of
    from ooco_gym.runtime.writing import feature_row

    network = {"form": "candidate_scorer", "hidden": HIDDEN, "kinds": 1}
    sizes, random = Sizes(len(ENGINE), 1, CANDIDATES, len(ENTRY), CANDIDATES + 2), np.random.default_rng(0)
    arrays = {name: (np.ones(shape) if name.endswith("deviation") else random.normal(size=shape) / shape[-1] ** 0.5)
              .astype(np.float32) for name, shape in shapes_of(network, sizes).items()}
    asked = {"cluster": random.uniform(0, 1, (16, sizes.cluster)).astype(np.float32),
             "candidates": random.uniform(0, 1, (16, sizes.places, sizes.features)).astype(np.float32),
             "action_mask": np.ones((16, sizes.actions), np.int8), "decision": np.ones((16, 1), np.float32)}
    rows = {"cluster": [feature_row(one) for one in ENGINE], "candidates": [feature_row(one) for one in ENTRY],
            "decision": [{"name": "admit", "low": 0.0, "high": 1.0}]}
    shapes = {key: list(asked[key].shape[1:]) for key in rows}
    manifest = {
        "kind": "candidates", "name": "bench", "decision_point": {"name": "admit", "meaning": "none: random weights"},
        "environment": "none", "decisions": ["admit"], "history": 1, "outputs": {}, "network": network,
        "inputs": {"action_mask": {"shape": [sizes.actions]},
                   **{key: {"shape": shapes[key], "features": rows[key]} for key in rows}},
        "actions": ["no", "partner", *(f"candidate {place}" for place in range(CANDIDATES))],
        "action_space": {"kind": "Discrete", "n": sizes.actions}, "training": {"data": {}, "seeds": []}, "scores": [],
        "trained_for": {"slo": {}, "loads": []}, "licence": "Apache-2.0"}
    logits = built(network, arrays, sizes)(*asked.values())[1]
    return manifest, arrays, {**asked, "logits": logits}


def _engine() -> Any:
    """An engine under load: 64 requests run, of them 40 online, and both queues are long."""
    from ooco_gym.runtime.features import LOOK_OFFLINE, LOOK_ONLINE
    from ooco_gym.runtime.rules import Engine, Line, Request

    random, now = np.random.default_rng(2), 100.0

    def request(name: int, online: bool, runs: bool, prompt: bool) -> Any:
        tokens, made = int(random.integers(50, 3000)), 0 if prompt else int(random.integers(1, 300))
        computed = tokens // 2 if prompt and runs else (0 if prompt else tokens + made - 1)
        return Request(name, online, name, now - float(random.uniform(0, 10)), 8.0, 0.05, tokens + made, made, computed,
                       tokens // 16 if runs else 0, None if prompt else now - float(random.uniform(0, 9)))

    running = [request(place, place < 40, True, place % 16 == 0) for place in range(RUNNING)]
    online = Line([request(RUNNING + place, True, False, True) for place in range(LOOK_ONLINE)])
    offline = Line([request(2 * RUNNING + place, False, False, True) for place in range(LOOK_OFFLINE)])
    return Engine(now, running, online, offline, 800, 8000, 16, 128, 2048, 0.05, (12, 20_000, 500, 500_000))


MEASUREMENTS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "decode": measure_decode, "pure": measure_pure, "day": measure_day,
    "fleet": measure_fleet, "mixed": measure_mixed, "decisions": measure_decisions, "envs": measure_envs,
    "export": measure_export,
    "warm_start": measure_start, "cold_compile": measure_start,
}
STARTS = {"warm_start": "warm_start_s", "cold_compile": "cold_compile_s"}
ONCE = ("envs", "cold_compile")  # take minutes


def _measure(name: str, options: dict[str, Any], repeats: int) -> dict[str, list[float]]:
    """All repeats of a measurement, each in a new process: a list of values for each figure."""
    code = ("import json, sys\nfrom ooco_gym.commands.bench import MEASUREMENTS\n"
            "print(json.dumps(MEASUREMENTS[sys.argv[1]](json.loads(sys.argv[2]))))")
    values: dict[str, list[float]] = {}
    for _ in range(1 if name in ONCE else repeats):
        with tempfile.TemporaryDirectory() as folder:
            cache = {"NUMBA_CACHE_DIR": folder} if name == "cold_compile" else {}
            begun = time.perf_counter()
            done = subprocess.run([sys.executable, "-c", code, name, json.dumps(options)], capture_output=True,
                                  text=True, env={**os.environ, **cache}, check=False)
            wall_s = time.perf_counter() - begun
        if done.returncode != 0:
            raise RuntimeError(f"the measurement '{name}' failed:\n{done.stderr}")
        figures = json.loads(done.stdout.strip().splitlines()[-1])
        for key, value in {**figures, **({STARTS[name]: wall_s} if name in STARTS else {})}.items():
            values.setdefault(key, []).append(value)
    return values
