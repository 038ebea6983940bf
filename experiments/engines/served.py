"""Requests that a real engine served, served again by the simulator, and how far the two are apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.files import atomic_write, read_parquet

_PATIENCE_S = 1e5
"""Promise for a whole request, so lax that the simulator drops nothing."""


AVERAGES = {"median": np.median, "mean": np.mean, "p99": lambda seconds: np.percentile(seconds, 99)}


class Served(NamedTuple):
    """What requests saw, in seconds, float64[n]; TPOT is of those with more than one token, float64[m]."""

    ttft_s: np.ndarray
    tpot_s: np.ndarray
    e2e_s: np.ndarray


def served(arrival_s: np.ndarray, first_s: np.ndarray, last_s: np.ndarray, tokens: np.ndarray) -> Served:
    """From times of arrival, first and last token."""
    several = tokens > 1
    tpot_s = (last_s - first_s)[several] / (tokens[several] - 1)
    return Served(first_s - arrival_s, tpot_s, last_s - arrival_s)


def read_measured(path: Path, what: str = "requests") -> dict[str, np.ndarray]:
    """The columns of a `requests.parquet`, or of another file of what was measured.

    Raises:
        UserError: it is not there, or cannot be read.
    """
    if not path.is_file():
        raise UserError(f"'{path}' does not exist: expected the {what} of `ooco-gym calibrate measure`")
    try:
        table = read_parquet(path)
        return {name: table[name].to_numpy() for name in table.column_names}
    except Exception as error:  # pyarrow raises many kinds for damaged bytes; all mean that they are
        raise UserError(f"'{path}' cannot be read: {' '.join(str(error).split())[:200]}; measure again") from error


def simulate_requests(requests: dict[str, np.ndarray], cluster: dict[str, Any], engine: dict[str, Any],
                      timing: str, work: Path) -> tuple[Served, int]:
    """Serves the same requests by the simulator's mixed instance under `vllm_fcfs`.

    Args:
        requests: arrivals and lengths as the real engine had them.
        cluster: one mixed instance.
        engine: `engine.json`: the scheduler's limits.
        timing: form.
        work: folder for the trace.

    Returns:
        What the requests saw, and the number of iterations.
    """
    from ooco_gym.scenario import Scenario
    from ooco_gym.sim import state as s
    from ooco_gym.simulation import Simulation
    from ooco_gym.workload import Trace, write_trace

    n = len(requests["arrival_s"])
    trace = Trace(arrival_s=requests["arrival_s"], prompt_tokens=requests["prompt_tokens"].astype(np.int32),
                  output_tokens=requests["output_tokens"].astype(np.int32), online=np.ones(n, bool))
    path = work / "trace.parquet"
    with atomic_write(path) as temporary:
        write_trace(trace, temporary)
    longest = int(requests["output_tokens"].max())
    scenario = Scenario(cluster=cluster, workload=str(path), timing=timing, start_s=0.0,
                        duration_s=float(requests["arrival_s"][-1]) + 1.0, warmup_s=0.0, drain_s=_PATIENCE_S,
                        rate_scale=1.0, slo={"ttft_s": _PATIENCE_S, "tpot_s": _PATIENCE_S / longest},
                        offline={"mode": "rate", "rate": 0.0})
    policy = {"name": "vllm_fcfs", "max_num_batched_tokens": engine["max_num_batched_tokens"],
              "max_num_seqs": engine["max_num_seqs"], "reserved_blocks": 1}
    simulation = Simulation(scenario, policy)
    simulation.advance(_PATIENCE_S)
    rows = simulation.state.requests
    unfinished = int((rows["status"] != s.FINISHED).sum())
    if len(rows) != n or unfinished:
        raise UserError(f"the simulation took {len(rows)} of {n} requests and left {unfinished} unfinished; does the "
                        f"longest of them fit {engine['num_blocks']} blocks?")
    seconds = {key: 1e-12 * rows[key] for key in ("arrival_ps", "first_token_ps", "finish_ps")}
    found = served(seconds["arrival_ps"], seconds["first_token_ps"], seconds["finish_ps"], rows["output_tokens"])
    return found, int(simulation.state.instances["steps_begun"].sum())


def compare(real: Served, simulated: Served) -> dict[str, float]:
    """Medians, means and 99th percentiles of both in milliseconds, and the simulation's error in percent."""
    found = {}
    for name, ours, theirs in zip(("ttft", "tpot", "e2e"), simulated, real, strict=True):
        for kind, average in AVERAGES.items():
            a, b = float(average(ours)), float(average(theirs))
            found |= {f"{name}_{kind}_ms_real": 1e3 * b, f"{name}_{kind}_ms_simulated": 1e3 * a,
                      f"{name}_{kind}_error": 100.0 * (a / b - 1.0)}
    return found
