"""The roofline once more, slowly: operator by operator, layer by layer, request by request.

Nothing here is shared with the timing forms or the cost tables, so that comparing the two means something. It covers
the forms `ooco` and `ooco_xllm`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ooco_gym.perf.deployment import Deployment


def iteration_latency(deployment: Deployment, *, prefill: Sequence[tuple[int, int]] = (),
                      decode: Sequence[int] = (), completed: int | None = None) -> float:
    """Latency of one iteration in seconds; an iteration is either prefill or decode, never both (OOCO 3.3).

    Args:
        deployment: model, chips and timing form.
        prefill: `(q, kv)` of each prompt: new tokens, and context with the new tokens.
        decode: context length of each decoding request, the token being computed among it.
        completed: how many prompts end their prefill in this iteration and need the LM head (all, unless told).
    """
    requests = list(prefill) if prefill else [(1, context) for context in decode]
    if not requests:
        return 0.0
    heads = len(requests) if completed is None or decode else completed
    tokens = sum(q for q, _ in requests)
    total = 0.0
    for _ in range(deployment.model.layers):
        total += _layer(deployment, requests, tokens, bool(prefill))
    total += _stage_transfers(deployment, tokens)
    total += _head(deployment, heads)
    return total + _overhead(deployment, bool(prefill))


def _layer(deployment: Deployment, requests: list[tuple[int, int]], tokens: int, is_prefill: bool) -> float:
    model, tp = deployment.model, deployment.tp
    queries = model.heads // tp * model.head_dim
    keys = -(-model.kv_heads // tp) * model.head_dim
    inner = -(-model.intermediate // tp)
    seconds = _gemm(deployment, tokens, model.hidden, queries + 2 * keys)
    seconds += _attention(deployment, requests, is_prefill)
    seconds += _gemm(deployment, tokens, queries, model.hidden) + _all_reduce(deployment, tokens)
    if model.gated_mlp:
        seconds += _gemm(deployment, tokens, model.hidden, inner)
    seconds += _gemm(deployment, tokens, model.hidden, inner)
    return seconds + _gemm(deployment, tokens, inner, model.hidden) + _all_reduce(deployment, tokens)


def _gemm(deployment: Deployment, tokens: int, d_in: int, d_out: int) -> float:
    chip = deployment.chip
    flops = 2 * tokens * d_in * d_out
    traffic = deployment.model.dtype_bytes * (tokens * d_in + d_in * d_out + tokens * d_out)
    return max(flops / chip.gemm_flops_per_s, traffic / chip.gemm_memory_bytes_per_s)


def _attention(deployment: Deployment, requests: list[tuple[int, int]], is_prefill: bool) -> float:
    chip, model, tp = deployment.chip, deployment.model, deployment.tp
    width = model.heads * model.head_dim / tp
    replicated = deployment.timing == "ooco" and tp > model.kv_heads
    kv_width = model.head_dim if replicated else width * model.kv_heads / model.heads
    whole, most = chip.prefill_attention_flops_per_s, chip.gemm_flops_per_s
    seconds, traffic = 0.0, 0.0
    for q, kv in requests:
        traffic += 2 * model.dtype_bytes * (q * width + kv * kv_width)
        if not is_prefill:
            seconds += 4 * width * q * kv / chip.decode_attention_flops_per_s
        elif whole <= most:
            seconds += 4 * width * q * kv * deployment.causal_factor / whole
        else:  # what came before at the lower rate, a square of new tokens as in a whole prompt
            seconds += 4 * width * deployment.causal_factor * (q * (kv - q) / most + q * q / whole)
    return max(seconds, traffic / chip.attention_memory_bytes_per_s)


def _all_reduce(deployment: Deployment, tokens: int) -> float:
    chip, model, tp = deployment.shard.chip, deployment.model, deployment.tp
    if tp == 1:
        return 0.0
    payload = model.dtype_bytes * tokens * model.hidden
    if deployment.timing == "ooco_xllm":
        return payload * (tp - 1) / tp / 10e9
    return chip.allreduce_latency_s + payload * 2 * (tp - 1) / tp / chip.allreduce_bytes_per_s


def _stage_transfers(deployment: Deployment, tokens: int) -> float:
    chip, model = deployment.shard.chip, deployment.model
    link = 10e9 if deployment.timing == "ooco_xllm" else chip.allreduce_bytes_per_s
    latency = 0.0 if deployment.timing == "ooco_xllm" else chip.allreduce_latency_s
    seconds = 0.0
    for _ in range(deployment.pp - 1):
        seconds += latency + model.dtype_bytes * tokens * model.hidden / link
    return seconds


def _head(deployment: Deployment, sequences: int) -> float:
    model = deployment.model
    columns = model.vocab if deployment.timing == "ooco_xllm" else -(-model.vocab // deployment.tp)
    return _gemm(deployment, sequences, model.hidden, columns) if sequences else 0.0


def _overhead(deployment: Deployment, is_prefill: bool) -> float:
    chip, layers = deployment.chip, deployment.model.layers
    if deployment.timing == "ooco_xllm":
        return 0.0
    if is_prefill:
        return chip.prefill_overhead_s + layers * chip.prefill_layer_overhead_s
    return chip.decode_overhead_s + layers * chip.decode_layer_overhead_s
