"""What a trace format is, and the fields that all of them have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ooco_gym.workload.tables import Table
from ooco_gym.workload.trace import MAX_TOKENS

TOKENS = f"a whole number from 1 to {MAX_TOKENS}"
SECONDS = "a finite number of seconds >= 0"


@dataclass(frozen=True)
class Draft:
    """What a format's reader takes from a table, in the file's order: arrays with one element a row.

    `drop_without_output` says that zero output tokens mean a failed request, to be dropped and noted.
    """

    arrival_s: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    online: np.ndarray | None = None
    ttft_slo_s: np.ndarray | None = None
    tpot_slo_s: np.ndarray | None = None
    session: np.ndarray | None = None
    prefix_hashes: tuple[np.ndarray, np.ndarray] | None = None
    drop_without_output: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class TraceFormat:
    """A format: the columns by which it is recognised, those it can use besides, and its reader."""

    name: str
    required: tuple[str, ...]
    optional: tuple[str, ...]
    read: Callable[[Table], Draft]


def seconds(table: Table, field: str, per_second: float = 1.0, what: str = SECONDS) -> np.ndarray:
    """Returns a column of times as float64 seconds, each finite and >= 0."""
    values = table.numbers(field, what)
    table.demand(np.isfinite(values) & (values >= 0), field, what)
    return values / per_second


def prompt_tokens(table: Table, field: str) -> np.ndarray:
    """Returns a column of prompt lengths, int64, each >= 1."""
    return table.integers(field, TOKENS, 1, MAX_TOKENS)


def output_tokens(table: Table, field: str, *, zero_allowed: bool) -> np.ndarray:
    """Returns a column of output lengths, int64, each >= 1, or >= 0 where zero means a failed request."""
    if zero_allowed:
        return table.integers(field, f"a whole number from 0 to {MAX_TOKENS}", 0, MAX_TOKENS)
    return table.integers(field, TOKENS, 1, MAX_TOKENS)
