"""Reading traces of any known format: whole files, or windows of them.

A file becomes a `Table` of columns, these become checked `Requests` as a `TraceFormat` says, and these a `Trace` with
an account of what was repaired and what looks odd.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ooco_gym.documents import version_of
from ooco_gym.errors import UserError
from ooco_gym.workload.catalogue import Dataset
from ooco_gym.workload.classes import CLASS_WORDS
from ooco_gym.workload.columns import Requests, read_columns
from ooco_gym.workload.formats import FORMATS, OWN, UNITS, TraceFormat, check_format, few, format_of, similar
from ooco_gym.workload.sessions import previous_turns
from ooco_gym.workload.table_reader import BROKEN, Table, missing, open_parquet, parquet_table, read_table, unreadable
from ooco_gym.workload.trace import DEFAULT_CLASSES, MOST_CLASSES, Trace
from ooco_gym.workload.unfolding import FORMS

LONGEST_USUAL = 1_000_000
SPARSE_S, DENSE_S = 20.0, 5e-3      # mean gaps beyond which a unit is doubted
FEWEST_TO_DOUBT = 20    # of fewer only gaps of days
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
        format: a name of `list_formats()` (`ooco_gym`: our own schema), or `auto`: by the column names.
        start_s: seconds; requests before it are left out.
        end_s: seconds; requests at or after it are left out.
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
    return _trace_of(table, format_of(table, format, columns, time_unit, block_tokens))


def read_described(path: Path, format: str = "auto", columns: Mapping[str, str | None] | None = None,
                   time_unit: str = "auto", dataset: Dataset | None = None,
                   block_tokens: int | None = None) -> tuple[Trace, dict[str, str]]:
    """Reads a trace, and says how it was read: five lines by their titles; arguments and errors as of `read_trace`.

    Args:
        dataset: says format and columns where the user does not.
    """
    given = {key: str(value) for key, value in (columns or {}).items() if value is not None}
    if dataset is not None and not given and path.name == dataset.file:
        given, format = dict(dataset.columns), dataset.format if format == "auto" else format
    table = read_table(path)
    form = format_of(table, format, given, time_unit, block_tokens)
    trace = _trace_of(table, form)
    said = {"format": format != "auto" or bool(given), "times": time_unit != "auto", "block": block_tokens is not None}
    return trace, _account(table, form, trace, said)


def _account(table: Table, form: TraceFormat, trace: Trace, said: Mapping[str, bool]) -> dict[str, str]:
    """How a file was read, for one who does not know it: format, times, hashes, sessions, what was assumed."""
    there, assumed = form.there(table), []
    unit = "dates" if form.unit == "date" else UNITS[form.unit][0]
    if not said["times"] and form.unit != "date":
        assumed.append(f"times are {unit}" + (", as the format has them" if form.name in FORMATS else ""))
    sessions = f"column '{there['session']}'" if "session" in there else "none"
    if form.parent in table.columns:
        sessions += f", each with the one that '{form.parent}' names"
    waits = next((there[name] for name in ("think_s", "end_s", "elapsed_s") if name in there), "")
    if waits and trace.session is not None:
        sessions += f", think times by '{waits}'"
    hashes = "none"
    if trace.prefix_hashes is not None:
        hashes = f"column '{there['prefix_hashes']}', one for each {trace.block_tokens} tokens of the prompt"
        if not said["block"] and "block_tokens" not in there:
            assumed.append(f"{trace.block_tokens} tokens to a hash, which fits every row")
    if "class" not in there:
        assumed.append("all requests are online")
    return {"format": form.name + ("" if said["format"] else ", by the names of the columns"),
            "times": f"column '{there['arrival_s']}', {unit}", "prefix hashes": hashes, "sessions in": sessions,
            "assumed": "; ".join(assumed) or "nothing"}


# --- Checked requests become a trace ----------------------------------------------------------------------------------
def _trace_of(table: Table, form: TraceFormat) -> Trace:
    """The trace that a file's columns hold, repairs and refusals as `read_trace` has them."""
    _check_columns(table, form)
    if table.rows == 0:
        raise UserError(f"trace file '{table.path}' holds no request")
    try:
        requests = read_columns(table, form)
    except (pa.ArrowException, UnicodeError) as error:  # as where a Parquet's content is corrupt
        raise unreadable(table.path, error) from None
    requests, checked = _without_failed(table, requests)
    ticks = requests.columns["tick"]
    notes: list[str] = []
    origin = form.origin(ticks.min())
    if origin:
        kind = "times" if form.unit == "date" else "times since 1970: they"
        notes.append(f"{kind} count from the first request")
    notes += [*_doubts(ticks, form, bool(origin)), *_unread(table, form), *checked]
    late = int(np.count_nonzero(ticks[1:] < ticks[:-1]))
    if late:
        notes.append(f"sorted by time: {late} of {len(ticks)} requests were earlier than the one before")
        requests = requests.take(np.argsort(ticks, kind="stable"))
    found: dict[str, Any] = dict(requests.columns)
    if requests.class_names:
        found["online"] = np.array([one != "offline" for one in requests.class_names], bool)[found["class_id"]]
        if set(requests.class_names) <= set(DEFAULT_CLASSES):
            del found["class_id"]
        else:
            found["class_names"] = requests.class_names
    if "end" in found:
        told = found.get("think_s", np.full(len(found["tick"]), np.nan))
        thought = _thought(found["tick"], found.pop("end"), found.get("session"), form.per_second)
        found["think_s"] = np.where(np.isnan(told), thought, told)
    return Trace((found.pop("tick") - origin) / form.per_second, **found, prefix_hashes=requests.hashes,
                 block_tokens=requests.block_tokens, name=_name(table.path), notes=tuple(notes))


def _thought(ticks: np.ndarray, ends: np.ndarray, session: np.ndarray | None, per_second: float) -> np.ndarray:
    """Seconds from the end of each session's turn before to a request's arrival, at least 0; NaN of first turns."""
    if session is None:
        return np.full(len(ticks), np.nan)
    previous, _ = previous_turns(session)
    return np.where(previous >= 0, np.maximum(ticks - ends[previous], 0) / per_second, np.nan)


def _name(path: Path) -> str:
    return path.name.split(".")[0]


def _without_failed(table: Table, requests: Requests) -> tuple[Requests, list[str]]:
    """The requests with output tokens, and what there is to say of the lengths of all."""
    notes, failed = [], requests.columns["output_tokens"] == 0
    longest = np.maximum(requests.columns["prompt_tokens"], requests.columns["output_tokens"])
    long = longest > LONGEST_USUAL
    if long.any():
        row = int(np.argmax(long))
        notes.append(f"suspicious lengths: {long.sum()} of {table.rows} requests have more than {LONGEST_USUAL:,} "
                     f"tokens, the first {longest[row]:,} at {table.place(row)}; are they characters or bytes?")
    if failed.all():
        raise UserError(f"trace file '{table.path}' holds no request with output tokens")
    if failed.any():
        notes.append(f"dropped {failed.sum()} of {table.rows} requests with zero output tokens (failed), the first at "
                     f"{table.place(int(np.argmax(failed)))}")
        requests = requests.take(np.flatnonzero(~failed))
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
    if len(ticks) < 2 or form.unit == "date" or form.name in FORMS:  # what nested forms count in is sure
        return []
    doubts, order = [], list(UNITS)
    here, word = order.index(form.unit), UNITS[form.unit][0]
    first_s, last_s = ticks.min() / form.per_second, ticks.max() / form.per_second
    gap_s = (last_s - first_s) / (len(ticks) - 1)
    whole, few = bool(np.all(ticks == np.rint(ticks))), len(ticks) <= FEWEST_TO_DOUBT
    if not few and not moved and first_s > LATE_S and last_s - first_s < first_s / 10:
        doubts.append(f"the first request arrives at {first_s:.6g} s: if times should count from it, or are in "
                      "another unit, import the file with columns.arrival_s=NAME and time_unit=…")
    if gap_s >= (LATE_S if few else SPARSE_S) and here + 1 < len(order) and whole:
        unit = next((one for one in order[here + 1:] if gap_s * form.per_second < SPARSE_S * UNITS[one][1]), order[-1])
        doubts.append(f"all times are whole numbers, and read as {word} the mean gap is {gap_s:.4g} s: if they are "
                      f"{UNITS[unit][0]}, import the file with time_unit={unit}")
    elif here > 0 and gap_s > 0 and ((gap_s < DENSE_S and not few) or (form.name == "mooncake" and not whole)):
        unit = order[here - 1]
        doubts.append(f"read as {word} there are {1 / gap_s:,.4g} requests a second"
                      f"{'' if whole else ', at fractions of one'}: if the times are "
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

    Of a Parquet in our schema that is in order of time, arrivals are read and kept, and of the rest the row groups that
    reach into a window. Anything else is read once and kept.

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
        ordered, self._whole = _in_order(path) if streamed else None, None
        if ordered is None:
            self._whole = read_trace(path, format, columns=columns, time_unit=time_unit, block_tokens=block_tokens)
            ordered = self._whole.arrival_s, np.zeros(1, np.int64)
        self._arrival_s, self._starts = ordered
        self.rows, self.first_s, self.last_s = (len(self._arrival_s), float(self._arrival_s[0]),
                                                float(self._arrival_s[-1]))

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
        low, high = (int(row) for row in self.counts_before(np.array([start_s, end_s])))
        low, high = max(0, low - margin), min(self.rows, max(low, high) + margin)
        if self._whole is not None:
            return self._whole.take(slice(low, high)), low
        if low == high:
            return Trace(np.zeros(0), np.zeros(0, np.int32), np.zeros(0, np.int32), name=_name(self.path)), low
        groups = range(int(np.searchsorted(self._starts, low, "right")) - 1, int(np.searchsorted(self._starts, high)))
        try:
            with open_parquet(self.path) as file:
                table = file.read_row_groups(list(groups))
        except BROKEN as error:
            raise unreadable(self.path, error) from None
        self.groups_read += len(groups)
        first = int(self._starts[groups.start])
        return _trace_of(parquet_table(self.path, table, first), OWN).take(slice(low - first, high - first)), low

    def counts_before(self, edges_s: np.ndarray) -> np.ndarray:
        """Returns how many requests arrive before each time, int64 of the same shape."""
        return np.searchsorted(self._arrival_s, edges_s)


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


def _in_order(path: Path) -> tuple[np.ndarray, np.ndarray] | None:
    """(Arrivals of a Parquet in our schema, float64[n] sorted, the row at which each row group begins); None of any
    other file: the reader says what is wrong."""
    try:
        with open_parquet(path) as file:
            names, schema = file.schema_arrow.names, file.schema_arrow
            if any(name not in names for name in OWN.required) or not file.metadata.num_rows:
                return None
            if "session" in names and not pa.types.is_signed_integer(schema.field("session").type):
                return None     # names, to which only the whole file gives numbers
            arrival_s = np.asarray(file.read(["arrival_s"])["arrival_s"], np.float64)
            sizes = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
    except (*BROKEN, TypeError):
        return None
    ordered = np.isfinite(arrival_s).all() and arrival_s[0] >= 0 and np.all(arrival_s[1:] >= arrival_s[:-1])
    return (arrival_s, np.concatenate([[0], np.cumsum(sizes)[:-1]])) if ordered else None
