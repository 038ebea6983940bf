"""A chip that was not measured: the efficiency of one that was (fitted over datasheet), applied to its datasheet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ooco_gym.perf.specs import ChipSpec

FLOPS = ("gemm_flops_per_s", "prefill_attention_flops_per_s", "decode_attention_flops_per_s")
MEMORY = ("gemm_memory_bytes_per_s", "attention_memory_bytes_per_s")
OVERHEADS = ("prefill_overhead_s", "decode_overhead_s", "prefill_layer_overhead_s", "decode_layer_overhead_s")
_KERNELS = {
    # Powers of the ratios of FLOP/s, memory bandwidth, and units. A block of rows runs on one unit, so as fast as its
    # share of the peak; work for each request and head is spread over the units; launches are the host's.
    "flops_per_s": (1, 0, 0), "units": (0, 0, 1), "critical_flops_per_s": (1, 0, -1),
    "critical_s_per_token": (-1, 0, 1), "lone_critical_s_per_token": (-1, 0, 1), "request_head_s": (0, 0, -1),
    "store_s": (0, 0, -1)}


def transferred(base: ChipSpec, sheet: Mapping[str, Any]) -> dict[str, Any]:
    """What a chip of another datasheet would be, were it as efficient as `base`.

    Args:
        base: a chip that was measured.
        sheet: `peak_flops_per_s`, `peak_memory_bytes_per_s` and, where known, `units` of the other one.

    Returns:
        Fields of the other chip: rates, overheads, `extended` without an all-reduce (a link's, not a chip's), and the
        sizes that `base` was fitted on, without degrees of tensor parallelism.
    """
    flops = float(sheet["peak_flops_per_s"]) / base.peak_flops_per_s
    memory = float(sheet["peak_memory_bytes_per_s"]) / base.peak_memory_bytes_per_s
    units = float(sheet.get("units") or base.units) / base.units if base.units else 1.0
    found: dict[str, Any] = {name: getattr(base, name) * flops for name in FLOPS}
    found |= {name: getattr(base, name) * memory for name in MEMORY}
    found |= {name: getattr(base, name) for name in OVERHEADS}
    if base.extended is not None:
        found["extended"] = {
            kernel: {name: value * _ratio(name, flops, memory, units) for name, value in parameters.items()}
            for kernel, parameters in base.extended.to_mapping().items() if kernel != "allreduce"}
    if base.validity is not None:
        sizes = replace(base.validity, tp=())
        found["validity"] = {item.name: getattr(sizes, item.name) for item in fields(sizes) if item.name != "tp"}
    return found


def _ratio(name: str, flops: float, memory: float, units: float) -> float:
    powers = _KERNELS.get(name, (0, 1, 0) if name.endswith("bytes_per_s") else (0, 0, 0))  # rates of memory, any kind
    return flops ** powers[0] * memory ** powers[1] * units ** powers[2]
