"""A trace file as columns: CSV, JSON lines (gzip and xz allowed on both) or Parquet, recognised by content.

pyarrow reads CSV, as text, and Parquet; JSON lines are read one by one. A column is taken as a whole for numbers, dates
or lists; where that fails, the first row that is to blame is found, and its line looked up in the file.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import json
import lzma
import os
import reprlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import dropwhile, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet

from ooco_gym.errors import UserError, nearest
from ooco_gym.workload.trace import ENDINGS
from ooco_gym.workload.unfolding import FORMS, form_of

Column = Any  # a pyarrow ChunkedArray
BROKEN = (pa.ArrowException, OSError, EOFError, zlib.error, lzma.LZMAError, UnicodeError, ValueError, csv.Error)
_OPENERS: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"\xfd7zX": lzma.open}  # by what packed text begins with
_PACKED = {b"PK\x03\x04": "a ZIP archive", b"\x28\xb5\x2f\xfd": "packed with Zstandard", b"BZh": "packed with bzip2",
           b"\xfd7zX": "packed twice", b"\x1f\x8b": "gzipped twice", b"PAR1": "a packed Parquet"}
_EMPTY = ["", "null", "NULL", "None"]  # what stands for nothing in a CSV
_compute: Any = pyarrow.compute  # whose functions are made when it is imported


class Table:
    """Rows of a file in a row, with the way back from a row to its place in the file.

    Args:
        path: the file.
        columns: by name, each of length `rows`.
        rows: how many.
        kind: `csv`, `jsonl` or `parquet`.
        first_row: number of the first of these rows in the file, from 0.
        form: that nested objects were unfolded from (`unfolding.FORMS`), or None.
        lines: of each row, where they were.
    """

    def __init__(self, path: Path, columns: dict[str, Column], rows: int, kind: str, first_row: int = 0,
                 form: str | None = None, lines: Sequence[int] = ()) -> None:
        self.path, self.columns, self.rows, self.kind, self._first_row = path, columns, rows, kind, first_row
        self.form, self._lines = form, lines

    def error(self, row: int, field: str, expected: str) -> UserError:
        """Builds the complaint about one field of one row (from 0)."""
        value = self.columns[field][row].as_py()
        found = "nothing" if value is None or value == "" else reprlib.repr(value)
        again = " (the header again, as where two files were joined: remove that line)" * (value == field)
        return UserError(f"trace file '{self.path}', {self.place(row)}, field '{field}': found {found}{again}, "
                         f"expected {expected}")

    def demand(self, good: np.ndarray, field: str, expected: str) -> None:
        """Raises UserError for the first row in which `good` (bool[rows]) is False."""
        if not good.all():
            raise self.error(int(np.argmin(good)), field, expected)

    def numbers(self, field: str, expected: str, missing: float | None = None) -> np.ndarray:
        """Returns a column as float64[rows]; nulls become `missing`, or are an error where it is None."""
        return self._filled(self._read(field, expected, _as_numbers), field, expected, missing)

    def integers(self, field: str, expected: str, minimum: int, maximum: int, missing: int | None = None) -> np.ndarray:
        """Returns a column as int64[rows], each whole and within the limits (or `missing`)."""
        whole = _as_numbers(self.columns[field], whole=True)
        if whole is None:  # some are no whole numbers, or written as fractions: 5.0
            numbers = self.numbers(field, expected, None if missing is None else float(missing))
            if missing is not None:
                numbers = np.where(np.isnan(numbers), missing, numbers)
            good = np.abs(numbers) < 2.0**63
            self.demand(good & (numbers == np.rint(np.where(good, numbers, 0.0))), field, expected)
            values = numbers.astype(np.int64)
        else:
            values = self._filled(whole, field, expected, missing)
        good = (values >= minimum) & (values <= maximum)
        self.demand(good if missing is None else good | (values == missing), field, expected)
        return values

    def texts(self, field: str, expected: str) -> Column:
        """Returns a column as text without blanks around it; an empty field is null."""
        return self._read(field, expected, lambda column: _trimmed(column.cast(pa.string())))

    def holds_dates(self, field: str) -> bool:
        """Tells whether a column holds dates (as such or as text) rather than numbers."""
        column = self.columns[field]
        if not _is_text(column.type):
            return bool(pa.types.is_temporal(column.type))
        first = next((value for value in column.drop_null()[:1].to_pylist()), "")
        return any(mark in first for mark in "-:/") and _as_numbers(pa.chunked_array([[first]])) is None

    def timestamps_ns(self, field: str, expected: str) -> np.ndarray:
        """Returns a column of dates with times as int64[rows] nanoseconds since 1970."""
        return self._filled(self._read(field, expected, _as_moments), field, expected, None)

    def whole_numbers(self, field: str) -> np.ndarray | None:
        """Returns a column as int64[rows] where each row has a whole number of 64 bits; otherwise None."""
        whole = _as_numbers(self.columns[field], whole=True)
        return None if whole is None or whole.null_count else whole.to_numpy()

    def sessions(self, *fields: str) -> list[np.ndarray]:
        """Returns columns of sessions' names as int64[rows], -1 for none: equal names are equal numbers in all of them.

        Whole numbers are their own; where a column has texts, or numbers beyond 64 bits, each name gets one.
        """
        if all(_are_numbers(self.columns[field]) for field in fields):
            return [self.integers(field, "a whole number >= 0, a name, or nothing", 0, 2**63 - 1, missing=-1)
                    for field in fields]
        names = [_trimmed(self.columns[field].cast(pa.string())) for field in fields]
        joined = pa.chunked_array([chunk for name in names for chunk in name.chunks], pa.string())
        joined = _compute.if_else(_compute.equal(joined, "-1"), None, joined).combine_chunks()
        codes = joined.dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        return list(codes.reshape(len(fields), self.rows))

    def integer_lists(self, field: str, expected: str) -> Column:
        """Returns a column of lists (as text: numbers with blanks or commas between) as lists of int64."""
        return self._read(field, expected, _as_lists)

    def place(self, row: int) -> str:
        """Returns where a row (from 0) is in the file, for messages: `line 5`, or `row 4` of a Parquet."""
        if self._lines:
            return f"line {self._lines[row]}"
        line = None
        if self.kind != "parquet":
            lines = dropwhile(lambda line: line[1].isspace(), lines_of(self.path))
            if self.kind == "jsonl":
                lines = (line for line in lines if not line[1].isspace())
            line = next(islice(lines, row + (self.kind == "csv"), None), None)
        return f"row {self._first_row + row + 1}" if line is None else f"line {line[0]}"

    def _read(self, field: str, expected: str, cast: Callable[[Column], Column | None]) -> Column:
        """Returns a column as `cast` takes it; the first row with which it fails is complained about."""
        column = self.columns[field]
        found = _tried(cast, column)
        if found is not None:
            return found
        first, last = 0, len(column)
        while last - first > 1:
            middle = (first + last) // 2
            fits = _tried(cast, column.slice(first, middle - first)) is not None
            first, last = (middle, last) if fits else (first, middle)
        raise self.error(first, field, expected)

    def _filled(self, values: Column, field: str, expected: str, missing: float | None) -> np.ndarray:
        if missing is None:
            self.demand(values.is_valid().to_numpy(), field, expected)
        return np.array(values if missing is None else values.fill_null(missing))


def _tried(cast: Callable[[Column], Column | None], column: Column) -> Column | None:
    try:
        return cast(column)
    except (pa.ArrowException, UnicodeError):
        return None


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _trimmed(column: Column) -> Column:
    """Texts without blanks around them, null where nothing is left; other columns as they are."""
    if not _is_text(column.type):
        return column
    text = _compute.utf8_trim_whitespace(column)
    return _compute.if_else(_compute.equal(text, ""), None, text)


def _as_numbers(column: Column, whole: bool = False) -> Column | None:
    """Numbers, or texts that all are, as float64 or int64; None where it is no such column."""
    if not (_is_text(column.type) or pa.types.is_null(column.type) or pa.types.is_integer(column.type)
            or pa.types.is_floating(column.type) or pa.types.is_decimal(column.type)):
        return None
    kind = pa.int64() if whole else pa.float64()
    found = _tried(lambda one: one.cast(kind, safe=whole), column)
    return found if found is not None else _tried(lambda one: _trimmed(one).cast(kind, safe=whole), column)


def _are_numbers(column: Column) -> bool:
    """Whether a column holds numbers within 64 bits alone."""
    if _as_numbers(column, whole=True) is not None:
        return True
    numbers = _as_numbers(column)
    return numbers is not None and not (np.abs(numbers.fill_null(0).to_numpy()) >= 2.0**63).any()


def _as_moments(column: Column) -> Column | None:
    """Dates as nanoseconds since 1970; texts without a zone count as UTC, row by row."""
    if pa.types.is_temporal(column.type):
        zone = column.type.tz if pa.types.is_timestamp(column.type) else None
        return column.cast(pa.timestamp("ns", zone)).cast(pa.int64())
    if not _is_text(column.type):
        return None
    text = _trimmed(column)
    for pattern, put in ((r"^(\d{4})/(\d\d?)/(\d\d?)", r"\1-\2-\3"), (r"^(\d{4}-\d\d-\d\d)$", r"\1 00:00"),
                         (r" ?(UTC|GMT|Z)$", "Z"), (r" ([+-]\d\d:?\d\d)$", r"\1")):
        text = _compute.replace_substring_regex(text, pattern, put)
    zoned = _compute.match_substring_regex(text, r"[T ]\d\d.*(Z|[+-]\d\d(:?\d\d)?)$")
    text = _compute.if_else(zoned, text, _compute.binary_join_element_wise(text, "Z", ""))
    return text.cast(pa.timestamp("ns", "UTC")).cast(pa.int64())


def _as_lists(column: Column) -> Column | None:
    lists = column
    if _is_text(column.type):  # 3 7, or as Python writes lists
        text = _compute.replace_substring_regex(_trimmed(column), r"^\[(.*)\]$", r"\1")
        lists = _compute.utf8_split_whitespace(_trimmed(_compute.replace_substring_regex(text, r"\s*,\s*", " ")))
    found = lists.cast(pa.list_(pa.int64()))
    return None if _compute.list_flatten(found).null_count else found


def read_table(path: Path) -> Table:
    """Reads a whole file.

    Raises:
        UserError: the file is missing, empty, truncated, or not of its kind.
    """
    try:
        opened = _opener(path)
        with opened(path, "rb") as file:
            head = file.read(4)
        zipped = opened is not open
        packed = next((what for mark, what in _PACKED.items() if head.startswith(mark)), None)
        if packed is not None and (zipped or head != b"PAR1"):
            raise UserError(f"trace file '{path}' is {packed}: unpack it; expected Parquet, or CSV or JSON lines, "
                            "which may be packed with gzip or xz")
        if head == b"PAR1":
            with open_parquet(path) as file:
                return parquet_table(path, file.read(), 0)
        lines = lines_of(path)
        first = next((line for line in lines if not line[1].isspace()), None)
        if first is None:
            raise UserError(f"trace file '{path}' is empty")
        return _json_table(path) if first[1].lstrip()[:1] in "{[" else _csv_table(path, *first)
    except UserError:
        raise
    except FileNotFoundError:
        raise missing(path) from None
    except BROKEN as error:
        raise unreadable(path, error) from None


def _opener(path: Path) -> Any:
    """Returns what opens a file so that its text is read: by its first bytes."""
    with path.open("rb") as file:
        head = file.read(4)
    return next((opener for mark, opener in _OPENERS.items() if head.startswith(mark)), open)


def missing(path: str | os.PathLike[str]) -> UserError:
    """Builds the complaint about a file that is not there; names a trace file beside it whose name is close."""
    name, folder = os.path.basename(path), Path(path).expanduser().parent
    try:
        beside = sorted(item.name for item in folder.iterdir() if item.name.endswith(ENDINGS))
    except (OSError, ValueError):
        beside = []
    return UserError(f"trace file '{path}' does not exist{nearest(name, beside)}")


def unreadable(path: str | os.PathLike[str], error: BaseException) -> UserError:
    """Builds the complaint about a file that breaks off or is corrupt."""
    reason = " ".join(str(getattr(error, "strerror", None) or error).split()) or type(error).__name__
    return UserError(f"trace file '{path}' cannot be read: {reason}")


def open_parquet(path: Path) -> pyarrow.parquet.ParquetFile:
    """Opens a Parquet whose checksums are verified."""
    return pyarrow.parquet.ParquetFile(path, page_checksum_verification=True)


def parquet_table(path: Path, table: pa.Table, first_row: int) -> Table:
    """Returns rows of a Parquet file, from `first_row` (from 0) on."""
    columns = {name: column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else
               column.cast(pa.string()) if pa.types.is_string_view(column.type) else column
               for name, column in zip(_names(path, table.column_names), table.columns, strict=True)}
    return Table(path, columns, table.num_rows, "parquet", first_row)


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yields (number from 1, text) of each line that is not empty of a text file, packed or not.

    Raises:
        UserError: a line is not UTF-8.
    """
    with _opener(path)(path, "rt", encoding="utf-8-sig", errors="surrogateescape") as stream:
        for number, line in enumerate(stream, 1):
            if not line.isascii() and any("\udc80" <= one <= "\udcff" for one in line):
                raise UserError(f"trace file '{path}', line {number}: neither UTF-8 text nor Parquet")
            if text := line.rstrip("\n"):
                yield number, text


def _names(path: Path, found: Sequence[str]) -> list[str]:
    names = [name.strip() for name in found]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"trace file '{path}' has two columns named '{name}'; expected each name once")
    return names


class _Utf8:
    """A stream that raises UnicodeError where it is not UTF-8: pyarrow would not say so of rows that it skips."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._check, self.closed = stream, codecs.getincrementaldecoder("utf-8")(), False

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._check.decode(data, final=not data)
        return data


def _csv_table(path: Path, header_line: int, header: str) -> Table:
    """Reads all columns as text: what type a value has is seen where it is used."""
    names = _names(path, next(csv.reader([header]), []))
    broken: list[Any] = []

    def skip(row: Any) -> str:
        broken.append(row)
        return "skip"

    try:
        with _opener(path)(path, "rb") as stream:
            table = pyarrow.csv.read_csv(
                _Utf8(stream), pyarrow.csv.ReadOptions(column_names=names, skip_rows=header_line, use_threads=False),
                pyarrow.csv.ParseOptions(invalid_row_handler=skip),
                pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True,
                                           null_values=_EMPTY))
    except (pa.ArrowException, UnicodeError) as error:
        rest = [text for number, text in lines_of(path) if number > header_line]  # says which line is no text
        if "Empty CSV" in str(error) and all(map(str.isspace, rest)):
            return Table(path, {name: pa.chunked_array([], pa.string()) for name in names}, 0, "csv")
        raise
    if broken:
        place = Table(path, {}, 0, "csv").place(broken[0].number - header_line - 1)
        raise UserError(f"trace file '{path}', {place}: found {broken[0].actual_columns} fields, expected {len(names)} "
                        f"as the header has ({header if len(header) <= 60 else header[:57] + '...'})")
    return Table(path, dict(zip(names, table.columns, strict=True)), table.num_rows, "csv")


def _json_table(path: Path) -> Table:
    columns: dict[str, list[Any]] = {}
    rows, lines, form, kept = 0, [], None, {}
    for number, one in _json_objects(path):
        form = form_of(one) if rows == 0 and form is None else form
        for row in (one,) if form is None else _unfolded(path, number, form, one, kept):
            for name, value in row.items():
                values = columns.setdefault(name, [])
                values += [None] * (rows - len(values))  # rows before that have no such key
                values.append(value)
            rows += 1
            lines += [number] * (form is not None)
    for values in columns.values():
        values += [None] * (rows - len(values))
    found = {name: _json_column(values) for name, values in columns.items()}
    return Table(path, found, rows, "jsonl", form=form, lines=lines)


def _json_objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (line, object) of each line, or the one object that a whole file is."""
    first = True
    for number, text in lines_of(path):
        if text.isspace():
            continue
        whole = _whole_object(path) if first and not text.rstrip().endswith(("}", "]")) else None
        yield number, _json_row(path, number, text, first) if whole is None else whole
        if whole is not None:
            return
        first = False


def _whole_object(path: Path) -> dict[str, Any] | None:
    """The object that a file of many lines is, or None."""
    try:
        found = json.loads("\n".join(text for _, text in lines_of(path)))
    except (json.JSONDecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _unfolded(path: Path, number: int, form: str, one: dict[str, Any], kept: dict[Any, Any]) -> list[dict[str, Any]]:
    """The rows of a nested object."""
    try:
        return FORMS[form].rows(one, kept)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, OverflowError) as error:
        missing_key = f"key {error} is missing" if isinstance(error, KeyError) else str(error)
        raise UserError(f"trace file '{path}', line {number}: not of the form '{form}': {missing_key}; docs/traces.md "
                        "says what it has") from None


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


def _json_column(values: list[Any]) -> Column:
    """Returns values of one type as that, lists of whole numbers as such, and any others as text."""
    # pyarrow would follow lists in lists by recursion, and end the process where the stack does.
    kind = pa.list_(pa.int64()) if any(isinstance(value, (list, dict)) for value in values) else None
    try:
        return pa.chunked_array([pa.array(values, kind)])
    except (pa.ArrowException, OverflowError, UnicodeError, TypeError, ValueError):
        return pa.chunked_array([pa.array(map(_json_text, values), pa.string())])


def _json_text(value: Any) -> str | None:
    if isinstance(value, list):
        return " ".join(map(json.dumps, value))
    text = value if value is None or isinstance(value, str) else json.dumps(value)
    return text and text.encode("utf-8", "replace").decode()
