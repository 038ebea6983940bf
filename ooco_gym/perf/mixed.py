"""Iterations of prefills beside decodes, priced from a cost table: many at once, as predictors are fitted to them."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ooco_gym.perf.table import CostTable, attention_ps, dense_ps


def mixed_latency_ps(table: CostTable, new_tokens: ArrayLike, before: ArrayLike, decodes: ArrayLike,
                     context_tokens: ArrayLike, completed: ArrayLike | None = None) -> np.ndarray:
    """What the simulator charges for iterations, in whole ps: linear layers together, attentions one after the other.

    Args:
        table: of the instance; its largest batch bounds the decodes with the prefills that end.
        new_tokens: of each iteration's prefills, [n, prompts], tokens; 0 where there is none.
        before: tokens of their prompts that are in memory already, [n, prompts].
        decodes: requests that decode, [n].
        context_tokens: sum of their contexts, the new tokens included, [n].
        completed: prefills that end, [n]; None: all.

    Returns:
        int64[n]; an iteration without prefills is a decode step.
    """
    new, count = np.asarray(new_tokens, np.int64), np.asarray(decodes, np.int64)
    total = np.asarray(context_tokens, np.int64)
    rows = np.ceil(new / table.attention.tile) * table.attention.tile
    context = np.where(new > 0, new + np.asarray(before, np.int64), 0)
    work = (rows * (context - table.attention.causal * new)).sum(axis=1)
    prompts = (new > 0).sum(axis=1)
    sums = (work, rows.sum(axis=1), context.sum(axis=1), prompts)
    attention = attention_ps(table, *(np.where(prompts > 0, one, 1.0) for one in sums))
    heads = table.head_ps[(prompts if completed is None else np.asarray(completed, np.int64)) + count]
    together = (dense_ps(table, new.sum(axis=1) + count) + heads + np.rint(attention).astype(np.int64)
                + _steps_ps(table.attention_lines, count, total))
    return np.where(prompts > 0, np.maximum(together, table.prefill_floor_ps),
                    _steps_ps(table.decode_lines, count, total))


def _steps_ps(lines: np.ndarray, decodes: np.ndarray, context: np.ndarray) -> np.ndarray:
    base, slope, other, other_slope = lines[decodes].T
    return np.maximum(base + slope * context, other + other_slope * context)
