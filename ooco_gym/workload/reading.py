"""Reading traces of any known format: whole files, or windows of them (row groups of a Parquet by their statistics)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as settled
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ooco_gym.documents import version_of
from ooco_gym.errors import UserError
from ooco_gym.workload.catalogue import Dataset
from ooco_gym.workload.classes import CLASS_WORDS
from ooco_gym.workload.formats import FORMATS, OWN, UNITS, TraceFormat, check_format, few, format_of, similar
from ooco_gym.workload.table_reader import BROKEN, Table, missing, open_parquet, parquet_table, read_table, unreadable
from ooco_gym.workload.trace import DEFAULT_CLASSES, MOST_CLASSES, NO_SESSION, SECONDS, Trace, check_class_count

LONGEST_USUAL = 1_000_000
SPARSE_S, DENSE_S = 20.0, 5e-3      # mean gaps beyond which a unit is doubted
FEWEST_TO_DOUBT = 20
LOOKED_AT = 10_000      # values of a column that is not read
LATE_S = 1e6            # eleven days: a trace that begins so late counts from somewhere else


def list_formats() -> list[str]:
    """Returns the names of the known formats."""
    return sorted(FORMATS)


def read_trace(path: str | os.PathLike[str], format: str = "auto", *, start_s: float = 0.0, end_s: float = np.inf,
               columns: Mapping[str, str | None] | None = None, time_unit: str = "auto",
               block_tokens: int | None = None) -> Trace:
    """Reads a trace from CSV, JSON lines (packed with gzip or xz, or not) or Parquet, as is seen from its content.

    Documented repairs, each noted in `trace.notes`: requests out of order are sorted by time (stable); in formats of
    others, requests with zero output tokens (failed ones) are dropped; columns that we do not know are left out.

    Args:
        path: the file.
        format: `ooco_gym` (our own schema), `azure`, `bailian`, `burstgpt`, `mooncake`, or `auto`: by the column names.
        start_s: seconds; requests before it are left out.
        end_s: seconds; requests at or after it are left out. Of a Parquet in our schema whose row groups follow each
            other in time (what `write_trace` and `ooco-gym data import` write), only those that reach into
            `[start_s, end_s)` are read.
        columns: our column names (docs/traces.md) to the file's, such as `{"class": "qos"}`; what is not named is
            looked for under our own name.
        time_unit: `s`, `ms`, `us`, `ns`, `date`, or `auto`: the format's; without one dates are recognised, and
            numbers are seconds.
        block_tokens: tokens of the prompt to each prefix hash; None: the format's, or the file's column, or 512.

    Returns:
        The trace; times as the file has them in seconds, from the first request where the file has dates.

    Raises:
        UserError: one sentence naming file, line, field, what was found and what was expected.
    """
    if start_s > 0 or end_s < np.inf:
        return TraceFile(Path(path), format, columns, time_unit, block_tokens).window(start_s, end_s)[0]
    table = read_table(Path(path))
    form = format_of(table, format, columns, time_unit, block_tokens=block_tokens)
    if "arrival_s" not in form.columns:
        raise UserError(f"trace file '{path}': which column holds the arrivals? Expected columns.arrival_s=NAME beside "
                        f"{', '.join(f'columns.{key}={name}' for key, name in form.columns.items())}")
    return trace_of(table, form)


@dataclass(frozen=True)
class Sample:
    """What a file says of a workload: a whole trace, or only lengths; at least one field is not None.

    Attributes:
        name: for messages and reports.
        trace: the whole requests, or None where there are only lengths.
        prompt_tokens: int64[n], >= 1, or None.
        output_tokens: int64[n], >= 1, or None.
        notes: repairs and drops, one sentence each.
        read: how the file was read, five lines by their titles; empty of what is no file.
    """

    name: str
    trace: Trace | None
    prompt_tokens: np.ndarray | None
    output_tokens: np.ndarray | None
    notes: tuple[str, ...] = ()
    read: Mapping[str, str] = settled(default_factory=dict)

    @classmethod
    def of(cls, trace: Trace, read: Mapping[str, str] | None = None) -> Sample:
        """Returns a trace as a sample."""
        return cls(trace.name, trace, trace.prompt_tokens, trace.output_tokens, trace.notes, read or {})

    @property
    def requests(self) -> int:
        """How many."""
        return len(next(x for x in (self.prompt_tokens, self.output_tokens) if x is not None))


def read_sample(path: Path, format: str = "auto", columns: Mapping[str, str | None] | None = None,
                time_unit: str = "auto", dataset: Dataset | None = None, block_tokens: int | None = None) -> Sample:
    """Reads a trace, or without arrivals a set of lengths; arguments are as `read_trace` takes them.

    Args:
        dataset: says format and columns where the user does not.

    Raises:
        UserError: an unknown name, or whatever `read_trace` refuses.
    """
    given = {key: str(value) for key, value in (columns or {}).items() if value is not None}
    if dataset is not None and not given and path.name == dataset.file:
        given, format = dict(dataset.columns), dataset.format if format == "auto" else format
    table = read_table(path)
    form = format_of(table, format, given, time_unit, lengths=True, block_tokens=block_tokens)
    if "arrival_s" in form.columns:
        trace = trace_of(table, form)
        said = {"format": format != "auto" or bool(given), "times": time_unit != "auto"}
        return Sample.of(trace, _account(table, form, trace, said, block_tokens is not None))
    requests, notes = checked(table, form)
    prompt, output = (requests[name].to_numpy() if name in requests.column_names else None
                      for name in ("prompt_tokens", "output_tokens"))
    return Sample(path.name.split(".")[0], None, prompt, output,
                  ("lengths only: the file has no arrivals", *_unread(table, form), *notes))


def _account(table: Table, form: TraceFormat, trace: Trace, said: Mapping[str, bool], block: bool) -> dict[str, str]:
    """Returns how a file was read, for one who does not know it: format, times, hashes, sessions, what was assumed."""
    there, assumed = form.there(table), []
    unit = "dates" if form.unit == "date" else UNITS[form.unit][0]
    if not said["times"] and form.unit != "date":
        assumed.append(f"times are {unit}" + (", as the format has them" if form.name in FORMATS else ""))
    hashes = "none"
    if trace.prefix_hashes is not None:
        hashes = f"column '{there['prefix_hashes']}', one for each {trace.block_tokens} tokens of the prompt"
        if not block and "block_tokens" not in there:
            assumed.append(f"{trace.block_tokens} tokens to a hash, which fits every row")
    if "class" not in there:
        assumed.append("all requests are online")
    sessions = f"column '{there['session']}'" if "session" in there else "none"
    if form.parent in table.columns:
        sessions += f", each with the one that '{form.parent}' names"
    return {"format": form.name + ("" if said["format"] else ", by the names of the columns"),
            "times": f"column '{there['arrival_s']}', {unit}", "prefix hashes": hashes, "sessions in": sessions,
            "assumed": "; ".join(assumed) or "nothing"}


# --- A file's columns become checked requests, with an account of what was repaired and what looks odd ---------------
def trace_of(table: Table, form: TraceFormat) -> Trace:
    """Returns the trace that a file's columns hold, repairs and refusals as `read_trace` has them."""
    requests, dropped = checked(table, form)
    ticks = requests["tick"].to_numpy()
    notes: list[str] = []
    origin = form.origin(ticks.min())
    if origin:
        kind = "times" if form.unit == "date" else "times since 1970: they"
        notes.append(f"{kind} count from the first request")
    notes += [*_doubts(ticks, form, bool(origin)), *_unread(table, form), *dropped]
    late = int(np.count_nonzero(ticks[1:] < ticks[:-1]))
    if late:
        notes.append(f"sorted by time: {late} of {len(ticks)} requests were earlier than the one before")
        order = np.argsort(ticks, kind="stable")
        requests, ticks = requests.take(pa.array(order)), ticks[order]
    more: dict[str, Any] = {}
    for field, none in (*((field, np.nan) for field in SECONDS), ("session", NO_SESSION)):
        if field in requests.column_names:
            more[field] = requests[field].fill_null(none).to_numpy()
    if "prefix_hashes" in requests.column_names:
        lists = requests["prefix_hashes"].combine_chunks()
        counts = pc.call_function("list_value_length", [lists]).fill_null(0).to_numpy(zero_copy_only=False)
        more["block_tokens"] = requests["block_tokens"][0].as_py()
        more["prefix_hashes"] = (np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
                                 lists.flatten().to_numpy(zero_copy_only=False))
    if "class" in requests.column_names:
        classes = requests["class"].combine_chunks().dictionary_encode()
        names, ids = tuple(classes.dictionary.to_pylist()), classes.indices.to_numpy(zero_copy_only=False)
        check_class_count(names)
        more["online"] = np.array([one != "offline" for one in names], bool)[ids]
        if not set(names) <= set(DEFAULT_CLASSES):
            more |= {"class_id": ids.astype(np.int8), "class_names": names}
    lengths = (requests[field].to_numpy() for field in ("prompt_tokens", "output_tokens"))
    return Trace((ticks - origin if origin else ticks) / form.per_second, *lengths, name=table.path.name.split(".")[0],
                 notes=tuple(notes), **more)


def checked(table: Table, form: TraceFormat) -> tuple[pa.Table, list[str]]:
    """Returns the requests of a file (`TraceFormat.read`) in its order without failed ones, and what there is to say.

    Raises:
        UserError: a column is missing, a value is impossible, or there is no request.
    """
    _check_columns(table, form)
    if table.rows == 0:
        raise UserError(f"trace file '{table.path}' holds no request")
    try:
        requests = form.read(table)
    except (pa.ArrowException, UnicodeError) as error:  # as where a Parquet's content is corrupt
        raise unreadable(table.path, error) from None
    lengths = [requests[name].to_numpy() for name in ("prompt_tokens", "output_tokens") if name in
               requests.column_names]
    notes, longest = [], np.max(lengths, axis=0)
    long, failed = longest > LONGEST_USUAL, lengths[-1] == 0
    if long.any():
        row = int(np.argmax(long))
        notes.append(f"suspicious lengths: {long.sum()} of {table.rows} requests have more than {LONGEST_USUAL:,} "
                     f"tokens, the first {longest[row]:,} at {table.place(row)}; are they characters or bytes?")
    if failed.all():
        raise UserError(f"trace file '{table.path}' holds no request with output tokens")
    if failed.any():
        notes.append(f"dropped {failed.sum()} of {table.rows} requests with zero output tokens (failed), the first at "
                     f"{table.place(int(np.argmax(failed)))}")
        requests = requests.filter(pa.array(~failed))
    return requests, notes


def _check_columns(table: Table, form: TraceFormat) -> None:
    known, names = {*form.columns.values(), *form.unused}, list(table.columns)
    for column in form.required:
        if column in names:
            continue
        trouble = ""
        if len(names) == 1:
            mark = next((mark for mark in ";\t|" if names[0].count(mark) >= 2), None)
            trouble = f"; the header holds {mark!r}: expected commas between columns" if mark else ""
        elif names and all(name[:1].isdigit() or name[:1] == "-" for name in names):
            trouble = "; the first line looks like a request: expected a line with the columns' names before it"
        if not trouble and form.own:
            trouble = (f"; say which of them it is: columns.{column}=NAME (of a file that is played, "
                       f"workload.columns.{column}=NAME)")
        close = similar(column, [name for name in names if name not in known])
        raise UserError(f"trace file '{table.path}' has no column '{column}'{close}; format '{form.name}' needs: "
                        f"{', '.join(form.required)}; found: {few(names)}{trouble}")


def _doubts(ticks: np.ndarray, form: TraceFormat, moved: bool) -> list[str]:
    """What is said of times whose unit looks like another one."""
    if len(ticks) <= FEWEST_TO_DOUBT or form.unit == "date":
        return []
    doubts, order = [], list(UNITS)
    here, word = order.index(form.unit), UNITS[form.unit][0]
    first_s, last_s = ticks.min() / form.per_second, ticks.max() / form.per_second
    gap_s = (last_s - first_s) / (len(ticks) - 1)
    if not moved and first_s > LATE_S and last_s - first_s < first_s / 10:
        doubts.append(f"the first request arrives at {first_s:.6g} s: if times should count from it, or are in "
                      "another unit, import the file with columns.arrival_s=NAME and time_unit=…")
    if gap_s >= SPARSE_S and here + 1 < len(order) and np.all(ticks == np.rint(ticks)):
        unit = order[min(here + (1 if gap_s < 1e3 * SPARSE_S else 2), len(order) - 1)]
        doubts.append(f"all times are whole numbers, and read as {word} the mean gap is {gap_s:.4g} s: if they are "
                      f"{UNITS[unit][0]}, import the file with time_unit={unit}")
    elif 0 < gap_s < DENSE_S and here > 0:
        unit = order[here - 1]
        doubts.append(f"read as {word} there are {1 / gap_s:,.4g} requests a second: if the times are "
                      f"{UNITS[unit][0]}, import the file with time_unit={unit}")
    return doubts


def _unread(table: Table, form: TraceFormat) -> list[str]:
    """What is said of columns that are left out, and first of those among them that look like classes of requests."""
    read, notes = form.there(table), []
    left_out = [name for name in table.columns if name not in read.values() and name not in form.unused]
    for name in left_out if "class" not in read else ():
        column = table.columns[name]
        if not pa.types.is_string(column.type):
            continue
        values = sorted(str(value) for value in column[:LOOKED_AT].drop_null().unique().to_pylist())
        if len(values) <= MOST_CLASSES and any(one.casefold() in CLASS_WORDS for one in values):
            notes.append(f"warning: column '{name}' looks like classes of requests ({few(values)}) and is not read: "
                         f"all requests count as online; columns.class={name} reads it (of a file that is played, "
                         f"workload.columns.class={name})")
    return [*notes, *([f"columns left out: {few(left_out)}"] if left_out else [])]


# --- Windows of a file ------------------------------------------------------------------------------------------------
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
                 time_unit: str = "auto", block_tokens: int | None = None) -> None:
        check_format(format)
        self.path, self.groups_read, self._how = path, 0, (format, columns or None, time_unit, block_tokens)
        streamed = format in ("auto", OWN.name) and self._how[1:] == (None, "auto", None)
        self._groups = _time_index(path) if streamed else None
        self._whole: Trace | None = None
        if self._groups is None:
            self._whole = read_trace(path, format, columns=columns, time_unit=time_unit, block_tokens=block_tokens)
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
        trace, first_row = self._whole, 0
        if self._groups is not None:
            first, last = 0, len(self._groups)
            while first < last and self._groups[first][1] < start_s:
                first += 1
            while last > first and self._groups[last - 1][0] >= end_s:
                last -= 1
            if margin:
                first, last = max(0, first - 1), min(len(self._groups), last + 1)
            trace, first_row = self._read(first, last), int(self._starts[first])
        assert trace is not None
        low, high = np.searchsorted(trace.arrival_s, [start_s, end_s], side="left")
        low, high = max(0, int(low) - margin), min(len(trace), int(max(low, high)) + margin)
        return trace.take(slice(low, high)), first_row + low

    def counts_before(self, edges_s: np.ndarray) -> np.ndarray:
        """Returns how many requests arrive before each time, int64 of the same shape; reads the arrivals only."""
        if self._whole is not None:
            return np.searchsorted(self._whole.arrival_s, edges_s)
        counts = np.zeros(edges_s.shape, np.int64)
        try:
            with open_parquet(self.path) as file:
                for batch in file.iter_batches(columns=["arrival_s"]):
                    counts += np.searchsorted(np.sort(batch["arrival_s"].to_numpy(zero_copy_only=False)), edges_s)
        except BROKEN as error:
            raise unreadable(self.path, error) from None
        return counts

    def _read(self, first: int, last: int) -> Trace:
        if first == last:
            return Trace(np.zeros(0), np.zeros(0, np.int32), np.zeros(0, np.int32), name=self.path.name.split(".")[0])
        try:
            with open_parquet(self.path) as file:
                table = file.read_row_groups(list(range(first, last)))
        except BROKEN as error:
            raise unreadable(self.path, error) from None
        self.groups_read += last - first
        return trace_of(parquet_table(self.path, table, int(self._starts[first])), OWN)


def open_trace(path: str | os.PathLike[str], format: str = "auto", columns: Mapping[str, str | None] | None = None,
               time_unit: str = "auto", block_tokens: int | None = None) -> TraceFile:
    """Returns a trace file ready for windows; kept until the file changes. Arguments as `read_trace` has them.

    Raises:
        UserError: it does not exist, or is malformed.
    """
    try:
        os.stat(path)
    except FileNotFoundError:
        raise missing(path) from None
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None
    given = tuple((str(key), str(value)) for key, value in (columns or {}).items() if value is not None)
    return _kept(str(path), format, given, time_unit, block_tokens, version_of(path))


@lru_cache(maxsize=4)
def _kept(path: str, format: str, columns: tuple[tuple[str, str], ...], time_unit: str, block_tokens: int | None,
          version: str | None) -> TraceFile:
    return TraceFile(Path(path), format, dict(columns), time_unit, block_tokens)


def _time_index(path: Path) -> list[tuple[float, float, int]] | None:
    """Returns (earliest, latest arrival in s, rows) of each row group; None unless they follow each other in time."""
    groups: list[tuple[float, float, int]] = []
    try:
        with open_parquet(path) as file:
            names = file.schema_arrow.names
            if any(name not in names for name in OWN.required):
                return None
            if "session" in names and not pa.types.is_signed_integer(file.schema_arrow.field("session").type):
                return None     # names, to which only the whole file gives numbers
            for group in (file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)):
                columns = (group.column(i) for i in range(group.num_columns))
                found = next(one.statistics for one in columns if one.path_in_schema == "arrival_s")
                if found is None or not found.has_min_max or found.null_count or not group.num_rows:
                    return None
                groups.append((float(found.min), float(found.max), group.num_rows))
    except (*BROKEN, TypeError):
        return None     # no Parquet, or a broken one: the reader says what is wrong
    if not groups or any(before[1] > after[0] for before, after in pairwise(groups)):
        return None
    return groups if groups[0][0] >= 0 and np.isfinite(groups[-1][1]) else None
