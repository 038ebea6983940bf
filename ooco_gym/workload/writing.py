"""Writing traces: CSV, JSON lines or Parquet by the file's ending; docs/traces.md describes the columns."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from ooco_gym.errors import UserError, nearest
from ooco_gym.files import atomic_write, remove_stale
from ooco_gym.workload.arrow import METADATA, trace_table
from ooco_gym.workload.formats import TraceFormat
from ooco_gym.workload.index import Index
from ooco_gym.workload.intake import Intake
from ooco_gym.workload.pieces import Table
from ooco_gym.workload.trace import SECONDS, Trace

ROW_GROUP = 131_072
_ENDINGS = (".csv", ".csv.gz", ".jsonl", ".jsonl.gz", ".parquet")
MERGED_ROWS = 1 << 19       # sorted at a time while converting
SAMPLES = 256               # ticks by which these are found
_TYPES = {"prompt_tokens": pa.int32(), "output_tokens": pa.int32(), "class": pa.string(),
          **dict.fromkeys(SECONDS, pa.float64()), "session": pa.int64(), "prefix_hashes": pa.list_(pa.int64())}


def write_trace(trace: Trace, path: str | os.PathLike[str]) -> Path:
    """Writes a trace so that `read_trace` gives it back, bit for bit; nothing half-written is left behind.

    Args:
        trace: what to write; its name and notes are not kept.
        path: ends with .csv, .csv.gz, .jsonl, .jsonl.gz or .parquet. A Parquet has row groups of 131,072 requests.

    Returns:
        The path.

    Raises:
        UserError: another ending, or the folder cannot be written.
    """
    return write_tables([trace_table(trace)], Path(path))


def write_lengths(prompt_tokens: np.ndarray | None, output_tokens: np.ndarray | None,
                  path: str | os.PathLike[str]) -> Path:
    """Writes a set of lengths without arrivals: the columns `prompt_tokens` and `output_tokens`, int32.

    Raises:
        UserError: another ending than `write_trace` knows, or the folder cannot be written.
    """
    columns = {"prompt_tokens": prompt_tokens, "output_tokens": output_tokens}
    return write_tables([pa.table({name: pa.array(values, pa.int32()) for name, values in columns.items()
                                   if values is not None})], Path(path))


def check_ending(path: Path) -> str:
    """Returns a trace file's ending.

    Raises:
        UserError: it is not one that can be written.
    """
    ending = next((item for item in sorted(_ENDINGS, key=len, reverse=True) if path.name.endswith(item)), None)
    if ending is None:
        raise UserError(f"cannot write trace '{path}': its ending must be one of {', '.join(_ENDINGS)}"
                        f"{nearest(path.suffix, _ENDINGS)}")
    return ending


def write_tables(tables: Iterable[Any], path: Path) -> Path:
    """Writes pyarrow tables of one schema, one after the other, as one file; `tables` must not be empty.

    Raises:
        UserError: an ending that is not known, or the file cannot be written.
    """
    ending = check_ending(path)
    try:
        with atomic_write(path, "trace ") as temporary:
            if ending == ".parquet":
                _write_parquet(iter(tables), temporary)
                return path
            with pa.OSFile(str(temporary), "wb") as file:
                if ending.endswith(".gz"):
                    with pa.CompressedOutputStream(file, "gzip") as packed:
                        _write_texts(tables, packed, ending)
                else:
                    _write_texts(tables, file, ending)
    except OSError as error:
        raise UserError(f"cannot write trace '{path}': {error.strerror or error}") from None
    return path


def _write_parquet(tables: Iterator[Any], path: Path) -> None:
    """Writes row groups of `ROW_GROUP` rows, whatever the tables' sizes are."""
    waiting = next(tables)
    index = Index(waiting.schema)
    with pyarrow.parquet.ParquetWriter(path, waiting.schema, write_page_checksum=True) as writer:
        for table in tables:
            waiting = pa.concat_tables([waiting, table])
            whole = waiting.num_rows // ROW_GROUP * ROW_GROUP
            if whole:
                writer.write_table(waiting.slice(0, whole), row_group_size=ROW_GROUP)
                index.add(waiting.slice(0, whole), ROW_GROUP)
                waiting = waiting.slice(whole).combine_chunks()
        if waiting.num_rows:
            writer.write_table(waiting, row_group_size=ROW_GROUP)
            index.add(waiting, ROW_GROUP)
        writer.add_key_value_metadata(index.metadata())


def _write_texts(tables: Iterable[Any], file: Any, ending: str) -> None:
    for number, table in enumerate(tables):
        if ending.startswith(".jsonl"):
            for batch in table.to_batches(max_chunksize=10_000):
                file.write("".join(json.dumps(row) + "\n" for row in batch.to_pylist()).encode())
            continue
        if number == 0:
            file.write((",".join(table.column_names) + "\n").encode())
        pyarrow.csv.write_csv(_with_joined_lists(table), file, pyarrow.csv.WriteOptions(include_header=False))


def _with_joined_lists(table: Any) -> Any:
    """Returns the table with its hash lists as text: numbers with blanks between."""
    if "prefix_hashes" not in table.column_names:
        return table
    lists = table["prefix_hashes"].combine_chunks()
    texts = pc.call_function("binary_join", [lists.cast(pa.list_(pa.string())), pa.scalar(" ")])
    return table.set_column(table.column_names.index("prefix_hashes"), "prefix_hashes", texts)


@dataclass(frozen=True)
class Converted:
    """What a conversion wrote.

    Attributes:
        requests: how many.
        first_s: arrival of the first, seconds.
        last_s: arrival of the last, seconds.
        notes: repairs, drops and doubts, one sentence each.
    """

    requests: int
    first_s: float
    last_s: float
    notes: tuple[str, ...]


def convert(pieces: Iterable[Table], form: TraceFormat, path: Path, to: Path,
            tell: Callable[[int], None] = lambda rows: None) -> Converted:
    """Writes the requests of a file's pieces, sorted by time, in our schema; holds no more than a few pieces.

    Args:
        pieces: of the file (`read_pieces`).
        form: how to read them.
        path: the file, for messages.
        to: where to; its ending says the kind, as with `write_trace`.
        tell: called with how many requests have been read.

    Raises:
        UserError: whatever `read_trace` refuses, or the result cannot be written.
    """
    check_ending(to)
    intake = Intake(path, form)
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        remove_stale(to)
        with TemporaryDirectory(dir=to.parent, prefix=f".{to.name}.{os.getpid()}.tmp") as folder:
            spool = Path(folder) / "spool.parquet"
            names, some = _spool(intake, pieces, spool, tell)
            write_tables((_final(table, intake, names) for table in in_order(spool, some)), to)
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"cannot write trace '{to}': {getattr(error, 'strerror', None) or error}") from None
    first_s, last_s = intake.seconds(np.array([intake.first, intake.last]))
    return Converted(intake.kept, float(first_s), float(last_s), intake.notes())


def _spool(intake: Intake, pieces: Iterable[Table], path: Path,
           tell: Callable[[int], None]) -> tuple[set[str], np.ndarray]:
    """Writes each piece as a row group, in the file's order.

    Returns:
        The columns that any piece has, and one tick of each `MERGED_ROWS / SAMPLES` requests, sorted.
    """
    every = max(1, MERGED_ROWS // SAMPLES)
    names: set[str] = set()
    some: list[np.ndarray] = []
    kind = pa.int64() if intake.clock.unit == "date" else pa.float64()
    schema = pa.schema({"tick": kind, "row": pa.int64(), **_TYPES})
    with pyarrow.parquet.ParquetWriter(path, schema, compression="lz4") as writer:
        for requests in intake.requests(pieces):
            n = requests.num_rows
            columns = {name: requests[name] for name in requests.column_names}
            columns["row"] = pa.array(np.arange(intake.kept - n, intake.kept))
            table = pa.table({field.name: columns.get(field.name, pa.nulls(n, field.type)) for field in schema}, schema)
            writer.write_table(table, row_group_size=n)
            names |= set(columns)
            some.append(np.sort(columns["tick"].to_numpy())[::every])
            tell(intake.rows)
    return names, np.sort(np.concatenate(some))


def in_order(path: Path, some: np.ndarray) -> Iterator[pa.Table]:
    """Yields a spool's rows in order of (tick, row), some `MERGED_ROWS` at a time.

    Each part is the rows between two ticks; Parquet's statistics say which row groups these are in. Of a file in order
    that is one or two, of one in no order all of them for each part.
    """
    import pyarrow.dataset

    spool = pyarrow.dataset.dataset(path, format=pyarrow.dataset.ParquetFileFormat(pre_buffer=False))
    edges = np.unique(some[::min(SAMPLES, MERGED_ROWS)]).tolist()
    for low, high in pairwise([*edges, None]):
        inside = pyarrow.dataset.field("tick") >= low
        if high is not None:
            inside &= pyarrow.dataset.field("tick") < high
        part = spool.to_table(filter=inside, batch_readahead=1, fragment_readahead=1, use_threads=False)
        yield part.sort_by([("tick", "ascending"), ("row", "ascending")])


def _final(table: pa.Table, intake: Intake, names: set[str]) -> pa.Table:
    """Returns sorted rows in our schema: seconds for ticks, and the optional columns that the file has."""
    columns: dict[str, Any] = {"arrival_s": pa.array(intake.seconds(table["tick"].to_numpy()))}
    columns |= {name: table[name] for name in _TYPES if name in names or name == "class"}
    columns["class"] = table["class"].fill_null("online")
    return pa.table(columns).replace_schema_metadata(METADATA)
