"""A model on chips: whether it fits, its KV memory, and warnings for sizes beyond the chip's
measured ranges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from ooco_gym import resources
from ooco_gym.errors import UserError
from ooco_gym.perf.chip import ChipSpec, allreduce_remark, linked, load_chip, with_allreduce
from ooco_gym.perf.memory import GPU_MEMORY_UTILIZATION, Account, batch_defaults, profiled_peak_bytes, size_remark
from ooco_gym.perf.model import ModelSpec, load_model
from ooco_gym.perf.timing import Shard, TimingForm, expert_kernel, timing_form
from ooco_gym.report.terminal import remark
from ooco_gym.schema import Count, Model, Range, check_keys, kinds

_TIMING = ("name", "causal_factor")
SomeShare = Annotated[float, Range(0, 1, above=True)]


@dataclass(frozen=True)
class Deployment(Model):
    """One instance: `model` on `tp * pp` chips.

    An iteration runs through the pipeline's stages in sequence, so its latency is their sum plus
    the transfer of activations. Weights and KV memory are spread evenly over all chips. `remarks`
    names what was not measured; a command prints it once.

    Attributes:
        kv_fraction: share of each chip's memory that weights and KV cache may take together.
        timing: name of the timing form (`ooco_gym.perf.timing`).
        block_tokens: tokens per KV block.
        causal_factor: factor on the FLOPs of prefill attention; 0.5 counts a causal mask over a whole prompt.
        known_kv_blocks: number of KV blocks if known (from an engine's log), else computed.
        expert_parallel: whether the chips that share experts have whole ones each, not a part of
            every one.
        moe_backend: kernel of 4-bit experts: `` is Triton's (vLLM's choice for MXFP4), `marlin`
            that of `VLLM_MXFP4_USE_MARLIN=1` or `--moe-backend marlin`, slower with prompts.
        data_parallel: number of ranks in this rank's group. Each has the model except experts,
            which are spread over all ranks' chips (vLLM's data_parallel_size). Bytes and chips are
            one rank's; times assume equal tokens on all ranks.
        memory: memory account: `fraction` gives weights and KV cache `kv_fraction` of the
            datasheet's memory, `vllm` that share of the real memory, less the engine's profiled
            peak (`ooco_gym.perf.memory`).
        max_num_batched_tokens: with `vllm`, the token budget that the engine profiles; 0: the
            card's default.
        max_num_seqs: with `vllm`, the sequences that it samples then; 0: the card's default.

    Raises:
        UserError: the weights do not fit, or the model cannot be split this way.
    """

    chip: ChipSpec
    model: ModelSpec
    tp: Count = 1
    pp: Count = 1
    kv_fraction: SomeShare = 0.9
    timing: str = "ooco"
    block_tokens: Count = 16
    causal_factor: SomeShare = 1.0
    known_kv_blocks: Annotated[int, Range(2, 10**12)] | None = None
    expert_parallel: bool = False
    moe_backend: Literal["", "marlin"] = ""
    memory: Account = "fraction"
    max_num_batched_tokens: Annotated[int, Range(0)] = 0
    max_num_seqs: Annotated[int, Range(0)] = 0
    data_parallel: Count = 1

    def validate(self, where: str) -> None:
        timing_form(self.timing)
        reason = split_error(self.model, self.tp, self.pp)
        ranks = f" x data_parallel={self.data_parallel}" if self.data_parallel > 1 else ""
        if self.expert_parallel and (not self.model.experts or self.model.experts % (self.tp * self.data_parallel)):
            raise UserError(f"model '{self.model.name}': expert_parallel needs experts that tp={self.tp}{ranks} "
                            f"divides; it has {self.model.experts}")
        if ranks and not self.expert_parallel and self.model.expert_intermediate % (self.tp * self.data_parallel):
            raise UserError(f"model '{self.model.name}': without expert_parallel each expert is parted over all chips, "
                            f"and tp={self.tp}{ranks} does not divide its width of {self.model.expert_intermediate}; "
                            "say expert_parallel=true, or fewer ranks")
        if ranks and not self.model.experts:
            raise UserError(f"model '{self.model.name}' has no experts that ranks could share: data_parallel="
                            f"{self.data_parallel} are as many instances that know nothing of each other; give their "
                            "count")
        if reason:
            valid = ", ".join(str(tp) for tp in valid_tps(self.model))
            raise UserError(f"model '{self.model.name}': {reason}; tp may be {valid}")
        if self.kv_blocks < 1:
            raise UserError(self._does_not_fit())
        for sentence in self.remarks:
            remark(sentence)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Deployment:
        """Builds a deployment from its fields. `chip` and `model` are names, paths or mappings,
        `link` a kind of link other than the chip's own, `timing` as in `timing_values`. None gives
        defaults: `memory` is `vllm` if the card's real memory is known, `kv_fraction` the
        account's, `timing` the chip's (`default_timing`).

        Raises:
            UserError: unknown key or name, a value of the wrong type, weights that do not fit.
        """
        values = dict(config)
        check_keys("deployment", values, [*kinds(cls), "link"])
        for key in ("chip", "model"):
            if key not in values:
                raise UserError(f"a deployment needs the key '{key}'")
        values["chip"] = linked(load_chip(values["chip"]), str(values.pop("link", "")))
        values["model"] = load_model(values["model"])
        if values.get("memory", "fraction") is None:
            values["memory"] = "vllm" if values["chip"].device_memory_bytes else "fraction"
        if values.get("kv_fraction", 0.9) is None:
            values["kv_fraction"] = GPU_MEMORY_UTILIZATION.get(values.get("memory", "fraction"), 0.9)
        timing = timing_values(values.pop("timing", "ooco") or default_timing([values["chip"]]))
        return cls.read(timing | values)

    @property
    def chips(self) -> int:
        """Number of chips of the instance, or of one data-parallel rank."""
        return self.tp * self.pp

    @property
    def peak_flops_per_s(self) -> float:
        """Peak FLOP/s of all its chips, at 8 bits if its linear layers have 8 bits."""
        peaks = (self.chip.peak_flops_per_s, self.chip.peak_fp8_flops_per_s * (self.model.linear_bytes == 1))
        return self.chips * max(peaks)

    @property
    def form(self) -> TimingForm:
        return timing_form(self.timing).on(self.chip)

    @property
    def shard(self) -> Shard:
        """Model and chips for the timing form; an unmeasured all-reduce is the link's."""
        chip = with_allreduce(self.chip, self._linked)
        return Shard(chip, self.model, self.tp, self.pp, self.causal_factor, self.expert_parallel, self.moe_backend,
                     self.data_parallel)

    @property
    def _linked(self) -> int:
        """Chips of its widest all-reduce, whose link parameters apply to all."""
        return self.tp * self.data_parallel if self.tp * self.data_parallel > 1 else self.pp

    @property
    def remarks(self) -> list[str]:
        """Sentences on numbers of the chip that were not measured, and their stand-ins."""
        found = [self.chip.remark, sparse_remark(self.chip, self.model, self.timing, self.moe_backend)]
        if self.chip.mixed_like and self.form.mixed_kernel(self.shard):
            found.append(f"chip '{self.chip.name}': chunks and decodes in one kernel were not measured: they take what "
                         f"they take on '{self.chip.mixed_like}', by the ratio of the datasheets")
        if self.known_kv_blocks is None:
            found.append(size_remark(self.chip, self.memory))
        if self.chips * self.data_parallel > 1:
            found.append(allreduce_remark(self.chip, self._linked))
        return [sentence for sentence in found if sentence]

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights of the whole instance, or of those on one data-parallel rank's
        chips."""
        experts = self.model.expert_weights * self.model.expert_bytes
        return round(self.model.weight_bytes - experts * (1.0 - 1.0 / self.data_parallel))

    @property
    def kv_bytes_per_token(self) -> int:
        """KV bytes of a token over the whole instance; heads are replicated if `tp` exceeds them.
        Sliding-window layers are left out, as they keep only their window."""
        model, heads = self.model, max(self.model.kv_heads, self.tp)
        width = model.kv_lora_rank + model.rope_head_dim if model.kv_lora_rank else 2 * model.head_dim
        return round((model.layers - model.window_layers) * heads * width * model.kv_bytes)

    @property
    def kv_capacity_bytes(self) -> float:
        """Bytes left for KV after the weights; negative if these do not fit."""
        return self.usable_bytes - self.weight_bytes

    @property
    def card_bytes(self) -> float:
        real = self.chip.device_memory_bytes if self.memory == "vllm" else 0.0
        return real or self.chip.memory_bytes

    @property
    def batch_limits(self) -> tuple[int, int]:
        """Token budget and number of sequences with which the engine profiles its peak."""
        tokens, seats = batch_defaults(self.chip.name, self.chip.memory_bytes)
        tokens = self.max_num_batched_tokens or tokens
        return tokens, self.max_num_seqs or min(seats, tokens)

    @property
    def peak_bytes(self) -> float:
        """Bytes of one chip that the engine keeps for its own work; 0 if the account ignores it."""
        return self._peak_bytes(self.tp) if self.memory == "vllm" else 0.0

    @property
    def usable_bytes(self) -> float:
        """Bytes of all chips that weights and KV cache may take together."""
        return self.chips * (self.card_bytes * self.kv_fraction - self.peak_bytes)

    @property
    def kv_blocks(self) -> int:
        """Number of KV blocks: the known one, or those that fit."""
        if self.known_kv_blocks is not None:
            return self.known_kv_blocks
        return max(0, int(self.kv_capacity_bytes // (self.kv_bytes_per_token * self.block_tokens)))

    @property
    def kv_tokens(self) -> int:
        """KV tokens that fit, in whole blocks."""
        return self.kv_blocks * self.block_tokens

    @property
    def bs_sat(self) -> int:
        """Compute-saturated decode batch size, from which every linear layer is compute-bound (OOCO
        3.4.2)."""
        return self.form.saturation_batch(self.shard)

    def _peak_bytes(self, tp: int) -> float:
        return profiled_peak_bytes(self.model, tp, tp * self.pp, *self.batch_limits, self.data_parallel)

    def _does_not_fit(self) -> str:
        needed, available = self.weight_bytes + self.kv_bytes_per_token * self.block_tokens, self.usable_bytes
        for tp in valid_tps(self.model):
            kept = self._peak_bytes(tp) if self.memory == "vllm" else 0.0
            if tp > self.tp and tp * self.pp * (self.card_bytes * self.kv_fraction - kept) >= needed:
                advice = f"tp={tp} would do"
                break
        else:
            advice = "no tensor-parallel degree of this model is enough; raise pp or kv_fraction, or take a larger chip"
        return (f"model '{self.model.name}' does not fit on {self.chips} x '{self.chip.name}' (tp={self.tp}, "
                f"pp={self.pp}): weights and one KV block take {needed / 1e9:.1f} GB, {available / 1e9:.1f} GB are "
                f"usable at kv_fraction={self.kv_fraction:g}, {int(needed - available):,} bytes are missing; {advice}")


def sparse_remark(chip: ChipSpec, model: ModelSpec, timing: str, moe_backend: str = "") -> str:
    """Returns a sentence if other kernels stand in for those of experts, latent attention or 8
    bits, else ''."""
    kernels = {"linear layers of 8 bits": ("gemm_fp8", model.weight_dtype_bytes == 1),
               "experts": (expert_kernel(model.expert_bytes, moe_backend), model.experts),
               "latent attention": ("latent_decode", model.kv_lora_rank)}
    own = chip.extended if timing in ("extended", "measured") else None
    missing = [words for words, (kernel, there) in kernels.items() if there and getattr(own, kernel, None) is None]
    if not missing:
        return ""
    why = f"not measured on chip '{chip.name}'" if own else f"none of timing={timing}"
    return (f"model '{model.name}': kernels of {' and '.join(missing)} are {why}, those of dense models stand in; they "
            "were measured on h100 and h200, of 16-bit experts on rtx_pro_6000 too (timing=extended; docs/validity.md "
            "says what either is off)")


def split_error(model: ModelSpec, tp: int, pp: int) -> str:
    """Returns why `model` cannot be split over `tp` and `pp`, or ''."""
    if model.heads % tp:
        return f"tp={tp} does not divide its {model.heads} attention heads"
    if model.kv_heads % tp and tp % model.kv_heads:
        return f"tp={tp} neither divides its {model.kv_heads} key/value heads nor is a multiple of them"
    if model.layers % pp:
        return f"pp={pp} does not divide its {model.layers} layers"
    return ""


def valid_tps(model: ModelSpec) -> list[int]:
    """Tensor-parallel degrees that the model's heads allow."""
    return [tp for tp in range(1, model.heads + 1) if not split_error(model, tp, 1)]


def default_timing(chips: Iterable[ChipSpec]) -> str:
    """The default timing form: `extended` if the kernels of all chips were measured, else the
    paper's."""
    return "extended" if all(chip.extended and not chip.like for chip in chips) else "ooco"


def timing_values(timing: Any) -> dict[str, Any]:
    """The fields of `Deployment` that `timing` gives: a mapping, a path, or a name (of a YAML in `conf/timing`, or of a
    form without one).

    Raises:
        UserError: an unknown name or key, or no `name`.
    """
    if not isinstance(timing, Mapping):
        name = str(timing)
        if not name.endswith((".yaml", ".yml")):
            timing_form(name)
        if name in resources.names("timing") or name.endswith((".yaml", ".yml")):
            timing = resources.load_yaml("timing", name)
        else:
            timing = {"name": name}
    values = dict(timing)
    check_keys("timing", values, _TIMING)
    if "name" not in values:
        raise UserError("timing.name is missing; expected the name of a timing form")
    return {"timing": str(values.pop("name")), **values}


def validity_warnings(deployment: Deployment, *, max_batch: float | None = None, max_tokens: float | None = None,
                      max_context: float | None = None) -> list[str]:
    """Returns sentences on what a run uses beyond the chip's measured ranges: sizes beyond its
    `validity` (decode batch in requests, tokens of an iteration and of a context; None leaves one
    out), an unmeasured tensor-parallel degree, and with `timing=measured` operators missing from
    the tables."""
    chip, valid = deployment.chip, deployment.chip.validity
    found = []
    if valid:
        sizes = (("a decode batch", max_batch, valid.max_batch, "requests"),
                 ("an iteration", max_tokens, valid.max_tokens, "tokens"),
                 ("a context", max_context, valid.max_context, "tokens"))
        found = [f"chip '{chip.name}': its parameters were fitted up to {name} of {limit:,} {unit}; this run reaches "
                 f"{size:,.0f}, where times are extrapolated"
                 for name, size, limit, unit in sizes if size is not None and limit is not None and size > limit]
        if valid.tp and deployment.tp not in valid.tp:
            degrees = ", ".join(str(tp) for tp in valid.tp)
            found.append(f"chip '{chip.name}': its parameters were fitted for tp={degrees}; tp={deployment.tp} is "
                         "extrapolated")
    if deployment.timing == "measured":
        from ooco_gym.perf.timing.measured import unmeasured  # imports the kernels, which other forms do not need

        missing = unmeasured(deployment.shard)
        roofline = "extended" if chip.extended else "ooco"
        if missing:
            found.append(f"chip '{chip.name}': not measured for model '{deployment.model.name}' at "
                         f"tp={deployment.tp}, so timing={roofline} stands in: {', '.join(missing)}")
    return found
