"""`timing=measured`: a chip's measured operators, interpolated; the roofline for others.

Times are linear between measured sizes, and proportional to a roofline above them.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from ooco_gym.perf import kernels
from ooco_gym.perf.chip import ChipSpec
from ooco_gym.perf.kernels import Attention
from ooco_gym.perf.measurements import Beside, Layer, MeasuredCurve, Measurements, Surface, measurements
from ooco_gym.perf.timing import (
    Linear,
    MeasuredAttention,
    MixedKernel,
    OperatorCost,
    Phase,
    Shard,
    TimingForm,
    extended,
    heads_of,
    ooco,
)
from ooco_gym.perf.timing.extended import Elementwise, Kernels, complete, elementwise, fused_linears
from ooco_gym.rounding import steady


def unmeasured(shard: Shard) -> list[str]:
    """Operators of an iteration missing from the chip's tables, for which the roofline stands in."""
    table = measurements(shard.chip)
    return ["all operators"] if table is None else _found(shard, table).missing


class _Found(NamedTuple):
    """A model's operators found in the tables."""

    layers: dict[tuple[int, int], list[Layer]]
    elementwise: dict[str, MeasuredCurve]
    decode: Surface | None
    prefill: Surface | None
    mixed: Surface | None
    all_reduce: MeasuredCurve | None
    missing: list[str]


class Form(extended.Form):
    """Operators take the measured time of their shapes on the chip (`tables` of its YAML).

    Times are linear between measured sizes. Beyond them, and for unmeasured shapes, the roofline
    continues: the chip's kernels (`extended`) if it has them, otherwise its achievable rates. A
    chip without tables uses only that roofline. With tables, the engine's overhead counts only if
    fitted (`extended.overhead`), as that of `timing=ooco` stands for launches, which measured
    operators include.
    """

    def on(self, chip: ChipSpec) -> TimingForm:
        """This form for a chip with tables, else the chip's roofline."""
        if chip.tables:
            return self
        return _EXTENDED if chip.extended else _ROOFLINE

    def kernels(self, shard: Shard) -> Kernels:
        """The kernels that stand in for unmeasured operators."""
        return complete(shard.chip)

    def dense(self, shard: Shard, tokens: np.ndarray) -> list[OperatorCost]:
        """As `extended`, plus residuals if measured separately from the norms."""
        costs = super().dense(shard, tokens)
        if "residual" in self._found(shard).elementwise:
            moved = 3.0 * shard.model.dtype_bytes * shard.model.hidden
            costs.append(self.between(shard, Elementwise("residual", moved, shard.model.layers), np.asarray(tokens)))
        return costs

    def linear(self, shard: Shard, linear: Linear, tokens: np.ndarray, times: int) -> OperatorCost:
        """A linear layer; between measured widths, by the mean ratio of four layers to the
        roofline."""
        cost = super().linear(shard, linear, tokens, times)
        layers = self._found(shard).layers.get((linear.d_in, linear.d_out))
        if not layers:
            return cost
        gemm, dtype_bytes = self.kernels(shard).gemm, shard.model.dtype_bytes
        if linear.weight_bytes:  # tables have 16 bits
            return cost
        ratio = np.zeros(np.shape(tokens))
        for weight, d_in, d_out, curve in layers:
            def roof(sizes: np.ndarray, d_in: int = d_in, d_out: int = d_out) -> np.ndarray:
                return kernels.gemm_s(gemm, sizes, d_in, d_out, dtype_bytes)
            ratio += weight * np.log(curve.seconds(tokens, roof) / roof(tokens))
        return cost._replace(seconds=cost.seconds * steady(np.exp(ratio)))

    def between(self, shard: Shard, operator: Elementwise, tokens: np.ndarray) -> OperatorCost:
        """An element-wise operator."""
        cost = super().between(shard, operator, tokens)
        curve = self._found(shard).elementwise.get(operator.name)
        if not curve:
            return cost
        parameters = self.kernels(shard).elementwise
        seconds = curve.seconds(tokens, lambda sizes: kernels.elementwise_s(
            parameters, operator.token_bytes * sizes, operator.name))
        return cost._replace(seconds=operator.times * seconds)

    def allreduce_s(self, shard: Shard, payload_bytes: np.ndarray) -> np.ndarray:
        """Seconds of one all-reduce."""
        curve = self._found(shard).all_reduce
        if not curve:
            return super().allreduce_s(shard, payload_bytes)
        return curve.seconds(payload_bytes, lambda sizes: extended.Form.allreduce_s(self, shard, sizes))

    def sampler_s(self, shard: Shard, sequences: np.ndarray) -> np.ndarray:
        """Seconds of sampling; proportional to the batch beyond measured ones."""
        curve = self._found(shard).elementwise.get("sampler")
        if not curve:
            return super().sampler_s(shard, sequences)
        return curve.seconds(sequences, np.asarray)

    def attention(self, shard: Shard, phase: Phase) -> Attention:
        """The roofline's attention; if attention is measured, with the sums for looking it up."""
        attention = super().attention(shard, phase)
        if self.measured_attention(shard) is None:
            return attention
        return attention._replace(tile=1, causal=0.0)

    def measured_attention(self, shard: Shard) -> MeasuredAttention | None:
        """Measured attention; a phase missing from the tables takes the roofline's time."""
        found, layers = self._found(shard), shard.model.layers
        by_batch, by_prompt = found.decode, found.prefill
        decode, prefill = (super(Form, self).attention(shard, phase) for phase in ("decode", "prefill"))
        if (not by_batch and not by_prompt) or shard.model.kv_lora_rank or shard.model.window_layers:
            return None

        def decode_roof(batch: np.ndarray, context: np.ndarray) -> np.ndarray:
            return decode.seconds(batch * context, batch, batch * context, batch)

        def prefill_roof(q: np.ndarray, earlier: np.ndarray) -> np.ndarray:
            return prefill.seconds(*prefill.of_prompts(q, earlier + q))

        return MeasuredAttention(
            lambda batch, context: layers * by_batch.seconds(batch, context, decode_roof) if by_batch
            else decode_roof(batch, context),
            lambda q, kv: layers * by_prompt.seconds(q, kv - q, prefill_roof) if by_prompt
            else prefill_roof(q, kv - q))

    def mixed_kernel(self, shard: Shard) -> MixedKernel | None:
        """The extended form's kernel, with the measured work of decodes."""
        kernel, surface, layers = super().mixed_kernel(shard), self._found(shard).mixed, shard.model.layers
        if kernel is None or kernel.decode_s is None or not surface:
            return kernel
        roof = kernel.decode_s

        def decode_s(batch: np.ndarray, context: np.ndarray) -> np.ndarray:
            return layers * surface.seconds(batch, context, roof)

        return kernel._replace(decode_s=decode_s)

    def _found(self, shard: Shard) -> _Found:
        table = measurements(shard.chip)
        assert table is not None  # else this form is not used
        return _found(shard, table)


_EXTENDED, _ROOFLINE = extended.Form(), ooco.Form()


@cache
def _found(shard: Shard, table: Measurements) -> _Found:
    """Looks up every operator of a model on `shard.tp` chips."""
    model, tp = shard.model, shard.tp
    linears = [*fused_linears(model, tp), Linear("lm_head", model.hidden, -(-model.vocab // tp))]
    layers = {(linear.d_in, linear.d_out): table.linear(linear.d_in, linear.d_out) for linear in linears}
    names = [operator.name for operator in elementwise(model, tp)]
    curves = {name: table.elementwise(name, model, tp) for name in [*names, "residual", "sampler"]}
    heads = heads_of(shard, "decode")[:3]
    decode, prefill = table.decode_attention(*heads), table.prefill_attention(*heads)
    all_reduce = table.all_reduce(tp) if tp > 1 else None
    one, beside = complete(shard.chip).mixed_attention, table.mixed_attention(*heads)
    mixed = _work_surface(beside, one, heads) if one and beside else None
    missing = [linear.name for linear in linears if not layers[linear.d_in, linear.d_out]]
    missing += [name for name in names if not curves[name]]
    for name, lacks in (("prefill attention", not prefill), ("decode attention", not decode),
                        ("all_reduce", tp > 1 and not all_reduce), ("experts", bool(model.experts)),
                        ("weights of other than 16 bits", bool(model.weight_dtype_bytes))):
        if lacks:
            missing.append(name)
    return _Found(layers, {name: curve for name, curve in curves.items() if curve}, decode, prefill, mixed,
                  all_reduce, missing)


_LEAST_SHARE = 0.05
"""Smallest share of a kernel's time at which decodes tell anything of their work."""
_MOST_FACTOR = 5.0


def _work_surface(rows: Beside, one: kernels.MixedAttentionParameters, heads: tuple[float, float, float]) -> Surface:
    """Work of one layer's decodes beside chunks by batch and context, such that the form gives the
    measured times.

    The chain, the chunk and empty blocks are subtracted from a kernel's time beyond its launch. If
    the chain or the chunk hides the decodes' work, the form's own work is used.
    """
    formed = kernels.mixed_work_s(one, *heads, rows.batch, rows.context)
    empty = heads[0] * one.head_s_per_chunk_token * rows.batch * rows.q
    inside = np.maximum(rows.seconds - one.launch_s, 1e-9)
    chain = np.minimum(one.critical_s_per_token * rows.context / inside, 1.0)
    beyond = inside * steady((1.0 - steady(chain**one.exponent)) ** (1.0 / one.exponent))
    work = beyond - np.maximum(rows.alone_s - one.launch_s, 0.0) - empty
    weight = np.where(chain < 1.0, formed / rows.seconds, 0.0) * (1.0 - chain)
    weight = np.where(formed > _LEAST_SHARE * rows.seconds, weight, 0.0)
    ratio = np.clip(work / formed, 1.0 / _MOST_FACTOR, _MOST_FACTOR)
    curves = {}
    for batch in np.unique(rows.batch):
        contexts, seconds = [], []
        for context in np.unique(rows.context[rows.batch == batch]):
            here = (rows.batch == batch) & (rows.context == context)
            total = weight[here].sum()
            factor = steady(np.exp((weight[here] * np.log(ratio[here])).sum() / total)) if total > 0 else 1.0
            contexts.append(context)
            seconds.append(factor * formed[here][0])
        curves[float(batch)] = MeasuredCurve(np.array(contexts), np.maximum.accumulate(seconds))
    return Surface(curves)
