"""`timing=extended`: kernels as measured GPUs run them (`kernels.py`), with what engines run between them."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.perf.specs import ModelSpec, list_chips, load_chip
from ooco_gym.perf.timing import kernels, ooco
from ooco_gym.perf.timing._base import Linear, OperatorCost, Phase, Shard, linears
from ooco_gym.perf.timing.attention import Attention
from ooco_gym.perf.timing.ooco import NEVER_SATURATED

_LARGEST_SATURATION = 16_384


class Elementwise(NamedTuple):
    """An element-wise operator: what one chip reads and writes for a token, and how often an iteration runs it."""

    name: str
    token_bytes: float
    times: int


def fused_linears(model: ModelSpec, tp: int) -> list[Linear]:
    """The linear layers as engines run them: gate and up are one product, as query, key and value are."""
    return [Linear(linear.name, linear.d_in, linear.d_out * linear.repeats) for linear in linears(model, tp)]


def elementwise(model: ModelSpec, tp: int) -> list[Elementwise]:
    """The element-wise operators of an iteration on one of `tp` chips.

    Norms add the residual as they go (read it and the input, write both); rotary positions rewrite queries and keys in
    place; the activation reads what gate and up gave and writes half of it.
    """
    down = linears(model, tp)[-1].d_in
    queries, keys = model.q_width // tp, max(model.kv_heads // tp, 1) * model.head_dim
    found = [
        Elementwise("embedding", 2.0 * model.dtype_bytes * model.hidden, 1),
        Elementwise("norms", 4.0 * model.dtype_bytes * model.hidden, 2 * model.layers + 1),
        Elementwise("activation", (3.0 if model.gated_mlp else 2.0) * model.dtype_bytes * down, model.layers),
    ]
    if not model.position_rows:
        found.append(Elementwise("rotary", 2.0 * model.dtype_bytes * (queries + keys), model.layers))
    return found


class Form(ooco.Form):
    """Every kernel has a launch, and a p-norm of its roofs in place of their maximum.

    Linear layers lose whole tiles and waves, attention counts the causal triangle and pads rows and head groups,
    an all-reduce has a latency, and norms, rotary positions, activations, embedding and sampler count. What an engine
    does besides is added (`overhead_s`) or runs beside the chip's work (`floor_s`). A kernel without parameters takes
    the roofline's time (`timing=ooco`). `causal_factor` does not apply.
    """

    def dense(self, shard: Shard, tokens: np.ndarray) -> list[OperatorCost]:
        """Linear layers, element-wise operators, all-reduces (one more after the embedding), transfers of stages."""
        costs = [*self._linears(shard, tokens), *self._elementwise(shard, tokens)]
        activation_bytes = shard.model.dtype_bytes * shard.model.hidden * tokens
        if shard.tp > 1:
            times = 2 * shard.model.layers + 1
            costs.append(_communication("all_reduce", times * self.allreduce_s(shard, activation_bytes)))
        if shard.pp > 1:
            hops = (shard.pp - 1) * self.transfer_s(shard, activation_bytes)
            costs.append(_communication("stage_transfer", hops))
        return costs

    def head(self, shard: Shard, sequences: np.ndarray) -> list[OperatorCost]:
        """The LM head, its vocabulary split over the tensor-parallel chips, and the sampler."""
        gemm, overhead = chip_kernels(shard).gemm, chip_kernels(shard).overhead
        if gemm:
            linear = Linear("lm_head", shard.model.hidden, self.head_width(shard))
            costs = [_linear(gemm, linear, sequences, shard.model.dtype_bytes, 1)]
        else:
            costs = super().head(shard, sequences)
        if overhead and overhead.sequence_s:
            seconds = overhead.sequence_s * np.asarray(sequences, dtype=np.float64)
            costs.append(OperatorCost("sampler", "overhead", seconds, np.zeros(seconds.shape, dtype=bool)))
        return costs

    def attention(self, shard: Shard, phase: Phase) -> Attention:
        """Attention of `kernels.py`, all layers together."""
        found, model = chip_kernels(shard), shard.model
        shape = (model.heads / shard.tp, max(model.kv_heads / shard.tp, 1.0), model.head_dim, model.dtype_bytes)
        if phase == "prefill" and found.prefill_attention:
            return _times(model.layers, kernels.prefill_attention(found.prefill_attention, *shape))
        if phase == "decode" and found.decode_attention:
            return _times(model.layers, kernels.decode_attention(found.decode_attention, *shape))
        return super().attention(shard, phase)

    def overhead_s(self, shard: Shard, phase: Phase) -> float:
        """What the engine adds to an iteration's kernels; 0 where it was not measured."""
        overhead = chip_kernels(shard).overhead
        return kernels.overhead_s(overhead, phase, shard.model.layers) if overhead else 0.0

    def floor_s(self, shard: Shard, phase: Phase) -> float:
        """What the engine takes beside the chip's work, so that an iteration takes at least this."""
        overhead = chip_kernels(shard).overhead
        return kernels.floor_s(overhead, phase, shard.model.layers) if overhead else 0.0

    def saturation_batch(self, shard: Shard) -> int:
        """Smallest batch from which compute takes every linear layer at least as long as memory."""
        gemm = chip_kernels(shard).gemm
        if not gemm:
            return super().saturation_batch(shard)
        return _saturation(gemm, tuple(fused_linears(shard.model, shard.tp)), shard.model.dtype_bytes)

    def allreduce_s(self, shard: Shard, payload_bytes: np.ndarray) -> np.ndarray:
        """Seconds of one all-reduce of `payload_bytes` over the tensor-parallel chips."""
        allreduce = chip_kernels(shard).allreduce
        if not allreduce:
            return super().allreduce_s(shard, payload_bytes)
        return kernels.allreduce_s(allreduce, payload_bytes, shard.tp)

    def transfer_s(self, shard: Shard, payload_bytes: np.ndarray) -> np.ndarray:
        """Seconds for `payload_bytes` from one chip of the instance to the next: an all-reduce's latency and rate."""
        allreduce = chip_kernels(shard).allreduce
        if not allreduce:
            return super().transfer_s(shard, payload_bytes)
        return allreduce.latency_s + payload_bytes / allreduce.bytes_per_s

    def _linears(self, shard: Shard, tokens: np.ndarray) -> list[OperatorCost]:
        gemm, model = chip_kernels(shard).gemm, shard.model
        if not gemm:
            return [cost for cost in super().dense(shard, tokens) if cost.kind == "gemm"]
        return [_linear(gemm, linear, tokens, model.dtype_bytes, model.layers)
                for linear in fused_linears(model, shard.tp)]

    def _elementwise(self, shard: Shard, tokens: np.ndarray) -> list[OperatorCost]:
        parameters = chip_kernels(shard).elementwise
        if not parameters:  # bytes at the rate that the linear layers reach, without launches
            parameters = kernels.ElementwiseParameters(shard.chip.gemm_memory_bytes_per_s)
        costs = []
        for name, token_bytes, times in elementwise(shard.model, shard.tp):
            seconds = times * kernels.elementwise_s(parameters, token_bytes * tokens)
            costs.append(OperatorCost(name, "elementwise", seconds, np.zeros(seconds.shape, dtype=bool)))
        return costs


def chip_kernels(shard: Shard) -> kernels.ExtendedParameters:
    """The kernels of the shard's chip.

    Raises:
        UserError: the chip has none.
    """
    if shard.chip.extended is None:
        raise UserError(f"timing=extended: chip '{shard.chip.name}' has no section 'extended'; chips that have one: "
                        f"{', '.join(_extended_chips()) or 'none'}; fit your own with ooco-gym calibrate, or take "
                        "timing=ooco")
    return shard.chip.extended


@cache
def _extended_chips() -> list[str]:
    return [name for name in list_chips() if load_chip(name).extended is not None]


@cache
def _saturation(gemm: kernels.GemmParameters, layers: tuple[Linear, ...], dtype_bytes: int) -> int:
    batch = np.arange(1, _LARGEST_SATURATION + 1)
    bound_by_memory = np.zeros(batch.shape, dtype=bool)
    for linear in layers:
        compute, memory = kernels.gemm_roofs_s(gemm, batch, linear.d_in, linear.d_out, dtype_bytes)
        bound_by_memory |= compute < memory
    last = int(np.flatnonzero(bound_by_memory).max(initial=-1))
    return last + 2 if last + 1 < len(batch) else NEVER_SATURATED


def _linear(gemm: kernels.GemmParameters, linear: Linear, tokens: np.ndarray, dtype_bytes: int,
            times: int) -> OperatorCost:
    compute, memory = kernels.gemm_roofs_s(gemm, tokens, linear.d_in, linear.d_out, dtype_bytes)
    seconds = times * (gemm.launch_s + kernels.norm(gemm.exponent, compute, memory))
    return OperatorCost(linear.name, "gemm", seconds, compute >= memory)


def _times(layers: int, attention: Attention) -> Attention:
    """The attention of `layers` layers."""
    return attention._replace(roofs_s=layers * attention.roofs_s, launch_s=layers * attention.launch_s,
                              linear_s=layers * attention.linear_s, critical_s=layers * attention.critical_s)


def _communication(name: str, seconds: np.ndarray) -> OperatorCost:
    return OperatorCost(name, "communication", seconds, np.zeros(seconds.shape, dtype=bool))
