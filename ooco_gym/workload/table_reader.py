"""Files in pieces: CSV, JSON lines or Parquet (gzip allowed on the first two), recognised by content.

pyarrow reads CSV, as text, and Parquet; JSON lines are read line by line. A piece is some 16 MB of text or a quarter of
a million rows of Parquet: what a file of any size takes of memory. Lines are not counted: where a value is wrong,
its line is looked up in the file.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import json
import math
import os
import reprlib
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, count, dropwhile, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from ooco_gym.errors import UserError, nearest
from ooco_gym.workload.trace import ENDINGS

Column = Any  # a pyarrow Array, or a plain list where a field's type changes from line to line
PIECE_BYTES = 1 << 24
PIECE_ROWS = 1 << 18
LONGEST_LINE = 1 << 26
_PACKED = {b"PK\x03\x04": "a ZIP archive", b"\x28\xb5\x2f\xfd": "packed with Zstandard", b"BZh": "packed with bzip2",
           b"\xfd7zXZ": "packed with xz", b"\x1f\x8b": "gzipped twice", b"PAR1": "a gzipped Parquet"}
BROKEN = (pa.ArrowException, OSError, EOFError, zlib.error, UnicodeError, ValueError, csv.Error)


class Table:
    """Rows of a file in a row, with the way back from a row to its place in the file.

    Args:
        path: the file.
        columns: by name, each of length `rows`.
        rows: how many.
        kind: `csv`, `jsonl` or `parquet`.
        first_row: number of the first of these rows in the file, from 0.
    """

    def __init__(self, path: Path, columns: dict[str, Column], rows: int, kind: str, first_row: int = 0) -> None:
        self.path, self.columns, self.rows, self.kind, self._first_row = path, columns, rows, kind, first_row

    def error(self, row: int, field: str, expected: str) -> UserError:
        """Builds the complaint about one field of one row (from 0)."""
        found = _shown(self._found(row, field))
        again = " (the header again, as where two files were joined: remove that line)" * (found == repr(field))
        return UserError(f"trace file '{self.path}', {self.place(row)}, field '{field}': found {found}{again}, "
                         f"expected {expected}")

    def demand(self, good: np.ndarray, field: str, expected: str) -> None:
        """Raises UserError for the first row in which `good` (bool[rows]) is False."""
        if not good.all():
            raise self.error(int(np.argmin(good)), field, expected)

    def numbers(self, field: str, expected: str, missing: float | None = None) -> np.ndarray:
        """Returns a column as float64[rows]; nulls become `missing`, or are an error where it is None."""
        values = self._cast(field, pa.float64())
        if values is None:
            return np.array([self._number(row, field, value, expected, missing)
                             for row, value in enumerate(_listed(self.columns[field]))], dtype=np.float64)
        return self._filled(values, field, expected, missing)

    def integers(self, field: str, expected: str, minimum: int, maximum: int, missing: int | None = None) -> np.ndarray:
        """Returns a column as int64[rows], each whole and within the limits (or `missing`)."""
        whole = self._cast(field, pa.int64())
        if whole is None:
            numbers = self.numbers(field, expected, None if missing is None else float(missing))
            good = np.isfinite(numbers) & (np.abs(numbers) < 2.0**63)
            good &= numbers == np.rint(np.where(good, numbers, 0.0))
            self.demand(good, field, expected)
            values = numbers.astype(np.int64)
        else:
            values = self._filled(whole, field, expected, missing)
        good = (values >= minimum) & (values <= maximum)
        self.demand(good if missing is None else good | (values == missing), field, expected)
        return values

    def texts(self, field: str) -> list[str | None]:
        """Returns a column as text; an empty field is None."""
        return [None if value is None or value == "" else str(value).strip() for value in _listed(self.columns[field])]

    def holds_dates(self, field: str) -> bool:
        """Tells whether a column holds dates (as such or as text) rather than numbers."""
        column = self.columns[field]
        if not isinstance(column, list) and not _is_text(column.type):
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
        moments = _moments(column)
        if moments is not None:
            return moments
        each = [_moments(column[row:row + 1]) for row in range(self.rows)]
        self.demand(np.array([one is not None for one in each]), field, expected)
        return np.concatenate([one for one in each if one is not None])

    def integer_lists(self, field: str, expected: str) -> pa.Array:
        """Returns a column of lists (in CSV: numbers with blanks between) as lists of int64."""
        column = self.columns[field]
        if not isinstance(column, list) and pa.types.is_list(column.type):
            inner = column.flatten()
            if pa.types.is_signed_integer(inner.type) and inner.null_count == 0:
                return column.cast(pa.list_(pa.int64()))
        return pa.array([self._integers(row, field, value, expected) for row, value in enumerate(_listed(column))],
                        pa.list_(pa.int64()))

    def place(self, row: int) -> str:
        """Returns where a row (from 0) is in the file, for messages: `line 5`, or `row 4` of a Parquet."""
        line = self._line(row)
        return f"row {self._first_row + row + 1}" if line is None else f"line {line[0]}"

    def _cast(self, field: str, kind: pa.DataType) -> pa.Array | None:
        """Returns a column of numbers, or of texts that all are, as that type; None where it is not such a column."""
        column = self.columns[field]
        if isinstance(column, list) or not (_is_numeric(column.type) or _is_text(column.type)
                                            or pa.types.is_null(column.type)):
            return None
        try:
            if _is_text(column.type):
                column = pc.call_function("utf8_trim_whitespace", [column])
            return column.cast(kind, safe=kind == pa.int64())
        except pa.ArrowException:
            return None

    def _filled(self, values: pa.Array, field: str, expected: str, missing: float | None) -> np.ndarray:
        if missing is None:
            self.demand(values.is_valid().to_numpy(zero_copy_only=False), field, expected)
        return (values if missing is None else values.fill_null(missing)).to_numpy(zero_copy_only=False)

    def _integers(self, row: int, field: str, value: Any, expected: str) -> list[int]:
        try:
            numbers = [int(part) for part in value.split()] if isinstance(value, str) else list(value or [])
        except (ValueError, TypeError):
            raise self.error(row, field, expected) from None
        if not all(isinstance(item, int) and not isinstance(item, bool) and -(2**63) <= item < 2**63
                   for item in numbers):
            raise self.error(row, field, expected)
        return numbers

    def _number(self, row: int, field: str, value: Any, expected: str, missing: float | None) -> float:
        if missing is not None and (value is None or value == ""):
            return missing
        try:
            if isinstance(value, bool) or not isinstance(value, (int, float, str)) or "_" in str(value):
                raise ValueError
            return float(value)
        except (ValueError, OverflowError):
            raise self.error(row, field, expected) from None

    def _line(self, row: int) -> tuple[int, str] | None:
        """Returns (its number, its text) of the line that a row comes from; None of a Parquet."""
        if self.kind == "parquet":
            return None
        lines = dropwhile(lambda line: line[1].isspace(), lines_of(self.path))
        if self.kind == "jsonl":
            lines = (line for line in lines if not line[1].isspace())
        return next(islice(lines, self._first_row + row + (self.kind == "csv"), None), None)

    def _found(self, row: int, field: str) -> Any:
        """Returns what the file itself has there."""
        line = self._line(row) if self.kind == "csv" else None
        cells = [] if line is None else next(csv.reader([line[1]]), [])
        position = list(self.columns).index(field)
        return cells[position] if position < len(cells) else _listed(self.columns[field])[row]


def _is_numeric(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _listed(column: Column) -> Sequence[Any]:
    return column if isinstance(column, list) else column.to_pylist()


def _moments(column: Column) -> np.ndarray | None:
    """Returns dates as int64[n] nanoseconds since 1970; None where not all of them are dates."""
    try:
        array = pa.array(column) if isinstance(column, list) else column
        if array.null_count or not (pa.types.is_temporal(array.type) or _is_text(array.type)):
            return None
        zones = [array.type.tz] if pa.types.is_timestamp(array.type) else [None, "UTC"]
    except BROKEN:
        return None
    for zone in zones:
        try:
            return array.cast(pa.timestamp("ns", zone)).cast(pa.int64()).to_numpy(zero_copy_only=False)
        except pa.ArrowException:
            continue
    return None


def _shown(value: object) -> str:
    if value is None or value == "":
        return "nothing"
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    text = reprlib.repr(value) if isinstance(value, (list, dict)) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def read_pieces(path: Path) -> Iterator[Table]:
    """Yields a file's rows in order, piece by piece; at least one piece, whose columns are those of all.

    Raises:
        UserError: the file is missing, empty, truncated, or not of its kind.
    """
    try:
        head = _head(path)
        zipped = head.startswith(b"\x1f\x8b")
        if zipped:
            with gzip.open(path) as file:
                head = file.read(4)
        packed = next((what for mark, what in _PACKED.items() if head.startswith(mark)), None)
        if packed is not None and (zipped or head != b"PAR1"):
            raise UserError(f"trace file '{path}' is {packed}: unpack it; expected Parquet, or CSV or JSON lines, "
                            "which may be gzipped")
        yield from _parquet_pieces(path) if head == b"PAR1" else _text_pieces(path)
    except UserError:
        raise
    except FileNotFoundError:
        raise missing(path) from None
    except BROKEN as error:
        raise UserError(f"trace file '{path}' cannot be read: {reason_of(error)}") from None


def missing(path: str | os.PathLike[str]) -> UserError:
    """Builds the complaint about a file that is not there; names a trace file beside it whose name is close."""
    name, folder = os.path.basename(path), Path(path).expanduser().parent
    try:
        beside = sorted(item.name for item in folder.iterdir() if item.name.endswith(ENDINGS))
    except (OSError, ValueError):
        beside = []
    return UserError(f"trace file '{path}' does not exist{nearest(name, beside)}")


def reason_of(error: BaseException) -> str:
    """Returns what an exception says, on one line."""
    return " ".join(str(getattr(error, "strerror", None) or error).split()) or type(error).__name__


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(4)


def _parquet_pieces(path: Path) -> Iterator[Table]:
    with pyarrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
        row = 0
        for batch in file.iter_batches(batch_size=PIECE_ROWS):
            yield parquet_table(path, pa.Table.from_batches([batch]), row)
            row += batch.num_rows
        if row == 0:
            yield parquet_table(path, file.schema_arrow.empty_table(), 0)


def parquet_table(path: Path, table: pa.Table, first_row: int) -> Table:
    """Returns rows of a Parquet file, from `first_row` (from 0) on."""
    columns: dict[str, Column] = {}
    for name, column in zip(_names(path, table.column_names), table.columns, strict=True):
        array = column.combine_chunks()
        columns[name] = array.cast(array.type.value_type) if pa.types.is_dictionary(array.type) else array
    return Table(path, columns, table.num_rows, "parquet", first_row)


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yields (number from 1, text) of each line that is not empty of a text file, gzipped or not.

    Raises:
        UserError: a line is not UTF-8, or so long that this is no file of lines.
    """
    opener = gzip.open if _head(path).startswith(b"\x1f\x8b") else open
    with opener(path, "rt", encoding="utf-8-sig", errors="surrogateescape") as stream:
        for number in count(1):
            line = stream.readline(LONGEST_LINE)
            if not line:
                return
            if len(line) == LONGEST_LINE:
                raise UserError(f"trace file '{path}', line {number}: longer than {LONGEST_LINE >> 20} million "
                                "characters; expected Parquet, CSV or JSON lines")
            if not line.isascii() and any("\udc80" <= one <= "\udcff" for one in line):
                raise UserError(f"trace file '{path}', line {number}: neither UTF-8 text nor Parquet")
            if text := str(line).rstrip("\n"):
                yield number, text


def _text_pieces(path: Path) -> Iterator[Table]:
    lines = lines_of(path)
    first = next((line for line in lines if not line[1].isspace()), None)
    if first is None:
        raise UserError(f"trace file '{path}' is empty")
    yield from (_json_pieces(path, chain([first], lines)) if first[1].lstrip()[:1] in "{["
                else _csv_pieces(path, *first))


def _names(path: Path, found: Sequence[str]) -> list[str]:
    names = [name.strip() for name in found]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"trace file '{path}' has two columns named '{name}'; expected each name once")
    return names


class _Utf8:
    """A stream that raises UnicodeError where it is not UTF-8: pyarrow says so of some columns only."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._check, self.closed = stream, codecs.getincrementaldecoder("utf-8")(), False

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._check.decode(data, final=not data)
        return data


def _csv_pieces(path: Path, header_line: int, header: str) -> Iterator[Table]:
    """Reads all columns as text: what type a value has is seen where it is used."""
    names = _names(path, next(csv.reader([header]), []))
    broken: list[Any] = []

    def skip(row: Any) -> str:
        broken.append(row)
        return "skip"

    first_row = 0
    with gzip.open(path) if _head(path).startswith(b"\x1f\x8b") else path.open("rb") as stream:
        try:
            for batch in pyarrow.csv.open_csv(
                    _Utf8(stream),
                    pyarrow.csv.ReadOptions(column_names=names, skip_rows=header_line, block_size=PIECE_BYTES,
                                            use_threads=False),
                    pyarrow.csv.ParseOptions(invalid_row_handler=skip),
                    pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()),
                                               strings_can_be_null=True)):
                if broken:
                    break
                if batch.num_rows:
                    yield Table(path, dict(zip(names, batch.columns, strict=True)), batch.num_rows, "csv", first_row)
                first_row += batch.num_rows
        except UnicodeError:
            for _ in lines_of(path):    # says which line is no text
                pass
            raise
    if broken:
        place = Table(path, {}, 0, "csv").place(broken[0].number - header_line - 1)
        raise UserError(f"trace file '{path}', {place}: found {broken[0].actual_columns} fields, expected {len(names)} "
                        f"as the header has ({header if len(header) <= 60 else header[:57] + '...'})")
    if not first_row:
        yield Table(path, {name: [] for name in names}, 0, "csv")


def _json_pieces(path: Path, lines: Iterator[tuple[int, str]]) -> Iterator[Table]:
    rows: list[dict[str, Any]] = []
    names: list[str] = []
    first_row = size = 0
    for number, text in lines:
        if text.isspace():
            continue
        rows.append(_json_row(path, number, text, first=not rows and not first_row))
        size += len(text)
        if size >= PIECE_BYTES:
            table = _json_table(path, rows, names, first_row)
            names = names or list(table.columns)
            yield table
            first_row, size, rows = first_row + len(rows), 0, []
    if rows:
        yield _json_table(path, rows, names, first_row)


def _json_row(path: Path, number: int, text: str, first: bool) -> dict[str, Any]:
    try:
        row = None if text.lstrip().startswith("[") else json.loads(text)
        if first and isinstance(row, dict):     # a key that is there twice would be lost in silence
            _names(path, [str(name) for name, _ in json.loads(text, object_pairs_hook=list)])
    except (json.JSONDecodeError, RecursionError) as error:
        reason = getattr(error, "msg", "nested too deeply")
        raise UserError(f"trace file '{path}', line {number}: not valid JSON ({reason}); expected one object a "
                        "line") from None
    if not isinstance(row, dict):
        kind = "JSON array (a list)" if row is None else type(row).__name__
        raise UserError(f"trace file '{path}', line {number}: found a {kind}, expected one JSON object a line")
    return row


def _json_table(path: Path, rows: list[dict[str, Any]], names: Sequence[str], first_row: int) -> Table:
    columns: dict[str, Column] = {}
    for name in dict.fromkeys([*names, *(name for row in rows for name in row)]):
        values = [row.get(name) for row in rows]
        columns[name] = values
        if any(isinstance(value, (list, dict)) for value in values):
            continue    # pyarrow follows JSON within JSON by recursion, and ends the process where the stack does
        with suppress(pa.ArrowException, OverflowError, UnicodeError, TypeError, ValueError):   # of several types
            columns[name] = pa.array(values)
    return Table(path, columns, len(rows), "jsonl", first_row)
