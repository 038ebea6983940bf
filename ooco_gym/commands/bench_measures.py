"""What `ooco-gym bench` measures of simulator and environments; each function runs in a process of its own."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ooco_gym.sim.driver import Simulation
    from ooco_gym.workload import Trace

DAY_S = 86_400.0
FLEET_PAIRS = 32
STEADY_S, STEADY_RATE_PER_S = 7200.0, 5.2
STEADY_BATCH, STEADY_CONTEXT = 190, 980  # requests and mean context that come of it
TURNS = 5  # runs of each timing form in turn


# --- The measurements: each runs in a process of its own ------------------------------------------------------------
def _steady_trace(duration_s: float) -> Trace:
    """Poisson arrivals and spread lengths at which a strict instance of pair_7b decodes about 200 requests in time."""
    import numpy as np

    from ooco_gym.workload import Trace

    draws = np.random.Generator(np.random.Philox(7))
    n = int(STEADY_RATE_PER_S * duration_s)
    return Trace(arrival_s=np.sort(draws.uniform(0.0, duration_s, n)),
                 prompt_tokens=draws.lognormal(6.0, 0.6, n).astype(np.int32) + 1,
                 output_tokens=draws.lognormal(6.78, 0.5, n).astype(np.int32) + 1, online=np.ones(n, bool))


def _simulation(trace: Trace, policy: str, bulk: bool = True, **conditions: Any) -> Simulation:
    from ooco_gym.scenario import Scenario
    from ooco_gym.sim.driver import Simulation
    from ooco_gym.workload import write_trace

    path = os.path.join(tempfile.gettempdir(), f"ooco-gym-bench-{os.getpid()}.parquet")
    write_trace(trace, path)
    try:
        return Simulation(Scenario(workload=path, duration_s=STEADY_S, warmup_s=0.0, drain_s=0.0, start_s=0.0,
                                   offline={"mode": "rate", "rate": 0.0}, **conditions), policy, bulk=bulk)
    finally:
        os.unlink(path)


def _strict_rates(simulation: Simulation, from_s: float, to_s: float) -> dict[str, float]:
    """Steps and tokens that the strict instance decodes in a span, a second of this core's time."""
    import time

    import numpy as np

    from ooco_gym.sim import state as s

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
    rates = _strict_rates(_simulation(trace, "base_pd"), 300.0, STEADY_S)
    single = _strict_rates(_simulation(trace, "base_pd", bulk=False), 300.0, 1800.0)
    return {"decode_iterations_per_s": rates["iterations_per_s"], "simulated_tokens_per_s": rates["tokens_per_s"],
            "single_step_iterations_per_s": single["iterations_per_s"], "decode_mean_batch": rates["batch"]}


def measure_timing(options: dict[str, Any]) -> dict[str, Any]:
    """The steady state under two timing forms in turn, with arrivals as dense in steps under the one as the other."""
    from dataclasses import replace

    from ooco_gym.perf import Deployment, cost_table, decode_latency_ps

    def step_ps(chip: str, timing: str) -> int:
        deployment = Deployment.from_config({"chip": chip, "model": "qwen2_5_7b", "timing": timing})
        return decode_latency_ps(cost_table(deployment, STEADY_BATCH, 1), STEADY_BATCH, STEADY_BATCH * STEADY_CONTEXT)

    trace, pool = _steady_trace(STEADY_S), [{"chip": "h200"}]
    cluster = {"model": "qwen2_5_7b", "relaxed": pool, "strict": pool}

    def rates(timing: str, pace: float) -> dict[str, float]:
        paced = replace(trace, arrival_s=trace.arrival_s * pace)
        simulation = _simulation(paced, "base_pd", timing=timing, cluster=cluster)
        return _strict_rates(simulation, 300.0 * pace, STEADY_S * pace)

    paces = {timing: step_ps("h200", timing) / step_ps("ascend_910c", "ooco") for timing in ("ooco", "extended")}
    for _ in range(3):  # until the batch is the first run's: it grows as arrivals grow denser
        paces = {timing: pace * (rates(timing, pace)["batch"] / STEADY_BATCH) ** 0.5 for timing, pace in paces.items()}
    turns = [{timing: rates(timing, pace) for timing, pace in paces.items()} for _ in range(TURNS)]
    figures = {f"{timing}_iterations_per_s": statistics.median(turn[timing]["iterations_per_s"] for turn in turns)
               for timing in paces}
    return figures | {f"{timing}_mean_batch": turns[0][timing]["batch"] for timing in paces}


def measure_pure(options: dict[str, Any]) -> dict[str, Any]:
    """200 requests of equal length that decode undisturbed: the closed form alone."""
    import numpy as np

    from ooco_gym.workload import Trace

    n = 200
    trace = Trace(arrival_s=np.zeros(n), prompt_tokens=np.full(n, 100, np.int32),
                  output_tokens=np.full(n, 3000, np.int32), online=np.ones(n, bool))
    rates = _strict_rates(_simulation(trace, "base_pd"), 30.0, 90.0)
    return {"pure_decode_iterations_per_s": rates["iterations_per_s"]}


def measure_day(options: dict[str, Any]) -> dict[str, Any]:
    """The embedded day on the pair."""
    from ooco_gym.scenario import Scenario
    from ooco_gym.sim.driver import simulate

    run = simulate(Scenario(workload="ooc", start_s=0.0, duration_s=DAY_S, offline={"mode": "rate", "rate": 1.0}),
                   "ooco")
    return {"day_wall_s": run.wall_s, "day_requests": len(run.requests)}


def measure_fleet(options: dict[str, Any]) -> dict[str, Any]:
    """64 instances, a million requests."""
    import resource

    from ooco_gym.scenario import Scenario
    from ooco_gym.sim.driver import requests_of, simulate

    pair = Scenario(workload="ooc", duration_s=3600.0, warmup_s=0.0, drain_s=0.0)
    per_s = len(requests_of(pair)[0]) / pair.duration_s * FLEET_PAIRS
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
    from ooco_gym.scenario import Scenario
    from ooco_gym.sim.driver import Simulation

    simulation = Simulation(Scenario(duration_s=1.0, warmup_s=0.0, drain_s=0.0, rate_scale=1.0), "ooco")
    simulation.advance(1.0)
    return {}
