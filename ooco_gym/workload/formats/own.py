"""Our own schema (docs/traces.md): what `write_trace` writes."""

from __future__ import annotations

import numpy as np

from ooco_gym.errors import nearest
from ooco_gym.workload.formats.base import Draft, TraceFormat, output_tokens, prompt_tokens, seconds
from ooco_gym.workload.tables import Table
from ooco_gym.workload.trace import NO_SESSION

CLASSES = ("online", "offline")
_HASHES = "a list of whole numbers (in CSV with blanks between them)"


def _read(table: Table) -> Draft:
    session = None
    if "session" in table.columns:
        session = table.integers("session", "a whole number >= 0, or nothing", 0, 2**63 - 1, missing=NO_SESSION)
    hashes = next((name for name in ("prefix_hashes", "hash_ids") if name in table.columns), None)
    return Draft(arrival_s=seconds(table, "arrival_s"), prompt_tokens=prompt_tokens(table, "prompt_tokens"),
                 output_tokens=output_tokens(table, "output_tokens", zero_allowed=False),
                 online=_classes(table) if "class" in table.columns else None, session=session,
                 ttft_slo_s=_slo(table, "ttft_slo_s"), tpot_slo_s=_slo(table, "tpot_slo_s"),
                 prefix_hashes=table.integer_lists(hashes, _HASHES) if hashes else None)


def _slo(table: Table, field: str) -> np.ndarray | None:
    if field not in table.columns:
        return None
    expected = "a number of seconds > 0, or nothing for the scenario's SLO"
    values = table.numbers(field, expected, missing=np.nan)
    table.demand(np.isnan(values) | (np.isfinite(values) & (values > 0)), field, expected)
    return values


def _classes(table: Table) -> np.ndarray:
    texts = table.texts("class")
    for row, text in enumerate(texts):
        if text not in CLASSES:
            raise table.error(row, "class", f"online or offline{nearest(text or '', CLASSES)}")
    return np.array([text == "online" for text in texts], dtype=bool)


OWN = TraceFormat("ooco_gym", ("arrival_s", "prompt_tokens", "output_tokens"),
                  ("class", "ttft_slo_s", "tpot_slo_s", "session", "prefix_hashes", "hash_ids"), _read)
