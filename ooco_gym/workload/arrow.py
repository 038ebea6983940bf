"""A trace as an Arrow table, as files of our schema have it (docs/traces.md), and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ooco_gym.workload.trace import DEFAULT_CLASSES, NO_SESSION, SECONDS, Trace, check_class_count, class_ids

SCHEMA_VERSION = 1
METADATA = {"ooco_gym.trace": str(SCHEMA_VERSION)}


def trace_table(trace: Trace) -> Any:
    """Returns the trace as a pyarrow table: the columns of docs/traces.md, those that are missing left out."""
    ids, names = class_ids(trace)
    columns: dict[str, Any] = {
        "arrival_s": pa.array(trace.arrival_s), "prompt_tokens": pa.array(trace.prompt_tokens),
        "output_tokens": pa.array(trace.output_tokens),
        "class": pa.DictionaryArray.from_arrays(pa.array(ids), list(names)).cast(pa.string())}
    for name in (*SECONDS, "session"):
        if getattr(trace, name) is not None:
            columns[name] = nullable(getattr(trace, name))
    if trace.prefix_hashes is not None:
        offsets, values = trace.prefix_hashes
        columns["prefix_hashes"] = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values)).cast(
            pa.list_(pa.int64()))
    return pa.table(columns).replace_schema_metadata(METADATA)


def nullable(values: np.ndarray) -> Any:
    """Returns seconds (NaN: none) or sessions (-1: none) as a pyarrow column with nulls."""
    return pa.array(values, mask=np.isnan(values) if values.dtype.kind == "f" else values == NO_SESSION)


def trace_from(table: Any, arrival_s: np.ndarray, name: str, notes: tuple[str, ...]) -> Trace:
    """Returns the requests of a table of the columns of `trace_table`, sorted by these arrivals."""
    more: dict[str, Any] = {}
    for field, missing in (*((field, np.nan) for field in SECONDS), ("session", NO_SESSION)):
        if field in table.column_names:
            more[field] = table[field].fill_null(missing).to_numpy()
    if "prefix_hashes" in table.column_names:
        lists = table["prefix_hashes"].combine_chunks()
        counts = pc.call_function("list_value_length", [lists]).fill_null(0).to_numpy(zero_copy_only=False)
        more["prefix_hashes"] = (np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
                                 lists.flatten().to_numpy(zero_copy_only=False))
    if "class" in table.column_names:
        classes = table["class"].fill_null("online").combine_chunks().dictionary_encode()
        names, ids = tuple(classes.dictionary.to_pylist()), classes.indices.to_numpy(zero_copy_only=False)
        check_class_count(names)
        more["online"] = np.array([one != "offline" for one in names], bool)[ids]
        if not set(names) <= set(DEFAULT_CLASSES):
            more |= {"class_id": ids.astype(np.int8), "class_names": names}
    lengths = (table[field].to_numpy() for field in ("prompt_tokens", "output_tokens"))
    return Trace(arrival_s, *lengths, name=name, notes=notes, **more)
