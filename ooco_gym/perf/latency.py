"""The latency of an iteration: its terms, written once, for the event loop, fits, tests and beliefs alike.

The functions of one iteration are compiled into their callers, in O(1) from an iteration's sums. Their `state` is
anything with the arrays of `Tables`, such as `sim.state.State`. The functions of arrays at the end are for Python. A
latency term is changed here: its formula in a function, its constants in `TABLE` and in `put_attention`, or, of a form
with tables, in `perf.table`.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numba import config, typeof, types

from ooco_gym.compile import inlined, inner, jit
from ooco_gym.errors import UserError

GRID_ROWS, GRID_COLUMNS = 33, 37  # measured attention: up to 65,536 new tokens, 262,144 of context, in half octaves
PS_PER_S = 1_000_000_000_000
NO_SUMS = (0, 0, 0, 0, 0, 0, 0, 0.0, 0, 0)  # sums of an iteration without tokens

TABLE = np.dtype(
    [
        ("prefill_slope_ps", np.int64),
        # attention of a prefill, as `perf.timing.Attention` but in ps
        ("roofs", np.float64, (3, 4)),
        ("linear", np.float64, (4,)),
        ("launch", np.float64),
        ("critical", np.float64),
        ("split", np.float64),  # share of the chip that a row fills; 0: contexts are not split
        ("exponent", np.float64),  # infinity: the largest term
        ("causal", np.float64),
        ("tile", np.int64),
        ("measured", np.int64),  # 1: State.attention_grid instead
        # decodes in one kernel with chunks, as `perf.timing.MixedKernel` but in ps
        ("together", np.int64),  # 1: they share it; 0: their times are added
        ("shared_launch", np.float64),
        ("per_chunk", np.float64),
        ("chain", np.float64),
        ("chain_exponent", np.float64),
        ("chunk_skew", np.float64),
        ("chunk_skew_batch", np.float64),
        ("decode_skew", np.float64),  # of a step of only decodes
        ("decode_skew_batch", np.float64),
        ("kv_bytes_per_token", np.float64),
        ("noise", np.float64),  # relative spread of the prediction, or of the truth (jitter); 0 is off
        ("layers", np.int64),
        ("bs_sat", np.int64),
    ],
    align=True,
)


class Tables(NamedTuple):
    """Cost tables as compiled code reads them: T tables, batches up to B, P tokens (`perf.table.CostTable`)."""

    decode_lines: np.ndarray  # int64[T, B + 1, 4]
    attention_lines: np.ndarray  # int64[T, B + 1, 4]
    prefill_ps: np.ndarray  # int64[T, P + 1]
    head_ps: np.ndarray  # int64[T, B + 1]
    shared_ps: np.ndarray  # int64[T, P + 1], or empty
    attention_grid: np.ndarray  # float64[T, GRID_ROWS, GRID_COLUMNS], log2 of ps
    tables: np.ndarray  # TABLE[T]


def empty_tables(batch: int, tokens: int, shared: int = 0, tables: int = 1) -> Tables:
    """Returns tables of zeros, for batches up to `batch` and iterations of up to `tokens` tokens."""
    lines, others, *rows = (np.zeros((tables, *shape), np.int64) for shape in (
        (batch + 1, 4), (batch + 1, 4), (tokens + 1,), (batch + 1,), (shared,)))
    grid = np.zeros((tables, GRID_ROWS, GRID_COLUMNS))
    return Tables(lines, others, *rows, attention_grid=grid, tables=np.zeros(tables, TABLE))


def put_attention(entry: Any, attention: Any, ps: float) -> None:
    """Writes `kernels.Attention` into a row of `TABLE`, its seconds multiplied by `ps`."""
    entry["roofs"][: len(attention.roofs_s)] = attention.roofs_s * ps
    entry["linear"] = attention.linear_s * ps
    entry["launch"], entry["critical"] = attention.launch_s * ps, attention.critical_s * ps
    entry["exponent"], entry["causal"], entry["tile"] = attention.exponent, attention.causal, attention.tile
    entry["split"] = attention.split


@inlined
def steady(value):
    """`ooco_gym.rounding.steady`, compiled."""
    return np.float64(np.float32(value))


@inlined
def decode_latency(state, table, batch_size, context):
    """Latency of a decode step of `batch_size` requests with `context` tokens in total, in ps (OOCO
    3.3.2)."""
    lines = state.decode_lines[table, batch_size]
    return max(lines[0] + lines[1] * context, lines[2] + lines[3] * context)


@inner
def attention_latency(state, table, batch_size, context):
    """Attention time that decodes add to a mixed batch, in ps: alone, or as work in a kernel shared
    with chunks."""
    lines = state.attention_lines[table, batch_size]
    return max(lines[0] + lines[1] * context, lines[2] + lines[3] * context)


@inlined
def prompt_rows(state, table, tokens):
    """Rows of a prompt's new tokens in attention, padded to its tile."""
    tile = state.tables[table].tile
    return (tokens + tile - 1) // tile * tile


@inlined
def prompt_work(state, table, tokens, context):
    """Attention work of a prompt of `tokens` new tokens and `context` in total
    (`perf.timing.Attention`)."""
    return float(prompt_rows(state, table, tokens)) * (context - state.tables[table].causal * tokens)


@inner
def _measured_attention(state, table, work, rows, context, prompts):
    """Attention of prompts of mean size, from the grid of single prompts, in ps."""
    grid = state.attention_grid[table]
    row = min(max(2.0 * steady(math.log2(max(rows / prompts, 1.0))), 0.0), grid.shape[0] - 1.001)
    column = min(max(2.0 * steady(math.log2(max(work / rows, 1.0))), 0.0), grid.shape[1] - 1.001)
    i, j = int(row), int(column)
    u, v = row - i, column - j
    lower = grid[i, j] + v * (grid[i, j + 1] - grid[i, j])
    upper = grid[i + 1, j] + v * (grid[i + 1, j + 1] - grid[i + 1, j])
    return prompts * steady(2.0 ** (lower + u * (upper - lower)))


@inlined
def prefill_attention(state, table, work, rows, context, prompts):
    """Attention of `prompts` prompts, in ps, from the sums of their work, rows and contexts."""
    one = state.tables[table]
    if one.measured:
        return _measured_attention(state, table, work, rows, context, prompts)
    reach = context
    if one.split > 0.0:
        reach -= (1.0 - min(1.0, one.split * rows)) * max(context - rows, 0.0)
    critical = one.critical * reach / prompts
    first = max(0.0, one.roofs[0, 0] * work + one.roofs[0, 1] * rows + one.roofs[0, 2] * context
                + one.roofs[0, 3] * prompts)
    second = max(0.0, one.roofs[1, 0] * work + one.roofs[1, 1] * rows + one.roofs[1, 2] * context
                 + one.roofs[1, 3] * prompts)
    third = max(0.0, one.roofs[2, 0] * work + one.roofs[2, 1] * rows + one.roofs[2, 2] * context
                + one.roofs[2, 3] * prompts)
    largest = max(first, second, third, critical)
    if one.exponent < math.inf and largest > 0.0:
        norm = steady((first / largest) ** one.exponent) + steady((second / largest) ** one.exponent)
        if third > 0.0:
            norm += steady((third / largest) ** one.exponent)
        if critical > 0.0:
            norm += steady((critical / largest) ** one.exponent)
        largest *= steady(norm ** (1.0 / one.exponent))
    return (one.launch + one.linear[0] * work + one.linear[1] * rows + one.linear[2] * reach
            + one.linear[3] * prompts + largest)


@inner
def attention_together(state, table, alone, chunk, reach, decodes, context, longest):
    """Attention of chunks and decodes, in ps: sequential, or in one kernel
    (`perf.timing.MixedKernel`).

    Args:
        state: the episode.
        table: row of the cost tables.
        alone: `prefill_attention` of the chunks.
        chunk: mean new tokens of a prompt.
        reach: longest context of a prompt.
        decodes: requests that decode.
        context: sum of their contexts.
        longest: the longest of their contexts.
    """
    one = state.tables[table]
    work = attention_latency(state, table, decodes, context)
    if one.together == 0:
        return np.int64(round(alone)) + work
    if decodes == 0:
        return np.int64(round(alone))
    mean = context / decodes
    inside = max(alone - one.shared_launch, 0.0) + work + one.per_chunk * decodes * chunk
    chain = one.chain * mean
    largest = max(inside, chain, 1.0)
    together = 1.0 + steady((min(inside, chain) / largest) ** one.chain_exponent)
    inside = largest * steady(together ** (1.0 / one.chain_exponent))
    beyond = max(longest - max(mean, reach), 0.0)
    skew = one.chunk_skew * min(decodes / one.chunk_skew_batch, 1.0) * beyond
    return np.int64(round(one.shared_launch + inside + skew))


@inner
def skewed_decode(state, table, batch_size, context, longest):
    """`decode_latency` with a known longest context, whose block ends after the others."""
    one = state.tables[table]
    latency = decode_latency(state, table, batch_size, context)
    if one.decode_skew == 0.0 or batch_size < one.decode_skew_batch:
        return latency
    return latency + np.int64(round(one.decode_skew * (longest - context / batch_size)))


@inlined
def dense_latency(state, table, tokens):
    """Latency of a prefill iteration by its new tokens, in ps: linear layers, communication,
    overhead."""
    last = state.prefill_ps.shape[1] - 1
    return state.prefill_ps[table, min(tokens, last)] + max(0, tokens - last) * state.tables[table].prefill_slope_ps


@inlined
def shared_latency(state, table, tokens, ranks):
    """Time of data-parallel ranks for experts and exchange, in ps, from the tokens of all ranks (at
    least one each)."""
    shared = state.shared_ps[table]
    mean = min(tokens // ranks, shared.size - 2)
    return shared[mean] + (shared[mean + 1] - shared[mean]) * (tokens - ranks * mean) // ranks


@inlined
def prefill_latency(state, table, work, rows, tokens, context, sequences):
    """Latency of a prefill batch, in ps.

    `work` and `rows` are the sums of `prompt_work` and `prompt_rows` over its prompts, `tokens` the sum of new tokens,
    `context` the sum of contexts, `sequences` the number of prompts.
    """
    attention = prefill_attention(state, table, work, float(rows), float(context), float(sequences))
    return dense_latency(state, table, tokens) + state.head_ps[table, sequences] + np.int64(round(attention))


@inlined
def add_prompt(state, table, sums, new, reach, sampled):
    """As `add_to_sums`, of a prompt's chunk, which may have a single token."""
    tokens, samples, decodes, decode_context, longest, prompts, rows, work, context, far = sums
    return (tokens + new, samples + sampled, decodes, decode_context, longest, prompts + 1,
            rows + prompt_rows(state, table, new), work + prompt_work(state, table, new, reach), context + reach,
            max(far, reach))


@inlined
def add_to_sums(state, table, sums, new, reach, sampled):
    """Returns the sums of an iteration (`sums_latency`) plus one request.

    Args:
        state: the episode.
        table: row of the cost tables.
        sums: sums of the other requests.
        new: its new tokens; a single one is a decode.
        reach: its context, including these.
        sampled: whether it generates a token.
    """
    if new == 1:
        tokens, samples, decodes, decode_context, longest, prompts, rows, work, context, far = sums
        return (tokens + 1, samples + sampled, decodes + 1, decode_context + reach, max(longest, reach), prompts, rows,
                work, context, far)
    return add_prompt(state, table, sums, new, reach, sampled)


@inner
def sums_latency(state, table, sums):
    """Latency of an iteration, in ps: joint linear layers, then attentions, sequential or in one kernel.

    Its sums are tokens, requests that generate one, decodes, their contexts and the longest of these (0 if it has no
    effect); prompts, their rows, work and contexts, and the longest of these.
    """
    tokens, sampled, decodes, decode_context, longest, prompts, rows, work, context, far = sums
    if prompts == 0:
        return skewed_decode(state, table, decodes, decode_context, longest)
    alone = prefill_attention(state, table, work, float(rows), float(context), float(prompts))
    attention = attention_together(state, table, alone, (tokens - decodes) / prompts, far, decodes, decode_context,
                                   longest)
    return dense_latency(state, table, tokens) + state.head_ps[table, sampled] + attention


# --- Arrays of iterations ---------------------------------------------------------------------------------------------
_TABLES, _ROW, _ROWS = typeof(empty_tables(1, 1)), types.int64[::1], types.int64[:, ::1]
_NUMBERS = types.float64[::1]


def must_compile() -> None:
    """Raises a UserError if compilation is turned off."""
    if config.DISABLE_JIT:  # pyright: ignore[reportAttributeAccessIssue]
        raise UserError("NUMBA_DISABLE_JIT is set, but the simulator runs only compiled; unset it")


@jit(types.void(_TABLES, _NUMBERS, _NUMBERS, _NUMBERS, _NUMBERS, _NUMBERS))
def attention_of(tables, work, rows, context, prompts, found):
    """Fills `found` with `prefill_attention` of each batch."""
    for i in range(found.size):
        found[i] = prefill_attention(tables, 0, work[i], rows[i], context[i], prompts[i])


@jit(types.void(_TABLES, _ROW, _NUMBERS))
def alone_of(tables, tokens, found):
    """Fills `found` with the latency of each prompt prefilled alone, its attention not rounded."""
    for i in range(found.size):
        new = tokens[i]
        attention = prefill_attention(tables, 0, prompt_work(tables, 0, new, new), float(prompt_rows(tables, 0, new)),
                                      float(new), 1.0)
        found[i] = dense_latency(tables, 0, new) + tables.head_ps[0, 1] + attention


@jit(types.void(_TABLES, _ROWS, _ROWS, _ROW, _ROW, _ROW, _NUMBERS, _ROW))
def iterations_of(tables, new, before, decodes, context, sampled, longest, found):
    """Fills `found` with the latency of each iteration: prompts of `new` tokens (0: none) after `before` in memory
    [n, prompts]; and decodes, the sum and the longest of their contexts (-1: all are equal), and requests that get a
    token [n]."""
    for i in range(found.size):
        most = longest[i] if longest[i] >= 0.0 else context[i] / max(decodes[i], 1)
        sums = (decodes[i], sampled[i], decodes[i], context[i], most, 0, 0, 0.0, 0, 0)
        for j in range(new.shape[1]):
            if new[i, j] > 0:
                sums = add_prompt(tables, 0, sums, new[i, j], new[i, j] + before[i, j], 0)
        found[i] = sums_latency(tables, 0, sums)


@inner
def latency_of(tables, table, sums):
    """`sums_latency` of an array of its ten sums, float64; contexts may be fractions."""
    tokens, sampled, decodes, prompts, rows, far = (
        int(sums[0]), int(sums[1]), int(sums[2]), int(sums[5]), int(sums[6]), int(sums[9]))
    return float(sums_latency(tables, table, (tokens, sampled, decodes, sums[3], sums[4], prompts, rows, sums[7],
                                              sums[8], far)))


@jit(types.void(_TABLES, types.float64[:, ::1], _NUMBERS))
def latencies_of(tables, sums, found):
    """Fills `found` with the latency of iterations, in ps, from their sums [n, 10]."""
    for i in range(found.size):
        found[i] = latency_of(tables, 0, sums[i])
