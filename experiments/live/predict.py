"""What the simulator says of a cell: the same requests on a chip that was measured on the engine."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from experiments.live.cells import Promise, Seen
from ooco_gym.files import atomic_write
from ooco_gym.workload import Trace, write_trace


def simulated(trace: Trace, policy: dict[str, Any], cluster: dict[str, Any], promise: Promise, window_s: float,
              until_s: float, work: Path, belief: float = 1.0) -> Seen:
    """Plays a cell.

    Args:
        trace: its requests.
        policy: name and parameters.
        cluster: one mixed instance.
        promise: SLOs.
        window_s: of arrivals.
        until_s: for how long after it requests are waited for.
        work: folder for the trace.
        belief: what the policy believes that iterations take, over what they take.
    """
    from ooco_gym.scenario import Scenario
    from ooco_gym.sim import state as s
    from ooco_gym.simulation import Simulation

    path = work / "cell.parquet"
    with atomic_write(path) as temporary:
        write_trace(trace, temporary)
    scenario = Scenario(cluster=cluster, workload=str(path), timing="measured", start_s=0.0,
                        duration_s=window_s + until_s, warmup_s=0.0, drain_s=0.0, rate_scale=1.0,
                        slo={"ttft_s": promise.ttft_s, "tpot_s": promise.tpot_s}, offline={"mode": "rate", "rate": 0.0},
                        predictor="exact" if belief == 1.0 else {"name": "biased", "factor": belief})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        simulation = Simulation(scenario, policy)
        simulation.advance(window_s)
        rows = simulation.state.requests
        offline = int(rows["generated_tokens"][~trace.online].sum())
        simulation.advance(window_s + until_s)
    rows = simulation.state.requests
    began, done = rows["generated_tokens"] > 0, rows["status"] == s.FINISHED
    return Seen(1e-12 * rows["arrival_ps"], np.where(began, 1e-12 * rows["first_token_ps"], np.nan),
                np.where(done, 1e-12 * rows["finish_ps"], np.nan), offline, int(rows["evictions"].sum()))
