"""What is guessed of a log: the unit of its times, which columns are meant, and which rows are no load (failed, warming
up, without counts, there twice). A guess that changes what is read is a note or an error.

A column is recognised by the last part of its name, in any letter case: `response.status_code` is a `status_code`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ooco_gym.errors import UserError, nearest
from ooco_gym.workload.classes import CLASS_WORDS, OFFLINE_WORDS
from ooco_gym.workload.table_reader import TraceTable
from ooco_gym.workload.trace import MOST_CLASSES

EPOCH_S = 1e8       # three years: later than any trace is long
LATEST_S = 1e10     # the year 2286 in seconds since 1970; milliseconds since 1970 are beyond it
UNITS = {"s": ("seconds", 1.0), "ms": ("milliseconds", 1e3), "us": ("microseconds", 1e6), "ns": ("nanoseconds", 1e9)}
LIKELY = {"arrival_s": ("arriv", "start", "creat", "submit", "time", "(^|[._ ])ts$", "date"), "prompt_tokens": (
    "prompt", "input", "context", "tokens_?in$"), "output_tokens": (
    "completion", "output", "candidates", "generat", "response", "tokens_?out$")}   # parts of names
UNLIKELY = ("^end|[._ ]end|finish|complet|respon|first|updat|durat|laten", "time|max|limit|cache|total")   # of both
SURE_MS = 100       # mean gap below which Mooncake's times may be seconds
LONGEST_VALUE = 80  # longest value shown in a message
LOG_TOKENS = ("a server's response has them as usage.prompt_tokens and usage.completion_tokens (when streaming, with "
              "stream_options.include_usage): log both with each request (docs/traces.md)")
SPARSE_S, DENSE_S = 20.0, 5e-3      # mean gaps beyond which the unit is questioned
FEWEST_TO_DOUBT = 20
PRIORITIES = ("priority", "qos", "tier", "service_tier", "request_class", "lane")   # columns of classes
CACHED = re.compile("cache_?(read|creation|write)_input")  # columns of prompt tokens that a cache had
LOOKED_AT = 10_000      # values examined in an unread column
FAILED = ("error", "failed", "failure", "timeout", "timed_out", "cancelled", "canceled", "abort", "aborted", "rejected")
NO_COUNT = ("", "-", "0", "none", "null", "nan")  # in both lengths
NOTHING = ("", "-", "0", "none", "null", "nan", "false", "no", "ok", "[]", "{}")
NO_CALL = ("agent", "workflow", "chain", "task", "tool", "retrieval", "retriever", "embedding")     # kinds of spans
STATUS_ERROR = r"^[45]\d\d(\.0)?$"  # HTTP status
DOUBLED_SHARE = 0.01    # share of rows equal to an earlier one from which there is a warning


def played(*settings: str) -> str:
    """Returns options as the readers take them, and as a workload does."""
    words = " ".join(_word(setting) for setting in settings)
    of_workload = " ".join(_word(f"workload.{setting}") for setting in settings)
    return f"{words} (for a workload file, {of_workload})"


def _word(setting: str) -> str:
    """Returns an option quoted for a shell and the command line."""
    key, _, value = setting.partition("=")
    return setting if re.fullmatch(r"\[.*|[\w.@/:-]*", value) else f"'{key}=\"{value}\"'"


def few(names: Iterable[str], longest: int | None = LONGEST_VALUE) -> str:
    """Returns at most 12 names or values for a message, those that are longer shortened."""
    texts = [repr(name)[1:-1] for name in names]
    texts = [text if len(text[:longest]) == len(text) else f"{text[:longest]}…" for text in texts]
    return ", ".join(texts[:12]) + (f" and {len(texts) - 12} more" if len(texts) > 12 else "")


def unit_within(value: float, most_s: float, none: str) -> str:
    """Returns the coarsest unit in which a value is below `most_s` seconds, else `none`."""
    return next((unit for unit, (_, per_s) in UNITS.items() if value < most_s * per_s), none)


def unit_of(table: TraceTable, field: str) -> str:
    """Returns the unit evident in a column of times (dates, or numbers too large for seconds); else `auto`."""
    if table.holds_dates(field):
        return "date"
    values = table.numbers_of(field)
    largest = 0.0 if values is None else float(np.nanmax(values, initial=0.0))
    return "auto" if largest < LATEST_S else unit_within(largest, LATEST_S, "auto")


def surely_ms(table: TraceTable, field: str) -> bool:
    """Returns whether a file with Mooncake's columns has its hashes, too, and times too far apart for seconds."""
    values = table.numbers_of(field) if field in table.columns else None
    times = np.zeros(0) if values is None else values[np.isfinite(values)]
    return bool({"hash_ids", "delay"} & set(table.columns)) and (
        len(times) < 2 or not 0 < np.ptp(times) / (len(times) - 1) < SURE_MS)


def doubts(ticks: np.ndarray, unit: str, per_second: float) -> list[str]:
    """Returns a note on times whose unit is suspicious."""
    if len(ticks) <= FEWEST_TO_DOUBT or unit == "date":
        return []
    gap = float(ticks.max() - ticks.min()) / (len(ticks) - 1)
    gap_s, whole = gap / per_second, np.all(ticks == np.rint(ticks))
    if not (gap_s >= SPARSE_S and whole) and not (0 < gap_s < DENSE_S and unit != "s"):
        return []
    likely = unit_within(gap, SPARSE_S, "ns")
    return [f"read as {UNITS[unit][0]} the times are {gap_s:.3g} s apart in the mean: if they are "
            f"{UNITS[likely][0]}, import the file with time_unit={likely}"] if likely != unit else []


def of_a_batch(table: TraceTable, class_column: str | None) -> bool:
    """Returns whether all requests are offline and no column looks like a time."""
    if not class_column or _likely(table, "arrival_s") != "NAME" or any(map(table.holds_dates, table.columns)):
        return False
    classes = table.columns[class_column].cast(pa.string()).unique().to_pylist()
    return {(one or "").strip().casefold() for one in classes} <= set(OFFLINE_WORDS)


def keys_to_give(table: TraceTable, missing: Iterable[str]) -> str:
    """Returns the options that name the missing columns, in words."""
    likely = {ours: _likely(table, ours) for ours in missing}
    said = f"; say which they are: {played(*(f'columns.{ours}={name}' for ours, name in likely.items()))}"
    if list(likely.items()) == [("arrival_s", "NAME")]:
        said += "; if all requests arrive at the start, workload.class=offline (of ooco-gym data, at_once=true)"
    return said + f"; if none has token counts, {LOG_TOKENS}" * ("NAME" in likely.values() and len(likely) > 1)


def _likely(table: TraceTable, ours: str) -> str:
    """Returns the column whose name is most like one of ours; NAME if there is none."""
    last = {name: name.rpartition(".")[2].casefold() for name in table.columns}
    found = [name for word in LIKELY[ours] for name in last
             if re.search(word, last[name]) and not re.search(UNLIKELY[ours != "arrival_s"], last[name])]
    tokens = [name for name in found if ("tok" in name.casefold()) == (ours != "arrival_s")]
    return [*tokens, *found, "NAME"][0]


def unread(table: TraceTable, read: Mapping[str, str], known: Sequence[str]) -> list[str]:
    """Returns notes on columns neither `read` nor `known`, first on those that look like classes of requests."""
    notes, left_out = [], [name for name in table.columns if name not in (*read.values(), *known)]
    for name in left_out if "class" not in read else ():
        column, priority = table.columns[name], named(name) in PRIORITIES
        if not (priority or pa.types.is_string(column.type)) or pa.types.is_nested(column.type):
            continue
        values = sorted(str(value) for value in column[:LOOKED_AT].drop_null().unique().to_pylist())
        if priority * 2 <= len(values) <= MOST_CLASSES and (priority or any(
                one.casefold() in CLASS_WORDS for one in values)):
            key, numbers = f"columns.class={name}", ", numbers as p0, p1, …" * values[0].isdigit()
            notes.append(f"warning: column '{name}' looks like classes of requests ({few(values)}) and is not read: "
                         f"all requests count as online; {key} reads it (for a workload file, workload.{key}){numbers}")
    prompt = read["prompt_tokens"]
    for name in left_out if "input" in named(prompt) else ():
        if CACHED.match(named(name)) and (counts := table.numbers_of(name)) is not None and np.nansum(counts) > 0:
            notes.append(f"warning: column '{name}' has {np.nansum(counts):,.0f} tokens of prompts and is not read; in "
                         f"Anthropic's and Bedrock's logs '{prompt}' is without them: add them to it in the file")
    return [*notes, *([f"columns left out: {few(left_out, None)}"] if left_out else [])]


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


def check_counts(table: TraceTable, columns: Mapping[str, str | None] | None, only: Mapping[str, Any] | None) -> None:
    """Raises UserError for rows that sum over many requests, as usage exports have, by a column that counts a row's
    requests and that the user does not name in `columns` or `only`."""
    said = {*(columns or {}).values(), *flat(only)}
    for name in set(table.columns) - said:
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
