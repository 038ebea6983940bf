"""The trace formats that `read_trace` knows: a new one is a `TraceFormat` here, in `FORMATS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np

from ooco_gym.errors import nearest
from ooco_gym.workload.classes import NAME, NAMED
from ooco_gym.workload.pieces import Table
from ooco_gym.workload.trace import DEFAULT_CLASSES, MAX_TOKENS, NO_SESSION, SECONDS, check_class_count

TOKENS = f"a whole number from 1 to {MAX_TOKENS}"
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
class Draft:
    """What a format's reader takes from a table, in the file's order: arrays with one element a row.

    `ticks` are times as the file has them: int64 for dates, float64 otherwise; `clock` says what they mean.
    `drop_without_output` says that zero output tokens mean a failed request, to be dropped and noted.
    """

    ticks: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    online: np.ndarray | None = None
    ttft_slo_s: np.ndarray | None = None
    tpot_slo_s: np.ndarray | None = None
    deadline_s: np.ndarray | None = None
    class_id: np.ndarray | None = None
    class_names: tuple[str, ...] = ()
    session: np.ndarray | None = None
    prefix_hashes: tuple[np.ndarray, np.ndarray] | None = None
    drop_without_output: bool = False
    clock: Clock = Clock()


@dataclass(frozen=True)
class TraceFormat:
    """A format: the columns by which it is recognised, those it can use besides, and its reader."""

    name: str
    required: tuple[str, ...]
    optional: tuple[str, ...]
    read: Callable[[Table], Draft]


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


def prompt_tokens(table: Table, field: str) -> np.ndarray:
    """Returns a column of prompt lengths, int64, each >= 1."""
    return table.integers(field, TOKENS, 1, MAX_TOKENS)


def output_tokens(table: Table, field: str, *, zero_allowed: bool) -> np.ndarray:
    """Returns a column of output lengths, int64, each >= 1, or >= 0 where zero means a failed request."""
    if zero_allowed:
        return table.integers(field, f"a whole number from 0 to {MAX_TOKENS}", 0, MAX_TOKENS)
    return table.integers(field, TOKENS, 1, MAX_TOKENS)


_OWN_CLOCK = Clock("s", epoch=False)


def _read_own(table: Table) -> Draft:
    names = {name: name for name in REQUIRED + OPTIONAL if name in table.columns}
    if "prefix_hashes" not in names and "hash_ids" in table.columns:
        names["prefix_hashes"] = "hash_ids"
    return _draft(table, names, _OWN_CLOCK)


def mapped_format(columns: Mapping[str, str], unit: str) -> TraceFormat:
    """Returns a format made of a user's column names.

    Requests with zero output tokens are dropped as failed ones; dates, and times since 1970, count from the first
    request.

    Args:
        columns: our names (docs/traces.md) to the file's; `arrival_s`, `prompt_tokens` and `output_tokens` at least.
        unit: s, ms, us, ns or date.
    """
    clock = Clock(unit)

    def read(table: Table) -> Draft:
        return _draft(table, columns, clock, zero_allowed=True)

    return TraceFormat("your columns", tuple(columns.values()), (), read)


def _draft(table: Table, names: Mapping[str, str], clock: Clock, *, zero_allowed: bool = False) -> Draft:
    session = None
    if "session" in names:
        session = table.integers(names["session"], "a whole number >= 0, or nothing", 0, 2**63 - 1, missing=NO_SESSION)
    hashes = names.get("prefix_hashes")
    return Draft(ticks=read_ticks(table, names["arrival_s"], clock), clock=clock,
                 prompt_tokens=prompt_tokens(table, names["prompt_tokens"]),
                 output_tokens=output_tokens(table, names["output_tokens"], zero_allowed=zero_allowed),
                 **_classes(table, names["class"]) if "class" in names else {}, session=session,
                 ttft_slo_s=_slo(table, names.get("ttft_slo_s")), tpot_slo_s=_slo(table, names.get("tpot_slo_s")),
                 deadline_s=_slo(table, names.get("deadline_s")),
                 prefix_hashes=table.integer_lists(hashes, _HASHES) if hashes else None,
                 drop_without_output=zero_allowed)


def _slo(table: Table, field: str | None) -> np.ndarray | None:
    if field is None:
        return None
    expected = "a number of seconds > 0, or nothing for what its class is promised"
    values = table.numbers(field, expected, missing=np.nan)
    table.demand(np.isnan(values) | (np.isfinite(values) & (values > 0)), field, expected)
    return values


def _classes(table: Table, field: str) -> dict[str, Any]:
    """Returns a column of classes' names as a draft has them; ids only where others than the two are among them."""
    texts = table.texts(field)
    names = tuple(dict.fromkeys(texts))
    bad = [name for name in names if name is None or not NAME.fullmatch(name) or _mistyped(name)]
    if bad:
        raise table.error(texts.index(bad[0]), field,
                          f"online, offline or a class's name: {NAMED}{nearest(bad[0] or '', DEFAULT_CLASSES)}")
    known = tuple(name for name in names if name is not None)
    check_class_count(known)
    online = np.array([text != "offline" for text in texts], dtype=bool)
    if set(known) <= set(DEFAULT_CLASSES):
        return {"online": online}
    places = {name: place for place, name in enumerate(known)}
    ids = np.array([places[text] for text in texts if text is not None], np.int8)
    return {"online": online, "class_id": ids, "class_names": known}


def _mistyped(name: str) -> bool:
    """Whether a class is hardly another name than `online` or `offline`: `Online`, `ofline`; `online-2` is one."""
    close = get_close_matches(name.casefold(), DEFAULT_CLASSES, n=1, cutoff=0.9)
    return bool(close) and name != close[0] and (close[0] not in name or name.casefold() == close[0])


def published_format(name: str, unit: str, required: Mapping[str, str], optional: Mapping[str, str] | None = None,
                     unused: tuple[str, ...] = ()) -> TraceFormat:
    """A format of others: zero output tokens mean a failed request.

    Args:
        name: as `read_trace` takes it.
        unit: of its times, as `Clock` has them.
        required: our names to its columns that must be there.
        optional: those that may be there.
        unused: columns that it has besides and that are not read.
    """
    clock, more = Clock(unit), optional or {}

    def read(table: Table) -> Draft:
        there = {ours: field for ours, field in more.items() if field in table.columns}
        return _draft(table, {**required, **there}, clock, zero_allowed=True)

    return TraceFormat(name, tuple(required.values()), (*more.values(), *unused), read)


OWN = TraceFormat("ooco_gym", REQUIRED, (*OPTIONAL, "hash_ids"), _read_own)

# Azure LLM inference traces, 2023 and 2024 (github Azure/AzurePublicDataset).
AZURE = published_format("azure", "date", {
    "arrival_s": "TIMESTAMP", "prompt_tokens": "ContextTokens", "output_tokens": "GeneratedTokens"})

# Mooncake traces (github kvcache-ai/Mooncake): JSON lines with prefix block hashes.
MOONCAKE = published_format("mooncake", "ms", {
    "arrival_s": "timestamp", "prompt_tokens": "input_length", "output_tokens": "output_length"},
    {"prefix_hashes": "hash_ids"})

# BurstGPT traces (github HPMLL/BurstGPT): CSV, in later versions with sessions.
BURSTGPT = published_format("burstgpt", "s", {
    "arrival_s": "Timestamp", "prompt_tokens": "Request tokens", "output_tokens": "Response tokens"},
    {"session": "Session ID"}, ("Model", "Total tokens", "Log Type", "Elapsed time"))

FORMATS: dict[str, TraceFormat] = {item.name: item for item in (OWN, AZURE, MOONCAKE, BURSTGPT)}
