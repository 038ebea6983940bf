"""A piece of a file as a table with checked access.

Every complaint names the file, the place (line of a text file, row of a Parquet file, from 1), the field, what was
found and what was expected.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ooco_gym.errors import UserError

Column = Any  # pyarrow's ChunkedArray, or a plain list where a field's type changes from line to line
Lines = Callable[[], Iterator[tuple[int, str]]]


class Table:
    """Rows of a file in a row, with the way back from a row to its place in the file.

    Args:
        path: the file.
        columns: by name, each of length `rows`.
        rows: how many.
        kind: `csv`, `jsonl` or `parquet`.
        first_row: number of the first of these rows in a Parquet file, from 0.
        lines: gives (number from 1, text) of each line of a text file that these rows come from, header not among them.
    """

    def __init__(self, path: Path, columns: dict[str, Column], rows: int, kind: str, first_row: int = 0,
                 lines: Lines | None = None) -> None:
        self.path, self.columns, self.rows, self.kind = path, columns, rows, kind
        self._first_row, self._lines = first_row, lines

    def error(self, row: int, field: str, expected: str, found: object = None) -> UserError:
        """Builds the complaint about one field of one row (from 0); `found` is looked up in the file unless given."""
        if found is None:
            found = self._found(row, field)
        again = " (the header again, as where two files were joined: remove that line)" * (found == repr(field))
        return UserError(f"trace file '{self.path}', {self.place(row)}, field '{field}': found {found}{again}, "
                         f"expected {expected}")

    def demand(self, good: np.ndarray, field: str, expected: str) -> None:
        """Raises UserError for the first row in which `good` (bool[rows]) is False."""
        if not good.all():
            raise self.error(int(np.argmin(good)), field, expected)

    def numbers(self, field: str, expected: str, missing: float | None = None) -> np.ndarray:
        """Returns a column as float64[rows]; nulls become `missing`, or are an error where it is None."""
        column = self.columns[field]
        if isinstance(column, pa.ChunkedArray) and _is_numeric(column.type):
            if missing is None:
                self.demand(_valid(column), field, expected)
            values = column.cast(pa.float64(), safe=False)
            return values.fill_null(missing).to_numpy() if missing is not None else values.to_numpy()
        return np.array([self._number(row, field, value, expected, missing)
                         for row, value in enumerate(_listed(column))], dtype=np.float64)

    def integers(self, field: str, expected: str, minimum: int, maximum: int, missing: int | None = None) -> np.ndarray:
        """Returns a column as int64[rows], each whole and within the limits (or `missing`)."""
        column = self.columns[field]
        if isinstance(column, pa.ChunkedArray) and pa.types.is_signed_integer(column.type):
            if missing is None:
                self.demand(_valid(column), field, expected)
            values = (column if missing is None else column.cast(pa.int64()).fill_null(missing)).to_numpy()
        else:
            values = self.numbers(field, expected, None if missing is None else float(missing))
            whole = np.isfinite(values) & (np.abs(values) < 2.0**63)
            whole &= values == np.rint(np.where(whole, values, 0.0))
            self.demand(whole, field, expected)
        good = (values >= minimum) & (values <= maximum)
        self.demand(good if missing is None else good | (values == missing), field, expected)
        return values.astype(np.int64)

    def texts(self, field: str) -> list[str | None]:
        """Returns a column as text; an empty field is None."""
        return [None if value is None or value == "" else str(value).strip() for value in _listed(self.columns[field])]

    def holds_dates(self, field: str) -> bool:
        """Tells whether a column holds dates (as such or as text) rather than numbers."""
        column = self.columns[field]
        if isinstance(column, pa.ChunkedArray) and not (pa.types.is_string(column.type)
                                                        or pa.types.is_large_string(column.type)):
            return bool(pa.types.is_temporal(column.type))
        first = next((value for value in _listed(column) if value not in (None, "")), "")
        try:
            float(first)
        except (TypeError, ValueError):
            return isinstance(first, str) and any(mark in first for mark in "-:/")
        return False

    def timestamps_ns(self, field: str, expected: str) -> np.ndarray:
        """Returns a column of dates with times as int64[rows] nanoseconds since 1970."""
        column = self.columns[field]
        try:
            column = column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([pa.array(column)])
            if _is_numeric(column.type) or pa.types.is_boolean(column.type):
                raise self.error(0, field, expected)
            zone = column.type.tz if pa.types.is_timestamp(column.type) else None
            self.demand(_valid(column), field, expected)
            return column.cast(pa.timestamp("ns", zone)).cast(pa.int64()).to_numpy()
        except pa.ArrowException:
            return np.array([self._moment(row, field, value, expected)
                             for row, value in enumerate(_listed(column))], dtype=np.int64)

    def integer_lists(self, field: str, expected: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns a column of lists (in CSV: numbers with blanks between) as (offsets int64[rows+1], values int64)."""
        column = self.columns[field]
        if isinstance(column, pa.ChunkedArray) and pa.types.is_list(column.type):
            array = column.combine_chunks()
            inner = array.flatten()
            if pa.types.is_signed_integer(inner.type) and inner.null_count == 0:
                counts = pc.call_function("list_value_length", [array]).fill_null(0).to_numpy(zero_copy_only=False)
                return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), inner.cast(pa.int64()).to_numpy()
        lists = [self._integers(row, field, value, expected) for row, value in enumerate(_listed(column))]
        offsets = np.concatenate([[0], np.cumsum([len(item) for item in lists])]).astype(np.int64)
        return offsets, np.array([number for item in lists for number in item], dtype=np.int64)

    def _integers(self, row: int, field: str, value: Any, expected: str) -> list[int]:
        try:
            numbers = [int(part) for part in value.split()] if isinstance(value, str) else list(value or [])
        except (ValueError, TypeError):
            raise self.error(row, field, expected, repr(value)) from None
        if not all(isinstance(item, int) and not isinstance(item, bool) and -(2**63) <= item < 2**63
                   for item in numbers):
            raise self.error(row, field, expected, repr(value))
        return numbers

    def _number(self, row: int, field: str, value: Any, expected: str, missing: float | None) -> float:
        if value is None or value == "":
            if missing is None:
                raise self.error(row, field, expected)
            return missing
        try:
            if isinstance(value, bool) or not isinstance(value, (int, float, str)) or "_" in str(value):
                raise ValueError
            return float(value)
        except (ValueError, OverflowError):
            raise self.error(row, field, expected, _shown(value)) from None

    def _moment(self, row: int, field: str, value: Any, expected: str) -> int:
        try:
            return int(pa.scalar(value).cast(pa.timestamp("ns")).cast(pa.int64()).as_py())
        except (pa.ArrowException, TypeError, ValueError):
            raise self.error(row, field, expected, _shown(value)) from None

    def place(self, row: int) -> str:
        """Returns where a row (from 0) is in the file, for messages: `line 5`, or `row 4` where there are no lines."""
        line = self._line(row)
        return f"row {self._first_row + row + 1}" if line is None else f"line {line[0]}"

    def _line(self, row: int) -> tuple[int, str] | None:
        if self._lines is None:
            return None
        lines = [line for line in self._lines() if (line[1] if self.kind == "csv" else line[1].strip())]
        return lines[row] if len(lines) == self.rows else None

    def _found(self, row: int, field: str) -> str:
        line = self._line(row) if self.kind == "csv" else None
        if line is not None:
            cells = next(csv.reader([line[1]]), [])
            position = list(self.columns).index(field)
            if position < len(cells):
                return _shown(cells[position])
        return _shown(_listed(self.columns[field])[row])


def _is_numeric(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def _valid(column: pa.ChunkedArray) -> np.ndarray:
    return column.is_valid().to_numpy()


def _listed(column: Column) -> Sequence[Any]:
    return column if isinstance(column, list) else column.to_pylist()


def _shown(value: object) -> str:
    if value is None or value == "":
        return "nothing"
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
