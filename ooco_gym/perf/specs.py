"""What a chip and a model are: frozen specifications read from `conf/chip/*.yaml` and `conf/model/*.yaml`."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar

from ooco_gym import resources
from ooco_gym.errors import UserError
from ooco_gym.perf.fields import check_fields, number, read_fields, sizes
from ooco_gym.perf.links import check_link
from ooco_gym.perf.transfer import transferred

if TYPE_CHECKING:
    from ooco_gym.perf.timing.kernels import ExtendedParameters

Spec = TypeVar("Spec", "ChipSpec", "ModelSpec")


@dataclass(frozen=True)
class Validity:
    """The sizes that a chip's figures were fitted on; None and `()` leave a size open. Beyond them a run is warned."""

    max_tokens: int | None = None
    """Most tokens of one iteration."""
    max_batch: int | None = None
    """Most requests of one decode step."""
    max_context: int | None = None
    """Most tokens of one request's context."""
    tp: tuple[int, ...] = ()
    """Tensor-parallel degrees that were measured."""


@dataclass(frozen=True)
class ChipSpec:
    """One accelerator: what it holds, and what its kernels achieve (OOCO, Table 4; symbols in brackets).

    Rates are achievable ones, not datasheet peaks; the peaks are kept beside them for scaling and for the report.
    An overhead may be counted once an iteration (as in the paper), once a layer (what measured GPUs show), or both.
    """

    name: str
    memory_bytes: float
    peak_flops_per_s: float
    """Datasheet, dense 16-bit."""
    peak_memory_bytes_per_s: float
    peak_link_bytes_per_s: float
    """Datasheet link to the other chips of an instance, one direction."""
    gemm_flops_per_s: float
    """`F_g`."""
    prefill_attention_flops_per_s: float
    """`F_ap`."""
    decode_attention_flops_per_s: float
    """`F_ad`."""
    gemm_memory_bytes_per_s: float
    """`M_g`."""
    attention_memory_bytes_per_s: float
    """`M_a`."""
    allreduce_bytes_per_s: float = 0.0
    """`B_c`: an all-reduce of `x` bytes over `n` chips takes `allreduce_latency_s + 2 (n - 1) / n * x / B_c`. 0 where
    it was not measured: that of `link` counts then (`ooco_gym.perf.links`)."""
    allreduce_latency_s: float = 0.0
    link: str = ""
    """Kind of link to the other chips of an instance (`conf/link`); '': the one nearest to `peak_link_bytes_per_s`."""
    prefill_overhead_s: float = 0.0
    """`O_p`, once a prefill iteration."""
    decode_overhead_s: float = 0.0
    """`O_d`, once a decode iteration."""
    prefill_layer_overhead_s: float = 0.0
    """Part of `O_p` that counts kernels: for each layer of a prefill iteration."""
    decode_layer_overhead_s: float = 0.0
    """Part of `O_d` that counts kernels: for each layer of a decode iteration."""
    extended: ExtendedParameters | None = None
    """Kernels as `timing=extended` has them; None where they were not fitted."""
    validity: Validity | None = None
    """Sizes that the figures were fitted on."""
    tables: str = ""
    """Parquet file of measured operators for `timing=measured`; in a YAML file relative to it, otherwise to the
    current folder. Empty where there are none."""
    title: str = ""
    units: int = 0
    """Streaming multiprocessors (compute units) by the datasheet, which only `like` looks at; 0: not known."""
    like: str = ""
    """A chip by name whose efficiency stands for this one's, which was not measured: its fitted figures, by the ratio
    of the datasheets (`ooco_gym.perf.transfer`), are those that are not given."""
    not_measured: str = ""
    """What was not measured and what stands in for it, in words; '' where all was. Every run on the chip says it."""
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    """Where each figure comes from, by field; figures that are scaled or assumed say so."""

    def __post_init__(self) -> None:
        _check_numbers(self, "chip", zero_allowed=_OVERHEADS)
        _check_kernels(self)
        check_link(self.link, f"chip '{self.name}'")

    @property
    def remark(self) -> str:
        """One sentence where the chip's figures were not measured on it; '' otherwise."""
        return f"chip '{self.name}': not measured: {self.not_measured}" if self.not_measured else ""


@dataclass(frozen=True)
class ModelSpec:
    """A dense decoder-only transformer, described by its architecture; everything else is computed from it."""

    name: str
    layers: int
    hidden: int
    heads: int
    """`H_q`."""
    kv_heads: int
    """`H_kv`; equal to `heads` without grouped-query attention."""
    head_dim: int
    intermediate: int
    vocab: int
    gated_mlp: bool = True
    """Gate, up and down projections; otherwise up and down only."""
    tied_embeddings: bool = False
    qkv_bias: bool = False
    dense_bias: bool = False
    """Biases on the output projection and the MLP too (OPT)."""
    norm_bias: bool = False
    """LayerNorm (scale and shift) rather than RMSNorm."""
    qk_norm: bool = False
    """RMSNorm of each query and key head before the rotary positions (Qwen3)."""
    position_rows: int = 0
    """Rows of a learned position embedding; 0 with rotary positions."""
    dtype_bytes: int = 2
    title: str = ""
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        _check_numbers(self, "model", zero_allowed={"position_rows"})
        if self.heads % self.kv_heads:
            raise UserError(f"model '{self.name}': kv_heads ({self.kv_heads}) must divide heads ({self.heads})")

    @property
    def q_width(self) -> int:
        """Width of all query heads together (`D_h` of OOCO's Table 3)."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of all key heads together (the values' is the same)."""
        return self.kv_heads * self.head_dim

    @property
    def parameters(self) -> int:
        """Number of weights, computed from the architecture."""
        mlp_in = 2 if self.gated_mlp else 1
        layer = self.hidden * (self.q_width + 2 * self.kv_width) + self.q_width * self.hidden
        layer += (mlp_in + 1) * self.hidden * self.intermediate
        layer += (self.q_width + 2 * self.kv_width) * self.qkv_bias
        layer += (self.hidden + mlp_in * self.intermediate + self.hidden) * self.dense_bias
        layer += 2 * self.head_dim * self.qk_norm
        norm = self.hidden * (2 if self.norm_bias else 1)
        embedding = self.vocab * self.hidden * (1 if self.tied_embeddings else 2) + self.position_rows * self.hidden
        return self.layers * (layer + 2 * norm) + norm + embedding

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        return self.parameters * self.dtype_bytes


_OVERHEADS = {"prefill_overhead_s", "decode_overhead_s", "prefill_layer_overhead_s", "decode_layer_overhead_s",
              "allreduce_latency_s", "allreduce_bytes_per_s", "units"}
_AT_LEAST_ONE = {"exponent", "tile", "units", "group_rows"}


def list_chips() -> list[str]:
    """Names of the chips shipped in `conf/chip`."""
    return resources.names("chip")


def list_models() -> list[str]:
    """Names of the models shipped in `conf/model`."""
    return resources.names("model")


def model_named(text: str) -> str:
    """The shipped model that a published name means; '' where there is none.

    Spelling does not count, nor does what leaves the architecture as it is: an organisation before the name, and what
    a model was trained to at its end (`meta-llama/Llama-3.1-8B-Instruct` is `llama_3_1_8b`).
    """
    known = {re.sub(r"[^a-z0-9]", "", name): name for name in list_models()}
    name = re.sub(r"[^a-z0-9]", "", str(text).rstrip("/").rpartition("/")[2].lower())
    for ending in ("", "instruct", "chat", "base", "hf", "chathf"):
        for beginning in ("", "meta"):
            found = known.get(name.removesuffix(ending).removeprefix(beginning))
            if found:
                return found
    return ""


def load_chip(chip: ChipSpec | str | os.PathLike[str] | Mapping[str, Any]) -> ChipSpec:
    """Loads a chip by name (`conf/chip`), path to a YAML file, or mapping of its fields.

    Raises:
        UserError: unknown name, missing file, unknown, missing or malformed field.
    """
    return _load(ChipSpec, "chip", chip)


def load_model(model: ModelSpec | str | os.PathLike[str] | Mapping[str, Any]) -> ModelSpec:
    """Loads a model by name (`conf/model`), path to a YAML file, or mapping of its fields.

    Raises:
        UserError: unknown name, missing file, unknown, missing or malformed field.
    """
    return _load(ModelSpec, "model", model)


def _load(cls: type[Spec], group: str, source: Any) -> Spec:
    if isinstance(source, cls):
        return source
    values = dict(source) if isinstance(source, Mapping) else resources.load_yaml(group, source)
    where = f"{group} '{values.get('name', source if not isinstance(source, Mapping) else 'custom')}'"
    if not isinstance(source, Mapping):
        values.setdefault("name", os.path.splitext(os.path.basename(os.fspath(source)))[0])
    values.setdefault("name", "custom")
    if cls is ChipSpec and values.get("tables"):
        values["tables"] = os.path.abspath(str(values["tables"]))  # of a file: absolute already
    if values.get("like"):
        check_fields(cls, values, where)
        values = _like(values, where)
    return read_fields(cls, values, where, _convert)


def _like(values: dict[str, Any], where: str) -> dict[str, Any]:
    """Fills in what a chip's YAML leaves to the efficiency of another chip."""
    base = load_chip(str(values["like"]))
    if base.like:
        raise UserError(f"{where}: field 'like' must name a chip that was measured, but '{base.name}' is itself like "
                        f"'{base.like}'")
    try:
        found = transferred(base, values)
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{where}: with like={base.name} the datasheet is needed, as numbers: peak_flops_per_s, "
                        "peak_memory_bytes_per_s and, where known, units") from None
    said = (f"the efficiency of '{base.name}' is applied to its datasheet; what that is worth: docs/validity.md, "
            "'Leave one chip out'")
    return {**found, "not_measured": said, **values}


def _convert(where: str, kind: str, value: Any) -> Any:
    """Reads one field by its type."""
    if kind == "str":
        return str(value)
    if kind == "bool":
        if not isinstance(value, bool):
            raise UserError(f"{where} must be true or false, got '{value}'")
        return value
    if kind in ("float", "int"):
        found = number(value)
        if not math.isfinite(found) or (kind == "int" and found % 1 != 0):
            raise UserError(f"{where} must be {'a whole number' if kind == 'int' else 'a number'}, got '{value}'")
        return int(found) if kind == "int" else found
    section = where.replace(": field '", ", ").removesuffix("'")
    if kind == "Validity | None":
        return None if value is None else read_fields(Validity, value, section, sizes)
    if kind == "ExtendedParameters | None":
        from ooco_gym.perf.timing.kernels import ExtendedParameters  # its package imports this module

        return None if value is None else ExtendedParameters.from_mapping(value, section)
    if not isinstance(value, Mapping):
        raise UserError(f"{where} must be a mapping, got '{value}'")
    return {str(name): str(text) for name, text in value.items()}


def _check_kernels(chip: ChipSpec) -> None:
    """Refuses kernels that would divide by zero: rates without a default must be positive, norms at least 1."""
    for item in fields(chip.extended) if chip.extended else ():
        kernel = getattr(chip.extended, item.name)
        required = {part.name for part in fields(kernel) if part.default is MISSING} if kernel else set()
        for name, value in asdict(kernel).items() if kernel else ():
            where = f"chip '{chip.name}', extended.{item.name}: field '{name}'"
            if name in required and not 0 < value < math.inf:
                raise UserError(f"{where} must be positive, got {value}")
            if name in _AT_LEAST_ONE and not value >= 1:
                raise UserError(f"{where} must be at least 1, got {value}")


def _check_numbers(spec: ChipSpec | ModelSpec, group: str, zero_allowed: set[str]) -> None:
    for item in fields(spec):
        value = getattr(spec, item.name)
        if str(item.type) not in ("float", "int"):
            continue
        low_enough = value >= 0 if item.name in zero_allowed else value > 0
        if not low_enough:
            bound = "0 or more" if item.name in zero_allowed else "positive"
            raise UserError(f"{group} '{spec.name}': field '{item.name}' must be {bound}, got {value}")
