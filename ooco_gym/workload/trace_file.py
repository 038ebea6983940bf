"""Trace files: reading of a whole file, or of windows.

A Parquet in our schema is read by the row groups of a window; any other file is read once and kept
in memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from ooco_gym import files
from ooco_gym.documents import version_of
from ooco_gym.workload.catalogue import Dataset
from ooco_gym.workload.formats import FORMATS, OWN
from ooco_gym.workload.guesses import LATEST_S, TOLD, UNITS, named
from ooco_gym.workload.reading import file_name, read_whole, trace_of
from ooco_gym.workload.table_reader import BROKEN, read_parquet, unreadable
from ooco_gym.workload.trace import Trace, is_set


def list_formats() -> list[str]:
    return sorted(FORMATS)


def read_trace(path: str | os.PathLike[str], format: str = "auto", *, start_s: float = 0.0, end_s: float = np.inf,
               columns: Mapping[str, str | None] | None = None, time_unit: str = "auto",
               time_scale: float | None = None, block_tokens: int | None = None,
               only: Mapping[str, Any] | None = None, distinct: bool = False, at_once: bool | str = False) -> Trace:
    """Reads a trace from CSV, JSON lines (optionally packed with gzip or xz) or Parquet, recognised
    by content.

    Repairs, each noted in `trace.notes`: requests out of order are sorted by time (stable); zero
    output tokens mean a failed request, which is dropped (not in our own schema); unknown columns
    are dropped.

    Args:
        path: the file.
        format: a name of `list_formats()` (`ooco_gym`: our own schema), or `auto`: by the column
            names.
        start_s: seconds; earlier requests are dropped.
        end_s: seconds; requests at or after it are dropped.
        columns: our column names (docs/traces.md) to the file's, such as `{"class": "qos"}`; other
            columns are looked for under our own names.
        time_unit: `s`, `ms`, `us`, `ns`, `date`, or `auto`: the format's; if it has none, dates are
            recognised, and numbers are seconds.
        time_scale: multiplies arrivals and think times; 2 halves the rate. None: 1.
        block_tokens: prompt tokens per prefix hash; None: the format's, or the file's column, or
            512.
        only: the file's columns to the value, or values, that a row must have to be read.
        distinct: drops rows that equal an earlier one in all columns.
        at_once: all requests of a file without times arrive at 0, offline if it has no classes.

    Returns:
        The trace; times are the file's in seconds, or, for dates, seconds from the first request.

    Raises:
        UserError: the message names file, line, field, the value found and what was expected.
    """
    how = {"columns": columns, "time_unit": time_unit, "time_scale": time_scale, "block_tokens": block_tokens,
           "only": only, "distinct": distinct, "at_once": at_once}
    if start_s > 0 or end_s < np.inf:
        return TraceFile(Path(path), format, **how).window(start_s, end_s)[0]
    return read_whole(Path(path), format, **how)[0]


def read_described(path: Path, dataset: Dataset | None = None, *, format: str = "auto",
                   columns: Mapping[str, str | None] | None = None, **how: Any) -> tuple[Trace, dict[str, str]]:
    """Reads a trace; also returns how it was read, by titles. Other arguments and errors are those
    of `read_trace`.

    Args:
        dataset: gives format and columns if the user does not.
    """
    given = {key: str(value) for key, value in (columns or {}).items() if value is not None}
    if dataset is not None and not given and path.name == dataset.file:
        given, format = dict(dataset.columns), dataset.format if format == "auto" else format
    trace, form, table = read_whole(path, format, columns=given, **how)
    said = {"format": form.name, "times": "dates" if form.unit == "date" else UNITS[form.unit][0],
            "columns": ", ".join(f"{ours}={theirs}" for ours, theirs in form.there(table).items())}
    if trace.prefix_hashes is not None:
        said["prefix hashes"] = f"one for each {trace.block_tokens} prompt tokens"
    return trace, said


class TraceFile:
    """A trace on disk from which windows are read.

    For a Parquet in our schema, sorted by time, only arrivals are kept in memory; the other columns
    are read by the row groups of each window. Any other file is read once and kept.

    Attributes:
        rows: number of requests.
        first_s: first arrival, seconds.
        last_s: last arrival, seconds.
        untimed: whether turns have delays instead of times, so that sessions must be closed.
    """

    def __init__(self, path: Path, format: str = "auto", **how: Any) -> None:
        self.path, self._how, self._whole = path, {"format": format, **how}, None
        plain = format in ("auto", OWN.name) and not is_set(how)
        arrival_s, self.untimed = _in_order(path) if plain else None, False
        if arrival_s is None:
            self._whole, form, table = read_whole(path, **self._how)
            arrival_s, self.untimed = self._whole.arrival_s, form.untimed(table)
        self._arrival_s = arrival_s
        self.rows, self.first_s, self.last_s = len(arrival_s), float(arrival_s[0]), float(arrival_s[-1])

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the path and options only; unpickling opens the file again."""
        return partial(open_trace, **self._how), (str(self.path),)

    @property
    def mean_rate(self) -> float:
        """Requests per second between the first and the last arrival; 0 if that span is empty."""
        span_s = self.last_s - self.first_s
        return (self.rows - 1) / span_s if span_s > 0 else 0.0

    def window(self, start_s: float, end_s: float, margin: int = 0) -> tuple[Trace, int]:
        """Returns the requests with `start_s <= arrival_s < end_s`, and the position of the first in the file's order.

        Args:
            start_s: seconds.
            end_s: seconds.
            margin: number of requests before and after the window to include, as far as they exist.

        Raises:
            UserError: the content read is malformed.
        """
        low, high = (int(row) for row in self.counts_before(np.array([start_s, end_s])))
        low, high = max(0, low - margin), min(self.rows, max(low, high) + margin)
        if self._whole is not None:
            return self._whole.take(slice(low, high)), low
        if low == high:
            return Trace(np.zeros(0), np.zeros(0, np.int32), np.zeros(0, np.int32), name=file_name(self.path)), low
        from_s, to_s = self._arrival_s[low], self._arrival_s[high - 1]
        first = int(self.counts_before(from_s))
        try:
            table = read_parquet(self.path, first, [("arrival_s", ">=", from_s), ("arrival_s", "<=", to_s)])
        except BROKEN as error:
            raise unreadable(self.path, error) from None
        return trace_of(table, OWN).take(slice(low - first, high - first)), low

    def counts_before(self, edges_s: np.ndarray) -> np.ndarray:
        """Returns the number of requests before each time, int64 of the same shape."""
        return np.searchsorted(self._arrival_s, edges_s)


def open_trace(path: str | os.PathLike[str], format: str = "auto", **how: Any) -> TraceFile:
    """Returns a trace file ready for windows, cached until the file changes. Arguments as in `read_trace`.

    Raises:
        UserError: it does not exist, or is malformed.
    """
    try:
        os.stat(path)
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None
    return _kept(str(path), version_of(path), json.dumps({"format": format, **how}, sort_keys=True))


@lru_cache(maxsize=4)
def _kept(path: str, version: str | None, how: str) -> TraceFile:
    return TraceFile(Path(path), **json.loads(how))


def _in_order(path: Path) -> np.ndarray | None:
    """Returns arrivals of a sorted Parquet in our schema, float64[n]; None for a file to read whole."""
    try:
        schema = pyarrow.parquet.read_schema(path)
        numbered = "session" not in schema.names or pa.types.is_signed_integer(schema.field("session").type)
        if not numbered or any(name not in schema.names for name in OWN.required) or any(
                named(name) in TOLD for name in schema.names):
            return None     # session names are numbered over the whole file, and some rows may be no load
        if pa.types.is_temporal(schema.field("arrival_s").type):
            return None
        arrival_s = np.asarray(files.read_parquet(path, columns=["arrival_s"])["arrival_s"], np.float64)
    except (*BROKEN, TypeError):
        return None
    ordered = len(arrival_s) and arrival_s[0] >= 0 and np.isfinite(arrival_s[-1]) and arrival_s[
        -1] < LATEST_S and np.all(arrival_s[1:] >= arrival_s[:-1])
    return arrival_s if ordered else None
