"""A trace file as columns: CSV, JSON lines (optionally packed with gzip or xz) or Parquet,
recognised by content.

pyarrow reads Parquet, and CSV as text; JSON lines are parsed one by one. A column is cast as a
whole; if that fails, the first offending row and its line in the file are found for the message.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import lzma
import os
import re
import reprlib
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv

from ooco_gym import files
from ooco_gym.errors import UserError, nearest
from ooco_gym.workload.casts import (
    Cast,
    Column,
    as_integers,
    as_lists,
    as_moments,
    as_name_lists,
    as_numbers,
    as_texts,
    tried,
)
from ooco_gym.workload.trace import ENDINGS
from ooco_gym.workload.unfolding import FORMS, form_of

BROKEN = (pa.ArrowException, OSError, EOFError, zlib.error, lzma.LZMAError, ValueError, csv.Error)
_OPENERS: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"\xfd7zX": lzma.open}  # by magic number
_EMPTY = ["", "null", "NULL", "None"]  # null values in a CSV
_LOG = re.compile(r"^(?!\s*\[?\s*{)(.*\[(\d\d/)?[A-Z][a-z]{2}[ /]|.*\b(INFO|DEBUG|WARNING|ERROR)\b.*\d\d:\d\d"
                  r"|\w+=\S+ \w+=\S+|data: |# (HELP|TYPE) )")
LOOKED_AT = 1000    # characters of a line that are examined for signs of a log
MOST_VALUES, FEWEST_COLUMNS = 10_000_000, 128     # limits for JSON as columns
_compute: Any = pyarrow.compute  # its functions are created at import


class TraceTable:
    """Consecutive rows of a file, with each row's place in it.

    Args:
        path: the file.
        columns: by name, each of length `rows`.
        rows: number of rows.
        first_row: the first row's number in the file, from 0.
        lines: line number of each row of a JSON file; None: lines are looked up (CSV) or not used
            (`parquet`).
        parquet: whether places are rows rather than lines.
        form: the form of nested objects that were unfolded (`unfolding.FORMS`), or None.
        kept: int64[rows], indices of these rows in `lines`; None: all rows.
    """

    def __init__(self, path: Path, columns: dict[str, Column], rows: int, first_row: int = 0, *,
                 lines: Sequence[int] | None = None, parquet: bool = False, form: str | None = None,
                 kept: np.ndarray | None = None) -> None:
        self.path, self.columns, self.rows, self.form = path, columns, rows, form
        self._first_row, self._lines, self._parquet, self._kept = first_row, lines, parquet, kept

    def take(self, rows: np.ndarray) -> TraceTable:
        """Returns the given rows, int64[m] ascending."""
        return TraceTable(self.path, {name: column.take(rows) for name, column in self.columns.items()}, len(rows),
                     self._first_row, lines=self._lines, parquet=self._parquet, form=self.form,
                     kept=rows if self._kept is None else self._kept[rows])

    def error(self, row: int, field: str, expected: str) -> UserError:
        """Builds the error for one field of one row (from 0)."""
        value = self.columns[field][row].as_py()
        found = "nothing" if value is None or value == "" else reprlib.repr(value)
        return UserError(f"trace file '{self.path}', {self.place(row)}, field '{field}': found {found}, expected "
                         f"{expected}")

    def demand(self, good: np.ndarray, field: str, expected: str) -> None:
        """Raises UserError for the first row in which `good` (bool[rows]) is False."""
        if not good.all():
            raise self.error(int(np.argmin(good)), field, expected)

    def numbers(self, field: str, expected: str, missing: float | None = None) -> np.ndarray:
        """Returns a column as float64[rows]; nulls become `missing`, or are an error if it is None."""
        return self._values(field, expected, as_numbers, missing)

    def numbers_of(self, field: str) -> np.ndarray | None:
        """Returns a column as float64[rows], NaN for nulls; None if it holds anything but numbers."""
        found = tried(as_numbers, self.columns[field])
        return None if found is None else np.array(found.fill_null(np.nan))

    def integers(self, field: str, expected: str, minimum: int, maximum: int, missing: int | None = None) -> np.ndarray:
        """Returns a column as int64[rows], each whole and within the limits (or `missing`)."""
        values = self._values(field, expected, as_integers, missing)
        self.demand((values >= minimum) & (values <= maximum) | (values == missing), field, expected)
        return values

    def texts(self, field: str, expected: str) -> Column:
        """Returns a column as text without surrounding whitespace; an empty field is null."""
        return self._read(field, expected, as_texts)

    def holds_dates(self, field: str) -> bool:
        """Returns whether a column holds dates (typed or as text) rather than numbers."""
        column = self.columns[field].drop_null()
        return tried(as_numbers, column[:1]) is None and tried(as_moments, column[:1]) is not None

    def timestamps_ns(self, field: str, expected: str) -> np.ndarray:
        """Returns a column of dates with times as int64[rows] nanoseconds since 1970."""
        return self._values(field, expected, as_moments)

    def sessions(self, *fields: str) -> list[np.ndarray]:
        """Returns columns of session names as int64[rows], -1 for none; equal names get equal
        numbers in all columns.

        Integers are kept; if a column has anything else, names are numbered.
        """
        if all(tried(as_integers, self.columns[field]) is not None for field in fields):
            return [self.integers(field, "a whole number >= 0, a name, or nothing", 0, 2**63 - 1, missing=-1)
                    for field in fields]
        names = pa.concat_arrays([self.texts(field, "a name, or nothing").combine_chunks() for field in fields])
        named = _compute.if_else(_compute.equal(names, "-1"), None, names)
        return list(np.asarray(named.dictionary_encode().indices.fill_null(-1), np.int64).reshape(len(fields), -1))

    def integer_lists(self, field: str, expected: str) -> Column:
        """Returns a column of lists (as text: numbers separated by blanks or commas) as lists of int64."""
        return self._read(field, expected, as_lists)

    def named_lists(self, names: str, lists: str, expected: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns a column of names as int64[rows], the lengths of a column of lists of such names, and all values of
        these lists; equal names get equal numbers, integers are kept."""
        own = self.texts(names, "a number or a name").combine_chunks()
        self.demand(own.is_valid().to_numpy(zero_copy_only=False), names, "a number or a name")
        column = self._read(lists, expected, as_name_lists).combine_chunks()
        counts = _compute.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
        both = pa.concat_arrays([own, column.flatten()])
        whole = tried(as_integers, pa.chunked_array([both]))
        numbers = both.dictionary_encode().indices if whole is None else whole.combine_chunks()
        numbers = np.asarray(numbers.fill_null(-1), np.int64)
        return numbers[: len(own)], counts, numbers[len(own) :]

    def place(self, row: int) -> str:
        """Returns the place of a row (from 0) in the file, for messages: `line 5`, or `row 4` of a Parquet."""
        row = row if self._kept is None else int(self._kept[row])
        if self._parquet:
            return f"row {self._first_row + row + 1}"
        if self._lines is not None:
            return f"line {self._lines[row]}"
        return f"line {next(islice(_lines(_text(self.path)), row + 1, None))[0]}"

    def _read(self, field: str, expected: str, cast: Cast) -> Column:
        """Returns a column cast by `cast`; raises UserError for the first row for which it fails."""
        column = self.columns[field]
        found = tried(cast, column)
        if found is not None:
            return found
        first, last = 0, len(column)
        while last - first > 1:
            middle = (first + last) // 2
            fits = tried(cast, column.slice(first, middle - first)) is not None
            first, last = (middle, last) if fits else (first, middle)
        raise self.error(first, field, expected)

    def _values(self, field: str, expected: str, cast: Cast, missing: float | None = None) -> np.ndarray:
        column = self._read(field, expected, cast)
        if missing is not None:
            return np.array(column.fill_null(missing))
        self.demand(column.is_valid().to_numpy(), field, expected)
        return np.array(column)


# --- Files ------------------------------------------------------------------------------------------------------------
def read_table(path: Path) -> TraceTable:
    """Reads a whole file.

    Raises:
        UserError: the file is missing, empty, truncated, or not of its kind.
    """
    try:
        if _head(path) == b"PAR1":
            return read_parquet(path)
        data = _text(path)
        first = next((line for _, line in _lines(data) if not line.isspace()), None)
        if first is None:
            raise UserError(f"trace file '{path}' is empty")
        if _LOG.search(first[:LOOKED_AT]):
            raise UserError(f"trace file '{path}' is text that a server logs and has no names of columns; expected CSV,"
                            " JSON lines or Parquet with token counts: docs/traces.md says how to log them")
        return _read_json(path, data) if first.lstrip()[0] in "{[" else _read_csv(path, data)
    except UserError:
        raise
    except BROKEN as error:
        raise unreadable(path, error) from None


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(4)


def unreadable(path: str | os.PathLike[str], error: BaseException) -> UserError:
    """Builds the error for a missing (with the closest file name), truncated or corrupt file."""
    if isinstance(error, FileNotFoundError):
        folder = Path(path).expanduser().parent
        beside = [item.name for item in folder.iterdir() if item.name.endswith(ENDINGS)] if folder.is_dir() else []
        return UserError(f"trace file '{path}' does not exist{nearest(os.path.basename(path), sorted(beside))}")
    reason = " ".join(str(getattr(error, "strerror", None) or error).split()) or type(error).__name__
    if any(words in reason for words in ("straddl", "field limit", "out of sync")):
        reason = ("a row is longer than is read (1 MiB, in the header 128 KiB a field), or lacks its second quotation "
                  "mark; expected a request a line")
    return UserError(f"trace file '{path}' cannot be read: {reason}")


def read_parquet(path: Path, first_row: int = 0, filters: Any = None) -> TraceTable:
    """Returns the rows that pyarrow's filters select; the first is number `first_row` (from 0)."""
    table, columns = files.read_parquet(path, filters=filters), {}
    for name, column in zip(_names(path, table.column_names), table.columns, strict=True):
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        columns[name] = column.cast(pa.string()) if pa.types.is_string_view(column.type) else column
    return TraceTable(path, columns, table.num_rows, first_row, parquet=True)


def _text(path: Path) -> bytes:
    """Returns the text of a file, unpacked.

    Raises:
        UserError: it is not UTF-8.
    """
    opened = next((opener for mark, opener in _OPENERS.items() if _head(path).startswith(mark)), open)
    most = files.most_unpacked(path.stat().st_size)
    with opened(path, "rb") as file:
        data = file.read(most + 1).removeprefix(codecs.BOM_UTF8)
    if len(data) > most:
        raise UserError(f"trace file '{path}' unpacks to more than {most >> 20} MiB, over 100 times its size; if it is "
                        "as it should be, unpack it yourself")
    end = data.find(b"\0")
    try:
        data.decode()
    except UnicodeDecodeError as error:
        end = error.start
    if end >= 0:
        line = data.count(b"\n", 0, end) + 1
        raise UserError(f"trace file '{path}', line {line}: neither UTF-8 text nor Parquet; expected Parquet, CSV or "
                        "JSON lines, which may be packed once with gzip or xz")
    return data


def _lines(data: bytes) -> Iterator[tuple[int, str]]:
    """Yields (number from 1, text) of each non-empty line."""
    for number, line in enumerate(io.TextIOWrapper(io.BytesIO(data), "utf-8"), 1):
        if line != "\n":
            yield number, line


def _names(path: Path, found: Sequence[str]) -> list[str]:
    names = [name.strip() for name in found]
    for name, count in Counter(names).items():
        if count > 1:
            raise UserError(f"trace file '{path}' has two columns named '{name}'; expected each name once")
    return names


def _read_csv(path: Path, data: bytes) -> TraceTable:
    """Reads all columns as text; their users determine the types."""
    header = next(_lines(data))[1]
    mark = max(",;\t|", key=header.count)
    names, broken = _names(path, next(csv.reader([header], delimiter=mark))), []

    def skip(row: Any) -> str:
        broken.append(row)
        return "skip"

    table = pyarrow.csv.read_csv(  # the header is read as a row, because pyarrow rejects a file of a header only
        pa.BufferReader(data), pyarrow.csv.ReadOptions(column_names=names, use_threads=False),
        pyarrow.csv.ParseOptions(delimiter=mark, invalid_row_handler=skip),
        pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True,
                                   null_values=_EMPTY)).slice(1)
    if broken:
        place = TraceTable(path, {}, 0).place(broken[0].number - 2)
        raise UserError(f"trace file '{path}', {place}: found {broken[0].actual_columns} fields, expected {len(names)} "
                        f"as the header has ({header.strip()})")
    columns = table.columns if mark != ";" else [_compute.replace_substring_regex(
        column, r"^(-?\d+),(\d+)$", r"\1.\2") for column in table.columns]   # decimal commas, if ; separates columns
    return TraceTable(path, dict(zip(names, columns, strict=True)), table.num_rows)


def _read_json(path: Path, data: bytes) -> TraceTable:
    rows: list[Mapping[str, Any]] = []
    lines: list[int] = []
    form, kept = None, {}
    for number, one in _json_objects(path, data):
        form = form_of(one) if not lines and form is None else form
        found = _plain(one) if form is None else _unfolded(path, number, form, one, kept)
        rows += found
        lines += [number] * len(found)
    for key, value in rows[0].items() if len(rows) == 1 and form is None else ():
        if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
            raise UserError(f"trace file '{path}' is one JSON object with a list of objects, '{key}', expected one "
                            f"object a line{_lines_of(path, key)}")
    names = Counter(name for row in rows for name in row)
    if len(names) * len(rows) > MOST_VALUES:    # keys unique to a row, such as ids, are no columns
        names = dict(names.most_common(max(FEWEST_COLUMNS, MOST_VALUES // len(rows))))
    return TraceTable(path, {name: _json_column(rows, name) for name in names}, len(rows), lines=lines, form=form)


def _lines_of(path: Path, key: str = "") -> str:
    """Returns the command that converts a list to lines."""
    return f": jq -c '.{key}[]' '{path}' > lines.jsonl"


def _plain(one: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the row of an object, or the rows of OpenAI's usage exports: buckets of sums, or pages of them."""
    buckets = one["data"] if isinstance(one.get("data"), list) else [one]
    if all(isinstance(bucket, dict) and isinstance(bucket.get("results"), list) for bucket in buckets):
        return [{**bucket, **_flat(sums)} for bucket in buckets for sums in bucket["results"] if isinstance(sums, dict)]
    return [_flat(one) if any(isinstance(value, dict) for value in one.values()) else one]


def _flat(one: Mapping[str, Any], deep: int = 4) -> dict[str, Any]:
    """Returns an object with nested keys joined by dots: `usage.prompt_tokens`."""
    found: dict[str, Any] = {}
    for key, value in one.items():
        if isinstance(value, dict) and deep:
            found |= {f"{key}.{name}": item for name, item in _flat(value, deep - 1).items()}
        else:
            found[key] = value
    return found


def _json_objects(path: Path, data: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (line, object) of each line, or the single object of a whole file."""
    lines = ((number, line) for number, line in _lines(data) if not line.isspace())
    first = next(lines)
    whole = not first[1].rstrip().endswith("}")
    for number, text in [(first[0], data.decode())] if whole else chain([first], lines):
        try:
            found = [] if text.lstrip().startswith("[") else json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            reason = getattr(error, "msg", "nested too deeply")
            raise UserError(f"trace file '{path}', line {number}: not valid JSON ({reason}); expected one object a "
                            f"line, as jq -c . '{path}' writes them") from None
        if not isinstance(found, dict):
            kind = "JSON array (a list)" if found == [] else type(found).__name__
            raise UserError(f"trace file '{path}', line {number}: found a {kind}, expected one JSON object a line"
                            f"{_lines_of(path) * (found == [])}")
        yield number, found


def _unfolded(path: Path, number: int, form: str, one: dict[str, Any], kept: dict[Any, Any]) -> list[dict[str, Any]]:
    """Returns the rows of a nested object."""
    try:
        return FORMS[form].rows(one, kept)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, OverflowError) as error:
        trouble = f"key {error} is missing" if isinstance(error, KeyError) else str(error)
        raise UserError(f"trace file '{path}', line {number}: not of the form '{form}': {trouble}; docs/traces.md "
                        "says what it has") from None


def _json_column(rows: Sequence[Mapping[str, Any]], name: str) -> Column:
    """Returns a column: values of one type keep it, lists of integers stay lists, the rest become text."""
    values = [row.get(name) for row in rows]
    # pyarrow would recurse into nested lists and could overflow the stack.
    listed = any(isinstance(value, (list, dict)) for value in values)
    for kind in (pa.list_(pa.int64()), pa.list_(pa.uint64())) if listed else (None, pa.uint64()):
        try:
            return pa.chunked_array([pa.array(values, kind)])
        except (pa.ArrowException, OverflowError, UnicodeError, TypeError, ValueError):
            pass
    return pa.chunked_array([pa.array(map(_json_text, values), pa.string())])


def _json_text(value: Any) -> str | None:
    if isinstance(value, list):
        return " ".join(map(json.dumps, value))
    text = value if value is None or isinstance(value, str) else json.dumps(value)
    return text and text.encode("utf-8", "replace").decode()
