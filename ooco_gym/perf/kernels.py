"""Kernels of measured GPUs: the parameters of `timing=extended`, and each kernel's time.

Every operator is a launch plus a p-norm of its roofs, `(a^p + b^p)^(1/p)`: neither roof is reached
near the ridge. Each function names its other differences from the roofline. Times are in seconds,
sizes in bytes, for one operator of one layer on one chip; arrays are broadcast. `ooco-gym
calibrate` fits the parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike

from ooco_gym.perf.latency import attention_of, empty_tables, put_attention
from ooco_gym.rounding import steady
from ooco_gym.schema import Model, Positive, Range, at, kinds

TILES = ((64, 64), (64, 128), (128, 64), (128, 128), (128, 256), (256, 128))
"""Candidate tiles of a GEMM: rows and columns of output that one block computes."""
TALL_ROWS = 2048
"""Rows from which `GemmParameters.tall` applies."""

WORK_EXPONENT, CACHE_EXPONENT = 6.0, 4.0
"""Exponents of the norm of a decode's compute and memory beside a chunk, and of the loss of cache
hits when the cache is too small."""
MIXED_CHAINS = 2.6
"""Chains of a single block per token beyond the mean context, beside a chunk, if skew was not
measured: the value of an RTX 4090 and an RTX PRO 6000 (vLLM 0.19, FlashAttention)."""
EVENLY = 0.5
"""Share of the two-length skew in a server's batch, whose contexts are spread between the mean and
the longest, so other work fills part of the longest block's tail. Batches of a served trace put it
well below 1; the value was chosen on the recorded RTX 4090 run (validity)."""

HALF_BLOCK = 0.5 / math.log(2.0)
"""Mean ratio of half a block of rows to the mean tokens of an expert, if blocks are the next power
of two."""

OrEndless = Annotated[float, Range(0, endless=True)]
AtLeastOne = Annotated[float, Range(1, endless=True)]


class _Parameters(Model):
    """Parameters of a kernel, in a chip's YAML under `extended`."""

    def __post_init__(self) -> None:
        """Those of a fit are not checked; a chip's are, when it is made."""

    def to_mapping(self) -> dict[str, float]:
        """The parameters by field, for a YAML file."""
        return {key: float(value) for key, value in vars(self).items()}


@dataclass(frozen=True)
class GemmParameters(_Parameters):
    """A linear layer: `gemm_s`."""

    flops_per_s: Positive
    memory_bytes_per_s: Positive
    launch_s: OrEndless = 0.0
    exponent: AtLeastOne = 8.0
    """Exponent of the norm, at least 1."""
    depth: OrEndless = 0.0
    """Inner width at which a block's start and end cost as much as its work: compute grows by `1 +
    depth / k`."""
    waste: OrEndless = 0.0
    """Power of the growth by whole waves of blocks; 0: ignored."""
    padding: OrEndless = 0.0
    """Power of the growth by whole tiles; 0: ignored."""
    edge: OrEndless = 0.0
    """Cost of a tile's edge in rows or columns: compute grows by `1 + edge / rows + edge / columns`
    of the tile, so small tiles, which waste less, are less efficient."""
    tall: OrEndless = 0.0
    """Growth of compute per doubling of the rows beyond 2048 (cache misses, falling clocks)."""
    units: AtLeastOne = 108.0
    """Blocks that run at once (streaming multiprocessors)."""
    cast: OrEndless = 0.0
    """Moves of a byte per input element outside the norm, for rewriting activations in 8 bits."""


@dataclass(frozen=True)
class ExpertParameters(_Parameters):
    """The experts of a layer, with routing and combining: `experts_s`."""

    flops_per_s: Positive
    memory_bytes_per_s: Positive
    launch_s: OrEndless = 0.0
    exponent: AtLeastOne = 8.0
    block_rows: OrEndless = 0.0
    """Least rows that each expert computes beyond its tokens, as blocks are filled up."""
    block_most: OrEndless = 0.0
    """Most such rows: blocks grow with an expert's tokens, and the last one is half full on
    average; 0: always `block_rows`."""
    gathers: OrEndless = 0.0
    """Moves of the hidden state of each choice beyond the roofs."""
    inner: OrEndless = 0.0
    """Moves of the inner activations of each choice beyond the roofs."""
    depth: OrEndless = 0.0
    """Inner width at which a block's start and end cost as much as its work, as in a linear layer."""


@dataclass(frozen=True)
class PrefillAttentionParameters(_Parameters):
    """Attention of new tokens to all earlier ones: `prefill_attention`."""

    flops_per_s: Positive
    memory_bytes_per_s: Positive
    launch_s: OrEndless = 0.0
    exponent: AtLeastOne = 8.0
    row_tokens: OrEndless = 0.0
    """Cost of each row in tokens of context, beyond those attended to."""
    critical_flops_per_s: OrEndless = 0.0
    """Rate of a single block of rows, which goes through the whole context alone; 0: ignored."""
    reread: OrEndless = 0.0
    """Reads of keys and values beyond the roofs."""
    tile: AtLeastOne = 128.0
    """Rows are padded to a multiple of this."""
    causal: OrEndless = 0.5
    """Share of the new tokens that a row does not attend to: 0.5 is the causal triangle."""
    packed: OrEndless = 0.0
    """1: query heads that share a key/value head lie in one tile, with one head per row; 0: no."""
    softmax_width: OrEndless = 0.0
    """Cost of a score's softmax in elements of the head."""
    store_s: OrEndless = 0.0
    """Time to write a new token's key and value, per element of the key, outside the norm."""
    store_width: OrEndless = 512.0
    """Elements of the key, the width of a block, from which `store_s` stops growing."""
    split_rows: OrEndless = 0.0
    """Rows of all heads that fill the chip once. With fewer, earlier context is split among blocks,
    which shortens its chain and its rereads (`reread`) in proportion; 0: never split."""


@dataclass(frozen=True)
class DecodeAttentionParameters(_Parameters):
    """Attention of one new token per request: `decode_attention`."""

    flops_per_s: Positive
    memory_bytes_per_s: Positive
    launch_s: OrEndless = 0.0
    exponent: AtLeastOne = 8.0
    group_rows: AtLeastOne = 1.0
    """Query heads that share a key/value head are padded to this many rows."""
    request_head_s: OrEndless = 0.0
    """Third roof: time per request and key/value head of the chip, at any context."""
    critical_s_per_token: OrEndless = 0.0
    """Fourth roof: time per token of the mean context, the longest chain of one request."""
    lone_launch_s: OrEndless = 0.0
    """`launch_s` if no heads share keys and values (some kernels differ); 0: the same."""
    lone_critical_s_per_token: OrEndless = 0.0
    """`critical_s_per_token` if no heads share keys and values; 0: the same."""


@dataclass(frozen=True)
class MixedAttentionParameters(_Parameters):
    """Chunks of prompts and decodes in one kernel: `mixed_attention`."""

    head_s: Positive
    """Time per query head of a decode to start and end a block of rows."""
    head_s_per_token: Positive
    """Time per query head of a decode and token of its context, as a whole tile is computed for one
    row."""
    memory_bytes_per_s: Positive
    """Read rate of keys and values."""
    cache_bytes: OrEndless = 0.0
    """Size of one head's keys and values, over all decodes, from which query heads that share it
    read them again instead of from the cache; 0: always cached."""
    head_s_per_chunk_token: OrEndless = 0.0
    """Time per query head of a decode and new token of the chunk: blocks are laid out for the
    longest query, so a decode has as many as the chunk, all but one empty."""
    critical_s_per_token: OrEndless = 0.0
    """Time per token of the mean context: the chain of a single block."""
    exponent: AtLeastOne = 2.0
    """Exponent of the norm of that chain and all the work."""
    launch_s: OrEndless = 0.0
    """Fixed time of the kernel, which the chunk's own time also includes."""


@dataclass(frozen=True)
class SkewParameters(_Parameters):
    """Cost of unequal context lengths: the block of the longest one ends after the others."""

    decode_s_per_token: OrEndless = 0.0
    """Time per token by which a decode step's longest context exceeds the mean, in batches of two
    lengths."""
    decode_rows: OrEndless = 0.0
    """Requests times key/value heads of the chip from which that applies; below, contexts are split
    over blocks."""
    mixed_s_per_token: OrEndless = 0.0
    """Time per token by which it exceeds the mean and every chunk's context, in a kernel shared
    with chunks, which does not split contexts."""

    @classmethod
    def from_chain(cls, mixed: MixedAttentionParameters) -> SkewParameters:
        """Returns skew for unmeasured chips: beside a chunk, the measured cards' multiple of a
        single block's chain; decodes alone are assumed balanced, as kernels may split their
        contexts."""
        return cls(mixed_s_per_token=MIXED_CHAINS * mixed.critical_s_per_token)


@dataclass(frozen=True)
class AllReduceParameters(_Parameters):
    """An all-reduce over the chips of an instance: `allreduce_s`."""

    bytes_per_s: Positive
    latency_s: OrEndless = 0.0
    rank_latency_s: OrEndless = 0.0
    """Time per chip beyond the first."""
    exponent: AtLeastOne = 1.0
    """Exponent of the norm of latency and transfer; 1 adds them."""
    ramp_bytes: OrEndless = 0.0
    """Moving `x` bytes takes as long as `x + sqrt(x * ramp_bytes)` at full rate, as links fill
    slowly."""
    direct_bytes_per_s: OrEndless = 0.0
    """Rate at which a chip reads the whole payload of all others, faster for small ones; 0: not
    available."""
    ring_latency_s: OrEndless = 0.0
    """Latency of the ring beyond the direct way's."""
    switch_bytes: OrEndless = 0.0
    """Payload from which another kernel is used; 0: none."""
    switched_bytes_per_s: OrEndless = 0.0
    """Rate of that kernel; 0: the same."""
    switched_latency_s: OrEndless = 0.0
    """Latency of that kernel, which has no ramp and no latency per rank."""


ELEMENTWISE = {"norm": "norm", "final_norm": "norm", "embedding": "embedding", "activation": "activation",
               "rotary": "rotary", "qk_norm": "qk_norm"}
"""Kind of each element-wise operator; a kind may have its own launch and rate."""


@dataclass(frozen=True)
class ElementwiseParameters(_Parameters):
    """Norms, activations, rotary positions, embeddings: `elementwise_s`. A kind without its own
    launch and rate takes the common ones."""

    memory_bytes_per_s: Positive
    """Common rate; data that fits the cache moves at the cache's rate, above the memory's."""
    launch_s: OrEndless = 0.0
    exponent: AtLeastOne = 1.0
    cache_bytes: OrEndless = 0.0
    """Bytes of one operator beyond which `spilled_bytes_per_s` applies, as they fall out of the
    cache."""
    spilled_bytes_per_s: OrEndless = 0.0
    """Each byte beyond takes `1 / spilled_bytes_per_s` longer; 0: ignored."""
    norm_launch_s: OrEndless = 0.0
    norm_bytes_per_s: OrEndless = 0.0
    embedding_launch_s: OrEndless = 0.0
    embedding_bytes_per_s: OrEndless = 0.0
    activation_launch_s: OrEndless = 0.0
    activation_bytes_per_s: OrEndless = 0.0
    rotary_launch_s: OrEndless = 0.0
    rotary_bytes_per_s: OrEndless = 0.0
    qk_norm_launch_s: OrEndless = 0.0
    qk_norm_bytes_per_s: OrEndless = 0.0

    def of(self, name: str) -> tuple[float, float]:
        """Launch and rate of an operator by name, or the common ones."""
        kind = ELEMENTWISE.get(name, "")
        own = getattr(self, f"{kind}_bytes_per_s") if kind else 0.0
        return (getattr(self, f"{kind}_launch_s"), own) if own else (self.launch_s, self.memory_bytes_per_s)


@dataclass(frozen=True)
class OverheadParameters(_Parameters):
    """Host time that the engine adds to the kernels of an iteration."""

    prefill_s: OrEndless = 0.0
    decode_s: OrEndless = 0.0
    sequence_s: OrEndless = 0.0
    """Time per sequence that gets a token (sampling, and the engine's work for it)."""


@dataclass(frozen=True)
class ExtendedParameters(Model):
    """All kernels of a chip; None: not measured, so the roofline (`timing=ooco`) stands in."""

    gemm: GemmParameters | None = None
    prefill_attention: PrefillAttentionParameters | None = None
    decode_attention: DecodeAttentionParameters | None = None
    allreduce: AllReduceParameters | None = None
    elementwise: ElementwiseParameters | None = None
    overhead: OverheadParameters | None = None
    mixed_attention: MixedAttentionParameters | None = None
    """None: times of chunks and decodes add up."""
    skew: SkewParameters | None = None
    """None: unequal contexts take the time of their mean."""
    gemm_fp8: GemmParameters | None = None
    """Linear layers of 8 bits; None: 16-bit ones, by the ratio of the datasheet's FLOP/s."""
    experts: ExpertParameters | None = None
    """None: as a linear layer."""
    experts_fp8: ExpertParameters | None = None
    experts_fp4: ExpertParameters | None = None
    """Experts of fewer bits, multiplied in 16 bits."""
    experts_marlin: ExpertParameters | None = None
    """The same with Marlin instead of Triton."""
    latent_prefill: PrefillAttentionParameters | None = None
    """Multi-head latent attention, with the work between its linear layers; None: as other
    attention."""
    latent_decode: DecodeAttentionParameters | None = None

    def __post_init__(self) -> None:
        """Parts of a fit are not checked; a chip's are, when it is made."""

    def check_kernels(self, where: str) -> None:
        self.check_fields(where)
        for name, kernel in vars(self).items():
            if kernel is not None:
                kernel.check_fields(at(where, name))

    def to_mapping(self) -> dict[str, dict[str, float]]:
        """The parameters by kernel and field, without missing kernels."""
        return {name: value.to_mapping() for name, value in vars(self).items() if value is not None}


KERNELS: dict[str, type[_Parameters]] = {name: get_args(kind)[0] for name, kind in kinds(ExtendedParameters).items()}


class Attention(NamedTuple):
    """Seconds of one iteration's attention, all layers together, from sums over the batch's
    requests, in O(1).

    A request with `q` new tokens and `kv` tokens of context (including the new ones) has `rows =
    ceil(q / tile) * tile` rows and `work = rows * (kv - causal * q)`. With the features `f = (sum
    work, sum rows, sum kv, requests)`, the batch takes

        launch_s + linear_s @ f + (sum_j (roofs_s[j] @ f) ** exponent + (critical_s * sum kv / requests) ** exponent)
        ** (1 / exponent)

    and an exponent of infinity takes the largest of the terms: the roofline. In decode every
    request has one row (`tile` and `causal` do not apply: `work` is `kv`). If contexts are split,
    `critical_s` and `linear_s[2]` count only the share `min(1, split * sum rows)` of the context
    before the new rows.

    Attributes:
        roofs_s: float64[r, 4], seconds per unit of the features; usually a compute and a memory
            roof.
        exponent: exponent of the norm, at least 1, or infinity.
        launch_s: seconds per iteration with such attention.
        linear_s: float64[4], added outside the norm.
        critical_s: seconds per token of the mean context: the longest chain of one block of rows.
        split: share of the chip that a row fills, if contexts of few rows are split among blocks;
            0: never.
        tile: rows are padded to a multiple of this.
        causal: mean share of the new tokens that a row does not attend to: 0 is the whole square,
            0.5 the causal triangle.
    """

    roofs_s: np.ndarray
    exponent: float = np.inf
    launch_s: float = 0.0
    linear_s: np.ndarray = np.zeros(4)
    critical_s: float = 0.0
    split: float = 0.0
    tile: int = 1
    causal: float = 0.0

    def of_prompts(self, q: np.ndarray, kv: np.ndarray) -> tuple[np.ndarray, ...]:
        """Returns the four features of each prompt, from its new tokens and its context, float64[n]
        each."""
        q, kv = np.asarray(q, dtype=np.float64), np.asarray(kv, dtype=np.float64)
        rows = np.ceil(q / self.tile) * self.tile
        return rows * (kv - self.causal * q), rows, kv, np.ones(q.shape)

    def features(self, q: np.ndarray, kv: np.ndarray) -> np.ndarray:
        """Returns the four sums of one prefill batch: `q` new tokens and `kv` context of each
        prompt, both [n].

        Returns:
            float64[4].
        """
        return np.array([part.sum() for part in self.of_prompts(q, kv)])

    def seconds(self, work: np.ndarray, rows: np.ndarray, context: np.ndarray, requests: np.ndarray) -> np.ndarray:
        """Returns seconds from the four sums, elementwise for arrays of batches."""
        sums = np.broadcast_arrays(*(np.asarray(one, np.float64) for one in (work, rows, context, requests)))
        tables, found = empty_tables(0, 0), np.empty(sums[0].size)
        put_attention(tables.tables[0], self, 1.0)
        attention_of(tables, *(one.flatten() for one in sums), found)
        return found.reshape(sums[0].shape)


def gemm_s(p: GemmParameters, m: ArrayLike, k: ArrayLike, n: ArrayLike, dtype_bytes: float = 2.0,
           weight_bytes: float = 0.0) -> np.ndarray:
    """Seconds of `m x k` times `k x n` (`m` tokens, a layer from `k` to `n`).

    `launch + norm(2 m k n / F * quantisation * (1 + depth / k) * (1 + tall * log2(m / 2048)), bytes / M)`.
    """
    return gemm_launch_s(p, m, k) + norm(p.exponent, *gemm_roofs_s(p, m, k, n, dtype_bytes, weight_bytes))


def gemm_launch_s(p: GemmParameters, m: ArrayLike, k: ArrayLike) -> np.ndarray:
    """Seconds outside the norm: the launch, and rewriting activations in 8 bits."""
    return p.launch_s + p.cast * _array(m) * _array(k) / p.memory_bytes_per_s


def gemm_roofs_s(p: GemmParameters, m: ArrayLike, k: ArrayLike, n: ArrayLike, dtype_bytes: float = 2.0,
                 weight_bytes: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Seconds at the compute roof and at the memory roof; `weight_bytes` of 0: as an activation."""
    rows, inner, columns = _array(m), _array(k), _array(n)
    tall = 1.0 + p.tall * steady(np.log2(np.maximum(rows / TALL_ROWS, 1.0)))
    growth = quantisation(p, rows, columns) * (1.0 + p.depth / inner) * tall
    compute = 2.0 * rows * inner * columns / p.flops_per_s * growth
    weights = (weight_bytes or dtype_bytes) / dtype_bytes * (inner * columns)
    memory = dtype_bytes * (rows * inner + weights + rows * columns) / p.memory_bytes_per_s
    return compute, np.broadcast_to(memory, compute.shape)


def experts_s(p: ExpertParameters, hidden: ArrayLike, width: ArrayLike, read: ArrayLike, routed: ArrayLike,
              chosen: ArrayLike, weight_bytes: float = 2.0, dtype_bytes: float = 2.0,
              matrices: ArrayLike = 3) -> np.ndarray:
    """Seconds of a layer's experts on one chip: `read` experts get `routed` of all experts'
    `chosen` tokens.

    Each has `matrices` matrices between `hidden` and `width`. Weights that are read move once, and
    hidden states in, out and between matrices; `launch_s` covers all kernels.
    """
    moved = p.gathers * _array(hidden) + p.inner * _array(width)
    return p.launch_s + _array(chosen) * moved * dtype_bytes / p.memory_bytes_per_s + norm(
        p.exponent, *experts_roofs_s(p, hidden, width, read, routed, weight_bytes, dtype_bytes, matrices))


def experts_roofs_s(p: ExpertParameters, hidden: ArrayLike, width: ArrayLike, read: ArrayLike, routed: ArrayLike,
                    weight_bytes: float, dtype_bytes: float, matrices: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Seconds at the compute roof and at the memory roof."""
    outer, inner, touched, rows, matrices = (_array(one) for one in (hidden, width, read, routed, matrices))
    widths = (matrices - 1.0) * (outer + p.depth) * inner + outer * (inner + p.depth)
    filled = p.block_rows * touched
    if p.block_most:
        filled = np.clip(HALF_BLOCK * rows, filled, p.block_most * touched)
    compute = 2.0 * widths * (rows + filled) / p.flops_per_s
    moved = matrices * outer * inner * weight_bytes * touched + dtype_bytes * rows * (2.0 * outer + matrices * inner)
    return compute, moved / p.memory_bytes_per_s


def quantisation(p: GemmParameters, m: ArrayLike, n: ArrayLike) -> np.ndarray:
    """Growth of a GEMM's compute by tiles and waves, for the best tile.

    The output is padded to whole tiles (`padding`), tiles to whole waves of `units` (`waste`), and
    a tile's edges cost extra (`edge`).
    """
    rows, columns = np.maximum(_array(m), 1.0), np.maximum(_array(n), 1.0)
    best = np.full(np.broadcast_shapes(rows.shape, columns.shape), np.inf)
    for height, width in TILES:
        tiles = np.ceil(rows / height) * np.ceil(columns / width)
        padded = tiles * height * width / (rows * columns)
        waves = np.ceil(tiles / p.units) * p.units / tiles
        cost = steady(padded**p.padding) * steady(waves**p.waste) * (1.0 + p.edge / height + p.edge / width)
        best = np.minimum(best, cost)
    return best


def prefill_attention(p: PrefillAttentionParameters, heads: float, kv_heads: float, head_dim: float,
                      dtype_bytes: float = 2.0, kv_bytes: float = 0.0) -> Attention:
    """Prefill attention of one layer on one chip with `heads` query and `kv_heads` key/value heads.

    Rows are padded to tiles; each attends to its causal part of the context plus `row_tokens`.
    Queries, outputs, keys and values move once. A single block of rows goes through the whole
    context (`critical`), or its share of a split one. New keys and values are written to the cache
    (`store`). `kv_bytes`: bytes per token of context; 0: from the heads.
    """
    q_bytes = 2.0 * dtype_bytes * heads * head_dim
    kv_bytes = kv_bytes or 2.0 * dtype_bytes * kv_heads * head_dim
    width = head_dim + p.softmax_width
    compute = 4.0 * heads * width / p.flops_per_s * np.array([1.0, p.row_tokens, 0.0, 0.0])
    memory = np.array([0.0, q_bytes, kv_bytes, 0.0]) / p.memory_bytes_per_s
    block = 4.0 * p.tile * width / p.critical_flops_per_s if p.critical_flops_per_s else 0.0
    store = p.store_s * min(kv_heads * head_dim, p.store_width)
    outside = np.array([0.0, store, p.reread * kv_bytes / p.memory_bytes_per_s, 0.0])
    tile = round(p.tile * kv_heads / heads) if p.packed else round(p.tile)
    split = heads / p.split_rows if p.split_rows else 0.0
    return Attention(np.stack([compute, memory]), p.exponent, p.launch_s, outside, block, split, max(tile, 1), p.causal)


def decode_attention(p: DecodeAttentionParameters, heads: float, kv_heads: float, head_dim: float,
                     dtype_bytes: float = 2.0, kv_bytes: float = 0.0) -> Attention:
    """Decode attention of one layer on one chip: one row per request, query heads padded to
    `group_rows` per group."""
    q_bytes = 2.0 * dtype_bytes * heads * head_dim
    kv_bytes = kv_bytes or 2.0 * dtype_bytes * kv_heads * head_dim
    compute = [4.0 * max(heads, kv_heads * p.group_rows) * head_dim / p.flops_per_s, 0.0, 0.0, 0.0]
    memory = [0.0, q_bytes / p.memory_bytes_per_s, kv_bytes / p.memory_bytes_per_s, 0.0]
    requests = [0.0, 0.0, 0.0, p.request_head_s * kv_heads]
    lone = heads == kv_heads
    launch = p.lone_launch_s if lone and p.lone_launch_s else p.launch_s
    critical = p.lone_critical_s_per_token if lone and p.lone_critical_s_per_token else p.critical_s_per_token
    return Attention(np.array([compute, memory, requests]), p.exponent, launch, critical_s=critical)


def mixed_work_s(p: MixedAttentionParameters, heads: float, kv_heads: float, head_dim: float, batch: ArrayLike,
                 context: ArrayLike, dtype_bytes: float = 2.0) -> np.ndarray:
    """Seconds of work that decodes of a mean context add to a kernel with a chunk, one layer on one
    chip.

    Every query head of a decode fills a tile of rows, `head_s + head_s_per_token * context`. Keys
    and values are read once per group of query heads, or by each of these if they do not stay in
    the cache.
    """
    requests, tokens = np.broadcast_arrays(_array(batch), _array(context))
    compute = requests * heads * (p.head_s + p.head_s_per_token * tokens)
    head_bytes = 2.0 * dtype_bytes * head_dim * requests * tokens
    again = 0.0
    if p.cache_bytes:
        again = 1.0 / (1.0 + steady((p.cache_bytes / np.maximum(head_bytes, 1.0)) ** CACHE_EXPONENT))
    memory = kv_heads * head_bytes * (1.0 + (heads / kv_heads - 1.0) * again) / p.memory_bytes_per_s
    return norm(WORK_EXPONENT, compute, memory)


def mixed_attention_s(p: MixedAttentionParameters, alone_s: ArrayLike, work_s: ArrayLike, per_chunk_s: ArrayLike,
                      context: ArrayLike, layers: float = 1.0) -> np.ndarray:
    """Seconds of a kernel with chunks and decodes, for `layers` layers, from the chunks' `alone_s`,
    the decodes' `mixed_work_s`, empty blocks (`head_s_per_chunk_token` times heads, decodes and the
    chunk's tokens), and the decodes' mean context."""
    launch = layers * p.launch_s
    inside = np.maximum(_array(alone_s) - launch, 0.0) + _array(work_s) + _array(per_chunk_s)
    return launch + norm(p.exponent, inside, layers * p.critical_s_per_token * _array(context))


def allreduce_s(p: AllReduceParameters, payload_bytes: ArrayLike, n: ArrayLike) -> np.ndarray:
    """Seconds of an all-reduce of `payload_bytes` over `n` chips (0 on one).

    A ring moves `2 (n - 1) / n` of the payload over each link; direct reading moves `n - 1`
    payloads in one step. The faster of the two counts.
    """
    ranks, payload = _array(n), _array(payload_bytes)
    moved = 2.0 * (ranks - 1.0) / ranks * payload
    transfer = (moved + np.sqrt(moved * p.ramp_bytes)) / p.bytes_per_s
    latency = p.latency_s + (ranks - 1.0) * p.rank_latency_s
    seconds = norm(p.exponent, latency + p.ring_latency_s, transfer)
    if p.direct_bytes_per_s:
        seconds = np.minimum(seconds, norm(p.exponent, latency, (ranks - 1.0) * payload / p.direct_bytes_per_s))
    if p.switch_bytes:
        other = p.switched_latency_s + moved / (p.switched_bytes_per_s or p.bytes_per_s)
        seconds = np.where(payload >= p.switch_bytes, other, seconds)
    return np.where(ranks > 1, seconds, 0.0)


def elementwise_s(p: ElementwiseParameters, moved_bytes: ArrayLike, name: str = "") -> np.ndarray:
    """Seconds of an element-wise operator, `name`, that reads and writes `moved_bytes` in total."""
    moved = _array(moved_bytes)
    launch, rate = p.of(name)
    transfer = moved / rate
    if p.spilled_bytes_per_s:
        transfer = transfer + np.maximum(moved - p.cache_bytes, 0.0) / p.spilled_bytes_per_s
    return norm(p.exponent, launch, transfer)


def norm(exponent: float, *terms: ArrayLike) -> np.ndarray:
    """Returns `(sum of terms^exponent)^(1 / exponent)` of non-negative terms, without overflow;
    infinity: the maximum."""
    values = np.stack(np.broadcast_arrays(*(_array(term) for term in terms)))
    largest = values.max(axis=0)
    if math.isinf(exponent):
        return largest
    scale = np.where(largest > 0, largest, 1.0)
    return largest * steady(steady((values / scale) ** exponent).sum(axis=0) ** (1.0 / exponent))


def _array(values: ArrayLike) -> np.ndarray:
    return np.asarray(values, dtype=np.float64)
