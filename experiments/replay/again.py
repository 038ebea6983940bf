"""The same requests through the simulator's mixed instance under vLLM's schedule."""

from __future__ import annotations

import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.engine_chain.compare import Served, served
from experiments.replay.recorded import Recorded
from ooco_gym.errors import UserError

_PATIENCE_S = 1e5
"""A promise so lax that no request is given up."""


@dataclass(frozen=True)
class Again:
    """What the simulator made of a run: per request, over time (`t_s, running, waiting, kv_percent`), and in all."""

    served: Served
    curves: dict[str, np.ndarray]
    iterations: int
    preemptions: int


def measured(run: Recorded) -> Served:
    """What the requests saw in the recorded run."""
    rows = run.requests
    return served(rows["arrival_s"], rows["first_token_s"], rows["last_token_s"], rows["output_tokens"])


def simulate_run(run: Recorded, chip: str, model: Any, timing: str) -> Again:
    """Serves the recorded requests again.

    Args:
        run: as recorded.
        chip: name or YAML file.
        model: name, YAML file or mapping.
        timing: form of the latencies.

    Raises:
        UserError: the chip or model is unknown, or a request does not fit the engine's blocks.
    """
    from ooco_gym.sim import state as s
    from ooco_gym.sim.driver import simulate
    from ooco_gym.workload import Trace, write_trace

    rows, engine = run.requests, run.engine
    n = len(rows["arrival_s"])
    trace = Trace(arrival_s=rows["arrival_s"], prompt_tokens=rows["prompt_tokens"].astype(np.int32),
                  output_tokens=rows["output_tokens"].astype(np.int32), online=np.ones(n, bool))
    policy = {"name": "vllm_fcfs", "max_num_batched_tokens": engine["max_num_batched_tokens"],
              "max_num_seqs": engine["max_num_seqs"]}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # beyond what was measured: the errors say what it costs
        path = str(Path(folder) / "requests.parquet")
        write_trace(trace, path)
        result = simulate(_scenario(run, path, chip, model, timing), policy, sample_s=1.0)
    requests = result.requests
    unfinished = np.flatnonzero(requests["status"] != s.FINISHED)
    if len(unfinished):
        slot = int(unfinished[0])
        raise UserError(f"request {slot + 1} of '{run.folder}' ({requests['prompt_tokens'][slot]} prompt and "
                        f"{requests['output_tokens'][slot]} output tokens) does not fit the engine's "
                        f"{engine['num_gpu_blocks']} blocks")
    times = {key: 1e-12 * requests[key] for key in ("arrival_ps", "first_token_ps", "finish_ps")}
    samples = result.samples
    curves = {"t_s": samples["t_s"], "running": samples["urgent"][:, 0], "waiting": samples["online_waiting"][:, 0],
              "kv_percent": 100.0 * samples["kv_share"][:, 0]}
    return Again(served(times["arrival_ps"], times["first_token_ps"], times["finish_ps"], requests["output_tokens"]),
                 curves, int(result.instances["steps_begun"].sum()), int(requests["evictions"].sum()))


def _scenario(run: Recorded, path: str, chip: str, model: Any, timing: str) -> Any:
    from ooco_gym.scenario import Scenario

    engine, rows = run.engine, run.requests
    cluster = {"name": run.folder.name, "model": model, "block_tokens": engine["block_tokens"],
               "max_batch": engine["max_num_seqs"] + 1,
               "mixed": [{"chip": chip, "tp": int(engine.get("tensor_parallel", 1)),
                          "kv_blocks": engine["num_gpu_blocks"]}]}
    lax = {"ttft_s": _PATIENCE_S, "tpot_s": _PATIENCE_S / float(rows["output_tokens"].max())}
    return Scenario(cluster=cluster, workload=path, timing=timing, start_s=0.0, warmup_s=0.0, drain_s=0.0,
                    duration_s=2.0 * float(rows["last_token_s"].max()) + 60.0, rate_scale=1.0, slo=lax,
                    offline={"mode": "rate", "rate": 0.0})
