"""Reading traces of any known format: whole files, or windows of them (row groups of a Parquet by their statistics)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ooco_gym.errors import UserError, unknown
from ooco_gym.workload.formats import FORMATS, TraceFormat
from ooco_gym.workload.index import check_index
from ooco_gym.workload.intake import Intake, join, similar, take
from ooco_gym.workload.pieces import BROKEN, Table, missing, parquet_table, read_pieces, reason_of
from ooco_gym.workload.trace import Trace

if TYPE_CHECKING:
    import pyarrow.parquet

_OWN = FORMATS["ooco_gym"]


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
                 deadline_s=draft.deadline_s, class_id=draft.class_id, class_names=draft.class_names,
                 name=path.name.split(".")[0], notes=intake.notes())


def recognise(table: Table) -> TraceFormat:
    """Returns the format of which the table has the most required columns, all of them if there is one."""
    found = set(table.columns)
    return max(FORMATS.values(), key=lambda item: (found.issuperset(item.required), _likeness(item, found)))


def _likeness(item: TraceFormat, found: set[str]) -> float:
    matched = sum(1.0 if column in found else 0.5 * bool(similar(column, found)) for column in item.required)
    return matched / len(item.required)


class TraceFile:
    """A trace on disk, of which windows are read.

    A Parquet in our schema whose row groups follow each other in time is never read as a whole. Anything else is
    read once and kept.

    Attributes:
        rows: requests.
        first_s: arrival of the first, seconds.
        last_s: arrival of the last, seconds.
        groups_read: row groups read so far.
    """

    def __init__(self, path: Path, format: str = "auto") -> None:
        check_format(format)
        self.path, self.format, self.groups_read = path, format, 0
        self._groups = _time_index(path) if format in ("auto", _OWN.name) else None
        self._whole: Trace | None = None
        if self._groups is None:
            self._whole = read_trace(path, format)
            self.rows = len(self._whole)
            self.first_s, self.last_s = (float(self._whole.arrival_s[i]) for i in (0, -1))
        else:
            self._starts = np.concatenate([[0], np.cumsum([rows for _, _, rows in self._groups])])
            self.rows = int(self._starts[-1])
            self.first_s, self.last_s = self._groups[0][0], self._groups[-1][1]

    def __reduce__(self) -> tuple[Any, ...]:
        """Opened again where it is unpickled, rather than sent with all its requests."""
        return open_trace, (str(self.path), self.format)

    @property
    def mean_rate(self) -> float:
        """Requests per second between the first and the last arrival; 0 where that span is empty."""
        span_s = self.last_s - self.first_s
        return (self.rows - 1) / span_s if span_s > 0 else 0.0

    def window(self, start_s: float, end_s: float, margin: int = 0) -> tuple[Trace, int]:
        """Returns the requests with `start_s <= arrival_s < end_s`, and the position of the first in the file's order.

        Args:
            start_s: seconds.
            end_s: seconds.
            margin: how many requests before and after the window are wanted besides, where there are that many.

        Raises:
            UserError: what is read is malformed.
        """
        if self._whole is not None:
            return _cut(self._whole, 0, start_s, end_s, margin)
        assert self._groups is not None
        first, last = 0, len(self._groups)
        while first < last and self._groups[first][1] < start_s:
            first += 1
        while last > first and self._groups[last - 1][0] >= end_s:
            last -= 1
        if margin:
            first, last = max(0, first - 1), min(len(self._groups), last + 1)
        return _cut(self._read(first, last), int(self._starts[first]), start_s, end_s, margin)

    def counts_before(self, edges_s: np.ndarray) -> np.ndarray:
        """Returns how many requests arrive before each time, int64 of the same shape; reads the arrivals only."""
        if self._whole is not None:
            return np.searchsorted(self._whole.arrival_s, edges_s)
        counts = np.zeros(edges_s.shape, np.int64)
        try:
            with _open(self.path) as file:
                for batch in file.iter_batches(columns=["arrival_s"]):
                    counts += np.searchsorted(np.sort(batch["arrival_s"].to_numpy(zero_copy_only=False)), edges_s)
        except BROKEN as error:
            raise UserError(f"trace file '{self.path}' cannot be read: {reason_of(error)}") from None
        return counts

    def _read(self, first: int, last: int) -> Trace:
        name = self.path.name.split(".")[0]
        if first == last:
            return Trace(np.zeros(0), np.zeros(0, np.int32), np.zeros(0, np.int32), name=name)
        try:
            with _open(self.path) as file:
                table = file.read_row_groups(list(range(first, last)))
        except BROKEN as error:
            raise UserError(f"trace file '{self.path}' cannot be read: {reason_of(error)}") from None
        self.groups_read += last - first
        return trace_of([parquet_table(self.path, table, int(self._starts[first]))], _OWN, self.path)


def open_trace(path: str | os.PathLike[str], format: str = "auto") -> TraceFile:
    """Returns a trace file ready for windows; kept until the file changes.

    Raises:
        UserError: it does not exist, or is malformed.
    """
    try:
        stat = os.stat(path)
    except FileNotFoundError:
        raise missing(path) from None
    except (OSError, ValueError) as error:
        raise UserError(f"trace file '{path}' cannot be read: {getattr(error, 'strerror', error)}") from None
    return _kept(str(path), format, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=4)
def _kept(path: str, format: str, modified_ns: int, size: int) -> TraceFile:
    return TraceFile(Path(path), format)


def _cut(trace: Trace, first_row: int, start_s: float, end_s: float, margin: int) -> tuple[Trace, int]:
    first, last = np.searchsorted(trace.arrival_s, [start_s, end_s], side="left")
    first, last = max(0, int(first) - margin), min(len(trace), int(max(first, last)) + margin)
    return trace.take(slice(first, last)), first_row + first


def _open(path: Path) -> pyarrow.parquet.ParquetFile:
    import pyarrow.parquet

    return pyarrow.parquet.ParquetFile(path, page_checksum_verification=True)


def _time_index(path: Path) -> list[tuple[float, float, int]] | None:
    """Returns (earliest, latest arrival in s, rows) of each row group; None unless they follow each other in time."""
    try:
        with path.open("rb") as file:
            if file.read(4) != b"PAR1":
                return None
        with _open(path) as file:
            check_index(path, file)
            metadata, names = file.metadata, file.schema_arrow.names
            if any(name not in names for name in _OWN.required):
                return None
            groups: list[tuple[float, float, int]] = []
            for i in range(metadata.num_row_groups):
                group = metadata.row_group(i)
                found = _statistics(group, "arrival_s")
                if group.num_rows and found is None:
                    return None
                if group.num_rows and found is not None:
                    groups.append((*found, group.num_rows))
    except UserError:
        raise
    except (*BROKEN, TypeError):
        return None     # the reader says what is wrong
    if not groups or len(groups) != metadata.num_row_groups:
        return None
    ordered = all(before[1] <= after[0] for before, after in pairwise(groups))
    return groups if ordered and groups[0][0] >= 0 and np.isfinite(groups[-1][1]) else None


def _statistics(group: Any, name: str) -> tuple[float, float] | None:
    for i in range(group.num_columns):
        column = group.column(i)
        if column.path_in_schema == name:
            found = column.statistics
            if found is None or not found.has_min_max or found.null_count:
                return None
            return float(found.min), float(found.max)
    return None
