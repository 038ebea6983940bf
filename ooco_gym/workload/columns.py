"""A file's columns as requests, each value of them checked; what is wrong is named by its row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches

import numpy as np
import pyarrow.compute as pc

from ooco_gym.errors import nearest
from ooco_gym.workload.classes import NAME, NAMED
from ooco_gym.workload.formats import UNITS, TraceFormat
from ooco_gym.workload.keyed import scattered
from ooco_gym.workload.table_reader import Table
from ooco_gym.workload.trace import (
    BLOCK_TOKENS,
    DEFAULT_CLASSES,
    MAX_TOKENS,
    SECONDS,
    Hashes,
    check_class_count,
    take_hashes,
)

DATE = "a date and time such as 2023-11-16 18:15:46.680590"
LATEST_S = 1e10     # the year 2286 in seconds since 1970; milliseconds since 1970 are beyond it
USUAL_BLOCKS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)  # tokens to a hash that are looked for


@dataclass(frozen=True)
class Requests:
    """Requests in the order of a file.

    Attributes:
        columns: by their names in `Trace`, those that the file has; arrivals as `tick` and ends as `end`, in the
            file's own unit.
        class_names: what `class_id` counts in.
        hashes: as `Trace.prefix_hashes`.
        block_tokens: of the prompt, to each hash.
    """

    columns: Mapping[str, np.ndarray]
    class_names: tuple[str, ...] = ()
    hashes: Hashes | None = None
    block_tokens: int = BLOCK_TOKENS

    def take(self, rows: np.ndarray) -> Requests:
        """Returns those at positions int[m]."""
        return replace(self, columns={name: values[rows] for name, values in self.columns.items()},
                       hashes=None if self.hashes is None else take_hashes(self.hashes, rows))


def read_columns(table: Table, form: TraceFormat) -> Requests:
    """Returns the requests of a table.

    Raises:
        UserError: a value that cannot be.
    """
    there = form.there(table)
    read = {"tick": _ticks(table, there["arrival_s"], form.unit)}
    for name, least in (("prompt_tokens", 1), ("output_tokens", 1 if form.own else 0)):
        read[name] = table.integers(there[name], f"a whole number from {least} to {MAX_TOKENS}", least, MAX_TOKENS)
    if "session" in there:
        session, *parent = table.sessions(there["session"], *([form.parent] * (form.parent in table.columns)))
        read["session"] = _roots(session, *parent) if parent else session
    for name in SECONDS:
        if name in there:
            expected = "a number of seconds > 0, or nothing for what its class is promised"
            read[name] = _seconds(table, there[name], expected)
    if "think_s" in there:
        read["think_s"] = _seconds(table, there["think_s"], "a number of seconds >= 0, or nothing", zero=True)
    if "end_s" in there:
        read["end"] = _ticks(table, there["end_s"], form.unit)
    elif "elapsed_s" in there:
        elapsed_s = _seconds(table, there["elapsed_s"], "a number of seconds >= 0, or nothing", zero=True)
        read["end"] = read["tick"] + elapsed_s * form.per_second
    names, hashes, size = (), None, BLOCK_TOKENS
    if "class" in there:
        read["class_id"], names = _classes(table, there["class"])
    if "prefix_hashes" in there:
        size = _block_tokens(table, form, there.get("block_tokens"))
        hashes = _hashes(table, form, there, read["prompt_tokens"], size)
    return Requests(read, names, hashes, size)


def _ticks(table: Table, field: str, unit: str) -> np.ndarray:
    """Times in the file's own unit: int64[n] nanoseconds for dates and whole `ns`, else float64[n]."""
    if unit == "date":
        moments_ns = table.timestamps_ns(field, DATE)
        table.demand(moments_ns >= 0, field, f"{DATE}, not before 1970")
        return moments_ns
    expected = f"a finite number of {UNITS[unit][0]} >= 0"
    whole = table.whole_numbers(field) if unit == "ns" else None    # since 1970 they are more than a float64 holds
    values = table.numbers(field, expected) if whole is None else whole
    table.demand(np.isfinite(values) & (values >= 0), field, expected)
    largest = float(values.max()) if len(values) else 0.0
    finer = next((one for one, (_, per_s) in UNITS.items() if largest < LATEST_S * per_s), "ns")
    table.demand(values < LATEST_S * UNITS[unit][1], field, f"{expected} before the year 2286; if these are "
                 f"{UNITS[finer][0]}, say so: time_unit={finer} (of a file that is played, workload.time_unit={finer})")
    return values


def _seconds(table: Table, field: str, expected: str, zero: bool = False) -> np.ndarray:
    """Seconds above 0, or also of 0, NaN where there are none."""
    values = table.numbers(field, expected, missing=np.nan)
    table.demand(np.isnan(values) | (np.isfinite(values) & ((values > 0) | (zero & (values == 0)))), field, expected)
    return values


def _roots(session: np.ndarray, parent: np.ndarray) -> np.ndarray:
    """The session in which each request's conversation began; one that is not in the file counts as such."""
    own, place = np.unique(np.concatenate([session, parent]), return_inverse=True)
    before = np.arange(len(own))
    goes_on = parent >= 0
    before[place[:len(session)][goes_on]] = place[len(session):][goes_on]
    for _ in range(len(own).bit_length()):      # each round doubles how far back it looks
        before = before[before]
    return own[before[place[:len(session)]]]


def _classes(table: Table, field: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Places in the classes' names, int8[n], and these."""
    expected = f"online, offline or a class's name: {NAMED}"
    texts = table.texts(field, expected).combine_chunks().dictionary_encode()
    table.demand(texts.is_valid().to_numpy(zero_copy_only=False), field, expected)
    names, ids = tuple(texts.dictionary.to_pylist()), texts.indices.to_numpy(zero_copy_only=False)
    for place, name in enumerate(names):
        if not NAME.fullmatch(name) or _mistyped(name):
            table.demand(ids != place, field, f"{expected}{nearest(name, DEFAULT_CLASSES)}")
    check_class_count(names)
    return ids.astype(np.int8), names


def _mistyped(name: str) -> bool:
    """Whether a class is hardly another name than `online` or `offline`: `Online`, `ofline`; `online-2` is one."""
    close = get_close_matches(name.casefold(), DEFAULT_CLASSES, n=1, cutoff=0.9)
    return bool(close) and name != close[0] and (close[0] not in name or name.casefold() == close[0])


# --- Prefix hashes ----------------------------------------------------------------------------------------------------
def _block_tokens(table: Table, form: TraceFormat, field: str | None) -> int:
    """How many tokens of the prompt each of its hashes stands for."""
    if form.block_tokens is not None or field is None:
        return form.block_tokens or BLOCK_TOKENS
    expected = f"a whole number from 1 to {MAX_TOKENS}, in all rows the same"
    sizes = table.integers(field, expected, 1, MAX_TOKENS)
    table.demand(sizes == sizes[0], field, expected)
    return int(sizes[0])


def _hashes(table: Table, form: TraceFormat, there: Mapping[str, str], prompt: np.ndarray, size: int) -> Hashes:
    """Hashes that fit prompts and blocks: one for each block begun, of heads that are shared fewer.

    Raises:
        UserError: one row has too many, or too few where the format has all; or blocks of another usual size fit
            every row, and nothing says which it is.
    """
    field = there["prefix_hashes"]
    lists = table.integer_lists(field, "a list of whole numbers (in CSV such as 3 7 or [3, 7])").combine_chunks()
    counts = pc.call_function("list_value_length", [lists]).fill_null(0).to_numpy(zero_copy_only=False)
    hashes = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), lists.flatten().to_numpy(zero_copy_only=False)
    given, wanted = counts > 0, -(-prompt // size)
    fits = [other for other in USUAL_BLOCKS if np.array_equal(counts[given], -(-prompt[given] // other))]
    exact = form.block_tokens is not None and not form.said
    doubted = bool(fits) and not form.said and "block_tokens" not in there
    good = ~given | (counts == wanted) | ((counts < wanted) & (not exact and not doubted))
    if not good.all():
        row = int(np.argmin(good))
        hint = "; if a number stands for another count of tokens, say block_tokens=N"
        if fits:
            hint = (f"; blocks of {fits[0]} tokens fit every row: if it is these, say block_tokens={fits[0]} (of a "
                    f"file that is played, workload.block_tokens={fits[0]})")
        if form.name == "mooncake" and 16 in fits:
            hint = ("; blocks of 16 tokens fit every row: if it is a trace of Bailian, whose times are seconds, say "
                    "format=bailian, else block_tokens=16 (of a file that is played, workload.…)")
        table.demand(good, field, f"{wanted[row]} and not {counts[row]} numbers, one for each {size} of "
                     f"{prompt[row]:,} prompt tokens{hint}")
    return _chained(hashes) if form.chained else hashes


def _chained(hashes: Hashes) -> Hashes:
    """Hashes of single blocks as hashes of all up to each: sums of numbers that tell block and place."""
    offsets, values = hashes
    counts = np.diff(offsets)
    place = np.arange(len(values)) - np.repeat(offsets[:-1], counts)
    sums = np.concatenate([[0], np.cumsum(scattered(scattered(values, "block") + place, "chain"))])
    return offsets, scattered(sums[1:] - np.repeat(sums[offsets[:-1]], counts), "prefix")
