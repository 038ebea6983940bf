"""Reading traces of any known format; `formats/` holds one file for each."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ooco_gym.errors import UserError, nearest, unknown
from ooco_gym.workload.formats import FORMATS, Draft, TraceFormat
from ooco_gym.workload.tables import Table, open_table
from ooco_gym.workload.trace import Trace


def list_formats() -> list[str]:
    """Returns the names of the known formats."""
    return sorted(FORMATS)


def read_trace(path: str | os.PathLike[str], format: str = "auto") -> Trace:
    """Reads a trace from CSV, JSON lines or Parquet, gzip allowed on text; the kind of file is seen from its content.

    Documented repairs, each noted in `trace.notes`: requests out of order are sorted by time (stable); in formats of
    others, requests with zero output tokens (failed ones) are dropped; columns that we do not know are left out.

    Args:
        path: the file.
        format: `ooco_gym` (our own schema), `azure`, `mooncake`, `burstgpt`, or `auto`: by the column names.

    Returns:
        The trace; times as the file has them in seconds, from the first request where the file has dates.

    Raises:
        UserError: one sentence naming file, line, field, what was found and what was expected.
    """
    if format != "auto" and format not in FORMATS:
        raise unknown("trace format", format, ["auto", *FORMATS])
    table = open_table(Path(path))
    return trace_of(table, _recognise(table) if format == "auto" else FORMATS[format])


def trace_of(table: Table, form: TraceFormat) -> Trace:
    """Returns the trace in an open table, repairs and refusals as `read_trace` has them."""
    for column in form.required:
        if column not in table.columns:
            raise UserError(f"trace file '{table.path}' has no column '{column}'{nearest(column, table.columns)}; "
                            f"format '{form.name}' needs: {', '.join(form.required)}; found: {_few(table.columns)}")
    if table.rows == 0:
        raise UserError(f"trace file '{table.path}' holds no request")
    notes = []
    left_out = [name for name in table.columns if name not in form.required + form.optional]
    if left_out:
        notes.append(f"columns left out: {_few(left_out)}")
    return _finish(table, form.read(table), table.path, notes)


def _recognise(table: Table) -> TraceFormat:
    """Returns the format of which the table has the most required columns, all of them if there is one."""
    found = set(table.columns)
    return max(FORMATS.values(), key=lambda item: (found.issuperset(item.required), _likeness(item, found)))


def _likeness(item: TraceFormat, found: set[str]) -> float:
    matched = sum(1.0 if column in found else 0.5 * bool(nearest(column, found)) for column in item.required)
    return matched / len(item.required)


def _few(names: Iterable[str]) -> str:
    texts = [name if len(name) <= 40 else name[:37] + "..." for name in names]
    return ", ".join(repr(text) if text != text.strip() or not text.isprintable() else text
                     for text in texts[:12]) + (f" and {len(texts) - 12} more" if len(texts) > 12 else "")


def _finish(table: Table, draft: Draft, path: Path, notes: list[str]) -> Trace:
    """Applies the documented repairs and builds the trace."""
    if draft.drop_without_output and (draft.output_tokens == 0).any():
        empty = draft.output_tokens == 0
        notes.append(f"dropped {int(empty.sum())} of {table.rows} requests with zero output tokens (failed), the first "
                     f"at {table.place(int(np.argmax(empty)))}")
        if empty.all():
            raise UserError(f"trace file '{path}' holds no request with output tokens")
        keep = np.flatnonzero(~empty)
    else:
        keep = np.arange(table.rows)
    late = int(np.sum(np.diff(draft.arrival_s[keep]) < 0))
    if late:
        notes.append(f"sorted by time: {late} of {len(keep)} requests were earlier than the one before")
    order = keep[np.argsort(draft.arrival_s[keep], kind="stable")]
    rows = np.arange(table.rows)
    online = np.ones(table.rows, bool) if draft.online is None else draft.online
    stand_in = Trace(np.zeros(table.rows), np.maximum(draft.prompt_tokens, 1), np.maximum(draft.output_tokens, 1),
                     online, draft.ttft_slo_s, draft.tpot_slo_s, draft.session, draft.prefix_hashes,
                     name=path.name.split(".")[0], notes=(*draft.notes, *notes))
    return stand_in.take(rows[order], draft.arrival_s[order])
