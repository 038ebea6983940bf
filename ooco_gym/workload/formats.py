"""The trace formats that `read_trace` knows: a new one is a `TraceFormat` here, in `FORMATS`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np
import pyarrow as pa

from ooco_gym.errors import nearest
from ooco_gym.workload.classes import NAME, NAMED
from ooco_gym.workload.table_reader import Table
from ooco_gym.workload.trace import DEFAULT_CLASSES, MAX_TOKENS, NO_SESSION, SECONDS

DATE = "a date and time such as 2023-11-16 18:15:46.680590"
LATEST_S = 1e10     # the year 2286 in seconds since 1970; milliseconds since 1970 are beyond it
EPOCH_S = 1e8       # three years: later than any trace is long
UNITS = {"s": ("seconds", 1.0), "ms": ("milliseconds", 1e3), "us": ("microseconds", 1e6), "ns": ("nanoseconds", 1e9)}
REQUIRED = ("arrival_s", "prompt_tokens", "output_tokens")
OPTIONAL = ("class", *SECONDS, "session", "prefix_hashes")
_HASHES = "a list of whole numbers (in CSV with blanks between them)"


@dataclass(frozen=True)
class Clock:
    """How a file tells time.

    Attributes:
        unit: `s`, `ms`, `us`, `ns`, or `date`: nanoseconds since 1970, which count from the first request.
        epoch: whether numbers that are plainly times since 1970 count from the first request too.
    """

    unit: str = "s"
    epoch: bool = True

    @property
    def per_second(self) -> float:
        """Ticks in a second."""
        return 1e9 if self.unit == "date" else UNITS[self.unit][1]

    def origin(self, first: float) -> float | int:
        """Returns the tick that becomes second 0, given the file's first one."""
        if self.unit == "date" or (self.epoch and first >= EPOCH_S * self.per_second):
            return first
        return 0

    def seconds(self, ticks: np.ndarray, origin: float | int) -> np.ndarray:
        """Returns float64[n] seconds from `origin` on."""
        return (ticks - origin if origin else ticks) / self.per_second


@dataclass(frozen=True)
class TraceFormat:
    """A format: which of a file's columns are which of ours, and what they mean.

    Attributes:
        name: as `read_trace` takes it.
        columns: our names to the file's. Without `arrival_s` the file is a set of lengths.
        clock: how it tells time.
        required: those of the file's that must be there, by which it is recognised; all unless given.
        unused: columns that it has besides and that are not read.
        failed: whether zero output tokens mean a failed request, to be dropped and noted.
    """

    name: str
    columns: Mapping[str, str]
    clock: Clock = Clock()
    required: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    failed: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "required", self.required or tuple(self.columns.values()))

    def there(self, table: Table) -> dict[str, str]:
        """Returns which of our columns a file has, and under which name."""
        found = {ours: field for ours, field in self.columns.items() if field in table.columns}
        if self.name == "ooco_gym" and "hash_ids" in table.columns:
            found.setdefault("prefix_hashes", "hash_ids")
        return found

    def read(self, table: Table) -> pa.Table:
        """Returns the requests of a table as the columns of docs/traces.md, those that are missing left out.

        For arrivals it has `tick`: times as the file has them, int64 for dates, float64 otherwise.
        """
        there, read = self.there(table), {}
        if "session" in there:
            read["session"] = nullable(table.integers(there["session"], "a whole number >= 0, or nothing", 0, 2**63 - 1,
                                                      missing=NO_SESSION))
        if "arrival_s" in there:
            read["tick"] = read_ticks(table, there["arrival_s"], self.clock)
        for name in ("prompt_tokens", "output_tokens"):
            least = 0 if self.failed and name == "output_tokens" else 1
            if name in there:
                read[name] = pa.array(table.integers(
                    there[name], f"a whole number from {least} to {MAX_TOKENS}", least, MAX_TOKENS), pa.int32())
        if "class" in there:
            read["class"] = _classes(table, there["class"])
        for name in SECONDS:
            if name in there:
                read[name] = nullable(_slo(table, there[name]))
        if "prefix_hashes" in there:
            read["prefix_hashes"] = table.integer_lists(there["prefix_hashes"], _HASHES)
        return pa.table(read)


def read_ticks(table: Table, field: str, clock: Clock) -> np.ndarray:
    """Returns a column of times in the file's own unit: int64[n] nanoseconds since 1970 for dates, else float64[n].

    Raises:
        UserError: a time is no finite number >= 0, or so late that its unit must be another one.
    """
    if clock.unit == "date":
        moments_ns = table.timestamps_ns(field, DATE)
        table.demand(moments_ns >= 0, field, f"{DATE}, not before 1970")
        return moments_ns
    expected = f"a finite number of {UNITS[clock.unit][0]} >= 0"
    values = table.numbers(field, expected)
    table.demand(np.isfinite(values) & (values >= 0), field, expected)
    finer = list(UNITS)[min(list(UNITS).index(clock.unit) + 1, len(UNITS) - 1)]
    table.demand(values < LATEST_S * clock.per_second, field, f"{expected} before the year 2286; if these are "
                 f"{UNITS[finer][0]}, say so: ooco-gym data import FILE columns.arrival_s={field} time_unit={finer}")
    return values


def nullable(values: np.ndarray) -> pa.Array:
    """Returns seconds (NaN: none) or sessions (-1: none) as a pyarrow column with nulls."""
    return pa.array(values, mask=np.isnan(values) if values.dtype.kind == "f" else values == NO_SESSION)


def _slo(table: Table, field: str) -> np.ndarray:
    expected = "a number of seconds > 0, or nothing for what its class is promised"
    values = table.numbers(field, expected, missing=np.nan)
    table.demand(np.isnan(values) | (np.isfinite(values) & (values > 0)), field, expected)
    return values


def _classes(table: Table, field: str) -> pa.Array:
    """Returns a column of classes' names."""
    texts = table.texts(field)
    bad = [name for name in dict.fromkeys(texts) if name is None or not NAME.fullmatch(name) or _mistyped(name)]
    if bad:
        raise table.error(texts.index(bad[0]), field,
                          f"online, offline or a class's name: {NAMED}{nearest(bad[0] or '', DEFAULT_CLASSES)}")
    return pa.array(texts, pa.string())


def _mistyped(name: str) -> bool:
    """Whether a class is hardly another name than `online` or `offline`: `Online`, `ofline`; `online-2` is one."""
    close = get_close_matches(name.casefold(), DEFAULT_CLASSES, n=1, cutoff=0.9)
    return bool(close) and name != close[0] and (close[0] not in name or name.casefold() == close[0])


OWN = TraceFormat("ooco_gym", {name: name for name in REQUIRED + OPTIONAL}, Clock("s", epoch=False), REQUIRED,
                  ("hash_ids",), failed=False)

# Azure LLM inference traces, 2023 and 2024 (github Azure/AzurePublicDataset).
AZURE = TraceFormat("azure", {"arrival_s": "TIMESTAMP", "prompt_tokens": "ContextTokens",
                              "output_tokens": "GeneratedTokens"}, Clock("date"))

# Mooncake traces (github kvcache-ai/Mooncake): JSON lines with prefix block hashes.
MOONCAKE = TraceFormat("mooncake", {"arrival_s": "timestamp", "prompt_tokens": "input_length",
                                    "output_tokens": "output_length", "prefix_hashes": "hash_ids"}, Clock("ms"),
                       ("timestamp", "input_length", "output_length"))

# BurstGPT traces (github HPMLL/BurstGPT): CSV, in later versions with sessions.
BURSTGPT = TraceFormat("burstgpt", {"arrival_s": "Timestamp", "prompt_tokens": "Request tokens",
                                    "output_tokens": "Response tokens", "session": "Session ID"}, Clock("s"),
                       ("Timestamp", "Request tokens", "Response tokens"),
                       ("Model", "Total tokens", "Log Type", "Elapsed time"))

FORMATS: dict[str, TraceFormat] = {item.name: item for item in (OWN, AZURE, MOONCAKE, BURSTGPT)}
