"""Our own schema (docs/traces.md): what `write_trace` writes; and any table whose columns a user names."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ooco_gym.errors import nearest
from ooco_gym.workload.formats.base import Clock, Draft, TraceFormat, output_tokens, prompt_tokens, read_ticks
from ooco_gym.workload.tables import Table
from ooco_gym.workload.trace import NO_SESSION

CLASSES = ("online", "offline")
REQUIRED = ("arrival_s", "prompt_tokens", "output_tokens")
OPTIONAL = ("class", "ttft_slo_s", "tpot_slo_s", "session", "prefix_hashes")
_HASHES = "a list of whole numbers (in CSV with blanks between them)"
_CLOCK = Clock("s", epoch=False)


def _read(table: Table) -> Draft:
    names = {name: name for name in REQUIRED + OPTIONAL if name in table.columns}
    if "prefix_hashes" not in names and "hash_ids" in table.columns:
        names["prefix_hashes"] = "hash_ids"
    return _draft(table, names, _CLOCK)


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
                 online=_classes(table, names["class"]) if "class" in names else None, session=session,
                 ttft_slo_s=_slo(table, names.get("ttft_slo_s")), tpot_slo_s=_slo(table, names.get("tpot_slo_s")),
                 prefix_hashes=table.integer_lists(hashes, _HASHES) if hashes else None,
                 drop_without_output=zero_allowed)


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
