"""LLMServingSim's profiles (github casys-kaist/LLMServingSim) `dense`, `per_sequence`, `attention`,
`skew`, `moe`; in µs.

The files name neither model nor device. These are the command's `model` (or that of the folder's
`engine.json`) and `device`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from ooco_gym.calibrate.chip import known_model
from ooco_gym.calibrate.rows import Rows
from ooco_gym.calibrate.sources import Context, Found, Frame
from ooco_gym.documents import read_mapping
from ooco_gym.errors import UserError
from ooco_gym.perf.model import ModelSpec, list_models, load_model, model_named
from ooco_gym.perf.timing import expert_kernel
from ooco_gym.perf.timing.extended import fused_linears

NAME = "llmservingsim"
LINEARS = {"qkv_proj": "qkv", "o_proj": "o", "gate_up_proj": "gate_up", "down_proj": "down"}
_ATTENTION = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
_EXPERTS = ("tokens", "activated_experts")
_SKEW = ("n", "pc", "kp", "kv_big", "kv_mean", "t_mean_us", "t_skew_us")


def claims(frame: Frame) -> bool:
    """Recognises a profile by the columns of its five tables."""
    if _has(frame, _SKEW):
        return True
    by_layer = "layer" in frame and ("tokens" in frame or "sequences" in frame)
    return "time_us" in frame and (by_layer or _has(frame, _ATTENTION) or _has(frame, _EXPERTS))


def _has(frame: Frame, names: tuple[str, ...]) -> bool:
    return all(name in frame for name in names)


def read(frame: Frame, context: Context, found: Found) -> None:
    """Reads linear layers, element-wise operators, attention, batches of even and uneven contexts, and experts."""
    model, tp = _model(frame.path, context), _tp(frame.path, context)
    if model.kv_lora_rank or model.shared_intermediate:
        raise UserError(f"'{frame.path}': of model '{model.name}'; LLMServingSim's profiles are read of models without "
                        "latent attention and shared experts; leave its folder out")
    common = {"device": context.device, "model": model.name, "tp": float(tp), "source": NAME}
    if _has(frame, _SKEW):
        _skew(frame, found, model, tp, common)
        return
    if _has(frame, _EXPERTS):
        _experts(frame, found, model, common)
        return
    if "layer" not in frame:
        _attention(frame, found, model, tp, common)
        return
    sizes = frame.numbers("tokens" if "tokens" in frame else "sequences")
    times, layers = frame.numbers("time_us"), frame.texts("layer")
    for layer in sorted(set(layers)):
        which = layers == layer
        said = common | ({"tp": 1.0} if layer == "qk_norm" and tp > 1 and _copied(frame, layer) else {})
        rows = Rows.of(frame.path, frame.first_row, len(frame), n_tokens=sizes, time_us=times,
                       **_shape(layer, model, tp), **said)
        found.rows.append(rows.select(which))


def _copied(frame: Frame, layer: str) -> bool:
    """Returns whether a layer has one chip's times: early profiles have all heads' norms at every degree."""
    alone = frame.path.parent.parent / "tp1" / frame.path.name
    tables = [frame, Frame(alone)] if alone.is_file() else []
    times = [table.numbers("time_us")[table.texts("layer") == layer] for table in tables]
    return len(times) == 2 and np.array_equal(times[0], times[1])


def _shape(layer: str, model: ModelSpec, tp: int) -> dict[str, Any]:
    linears = {linear.name: (float(linear.d_in), float(linear.d_out)) for linear in fused_linears(model, tp)}
    heads = {"h_q": float(model.heads), "h_kv": float(model.kv_heads), "d_h": float(model.head_dim)}
    op, (d_in, d_out) = f"elt:{layer}", (float(model.hidden), linears.get("down", (np.nan,))[0])
    if layer in LINEARS or layer == "lm_head":
        op = f"gemm:{layer}"
        d_in, d_out = linears[LINEARS[layer]] if layer in LINEARS else (d_in, float(-(-model.vocab // tp)))
    return {"op": op, "d_in": d_in, "d_out": d_out, **heads}


def _attention(frame: Frame, found: Found, model: ModelSpec, tp: int, common: dict[str, Any]) -> None:
    new, cached, batch, context = (frame.numbers(name) for name in _ATTENTION)
    shared = {"time_us": frame.numbers("time_us"), **_heads(model, tp), **common}
    for op, which, columns in (
            ("attn_prefill", (new > 0) & (batch == 0),
             {"batch": 1.0, "q_len": new, "prefix": cached, "context_len": new + cached, "n_tokens": new}),
            ("attn_decode", (new == 0) & (batch > 0),
             {"batch": batch, "q_len": 1.0, "context_len": context, "n_tokens": batch}),
            ("attn_mixed", (new > 0) & (batch > 0),
             {"batch": batch, "q_len": new, "prefix": cached, "context_len": context, "n_tokens": new + batch})):
        found.rows.append(Rows.of(frame.path, frame.first_row, len(frame), op=op, **columns, **shared).select(which))


def _experts(frame: Frame, found: Found, model: ModelSpec, common: dict[str, Any]) -> None:
    """Adds one chip's experts, with their routing.

    `ep` chips (1 without such a column) are measured as a layer with `ep` times fewer experts and
    choices, whose tokens are dealt to the active experts in turn.
    """
    if not model.experts:
        raise UserError(f"'{frame.path}' has experts, of which model '{model.name}' has none; give model=NAME or "
                        "model=FILE.yaml")
    tokens, read = (frame.numbers(name) for name in _EXPERTS)
    ep = frame.numbers("ep", 1.0)
    top_k = np.maximum(model.top_k // ep, 1.0)
    rows = Rows.of(
        frame.path, frame.first_row, len(frame), op=expert_kernel(model.expert_bytes), n_tokens=tokens, read=read,
        d_in=float(model.hidden), d_out=float(model.expert_intermediate), experts=model.experts // ep, top_k=top_k,
        matrices=3.0 if model.gated_mlp else 2.0, routed=tokens * top_k, time_us=frame.numbers("time_us"),
        **{**common, "tp": 1.0})
    found.rows.append(rows)


def _skew(frame: Frame, found: Found, model: ModelSpec, tp: int, common: dict[str, Any]) -> None:
    """Adds decode batches with two context lengths, and the time of the same batch at the mean."""
    batch, new, cached, longest, mean, even, times = (frame.numbers(name) for name in _SKEW)
    found.rows.append(Rows.of(
        frame.path, frame.first_row, len(frame), op="attn_skew", batch=batch, q_len=np.where(new > 0, new, 1.0),
        prefix=cached, context_len=mean, longest=longest, alone_us=even, n_tokens=new + batch, time_us=times,
        **_heads(model, tp), **common))


def _heads(model: ModelSpec, tp: int) -> dict[str, float]:
    return {"h_q": model.heads / tp, "h_kv": max(model.kv_heads / tp, 1.0), "d_h": float(model.head_dim)}


def _model(path: Path, context: Context) -> ModelSpec:
    """Returns the model of the command, else of `engine.json`, else a known model's name in the path."""
    if context.model:
        return load_model(model_named(context.model) or context.model)
    if name := str(_settings(path).get("model", "")):
        return load_model(known_model(name, path.parent))
    named = [found for text in path.parts[:-1] if (found := model_named(text))]
    if named:
        return load_model(named[-1])
    raise UserError(f"'{path}' does not say which model was measured; give it as model=NAME, one of: "
                    f"{', '.join(list_models())}, or a YAML file")


def _tp(path: Path, context: Context) -> int:
    """Returns the tensor-parallel degree in the path (`.../tp2/...`), the command or `engine.json`."""
    found = [int(part[2:]) for part in path.parts if re.fullmatch(r"tp\d+", part)]
    if found or context.tp:
        return found[-1] if found else context.tp
    given = _settings(path).get("tensor_parallel", 1)
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise UserError(f"'{path.parent / 'engine.json'}': 'tensor_parallel' must be a whole number of at least 1, "
                        f"got {given!r}")
    return given


def _settings(path: Path) -> dict[str, Any]:
    """Returns the engine's parameters in the table's folder; empty if there are none."""
    settings = path.parent / "engine.json"
    return read_mapping(settings) if settings.exists() else {}
