"""The request table of a run (`requests.parquet`), and reasons of rejection."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from ooco_gym.files import atomic_write
from ooco_gym.metrics.chosen import SOME
from ooco_gym.metrics.quality import end_ps_of, judge, judge_deadlines, rules_of
from ooco_gym.run import RunRecord
from ooco_gym.sim.state import ABORTED, FINISHED, NEVER, PS_PER_S, REJECTED
from ooco_gym.workload import Turns
from ooco_gym.workload.trace import NO_SESSION

if TYPE_CHECKING:
    import pyarrow as pa


MEMORY, WINDOW = "memory", "model window"  # reasons of rejection: cannot run even alone; too long


def reasons_of(run: RunRecord, rejected: np.ndarray) -> list[str]:
    longest = run.scenario.deployments[0][1].model.max_position
    tokens = rejected["prompt_tokens"].astype(np.int64) + rejected["output_tokens"]
    return [WINDOW if longest and one > longest else MEMORY for one in tokens]


def requests_table(run: RunRecord, everything: bool = False) -> pa.Table:
    """Returns the table of a run's requests; equal runs give equal bytes.

    Columns: `id` (int32, index among all requests of the run), `class` ("online", "offline" or a
    named class; with named classes also `online`, bool), `arrival_s` (float64, seconds since the
    start of the measured window, like other times), `prompt_tokens`, `output_tokens` (int32),
    `first_token_s`, `finish_s` (float64, null if it did not happen), `generated_tokens` (int32),
    `wasted_tokens` (int64), `evictions`, `migrations` (int32) and `violated` (bool; for offline
    requests whether they missed their deadline, if any). With rejections there is `rejected`, the
    reason ("memory", "model window") or null; where requests may leave `aborted_s` (float64, null if
    it has not); with closed sessions `after` (int32), the id of the turn for whose end a turn waited, or null
    (lists where some wait for several), and with jobs `job` (int64). Requests of warm-up and drain
    are included only with
    `everything`; turns of closed sessions that never arrived are not.
    """
    import pyarrow as pa

    return pa.concat_tables(_tables(run, everything))


def _tables(run: RunRecord, everything: bool = False) -> Iterator[pa.Table]:
    """Yields the request table in parts, at least one."""
    requests = run.requests
    chosen = requests["arrival_ps"] < NEVER if everything else requests["counted"] == 1
    rows = np.flatnonzero(chosen).astype(np.int32)
    refused = bool(((requests["status"] == REJECTED) & chosen).any())
    for begin in range(0, max(len(rows), 1), SOME):
        yield _table_of(run, rows[begin : begin + SOME], refused)


def _table_of(run: RunRecord, rows: np.ndarray, with_rejected: bool) -> pa.Table:
    import pyarrow as pa

    chosen, start_ps = run.requests[rows], round(run.window_s[0] * PS_PER_S)
    violated = judge(chosen, rules_of(run)).violated & (chosen["online"] == 1)
    if run.due_ps is not None:
        violated |= judge_deadlines(chosen, run.due_ps[rows], end_ps_of(run))[0]
    refused = chosen["status"] == REJECTED
    started, finished = chosen["generated_tokens"] >= 1, chosen["status"] == FINISHED
    ids, names = chosen["online"].astype(np.int8), ["offline", "online"]
    if run.class_id is not None:
        ids, names = run.class_id[rows], [one.name for one in run.scenario.classes]
    reasons = np.array(reasons_of(run, chosen), object) if with_rejected else None

    def columns(*names: str) -> dict[str, pa.Array]:
        return {name: pa.array(np.ascontiguousarray(chosen[name])) for name in names}

    return pa.table({
        "id": pa.array(rows),
        "class": pa.array(np.array(names)[ids], pa.string()),
        **({} if run.class_id is None else {"online": pa.array(chosen["online"] == 1)}),
        "arrival_s": pa.array((chosen["arrival_ps"] - start_ps) / PS_PER_S),
        **columns("prompt_tokens", "output_tokens"),
        "first_token_s": pa.array((chosen["first_token_ps"] - start_ps) / PS_PER_S, mask=~started),
        "finish_s": pa.array((chosen["finish_ps"] - start_ps) / PS_PER_S, mask=~finished),
        **columns("generated_tokens", "wasted_tokens", "evictions", "migrations"),
        "violated": pa.array(violated),
        **({} if reasons is None else {"rejected": pa.array(reasons, pa.string(), mask=~refused)}),
        **({"aborted_s": pa.array((chosen["finish_ps"] - start_ps) / PS_PER_S, mask=chosen["status"] != ABORTED)}
           if run.leaves else {}),
        **({} if run.turns is None else {"after": _after(run.turns, rows)}),
        **({} if run.job is None else {"job": pa.array(run.job[rows], mask=run.job[rows] == NO_SESSION)}),
    })


def _after(turns: Turns, rows: np.ndarray) -> pa.Array:
    """The requests that each row waits for: one or null, or lists if some request waits for several."""
    import pyarrow as pa

    sources, targets = turns.edges
    counts = np.bincount(targets, minlength=len(turns.previous))
    if counts.max(initial=0) <= 1:
        return pa.array(turns.previous[rows].astype(np.int32), mask=turns.previous[rows] < 0)
    ordered = sources[np.argsort(targets, kind="stable")].astype(np.int32)
    begin = np.concatenate([[0], np.cumsum(counts)])
    return pa.array([ordered[begin[row] : begin[row + 1]].tolist() for row in rows.tolist()], pa.list_(pa.int32()))


def write_requests(run: RunRecord, path: str | os.PathLike[str]) -> None:
    """Writes `requests_table(run)` as Parquet, atomically."""
    from pyarrow import parquet

    tables = _tables(run)
    first = next(tables)
    with atomic_write(path) as temporary, parquet.ParquetWriter(temporary, first.schema) as writer:
        writer.write_table(first)
        for table in tables:
            writer.write_table(table)
