"""Requests served by a real engine, their simulation, and the differences."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.report import curve, plot
from ooco_gym.report.pages import Plot
from ooco_gym.scenario import Scenario
from ooco_gym.sim import state as s
from ooco_gym.simulation import simulate
from ooco_gym.workload import Trace, write_trace
from ooco_gym.workload.table_reader import read_table

_PATIENCE_S = 1e5
"""SLO for a whole request, so lax that no request is given up."""

AVERAGES = {"median": np.median, "mean": np.mean, "p99": lambda seconds: np.percentile(seconds, 99)}


class Served(NamedTuple):
    """Times of requests in seconds, float64[n]; TPOT only of requests with several tokens, float64[m]."""

    ttft_s: np.ndarray
    tpot_s: np.ndarray
    e2e_s: np.ndarray


def served(arrival_s: np.ndarray, first_s: np.ndarray, last_s: np.ndarray, tokens: np.ndarray) -> Served:
    """Returns request times from arrival, first and last token."""
    several = tokens > 1
    tpot_s = (last_s - first_s)[several] / (tokens[several] - 1)
    return Served(first_s - arrival_s, tpot_s, last_s - arrival_s)


def read_measured(path: Path) -> dict[str, np.ndarray]:
    """Returns the columns of a file written by `ooco-gym calibrate measure`.

    Raises:
        UserError: the file is missing or unreadable.
    """
    return {name: column.to_numpy() for name, column in read_table(path).columns.items()}


class Again(NamedTuple):
    """Result of simulating requests: their times, curves over time (`t_s, running, waiting, kv_percent`), and totals.

    `cached_tokens` are prompt tokens that were cached when their requests were first admitted.
    """

    served: Served
    curves: dict[str, np.ndarray]
    iterations: int
    preemptions: int
    cached_tokens: int


def serve_again(trace: Trace, cluster: dict[str, Any], policy: dict[str, Any], timing: Any, end_s: float) -> Again:
    """Simulates requests that a real engine served, under vLLM's own schedule.

    Args:
        trace: the requests, all online.
        cluster: one mixed instance with the engine's blocks.
        policy: parameters of `vllm_fcfs`: the engine's limits.
        timing: timing form, as in `Scenario`.
        end_s: time when the engine was done.

    Raises:
        UserError: a request does not fit the engine's blocks.
    """
    lax = {"ttft_s": _PATIENCE_S, "tpot_s": _PATIENCE_S / float(trace.output_tokens.max())}
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "requests.parquet")
        write_trace(trace, path)
        scenario = Scenario(cluster=cluster, workload=path, timing=timing, start_s=0.0, warmup_s=0.0, drain_s=0.0,
                            duration_s=2.0 * end_s + 60.0, rate_scale=1.0, slo=lax,
                            offline={"mode": "rate", "rate": 0.0})
        result = simulate(scenario, {"name": "vllm_fcfs", "prefix_caching": "off", **policy}, sample_s=1.0)
    rows, samples = result.requests, result.samples
    unfinished = np.flatnonzero(rows["status"] != s.FINISHED)
    if len(unfinished):
        slot = int(unfinished[0])
        raise UserError(f"request {slot + 1} of '{cluster['name']}' ({rows['prompt_tokens'][slot]} prompt and "
                        f"{rows['output_tokens'][slot]} output tokens) does not fit the engine's "
                        f"{cluster['mixed'][0]['kv_blocks']} blocks")
    arrival_s, first_s, last_s = (1e-12 * rows[key] for key in ("arrival_ps", "first_token_ps", "finish_ps"))
    curves = {"t_s": samples["t_s"], "running": samples["urgent"][:, 0], "waiting": samples["online_waiting"][:, 0],
              "kv_percent": 100.0 * samples["kv_share"][:, 0]}
    return Again(served(arrival_s, first_s, last_s, rows["output_tokens"]), curves,
                 int(result.instances["steps_begun"].sum()), int(rows["evictions"].sum()),
                 int(result.instances["cached_tokens"].sum()))


def compare(real: Served, simulated: Served) -> dict[str, float]:
    """Returns `AVERAGES` of both in milliseconds, and the simulation's error in percent."""
    found = {}
    for name, ours, theirs in zip(("ttft", "tpot", "e2e"), simulated, real, strict=True):
        for kind, average in AVERAGES.items():
            a, b = float(average(ours)), float(average(theirs))
            found |= {f"{name}_{kind}_ms_real": 1e3 * b, f"{name}_{kind}_ms_simulated": 1e3 * a,
                      f"{name}_{kind}_error": 100.0 * (a / b - 1.0)}
    return found


PARTS = {"running": "running requests", "waiting": "waiting requests", "kv_percent": "KV memory in use (%)"}


def served_plots(real: Served, simulated: Mapping[str, Again], curves: Mapping[str, np.ndarray], end_s: float
                 ) -> list[Plot]:
    """Returns plots of each request's TTFT and end-to-end time, simulated over recorded, and of
    `PARTS` over time.

    Each timing form has a colour; recorded curves, if any, are grey.
    """
    plots = []
    for title, key in (("TTFT of each request (s): simulated over recorded", "ttft_s"),
                       ("end to end (s): simulated over recorded", "e2e_s")):
        x = getattr(real, key)
        equal = curve("", [0, float(x.max())], [0, float(x.max())], -1, "dashes")
        traces = [curve(f"timing={timing}", x, getattr(again.served, key), colour, "markers")
                  for colour, (timing, again) in enumerate(simulated.items())]
        plots.append(plot(title, [equal, *traces], "recorded"))
    for key, title in PARTS.items():
        traces = [curve(f"timing={timing}", again.curves["t_s"], again.curves[key], colour)
                  for colour, (timing, again) in enumerate(simulated.items())]
        recorded = [curve("recorded", curves["t_s"], curves[key], -1)] if curves else []
        plots.append(plot(title, [*recorded, *traces], "time since the first arrival (s)",
                          xaxis_range=[0, 1.05 * end_s]))
    return plots
