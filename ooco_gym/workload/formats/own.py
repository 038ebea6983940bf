"""Our own schema (docs/traces.md): what `write_trace` writes; and any table whose columns a user names."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ooco_gym.errors import nearest
from ooco_gym.workload.formats.base import Draft, TraceFormat, output_tokens, prompt_tokens, seconds
from ooco_gym.workload.tables import Table
from ooco_gym.workload.trace import NO_SESSION

CLASSES = ("online", "offline")
REQUIRED = ("arrival_s", "prompt_tokens", "output_tokens")
OPTIONAL = ("class", "ttft_slo_s", "tpot_slo_s", "session", "prefix_hashes")
UNITS = {"s": ("seconds", 1.0), "ms": ("milliseconds", 1e3), "us": ("microseconds", 1e6), "ns": ("nanoseconds", 1e9)}
LATEST_S = 1e10     # the year 2286 in seconds since 1970; milliseconds since 1970 are beyond it
EPOCH_S = 1e8       # three years: later than any trace is long
_HASHES = "a list of whole numbers (in CSV with blanks between them)"
_DATE = "a date and time such as 2023-11-16 18:15:46.680590"


def _read(table: Table) -> Draft:
    names = {name: name for name in REQUIRED + OPTIONAL if name in table.columns}
    if "prefix_hashes" not in names and "hash_ids" in table.columns:
        names["prefix_hashes"] = "hash_ids"
    return _draft(table, names, seconds(table, "arrival_s"))


def mapped_format(columns: Mapping[str, str], time_unit: str) -> TraceFormat:
    """Returns a format made of a user's column names.

    Requests with zero output tokens are dropped as failed ones; dates, and times since 1970, count from the first
    request.

    Args:
        columns: our names (docs/traces.md) to the file's; `arrival_s`, `prompt_tokens` and `output_tokens` at least.
        time_unit: s, ms, us, ns or date; `auto` is date for columns of dates and s otherwise.
    """
    def read(table: Table) -> Draft:
        arrival_s, notes = _times(table, columns["arrival_s"], time_unit)
        return _draft(table, columns, arrival_s, zero_allowed=True, notes=notes)

    return TraceFormat("your columns", tuple(columns.values()), (), read)


def _draft(table: Table, names: Mapping[str, str], arrival_s: np.ndarray, *, zero_allowed: bool = False,
           notes: tuple[str, ...] = ()) -> Draft:
    session = None
    if "session" in names:
        session = table.integers(names["session"], "a whole number >= 0, or nothing", 0, 2**63 - 1, missing=NO_SESSION)
    hashes = names.get("prefix_hashes")
    return Draft(arrival_s=arrival_s, prompt_tokens=prompt_tokens(table, names["prompt_tokens"]),
                 output_tokens=output_tokens(table, names["output_tokens"], zero_allowed=zero_allowed),
                 online=_classes(table, names["class"]) if "class" in names else None, session=session,
                 ttft_slo_s=_slo(table, names.get("ttft_slo_s")), tpot_slo_s=_slo(table, names.get("tpot_slo_s")),
                 prefix_hashes=table.integer_lists(hashes, _HASHES) if hashes else None,
                 drop_without_output=zero_allowed, notes=notes)


def _times(table: Table, field: str, unit: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns arrivals in seconds, and what was done to them in words."""
    if unit == "date" or (unit == "auto" and table.holds_dates(field)):
        moments_ns = table.timestamps_ns(field, _DATE)
        return (moments_ns - moments_ns.min()) / 1e9, ("times count from the first request",)
    word, per_second = UNITS["s" if unit == "auto" else unit]
    expected = f"a finite number of {word} >= 0"
    times = seconds(table, field, 1.0, expected)
    table.demand(times < LATEST_S * per_second, field, f"{expected} before the year 2286: give time_unit="
                 f"{_finer(unit)} if that is what it is")
    if len(times) and times.min() >= EPOCH_S * per_second:
        return (times - times.min()) / per_second, ("times since 1970: they count from the first request now",)
    whole = len(times) > 20 and bool(np.all(times == np.rint(times)))
    gap = float(np.median(np.diff(np.sort(times)))) if whole else 0.0
    if per_second == 1.0 and gap >= 20.0:
        return times, (f"all times are whole numbers, and half of the gaps are {gap:g} s or more: give time_unit=ms if "
                       "they are milliseconds",)
    return times / per_second, ()


def _finer(unit: str) -> str:
    order = list(UNITS)
    return order[min(order.index("s" if unit == "auto" else unit) + 1, len(order) - 1)]


def _slo(table: Table, field: str | None) -> np.ndarray | None:
    if field is None:
        return None
    expected = "a number of seconds > 0, or nothing for the scenario's SLO"
    values = table.numbers(field, expected, missing=np.nan)
    table.demand(np.isnan(values) | (np.isfinite(values) & (values > 0)), field, expected)
    return values


def _classes(table: Table, field: str) -> np.ndarray:
    texts = table.texts(field)
    for row, text in enumerate(texts):
        if text not in CLASSES:
            raise table.error(row, field, f"online or offline{nearest(text or '', CLASSES)}")
    return np.array([text == "online" for text in texts], dtype=bool)


OWN = TraceFormat("ooco_gym", REQUIRED, (*OPTIONAL, "hash_ids"), _read)
