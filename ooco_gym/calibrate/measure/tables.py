"""What is kept of a measurement: iterations, requests and a time series (`docs/measuring.md` has the schema)."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ooco_gym.files import atomic_write

VERSION = "ooco-gym/iterations/1"
_CHUNKS = pa.list_(pa.int32())
ITERATIONS = pa.schema([
    ("n_decode", pa.int32()), ("decode_context_sum", pa.int64()),
    ("n_prefill", pa.int32()), ("prefill_tokens", pa.int32()), ("prefill_context_sum", pa.int64()),
    ("prefill_work", pa.int64()), ("prefill_q", _CHUNKS), ("prefill_kv", _CHUNKS),
    ("tokens", pa.int32()), ("sequences_sampled", pa.int32()), ("n_admitted", pa.int32()),
    ("time_us", pa.float64()), ("schedule_us", pa.float64()), ("forward_us", pa.float64()),
    ("update_us", pa.float64()), ("admission_us", pa.float64()),
    ("began_s", pa.float64()), ("running", pa.int32()), ("waiting", pa.int32()), ("free_blocks", pa.int32()),
    ("preempted", pa.int32()), ("repeat", pa.int32()), ("label", pa.string()),
    ("engine", pa.string()), ("model", pa.string()), ("device", pa.string()), ("threads", pa.int32()),
])
REQUESTS = pa.schema([
    ("arrival_s", pa.float64()), ("prompt_tokens", pa.int32()), ("output_tokens", pa.int32()),
    ("queued_s", pa.float64()), ("scheduled_s", pa.float64()), ("first_token_s", pa.float64()),
    ("last_token_s", pa.float64()),
])


def iteration_rows(steps: list[dict[str, Any]], engine: dict[str, Any], repeat: int = 0) -> list[dict[str, Any]]:
    """The driver's iterations with the sums that timing depends on; `repeat` numbers the pass."""
    same = {key: engine[key] for key in ("engine", "model", "device", "threads")}
    rows = []
    for step in steps:
        q = np.array([chunk[0] for chunk in step["chunks"]], np.int64)
        kv = np.array([chunk[1] for chunk in step["chunks"]], np.int64)
        sums = {"n_prefill": q.size, "prefill_tokens": int(q.sum()), "prefill_context_sum": int(kv.sum()),
                "prefill_work": int((q * kv).sum()), "prefill_q": q.tolist(), "prefill_kv": kv.tolist(),
                "tokens": int(q.sum()) + step["n_decode"], "repeat": repeat}
        rows.append({**{key: step[key] for key in ITERATIONS.names if key in step}, **sums, **same})
    return rows


def write_table(path: Path, rows: list[dict[str, Any]], schema: pa.Schema) -> None:
    """Writes rows as Parquet; what a row has beyond the schema is left out, what it lacks is null."""
    table = pa.Table.from_pylist(rows, schema=schema.with_metadata({"schema": VERSION}))
    with atomic_write(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def write_timeseries(path: Path, rows: list[dict[str, Any]], num_blocks: int) -> None:
    """Once a second: prompt and generation throughput, requests running and waiting, KV use in percent."""
    ends = np.array([row["began_s"] + 1e-6 * row["time_us"] for row in rows])
    seconds = np.floor(ends).astype(np.int64)
    with atomic_write(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["t", "prompt_throughput", "gen_throughput", "running", "waiting", "kv_cache_pct"])
        last = None
        for second in range(int(seconds.max()) + 1 if rows else 0):
            inside = [rows[i] for i in np.flatnonzero(seconds == second)]
            last = inside[-1] if inside else {"running": 0, "waiting": 0, "free_blocks": num_blocks - 1}
            used = 100.0 * (1.0 - last["free_blocks"] / max(1, num_blocks - 1))
            writer.writerow([second + 1.0, sum(row["prefill_tokens"] for row in inside),
                             sum(row["sequences_sampled"] for row in inside), last["running"], last["waiting"],
                             round(used, 2)])
