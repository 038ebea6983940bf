"""Cost tables: what the latency of an iteration (`ooco_gym.perf.latency`) is computed from, in integer picoseconds;
latencies of arrays of iterations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ooco_gym.errors import UserError
from ooco_gym.perf.deployment import Deployment
from ooco_gym.perf.latency import (
    GRID_COLUMNS,
    GRID_ROWS,
    PS_PER_S,
    Tables,
    alone_of,
    empty_tables,
    iterations_of,
    latencies_of,
    must_compile,
    put_attention,
)
from ooco_gym.perf.timing import OF_ALL_RANKS, Attention, MeasuredAttention, MixedKernel, Phase
from ooco_gym.rounding import steady

KEPT = 128  # number of tables, of some 0.2 MB each
LONGEST_S = 1e6  # of an iteration: integer picoseconds hold it, and sums of several
_SLOPE_SPAN = 1 << 20
PHASES: tuple[Phase, Phase] = ("prefill", "decode")
CONTEXTS = np.array([16.0, 64.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16_384.0, 65_536.0])
"""Mean contexts, in tokens, at which a curve and its lines are compared; denser if memory limits
contexts."""
SHORTEST_LINES = 512  # least mean context to fit lines up to, as common prefixes share their memory


class CostTable(NamedTuple):
    """Time and memory of one instance for the simulator. Times are in picoseconds.

    A decode step of `b` requests whose contexts (with the new token) sum to `C` tokens takes
    `max_j(base_j[b] + slope_j[b] * C)`, two lines for each batch size. The coefficients are
    integers, so that `k` steps summed in closed form equal `k` steps one by one, at the same cost
    for any timing form.

    A prefill iteration takes `prefill_ps[N]` for `N` new tokens in total, plus `head_ps[n]` for the
    `n` prompts that it completes, plus its attention. Decodes in it add `attention_lines`, or share
    one kernel with it (`mixed`). Unequal context lengths matter only on mixed instances, where
    every iteration looks at every request; pools take many steps at once from the sum of contexts.

    Attributes:
        decode_lines: int64[max_batch + 1, 4], `base_0, slope_0, base_1, slope_1` of a whole decode
            step; row 0 is 0.
        attention_lines: int64[max_batch + 1, 4], the same for its attention; if decodes share a
            kernel with chunks (`mixed`), for the work that they add to it.
        prefill_ps: int64[max_prefill_tokens + 1], linear layers, communication and overhead; [0] is
            0.
        prefill_slope_ps: per token beyond the table.
        attention: attention of a prefill iteration, in seconds, from sums over its prompts.
        head_ps: int64[max_batch + 1], LM head by sequences that complete their prefill; [0] is 0.
        attention_grid: float64[GRID_ROWS, GRID_COLUMNS] if attention is measured: log2 of the ps of
            one prompt with `2 ** (i / 2)` new tokens and `2 ** (j / 2)` tokens of context; else
            empty.
        mixed: how chunks and decodes share a kernel (the decodes' work is in `attention_lines`);
            None: their times add up.
        decode_skew: seconds of a decode step per token by which its longest context exceeds the
            mean, and the batch from which that applies.
        layers: transformer layers, the granularity of interruption.
        kv_blocks: KV blocks that fit beside the weights.
        kv_bytes_per_token: over the whole instance.
        bs_sat: compute-saturated decode batch size.
        shared_ps: int64[max_prefill_tokens + 1] for data-parallel ranks: the common part of an
            iteration (experts and exchange) by tokens of each rank, which other times include; else
            empty.
    """

    decode_lines: np.ndarray
    attention_lines: np.ndarray
    prefill_ps: np.ndarray
    prefill_slope_ps: int
    attention: Attention
    head_ps: np.ndarray
    attention_grid: np.ndarray = np.zeros((0, 0))
    mixed: MixedKernel | None = None
    decode_skew: tuple[float, float] = (0.0, 0.0)
    layers: int = 0
    kv_blocks: int = 0
    kv_bytes_per_token: int = 0
    bs_sat: int = 0
    shared_ps: np.ndarray = np.zeros(0, np.int64)

    # As keys of `lru_cache`, tables compare by identity; `cost_table` keeps them.
    __eq__ = object.__eq__
    __hash__ = object.__hash__


def cost_table(deployment: Deployment, max_batch: int = 2048, max_prefill_tokens: int = 65_536) -> CostTable:
    """Returns the cost table of a deployment, computed in a few milliseconds or cached: do not
    change its arrays.

    Args:
        deployment: model, chips and timing form.
        max_batch: largest decode batch, and most prompts completed by one prefill iteration.
        max_prefill_tokens: tabulated prefill tokens; beyond, latency grows by `prefill_slope_ps`
            per token.

    Raises:
        UserError: a size is not positive, or an iteration takes longer than `LONGEST_S`.
    """
    for name, size in (("max_batch", max_batch), ("max_prefill_tokens", max_prefill_tokens)):
        if size < 1:
            raise UserError(f"{name} must be at least 1, got {size}")
    return _cost_table(deployment, max_batch, max_prefill_tokens)


@lru_cache(maxsize=KEPT)
def _cost_table(deployment: Deployment, max_batch: int, max_prefill_tokens: int) -> CostTable:
    form, shard = deployment.form, deployment.shard
    batch = np.arange(max_batch + 1, dtype=np.float64)
    head_s = _seconds(form.head(shard, batch))
    dense_s = _seconds(form.dense(shard, batch)) + head_s
    tokens = np.arange(max_prefill_tokens + 1, dtype=np.float64)
    overhead_s = np.array([form.overhead_s(shard, phase) for phase in PHASES])
    dense = form.dense(shard, tokens)
    prefill_s = _seconds(dense) + overhead_s[0]
    shared = [one for one in dense if one.name in OF_ALL_RANKS] if deployment.data_parallel > 1 else []
    far = _seconds(form.dense(shard, max_prefill_tokens + np.array([0.0, _SLOPE_SPAN])))
    # The first entries, without tokens, are set to 0 later.
    _check_times(deployment, head_s[1:], dense_s[1:], overhead_s, prefill_s[1:], far)
    measured = form.measured_attention(shard)
    contexts = _contexts(deployment, batch[1:])
    beside_s = dense_s + overhead_s[1]
    alone_lines = _attention_lines(*form.layered_attention(shard, "decode"), deployment.model.window, measured, batch,
                                   beside_s, contexts)
    mixed, attention_lines = form.mixed_kernel(shard), alone_lines
    if mixed is not None and mixed.decode_s is not None:
        attention_lines = _lines_of(mixed.decode_s, batch, beside_s, contexts, rising=True)
    return CostTable(
        decode_lines=_decode_lines(dense_s, alone_lines, overhead_s[1]),
        attention_lines=whole_ps(attention_lines),
        prefill_ps=whole_ps(prefill_s),
        prefill_slope_ps=int(np.rint((far[1] - far[0]) / _SLOPE_SPAN * PS_PER_S)),
        attention=form.layered_attention(shard, "prefill")[0],
        attention_grid=np.zeros((0, 0)) if measured is None else _grid(measured),
        mixed=mixed and mixed._replace(decode_s=None),
        decode_skew=form.decode_skew(shard),
        head_ps=whole_ps(head_s),
        layers=deployment.model.layers,
        kv_blocks=deployment.kv_blocks,
        kv_bytes_per_token=deployment.kv_bytes_per_token,
        bs_sat=deployment.bs_sat,
        shared_ps=whole_ps(_seconds(shared)) if shared else np.zeros(0, np.int64),
    )


def _check_times(deployment: Deployment, *seconds: Any) -> None:
    """Raises UserError for times that exceed integer picoseconds or any engine's."""
    worst = max(float(np.max(one)) for one in seconds)
    if not worst <= LONGEST_S:
        raise UserError(f"chip '{deployment.chip.name}': an iteration of '{deployment.model.name}' would take "
                        f"{worst:g} s; expected {LONGEST_S:g} s at most: check its rates and overheads")


def _contexts(deployment: Deployment, batch: np.ndarray) -> np.ndarray:
    """Mean contexts for fitting lines, by batch size, as long as memory allows: float64[n, m]."""
    longest = np.clip(deployment.kv_tokens / batch, SHORTEST_LINES, CONTEXTS[-1])[:, None]
    share = steady(np.log(CONTEXTS / CONTEXTS[0]) / np.log(CONTEXTS[-1] / CONTEXTS[0]))
    closer = CONTEXTS[0] * steady((longest / CONTEXTS[0]) ** share)
    return np.where(longest == CONTEXTS[-1], CONTEXTS, closer)


def _attention_lines(attention: Attention, sliding: Attention | None, window: int, measured: MeasuredAttention | None,
                     batch: np.ndarray, beside_s: np.ndarray, contexts: np.ndarray) -> np.ndarray:
    """Decode attention by batch size, as two lines over the sum of contexts, in seconds: float64[n,
    4]."""
    if measured is not None:
        return _lines_of(measured.decode_s, batch, beside_s, contexts)
    lines = exact_lines(attention, batch) if sliding is None else None
    if lines is not None:
        return lines
    return _lines_of(lambda size, mean: decode_attention_s(attention, sliding, window, size, mean), batch, beside_s,
                     contexts)


def decode_attention_s(attention: Attention, sliding: Attention | None, window: int, size: np.ndarray,
                       mean: np.ndarray) -> np.ndarray:
    """Seconds of decode attention of `size` requests at a mean context, from
    `TimingForm.layered_attention`."""
    found = attention.seconds(size * mean, size, size * mean, size)
    if sliding is None:
        return found
    near = size * np.minimum(mean, window)
    return found + sliding.seconds(near, size, near, size)


def _lines_of(seconds: Callable[[np.ndarray, np.ndarray], np.ndarray], batch: np.ndarray, beside_s: np.ndarray,
              contexts: np.ndarray, rising: bool = False) -> np.ndarray:
    """Fits two lines for each batch size to a function of batch sizes and mean contexts, float64[n] each.

    Errors are relative to whole steps, which take `beside_s` more, float64[n]. With `rising` the
    function is made non-decreasing in the context.
    """
    size = np.broadcast_to(batch[1:, None], contexts.shape)
    curve = seconds(size.ravel(), contexts.ravel()).reshape(size.shape)
    if rising:
        curve = np.maximum.accumulate(curve, axis=1)
    return np.concatenate([np.zeros((1, 4)), fit_lines(curve, batch[1:], beside_s[1:], contexts)])


def _decode_lines(dense_s: np.ndarray, attention: np.ndarray, overhead_s: float) -> np.ndarray:
    """Whole decode steps: the attention's lines plus the times that depend only on the batch."""
    lines = attention.copy()
    lines[:, 0::2] += dense_s[:, None]
    ps = whole_ps(lines)
    ps[1:, 0::2] += round(overhead_s * PS_PER_S)
    return ps


def _grid(measured: MeasuredAttention) -> np.ndarray:
    q, kv = np.meshgrid(*(steady(2.0 ** (np.arange(n) / 2)) for n in (GRID_ROWS, GRID_COLUMNS)), indexing="ij")
    seconds = measured.prefill_s(q.ravel(), np.maximum(q, kv).ravel()).reshape(q.shape)
    return steady(np.log2(np.maximum(seconds * PS_PER_S, 1.0)))


def fill(tables: Any, row: int, table: CostTable, factor: float = 1.0) -> None:
    """Writes a cost table into a row of `latency.Tables`, or of a state, of its size, with times multiplied by
    `factor`."""
    for name in ("decode_lines", "attention_lines", "prefill_ps", "head_ps", "shared_ps"):
        if len(values := getattr(table, name)):
            getattr(tables, name)[row] = np.rint(values * factor).astype(np.int64)
    entry, mixed, ps = tables.tables[row], table.mixed, factor * PS_PER_S
    put_attention(entry, table.attention, ps)
    entry["prefill_slope_ps"] = np.rint(table.prefill_slope_ps * factor)
    entry["measured"] = int(table.attention_grid.size > 0)
    if entry["measured"]:
        tables.attention_grid[row] = table.attention_grid + steady(np.log2(factor))
    entry["decode_skew"], entry["decode_skew_batch"] = table.decode_skew[0] * ps, max(table.decode_skew[1], 2.0)
    entry["together"] = int(mixed is not None)
    if mixed is not None:
        entry["shared_launch"], entry["per_chunk"] = mixed.launch_s * ps, mixed.chunk_s * ps
        entry["chain"], entry["chain_exponent"] = mixed.critical_s * ps, mixed.exponent
        entry["chunk_skew"], entry["chunk_skew_batch"] = mixed.skew_s * ps, mixed.skew_batch
    entry["kv_bytes_per_token"], entry["layers"], entry["bs_sat"] = table.kv_bytes_per_token, table.layers, table.bs_sat


@lru_cache(maxsize=KEPT)
def _compiled(table: CostTable) -> Tables:
    must_compile()
    found = empty_tables(len(table.head_ps) - 1, len(table.prefill_ps) - 1, len(table.shared_ps))
    fill(found, 0, table)
    return found


def mixed_latency_ps(table: CostTable, new_tokens: ArrayLike, before: ArrayLike, decodes: ArrayLike,
                     context_tokens: ArrayLike, completed: ArrayLike | None = None,
                     longest: ArrayLike | None = None) -> np.ndarray:
    """Returns the latencies of iterations (`latency.sums_latency`), int64[n] in ps.

    Args:
        table: the instance's table.
        new_tokens, before: each iteration's prefills, [n, prompts]: new tokens (0: none), and
            tokens in memory.
        decodes, context_tokens: requests that decode, and the sum of their contexts with the new tokens, [n].
        completed: prefills that end, [n]; None: all.
        longest: longest context of the decodes, [n]; None: all are equal.

    Raises:
        IndexError: more decodes and ending prefills than the table's largest batch.
    """
    new, count = np.array(new_tokens, np.int64, ndmin=2, order="C"), np.asarray(decodes, np.int64)
    sampled = count + ((new > 0).sum(axis=1) if completed is None else np.asarray(completed, np.int64))
    if max(sampled.max(initial=0), count.max(initial=0)) >= len(table.head_ps):
        raise IndexError(f"a batch of {sampled.max()} requests, of a table for at most {len(table.head_ps) - 1}")
    counts = (np.array(np.broadcast_to(one, len(new)), np.int64) for one in (count, context_tokens, sampled))
    most = np.array(np.broadcast_to(-1.0 if longest is None else longest, len(new)), np.float64)
    earlier, found = np.array(np.broadcast_to(before, new.shape), np.int64, order="C"), np.zeros(len(new), np.int64)
    iterations_of(_compiled(table), new, earlier, *counts, most, found)
    return found


def sums_latency_ps(table: CostTable, sums: Sequence[ArrayLike]) -> np.ndarray:
    """Returns the latencies of iterations in ps, float64[n], from their ten sums (`latency.sums_latency`), [n] each."""
    columns = np.stack(np.broadcast_arrays(*(np.asarray(one, np.float64) for one in sums)), axis=-1)
    found = np.empty(len(columns))
    latencies_of(_compiled(table), np.ascontiguousarray(columns), found)
    return found


def decode_latency_ps(table: CostTable, batch: int, context_tokens: int) -> int:
    """Latency of a decode step of `batch` requests with `context_tokens` tokens of context in
    total."""
    return int(mixed_latency_ps(table, np.zeros((1, 0)), 0, [batch], [context_tokens])[0])


def prefill_latency_ps(table: CostTable, prompts: Sequence[tuple[int, int]], completed: int | None = None) -> int:
    """Latency of a prefill iteration of prompts `(q, kv)`, new tokens and context with them;
    `completed` (default: all) of them end their prefill."""
    new, before = [q for q, _ in prompts], [kv - q for q, kv in prompts]
    return int(mixed_latency_ps(table, [new], [before], [0], [0], completed)[0])


def prefill_alone_ps(table: CostTable, tokens: np.ndarray) -> np.ndarray:
    """Latencies of prompts prefilled alone, float64[n], by length in tokens, int64[n]."""
    found = np.empty(len(tokens))
    alone_of(_compiled(table), np.array(tokens, np.int64), found)
    return found


def least_prefill_ps(table: CostTable, tokens: np.ndarray, cached: np.ndarray) -> np.ndarray:
    """Lower bounds of prefills in chunks of any size, int64[n] in ps, the first `cached` of their `tokens` free.

    A token costs no less than at the best rate of all chunks, and attention no less than its work, half the square of
    the context, at the roofs (0 for kernels that were measured whole)."""
    linear = table.prefill_ps - (table.shared_ps if table.shared_ps.size else 0)  # ranks may share the rest unevenly
    rate, new = np.minimum.accumulate(linear[1:] / np.arange(1, len(linear))), tokens - cached
    each = np.where(new > rate.size, np.minimum(rate[-1], table.prefill_slope_ps), rate[np.minimum(new, rate.size) - 1])
    roof = 0.0 if table.attention_grid.size else table.attention.linear_s[0] + table.attention.roofs_s[:, 0].max()
    work = 0.5 * (tokens + cached) * new
    return (new * (each - 1.0) + roof * PS_PER_S * work).astype(np.int64) + table.head_ps[1]  # 1 ps: roundings


def least_decode_ps(table: CostTable, context_tokens: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Lower bounds of a request's decode steps alone, int64[n] in ps, from its context at the first; of one, exact."""
    base, slope, other, other_slope = table.decode_lines[1]
    total = steps * context_tokens + steps * (steps - 1) // 2
    return np.maximum(base * steps + slope * total, other * steps + other_slope * total)


def _seconds(costs: Sequence) -> np.ndarray:
    return np.sum([cost.seconds for cost in costs], axis=0)


def whole_ps(seconds: np.ndarray) -> np.ndarray:
    """Integer picoseconds of a table whose first row, without a batch, is 0."""
    table = np.rint(seconds * PS_PER_S).astype(np.int64)
    table[0] = 0
    return table


def exact_lines(attention: Attention, batch: np.ndarray) -> np.ndarray | None:
    """Exact lines of a roofline with at most two roofs, by batch size, float64[n, 4]: base and
    slope of the first and the second line, in seconds over the sum of contexts; None for other
    forms."""
    roofs = attention.roofs_s
    plain = np.isinf(attention.exponent) or len(roofs) == 1
    if not plain or len(roofs) > 2 or attention.critical_s:
        return None
    lines = []
    for roof in (roofs[0], roofs[-1]):
        work, rows, context, requests = roof + attention.linear_s
        lines += [attention.launch_s + (rows + requests) * batch, np.full(batch.shape, work + context)]
    return np.stack(lines, axis=-1)


def fit_lines(curve: np.ndarray, batch: np.ndarray, beside: np.ndarray | float = 0.0,
              contexts: np.ndarray = CONTEXTS) -> np.ndarray:
    """Returns the two lines whose maximum is closest to a curve at `contexts`, for each batch size:
    float64[n, 4], as `exact_lines`.

    Candidates are the secants between neighbouring points and the level of the first point. The
    pair with the smallest range of errors, relative to the whole step, wins and is shifted to
    centre its errors.

    Args:
        curve: seconds of a step, float64[n, m], non-decreasing in the context.
        batch: batch sizes, float64[n], at least 1.
        beside: seconds of the same step outside the curve, float64[n] or one for all.
        contexts: mean contexts of the curve, in tokens, float64[m] or float64[n, m].
    """
    total = batch[:, None] * contexts
    slopes = np.maximum(np.diff(curve, axis=1) / np.diff(total, axis=1), 0.0)
    slopes = np.concatenate([np.zeros((len(batch), 1)), slopes], axis=1)
    through = np.concatenate([[0], np.arange(curve.shape[1] - 1)])
    bases = curve[:, through] - slopes * total[:, through]
    values = bases[:, :, None] + slopes[:, :, None] * total[:, None, :]  # [n, candidates, contexts]
    step = curve + np.broadcast_to(beside, batch.shape)[:, None]
    best = np.full(len(batch), np.inf)
    lines = np.zeros((len(batch), 4))
    for i, j in combinations(range(slopes.shape[1]), 2):
        error = (np.maximum(values[:, i], values[:, j]) - curve) / step
        spread = error.max(axis=1) - error.min(axis=1)
        better = spread < best
        best[better] = spread[better]
        pair = np.stack([bases[:, i], slopes[:, i], bases[:, j], slopes[:, j]], axis=-1)
        lines[better] = pair[better]
    error = (np.maximum(lines[:, :1] + lines[:, 1:2] * total, lines[:, 2:3] + lines[:, 3:] * total) - curve) / step
    row, most, least = np.arange(len(batch)), error.argmax(axis=1), error.argmin(axis=1)
    middle = (error[row, most] + error[row, least]) / (1.0 / step[row, most] + 1.0 / step[row, least])
    lines[:, 0::2] -= middle[:, None]
    return lines
