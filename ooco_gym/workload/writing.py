"""Writing traces: CSV, JSON lines or Parquet by the file's ending; docs/traces.md describes the columns."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from ooco_gym.errors import UserError, nearest
from ooco_gym.files import atomic_write
from ooco_gym.workload.trace import LISTS, NO_SESSION, SECONDS, Trace, class_ids

METADATA = {"ooco_gym.trace": "1"}      # version of the schema
ROW_GROUP = 131_072
_ENDINGS = (".csv", ".csv.gz", ".jsonl", ".jsonl.gz", ".parquet")


def write_trace(trace: Trace, path: str | os.PathLike[str]) -> Path:
    """Writes a trace so that `read_trace` returns it bit for bit; a failed write leaves no file.

    Args:
        trace: to write; its name and notes are not kept.
        path: ends with .csv, .csv.gz, .jsonl, .jsonl.gz or .parquet. A Parquet has row groups of 131,072 requests.

    Returns:
        The path.

    Raises:
        UserError: another ending, or the folder cannot be written.
    """
    path = Path(path)
    ending, table = check_ending(path), trace_table(trace)
    try:
        with atomic_write(path, "trace ") as temporary:
            if ending == ".parquet":
                pyarrow.parquet.write_table(table, temporary, row_group_size=ROW_GROUP, write_page_checksum=True)
                return path
            with pa.OSFile(str(temporary), "wb") as file:
                if ending.endswith(".gz"):
                    with pa.CompressedOutputStream(file, "gzip") as packed:
                        _write_text(table, packed, ending)
                else:
                    _write_text(table, file, ending)
    except OSError as error:
        raise UserError(f"cannot write trace '{path}': {error.strerror or error}") from None
    return path


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


def trace_table(trace: Trace) -> Any:
    """Returns the trace as a pyarrow table: the columns of docs/traces.md, those that are missing left out."""
    ids, names = class_ids(trace)
    columns: dict[str, Any] = {
        "arrival_s": pa.array(trace.arrival_s), "prompt_tokens": pa.array(trace.prompt_tokens),
        "output_tokens": pa.array(trace.output_tokens),
        "class": pa.DictionaryArray.from_arrays(pa.array(ids), list(names)).cast(pa.string())}
    for name in (*SECONDS, "think_s", "session", "client", "job"):
        values = getattr(trace, name)
        if values is not None:
            none = np.isnan(values) if values.dtype.kind == "f" else values == NO_SESSION
            columns[name] = pa.array(values, mask=none)
    if trace.key is not None:
        columns["id"] = pa.array(trace.key)
    for name, (offsets, values) in trace.lists().items():
        columns[name] = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values)).cast(pa.list_(pa.int64()))
    if trace.prefix_hashes is not None:
        columns["block_tokens"] = pa.array(np.full(len(trace), trace.block_tokens, np.int32))
    return pa.table(columns).replace_schema_metadata(METADATA)


def _write_text(table: pa.Table, file: Any, ending: str) -> None:
    if ending.startswith(".jsonl"):
        for batch in table.to_batches(max_chunksize=10_000):
            file.write("".join(json.dumps(row) + "\n" for row in batch.to_pylist()).encode())
        return
    for name in set(LISTS) & set(table.column_names):   # in CSV, numbers separated by blanks
        texts = pc.call_function("binary_join", [table[name].combine_chunks().cast(pa.list_(pa.string())),
                                                 pa.scalar(" ")])
        table = table.set_column(table.column_names.index(name), name, texts)
    file.write((",".join(table.column_names) + "\n").encode())      # pyarrow would quote the names
    pyarrow.csv.write_csv(table, file, pyarrow.csv.WriteOptions(include_header=False))
