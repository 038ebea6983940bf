"""Conversion of a file's columns to a trace.

A `TraceFormat` turns the columns of a `TraceTable` into a `Trace`, with notes on repairs and oddities.
Each value is checked; an error names its row.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from ooco_gym.errors import UserError
from ooco_gym.workload.classes import NAME, NAMED
from ooco_gym.workload.formats import TraceFormat, format_of
from ooco_gym.workload.guesses import (
    EPOCH_S,
    LATEST_S,
    UNITS,
    check_counts,
    doubts,
    loaded,
    played,
    unit_within,
    unread,
)
from ooco_gym.workload.keyed import scattered
from ooco_gym.workload.sessions import edges_of, in_circles, previous_turns
from ooco_gym.workload.table_reader import TraceTable, read_table, unreadable
from ooco_gym.workload.trace import (
    BLOCK_TOKENS,
    DEFAULT_CLASSES,
    MAX_TOKENS,
    SECONDS,
    Hashes,
    Trace,
    check_class_count,
    take_hashes,
)
from ooco_gym.workload.transforms import stretched
from ooco_gym.workload.unfolding import FORMS

DATE = "a date and time such as 2023-11-16 18:15:46.680590"
MAX_NS = 2**63 - 1
USUAL_BLOCKS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)  # tokens per hash that are tried
LONGEST_USUAL = 1_000_000
TIMES = ("ttft_s", "e2e_s")     # measured times in nested forms, for `calibrate replay`


def read_whole(path: Path, format: str, *, columns: Mapping[str, str | None] | None = None, time_unit: str = "auto",
          time_scale: float | None = None, block_tokens: int | None = None, at_once: bool | str = False,
          **rows: Any) -> tuple[Trace, TraceFormat, TraceTable]:
    """Reads a whole file; returns its trace, format and table."""
    table = read_table(path)
    if table.rows == 0:
        where = f" of the form '{table.form}' (docs/traces.md)" if table.form else ""
        raise UserError(f"trace file '{path}' holds no request{where}")
    check_counts(table, columns, rows.get("only"))
    form = format_of(table, format, columns, time_unit, block_tokens, at_once)
    trace = trace_of(table, form, **rows)
    return trace if time_scale is None else stretched(trace, time_scale), form, table


def trace_of(table: TraceTable, form: TraceFormat, only: Mapping[str, Any] | None = None,
             distinct: bool = False) -> Trace:
    """Returns the trace in a file's columns, with repairs and errors as in `read_trace`."""
    there = form.there(table)
    try:
        table, left_out = loaded(table, there, only, distinct)
        timed, at_once = not form.untimed(table), "arrival_s" not in there
        ticks = _ticks(table, there["arrival_s"], form.unit) if timed and not at_once else np.zeros(table.rows)
        found = _columns(table, form, there)
        ticks = ticks if timed else _planned(table, there, form, found)
        hashes, block_tokens = _hashes(table, form, there, found["prompt_tokens"])
        after = found.pop("after", None)
        ends = _ends(table, form, there, ticks)
    except (pa.ArrowException, UnicodeError) as error:  # for example a corrupt Parquet file
        raise unreadable(table.path, error) from None
    kept, checked = _served(table, found)
    ticks = ticks[kept]
    origin = form.origin(ticks.min())
    moved = [f"times{' since 1970' * (form.unit != 'date')} count from the first request"] if origin else []
    untimed = [f"turns without times wait for the turn before: sessions are closed, and their delays are "
               f"{UNITS[form.unit][0]} after the turn before"] if not timed else [
                   "no column has times: all requests arrive at 0 s"] * at_once
    doubted = [] if form.name in FORMS else doubts(ticks, form.unit, form.per_second)  # nested forms are sure
    notes = [*untimed, *moved, *left_out, *doubted, *unread(table, there, (form.parent, *TIMES)), *checked]
    late = int(np.count_nonzero(ticks[1:] < ticks[:-1]))
    if late:
        notes += [f"sorted by time: {late} of {len(ticks)} requests were earlier than the previous "
                  "one"] if timed else []
        order = np.argsort(ticks, kind="stable")
        ticks, kept = ticks[order], kept[order]
    if len(kept) < table.rows or late:
        found = {name: values if name == "class_names" else values[kept] for name, values in found.items()}
        hashes, after = (None if pair is None else take_hashes(pair, kept) for pair in (hashes, after))
    waits = after is not None or (ends is not None and "session" in found)
    edges = edges_of(len(kept), found.get("session"), found.get("key"), after) if waits else np.zeros((2, 0), np.int64)
    if after is not None:
        good = np.ones(table.rows, bool)
        good[kept[in_circles(edges, len(kept))]] = False
        table.demand(good, there["after"], "ids of requests that do not wait for this one, by 'after' or as turns of a "
                                           "session")
    if ends is not None:
        thought = _thought(ticks, ends[kept], edges, form.per_second)
        told = found.get("think_s", np.full(len(ticks), np.nan))
        found["think_s"] = np.where(np.isnan(told), thought, told)
    return Trace((ticks - origin) / form.per_second, **found, after=after, prefix_hashes=hashes,
                 block_tokens=block_tokens, name=file_name(table.path), notes=tuple(notes))


def file_name(path: Path) -> str:
    """Returns a trace's name: the file's, without extensions."""
    return path.name.split(".")[0]


# --- Columns ----------------------------------------------------------------------------------------------------------
def _columns(table: TraceTable, form: TraceFormat, there: Mapping[str, str]) -> dict[str, Any]:
    """Returns the columns of a `Trace` besides arrivals and hashes; failed requests have zero output tokens."""
    read: dict[str, Any] = {}
    for name, least in (("prompt_tokens", 1), ("output_tokens", 1 if form.own else 0)):
        read[name] = table.integers(there[name], f"a whole number from {least} to {MAX_TOKENS}", least, MAX_TOKENS)
    if "session" in there:
        session, *parent = table.sessions(there["session"], *([form.parent] * (form.parent in table.columns)))
        read["session"] = _roots(session, *parent) if parent else session
    if "job" in there:
        read["job"] = table.sessions(there["job"])[0]
    if "after" in there:
        read["key"], read["after"] = _waits(table, there)
    if "client" in there:  # numbered: a log's keys of clients may be text, or larger than 32 bits
        named = table.sessions(there["client"])[0]
        read["client"] = np.where(named < 0, -1, np.searchsorted(np.unique(named[named >= 0]), named))
    for name in SECONDS:
        if name in there:
            read[name] = _seconds(table, there[name], "a number of seconds > 0, or nothing for its class's "
                                                      "SLO", above=True)
    if "think_s" in there:
        read["think_s"] = _seconds(table, there["think_s"], "a number of seconds >= 0, or nothing")
    if "class" in there:
        ids, names = _classes(table, there["class"])
        read["online"] = np.array([name != "offline" for name in names], bool)[ids]
        if not set(names) <= set(DEFAULT_CLASSES):
            read |= {"class_id": ids, "class_names": names}
    elif "arrival_s" not in there and not form.untimed(table):
        read["online"] = np.zeros(table.rows, bool)
    return read


def _ticks(table: TraceTable, field: str, unit: str) -> np.ndarray:
    """Returns times in the file's unit, float64[n]; nanoseconds as int64[n], to be exact."""
    if unit == "date":
        moments_ns = table.timestamps_ns(field, DATE)
        table.demand(moments_ns >= 0, field, f"{DATE}, not before 1970")
        return moments_ns
    dated = f", or {DATE}" * pa.types.is_string(table.columns[field].type)
    expected = f"a finite number of {UNITS[unit][0]} >= 0{dated}"
    values = table.integers(field, expected, 0, MAX_NS) if unit == "ns" else table.numbers(field, expected)
    table.demand(np.isfinite(values) & (values >= 0), field, expected)
    largest = float(values.max())
    finer = unit_within(largest, LATEST_S, "ns")
    table.demand(values < LATEST_S * UNITS[unit][1], field, f"{expected} before the year 2286; if these are "
                 f"{UNITS[finer][0]}, say so: {played(f'time_unit={finer}')}")
    return values


def _planned(table: TraceTable, there: Mapping[str, str], form: TraceFormat, found: dict[str, Any]) -> np.ndarray:
    """Returns times in the file's unit, float64[n], with times for turns that have only a delay.

    Such a turn arrives its delay, which is its think time, after the previous turn's arrival, the
    earliest possible time. A first turn without a time arrives at the file's first time, or at 0.
    """
    unit, ticks = UNITS[form.unit][0], np.full(table.rows, np.nan)
    waits = _seconds(table, there["delay"], f"a number of {unit} >= 0, or nothing")
    found.setdefault("think_s", waits / form.per_second)
    if "arrival_s" in there:
        ticks = table.numbers(there["arrival_s"], f"a number of {unit}, or nothing", np.nan).copy()
    previous, first = previous_turns(found["session"])[0], np.nanmin(ticks) if np.isfinite(ticks).any() else 0.0
    for row in np.flatnonzero(np.isnan(ticks)):  # in the file's order, so that the previous turn has its time
        ticks[row] = (ticks[previous[row]] if previous[row] >= 0 else first) + np.nan_to_num(waits[row])
    table.demand(np.isfinite(ticks) & (ticks >= 0), there["delay"], "a time or a delay")
    return ticks


def _ends(table: TraceTable, form: TraceFormat, there: Mapping[str, str], ticks: np.ndarray) -> np.ndarray | None:
    """Returns when requests finished, as `_ticks` returns times; None if unknown."""
    if "end_s" in there:
        ends, second = _ticks(table, there["end_s"], form.unit), form.per_second
        good = (ends >= ticks - second) & (ends - ticks < EPOCH_S * second)
        table.demand(good, there["end_s"], f"a time after the row's '{there['arrival_s']}', of the same clock and unit")
        return ends
    if "elapsed_s" not in there:
        return None
    return ticks + _seconds(table, there["elapsed_s"], "a number of seconds >= 0, or nothing") * form.per_second


def _thought(ticks: np.ndarray, ends: np.ndarray, edges: np.ndarray, per_second: float) -> np.ndarray:
    """Returns seconds from the last end of what a request waits for to its arrival, at least 0; NaN if it waits for
    none."""
    ended, last = ends[edges[0]], np.full(len(ticks), -1, ends.dtype)  # no end is before 0
    told, waits = ~np.isnan(ended), np.zeros(len(ticks), bool)
    np.maximum.at(last, edges[1][told], ended[told])
    waits[edges[1]] = True
    waits[edges[1][~told]] = False  # where an end is not known, neither is the time since
    return np.where(waits, np.maximum(ticks - last, 0) / per_second, np.nan)


def _waits(table: TraceTable, there: Mapping[str, str]) -> tuple[np.ndarray, Hashes]:
    """Returns each request's key, and the keys of those that it waits for."""
    field, named = there["after"], there.get("id")
    if named is None:
        raise UserError(f"trace file '{table.path}' has a column '{field}', but none with the ids that it names: add "
                        f"one, or say {played('columns.id=NAME')}")
    keys, counts, values = table.named_lists(named, field, "a list of ids (in CSV such as 3 7 or [3, 7]), or nothing")
    order, again = np.argsort(keys, kind="stable"), np.zeros(len(keys), bool)
    again[order[1:]] = keys[order[1:]] == keys[order[:-1]]
    table.demand(~again, named, "a number or name that no other row has")
    rows = np.repeat(np.arange(table.rows), counts)
    _, first = np.unique(np.stack([rows, values]), axis=1, return_index=True)
    double = np.ones(len(values), bool)
    double[first] = False
    for wrong, expected in ((~np.isin(values, keys), "ids of requests in this file"), (double, "each id once"),
                            (values == keys[rows], "ids of other requests")):
        good = np.ones(table.rows, bool)
        good[rows[wrong]] = False
        table.demand(good, field, expected)
    return keys, (np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), values)


def _seconds(table: TraceTable, field: str, expected: str, above: bool = False) -> np.ndarray:
    """Returns a column of seconds >= 0 (> 0 with `above`), NaN where a value is missing."""
    values = table.numbers(field, expected, missing=np.nan)
    good = np.isfinite(values) & (values > 0 if above else values >= 0)
    table.demand(np.isnan(values) | good, field, expected)
    return values


def _roots(session: np.ndarray, parent: np.ndarray) -> np.ndarray:
    """Returns the first session of each request's conversation, even if that session is not in the file."""
    own, place = np.unique(np.concatenate([session, parent]), return_inverse=True)
    before = np.arange(len(own))
    goes_on = parent >= 0
    before[place[:len(session)][goes_on]] = place[len(session):][goes_on]
    for _ in range(len(own).bit_length()):      # each round doubles the distance looked back
        before = before[before]
    return own[before[place[:len(session)]]]


def _classes(table: TraceTable, field: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns indices into the classes' names, int8[n], and the names."""
    expected = f"online, offline or a class's name: {NAMED}"
    texts = table.texts(field, expected).combine_chunks()
    small = pc.call_function("utf8_lower", [texts])
    usual = pc.call_function("is_in", [small], pc.SetLookupOptions(pa.array(DEFAULT_CLASSES)))
    texts = pc.call_function("if_else", [usual, small, pc.call_function("replace_substring_regex", [texts], (
        pc.ReplaceSubstringOptions(r"^(\d+)(?:\.0)?$", r"p\1")))]).dictionary_encode()
    table.demand(texts.is_valid().to_numpy(zero_copy_only=False), field, expected)
    names, ids = tuple(texts.dictionary.to_pylist()), texts.indices.to_numpy(zero_copy_only=False)
    named = np.array([NAME.fullmatch(name) is not None for name in names], bool)
    table.demand(named[ids], field, expected)
    check_class_count(names)
    return ids.astype(np.int8), names


# --- Prefix hashes ----------------------------------------------------------------------------------------------------
def _hashes(table: TraceTable, form: TraceFormat, there: Mapping[str, str],
            prompt: np.ndarray) -> tuple[Hashes | None, int]:
    """Returns hashes and the block size that fits them: one hash per block begun, or fewer for
    shared prefixes only.

    Raises:
        UserError: a row has too many hashes, or too few if the format has all; or blocks of another
            usual size fit every row, and the size was not given.
    """
    if "prefix_hashes" not in there:
        if form.said:
            raise UserError(f"block_tokens={form.block_tokens} has no effect, as trace file '{table.path}' has no "
                            f"column of prefix hashes; leave it out, or say {played('columns.prefix_hashes=NAME')}")
        return None, BLOCK_TOKENS
    field, size = there["prefix_hashes"], form.block_tokens or BLOCK_TOKENS
    if form.block_tokens is None and "block_tokens" in there:
        expected = f"a whole number from 1 to {MAX_TOKENS}, in all rows the same"
        sizes = table.integers(there["block_tokens"], expected, 1, MAX_TOKENS)
        table.demand(sizes == sizes[0], there["block_tokens"], expected)
        size = int(sizes[0])
    lists = table.integer_lists(field, "a list of numbers or names (in CSV such as 3 7 or [3, 7])").combine_chunks()
    counts = pc.call_function("list_value_length", [lists]).fill_null(0).to_numpy(zero_copy_only=False)
    hashes = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), lists.flatten().to_numpy(zero_copy_only=False)
    given, wanted = counts > 0, -(-prompt // size)
    fits = [other for other in USUAL_BLOCKS if np.array_equal(counts[given], -(-prompt[given] // other))]
    heads = form.said or (form.block_tokens is None and ("block_tokens" in there or not fits))
    full = (counts == prompt // size) & (form.block_tokens is not None)  # if partial blocks have no hash
    good = ~given | (counts == wanted) | full | ((counts < wanted) & heads)
    if not good.all():
        row = int(np.argmin(good))
        say = f"block_tokens={fits[0] if fits else 'N'}"
        hint = f"blocks of {fits[0]} tokens fit every row" if fits else "where a number stands for another count"
        table.demand(good, field, f"{wanted[row]} and not {counts[row]} numbers, one for each {size} of "
                     f"{prompt[row]:,} prompt tokens; {hint}, say {played(say)}")
    return _chained(hashes) if form.chained else hashes, size


def _chained(hashes: Hashes) -> Hashes:
    """Returns cumulative hashes from hashes of single blocks: sums of numbers that identify block and place."""
    offsets, values = hashes
    counts = np.diff(offsets)
    place = np.arange(len(values)) - np.repeat(offsets[:-1], counts)
    sums = np.concatenate([[0], np.cumsum(scattered(scattered(values, "block") + place, "chain"))])
    return offsets, scattered(sums[1:] - np.repeat(sums[offsets[:-1]], counts), "prefix")


# --- Repairs, and what looks odd --------------------------------------------------------------------------------------
def _served(table: TraceTable, found: Mapping[str, np.ndarray]) -> tuple[np.ndarray, list[str]]:
    """Returns the rows with output tokens, int64[m], and notes on lengths and failed requests."""
    notes, failed = [], found["output_tokens"] == 0
    longest = np.maximum(found["prompt_tokens"], found["output_tokens"])
    long = longest > LONGEST_USUAL
    if long.any():
        row = int(np.argmax(long))
        notes.append(f"suspicious lengths: {long.sum()} of {table.rows} requests have more than {LONGEST_USUAL:,} "
                     f"tokens, the first {longest[row]:,} at {table.place(row)}; are they characters or bytes?")
    if failed.all():
        raise UserError(f"trace file '{table.path}' holds no request with output tokens")
    if failed.any():
        notes.append(f"dropped {failed.sum()} of {table.rows} requests with zero output tokens (failed), the first at "
                     f"{table.place(int(np.argmax(failed)))}")
    return np.flatnonzero(~failed), notes
