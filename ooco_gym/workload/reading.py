"""Reading traces of any known format: whole files, or windows of them (row groups of a Parquet by their statistics)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from ooco_gym.documents import version_of
from ooco_gym.errors import UserError, nearest, unknown
from ooco_gym.workload.catalogue import Dataset
from ooco_gym.workload.formats import FORMATS, OPTIONAL, REQUIRED, UNITS, Clock, TraceFormat
from ooco_gym.workload.intake import Intake, few, similar
from ooco_gym.workload.table_reader import BROKEN, Table, missing, parquet_table, read_pieces, reason_of
from ooco_gym.workload.trace import DEFAULT_CLASSES, NO_SESSION, SECONDS, Trace, check_class_count

TIME_UNITS = ("auto", *UNITS, "date")
_OWN = FORMATS["ooco_gym"]


def list_formats() -> list[str]:
    """Returns the names of the known formats."""
    return sorted(FORMATS)


def read_trace(path: str | os.PathLike[str], format: str = "auto", *, start_s: float = 0.0, end_s: float = np.inf,
               columns: Mapping[str, str | None] | None = None, time_unit: str = "auto") -> Trace:
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
        columns: our column names (docs/traces.md) to the file's, such as `{"class": "qos"}`; what is not named is
            looked for under our own name.
        time_unit: `s`, `ms`, `us`, `ns`, `date`, or `auto` (dates are recognised, numbers are seconds).

    Returns:
        The trace; times as the file has them in seconds, from the first request where the file has dates.

    Raises:
        UserError: one sentence naming file, line, field, what was found and what was expected.
    """
    if start_s > 0 or end_s < np.inf:
        return TraceFile(Path(path), format, columns, time_unit).window(start_s, end_s)[0]
    form, pieces = recognised(Path(path), format, columns, time_unit)
    if "arrival_s" not in form.columns:
        raise UserError(f"trace file '{path}': which column holds the arrivals? Expected columns.arrival_s=NAME beside "
                        f"{', '.join(f'columns.{key}={name}' for key, name in form.columns.items())}")
    return trace_of(pieces, form, Path(path))


def recognised(path: Path, format: str = "auto", columns: Mapping[str, str | None] | None = None,
               time_unit: str = "auto", lengths: bool = False) -> tuple[TraceFormat, Iterator[Table]]:
    """Looks at a file's first piece; arguments as `read_trace` has them.

    Args:
        lengths: whether a file of lengths alone is recognised without `columns` too.

    Returns:
        How to read it, and all its pieces.

    Raises:
        UserError: an unknown name, or a column that the file does not have.
    """
    given = {key: str(value) for key, value in (columns or {}).items() if value is not None}
    check_format(format)
    if time_unit not in TIME_UNITS:
        raise unknown("time_unit", time_unit, TIME_UNITS)
    for key in given:
        if key not in REQUIRED + OPTIONAL:
            raise unknown("column", key, REQUIRED + OPTIONAL)
    if given and format != "auto":
        raise UserError(f"format={format} and columns.{next(iter(given))} exclude each other: a format "
                        "knows its columns")
    rest = read_pieces(path)
    first = next(rest)
    pieces = chain([first], rest)
    if not given and format != "auto":
        return FORMATS[format], pieces
    if not given and time_unit == "auto" and not (lengths and _is_lengths(first)):
        return recognise(first), pieces
    named = {**{key: key for key in REQUIRED + OPTIONAL if key in first.columns}, **given}
    return _named_format(first, named, time_unit), pieces


def check_format(format: str) -> None:
    """Raises UserError unless `format` is `auto` or the name of a known one."""
    if format != "auto" and format not in FORMATS:
        raise unknown("trace format", format, ["auto", *FORMATS])


def trace_of(pieces: Iterable[Table], form: TraceFormat, path: Path) -> Trace:
    """Returns the trace in a file's pieces, repairs and refusals as `read_trace` has them."""
    intake = Intake(path, form)
    requests = pa.concat_tables(list(intake.requests(pieces)), promote_options="default")
    order = np.argsort(requests["tick"].to_numpy(), kind="stable")
    if not np.array_equal(order, np.arange(len(order))):
        requests = requests.take(pa.array(order))
    return _trace_from(requests, intake.seconds(requests["tick"].to_numpy()), path.name.split(".")[0], intake.notes())


def _trace_from(table: pa.Table, arrival_s: np.ndarray, name: str, notes: tuple[str, ...]) -> Trace:
    """Returns the requests of a table of the columns of docs/traces.md, sorted by these arrivals."""
    more: dict[str, Any] = {}
    for field, none in (*((field, np.nan) for field in SECONDS), ("session", NO_SESSION)):
        if field in table.column_names:
            more[field] = table[field].fill_null(none).to_numpy()
    if "prefix_hashes" in table.column_names:
        lists = table["prefix_hashes"].combine_chunks()
        counts = pc.call_function("list_value_length", [lists]).fill_null(0).to_numpy(zero_copy_only=False)
        more["prefix_hashes"] = (np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
                                 lists.flatten().to_numpy(zero_copy_only=False))
    if "class" in table.column_names:
        classes = table["class"].fill_null("online").combine_chunks().dictionary_encode()
        names, ids = tuple(classes.dictionary.to_pylist()), classes.indices.to_numpy(zero_copy_only=False)
        check_class_count(names)
        more["online"] = np.array([one != "offline" for one in names], bool)[ids]
        if not set(names) <= set(DEFAULT_CLASSES):
            more |= {"class_id": ids.astype(np.int8), "class_names": names}
    lengths = (table[field].to_numpy() for field in ("prompt_tokens", "output_tokens"))
    return Trace(arrival_s, *lengths, name=name, notes=notes, **more)


@dataclass(frozen=True)
class Sample:
    """What a file says of a workload: a whole trace, or only lengths; at least one field is not None.

    Attributes:
        name: for messages and reports.
        trace: the whole requests, or None where there are only lengths.
        prompt_tokens: int64[n], >= 1, or None.
        output_tokens: int64[n], >= 1, or None.
        notes: repairs and drops, one sentence each.
    """

    name: str
    trace: Trace | None
    prompt_tokens: np.ndarray | None
    output_tokens: np.ndarray | None
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, trace: Trace) -> Sample:
        """Returns a trace as a sample."""
        return cls(trace.name, trace, trace.prompt_tokens, trace.output_tokens, trace.notes)

    @property
    def requests(self) -> int:
        """How many."""
        return len(next(x for x in (self.prompt_tokens, self.output_tokens) if x is not None))


def read_sample(path: Path, format: str = "auto", columns: Mapping[str, str | None] | None = None,
                time_unit: str = "auto", dataset: Dataset | None = None) -> Sample:
    """Reads a trace, or without arrivals a set of lengths; arguments are as `read_trace` takes them.

    Args:
        dataset: says format and columns where the user does not.

    Raises:
        UserError: an unknown name, or whatever `read_trace` refuses.
    """
    given = {key: str(value) for key, value in (columns or {}).items() if value is not None}
    if dataset is not None and not given and path.name == dataset.file:
        given, format = dict(dataset.columns), dataset.format if format == "auto" else format
    form, pieces = recognised(path, format, given, time_unit, lengths=True)
    if "arrival_s" in form.columns:
        return Sample.of(trace_of(pieces, form, path))
    intake = Intake(path, form)
    requests = pa.concat_tables(list(intake.requests(pieces)))
    prompt, output = (requests[name].to_numpy() if name in requests.column_names else None
                      for name in ("prompt_tokens", "output_tokens"))
    return Sample(path.name.split(".")[0], None, prompt, output, intake.notes())


def recognise(table: Table) -> TraceFormat:
    """Returns the format of which the table has the most required columns, all if there is one; ours if it has none."""
    found = set(table.columns)
    best = max(FORMATS.values(), key=lambda item: (found.issuperset(item.required), _likeness(item, found)))
    return best if found & set(best.required) else _OWN


def _is_lengths(table: Table) -> bool:
    """Tells whether a table has lengths under our names, but no arrivals."""
    if any(set(form.required) <= set(table.columns) for name, form in FORMATS.items() if name != "ooco_gym"):
        return False
    return bool({"prompt_tokens", "output_tokens"} & set(table.columns)) and no_arrivals(table, "arrival_s")


def no_arrivals(table: Table, field: str) -> bool:
    """Tells whether a table has no column of arrivals under this name, or one without any value."""
    if field not in table.columns:
        return True
    if table.rows == 0 or table.holds_dates(field):
        return False
    try:
        return bool(np.isnan(table.numbers(field, "a number", missing=np.nan)).all())
    except UserError:       # the format's own reader says better what it expected
        return False


def _named_format(table: Table, columns: dict[str, str], time_unit: str) -> TraceFormat:
    """Returns the format that the user's columns make; without `arrival_s` where they are lengths only."""
    for field in columns.values():
        if field not in table.columns:
            raise UserError(f"trace file '{table.path}' has no column '{field}'{nearest(field, table.columns)}; found: "
                            f"{few(table.columns)}")
    if "arrival_s" in columns and not no_arrivals(table, columns["arrival_s"]):
        for name in REQUIRED:
            if name not in columns:
                raise UserError(f"trace file '{table.path}': which column holds {name}? Expected columns.{name}=NAME, "
                                f"one of: {few(table.columns)}")
        if time_unit == "auto":
            time_unit = "date" if table.holds_dates(columns["arrival_s"]) else "s"
        return TraceFormat("your columns", columns, Clock(time_unit))
    if not {"prompt_tokens", "output_tokens"} & set(columns):
        raise UserError(f"trace file '{table.path}': which columns hold what? Expected such as columns.arrival_s=NAME "
                        f"columns.prompt_tokens=NAME columns.output_tokens=NAME; found: {few(table.columns)}")
    return TraceFormat("your columns", {key: columns[key] for key in REQUIRED[1:] if key in columns})


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

    def __init__(self, path: Path, format: str = "auto", columns: Mapping[str, str | None] | None = None,
                 time_unit: str = "auto") -> None:
        check_format(format)
        self.path, self.groups_read, self._how = path, 0, (format, columns or None, time_unit)
        self._groups = _time_index(path) if self._how in (("auto", None, "auto"), (_OWN.name, None, "auto")) else None
        self._whole: Trace | None = None
        if self._groups is None:
            self._whole = read_trace(path, format, columns=columns, time_unit=time_unit)
            self.rows = len(self._whole)
            self.first_s, self.last_s = (float(self._whole.arrival_s[i]) for i in (0, -1))
        else:
            self._starts = np.concatenate([[0], np.cumsum([rows for _, _, rows in self._groups])])
            self.rows = int(self._starts[-1])
            self.first_s, self.last_s = self._groups[0][0], self._groups[-1][1]

    def __reduce__(self) -> tuple[Any, ...]:
        """Opened again where it is unpickled, rather than sent with all its requests."""
        return open_trace, (str(self.path), *self._how)

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


def open_trace(path: str | os.PathLike[str], format: str = "auto", columns: Mapping[str, str | None] | None = None,
               time_unit: str = "auto") -> TraceFile:
    """Returns a trace file ready for windows; kept until the file changes. Arguments as `read_trace` has them.

    Raises:
        UserError: it does not exist, or is malformed.
    """
    try:
        os.stat(path)
    except FileNotFoundError:
        raise missing(path) from None
    except (OSError, ValueError) as error:
        raise UserError(f"trace file '{path}' cannot be read: {getattr(error, 'strerror', error)}") from None
    given = tuple((str(key), str(value)) for key, value in (columns or {}).items() if value is not None)
    return _kept(str(path), format, given, time_unit, version_of(path))


@lru_cache(maxsize=4)
def _kept(path: str, format: str, columns: tuple[tuple[str, str], ...], time_unit: str,
          version: str | None) -> TraceFile:
    return TraceFile(Path(path), format, dict(columns), time_unit)


def _cut(trace: Trace, first_row: int, start_s: float, end_s: float, margin: int) -> tuple[Trace, int]:
    first, last = np.searchsorted(trace.arrival_s, [start_s, end_s], side="left")
    first, last = max(0, int(first) - margin), min(len(trace), int(max(first, last)) + margin)
    return trace.take(slice(first, last)), first_row + first


def _open(path: Path) -> pyarrow.parquet.ParquetFile:
    return pyarrow.parquet.ParquetFile(path, page_checksum_verification=True)


def _time_index(path: Path) -> list[tuple[float, float, int]] | None:
    """Returns (earliest, latest arrival in s, rows) of each row group; None unless they follow each other in time."""
    try:
        with path.open("rb") as file:
            if file.read(4) != b"PAR1":
                return None
        with _open(path) as file:
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
