"""What a trace format is, and the fields that all of them have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ooco_gym.workload.tables import Table
from ooco_gym.workload.trace import MAX_TOKENS

TOKENS = f"a whole number from 1 to {MAX_TOKENS}"
DATE = "a date and time such as 2023-11-16 18:15:46.680590"
LATEST_S = 1e10     # the year 2286 in seconds since 1970; milliseconds since 1970 are beyond it
EPOCH_S = 1e8       # three years: later than any trace is long
UNITS = {"s": ("seconds", 1.0), "ms": ("milliseconds", 1e3), "us": ("microseconds", 1e6), "ns": ("nanoseconds", 1e9)}


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
