"""A recorded run of a real engine: its settings, requests, prompts, and its log by seconds.

`experiments.engines.replay` simulates it; docs/calibration.md describes the folder. Shared prefixes
of prompts are given by hashes as in trace files (docs/traces.md), one per 512 prompt tokens. They
are a column of the run, or derived from the token ids of its prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ooco_gym.documents import read_mapping
from ooco_gym.errors import UserError
from ooco_gym.workload.formats import FORMATS
from ooco_gym.workload.table_reader import TraceTable, read_table
from ooco_gym.workload.trace import BLOCK_TOKENS, Hashes, take_hashes

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
