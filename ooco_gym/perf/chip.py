"""Chips read from `conf/chip/*.yaml`, links and their all-reduces, and stand-ins for unmeasured
chips."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Annotated, Any

from ooco_gym import resources
from ooco_gym.errors import UserError
from ooco_gym.perf.kernels import ExtendedParameters
from ooco_gym.schema import Amount, Count, Model, Positive, Range, at, check_keys, is_number, kinds


@dataclass(frozen=True)
class Validity(Model):
    """Ranges that a chip's numbers were fitted on; None and `()` leave a size open. Runs beyond
    them get a warning."""

    max_tokens: Count | None = None
    """Most tokens of one iteration."""
    max_batch: Count | None = None
    """Most requests of one decode step."""
    max_context: Count | None = None
    """Most tokens of one request's context."""
    tp: tuple[Count, ...] = ()
    """Tensor-parallel degrees that were measured."""


@dataclass(frozen=True)
class ChipSpec(Model):
    """One accelerator: its memory, and what its kernels achieve (OOCO, Table 4; symbols in
    brackets).

    Rates are achievable ones, not datasheet peaks, which serve for scaling and the report. An
    overhead may count per iteration (as in the paper), per layer (as measured GPUs show), or both.
    """

    PLACE = "chip '{name}'"

    name: str
    memory_bytes: Positive
    peak_flops_per_s: Positive
    """Datasheet, dense 16-bit."""
    peak_memory_bytes_per_s: Positive
    peak_link_bytes_per_s: Positive
    """Datasheet link to the other chips of an instance, one direction."""
    gemm_flops_per_s: Positive
    """`F_g`."""
    prefill_attention_flops_per_s: Positive
    """`F_ap`."""
    decode_attention_flops_per_s: Positive
    """`F_ad`."""
    gemm_memory_bytes_per_s: Positive
    """`M_g`."""
    attention_memory_bytes_per_s: Positive
    """`M_a`."""
    allreduce_bytes_per_s: Amount = 0.0
    """`B_c`: an all-reduce of `x` bytes over `n` chips takes `allreduce_latency_s + 2 (n - 1) / n *
    x / B_c`. 0 if not measured: `link`'s is used (`with_allreduce`)."""
    allreduce_latency_s: Amount = 0.0
    link: str = ""
    """Kind of link to the other chips of an instance (`conf/link`); '': the nearest to
    `peak_link_bytes_per_s`."""
    prefill_overhead_s: Amount = 0.0
    """`O_p`, per prefill iteration."""
    decode_overhead_s: Amount = 0.0
    """`O_d`, per decode iteration."""
    prefill_layer_overhead_s: Amount = 0.0
    """Part of `O_p` per layer of a prefill iteration (kernels)."""
    decode_layer_overhead_s: Amount = 0.0
    """Part of `O_d` per layer of a decode iteration (kernels)."""
    extended: ExtendedParameters | None = None
    """Kernels for `timing=extended`; None if not fitted."""
    validity: Validity | None = None
    """Ranges that the numbers were fitted on."""
    tables: str = ""
    """Parquet file of measured operators for `timing=measured`, relative to the YAML file,
    otherwise to the current folder; '': none."""
    title: str = ""
    peak_fp8_flops_per_s: Amount = 0.0
    """Datasheet, dense 8-bit; 0: the chip multiplies only in 16 bits."""
    device_memory_bytes: Amount = 0.0
    """Memory that the driver reports (`torch.cuda.mem_get_info`), beside the datasheet's
    `memory_bytes`; 0: unknown."""
    units: Annotated[int, Range(0)] = 0
    """Streaming multiprocessors (compute units) by the datasheet, used only by `like`; 0: unknown."""
    compute_capability: Amount = 0.0
    """An NVIDIA chip's compute capability, such as 8.9; decides whether chunks and decodes share a
    kernel (`ONE_KERNEL`). 0: none, or unknown."""
    like: str = ""
    """Name of a measured chip whose efficiency stands in for this unmeasured one: missing values
    are its fitted numbers, scaled by the ratio of the datasheets (`transferred`)."""
    mixed_like: str = ""
    """Name of the chip whose kernel for chunks and decodes stands in for this one's
    (`_with_mixed`)."""
    not_measured: str = ""
    """What was not measured and its stand-in, in words, which every run on the chip reports; '':
    all was measured."""
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    """Source of each value, by field; scaled and assumed values are marked."""

    def validate(self, where: str) -> None:
        if self.extended is not None:
            self.extended.check_kernels(at(where, "extended"))
        if self.link and self.link not in list_links():
            raise UserError(f"{where}: link={self.link} must be one of {', '.join(list_links())}")

    @property
    def remark(self) -> str:
        """One sentence if the chip's numbers were not measured on it, else ''."""
        return f"chip '{self.name}': not measured: {self.not_measured}" if self.not_measured else ""


def list_chips() -> list[str]:
    """Names of the chips shipped in `conf/chip`."""
    return resources.names("chip")


def load_chip(chip: ChipSpec | str | os.PathLike[str] | Mapping[str, Any]) -> ChipSpec:
    """Loads a chip by name (`conf/chip`), path to a YAML file, or mapping of its fields.

    Raises:
        UserError: unknown name, missing file, unknown, missing or malformed field.
    """
    if isinstance(chip, ChipSpec):
        return chip
    values = resources.named_values("chip", chip)
    if values.get("tables"):
        values["tables"] = os.path.abspath(str(values["tables"]))  # already absolute from a file
    if values.get("like"):
        check_keys(where := f"chip '{values['name']}'", values, kinds(ChipSpec))
        values = _like(values, where)
    return ChipSpec.read(_with_mixed(values))


@dataclass(frozen=True)
class Link:
    """A kind of link between the chips of an instance.

    Attributes:
        name: name of the file in `conf/link`.
        title: description.
        peak_bytes_per_s: datasheet, one direction; rates scale with a chip's own
            `peak_link_bytes_per_s`.
        nearest: whether it may stand in for a chip that names no link.
        measured: whether the numbers were measured; else published or assumed (see `sources`).
        chips: our chips on which they were measured.
        elsewhere: the kind assumed for unmeasured machines, if boards of the same chip may lack
            what this kind needs (peer-to-peer access); '': itself.
        ranks: (number of chips, latency in seconds, bytes/s), in order: an all-reduce of `x` bytes
            over `n` chips takes latency + 2 (n - 1) / n * x / rate.
    """

    name: str
    title: str
    peak_bytes_per_s: float
    nearest: bool
    measured: bool
    chips: tuple[str, ...]
    ranks: tuple[tuple[int, float, float], ...]
    elsewhere: str = ""

    def allreduce(self, chips: int, peak_bytes_per_s: float) -> tuple[float, float]:
        """Returns latency in seconds and rate in bytes/s over `chips` chips, from the largest
        measured number not above it, the rate scaled by the chip's own link."""
        _, latency, rate = max([rank for rank in self.ranks if rank[0] <= chips], default=self.ranks[0])
        return latency, rate * peak_bytes_per_s / self.peak_bytes_per_s


@cache
def list_links() -> tuple[str, ...]:
    """Names of the kinds in `conf/link`."""
    return tuple(resources.names("link"))


@cache
def load_link(name: str) -> Link:
    """Loads a kind of link by name.

    Raises:
        UserError: unknown name.
    """
    values = {key: value for key, value in resources.load_yaml("link", name).items() if key != "sources"}
    ranks = sorted((number, rank["latency_s"], rank["bytes_per_s"]) for number, rank in values["ranks"].items())
    return Link(**values | {"ranks": tuple(ranks), "chips": tuple(values["chips"])})


@cache
def link_of(chip: ChipSpec) -> Link:
    """The kind of link that a chip names, or the nearest by datasheet ratio."""
    if chip.link:
        return load_link(chip.link)
    kinds = [one for one in map(load_link, list_links()) if one.nearest]
    return min(kinds, key=lambda one: abs(math.log(one.peak_bytes_per_s / chip.peak_link_bytes_per_s)))


def linked(chip: ChipSpec, link: str) -> ChipSpec:
    """The chip in a machine with another kind of link of `conf/link`; '': the chip's own."""
    if not link:
        return chip
    extended = chip.extended and replace(chip.extended, allreduce=None)
    found = replace(chip, link=link, allreduce_bytes_per_s=0.0, allreduce_latency_s=0.0, extended=extended)
    return replace(found, peak_link_bytes_per_s=min(chip.peak_link_bytes_per_s, load_link(link).peak_bytes_per_s))


@cache
def with_allreduce(chip: ChipSpec, chips: int) -> ChipSpec:
    """The chip with an all-reduce over `chips` chips: its own, or else its link's."""
    if chip.allreduce_bytes_per_s:
        return chip
    latency, rate = link_of(chip).allreduce(chips, chip.peak_link_bytes_per_s)
    return replace(chip, allreduce_bytes_per_s=rate, allreduce_latency_s=latency)


def allreduce_remark(chip: ChipSpec, chips: int) -> str:
    """Returns a sentence that names the stand-in for an unmeasured all-reduce, or the one of
    machines that lack what the measured one needs (`Link.elsewhere`); else ''."""
    link = link_of(chip)
    if chip.name in link.chips or chip.allreduce_bytes_per_s:
        if chip.name not in link.chips or not link.elsewhere:
            return ""
        other = load_link(link.elsewhere)
        latency, rate = other.allreduce(chips, chip.peak_link_bytes_per_s)
        return (f"chip '{chip.name}': its all-reduce is that of {link.title}; one of {other.title} takes "
                f"{1e6 * latency:.1f} µs and {1e-9 * rate:.1f} GB/s over {chips} chips: link={other.name} "
                "(docs/timing.md, 'All-reduce')")
    latency, rate = link.allreduce(chips, chip.peak_link_bytes_per_s)
    why = "" if chip.link else ", the nearest by peak_link_bytes_per_s"
    where = f"measured on {', '.join(link.chips)}" if link.chips else "measured" if link.measured else "not measured"
    return (f"chip '{chip.name}': its all-reduce was not measured: {1e6 * latency:.1f} µs and {1e-9 * rate:.1f} GB/s "
            f"over {chips} chips are those of link '{link.name}' ({link.title}; {where}{why}); to measure it, or take "
            "another link: docs/timing.md, 'All-reduce'")


FLOPS = ("gemm_flops_per_s", "prefill_attention_flops_per_s", "decode_attention_flops_per_s")
MEMORY = ("gemm_memory_bytes_per_s", "attention_memory_bytes_per_s")
OVERHEADS = ("prefill_overhead_s", "decode_overhead_s", "prefill_layer_overhead_s", "decode_layer_overhead_s")
_KERNELS = {
    # Powers of the ratios of FLOP/s, memory bandwidth, and units. A block of rows runs on one unit, at
    # its share of the peak; work per request and head is spread over the units; launches are the
    # host's.
    "flops_per_s": (1, 0, 0), "units": (0, 0, 1), "split_rows": (0, 0, 1), "critical_flops_per_s": (1, 0, -1),
    "critical_s_per_token": (-1, 0, 1), "lone_critical_s_per_token": (-1, 0, 1), "request_head_s": (0, 0, -1),
    "store_s": (0, 0, -1), "head_s": (0, 0, -1), "head_s_per_token": (-1, 0, 0), "head_s_per_chunk_token": (0, 0, -1),
    "decode_s_per_token": (-1, 0, 1), "mixed_s_per_token": (-1, 0, 1)}
ONE_KERNEL = (8, 12)
"""Major compute capabilities for which vLLM uses FlashAttention 2, which runs chunks and decodes in
one kernel and does not split contexts there. On 9 its successor splits them; on 10 they are
separate kernels (FlashInfer's), whose times add."""


def transferred(base: ChipSpec, sheet: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the numbers of a chip with another datasheet (`sheet`) that is as efficient as the
    measured chip `base`: rates, overheads, `extended` without the all-reduce (which is a link's),
    and the ranges that `base` was fitted on, without degrees of tensor parallelism."""
    flops = float(sheet["peak_flops_per_s"]) / base.peak_flops_per_s
    memory = float(sheet["peak_memory_bytes_per_s"]) / base.peak_memory_bytes_per_s
    units = float(sheet.get("units") or base.units) / base.units if base.units else 1.0
    found: dict[str, Any] = {name: getattr(base, name) * flops for name in FLOPS}
    found |= {name: getattr(base, name) * memory for name in MEMORY}
    found |= {name: getattr(base, name) for name in OVERHEADS}
    if base.extended is not None:
        found["extended"] = kernels = {}
        for kernel, parameters in base.extended.to_mapping().items():
            if kernel != "allreduce":
                kernels[kernel] = {name: value * _ratio(name, flops, memory, units)
                                   for name, value in parameters.items()}
    if base.validity is not None:
        sizes = replace(base.validity, tp=())
        found["validity"] = {item.name: getattr(sizes, item.name) for item in fields(sizes) if item.name != "tp"}
    return found


def _with_mixed(values: dict[str, Any]) -> dict[str, Any]:
    """Fills in `mixed_attention` of a chip that runs chunks and decodes in one kernel
    (`ONE_KERNEL`) from the measured chip of the nearest architecture, if it was not measured
    (`extended: {mixed_attention: null}` leaves it out)."""
    capability, section = values.get("compute_capability") or 0.0, values.get("extended")
    needed = (values.get("peak_flops_per_s"), values.get("peak_memory_bytes_per_s"))
    if not isinstance(section, Mapping) or "mixed_attention" in section or not all(
            is_number(one) and one and one > 0 for one in (*needed, capability)) or capability // 1 not in ONE_KERNEL:
        return values
    sheets = {name: resources.load_yaml("chip", name) for name in list_chips()}
    measured = [name for name, sheet in sheets.items() if (sheet.get("extended") or {}).get("mixed_attention")]
    nearest = min(measured, key=lambda name: abs(sheets[name]["compute_capability"] - capability))
    found = transferred(load_chip(nearest), values)["extended"]
    said = f"not measured; that of '{nearest}' by the ratio of the datasheets"
    return values | {"extended": {"skew": found["skew"], **section, "mixed_attention": found["mixed_attention"]},
                     "mixed_like": nearest,
                     "sources": {**(values.get("sources") or {}), "extended.mixed_attention": said}}


def _ratio(name: str, flops: float, memory: float, units: float) -> float:
    powers = _KERNELS.get(name, (0, 1, 0) if name.endswith("bytes_per_s") else (0, 0, 0))  # all memory rates
    return flops ** powers[0] * memory ** powers[1] * units ** powers[2]


def _like(values: dict[str, Any], where: str) -> dict[str, Any]:
    """Fills in what a chip's YAML takes from another chip's efficiency."""
    base = load_chip(str(values["like"]))
    if base.like:
        raise UserError(f"{where}: field 'like' must name a chip that was measured, but '{base.name}' is itself like "
                        f"'{base.like}'")
    try:
        found = transferred(base, values)
    except (KeyError, TypeError, ValueError):
        datasheet = ("peak_flops_per_s", "peak_memory_bytes_per_s")
        missing = [name for name in datasheet if not is_number(values.get(name))] or ["units"]
        raise UserError(f"{where}: with like={base.name} the chip's own {' and '.join(missing)} must be given, as "
                        "numbers of its datasheet") from None
    said = (f"the efficiency of '{base.name}' is applied to its datasheet; what that is worth: docs/validity.md, "
            "'Leave one chip out'")
    return {**found, "not_measured": said, **values}
