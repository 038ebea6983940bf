"""Writing traces: CSV, JSON lines or Parquet by the file's ending; docs/traces.md describes the columns."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from ooco_gym.errors import UserError, nearest
from ooco_gym.files import atomic_write, remove_stale
from ooco_gym.workload.formats import Draft, TraceFormat
from ooco_gym.workload.index import Index
from ooco_gym.workload.intake import Intake, take
from ooco_gym.workload.pieces import Table
from ooco_gym.workload.trace import NO_SESSION, SECONDS, Hashes, Trace, class_ids

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet


SCHEMA_VERSION = 1
METADATA = {"ooco_gym.trace": str(SCHEMA_VERSION)}
ROW_GROUP = 131_072
_ENDINGS = (".csv", ".csv.gz", ".jsonl", ".jsonl.gz", ".parquet")
MERGED_ROWS = 1 << 20       # held while merging, over all runs
_OPTIONAL = (*SECONDS, "session", "prefix_hashes")


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
    import pyarrow as pa

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
    import pyarrow as pa

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
    import pyarrow as pa
    import pyarrow.parquet

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


def trace_table(trace: Trace) -> Any:
    """Returns the trace as a pyarrow table: the columns of docs/traces.md, those that are missing left out."""
    import pyarrow as pa

    columns: dict[str, Any] = {
        "arrival_s": pa.array(trace.arrival_s), "prompt_tokens": pa.array(trace.prompt_tokens),
        "output_tokens": pa.array(trace.output_tokens), "class": class_column(trace)}
    for name in (*SECONDS, "session"):
        if getattr(trace, name) is not None:
            columns[name] = optional_column(getattr(trace, name))
    if trace.prefix_hashes is not None:
        columns["prefix_hashes"] = hash_column(trace.prefix_hashes)
    return pa.table(columns).replace_schema_metadata(METADATA)


def class_column(requests: Trace | Draft) -> Any:
    """Returns the classes of requests as a pyarrow column of their names."""
    import pyarrow as pa

    ids, names = class_ids(requests)
    return pa.DictionaryArray.from_arrays(pa.array(ids), list(names)).cast(pa.string())


def optional_column(values: np.ndarray) -> Any:
    """Returns seconds (NaN: none) or sessions (-1: none) as a pyarrow column with nulls."""
    import pyarrow as pa

    return pa.array(values, mask=np.isnan(values) if values.dtype.kind == "f" else values == NO_SESSION)


def hash_column(hashes: Hashes) -> Any:
    """Returns (offsets, values) as a pyarrow column of lists of int64."""
    import pyarrow as pa

    return pa.LargeListArray.from_arrays(pa.array(hashes[0]), pa.array(hashes[1])).cast(pa.list_(pa.int64()))


def _write_texts(tables: Iterable[Any], file: Any, ending: str) -> None:
    import pyarrow.csv

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
    import pyarrow as pa
    import pyarrow.compute as pc

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
    import pyarrow as pa
    import pyarrow.parquet

    check_ending(to)
    intake = Intake(path, form)
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        remove_stale(to)
        with TemporaryDirectory(dir=to.parent, prefix=f".{to.name}.{os.getpid()}.tmp") as folder:
            sorted_runs = Path(folder) / "runs.parquet"
            runs, seen = _write_runs(intake, pieces, sorted_runs, tell)
            with pyarrow.parquet.ParquetFile(sorted_runs, buffer_size=1 << 16, pre_buffer=False) as file:
                write_tables((_final(table, intake, seen) for table in merged(file, runs)), to)
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"cannot write trace '{to}': {getattr(error, 'strerror', None) or error}") from None
    first_s, last_s = intake.seconds(np.array([intake.first, intake.last]))
    return Converted(intake.kept, float(first_s), float(last_s), intake.notes())


def _write_runs(intake: Intake, pieces: Iterable[Table], path: Path,
                tell: Callable[[int], None]) -> tuple[list[tuple[float, float]], set[str]]:
    """Writes each piece, sorted, as a row group; returns their first and last ticks, and the optional columns seen."""
    import pyarrow.parquet

    runs, seen = [], set()
    writer = None
    try:
        for draft in intake.drafts(pieces):
            table = _run_table(draft, intake.kept - len(draft.ticks))
            seen |= {name for name in _OPTIONAL if getattr(draft, name) is not None}
            writer = writer or pyarrow.parquet.ParquetWriter(path, table.schema, compression="lz4")
            writer.write_table(table, row_group_size=table.num_rows)
            runs.append((table["tick"][0].as_py(), table["tick"][-1].as_py()))
            tell(intake.rows)
    finally:
        if writer is not None:
            writer.close()
    return runs, seen


def _run_table(draft: Draft, first_row: int) -> pa.Table:
    """Returns a piece's requests sorted by time, with all columns that there can be, as one run."""
    import pyarrow as pa

    n = len(draft.ticks)
    order = np.argsort(draft.ticks, kind="stable")
    draft = take(draft, order)
    columns: dict[str, Any] = {
        "tick": pa.array(draft.ticks), "row": pa.array(first_row + order),
        "prompt_tokens": pa.array(draft.prompt_tokens, pa.int32()),
        "output_tokens": pa.array(draft.output_tokens, pa.int32()),
        "class": class_column(draft)}
    for name, kind in (*((name, pa.float64()) for name in SECONDS), ("session", pa.int64())):
        values = getattr(draft, name)
        columns[name] = pa.nulls(n, kind) if values is None else optional_column(values)
    columns["prefix_hashes"] = (pa.nulls(n, pa.list_(pa.int64())) if draft.prefix_hashes is None
                                else hash_column(draft.prefix_hashes))
    return pa.table(columns)


def _final(table: pa.Table, intake: Intake, seen: set[str]) -> pa.Table:
    """Returns merged rows in our schema: seconds for ticks, and the optional columns that the file has."""
    import pyarrow as pa

    columns = {"arrival_s": pa.array(intake.seconds(table["tick"].to_numpy())),
               "prompt_tokens": table["prompt_tokens"], "output_tokens": table["output_tokens"],
               "class": table["class"]}
    columns |= {name: table[name] for name in _OPTIONAL if name in seen}
    return pa.table(columns).replace_schema_metadata(METADATA)


class _Run:
    """One run being merged: what is read of it, and the last (tick, row) of that."""

    def __init__(self, file: pyarrow.parquet.ParquetFile, group: int, batch_rows: int) -> None:
        self._batches = file.iter_batches(batch_size=batch_rows, row_groups=[group], use_threads=False)
        self.refill()

    def refill(self) -> bool:
        """Reads the next batch; False where there is none."""
        import pyarrow as pa

        batch = next(self._batches, None)
        if batch is not None:
            self.table = pa.Table.from_batches([batch])
            self.tick, self.row = self.table["tick"].to_numpy(), self.table["row"].to_numpy()
        return batch is not None

    @property
    def end(self) -> tuple[float, int]:
        return self.tick[-1], self.row[-1]

    def split(self, cut: tuple[float, int]) -> pa.Table:
        """Takes away and returns what is not after (tick, row)."""
        left, right = np.searchsorted(self.tick, cut[0], "left"), np.searchsorted(self.tick, cut[0], "right")
        count = int(left + np.searchsorted(self.row[left:right], cut[1], "right"))
        taken = self.table.slice(0, count)
        self.table, self.tick, self.row = self.table.slice(count), self.tick[count:], self.row[count:]
        return taken


def merged(file: pyarrow.parquet.ParquetFile, runs: list[tuple[float, float]]) -> Iterator[pa.Table]:
    """Yields the rows of sorted row groups in order of (tick, row).

    Args:
        file: one row group a run.
        runs: (first, last) tick of each.
    """
    import pyarrow as pa

    waiting = sorted(range(len(runs)), key=lambda run: (runs[run][0], run), reverse=True)
    batch_rows = max(1024, MERGED_ROWS // (8 * most_open(runs)))
    open_runs: list[_Run] = []
    while waiting or open_runs:
        while waiting and (not open_runs or runs[waiting[-1]][0] <= min(run.end for run in open_runs)[0]):
            open_runs.append(_Run(file, waiting.pop(), batch_rows))
        cut = min(run.end for run in open_runs)
        parts = [part for run in open_runs if (part := run.split(cut)).num_rows]
        table = pa.concat_tables(parts) if len(parts) > 1 else parts[0]
        if len(parts) > 1:
            table = table.take(pa.array(np.lexsort((table["row"].to_numpy(), table["tick"].to_numpy()))))
        yield table.combine_chunks()
        open_runs = [run for run in open_runs if len(run.tick) or run.refill()]


def most_open(runs: list[tuple[float, float]]) -> int:
    """Returns how many of the intervals overlap at most."""
    edges = sorted([(low, 0, 1) for low, _ in runs] + [(high, 1, -1) for _, high in runs])
    return int(np.max(np.cumsum([step for *_, step in edges])))
