"""What `ooco-gym bench` measures of schedulers: iterations of mixed instances, and what one decision takes."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from ooco_gym.sim.driver import Simulation
    from ooco_gym.workload import Trace

MIXED_SEATS, MIXED_REQUESTS, MIXED_WARM_S, MIXED_SPAN_S = 64, 6000, 60.0, 1200.0
CROWDS = (100, 1000, 10_000)  # waiting offline requests
CROWD = 1000  # the one that targets are for
DECISIONS, WARM_DECISIONS = 300, 5  # timed, and taken before
HOUR_S = 3600.0
MOST_ASKED = 20_000  # decisions taken to find those to be timed
MORE_RUN = (1000, 2000, 4000)  # than there are seats, where their number does not bind


# --- Mixed iterations -----------------------------------------------------------------------------------------------
def crowd(waiting: int, online_per_s: float, duration_s: float) -> Trace:
    """So many offline requests at once, and online ones at a steady rate; of prompts over 512 tokens, 50 share that."""
    import numpy as np

    from ooco_gym.workload import Trace
    from ooco_gym.workload.sharing import hash_blocks

    draws = np.random.Generator(np.random.Philox(11))
    online = int(online_per_s * duration_s)
    n = waiting + online
    prompt = draws.lognormal(6.0, 0.6, n).astype(np.int32) + 1
    output = draws.lognormal(6.78, 0.5, n).astype(np.int32) + 1
    arrival_s = np.concatenate([np.zeros(waiting), np.sort(draws.uniform(0.0, duration_s, online))])
    hashes = hash_blocks(prompt, np.minimum(prompt // 512, 1), np.arange(n) // 50, np.arange(n), "bench")
    return Trace(arrival_s, prompt, output, np.arange(n) >= waiting, prefix_hashes=hashes)


def _simulation(trace: Trace, policy: str, outside: tuple[str, ...] = ()) -> Simulation:
    from ooco_gym.policy import policy_of
    from ooco_gym.scenario import Scenario
    from ooco_gym.sim.driver import Simulation
    from ooco_gym.workload import write_trace

    cluster = {"model": "qwen2_5_7b", "mixed": [{"chip": "ascend_910c"}]} if policy_of(policy).mixed else "pair_7b"
    path = os.path.join(tempfile.gettempdir(), f"ooco-gym-bench-{os.getpid()}.parquet")
    write_trace(trace, path)
    try:
        return Simulation(Scenario(workload=path, cluster=cluster, duration_s=HOUR_S, warmup_s=0.0, drain_s=0.0,
                                   start_s=0.0, offline={"mode": "rate", "rate": 0.0}), policy, outside=outside)
    finally:
        os.unlink(path)


def _iterations_per_s(caching: str) -> float:
    """Iterations of a mixed instance whose 64 seats are always taken, a second of this core's time."""
    import time

    policy = f"vllm_fcfs:max_num_seqs={MIXED_SEATS},prefix_caching='{caching}'"
    simulation = _simulation(crowd(MIXED_REQUESTS, 1e-3, HOUR_S), policy)
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
    from ooco_gym.policy import policy_of

    seats = int(policy_of(policy).values.get("max_num_seqs", 0))
    for running in (seats, 0, *(seats + more for more in MORE_RUN)):  # how many leave the queue at once
        found = _timed_decisions(policy, waiting, running)
        if found is not None:
            return found
    return None  # it never has so many waiting, as it drops or ignores them


def _timed_decisions(policy: str, waiting: int, running: int) -> tuple[float, float] | None:
    import numpy as np

    from ooco_gym.decisions import POINTS, call_rule
    from ooco_gym.policy import rules

    simulation = _simulation(crowd(waiting + running, 1.0, 600.0), policy, tuple(point.name for point in POINTS))
    state, times, idle = simulation.state, {}, []
    for asked in range(MOST_ASKED):
        if not simulation.advance() or sum(map(len, times.values())) >= DECISIONS:
            break
        pending = state.pending
        where = (int(pending.instance), int(pending.request), int(pending.count))
        point = simulation.pending
        idle.append(_timed(lambda where=where: call_rule(state, rules.first_come, *where))[0])
        took, answer = _timed(simulation.rule_answer)
        simulation.answer(answer)
        queued = int((state.instances["offline_waiting"] + state.instances["online_waiting"]).sum())
        if asked >= WARM_DECISIONS and waiting / 2 <= queued <= 1.5 * waiting:
            times.setdefault(point, []).append(took)
    nothing = float(np.median(idle))
    if not times:
        return None
    found = [np.maximum(0.0, np.array(one) - nothing) / 1000.0 for one in times.values()]
    return max(float(one.mean()) for one in found), max(float(one.max()) for one in found)


def _timed(function: Any) -> tuple[int, Any]:
    import time

    begun = time.thread_time_ns()
    result = function()
    return time.thread_time_ns() - begun, result


def slowest(figures: dict[str, Any]) -> dict[str, Any]:
    """The costliest of all policies with 1,000 waiting; nothing where no decision was measured."""
    found = {}
    for kind in ("mean", "worst"):
        values = [value for key, value in figures.items()
                  if key.startswith("decision_us/") and key.endswith(f"/{CROWD}/{kind}")]
        if values:
            found[f"slowest_decision_{kind}_us"] = max(values)
    return found


def decisions_table(figures: dict[str, Any], names: list[str], target_us: float) -> Table:
    """What a decision of each policy takes, by how many wait."""
    from rich.table import Table

    table = Table(title="microseconds a decision, by waiting requests")
    table.add_column("policy")
    for waiting in CROWDS:
        table.add_column(f"mean, {waiting:,}", justify="right")
    table.add_column(f"worst, {CROWD:,}", justify="right")
    for name in names:
        means = [figures.get(f"decision_us/{name}/{waiting}/mean") for waiting in CROWDS]
        worst = figures.get(f"decision_us/{name}/{CROWD}/worst")
        shown = ["–" if value is None else f"{value:.3g}" for value in (*means, worst)]
        late = (means[CROWDS.index(CROWD)] or 0.0) > target_us
        table.add_row(name, *(f"[yellow]{value}[/yellow]" if late else value for value in shown))
    return table
