"""Files in pieces: CSV, JSON lines or Parquet (gzip allowed on the first two), recognised by content, read by pyarrow.

A piece is some 16 MB of text or a quarter of a million rows of Parquet: what a file of any size takes of memory.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
import os
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from ooco_gym.errors import UserError, nearest
from ooco_gym.workload.index import check_index

Column = Any  # pyarrow's ChunkedArray, or a plain list where a field's type changes from line to line
Lines = Callable[[], Iterator[tuple[int, str]]]
ENDINGS = (".csv", ".jsonl", ".json", ".parquet", ".gz")
PIECE_BYTES = 1 << 24
PIECE_ROWS = 1 << 18
LONGEST_LINE_BYTES = 1 << 26
DEEPEST = 64  # JSON within JSON: pyarrow reads it by recursion and ends the process where the stack does
_TEXT_COLUMNS = ("class", "prefix_hashes", "hash_ids", "Model", "Log Type")
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


def read_pieces(path: Path) -> Iterator[Table]:
    """Yields a file's rows in order, piece by piece; at least one piece, whose columns are those of all.

    Raises:
        UserError: the file is missing, empty, truncated, or not of its kind.
    """
    try:
        with path.open("rb") as file:
            head = file.read(4)
        zipped = head[:2] == b"\x1f\x8b"
        if zipped:
            with gzip.open(path) as file:
                head = file.read(4)
        packed = next((what for mark, what in _PACKED.items() if head.startswith(mark)), None)
        if packed is not None and (zipped or head != b"PAR1"):
            raise UserError(f"trace file '{path}' is {packed}: unpack it; expected Parquet, or CSV or JSON lines, "
                            "which may be gzipped")
        if not head:
            raise UserError(f"trace file '{path}' is empty")
        if head == b"PAR1":
            yield from _parquet_pieces(path)
            return
        with gzip.open(path) if zipped else path.open("rb") as stream:
            yield from _tables_of_text(path, stream)  # type: ignore[arg-type]
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


def _parquet_pieces(path: Path) -> Iterator[Table]:
    with pyarrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
        check_index(path, file)
        row = 0
        for batch in file.iter_batches(batch_size=PIECE_ROWS):
            table = parquet_table(path, pa.Table.from_batches([batch]), row)
            row += table.rows
            yield table
        if row == 0:
            yield parquet_table(path, file.schema_arrow.empty_table(), 0)


def parquet_table(path: Path, table: pa.Table, first_row: int) -> Table:
    """Returns rows of a Parquet file, from `first_row` (from 0) on, as a checked table."""
    columns: dict[str, Column] = {}
    names = _names(path, table.column_names)
    for name, column in zip(names, table.columns, strict=True):
        columns[name] = column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
    return Table(path, columns, table.num_rows, "parquet", first_row)


def _tables_of_text(path: Path, stream: BinaryIO) -> Iterator[Table]:
    pieces = _texts(path, stream)
    first_line, data = next(pieces, (1, b""))
    while not data.strip():
        following = next(pieces, None)
        if following is None:
            raise UserError(f"trace file '{path}' is empty")
        first_line, data = following
    if data.lstrip()[:1] in (b"{", b"["):
        _check_first_object(path, first_line, data)
        names: dict[str, None] = {}
        for line, text in _chain((first_line, data), pieces):
            if text.strip():
                table = _json_table(path, line, text)
                names = names or dict.fromkeys(table.columns)
                for name in names:
                    table.columns.setdefault(name, [None] * table.rows)
                yield table
        return
    header_line, header, data = _header(first_line, data)
    columns = _names(path, next(csv.reader([header]), []))
    given = False
    for line, text in _chain((header_line + 1, data), pieces):
        if text.strip():
            given = True
            yield _csv_table(path, columns, line, text)
    if not given:
        yield Table(path, {name: [] for name in columns}, 0, "csv")


def _texts(path: Path, stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yields (number of the first line, whole lines) of about `PIECE_BYTES`; checks that they are UTF-8."""
    rest, line, start = b"", 1, True
    while True:
        chunk = stream.read(PIECE_BYTES)
        cut = chunk.rfind(b"\n") + 1
        if chunk and not cut:
            rest += chunk
            if len(rest) > LONGEST_LINE_BYTES:
                raise UserError(f"trace file '{path}', line {line}: longer than {LONGEST_LINE_BYTES >> 20} MiB; "
                                "expected Parquet, CSV or JSON lines")
            continue
        text, rest = (rest + chunk[:cut], chunk[cut:]) if chunk else (rest, b"")
        if not chunk and b"\n" not in text:
            text = text.replace(b"\r", b"\n")
        if start:
            text, start = text.removeprefix(b"\xef\xbb\xbf"), False
        try:
            text.decode()
        except UnicodeDecodeError as error:
            place = line + text.count(b"\n", 0, error.start)
            raise UserError(f"trace file '{path}', line {place}: neither UTF-8 text nor Parquet") from None
        if text:
            yield line, text
        if not chunk:
            return
        line += text.count(b"\n")


def _chain(first: tuple[int, bytes], more: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    yield first
    yield from more


def _header(line: int, data: bytes) -> tuple[int, str, bytes]:
    """Returns (its line, the first line that is not blank, all after it)."""
    while True:
        text, _, data = data.partition(b"\n")
        if text.strip():
            return line, text.decode().rstrip("\r"), data
        line += 1


def _names(path: Path, found: list[str]) -> list[str]:
    names = [name.strip() for name in found]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"trace file '{path}' has two columns named '{name}'; expected each name once")
    return names


def _csv_table(path: Path, names: list[str], line: int, data: bytes) -> Table:
    broken: list[Any] = []

    def note_broken(row: Any) -> str:
        broken.append(row)
        return "skip"

    table = pyarrow.csv.read_csv(
        pa.BufferReader(data),
        read_options=pyarrow.csv.ReadOptions(column_names=names, block_size=len(data) + 1, use_threads=False),
        parse_options=pyarrow.csv.ParseOptions(invalid_row_handler=note_broken),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types={name: pa.string() for name in _TEXT_COLUMNS}, strings_can_be_null=True))
    lines = _lines_of(line, data)
    if broken:
        texts = {row.text.rstrip("\r\n") for row in broken}
        place = next((number for number, text in lines() if text in texts), None)
        header = ",".join(names)
        raise UserError(f"trace file '{path}', {'some line' if place is None else f'line {place}'}: found "
                        f"{broken[0].actual_columns} fields, expected {broken[0].expected_columns} as the header has "
                        f"({header if len(header) <= 60 else header[:57] + '...'})")
    return Table(path, dict(zip(names, table.columns, strict=True)), table.num_rows, "csv", lines=lines)


def _json_table(path: Path, line: int, data: bytes) -> Table:
    lines = _lines_of(line, data)
    _check_depth(path, line, data)
    try:
        table = pyarrow.json.read_json(pa.BufferReader(data), read_options=pyarrow.json.ReadOptions(
            block_size=len(data) + 1, use_threads=False))
    except (pa.ArrowException, UnicodeError):
        return _read_json_slowly(path, lines)
    columns = dict(zip(_names(path, table.column_names), table.columns, strict=True))
    return Table(path, columns, table.num_rows, "jsonl", lines=lines)


def _check_depth(path: Path, line: int, data: bytes) -> None:
    """Refuses objects and lists within each other deeper than `DEEPEST`."""
    for number, text in enumerate(data.split(b"\n"), line):
        if text.count(b"{") + text.count(b"[") > DEEPEST:
            bare = re.sub(rb'"(?:[^"\\]|\\.)*"', b"", text)
            steps = np.array([1 if mark in b"{[" else -1 for mark in re.sub(rb"[^][{}]", b"", bare)], dtype=np.int64)
            deepest = int(steps.cumsum().max(initial=0))
            if deepest > DEEPEST:
                raise UserError(f"trace file '{path}', line {number}: JSON within JSON, {deepest} deep; expected "
                                f"at most {DEEPEST}: leave that field out")


def _check_first_object(path: Path, line: int, data: bytes) -> None:
    """Refuses arrays, and objects that have a key twice: pyarrow would take one of the two in silence."""
    line, text, _ = _header(line, data)
    if text.lstrip().startswith("["):
        raise UserError(f"trace file '{path}', line {line}: found a JSON array (a list), expected one JSON object a "
                        "line")
    try:
        pairs = json.loads(text, object_pairs_hook=list)
    except (ValueError, RecursionError):
        return      # the reader says what is wrong
    _names(path, [str(name) for name, _ in pairs])


def _read_json_slowly(path: Path, lines: Lines) -> Table:
    """Reads line by line in Python what pyarrow refused: to name the line, or because a field's type changes."""
    rows: list[dict[str, Any]] = []
    for number, text in lines():
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", None) or type(error).__name__
            raise UserError(f"trace file '{path}', line {number}: not valid JSON ({reason}); expected one object a "
                            "line") from None
        if not isinstance(row, dict):
            raise UserError(f"trace file '{path}', line {number}: found a {type(row).__name__}, expected one JSON "
                            "object a line")
        rows.append(row)
    names = dict.fromkeys(name for row in rows for name in row)
    columns: dict[str, Column] = {name: [row.get(name) for row in rows] for name in names}
    return Table(path, columns, len(rows), "jsonl", lines=lines)


def _lines_of(first: int, data: bytes) -> Lines:
    def lines() -> Iterator[tuple[int, str]]:
        for number, text in enumerate(data.decode().split("\n"), first):
            yield number, text.rstrip("\r")

    return lines
