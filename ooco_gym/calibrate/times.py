"""Kernel times of measured rows for given parameters (`ooco_gym.perf.kernels`), float64[n] in seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ooco_gym.calibrate.rows import Rows
from ooco_gym.errors import UserError
from ooco_gym.perf import kernels
from ooco_gym.perf.measurements import NAMES
from ooco_gym.perf.model import ModelSpec, load_model
from ooco_gym.perf.timing import LATENT_LINEARS, Phase, linears, model_heads

KEPT = 16
"""Sets of rows whose derived data are cached, because each step of a fit needs them."""
DTYPE_BYTES = 2.0


def latent_linears_s(gemm: kernels.GemmParameters, model: ModelSpec, tp: int, tokens: np.ndarray,
                     weight_bytes: float) -> np.ndarray:
    """Returns seconds of the linear layers around one layer's latent attention on one of `tp` chips."""
    return np.sum([kernels.gemm_s(gemm, tokens, linear.d_in, linear.d_out, DTYPE_BYTES, weight_bytes)
                   for linear in linears(model, tp) if linear.name in LATENT_LINEARS], axis=0)


def latent_model(rows: Rows) -> tuple[ModelSpec, int]:
    """Returns the model of rows of one shape, and the number of chips over which its heads are split."""
    model = load_model(str(rows["model"][0]))
    if not model.kv_lora_rank or model.heads % rows["h_q"][0]:
        raise UserError(f"{rows.where(0)}: latent attention of {rows['h_q'][0]:g} heads is none of model "
                        f"'{model.name}'; expected a model with kv_lora_rank, and a part of its {model.heads} heads")
    return model, int(model.heads / rows["h_q"][0])


@lru_cache(KEPT)
def _heads(rows: Rows) -> list[tuple[np.ndarray, tuple[float, float, float]]]:
    """Returns the rows of each head configuration, and its query heads, key/value heads and head dimension."""
    shape = rows.distinct("h_q", "h_kv", "d_h")
    parts = [np.flatnonzero(shape == number) for number in np.unique(shape)]
    return [(index, (float(rows["h_q"][index[0]]), float(rows["h_kv"][index[0]]), float(rows["d_h"][index[0]])))
            for index in parts]


def attention_s(p: Any, shape: Sequence[float], phase: Phase, batch: np.ndarray, q: np.ndarray, context: np.ndarray
                ) -> np.ndarray:
    """Returns times of attention of one shape, of `batch` requests with `q` new tokens and `context` tokens each."""
    form = getattr(kernels, f"{phase}_attention")(p, *shape)
    total = batch * context
    return form.seconds(*([batch * each for each in form.of_prompts(q, context)] if phase == "prefill"
                          else [total, batch, total, batch]))


def _sizes(rows: Rows, index: np.ndarray) -> list[np.ndarray]:
    return [rows[name][index] for name in ("batch", "q_len", "context_len")]


def gemm_s(p: kernels.GemmParameters, rows: Rows) -> np.ndarray:
    """Returns times of 16-bit linear layers."""
    return kernels.gemm_s(p, rows["n_tokens"], rows["d_in"], rows["d_out"])


def prefill_s(p: kernels.PrefillAttentionParameters, rows: Rows) -> np.ndarray:
    found = np.empty(len(rows))
    for index, heads in _heads(rows):
        found[index] = attention_s(p, heads, "prefill", *_sizes(rows, index))
    return found


def decode_s(p: kernels.DecodeAttentionParameters, rows: Rows) -> np.ndarray:
    found = np.empty(len(rows))
    for index, heads in _heads(rows):
        found[index] = attention_s(p, heads, "decode", *_sizes(rows, index))
    return found


def gemm_fp8_s(p: kernels.GemmParameters, rows: Rows) -> np.ndarray:
    """Returns times of 8-bit linear layers."""
    return kernels.gemm_s(p, rows["n_tokens"], rows["d_in"], rows["d_out"], 2.0, 1.0)


def experts_s(weight_bytes: float) -> Callable[[Any, Rows], np.ndarray]:
    """Returns a function of parameters and rows for experts with `weight_bytes` bytes per weight."""
    return lambda p, rows: kernels.experts_s(
        p, rows["d_in"], rows["d_out"], rows["read"], rows["routed"], rows["n_tokens"] * rows["top_k"], weight_bytes,
        DTYPE_BYTES, rows["matrices"])


def latent_s(phase: Phase) -> Callable[[Any, Rows], np.ndarray]:
    """Returns a function for latent attention with its linear layers, given the attention's parameters."""
    def seconds(p: Any, rows: Rows) -> np.ndarray:
        found = 1e-6 * rows["alone_us"]
        for index, shape in _latents(rows, phase):
            found[index] += attention_s(p, shape, phase, *_sizes(rows, index))
        return found
    return seconds


@lru_cache(KEPT)
def _latents(rows: Rows, phase: Phase) -> list[tuple[np.ndarray, tuple[float, ...]]]:
    """Returns the rows of each latent shape and number of heads, with `latent_shape`'s values."""
    shape, found = rows.distinct("model", "h_q"), []
    for number in np.unique(shape):
        index = np.flatnonzero(shape == number)
        found.append((index, latent_shape(*latent_model(rows.select(index)), phase)))
    return found


def latent_shape(model: ModelSpec, tp: int, phase: Phase) -> tuple[float, ...]:
    """Returns heads on one of `tp` chips, key heads, mean width of a key and a value, bytes per
    number, and bytes per token of context."""
    *heads, kv_bytes = model_heads(model, tp, phase)
    return (*heads, DTYPE_BYTES, kv_bytes)


def mixed_s(p: kernels.MixedAttentionParameters, rows: Rows) -> np.ndarray:
    """Returns times of chunks and decodes in one attention kernel."""
    batch, context, found = rows["batch"], rows["context_len"], np.empty(len(rows))
    for index, heads in _heads(rows):
        work = kernels.mixed_work_s(p, *heads, batch[index], context[index])
        empty = heads[0] * p.head_s_per_chunk_token * batch[index] * rows["q_len"][index]
        found[index] = kernels.mixed_attention_s(p, 1e-6 * rows["alone_us"][index], work, empty, context[index])
    return found


def skew_s(p: kernels.SkewParameters, rows: Rows) -> np.ndarray:
    """Returns times of attention with contexts of different lengths."""
    split = rows["batch"] * rows["h_kv"] < p.decode_rows
    each = np.where(rows["q_len"] > 1, p.mixed_s_per_token, np.where(split, 0.0, p.decode_s_per_token))
    chunk = np.where(rows["q_len"] > 1, rows["q_len"] + rows["prefix"], 0.0)
    beyond = np.maximum(rows["longest"] - np.maximum(rows["context_len"], chunk), 0.0)
    return 1e-6 * rows["alone_us"] + each * beyond


def allreduce_s(p: kernels.AllReduceParameters, rows: Rows) -> np.ndarray:
    """Returns times of all-reduces."""
    return kernels.allreduce_s(p, rows["bytes"], rows["n_gpus"])


def elementwise_s(p: kernels.ElementwiseParameters, rows: Rows) -> np.ndarray:
    """Returns times of element-wise operators."""
    found = np.empty(len(rows))
    for name, index, moved in _moved(rows):
        found[index] = kernels.elementwise_s(p, moved, name)
    return found


@lru_cache(KEPT)
def _moved(rows: Rows) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Returns the rows of each kind of element-wise operators, and the bytes that they move."""
    kind = elementwise_kinds(rows)
    groups = [(str(name), np.flatnonzero(kind == name)) for name in np.unique(kind)]
    return [(name, index, rows["bytes"][index]) for name, index in groups]


def canonical(op: str) -> str:
    """Returns our name of the element-wise operator `op`, given as `elt:<theirs>`; '' if it is not simulated."""
    name = op.partition(":")[2]
    return next((ours for ours, theirs in NAMES.items() if name in theirs), "")


@lru_cache(KEPT)
def elementwise_kinds(rows: Rows) -> np.ndarray:
    """Returns the kind of each element-wise row, one of `kernels.ELEMENTWISE`'s; '' for other rows."""
    names = {str(op): kernels.ELEMENTWISE.get(canonical(str(op)), "") for op in set(rows["op"])}
    return np.array([names[str(op)] for op in rows["op"]], dtype=object)
