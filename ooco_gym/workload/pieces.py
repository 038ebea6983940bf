"""Files in pieces: CSV, JSON lines or Parquet (gzip allowed on the first two), recognised by content, read by pyarrow.

A piece is some 16 MB of text or a quarter of a million rows of Parquet: what a file of any size takes of memory.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from ooco_gym.errors import UserError, nearest
from ooco_gym.workload.tables import Column, Lines, Table

ENDINGS = (".csv", ".jsonl", ".json", ".parquet", ".gz")
PIECE_BYTES = 1 << 24
PIECE_ROWS = 1 << 18
LONGEST_LINE_BYTES = 1 << 26
_TEXT_COLUMNS = ("class", "prefix_hashes", "hash_ids", "Model", "Log Type")
_PACKED = {b"PK\x03\x04": "a ZIP archive", b"\x28\xb5\x2f\xfd": "packed with Zstandard", b"BZh": "packed with bzip2",
           b"\xfd7zXZ": "packed with xz", b"\x1f\x8b": "gzipped twice", b"PAR1": "a gzipped Parquet"}
_BROKEN = (pa.ArrowException, OSError, EOFError, zlib.error, UnicodeError, ValueError, csv.Error)


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
    except _BROKEN as error:
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
    try:
        table = pyarrow.json.read_json(pa.BufferReader(data), read_options=pyarrow.json.ReadOptions(
            block_size=len(data) + 1, use_threads=False))
    except (pa.ArrowException, UnicodeError):
        return _read_json_slowly(path, lines)
    columns = dict(zip(_names(path, table.column_names), table.columns, strict=True))
    return Table(path, columns, table.num_rows, "jsonl", lines=lines)


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
