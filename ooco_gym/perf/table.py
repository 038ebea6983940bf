"""Cost tables: an iteration's latency in O(1) from a batch's sums, in whole picoseconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.perf.deployment import Deployment

PS_PER_S = 1_000_000_000_000
_SLOPE_SPAN = 1 << 20


class CostTable(NamedTuple):
    """Everything the simulator knows of time and memory of one instance. Times are in picoseconds.

    A decode step of `b` requests whose contexts (the new token included) sum to `C` tokens takes
    `decode_ps[b] + max_j(decode_request_ps[j] * b + decode_token_ps[j] * C)`. The coefficients are whole numbers, so
    that `k` steps summed in closed form equal `k` steps one by one.

    A prefill iteration takes `prefill_ps[N]` for `N` new tokens in all, plus `head_ps[n]` for the `n` prompts that it
    completes, plus `max_j` of `prefill_attention[j]` times `(sum(q * kv), sum(q), sum(kv))`.

    Attributes:
        decode_ps: int64[max_batch + 1], linear layers, LM head, communication and overhead by batch size; [0] is 0.
        decode_request_ps: int64[2], decode attention by request (0 compute roof, 1 memory roof).
        decode_token_ps: int64[2], decode attention by token of context.
        prefill_ps: int64[max_prefill_tokens + 1], linear layers, communication and overhead; [0] is 0.
        prefill_slope_ps: for each token beyond the table.
        prefill_attention: float64[2, 3], ps for each unit of `sum(q * kv)`, `sum(q)` and `sum(kv)`, with `q` new
            tokens and `kv` tokens of context (the new ones among them) of each prompt.
        head_ps: int64[max_batch + 1], LM head by sequences that complete their prefill; [0] is 0.
        layers: transformer layers, the granularity of interruption.
        kv_blocks: KV blocks that fit beside the weights.
        kv_bytes_per_token: of the whole instance.
        bs_sat: compute-saturated decode batch size.
        reference_step_batch: batch whose decode step prices an output token in reference GPU-seconds.
    """

    decode_ps: np.ndarray
    decode_request_ps: np.ndarray
    decode_token_ps: np.ndarray
    prefill_ps: np.ndarray
    prefill_slope_ps: int
    prefill_attention: np.ndarray
    head_ps: np.ndarray
    layers: int
    kv_blocks: int
    kv_bytes_per_token: int
    bs_sat: int
    reference_step_batch: int = 64


def cost_table(deployment: Deployment, max_batch: int = 2048, max_prefill_tokens: int = 65_536) -> CostTable:
    """Computes the cost table of a deployment (a few milliseconds).

    Args:
        deployment: model, chips and timing form.
        max_batch: largest decode batch, and most prompts completed by one prefill iteration.
        max_prefill_tokens: prefill tokens tabulated; beyond them latency grows by `prefill_slope_ps` a token.

    Raises:
        UserError: a size is not positive.
    """
    for name, size in (("max_batch", max_batch), ("max_prefill_tokens", max_prefill_tokens)):
        if size < 1:
            raise UserError(f"{name} must be at least 1, got {size}")
    form, shard = deployment.form, deployment.shard
    batch = np.arange(max_batch + 1, dtype=np.float64)
    head_s = _seconds(form.head(shard, batch))
    decode_s = _seconds(form.dense(shard, batch)) + head_s + form.overhead_s(shard, "decode")
    tokens = np.arange(max_prefill_tokens + 1, dtype=np.float64)
    prefill_s = _seconds(form.dense(shard, tokens)) + form.overhead_s(shard, "prefill")
    far = _seconds(form.dense(shard, max_prefill_tokens + np.array([0.0, _SLOPE_SPAN])))
    decode_planes = form.attention(shard, "decode") * PS_PER_S
    return CostTable(
        decode_ps=_table_ps(decode_s),
        decode_request_ps=np.rint(decode_planes[:, 1]).astype(np.int64),
        decode_token_ps=np.rint(decode_planes[:, 0] + decode_planes[:, 2]).astype(np.int64),
        prefill_ps=_table_ps(prefill_s),
        prefill_slope_ps=int(np.rint((far[1] - far[0]) / _SLOPE_SPAN * PS_PER_S)),
        prefill_attention=form.attention(shard, "prefill") * PS_PER_S,
        head_ps=_table_ps(head_s),
        layers=deployment.model.layers,
        kv_blocks=deployment.kv_blocks,
        kv_bytes_per_token=deployment.kv_bytes_per_token,
        bs_sat=deployment.bs_sat,
    )


def decode_latency_ps(table: CostTable, batch: int, context_tokens: int) -> int:
    """Latency of a decode step of `batch` requests with `context_tokens` tokens of context in all."""
    if batch == 0:
        return 0
    attention = max(int(request) * batch + int(token) * context_tokens
                    for request, token in zip(table.decode_request_ps, table.decode_token_ps, strict=True))
    return int(table.decode_ps[batch]) + attention


def prefill_latency_ps(table: CostTable, prompts: Sequence[tuple[int, int]], completed: int | None = None) -> int:
    """Latency of a prefill iteration.

    Args:
        table: the cost table.
        prompts: `(q, kv)` of each prompt: new tokens, and context with the new tokens.
        completed: how many of them end their prefill (all, unless told).
    """
    if not prompts:
        return 0
    tokens = sum(q for q, _ in prompts)
    sums = np.array([sum(q * kv for q, kv in prompts), tokens, sum(kv for _, kv in prompts)], dtype=np.float64)
    last = len(table.prefill_ps) - 1
    dense = int(table.prefill_ps[min(tokens, last)]) + max(0, tokens - last) * table.prefill_slope_ps
    attention = int(np.rint((table.prefill_attention @ sums).max()))
    return dense + attention + int(table.head_ps[len(prompts) if completed is None else completed])


def _seconds(costs: Sequence) -> np.ndarray:
    return np.sum([cost.seconds for cost in costs], axis=0)


def _table_ps(seconds: np.ndarray) -> np.ndarray:
    table = np.rint(seconds * PS_PER_S).astype(np.int64)
    table[0] = 0
    return table
