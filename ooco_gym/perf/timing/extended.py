"""`timing=extended`: kernels of measured GPUs (`kernels.py`), and engines' operators between them."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.perf import kernels
from ooco_gym.perf.chip import ChipSpec, list_chips, load_chip
from ooco_gym.perf.kernels import Attention
from ooco_gym.perf.model import ModelSpec
from ooco_gym.perf.timing import (
    ROUTER,
    Linear,
    MixedKernel,
    OperatorCost,
    Phase,
    Shard,
    TimingForm,
    collectives,
    expert_kernel,
    experts_of,
    heads_of,
    linears,
)
from ooco_gym.perf.timing.ooco import NEVER_SATURATED, fp8_gain, prefill_rate

_MARLIN = (256, 128)
"""Marlin pads the hidden and inner widths of experts with zeros to multiples of these."""
_BATCHES = np.arange(1, 16_385)


class Elementwise(NamedTuple):
    """An element-wise operator: bytes that one chip reads and writes per token, and runs per
    iteration."""

    name: str
    token_bytes: float
    times: int


class Kernels(NamedTuple):
    """All kernels of a chip; only the one for chunks and decodes may be missing."""

    gemm: kernels.GemmParameters
    prefill_attention: kernels.PrefillAttentionParameters
    decode_attention: kernels.DecodeAttentionParameters
    allreduce: kernels.AllReduceParameters
    elementwise: kernels.ElementwiseParameters
    overhead: kernels.OverheadParameters
    mixed_attention: kernels.MixedAttentionParameters | None
    skew: kernels.SkewParameters
    gemm_fp8: kernels.GemmParameters
    experts: kernels.ExpertParameters
    experts_fp8: kernels.ExpertParameters
    experts_fp4: kernels.ExpertParameters
    experts_marlin: kernels.ExpertParameters
    latent_prefill: kernels.PrefillAttentionParameters
    latent_decode: kernels.DecodeAttentionParameters

    def gemm_of(self, weight_bytes: float) -> kernels.GemmParameters:
        """Returns the GEMM parameters for weights of `weight_bytes` bytes each."""
        return self.gemm_fp8 if weight_bytes == 1 else self.gemm

    def experts_of(self, shard: Shard) -> kernels.ExpertParameters:
        """Returns the parameters of the kernel that runs the shard's experts."""
        return getattr(self, expert_kernel(shard.model.expert_bytes, shard.moe_backend))


def fused_linears(model: ModelSpec, tp: int) -> list[Linear]:
    """The linear layers as engines run them: gate and up are one GEMM, as are query, key and value."""
    return [linear._replace(d_out=linear.d_out * linear.repeats, repeats=1) for linear in linears(model, tp)]


def elementwise(model: ModelSpec, tp: int) -> list[Elementwise]:
    """The element-wise operators of an iteration on one of `tp` chips.

    Norms add the residual (they read it and the input, and write both). Rotary positions and norms
    of single heads rewrite queries and keys in place. The activation reads gate and up and writes
    half as much.
    """
    latent = bool(model.kv_lora_rank)  # its kernels were measured with norms and positions between them
    queries, keys = model.q_width // tp, max(model.kv_heads // tp, 1) * model.head_dim
    found = [
        Elementwise("embedding", 2.0 * model.dtype_bytes * model.hidden, 1),
        Elementwise("norm", 4.0 * model.dtype_bytes * model.hidden, 2 * model.layers + 1),
        *(Elementwise("activation", (3.0 if model.gated_mlp else 2.0) * model.dtype_bytes * linear.d_in, linear.layers)
          for linear in linears(model, tp) if linear.name.endswith("down")),
    ]
    if model.qk_norm:
        found.append(Elementwise("qk_norm", 2.0 * model.dtype_bytes * (queries + keys), model.layers))
    if not model.position_rows and not latent:
        found.append(Elementwise("rotary", 2.0 * model.dtype_bytes * (queries + keys), model.layers))
    return found


class Form(TimingForm):
    """Every kernel has a launch, and a p-norm of its roofs instead of their maximum.

    Linear layers are padded to whole tiles and waves; attention counts the causal triangle and pads
    rows and head groups; an all-reduce has a latency; norms, rotary positions, activations,
    embedding and sampler count. `overhead_s` adds the engine's other work. A kernel without
    parameters takes the roofline's time (`timing=ooco`). `causal_factor` does not apply.
    """

    def kernels(self, shard: Shard) -> Kernels:
        """The kernels of the shard's chip, none missing.

        Raises:
            UserError: the chip has no section `extended`.
        """
        if shard.chip.extended is None:
            raise UserError(f"timing=extended: chip '{shard.chip.name}' has no section 'extended'; chips that have "
                            f"one: {', '.join(_extended_chips()) or 'none'}; fit your own with ooco-gym calibrate, or "
                            "take timing=ooco")
        return complete(shard.chip)

    def dense(self, shard: Shard, tokens: np.ndarray) -> list[OperatorCost]:
        """Linear layers, element-wise operators, all-reduces (one more after the embedding), stage
        transfers."""
        tokens = np.asarray(tokens, dtype=np.float64)
        costs = [self.linear(shard, linear, tokens, linear.layers) for linear in fused_linears(shard.model, shard.tp)]
        costs += [self.experts(shard, tokens)] if shard.model.experts else []
        costs += [self.between(shard, operator, tokens) for operator in elementwise(shard.model, shard.tp)]
        payload = shard.model.dtype_bytes * shard.model.hidden * tokens
        if shard.tp > 1:
            reduces, exchanges, sent_bytes = collectives(shard, tokens)
            costs.append(_unbound("all_reduce", "communication", (reduces + 1) * self.allreduce_s(shard, payload)))
            if exchanges:
                link = self.kernels(shard).allreduce
                seconds = exchanges * (link.latency_s + sent_bytes / link.bytes_per_s)
                costs.append(_unbound("all_to_all", "communication", seconds))
        if shard.data_parallel > 1:
            costs.append(_unbound("exchange", "communication", self.exchange_s(shard, tokens)))
        if shard.pp > 1:
            link = self.kernels(shard).allreduce
            seconds = (shard.pp - 1) * (link.latency_s + payload / link.bytes_per_s)
            costs.append(_unbound("stage_transfer", "communication", seconds))
        return costs

    def head(self, shard: Shard, sequences: np.ndarray) -> list[OperatorCost]:
        """The LM head, its vocabulary split over the tensor-parallel chips, and the sampler if it
        has a cost."""
        sequences = np.asarray(sequences, dtype=np.float64)
        width = math.ceil(shard.model.vocab / shard.tp)
        sampler = self.sampler_s(shard, sequences)
        return [self.linear(shard, Linear("lm_head", shard.model.hidden, width), sequences, 1),
                *([_unbound("sampler", "overhead", sampler)] if sampler.any() else [])]

    def attention(self, shard: Shard, phase: Phase) -> Attention:
        """Attention of `kernels.py`, all layers together."""
        model, found = shard.model, self.kernels(shard)
        heads, kv_heads, width, kv_bytes = heads_of(shard, phase)
        shape, latent = (heads, kv_heads, width, model.dtype_bytes, kv_bytes), bool(model.kv_lora_rank)
        one = (kernels.prefill_attention(found.latent_prefill if latent else found.prefill_attention, *shape)
               if phase == "prefill"
               else kernels.decode_attention(found.latent_decode if latent else found.decode_attention, *shape))
        roofs = one.roofs_s[one.roofs_s.any(axis=1)]
        return one._replace(roofs_s=model.layers * roofs, launch_s=model.layers * one.launch_s,
                            linear_s=model.layers * one.linear_s, critical_s=model.layers * one.critical_s)

    def mixed_kernel(self, shard: Shard) -> MixedKernel | None:
        """Chunks and decodes in one kernel, if the chip has it (`kernels.mixed_attention_s`)."""
        found, layers = self.kernels(shard), shard.model.layers
        one, skew_s = found.mixed_attention, kernels.EVENLY * found.skew.mixed_s_per_token
        if one is None or shard.model.kv_lora_rank or shard.model.window_layers:  # not measured for these kernels
            return None
        shape = heads_of(shard, "decode")[:3]

        def decode_s(batch: np.ndarray, context: np.ndarray) -> np.ndarray:
            return layers * kernels.mixed_work_s(one, *shape, batch, context, shard.model.dtype_bytes)

        # With few decodes, skew costs at most what the longest context would take for all of them.
        each = shape[0] * one.head_s_per_token
        return MixedKernel(decode_s, layers * one.launch_s, layers * shape[0] * one.head_s_per_chunk_token,
                           layers * one.critical_s_per_token, one.exponent, layers * skew_s,
                           max(skew_s / each, 1.0) if each else 1.0)

    def decode_skew(self, shard: Shard) -> tuple[float, float]:
        """Returns the skew of decode steps (`TimingForm.decode_skew`) from the chip's section `skew`."""
        skew, kv_heads = self.kernels(shard).skew, heads_of(shard, "decode")[1]
        return kernels.EVENLY * shard.model.layers * skew.decode_s_per_token, skew.decode_rows / kv_heads

    def overhead_s(self, shard: Shard, phase: Phase) -> float:
        """Host time that the engine adds to an iteration's kernels; 0 if not measured."""
        found = self.kernels(shard).overhead
        return found.prefill_s if phase == "prefill" else found.decode_s

    def saturation_batch(self, shard: Shard) -> int:
        """Smallest batch from which every linear layer is compute-bound."""
        found, model = self.kernels(shard), shard.model
        batch = max(_saturation(found.gemm_of(linear.weight_bytes), linear, model.dtype_bytes)
                    for linear in fused_linears(model, shard.tp) if linear.name != ROUTER)
        return max(batch, _first_of(self.experts(shard, _BATCHES).compute_bound)) if model.experts else batch

    def linear(self, shard: Shard, linear: Linear, tokens: np.ndarray, times: int) -> OperatorCost:
        """A linear layer, run `times` times in an iteration of `tokens`, float64[n]."""
        gemm = self.kernels(shard).gemm_of(linear.weight_bytes)
        compute, memory = kernels.gemm_roofs_s(gemm, tokens, linear.d_in, linear.d_out, shard.model.dtype_bytes,
                                               linear.weight_bytes)
        launch = kernels.gemm_launch_s(gemm, tokens, linear.d_in)
        seconds = times * (launch + kernels.norm(gemm.exponent, compute, memory))
        return OperatorCost(linear.name, "gemm", seconds, compute >= memory)

    def experts(self, shard: Shard, tokens: np.ndarray) -> OperatorCost:
        """The experts of all layers of an iteration of `tokens`, float64[n]."""
        model, one = shard.model, experts_of(shard, tokens)
        parameters = self.kernels(shard).experts_of(shard)
        padded = _MARLIN if shard.moe_backend == "marlin" else (1, 1)
        hidden, width = (-(-size // part) * part for size, part in zip((model.hidden, one.width), padded, strict=True))
        shape = (hidden, width, one.read, one.routed)
        kind = (model.expert_bytes, model.dtype_bytes, 3 if model.gated_mlp else 2)
        compute, memory = kernels.experts_roofs_s(parameters, *shape, *kind)
        seconds = model.expert_layers * kernels.experts_s(parameters, *shape, one.chosen, *kind)
        return OperatorCost("experts", "gemm", seconds, compute >= memory)

    def between(self, shard: Shard, operator: Elementwise, tokens: np.ndarray) -> OperatorCost:
        """An element-wise operator of an iteration of `tokens`, float64[n]."""
        moved_bytes = operator.token_bytes * tokens
        seconds = operator.times * kernels.elementwise_s(self.kernels(shard).elementwise, moved_bytes, operator.name)
        return _unbound(operator.name, "elementwise", seconds)

    def allreduce_s(self, shard: Shard, payload_bytes: np.ndarray) -> np.ndarray:
        """Seconds of one all-reduce of `payload_bytes` over the tensor-parallel chips."""
        return kernels.allreduce_s(self.kernels(shard).allreduce, payload_bytes, shard.tp)

    def sampler_s(self, shard: Shard, sequences: np.ndarray) -> np.ndarray:
        """Seconds to sample a token for each of `sequences`, with the engine's work for it."""
        return self.kernels(shard).overhead.sequence_s * sequences


@cache
def complete(chip: ChipSpec) -> Kernels:
    """The kernels of a chip, with the roofline's (`timing=ooco`) for missing ones.

    An unfitted overhead is 0: the roofline's stands for launches, which kernels include.
    """
    found = chip.extended or kernels.ExtendedParameters()
    gemm = kernels.GemmParameters(chip.gemm_flops_per_s, chip.gemm_memory_bytes_per_s, exponent=math.inf)
    rate, left_out = prefill_rate(chip)
    prefill = kernels.PrefillAttentionParameters(
        rate, chip.attention_memory_bytes_per_s, exponent=math.inf, tile=1.0, causal=left_out)
    decode = kernels.DecodeAttentionParameters(
        chip.decode_attention_flops_per_s, chip.attention_memory_bytes_per_s, exponent=math.inf)
    gemm, prefill, decode = found.gemm or gemm, found.prefill_attention or prefill, found.decode_attention or decode
    gain = fp8_gain(chip, 1)
    plain = kernels.ExpertParameters(gemm.flops_per_s, gemm.memory_bytes_per_s, gemm.launch_s, gemm.exponent)
    experts = found.experts or plain
    return Kernels(
        gemm, prefill, decode,
        found.allreduce or kernels.AllReduceParameters(chip.allreduce_bytes_per_s, chip.allreduce_latency_s),
        found.elementwise or kernels.ElementwiseParameters(chip.gemm_memory_bytes_per_s),
        found.overhead or kernels.OverheadParameters(), found.mixed_attention, found.skew or kernels.SkewParameters(),
        found.gemm_fp8 or replace(gemm, flops_per_s=gain * gemm.flops_per_s), experts,
        found.experts_fp8 or replace(experts, flops_per_s=gain * experts.flops_per_s),
        found.experts_fp4 or experts, found.experts_marlin or found.experts_fp4 or experts,
        found.latent_prefill or prefill, found.latent_decode or decode)


@cache
def _extended_chips() -> list[str]:
    return [name for name in list_chips() if load_chip(name).extended is not None]


@cache
def _saturation(gemm: kernels.GemmParameters, linear: Linear, dtype_bytes: int) -> int:
    compute, memory = kernels.gemm_roofs_s(replace(gemm, padding=0.0, waste=0.0), _BATCHES, linear.d_in, linear.d_out,
                                           dtype_bytes, linear.weight_bytes)
    return _first_of(compute >= memory)


def _first_of(bound_by_compute: np.ndarray) -> int:
    """The batch of `_BATCHES` from which all are compute-bound."""
    last = int(np.flatnonzero(~bound_by_compute).max(initial=-1))
    return last + 2 if last + 1 < len(_BATCHES) else NEVER_SATURATED


def _unbound(name: str, kind: str, seconds: np.ndarray) -> OperatorCost:
    return OperatorCost(name, kind, seconds, np.zeros(np.shape(seconds), dtype=bool))
