"""Requests served by a real engine: a recorded run, its simulation, and the differences.

docs/calibration.md describes a run's folder. Shared prefixes of prompts are given by hashes as in trace files
(docs/traces.md), one per 512 prompt tokens. They are a column of the run, or derived from the token ids of its prompts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ooco_gym.documents import read_mapping
from ooco_gym.errors import UserError
from ooco_gym.report import curve, plot
from ooco_gym.report.pages import Plot
from ooco_gym.scenario import Scenario
from ooco_gym.sim import state as s
from ooco_gym.simulation import simulate
from ooco_gym.workload import Trace, write_trace
from ooco_gym.workload.formats import FORMATS
from ooco_gym.workload.table_reader import TraceTable, read_table
from ooco_gym.workload.trace import BLOCK_TOKENS, Hashes, take_hashes

_PATIENCE_S = 1e5
"""SLO for a whole request, so lax that no request is given up."""
REQUESTS = ("arrival_s", "prompt_tokens", "output_tokens", "first_token_s", "last_token_s")
SETTINGS = ("num_gpu_blocks", "block_tokens", "max_num_seqs", "max_num_batched_tokens")
OPTIONAL = ("tensor_parallel",)
CURVES = {"t": "t_s", "running": "running", "waiting": "waiting", "kv_cache_pct": "kv_percent"}
HASHES, TOKEN_IDS = "prefix_hashes", ("prompt_token_ids", "input_tok_ids")
"""Columns of `requests.parquet`, and keys of a file of prompts."""


@dataclass(frozen=True)
class Recorded:
    """One recorded run.

    Attributes:
        folder: of the run.
        engine: `engine.json`.
        requests: by column, sorted by arrival; times in seconds from the first arrival.
        curves: `t_s, running, waiting, kv_percent` from the engine's log; empty without one.
        prompts: hashes of shared prefixes, as `Trace.prefix_hashes`; None: unknown.
        failed: excluded requests without a token or times.
    """

    folder: Path
    engine: dict[str, Any]
    requests: dict[str, np.ndarray]
    curves: dict[str, np.ndarray]
    prompts: Hashes | None = None
    failed: int = 0


def read_run(folder: Path, prompts: Path | None = None) -> Recorded:
    """Reads `requests.parquet` (or another `requests.*`), `engine.json` and, if present,
    `timeseries.csv`.

    Args:
        folder: of these files.
        prompts: file of JSON lines with the prompts' token ids, in the order of the requests' rows;
            None: the requests' own column.

    Raises:
        UserError: a file, column or setting is missing, times are impossible, or prompts do not match the requests.
    """
    engine, table = _settings(folder / "engine.json"), _requests(folder)
    if table.form is None:
        requests, good = _columns(table, REQUESTS), np.ones(table.rows, dtype=bool)
        for before, after in (("arrival_s", "first_token_s"), ("first_token_s", "last_token_s")):
            table.demand(requests[before] <= requests[after], after, f"a time in seconds, none before {before}")
        for name in ("prompt_tokens", "output_tokens"):
            table.demand(requests[name] >= 1, name, "at least one token")
    else:
        requests, good = _unfolded(table)
    if not good.any():
        raise UserError(f"'{table.path}' has no request" + " that got a token" * bool(table.rows))
    tokens = np.nan_to_num(requests["prompt_tokens"]).astype(np.int64)
    hashes = _hashes(table if prompts is None else read_table(prompts), tokens)
    if prompts is not None and hashes is None:
        raise UserError(f"'{prompts}' has no {' or '.join(TOKEN_IDS)}; expected the token ids of a prompt in each line")
    order = np.flatnonzero(good)[np.argsort(requests["arrival_s"][good], kind="stable")]
    requests = {name: values[order] for name, values in requests.items()}
    begin_s, curves = requests["arrival_s"][0], {}
    if (folder / "timeseries.csv").is_file():
        logged = _columns(read_table(folder / "timeseries.csv"), tuple(CURVES))
        curves = {ours: logged[name] for name, ours in CURVES.items()}
        curves["t_s"] = curves["t_s"] - begin_s
    for key in ("arrival_s", "first_token_s", "last_token_s"):
        requests[key] = requests[key] - begin_s
    return Recorded(folder, engine, requests, curves, None if hashes is None else take_hashes(hashes, order),
                    int((~good).sum()))


def _requests(folder: Path) -> TraceTable:
    """Reads the file of requests: `requests.parquet`, or else the first `requests.*`."""
    others = [path for path in sorted(folder.glob("requests.*")) if path.suffix != ".parquet"]
    own = folder / "requests.parquet"
    return read_table(own if own.is_file() or not others else others[0])


def _unfolded(table: TraceTable) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Returns the requests of a nested form (`workload.unfolding`), and a mask of those with tokens, bool[n]."""
    form = FORMATS[str(table.form)]
    fields = (*REQUESTS[:3], "ttft_s", "e2e_s")
    for field in fields:
        if field not in table.columns:
            raise UserError(f"'{table.path}' ({form.name}) lacks arrival times or times of the first and last token "
                            f"({field} is missing); vllm bench serve writes them with --save-detailed")
    found = {field: table.numbers(field, "a number", np.nan) for field in fields}
    arrival_s = found["arrival_s"] / form.per_second
    requests = {**{name: found[name] for name in REQUESTS[1:3]}, "arrival_s": arrival_s,
                "first_token_s": arrival_s + found["ttft_s"], "last_token_s": arrival_s + found["e2e_s"]}
    good = np.all([np.isfinite(values) for values in requests.values()], axis=0)
    good &= (found["output_tokens"] >= 1) & (found["prompt_tokens"] >= 1) & (found["ttft_s"] > 0)
    return {**requests, "last_token_s": np.maximum(requests["first_token_s"], requests["last_token_s"])}, good


def _settings(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UserError(f"'{path}' does not exist: a recorded run has the engine's settings there "
                        f"({', '.join(SETTINGS)}, model)")
    engine = read_mapping(path)
    for key in (*SETTINGS, *(key for key in OPTIONAL if key in engine)):
        if isinstance(engine.get(key), bool) or not isinstance(engine.get(key), int) or engine[key] < 1:
            raise UserError(f"'{path}': '{key}' must be a whole number of at least 1, got {engine.get(key)!r}")
    return engine


def _columns(table: TraceTable, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Returns columns of finite numbers by name, float64[rows] each."""
    columns = {}
    for name in names:
        if name not in table.columns:
            raise UserError(f"'{table.path}': column '{name}' is missing; expected: {', '.join(names)}")
        columns[name] = table.numbers(name, "a number").astype(np.float64)
        table.demand(np.isfinite(columns[name]), name, "a finite number")
    return columns


def _hashes(table: TraceTable, prompt_tokens: np.ndarray) -> Hashes | None:
    """Returns the prefix hashes in a table for prompts of int64[n] tokens; None without such a column."""
    name = next((name for name in (HASHES, *TOKEN_IDS) if name in table.columns), None)
    if name is None:
        return None
    if table.rows != len(prompt_tokens):
        raise UserError(f"'{table.path}' has {table.rows} prompts, expected one for each of {len(prompt_tokens)} "
                        "requests")
    expected = "a list of whole numbers of at least 0"
    lists = [row or [] for row in table.integer_lists(name, expected).to_pylist()]
    table.demand(np.array([min(row, default=0) >= 0 for row in lists]), name, expected)
    counts = np.array([len(row) for row in lists])
    if name != HASHES:
        table.demand(counts == prompt_tokens, name, "as many token ids as prompt_tokens")
        return hashes_of(lists)
    table.demand(counts <= -(-prompt_tokens // BLOCK_TOKENS), name, f"at most one for each {BLOCK_TOKENS} tokens")
    return _joined(lists)


def hashes_of(prompts: Sequence[Sequence[int]]) -> Hashes:
    """Numbers the blocks of prompts, given as token ids, such that equal numbers mean an equal prefix."""
    numbers: dict[tuple[int, bytes], int] = {}
    lists = []
    for prompt in prompts:
        tokens, before, found = np.asarray(prompt, np.int64), -1, []
        for begin in range(0, len(tokens), BLOCK_TOKENS):
            before = numbers.setdefault((before, tokens[begin:begin + BLOCK_TOKENS].tobytes()), len(numbers))
            found.append(before)
        lists.append(found)
    return _joined(lists)


def _joined(lists: Sequence[Sequence[int]]) -> Hashes:
    offsets = np.concatenate([[0], np.cumsum([len(one) for one in lists])]).astype(np.int64)
    return offsets, np.array([value for one in lists for value in one], dtype=np.int64)


# --- Simulation ---------------------------------------------------------------------------------------------------
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
