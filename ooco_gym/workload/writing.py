"""Writing traces: CSV, JSON lines or Parquet by the file's ending; docs/traces.md describes the columns."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ooco_gym.errors import UserError, nearest
from ooco_gym.files import atomic_write
from ooco_gym.workload.trace import NO_SESSION, Hashes, Trace

SCHEMA_VERSION = 1
METADATA = {"ooco_gym.trace": str(SCHEMA_VERSION)}
ROW_GROUP = 131_072
_ENDINGS = (".csv", ".csv.gz", ".jsonl", ".jsonl.gz", ".parquet")


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
        with atomic_write(path) as temporary:
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
    with pyarrow.parquet.ParquetWriter(path, waiting.schema, write_page_checksum=True) as writer:
        for table in tables:
            waiting = pa.concat_tables([waiting, table])
            whole = waiting.num_rows // ROW_GROUP * ROW_GROUP
            if whole:
                writer.write_table(waiting.slice(0, whole), row_group_size=ROW_GROUP)
                waiting = waiting.slice(whole).combine_chunks()
        if waiting.num_rows:
            writer.write_table(waiting, row_group_size=ROW_GROUP)


def trace_table(trace: Trace) -> Any:
    """Returns the trace as a pyarrow table: the columns of docs/traces.md, those that the trace lacks left out."""
    import pyarrow as pa

    columns: dict[str, Any] = {
        "arrival_s": pa.array(trace.arrival_s), "prompt_tokens": pa.array(trace.prompt_tokens),
        "output_tokens": pa.array(trace.output_tokens), "class": class_column(trace.online)}
    for name in ("ttft_slo_s", "tpot_slo_s", "session"):
        if getattr(trace, name) is not None:
            columns[name] = optional_column(getattr(trace, name))
    if trace.prefix_hashes is not None:
        columns["prefix_hashes"] = hash_column(trace.prefix_hashes)
    return pa.table(columns).replace_schema_metadata(METADATA)


def class_column(online: np.ndarray) -> Any:
    """Returns bool[n] as a pyarrow column of `online` and `offline`."""
    import pyarrow as pa

    return pa.array(np.where(online, "online", "offline"), pa.string())


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
