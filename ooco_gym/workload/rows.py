"""Selection of the rows of a file that are load: those the user chose, without failed requests and
warm-up.

A column is recognised by the last part of its name, in any letter case: `response.status_code` is a
`status_code`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ooco_gym.errors import UserError, nearest
from ooco_gym.workload.formats import LOG_TOKENS, few, played
from ooco_gym.workload.table_reader import TraceTable

FAILED = ("error", "failed", "failure", "timeout", "timed_out", "cancelled", "canceled", "abort", "aborted", "rejected")
NO_COUNT = ("", "-", "0", "none", "null", "nan")  # in both lengths
NOTHING = ("", "-", "0", "none", "null", "nan", "false", "no", "ok", "[]", "{}")
NO_CALL = ("agent", "workflow", "chain", "task", "tool", "retrieval", "retriever", "embedding")     # kinds of spans
STATUS_ERROR = r"^[45]\d\d(\.0)?$"  # HTTP status
DOUBLED_SHARE = 0.01    # share of rows equal to an earlier one from which there is a warning


def _words(texts: Any, words: Sequence[str]) -> Any:
    return pc.call_function("is_in", [texts], pc.SetLookupOptions(pa.array(words, pa.string())))


def _failed(texts: Any) -> Any:
    return pc.call_function("or", [_words(texts, FAILED), pc.call_function(
        "match_substring_regex", [texts], pc.MatchSubstringOptions(STATUS_ERROR))])


# By column name: which values, in lower case, mean that a row is no load, and the reason for messages.
NO_LOAD: tuple[tuple[tuple[str, ...], str, Callable[[Any], Any]], ...] = (
    (("status", "status_code", "statuscode", "http_status", "http_status_code", "response_status", "response_code",
      "finish_reason", "finish_reasons", "level"), "failed", _failed),
    (("cancelled", "canceled", "was_cancelled", "has_error", "is_error"), "failed",
     lambda texts: _words(texts, ("true", "1", "yes"))),
    (("span_kind", "run_type"), "call no model", lambda texts: _words(texts, NO_CALL)),
    (("error", "error_code", "error_type", "error_message", "exception"), "failed",
     lambda texts: pc.call_function("invert", [_words(texts, NOTHING)])),
    (("success", "succeeded", "is_success", "ok"), "failed", lambda texts: _words(texts, ("false", "0", "no"))),
    (("benchmark_phase", "phase"), "are a warm-up", lambda texts: _words(texts, ("warmup", "warm-up", "warm_up"))))
MODELS = ("model", "model_name", "model_id", "served_model", "served_model_name", "deployment")
IDS = ("id", "request_id", "requestid", "req_id", "x_request_id", "response_id")
COUNTS = ("num_model_requests", "num_requests", "request_count", "requests_count", "n_requests", "requests",
          "num_prompts", "completed")
TOLD = frozenset((*(name for names, *_ in NO_LOAD for name in names), *MODELS, *IDS, *COUNTS))


def named(name: str) -> str:
    """Returns the last part of a column's name, normalised for look-up."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|[- ]", "_", re.split(r"[./]", name)[-1].strip()).casefold()


def loaded(table: TraceTable, read: Mapping[str, str], only: Mapping[str, Any] | None = None,
           distinct: bool = False) -> tuple[TraceTable, list[str]]:
    """Returns the rows of a table that are load, and notes on the others.

    Args:
        table: of the file.
        read: our columns to the file's, for the columns that are read.
        only: the file's columns to the value, or values, that a row must have.
        distinct: drops rows that equal an earlier one in all columns.

    Raises:
        UserError: an unknown column, a value that no row has, rows that each stand for many
            requests, or no row left.
    """
    chosen = flat(only)
    for name, values in chosen.items():
        table = _chosen(table, name, [str(one) for one in (values if isinstance(values, list | tuple) else [values])])
    free = [name for name in table.columns if name not in (*read.values(), *chosen)]
    notes, kept = [], np.ones(table.rows, bool)
    for name in free:
        for names, what, tells in NO_LOAD:
            if named(name) in names:
                kept &= _without(table, name, what, tells, notes)
    if not kept.any():
        raise UserError(f"trace file '{table.path}': {notes[-1]}, and none is left")
    table = table if kept.all() else table.take(np.flatnonzero(kept))
    table, lacking = _counted(table, read)
    table, doubled = _once(table, read, free, distinct)
    return table, [*notes, *lacking, *doubled, *_models(table, free)]


def flat(values: Mapping[str, Any] | None, above: str = "") -> dict[str, Any]:
    """Returns columns and values with dotted names joined again, which the command line parses into mappings."""
    found: dict[str, Any] = {}
    for key, value in (values or {}).items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{above}{key}.")
        elif value is not None:
            found[f"{above}{key}"] = value
    return found


def _texts(table: TraceTable, name: str) -> Any:
    """Returns a column's values as lower-case text; missing values and lists become null."""
    column = table.columns[name]
    if pa.types.is_nested(column.type):
        return pa.chunked_array([pa.nulls(len(column), pa.string())])
    return pc.call_function("utf8_lower", [pc.call_function("utf8_trim_whitespace", [column.cast(pa.string())])])


def _chosen(table: TraceTable, name: str, values: list[str]) -> TraceTable:
    if name not in table.columns:
        raise UserError(f"only.{name}: trace file '{table.path}' has no column '{name}'"
                        f"{nearest(name, table.columns)}; found: {few(table.columns, None)}")
    texts, wanted = _texts(table, name), [value.strip().casefold() for value in values]
    has = np.asarray(_words(texts, wanted).fill_null(False))
    if not {"", "null", "none"}.isdisjoint(wanted):  # rows without a value, too
        has |= np.asarray(texts.is_null()) | np.asarray(_words(texts, [""]).fill_null(False))
    kept = np.flatnonzero(has)
    if not len(kept):
        raise UserError(f"only.{name}={','.join(values)}: no row of trace file '{table.path}' has that; its values "
                        f"are: {few(texts.unique().drop_null().to_pylist())}")
    return table if len(kept) == table.rows else table.take(kept)


def _without(table: TraceTable, name: str, what: str, tells: Callable[[Any], Any], notes: list[str]) -> np.ndarray:
    """Returns a mask of the rows to keep, bool[rows]; the others are no load according to the column `name`."""
    texts = _texts(table, name)
    out = np.asarray(tells(texts).fill_null(False)) & np.asarray(texts.is_valid())
    if out.any():
        values = texts.filter(pa.array(out)).unique().to_pylist()
        known = [*texts.unique().drop_null().to_pylist()[:4], *["null"] * (texts.null_count > 0)]
        stays = f"only.{name}=[{','.join(map(str, known))}]"
        notes.append(f"left out {out.sum():,} of {table.rows:,} rows, of which column '{name}' says that they {what} "
                     f"({few(values[:6])}), the first at {table.place(int(np.argmax(out)))}; {played(stays)} names "
                     "the values to keep")
    return ~out


def _counted(table: TraceTable, read: Mapping[str, str]) -> tuple[TraceTable, list[str]]:
    """Returns the rows with a token count, and a note on the others (for example aborted answers)."""
    fields = [read["prompt_tokens"], read["output_tokens"]]
    lacks = np.ones(table.rows, bool)
    for name in fields:
        if pa.types.is_nested(table.columns[name].type):
            return table, []
        texts = _texts(table, name)
        lacks &= np.asarray(_words(texts, NO_COUNT)) | np.asarray(texts.is_null())
    if not lacks.any():
        return table, []
    what = f"without token counts in '{fields[0]}' and '{fields[1]}'"
    if lacks.all():
        raise UserError(f"trace file '{table.path}' has {table.rows:,} rows {what}, and no other; {LOG_TOKENS}")
    return table.take(np.flatnonzero(~lacks)), [
        f"left out {lacks.sum():,} of {table.rows:,} rows {what}, the first at {table.place(int(np.argmax(lacks)))}"]


def check_counts(table: TraceTable, said: Iterable[str | None]) -> None:
    """Raises UserError for rows that sum over many requests, as usage exports have; `said` are
    columns that the user names.

    Raises:
        UserError: a column counts the requests of a row, and a row has more than one.
    """
    for name in set(table.columns) - set(said):
        if named(name) in COUNTS and (counts := table.numbers_of(name)) is not None and np.nanmax(counts) > 1:
            row = int(np.nanargmax(counts > 1))
            raise UserError(f"trace file '{table.path}' has a sum a row and not a request a row: column '{name}' "
                            f"counts {counts[row]:,.0f} requests at {table.place(row)}, {np.nansum(counts):,.0f} in "
                            "all; export the single requests, or use a generator at that rate (docs/workloads.md)")


def _once(table: TraceTable, read: Mapping[str, str], free: Sequence[str],
          distinct: bool) -> tuple[TraceTable, list[str]]:
    """Returns the rows without repeated request ids or, with `distinct`, repeated rows; else a warning."""
    times = {read[name] for name in ("arrival_s", "prompt_tokens", "output_tokens") if name in read}
    for name in [name for name in free if named(name) in IDS]:
        there = np.asarray(_texts(table, name).is_valid())
        first = _firsts(table, [name, *times]) | ~there
        if not first.all():
            row = int(np.argmin(first))
            return table.take(np.flatnonzero(first)), [
                f"left out {(~first).sum():,} of {table.rows:,} rows, which are there twice (the same '{name}', time "
                f"and lengths as one before), the first at {table.place(row)}"]
        if there.all():
            return table, []
    few_rows, arrivals = max(1.0, DOUBLED_SHARE * table.rows), table.columns.get(read.get("arrival_s", ""))
    times_there = 1     # all at one time: a submitted batch
    if arrivals is not None and not pa.types.is_nested(arrivals.type):
        times_there = len(arrivals.unique())
    if not distinct and (times_there == 1 or table.rows - times_there < few_rows):
        return table, []
    first = _firsts(table, list(table.columns))
    doubled = int(np.count_nonzero(~first))
    if distinct and doubled:
        return table.take(np.flatnonzero(first)), [f"left out {doubled:,} of {table.rows:,} rows, equal to one before"]
    if distinct or doubled < few_rows:
        return table, []
    return table, [f"warning: {doubled:,} of {table.rows:,} rows are equal to one before in every column, the first at "
                   f"{table.place(int(np.argmin(first)))}, and are simulated as separate requests; "
                   f"{played('distinct=true')} leaves them out"]


def _firsts(table: TraceTable, names: Sequence[str]) -> np.ndarray:
    """Returns a mask of the rows that are the first with their values in some columns, bool[rows]."""
    columns = {name: table.columns[name] for name in names}
    for name, column in columns.items():
        if pa.types.is_nested(column.type):
            columns[name] = pc.call_function("binary_join", [column.cast(pa.list_(pa.string())), pa.scalar(" ")])
    rows = pa.table({**columns, "": np.arange(table.rows)})
    first = np.zeros(table.rows, bool)
    first[np.asarray(rows.group_by(list(columns)).aggregate([("", "min")])["_min"])] = True
    return first


def _models(table: TraceTable, free: Sequence[str]) -> list[str]:
    for name in [name for name in free if named(name) in (*MODELS, "benchmark")]:
        values = sorted(table.columns[name].cast(pa.string()).drop_null().unique().to_pylist())
        if len(values) > 1:
            return [f"warning: column '{name}' names {len(values)} {'model' if named(name) in MODELS else name}s "
                    f"({few(values)}), whose requests are all simulated as one; {played(f'only.{name}={values[0]}')} "
                    "selects one of them"]
    return []
