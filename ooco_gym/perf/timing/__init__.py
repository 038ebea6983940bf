"""Timing forms: an operator's time as a function of its shape.

A form is one file of this package: a module `<name>.py` with a class `Form` derived from
`TimingForm`, which `timing=<name>` selects by module name. This module has the interface of forms,
and their common operator shapes (OOCO, section 3.3.1).
"""

from __future__ import annotations

import importlib
import math
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, NamedTuple

import numpy as np

from ooco_gym.errors import unknown
from ooco_gym.perf.chip import ChipSpec
from ooco_gym.perf.kernels import Attention
from ooco_gym.perf.model import ModelSpec
from ooco_gym.rounding import steady

__all__ = ["EXPERT_KERNELS", "LATENT_LINEARS", "OF_ALL_RANKS", "ROUTER", "Attention", "Linear",
           "MeasuredAttention", "MixedKernel", "OperatorCost", "Phase", "Shard", "TimingForm", "collectives",
           "expert_kernel", "experts_of", "heads_of", "linears", "list_timings", "model_heads", "timing_form"]

Phase = Literal["prefill", "decode"]


@dataclass(frozen=True)
class Shard:
    """A model on its chips for timing forms: the chip, and how the model is spread over several of
    them."""

    chip: ChipSpec
    model: ModelSpec
    tp: int = 1
    pp: int = 1
    causal_factor: float = 1.0
    expert_parallel: bool = False
    """Whether each chip has whole experts, not a part of every one."""
    moe_backend: str = ""
    """Kernel of 4-bit experts, `` or `marlin`."""
    data_parallel: int = 1
    """Number of ranks like this one that share the experts."""

    @property
    def expert_chips(self) -> int:
        """Chips over which the experts of a layer are spread, of all ranks."""
        return self.tp * self.data_parallel


class OperatorCost(NamedTuple):
    """Cost of one operator, all layers together, for an array of sizes: its kind ("gemm",
    "attention", "elementwise", "communication" or "overhead"), the time, float64, and whether
    compute (not memory) is the bound; False if neither is."""

    name: str
    kind: str
    seconds: np.ndarray
    compute_bound: np.ndarray


class MeasuredAttention(NamedTuple):
    """Seconds of attention in all layers, interpolated between measurements; arguments are float64[n].

    Attributes:
        decode_s: of decode batches, from the number of requests and their mean context.
        prefill_s: of single prompts, from their new tokens and their tokens of context.
    """

    decode_s: Callable[[np.ndarray, np.ndarray], np.ndarray]
    prefill_s: Callable[[np.ndarray, np.ndarray], np.ndarray]


class MixedKernel(NamedTuple):
    """Chunks and decodes in one attention kernel, all layers together, in seconds.

    With `alone` the chunks' own time, `n` decodes of mean context `c` and longest context `l`, and
    prompts of `q` new tokens on average and at most `k` tokens of context, it takes

        launch_s + norm(max(alone - launch_s, 0) + decode_s(n, c) + chunk_s * n * q, critical_s * c)
        + skew_s * min(1, n / skew_batch) * max(l - max(c, k), 0)

    Attributes:
        decode_s: work of decodes by their number, float64[n], and mean context, float64[n]; None in
            a cost table, which has lines instead and may be pickled.
        launch_s: the common launch.
        chunk_s: seconds per decode and token of the chunk.
        critical_s: seconds per token of the mean context: the chain of one block.
        exponent: exponent of the norm.
        skew_s: seconds per token by which the longest context exceeds the mean and the chunks', as
            its block ends last.
        skew_batch: number of decodes from which that applies fully.
    """

    decode_s: Callable[[np.ndarray, np.ndarray], np.ndarray] | None
    launch_s: float = 0.0
    chunk_s: float = 0.0
    critical_s: float = 0.0
    exponent: float = 1.0
    skew_s: float = 0.0
    skew_batch: float = 1.0


class Linear(NamedTuple):
    """A linear layer on one chip: `tokens x d_in` times `d_in x d_out`, `repeats` times in each of
    `layers`; `weight_bytes` 0: as an activation."""

    name: str
    d_in: int
    d_out: int
    repeats: int = 1
    layers: int = 1
    weight_bytes: float = 0.0


ROUTER = "router"
OF_ALL_RANKS = ("experts", "exchange")
"""Operators whose time on each chip depends on the tokens of all data-parallel ranks."""
EXPERT_KERNELS = {"experts": 2.0, "experts_fp8": 1.0, "experts_fp4": 0.53125, "experts_marlin": 0.53125}
"""Bytes of a weight of experts, by kernel (`kernels.ExtendedParameters`)."""
LATENT_LINEARS = ("qkv_a", "q_b", "kv_b", "o")
"""Linear layers around latent attention."""


def linears(model: ModelSpec, tp: int) -> list[Linear]:
    """Returns the linear layers of a model on one of `tp` chips, without experts.

    Query, key and value are one operator. Key/value heads are replicated if `tp` exceeds them, as
    are projections to a latent; widths that `tp` does not divide are padded. A latent's keys and
    values are one layer, with equal FLOPs and weights whether computed (prefill) or absorbed by
    queries and outputs (decode).
    """
    q_width, rank = model.q_width // tp, model.kv_lora_rank
    kv_width = max(model.kv_heads // tp, 1) * model.head_dim
    found = [Linear("qkv", model.hidden, q_width + 2 * kv_width)]
    if rank:
        heads = model.heads // tp
        found = [Linear("qkv_a", model.hidden, model.q_lora_rank + rank + model.rope_head_dim),
                 Linear("q_b", model.q_lora_rank, heads * (model.head_dim + model.rope_head_dim)),
                 Linear("kv_b", rank, 2 * heads * model.head_dim)]
    found = [one._replace(layers=model.layers) for one in (*found, Linear("o", q_width, model.hidden))]
    for kind, width, layers in (("", model.intermediate, model.layers - model.expert_layers),
                                ("shared_", model.shared_intermediate, model.expert_layers)):
        if width and layers:
            inner = math.ceil(width / tp)
            gates = 2 if model.gated_mlp else 1
            found += [Linear(kind + ("gate_up" if gates == 2 else "up"), model.hidden, inner, gates, layers),
                      Linear(f"{kind}down", inner, model.hidden, 1, layers)]
    found = [one._replace(weight_bytes=model.weight_dtype_bytes) for one in found]
    return [*found, *([Linear(ROUTER, model.hidden, model.experts, 1, model.expert_layers)] if model.experts else [])]


def expert_kernel(weight_bytes: float, moe_backend: str = "") -> str:
    """Kernel of experts with weights of `weight_bytes` bytes, one of `EXPERT_KERNELS`."""
    if moe_backend and 0 < weight_bytes < 1:
        return f"experts_{moe_backend}"
    return "experts_fp8" if weight_bytes == 1 else "experts_fp4" if 0 < weight_bytes < 1 else "experts"


class Experts(NamedTuple):
    """Experts of a layer on one chip, for batches of tokens, float64[n]: their width, number of
    experts read, their tokens, and tokens of all experts of the layer."""

    width: int
    read: np.ndarray
    routed: np.ndarray
    chosen: np.ndarray


def experts_of(shard: Shard, tokens: np.ndarray) -> Experts:
    """Returns the experts of a layer on the shard's chip, the busiest one if chips have whole
    experts. `tokens` are one data-parallel rank's, and all ranks have equally many."""
    model, tokens = shard.model, shard.data_parallel * np.asarray(tokens, float)
    read, routed = model.routed(tokens, shard.expert_chips if shard.expert_parallel else 1)
    parts = 1 if shard.expert_parallel else shard.expert_chips
    return Experts(math.ceil(model.expert_intermediate / parts), read, routed, model.top_k * tokens)


def collectives(shard: Shard, tokens: np.ndarray) -> tuple[int, int, np.ndarray]:
    """Returns the all-reduces and all-to-alls of an iteration's layers, and the bytes that each
    chip sends in one of the latter.

    With whole experts per chip, tokens are exchanged between their owner and every chip with one of
    their experts (chosen uniformly), there and back; spreading and gathering the tokens and the
    attention's reduction together cost one all-reduce. Otherwise a layer has two all-reduces. With
    data-parallel ranks a layer's experts have neither (`TimingForm.exchange_s`).
    """
    model, tp = shard.model, shard.tp
    if shard.data_parallel > 1:
        return 2 * model.layers - model.expert_layers, 0, np.zeros(np.shape(tokens))
    exchanged = model.expert_layers if shard.expert_parallel else 0
    apart = (tp - 1.0) * float(steady(1.0 - (1.0 - 1.0 / tp) ** model.top_k))
    sent = model.dtype_bytes * model.hidden * np.asarray(tokens, float) / tp * apart
    return 2 * model.layers - exchanged, 2 * exchanged, sent


def heads_of(shard: Shard, phase: Phase) -> tuple[float, float, float, float]:
    """Attention on one chip: query heads, key/value heads, mean width of a key and a value, and
    bytes of a token of context. For a latent, prefill computes every head's keys and values, and
    decode reads one for both."""
    return model_heads(shard.model, shard.tp, phase)


def model_heads(model: ModelSpec, tp: int, phase: Phase) -> tuple[float, float, float, float]:
    """`heads_of` for one of `tp` chips."""
    heads, kv_heads, width = model.heads / tp, max(model.kv_heads / tp, 1.0), float(model.head_dim)
    if model.kv_lora_rank and phase == "prefill":
        kv_heads, width = heads, model.head_dim + model.rope_head_dim / 2
    elif model.kv_lora_rank:
        width = model.kv_lora_rank + model.rope_head_dim / 2
        return heads, 1.0, width, model.kv_bytes * (model.kv_lora_rank + model.rope_head_dim)
    return heads, kv_heads, width, 2.0 * model.kv_bytes * kv_heads * width


_LONG_ROWS = 4096
"""Rows of a prompt that is long compared with a sliding window."""


class TimingForm(ABC):
    """Times of an iteration's operators, in seconds, all layers together.

    Attention is an operator of the whole batch: its work and bytes are summed over requests before
    a norm of the roofs is taken, so it depends on only four sums (`Attention`).
    """

    def on(self, chip: ChipSpec) -> TimingForm:
        """The form for a chip: this one, unless it delegates to others."""
        return self

    @abstractmethod
    def dense(self, shard: Shard, tokens: np.ndarray) -> list[OperatorCost]:
        """Costs that depend only on the number of tokens: linear layers and communication.

        Args:
            shard: model and chips.
            tokens: batch sizes in tokens, float64[n].
        """

    @abstractmethod
    def head(self, shard: Shard, sequences: np.ndarray) -> list[OperatorCost]:
        """The LM head, computed for one token of each of `sequences` sequences, float64[n]."""

    @abstractmethod
    def attention(self, shard: Shard, phase: Phase) -> Attention:
        """Attention of a batch, from sums over its requests."""

    @abstractmethod
    def overhead_s(self, shard: Shard, phase: Phase) -> float:
        """Static overhead of one iteration (`O_p`, `O_d`)."""

    @abstractmethod
    def allreduce_s(self, shard: Shard, payload_bytes: np.ndarray) -> np.ndarray:
        """Seconds of one all-reduce of `payload_bytes` over the tensor-parallel chips."""

    def exchange_s(self, shard: Shard, tokens: np.ndarray) -> np.ndarray:
        """Seconds in which data-parallel ranks of `tokens` each, float64[n], gather all tokens
        before a layer's experts and scatter the sums after them, on every chip, as in vLLM's
        `allgather_reducescatter`, over all layers. The two move as much as an all-reduce of all
        tokens over all chips."""
        model = shard.model
        payload = model.dtype_bytes * model.hidden * shard.data_parallel * np.asarray(tokens, float)
        everyone = replace(shard, tp=shard.expert_chips, data_parallel=1)
        return model.expert_layers * self.allreduce_s(everyone, payload)

    @abstractmethod
    def saturation_batch(self, shard: Shard) -> int:
        """Smallest batch, in tokens, at which every linear layer is compute-bound (`bs_sat`)."""

    def layered_attention(self, shard: Shard, phase: Phase) -> tuple[Attention, Attention | None]:
        """Returns `attention` of full layers, and of sliding-window layers, whose contexts are cut
        to the window. In prefill the first includes the second: per row its time in a long prompt,
        without the chain of a whole context."""
        model = shard.model
        if not model.window_layers:
            return self.attention(shard, phase), None
        plain = replace(model, window=0, window_layers=0, experts=0, dense_layers=0, intermediate=model.hidden)
        full, sliding = (self.attention(replace(shard, model=replace(plain, layers=layers)), phase)
                         for layers in (model.layers - model.window_layers, model.window_layers))
        if phase == "decode":
            return full, sliding
        sums = _LONG_ROWS * np.array([model.window, 1.0, 1.0, 1.0 / _LONG_ROWS])
        each = (float(sliding._replace(critical_s=0.0).seconds(*sums)) - sliding.launch_s) / _LONG_ROWS
        return full._replace(launch_s=full.launch_s + sliding.launch_s,
                             linear_s=full.linear_s + np.array([0.0, each, 0.0, 0.0])), None

    def mixed_kernel(self, shard: Shard) -> MixedKernel | None:
        """How chunks and decodes share a kernel; None: their times add up."""
        return None

    def decode_skew(self, shard: Shard) -> tuple[float, float]:
        """Seconds of a decode step without chunks per token by which the longest context exceeds
        the mean, and the batch from which that applies."""
        return 0.0, 0.0

    def measured_attention(self, shard: Shard) -> MeasuredAttention | None:
        """Measured attention, which replaces `attention` if not None."""
        return None


def list_timings() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


@cache
def timing_form(name: str) -> TimingForm:
    """Returns the timing form called `name`.

    Raises:
        UserError: there is no such form.
    """
    if name not in list_timings():
        raise unknown("timing", name, list_timings())
    return importlib.import_module(f"{__name__}.{name}").Form()
