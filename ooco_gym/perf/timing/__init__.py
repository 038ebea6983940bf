"""Timing forms: how long an operator takes, as a function of its shape.

A form is one file of this package: a module `<name>.py` with a class `Form` derived from `TimingForm`. It is found by
its module's name, which is what `timing=<name>` selects; nothing else has to be touched. This module has what every
form answers, and the operator shapes that they share (OOCO, section 3.3.1).
"""

from __future__ import annotations

import importlib
import math
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

import numpy as np

from ooco_gym.errors import unknown
from ooco_gym.perf.chip import ChipSpec
from ooco_gym.perf.kernels import Attention
from ooco_gym.perf.model import ModelSpec

__all__ = ["Attention", "MeasuredAttention", "MixedKernel", "OperatorCost", "Phase", "Shard", "TimingForm", "linears",
           "list_timings", "timing_form"]

Phase = Literal["prefill", "decode"]


@dataclass(frozen=True)
class Shard:
    """What a timing form needs to know: the model, the chip, and how the one is spread over several of the other."""

    chip: ChipSpec
    model: ModelSpec
    tp: int = 1
    pp: int = 1
    causal_factor: float = 1.0


class OperatorCost(NamedTuple):
    """Cost of one operator by name, all layers together, for an array of sizes: its kind ("gemm", "attention",
    "elementwise", "communication" or "overhead"), the time taken, float64, and whether compute (rather than memory)
    decides; False throughout where neither does."""

    name: str
    kind: str
    seconds: np.ndarray
    compute_bound: np.ndarray


class MeasuredAttention(NamedTuple):
    """Attention looked up rather than computed, all layers together, in seconds: of batches of so many requests at mean
    contexts, and of single prompts with `q` new tokens and `kv` tokens of context, float64[n] each."""

    decode_s: Callable[[np.ndarray, np.ndarray], np.ndarray]
    prefill_s: Callable[[np.ndarray, np.ndarray], np.ndarray]


class MixedKernel(NamedTuple):
    """Chunks and decodes in one attention kernel, all layers together, in seconds.

    With `alone` the chunks' own time, `n` decodes of mean context `c` and longest context `l`, and prompts of `q` new
    tokens in the mean and `k` tokens of context at most, it takes

        launch_s + norm(max(alone - launch_s, 0) + decode_s(n, c) + chunk_s * n * q, critical_s * c)
        + skew_s * min(1, n / skew_batch) * max(l - max(c, k), 0)

    Attributes:
        decode_s: work of so many decodes, float64[n], at mean contexts, float64[n]; None in a cost table, which has it
            as lines and may go to other processes.
        launch_s: what both share.
        chunk_s: for each decode and token of the chunk.
        critical_s: for each token of the mean context: the chain of one block.
        exponent: of the norm.
        skew_s: for each token that the longest context exceeds the mean and the chunks': its block ends last.
        skew_batch: decodes from which that counts whole.
    """

    decode_s: Callable[[np.ndarray, np.ndarray], np.ndarray] | None
    launch_s: float = 0.0
    chunk_s: float = 0.0
    critical_s: float = 0.0
    exponent: float = 1.0
    skew_s: float = 0.0
    skew_batch: float = 1.0


class Linear(NamedTuple):
    """A linear layer as one chip sees it: `tokens x d_in` times `d_in x d_out`, done `repeats` times a layer."""

    name: str
    d_in: int
    d_out: int
    repeats: int = 1


def linears(model: ModelSpec, tp: int) -> list[Linear]:
    """The linear layers of one transformer layer on one of `tp` chips.

    Query, key and value are one operator. Where `tp` exceeds the key/value heads, these are replicated; widths that
    `tp` does not divide are padded.
    """
    q_width = model.q_width // tp
    kv_width = max(model.kv_heads // tp, 1) * model.head_dim
    intermediate = math.ceil(model.intermediate / tp)
    return [
        Linear("qkv", model.hidden, q_width + 2 * kv_width),
        Linear("o", q_width, model.hidden),
        Linear("gate_up" if model.gated_mlp else "up", model.hidden, intermediate, 2 if model.gated_mlp else 1),
        Linear("down", intermediate, model.hidden),
    ]


class TimingForm(ABC):
    """How long the operators of an iteration take. All times in seconds, all layers together.

    Attention is an operator of the whole batch: its work and bytes are summed over the requests before a norm of the
    roofs is taken, so it depends on four sums only (`Attention`).
    """

    def on(self, chip: ChipSpec) -> TimingForm:
        """The form that times a chip: this one, unless it stands for others."""
        return self

    @abstractmethod
    def dense(self, shard: Shard, tokens: np.ndarray) -> list[OperatorCost]:
        """Everything that depends on the number of tokens only: linear layers and communication.

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
    def saturation_batch(self, shard: Shard) -> int:
        """Smallest batch, in tokens, at which every linear layer is bound by compute (`bs_sat`)."""

    def mixed_kernel(self, shard: Shard) -> MixedKernel | None:
        """How chunks and decodes share a kernel; None: they take the sum of their times."""
        return None

    def decode_skew(self, shard: Shard) -> tuple[float, float]:
        """Seconds of a decode step for each token that the longest context exceeds the mean, and the batch from which
        that counts; where no chunk runs beside."""
        return 0.0, 0.0

    def measured_attention(self, shard: Shard) -> MeasuredAttention | None:
        """Attention as measured; where given, it stands in for `attention`."""
        return None


def list_timings() -> list[str]:
    """Names of all timing forms."""
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
