"""Bytes that element-wise operators move, as `timing=extended` counts them, for rows that do not say."""

from __future__ import annotations

import numpy as np

from ooco_gym.calibrate.rows import NUMBERS, ORIGIN, TEXTS, Rows
from ooco_gym.perf.timing._measurements import NAMES

_DTYPE_BYTES = 2.0
_HIDDEN = {"norm": 4.0, "final_norm": 4.0, "embedding": 2.0, "residual": 3.0}
"""Times that the hidden state is read or written."""


def canonical(op: str) -> str:
    """Our name of an element-wise operator (`elt:<theirs>`); '' where it is none of those that are simulated."""
    name = op.partition(":")[2]
    return next((ours for ours, theirs in NAMES.items() if name in theirs), "")


def with_bytes(rows: Rows) -> tuple[Rows, int]:
    """Fills in `bytes` of element-wise rows where it is missing.

    Returns:
        All rows but those element-wise ones whose bytes cannot be told, and how many these are.
    """
    kind = rows.kind()
    names = np.array([canonical(str(op)) if which == "elementwise" else ""
                      for op, which in zip(rows["op"], kind, strict=True)], dtype=object)
    tp, tokens = np.nan_to_num(rows["tp"], nan=1.0), rows["n_tokens"]
    head_dim = np.where(np.isnan(rows["d_h"]), rows["d_in"] / rows["h_q"], rows["d_h"])
    widths = np.select(
        [names == name for name in (*_HIDDEN, "activation", "rotary")],
        [*(times * rows["d_in"] for times in _HIDDEN.values()), 3.0 * _inner(rows, kind),
         2.0 * (rows["h_q"] + rows["h_kv"]) / tp * head_dim], np.nan)
    wanted = (kind == "elementwise") & ~(rows["bytes"] > 0)
    moved = np.where(wanted, _DTYPE_BYTES * widths * tokens, rows["bytes"])
    unknown = (kind == "elementwise") & ~(moved > 0)
    columns = {name: rows[name] for name in (*TEXTS, *NUMBERS, *ORIGIN)} | {"bytes": moved}
    return Rows(columns).select(~unknown), int((unknown & (names != "sampler")).sum())


def _inner(rows: Rows, kind: np.ndarray) -> np.ndarray:
    """Width of the MLP on one chip: the row's own `d_out`, else that of the same model's down projection."""
    width = rows["d_out"].copy()
    same = rows.distinct("model", "tp")
    down = (kind == "gemm") & np.array(["down" in str(op) for op in rows["op"]], dtype=bool)
    for number in np.unique(same[down]):
        inner = rows["d_in"][down & (same == number)][0]
        width = np.where((same == number) & np.isnan(width), inner, width)
    return width
