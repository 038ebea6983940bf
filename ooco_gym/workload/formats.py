"""The trace formats that `read_trace` knows, and how a file's columns say which it is.

A new format is a `TraceFormat` in `FORMATS`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ooco_gym.errors import UserError, nearest, unknown
from ooco_gym.workload.checks import number
from ooco_gym.workload.classes import NAME, NAMED
from ooco_gym.workload.keyed import scattered
from ooco_gym.workload.table_reader import Table
from ooco_gym.workload.trace import BLOCK_TOKENS, DEFAULT_CLASSES, MAX_TOKENS, NO_SESSION, SECONDS

DATE = "a date and time such as 2023-11-16 18:15:46.680590"
LATEST_S = 1e10     # the year 2286 in seconds since 1970; milliseconds since 1970 are beyond it
EPOCH_S = 1e8       # three years: later than any trace is long
UNITS = {"s": ("seconds", 1.0), "ms": ("milliseconds", 1e3), "us": ("microseconds", 1e6), "ns": ("nanoseconds", 1e9)}
TIME_UNITS = ("auto", *UNITS, "date")
REQUIRED = ("arrival_s", "prompt_tokens", "output_tokens")
OPTIONAL = ("class", *SECONDS, "session", "prefix_hashes", "block_tokens")
USUAL_BLOCKS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)  # tokens to a hash that are looked for


@dataclass(frozen=True)
class TraceFormat:
    """A format: which of a file's columns are which of ours, and what they mean.

    Attributes:
        name: as `read_trace` takes it.
        columns: our names to the file's. Without `arrival_s` the file is a set of lengths.
        unit: of its times: `s`, `ms`, `us`, `ns`, or `date`: nanoseconds since 1970, which count from the first
            request.
        required: columns of the file's that must be there, by which it is recognised; all unless given.
        unused: columns that it has besides and that are not read.
        parent: the column that names the session which a request goes on with, where each has one of its own.
        block_tokens: tokens of the prompt to each prefix hash; None: what the file's column says, or 512.
        chained: whether a hash stands for its block alone, so that those before it belong to the prefix besides.
        said: whether the block was given by the user rather than by the format.
        own: whether it is our own schema: zero output tokens are an error there, where in others they mean a failed
            request, to be dropped and noted; and times since 1970 do not count from the first request.
    """

    name: str
    columns: Mapping[str, str]
    unit: str = "s"
    required: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    own: bool = False
    parent: str = ""
    block_tokens: int | None = None
    chained: bool = False
    said: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "required", self.required or tuple(self.columns.values()))

    @property
    def per_second(self) -> float:
        """Ticks in a second."""
        return 1e9 if self.unit == "date" else UNITS[self.unit][1]

    def origin(self, first: float) -> float | int:
        """Returns the tick that becomes second 0, given the file's first one."""
        return first if self.unit == "date" or (not self.own and first >= EPOCH_S * self.per_second) else 0

    def there(self, table: Table) -> dict[str, str]:
        """Returns which of our columns a file has, and under which name."""
        found = {ours: field for ours, field in self.columns.items() if field in table.columns}
        if self.own and "hash_ids" in table.columns:
            found.setdefault("prefix_hashes", "hash_ids")
        return found

    def read(self, table: Table) -> pa.Table:
        """Returns the requests of a table as the columns of docs/traces.md, those that are missing left out.

        For arrivals it has `tick`: times as the file has them, as `read_ticks` gives them.
        """
        there, read = self.there(table), {}
        if "session" in there:
            session, *parent = table.sessions(there["session"], *([self.parent] * (self.parent in table.columns)))
            read["session"] = nullable(_roots(session, *parent) if parent else session)
        if "arrival_s" in there:
            read["tick"] = read_ticks(table, there["arrival_s"], self.unit)
        for name in ("prompt_tokens", "output_tokens"):
            least = 0 if name == "output_tokens" and not self.own else 1
            if name in there:
                read[name] = pa.array(table.integers(
                    there[name], f"a whole number from {least} to {MAX_TOKENS}", least, MAX_TOKENS), pa.int32())
        if "class" in there:
            read["class"] = _classes(table, there["class"])
        for name in SECONDS:
            if name in there:
                read[name] = nullable(_slo(table, there[name]))
        if "prefix_hashes" in there:
            lists = table.integer_lists(
                there["prefix_hashes"], "a list of whole numbers (in CSV with blanks between them)")
            size = self._block_tokens(table, there.get("block_tokens"))
            self._check_blocks(table, there, lists, read["prompt_tokens"].to_numpy(), size)
            read["prefix_hashes"] = _chained(lists) if self.chained else lists
            read["block_tokens"] = pa.array(np.full(table.rows, size, np.int64))
        return pa.table(read)

    def _block_tokens(self, table: Table, field: str | None) -> int:
        """Returns how many tokens of the prompt each of its hashes stands for."""
        if self.block_tokens is not None or field is None:
            return self.block_tokens or BLOCK_TOKENS
        expected = f"a whole number from 1 to {MAX_TOKENS}, in all rows the same"
        sizes = table.integers(field, expected, 1, MAX_TOKENS)
        table.demand(sizes == sizes[0], field, expected)
        return int(sizes[0])

    def _check_blocks(self, table: Table, there: Mapping[str, str], lists: Any, prompt: np.ndarray, size: int) -> None:
        """Refuses hashes that do not fit prompts and blocks: one for each block begun, of heads that are shared fewer.

        Raises:
            UserError: one row has too many, or too few where the format has all; or blocks of another usual size fit
                every row, and nothing says which it is.
        """
        counts = pc.call_function("list_value_length", [lists]).fill_null(0).to_numpy()
        given, prompt = counts > 0, prompt.astype(np.int64)
        wanted = -(-prompt // size)
        fits = [other for other in USUAL_BLOCKS if np.array_equal(counts[given], -(-prompt[given] // other))]
        exact = self.block_tokens is not None and not self.said
        doubted = bool(fits) and not self.said and "block_tokens" not in there
        good = ~given | (counts == wanted) | ((counts < wanted) & (not exact and not doubted))
        if not good.all():
            row = int(np.argmin(good))
            hint = "; if a number stands for another count of tokens, say block_tokens=N"
            if fits:
                hint = (f"; blocks of {fits[0]} tokens fit every row: if it is these, say block_tokens={fits[0]} (of a "
                        f"file that is played, workload.block_tokens={fits[0]})")
            if self.name == "mooncake" and 16 in fits:
                hint += ", or format=bailian, whose times are seconds"
            table.demand(good, there["prefix_hashes"], f"{wanted[row]} and not {counts[row]} numbers, one for each "
                         f"{size} of {prompt[row]:,} prompt tokens{hint}")


def read_ticks(table: Table, field: str, unit: str) -> np.ndarray:
    """Returns a column of times in the file's own unit: int64[n] nanoseconds for dates and whole `ns`, else
    float64[n].

    Raises:
        UserError: a time is no finite number >= 0, or so late that its unit must be another one.
    """
    if unit == "date":
        moments_ns = table.timestamps_ns(field, DATE)
        table.demand(moments_ns >= 0, field, f"{DATE}, not before 1970")
        return moments_ns
    expected = f"a finite number of {UNITS[unit][0]} >= 0"
    whole = table.whole_numbers(field) if unit == "ns" else None    # since 1970 they are more than a float64 holds
    values = table.numbers(field, expected) if whole is None else whole
    table.demand(np.isfinite(values) & (values >= 0), field, expected)
    finer = list(UNITS)[min(list(UNITS).index(unit) + 1, len(UNITS) - 1)]
    table.demand(values < LATEST_S * UNITS[unit][1], field, f"{expected} before the year 2286; if these are "
                 f"{UNITS[finer][0]}, say so: ooco-gym data import FILE columns.arrival_s={field} time_unit={finer}")
    return values


def _roots(session: np.ndarray, parent: np.ndarray) -> np.ndarray:
    """Returns the session in which each request's conversation began; one that is not in the file counts as such."""
    own, place = np.unique(np.concatenate([session, parent]), return_inverse=True)
    before = np.arange(len(own))
    goes_on = parent >= 0
    before[place[:len(session)][goes_on]] = place[len(session):][goes_on]
    for _ in range(len(own).bit_length()):      # each round doubles how far back it looks
        before = before[before]
    return own[before[place[:len(session)]]]


def _chained(lists: Any) -> pa.Array:
    """Returns hashes of single blocks as hashes of all up to each: sums of numbers that tell block and place."""
    lists = lists.combine_chunks()
    counts = pc.call_function("list_value_length", [lists]).fill_null(0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    values = lists.flatten().to_numpy(zero_copy_only=False)
    place = np.arange(len(values)) - np.repeat(offsets[:-1], counts)
    sums = np.concatenate([[0], np.cumsum(scattered(scattered(values, "block") + place, "chain"))])
    chained = scattered(sums[1:] - np.repeat(sums[offsets[:-1]], counts), "prefix")
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(chained))


def nullable(values: np.ndarray) -> pa.Array:
    """Returns seconds (NaN: none) or sessions (-1: none) as a pyarrow column with nulls."""
    return pa.array(values, mask=np.isnan(values) if values.dtype.kind == "f" else values == NO_SESSION)


def _slo(table: Table, field: str) -> np.ndarray:
    expected = "a number of seconds > 0, or nothing for what its class is promised"
    values = table.numbers(field, expected, missing=np.nan)
    table.demand(np.isnan(values) | (np.isfinite(values) & (values > 0)), field, expected)
    return values


def _classes(table: Table, field: str) -> pa.ChunkedArray:
    """Returns a column of classes' names."""
    expected = f"online, offline or a class's name: {NAMED}"
    texts = table.texts(field, expected)
    for name in texts.unique().to_pylist():
        if name is None or not NAME.fullmatch(name) or _mistyped(name):
            raise table.error(texts.index(name).as_py() if name is not None else texts.to_pylist().index(None), field,
                              f"{expected}{nearest(name or '', DEFAULT_CLASSES)}")
    return texts


def _mistyped(name: str) -> bool:
    """Whether a class is hardly another name than `online` or `offline`: `Online`, `ofline`; `online-2` is one."""
    close = get_close_matches(name.casefold(), DEFAULT_CLASSES, n=1, cutoff=0.9)
    return bool(close) and name != close[0] and (close[0] not in name or name.casefold() == close[0])


OWN = TraceFormat("ooco_gym", {name: name for name in REQUIRED + OPTIONAL}, "s", REQUIRED, ("hash_ids",), own=True)

# Azure LLM inference traces, 2023 and 2024 (github Azure/AzurePublicDataset).
AZURE = TraceFormat("azure", {"arrival_s": "TIMESTAMP", "prompt_tokens": "ContextTokens",
                              "output_tokens": "GeneratedTokens"}, "date")

# Mooncake traces (github kvcache-ai/Mooncake): JSON lines with prefix block hashes.
MOONCAKE = TraceFormat("mooncake", {"arrival_s": "timestamp", "prompt_tokens": "input_length",
                                    "output_tokens": "output_length", "prefix_hashes": "hash_ids"}, "ms",
                       ("timestamp", "input_length", "output_length"), block_tokens=512)

# Qwen-Bailian traces (github alibaba-edu/qwen-bailian-usagetraces-anon): Mooncake's columns, but seconds, hashes of
# single blocks of 16 tokens, and conversations by the request that each goes on with.
BAILIAN = TraceFormat("bailian", {**MOONCAKE.columns, "session": "chat_id"}, "s",
                      MOONCAKE.required, ("type", "turn", "parent_chat_id"), parent="parent_chat_id", block_tokens=16,
                      chained=True)

# BurstGPT traces (github HPMLL/BurstGPT): CSV, in later versions with sessions.
BURSTGPT = TraceFormat("burstgpt", {"arrival_s": "Timestamp", "prompt_tokens": "Request tokens",
                                    "output_tokens": "Response tokens", "session": "Session ID"}, "s",
                       ("Timestamp", "Request tokens", "Response tokens"),
                       ("Model", "Total tokens", "Log Type", "Elapsed time"))

FORMATS: dict[str, TraceFormat] = {item.name: item for item in (OWN, AZURE, MOONCAKE, BAILIAN, BURSTGPT)}


def check_format(format: str) -> None:
    """Raises UserError unless `format` is `auto` or the name of a known one."""
    if format != "auto" and format not in FORMATS:
        raise unknown("trace format", format, ["auto", *FORMATS])


def format_of(table: Table, format: str = "auto", columns: Mapping[str, str | None] | None = None,
              time_unit: str = "auto", lengths: bool = False, block_tokens: int | None = None) -> TraceFormat:
    """Returns how a table is to be read; arguments as `read_trace` has them.

    Args:
        lengths: whether a file of lengths alone is recognised without `columns` too.

    Raises:
        UserError: an unknown name, or a column that the file does not have.
    """
    given = {key: str(value) for key, value in (columns or {}).items() if value is not None}
    check_format(format)
    if time_unit not in TIME_UNITS:
        raise unknown("time_unit", time_unit, TIME_UNITS)
    for key in given:
        if key not in REQUIRED + OPTIONAL:
            raise unknown("column", key, REQUIRED + OPTIONAL)
    if block_tokens is not None:
        block_tokens = int(number(block_tokens, "block_tokens", 1, MAX_TOKENS))
    if given and format != "auto":
        raise UserError(f"format={format} and columns.{next(iter(given))} exclude each other: a format "
                        "knows its columns")
    if not given and not (lengths and _is_lengths(table)):
        form = _recognised(table) if format == "auto" else FORMATS[format]
        if time_unit == "auto" or not form.own:
            return _said(form, form.unit if time_unit == "auto" else time_unit, block_tokens)
    named = _named(table, {**{key: key for key in REQUIRED + OPTIONAL if key in table.columns}, **given}, time_unit)
    return _said(named, named.unit, block_tokens)


def _said(form: TraceFormat, unit: str, block_tokens: int | None) -> TraceFormat:
    """Returns a format with the user's unit and block."""
    if (unit, block_tokens) == (form.unit, None):
        return form
    return replace(form, unit=unit, block_tokens=block_tokens or form.block_tokens, said=block_tokens is not None)


def _recognised(table: Table) -> TraceFormat:
    """Returns the format of which the table has the most required columns, all if there is one; ours if it has none.

    Of two that have the same ones, the one of which it has more columns, such as `chat_id`.
    """
    found = set(table.columns)

    def likeness(item: TraceFormat) -> float:
        matched = sum(1.0 if column in found else 0.5 * bool(similar(column, found)) for column in item.required)
        return matched / len(item.required)

    best = max(FORMATS.values(), key=lambda item: (found.issuperset(item.required), likeness(item),
                                                   len(found & {*item.columns.values(), *item.unused})))
    return best if found & set(best.required) else OWN


def _is_lengths(table: Table) -> bool:
    """Tells whether a table has lengths under our names, but no arrivals."""
    return (bool({"prompt_tokens", "output_tokens"} & set(table.columns)) and _no_arrivals(table, "arrival_s")
            and not any(set(form.required) <= set(table.columns) for form in FORMATS.values() if not form.own))


def _no_arrivals(table: Table, field: str) -> bool:
    """Tells whether a table has no column of arrivals under this name, or one without any value."""
    column = table.columns.get(field)
    return column is None or (table.rows > 0 and set(column.unique().to_pylist()) <= {None, ""})


def _named(table: Table, columns: dict[str, str], unit: str) -> TraceFormat:
    """Returns the format that the user's columns make; without `arrival_s` where they are lengths only."""
    for field in columns.values():
        if field not in table.columns:
            raise UserError(f"trace file '{table.path}' has no column '{field}'{nearest(field, table.columns)}; found: "
                            f"{few(table.columns)}")
    if "arrival_s" in columns and not _no_arrivals(table, columns["arrival_s"]):
        for name in REQUIRED:
            if name not in columns:
                raise UserError(f"trace file '{table.path}': which column holds {name}? Expected columns.{name}=NAME, "
                                f"one of: {few(table.columns)}")
        if unit == "auto":
            unit = "date" if table.holds_dates(columns["arrival_s"]) else "s"
        return TraceFormat("your columns", columns, unit)
    if not {"prompt_tokens", "output_tokens"} & set(columns):
        raise UserError(f"trace file '{table.path}': which columns hold what? Expected such as columns.arrival_s=NAME "
                        f"columns.prompt_tokens=NAME columns.output_tokens=NAME; found: {few(table.columns)}")
    return TraceFormat("your columns", {key: columns[key] for key in REQUIRED[1:] if key in columns})


def similar(name: str, known: Iterable[str]) -> str:
    """Returns ` (did you mean 'x'?)` as `nearest` does, letter case aside."""
    cases = {item.casefold(): item for item in known}
    if name.casefold() in cases:
        return f" (did you mean '{cases[name.casefold()]}'? Letter case counts)"
    return nearest(name, cases.values())


def few(names: Iterable[str]) -> str:
    """Returns names for a message: at most 12, long ones cut."""
    texts = [name if len(name) <= 40 else name[:37] + "..." for name in names]
    return ", ".join(repr(text) if text != text.strip() or not text.isprintable() else text
                     for text in texts[:12]) + (f" and {len(texts) - 12} more" if len(texts) > 12 else "")
