"""What `ooco-gym bench` measures; each `measure_…` runs in a process of its own and returns its figures."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ooco_gym import jobs
from ooco_gym.policy import policy_of, rules
from ooco_gym.policy.decisions import POINTS, call_rule
from ooco_gym.scenario import Scenario
from ooco_gym.sim import state as s
from ooco_gym.simulation import Simulation, requests_of, simulate
from ooco_gym.workload import Trace, write_trace
from ooco_gym.workload.sharing import hash_blocks

DAY_S = 86_400.0
FLEET_PAIRS = 32
STEADY_S, STEADY_RATE_PER_S = 7200.0, 5.2
MIXED_SEATS, MIXED_REQUESTS, MIXED_WARM_S, MIXED_SPAN_S = 64, 6000, 60.0, 1200.0
CROWDS = (100, 1000, 10_000)  # waiting offline requests
CROWD = 1000  # the one that targets are for
DECISIONS, WARM_DECISIONS = 300, 5  # timed, and taken before
HOUR_S = 3600.0
MOST_DECISIONS = 20_000  # decisions taken to find those to be timed
MORE_RUN = (1000, 2000, 4000)  # than there are seats, where their number does not bind
SIDE_BY_SIDE = 64  # episodes of a vector environment
WARM_STEPS = 20  # taken before the clock runs
VECTOR_STEPS = 5000  # steps from the beginning of an episode on: its first thousand are slower than those that follow
MOST_S = 10.0  # of a measurement: where decisions come once in a while it stops there
SCALE = "CartPole-v1"


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


# --- The loop: decode steps, a day, a fleet ---------------------------------------------------------------------------
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


def _crowded(trace: Trace, policy: str, outside: tuple[str, ...] = ()) -> Simulation:
    cluster = {"model": "qwen2_5_7b", "mixed": [{"chip": "ascend_910c"}]} if policy_of(policy).mixed else "pair_7b"
    return _simulation(trace, policy, HOUR_S, outside=outside, cluster=cluster)


def _iterations_per_s(caching: str) -> float:
    """Iterations of a mixed instance whose 64 seats are always taken, a second of this core's time."""
    policy = f"vllm_fcfs:max_num_seqs={MIXED_SEATS},prefix_caching='{caching}'"
    simulation = _crowded(crowd(MIXED_REQUESTS, 1e-3, HOUR_S), policy)
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
    """Of each policy and each crowd `decision_us/POLICY/WAITING/mean`, of the costliest decision point, and `worst`."""
    figures = {}
    for policy in options["decisions"]:
        for waiting in CROWDS:
            found = decision_us(policy, waiting)
            if found is None:
                continue
            mean, worst = found
            name = policy.partition(":")[0]
            figures |= {f"decision_us/{name}/{waiting}/mean": mean, f"decision_us/{name}/{waiting}/worst": worst}
    return figures


def decision_us(policy: str, waiting: int) -> tuple[float, float] | None:
    """(Mean of the costliest decision point, worst of all decisions) with about so many waiting, in microseconds;
    None where it never has so many waiting.

    Each is the time of a compiled rule called from Python less that of a rule that does nothing, in processor time of
    the thread: wall time on a machine that does nothing else.
    """
    seats = int(policy_of(policy).values.get("max_num_seqs", 0))
    for running in (seats, 0, *(seats + more for more in MORE_RUN)):  # how many leave the queue at once
        found = _timed_decisions(policy, waiting, running)
        if found is not None:
            return found
    return None  # it never has so many waiting, as it drops or ignores them


def _timed_decisions(policy: str, waiting: int, running: int) -> tuple[float, float] | None:
    simulation = _crowded(crowd(waiting + running, 1.0, 600.0), policy, tuple(point.name for point in POINTS))
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
    from ooco_gym.envs import ENVIRONMENTS

    figures, threads = {}, jobs.threads()
    for name in ENVIRONMENTS:
        figures[f"env/{name}/single"] = single_per_s(name, options["env_steps"])
        figures[f"env/{name}/vector"] = vector_per_s(name)
        figures[f"env/{name}/all_cores"] = vector_per_s(name, time.perf_counter, threads=threads)
    figures[f"env/{SCALE}/single"] = single_per_s(SCALE, options["env_steps"])
    figures[f"env/{SCALE}/vector"] = vector_per_s(SCALE)
    gating = "env/ooco_gym/Gating-v0"
    single, vector, all_cores = (figures[f"{gating}/{kind}"] for kind in ("single", "vector", "all_cores"))
    return {**figures, "env_steps_per_s": single, "vector_decisions_per_s": vector, "vector_ratio": vector / single,
            "vector_all_cores_per_s": all_cores, "vector_all_cores_ratio": all_cores / single,
            "vector_threads": threads}


def single_per_s(name: str, steps: int) -> float:
    """Steps through `gym.make` with its default wrappers; resets left out; processor time."""
    import gymnasium as gym

    import ooco_gym  # noqa: F401  registers the environments

    env = gym.make(name)
    actions = _actions(env.action_space)
    taken, cpu_s, seed = 0, 0.0, 1000
    while taken < steps:
        env.reset(seed=seed)
        seed, over = seed + 1, False
        begun = time.thread_time()
        while not over and taken < steps:
            _, _, terminated, truncated, _ = env.step(actions[taken % len(actions)])
            over = terminated or truncated
            taken += 1
        cpu_s += time.thread_time() - begun
        if cpu_s > MOST_S:
            break
    return taken / cpu_s


def vector_per_s(name: str, clock: Callable[[], float] = time.thread_time, **arguments: Any) -> float:
    """Decisions of 64 episodes side by side, through `gym.make_vec`; steps in which one was reset left out.

    Args:
        name: of the environment.
        clock: in seconds.
        **arguments: of the environment.
    """
    import gymnasium as gym

    import ooco_gym  # noqa: F401  registers the environments

    env: Any = gym.make_vec(name, num_envs=SIDE_BY_SIDE, vectorization_mode="vector_entry_point", **arguments)
    actions = [np.stack([one] * SIDE_BY_SIDE) for one in _actions(env.single_action_space)]
    env.reset(seed=1000)
    over = np.zeros(SIDE_BY_SIDE, bool)
    counted, taken_s = 0, 0.0
    for step in range(WARM_STEPS + VECTOR_STEPS):
        resets = bool(over.any())
        begun = clock()
        _, _, terminated, truncated, _ = env.step(actions[step % len(actions)])
        took = clock() - begun
        over = terminated | truncated
        if step >= WARM_STEPS and not resets and not over.any():
            counted, taken_s = counted + SIDE_BY_SIDE, taken_s + took
        if taken_s > MOST_S:
            break
    env.close()
    return counted / taken_s


def _actions(space: Any) -> list[Any]:
    """What is played in turn: three times the first action and once the last; of a vector of choices, the middle."""
    if hasattr(space, "nvec"):
        return [np.asarray(space.nvec) // 2]
    return [np.int64(0), np.int64(0), np.int64(0), np.int64(min(2, space.n - 1))]
