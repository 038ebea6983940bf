"""Reading traces of any known format; `formats/` holds one file for each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import numpy as np

from ooco_gym.errors import unknown
from ooco_gym.workload.formats import FORMATS, TraceFormat
from ooco_gym.workload.intake import Intake, join, similar, take
from ooco_gym.workload.pieces import read_pieces
from ooco_gym.workload.tables import Table
from ooco_gym.workload.trace import Trace


def list_formats() -> list[str]:
    """Returns the names of the known formats."""
    return sorted(FORMATS)


def read_trace(path: str | os.PathLike[str], format: str = "auto", *, start_s: float = 0.0,
               end_s: float = np.inf) -> Trace:
    """Reads a trace from CSV, JSON lines or Parquet, gzip allowed on text; the kind of file is seen from its content.

    Documented repairs, each noted in `trace.notes`: requests out of order are sorted by time (stable); in formats of
    others, requests with zero output tokens (failed ones) are dropped; columns that we do not know are left out.

    Args:
        path: the file.
        format: `ooco_gym` (our own schema), `azure`, `mooncake`, `burstgpt`, or `auto`: by the column names.
        start_s: seconds; requests before it are left out.
        end_s: seconds; requests at or after it are left out. Of a Parquet in our schema whose row groups follow each
            other in time (what `write_trace` and `ooco-gym data import` write), only those that reach into
            `[start_s, end_s)` are read.

    Returns:
        The trace; times as the file has them in seconds, from the first request where the file has dates.

    Raises:
        UserError: one sentence naming file, line, field, what was found and what was expected.
    """
    check_format(format)
    if start_s > 0 or end_s < np.inf:
        from ooco_gym.workload.trace_file import TraceFile

        return TraceFile(Path(path), format).window(start_s, end_s)[0]
    pieces = peek(read_pieces(Path(path)))
    return trace_of(pieces[1], recognise(pieces[0]) if format == "auto" else FORMATS[format], Path(path))


def check_format(format: str) -> None:
    """Raises UserError unless `format` is `auto` or the name of a known one."""
    if format != "auto" and format not in FORMATS:
        raise unknown("trace format", format, ["auto", *FORMATS])


def peek(pieces: Iterator[Table]) -> tuple[Table, Iterator[Table]]:
    """Returns (the first piece, all pieces)."""
    first = next(pieces)
    return first, chain([first], pieces)


def trace_of(pieces: Iterable[Table], form: TraceFormat, path: Path) -> Trace:
    """Returns the trace in a file's pieces, repairs and refusals as `read_trace` has them."""
    intake = Intake(path, form)
    draft = join(list(intake.drafts(pieces)))
    order = np.argsort(draft.ticks, kind="stable")
    if not np.array_equal(order, np.arange(len(order))):
        draft = take(draft, order)
    return Trace(intake.seconds(draft.ticks), draft.prompt_tokens, draft.output_tokens,
                 draft.online,  # type: ignore[arg-type]
                 draft.ttft_slo_s, draft.tpot_slo_s, draft.session, draft.prefix_hashes,
                 name=path.name.split(".")[0], notes=intake.notes())


def recognise(table: Table) -> TraceFormat:
    """Returns the format of which the table has the most required columns, all of them if there is one."""
    found = set(table.columns)
    return max(FORMATS.values(), key=lambda item: (found.issuperset(item.required), _likeness(item, found)))


def _likeness(item: TraceFormat, found: set[str]) -> float:
    matched = sum(1.0 if column in found else 0.5 * bool(similar(column, found)) for column in item.required)
    return matched / len(item.required)
