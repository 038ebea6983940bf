"""`timing=ooco`: the roofline of the paper (OOCO, section 3.3, Tables 3 and 4, equation 1)."""

from __future__ import annotations

import math

import numpy as np

from ooco_gym.perf.chip import ChipSpec
from ooco_gym.perf.kernels import Attention
from ooco_gym.perf.timing import (
    ROUTER,
    Linear,
    OperatorCost,
    Phase,
    Shard,
    TimingForm,
    collectives,
    experts_of,
    heads_of,
    linears,
)

NEVER_SATURATED = 1 << 20
"""Reported as `bs_sat` if activations keep a linear layer memory-bound at any batch."""


class Form(TimingForm):
    """Every operator takes `max(flops / F, bytes / M)`; an iteration is their sum plus a static overhead.

    Three things differ from the printed paper. The attention's bytes have the factor `H_kv / H_q`,
    as in the paper's engine; Table 3 prints the inverse, with which grouped-query attention would
    read more than full attention. An all-reduce costs `latency + 2 (n - 1) / n * bytes / B_c` (a
    ring), as measured links need the latency; the paper divides bytes by `B_c` and puts the delay
    into the overhead. The overhead may count per iteration, per layer, or both (`ChipSpec`); per
    layer fits measured GPUs better. The LM head is split over the tensor-parallel chips.
    """

    def dense(self, shard: Shard, tokens: np.ndarray) -> list[OperatorCost]:
        """Linear layers, two all-reduces per layer (tp > 1), and transfers of activations between
        stages (pp > 1)."""
        costs = [_gemm(shard, linear, tokens, linear.layers * linear.repeats)
                 for linear in linears(shard.model, shard.tp)]
        if shard.model.experts:
            costs.append(_experts(shard, tokens))
        activation_bytes = shard.model.dtype_bytes * shard.model.hidden * tokens
        if shard.tp > 1:
            reduces, exchanges, sent_bytes = collectives(shard, tokens)
            costs.append(_communication("all_reduce", reduces * self.allreduce_s(shard, activation_bytes)))
            if exchanges:
                costs.append(_communication("all_to_all", exchanges * self.transfer_s(shard, sent_bytes)))
        if shard.data_parallel > 1:
            costs.append(_communication("exchange", self.exchange_s(shard, tokens)))
        if shard.pp > 1:
            hops = (shard.pp - 1) * self.transfer_s(shard, activation_bytes)
            costs.append(_communication("stage_transfer", hops))
        return costs

    def head(self, shard: Shard, sequences: np.ndarray) -> list[OperatorCost]:
        """The LM head, its vocabulary split over the tensor-parallel chips (without gathering
        logits)."""
        return [_gemm(shard, Linear("lm_head", shard.model.hidden, self.head_width(shard)), sequences, 1)]

    def attention(self, shard: Shard, phase: Phase) -> Attention:
        """FLOPs `4 D q kv`, bytes `2 d (q D + kv D H_kv / H_q)`; `causal_factor` scales the FLOPs of prefill
        (`prefill_rate`)."""
        chip, model = shard.chip, shard.model
        heads, _, width, kv_bytes = heads_of(shard, phase)
        q_width = heads * width
        flops = 4.0 * q_width * (shard.causal_factor if phase == "prefill" else 1.0)
        rate, left_out = chip.decode_attention_flops_per_s, 0.0
        if phase == "prefill":
            rate, left_out = prefill_rate(chip)
        bytes_q, bytes_kv = 2.0 * model.dtype_bytes * q_width, self.replicated(shard, kv_bytes)
        compute = [flops / rate, 0.0, 0.0, 0.0]
        memory = np.array([0.0, bytes_q, bytes_kv, 0.0]) / chip.attention_memory_bytes_per_s
        return Attention(model.layers * np.array([compute, memory]), causal=left_out)

    def overhead_s(self, shard: Shard, phase: Phase) -> float:
        """`O_p` or `O_d`: per iteration, plus per layer (of all stages)."""
        chip = shard.chip
        if phase == "prefill":
            return chip.prefill_overhead_s + shard.model.layers * chip.prefill_layer_overhead_s
        return chip.decode_overhead_s + shard.model.layers * chip.decode_layer_overhead_s

    def saturation_batch(self, shard: Shard) -> int:
        """Maximum over the linear layers of the smallest `N` with `flops / bytes >= F_g / M_g`."""
        model, batch = shard.model, 1
        layers = [(one, 1.0) for one in linears(model, shard.tp) if one.name != ROUTER]
        if model.experts:
            width = experts_of(shard, np.ones(1)).width
            layers += [(Linear("experts", model.hidden, width, weight_bytes=model.expert_bytes),
                        model.experts / model.top_k)]
        for linear, spread in layers:
            each = linear.weight_bytes or model.dtype_bytes
            ridge = shard.chip.gemm_flops_per_s * fp8_gain(shard.chip, each) / shard.chip.gemm_memory_bytes_per_s
            gain = 2.0 * linear.d_in * linear.d_out / ridge - model.dtype_bytes * (linear.d_in + linear.d_out)
            weights = spread * linear.d_in * linear.d_out * each
            batch = max(batch, math.ceil(weights / gain) if gain > 0 else NEVER_SATURATED)
        return min(batch, NEVER_SATURATED)

    def allreduce_s(self, shard: Shard, payload_bytes: np.ndarray) -> np.ndarray:
        """Seconds of one all-reduce of `payload_bytes` over the tensor-parallel chips."""
        ring = 2.0 * (shard.tp - 1) / shard.tp
        return self.transfer_s(shard, ring * payload_bytes)

    def transfer_s(self, shard: Shard, payload_bytes: np.ndarray) -> np.ndarray:
        """Seconds for `payload_bytes` from one chip of the instance to the next, at `B_c`."""
        return shard.chip.allreduce_latency_s + payload_bytes / shard.chip.allreduce_bytes_per_s

    def head_width(self, shard: Shard) -> int:
        """Columns of the LM head on one chip."""
        return math.ceil(shard.model.vocab / shard.tp)

    def replicated(self, shard: Shard, kv_bytes: float) -> float:
        """Bytes of a token of context that one chip reads; heads fewer than chips are replicated."""
        return kv_bytes


def prefill_rate(chip: ChipSpec) -> tuple[float, float]:
    """FLOP/s of prefill attention, and the share of the new tokens that a row leaves out.

    `F_ap` of a measured chip also counts masked work of a whole prompt, so it may exceed what
    kernels reach. A chunk, whose context was computed before, has less masked work. So the rate is
    at most a linear layer's (`F_g`), and the share left out makes a whole prompt take the time by
    `F_ap`.
    """
    rate = min(chip.prefill_attention_flops_per_s, chip.gemm_flops_per_s)
    return rate, 1.0 - rate / chip.prefill_attention_flops_per_s


def fp8_gain(chip: ChipSpec, weight_bytes: float) -> float:
    """Speed-up of a chip's multiplication with weights of `weight_bytes` bytes over 16 bits."""
    return max(chip.peak_fp8_flops_per_s / chip.peak_flops_per_s, 1.0) if weight_bytes == 1 else 1.0


def _gemm(shard: Shard, linear: Linear, tokens: np.ndarray, times: int) -> OperatorCost:
    """One linear layer, run `times` times: `2 N d_in d_out` FLOPs, `d (N d_in + d_in d_out + N
    d_out)` bytes."""
    chip, d_in, d_out, dtype_bytes = shard.chip, linear.d_in, linear.d_out, shard.model.dtype_bytes
    compute = 2.0 * d_in * d_out / (chip.gemm_flops_per_s * fp8_gain(chip, linear.weight_bytes)) * tokens
    weights = (linear.weight_bytes or dtype_bytes) / dtype_bytes * (d_in * d_out)
    memory = dtype_bytes * (tokens * (d_in + d_out) + weights) / chip.gemm_memory_bytes_per_s
    return OperatorCost(linear.name, "gemm", times * np.maximum(compute, memory), compute >= memory)


def _experts(shard: Shard, tokens: np.ndarray) -> OperatorCost:
    """The experts of all layers: the FLOPs of their tokens, and the bytes of the experts read, once
    per layer."""
    model, one, chip = shard.model, experts_of(shard, tokens), shard.chip
    weights = (3 if model.gated_mlp else 2) * model.hidden * one.width
    compute = 2.0 * weights * one.routed / (chip.gemm_flops_per_s * fp8_gain(chip, model.expert_bytes))
    moved = model.expert_bytes * weights * one.read + 2.0 * model.dtype_bytes * one.routed * (model.hidden + one.width)
    memory = moved / chip.gemm_memory_bytes_per_s
    return OperatorCost("experts", "gemm", model.expert_layers * np.maximum(compute, memory), compute >= memory)


def _communication(name: str, seconds: np.ndarray) -> OperatorCost:
    return OperatorCost(name, "communication", seconds, np.zeros(seconds.shape, dtype=bool))
