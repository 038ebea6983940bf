"""A chip's measured operators, which `timing=measured` interpolates.

A Parquet file has one row per measurement, as `ooco-gym calibrate` writes it next to a chip's YAML.
A row's columns depend on its `op`; shapes are of one chip of an instance, and `time_us` is for one
run of the operator:

- `gemm`, or `gemm:<name>`: `n_tokens, d_in, d_out` (the LM head too; its tokens are sequences);
- `elt:<name>`: `n_tokens, d_in` (the hidden width), and if known `d_out` (the inner width of the
  MLP on one chip) and `h_q, h_kv, tp` of the model; the sampler (`elt:sampler`): `n_tokens`
  (sequences);
- `attn_prefill`: `batch, q_len, prefix, h_q, h_kv, d_h`; rows of one prompt are used;
- `attn_decode`: `batch, context_len, h_q, h_kv, d_h`;
- `attn_mixed`: a chunk (`q_len, prefix`) beside `batch` decodes at `context_len`, in one kernel, `h_q, h_kv, d_h`, and
  `alone_us`, the chunk's time without them;
- `all_reduce`: `n_gpus, bytes`; the fastest kernel counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ooco_gym.documents import version_of
from ooco_gym.errors import UserError
from ooco_gym.files import read_parquet
from ooco_gym.perf.chip import ChipSpec
from ooco_gym.perf.model import ModelSpec
from ooco_gym.rounding import steady

Roof = Callable[[np.ndarray], np.ndarray]
Roof2 = Callable[[np.ndarray, np.ndarray], np.ndarray]
SIZES = ("n_tokens", "batch", "context_len", "q_len", "prefix", "d_in", "d_out", "h_q", "h_kv", "d_h", "tp", "n_gpus",
         "bytes", "alone_us")
NAMES = {
    "norm": ("norm", "layernorm", "input_layernorm", "post_attention_layernorm", "rms_norm"),
    "final_norm": ("final_norm", "final_layernorm"),
    "qk_norm": ("qk_norm",),
    "rotary": ("rotary", "rotary_emb", "rope", "attn_rope"),
    "activation": ("activation", "act_fn", "mlp_act"),
    "embedding": ("embedding", "emb"),
    "residual": ("residual", "add"),
    "sampler": ("sampler",),
}
"""Names of each of our element-wise operators in measurements."""


class MeasuredCurve:
    """Seconds by one size, linear between measured sizes, as operators are nearly affine in size.

    Beyond the largest measured size the last time grows with the roofline, without a jump; below
    the smallest the first one stays (launches). Repeated measurements of a size count by their
    median.
    """

    def __init__(self, sizes: np.ndarray, seconds: np.ndarray) -> None:
        self.sizes, inverse = np.unique(np.asarray(sizes, dtype=np.float64), return_inverse=True)
        self.times = np.array([np.median(seconds[inverse == index]) for index in range(len(self.sizes))])

    def seconds(self, sizes: np.ndarray, roof: Roof) -> np.ndarray:
        """Returns seconds at `sizes`, float64[n]; `roof` computes the roofline time for the same
        argument."""
        return _extend(np.interp(sizes, self.sizes, self.times), sizes, self.sizes, roof)


class Surface:
    """Seconds by two sizes: a curve over the second size for each measured value of the first.

    Between two curves it is linear, or a power of the first size (`power`), which suits quadratic
    work. The curves need not cover the same sizes.
    """

    def __init__(self, curves: Mapping[float, MeasuredCurve], power: bool = False) -> None:
        self.outer = np.array(sorted(curves))
        self.curves = [curves[size] for size in self.outer]
        self.power = power

    @classmethod
    def measured(cls, outer: np.ndarray, inner: np.ndarray, seconds: np.ndarray, power: bool = False) -> Surface:
        """Builds the surface from rows of both sizes and seconds, float64[n] each."""
        return cls({float(size): MeasuredCurve(inner[outer == size], seconds[outer == size])
                    for size in np.unique(outer)}, power)

    def seconds(self, outer: np.ndarray, inner: np.ndarray, roof: Roof2) -> np.ndarray:
        """Returns seconds at `(outer, inner)`, float64[n] each; `roof` computes the roofline time
        for the same arguments."""
        rows = [curve.seconds(inner, lambda sizes, size=size: roof(np.full(np.shape(sizes), size), sizes))
                for size, curve in zip(self.outer, self.curves, strict=True)]
        values, where, grid = np.stack(rows), np.asarray(outer, dtype=np.float64), self.outer
        if self.power:
            values, where, grid = np.log(values), np.log(where), np.log(grid)
        right = np.clip(np.searchsorted(grid, where), 1, max(len(grid) - 1, 1))
        left = right - 1
        right = np.minimum(right, len(grid) - 1)
        gap = np.where(right > left, grid[right] - grid[left], 1.0)
        share = np.clip((where - grid[left]) / gap, 0.0, 1.0)
        index = np.arange(len(where))
        between = (1.0 - share) * values[left, index] + share * values[right, index]
        return _extend(steady(np.exp(between)) if self.power else between, outer, self.outer,
                       lambda sizes: roof(sizes, inner))


def _extend(inside: np.ndarray, sizes: np.ndarray, measured: np.ndarray, roof: Roof) -> np.ndarray:
    """Extrapolates times at the nearest measured size to larger `sizes` by the roofline's ratio."""
    larger = np.asarray(sizes) > measured[-1]
    if not larger.any():
        return inside
    nearest = roof(np.minimum(sizes, measured[-1]))
    return inside * np.divide(roof(sizes), nearest, out=np.ones(larger.shape), where=larger)


class Beside(NamedTuple):
    """Kernels with a chunk and decodes, float64[n] each: decodes, their context, the chunk's new
    tokens, seconds of the chunk alone, and in total."""

    batch: np.ndarray
    context: np.ndarray
    q: np.ndarray
    alone_s: np.ndarray
    seconds: np.ndarray


class Layer(NamedTuple):
    """A measured linear layer, and its weight for another one."""

    weight: float
    d_in: int
    d_out: int
    curve: MeasuredCurve
    """Over tokens."""


class Measurements:
    """Measured operators, found by shape; None if not measured."""

    def __init__(self, ops: np.ndarray, sizes: dict[str, np.ndarray], seconds: np.ndarray) -> None:
        self._ops, self._sizes, self._seconds = ops, sizes, seconds
        self._gemms: dict[tuple[float, float], np.ndarray] = {}
        is_gemm = np.array([str(op).partition(":")[0] == "gemm" for op in ops], dtype=bool)
        shapes = np.stack([sizes["d_in"], sizes["d_out"]], axis=1)[is_gemm]
        found, index = np.unique(shapes, axis=0, return_inverse=True)
        for number, (d_in, d_out) in enumerate(found):
            self._gemms[float(d_in), float(d_out)] = np.flatnonzero(is_gemm)[index == number]

    def linear(self, d_in: int, d_out: int) -> list[Layer]:
        """Returns the measured layers for one from `d_in` to `d_out`.

        The layer itself if measured, otherwise the four around it on the grid of measured widths,
        weighted by the logarithms of the widths; empty if these do not exist.
        """
        corners = [(1.0, float(d_in), float(d_out))]
        if corners[0][1:] not in self._gemms:
            inner = sorted({shape[0] for shape in self._gemms})
            outer = sorted({shape[1] for shape in self._gemms})
            corners = [(wi * wo, i, o) for wi, i in _neighbours(inner, d_in) for wo, o in _neighbours(outer, d_out)]
        layers = []
        for weight, i, o in corners:
            if (i, o) not in self._gemms:
                return []
            layers.append(Layer(weight, int(i), int(o), self._curve("n_tokens", self._gemms[i, o])))
        return layers

    def elementwise(self, name: str, model: ModelSpec, tp: int) -> MeasuredCurve | None:
        """An element-wise operator (a key of `NAMES`) over tokens, for the model's widths on `tp`
        chips."""
        rows = np.isin(self._ops, [f"elt:{alias}" for alias in NAMES[name]])
        if name != "sampler":
            wanted = {"d_in": model.hidden, "h_q": model.heads, "h_kv": model.kv_heads, "tp": tp}
            wanted |= {"d_out": -(-model.intermediate // tp)} if name == "activation" else {}
            for size, value in wanted.items():
                rows &= (self._sizes[size] == value) | (np.isnan(self._sizes[size]) & (size != "d_in"))
        return self._curve("n_tokens", np.flatnonzero(rows)) if rows.any() else None

    def decode_attention(self, heads: float, kv_heads: float, head_dim: float) -> Surface | None:
        """Decode attention over requests and mean context, for the heads of one chip."""
        rows = self._attention("attn_decode", heads, kv_heads, head_dim)
        if not len(rows):
            return None
        return Surface.measured(self._sizes["batch"][rows], self._sizes["context_len"][rows], self._seconds[rows])

    def prefill_attention(self, heads: float, kv_heads: float, head_dim: float) -> Surface | None:
        """Prefill attention of one prompt over new tokens and earlier tokens, for the heads of one
        chip."""
        rows = self._attention("attn_prefill", heads, kv_heads, head_dim)
        batch = self._sizes["batch"][rows]
        rows = rows[(batch == 1) | np.isnan(batch)]
        if not len(rows):
            return None
        prefix = np.nan_to_num(self._sizes["prefix"][rows])
        return Surface.measured(self._sizes["q_len"][rows], prefix, self._seconds[rows], power=True)

    def mixed_attention(self, heads: float, kv_heads: float, head_dim: float) -> Beside | None:
        """Chunks and decodes in one kernel, for the heads of one chip."""
        rows = self._attention("attn_mixed", heads, kv_heads, head_dim)
        rows = rows[np.isfinite(self._sizes["alone_us"][rows])]
        if not len(rows):
            return None
        batch, context, q = (self._sizes[name][rows] for name in ("batch", "context_len", "q_len"))
        return Beside(batch, context, q, 1e-6 * self._sizes["alone_us"][rows], self._seconds[rows])

    def all_reduce(self, n: int) -> MeasuredCurve | None:
        """An all-reduce over `n` chips by bytes."""
        rows = np.flatnonzero((self._ops == "all_reduce") & (self._sizes["n_gpus"] == n))
        if not len(rows):
            return None
        payload, seconds = self._sizes["bytes"][rows], self._seconds[rows]
        sizes = np.unique(payload)
        return MeasuredCurve(sizes, np.array([seconds[payload == size].min() for size in sizes]))

    def _attention(self, op: str, heads: float, kv_heads: float, head_dim: float) -> np.ndarray:
        sizes = self._sizes
        return np.flatnonzero((self._ops == op) & (sizes["h_q"] == heads) & (sizes["h_kv"] == kv_heads)
                              & (sizes["d_h"] == head_dim))

    def _curve(self, size: str, rows: np.ndarray) -> MeasuredCurve:
        return MeasuredCurve(self._sizes[size][rows], self._seconds[rows])


def measurements(chip: ChipSpec) -> Measurements | None:
    """Loads the measurements that a chip's `tables` names, or None.

    Raises:
        UserError: the file is missing or unreadable, lacks a column, or has a time that is not
            positive.
    """
    if not chip.tables:
        return None
    if os.path.isdir(chip.tables):
        raise UserError(f"chip '{chip.name}': tables '{chip.tables}' is a folder; expected a Parquet file of measured "
                        f"operators: ooco-gym calibrate data={chip.tables} makes one of what is in it")
    version = version_of(chip.tables)
    if version is None:
        raise UserError(f"chip '{chip.name}': tables '{chip.tables}' does not exist; expected a Parquet file of "
                        "measured operators (docs/timing.md), relative to the chip's YAML")
    return _load(chip.name, chip.tables, version)


@lru_cache(maxsize=8)
def _load(name: str, path: str, version: str) -> Measurements:
    import pyarrow

    where = f"chip '{name}': tables '{path}'"
    try:
        table = read_parquet(path)
        table.validate(full=True)
        table.column_names  # noqa: B018 (read here, as damaged names are not text)
    except (OSError, UnicodeDecodeError, pyarrow.ArrowException) as error:
        raise UserError(f"{where} cannot be read as Parquet: {' '.join(str(error).split())}") from error
    for column in ("op", "time_us"):
        if column not in table.column_names:
            raise UserError(f"{where}: column '{column}' is missing; found: {', '.join(table.column_names)}")
    sizes: dict[str, np.ndarray] = dict.fromkeys(SIZES, np.full(table.num_rows, np.nan))
    for column in {*SIZES, "time_us"} & set(table.column_names):
        try:
            sizes[column] = table[column].cast(pyarrow.float64()).to_numpy(zero_copy_only=False)
        except pyarrow.ArrowException as error:
            raise UserError(f"{where}: column '{column}' must hold numbers") from error
    seconds = 1e-6 * sizes.pop("time_us")
    wrong = np.flatnonzero(~(np.isfinite(seconds) & (seconds > 0)))
    if len(wrong):
        raise UserError(f"{where}, row {wrong[0] + 1}: time_us must be positive, got {1e6 * seconds[wrong[0]]:g}")
    return Measurements(np.array(table["op"].to_pylist(), dtype=object).astype(str), sizes, seconds)


def _neighbours(sizes: list[float], size: float) -> list[tuple[float, float]]:
    """The measured sizes on both sides of `size`, with their weights; empty beyond them."""
    if not sizes or not sizes[0] <= size <= sizes[-1]:
        return []
    right = int(np.searchsorted(sizes, size))
    if sizes[right] == size:
        return [(1.0, sizes[right])]
    low, high = sizes[right - 1], sizes[right]
    share = float(steady(np.log(size / low) / np.log(high / low)))
    return [(1.0 - share, low), (share, high)]
