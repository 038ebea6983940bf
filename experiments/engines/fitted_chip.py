"""A chip from the formula fitted to whole iterations: its YAML, and tables for `timing=measured`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import yaml

from experiments.engines.iterations import StepModel, summary
from ooco_gym.errors import UserError
from ooco_gym.files import atomic_write, write_json
from ooco_gym.perf import load_model
from ooco_gym.perf.model import ModelSpec
from ooco_gym.perf.timing.extended import fused_linears
from ooco_gym.runtime.beliefs import FITTED_FILE, FITTED_SCHEMA

_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_LEAST_US = 1e-6
_OFF = 1e18
"""A rate so high that its term takes no time, because the tables already include it."""


def model_of(engine: dict[str, Any]) -> dict[str, Any]:
    """Returns the measured model in our specification, from `engine.json`.

    Raises:
        UserError: `engine.json` does not describe the model.
    """
    config = engine.get("model_config") or {}
    fields = {"layers": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_attention_heads",
              "kv_heads": "num_key_value_heads", "intermediate": "intermediate_size", "vocab": "vocab_size"}
    for name in fields.values():
        if name not in config:
            raise UserError(f"engine.json: model_config has no '{name}'; the chain simulates dense decoder-only models")
    values = {ours: int(config[theirs]) for ours, theirs in fields.items()}
    head_dim = int(config.get("head_dim") or values["hidden"] // values["heads"])
    return {"name": "measured_model", **values, "head_dim": head_dim,
            "dtype_bytes": _DTYPE_BYTES.get(str(engine.get("dtype")), 2)}


def write_chip(folder: Path, fitted: StepModel, engine: dict[str, Any], model: dict[str, Any]) -> Path:
    """Writes `chip.yaml`, its `operators.parquet`, and the fit for `ooco_gym.runtime`; returns the path of the first.

    The fit gives only sums over an iteration. The sum of linear layers is divided in proportion to
    their operations, and includes element-wise operators.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    spec = load_model(model)
    rows = _linear_rows(fitted, spec, engine) + _attention_rows(fitted, spec, engine)
    with atomic_write(folder / "operators.parquet") as temporary:
        pq.write_table(pa.Table.from_pylist(rows), temporary)
    values = _chip(fitted, spec, engine)
    write_json(folder / FITTED_FILE, {"schema": FITTED_SCHEMA, "engine": engine["engine"], **summary(fitted)})
    with atomic_write(folder / "chip.yaml") as temporary:
        temporary.write_text(yaml.safe_dump(values, sort_keys=False, width=110), encoding="utf-8")
    return folder / "chip.yaml"


def _linear_rows(fitted: StepModel, model: ModelSpec, engine: dict[str, Any]) -> list[dict[str, Any]]:
    layers = fused_linears(model, 1)
    head = (model.hidden, model.vocab)
    if head in [(layer.d_in, layer.d_out) for layer in layers]:
        raise UserError(f"the LM head of {head[0]} x {head[1]} has the shape of another layer, so tables cannot "
                        "distinguish them; measure a model with another vocabulary")
    operations = np.array([layer.d_in * layer.d_out for layer in layers], dtype=np.float64)
    rows: list[dict[str, Any]] = []
    for layer, share in zip(layers, operations / operations.sum() / model.layers, strict=True):
        rows += [_row(f"gemm:{layer.name}", share * dense, n_tokens=tokens, d_in=layer.d_in, d_out=layer.d_out)
                 for tokens, dense in zip(fitted.dense.knots, fitted.dense.values, strict=True)]
    rows += [_row("gemm:lm_head", fitted.sequence * sequences, n_tokens=sequences, d_in=head[0], d_out=head[1])
             for sequences in (1, engine["max_num_seqs"])]
    return rows


def _attention_rows(fitted: StepModel, model: ModelSpec, engine: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns rows of one layer's attention: decode by requests and context, prefill by new and old tokens."""
    heads = {"h_q": model.heads, "h_kv": model.kv_heads, "d_h": model.head_dim}
    longest, budget = engine["max_model_len"], engine["max_num_batched_tokens"]
    rows = [_row("attn_decode", (requests_us + fitted.decode_context * batch * context) / model.layers, batch=batch,
                 context_len=context, **heads)
            for batch, requests_us in zip(fitted.decode.knots[1:], fitted.decode.values[1:], strict=True)
            for context in (1, longest)]
    for q in _powers(min(budget, longest)):
        for prefix in [0, *_powers(longest)]:
            time_us = fitted.prompt + fitted.context * (prefix + q) + fitted.work * q * (prefix + q)
            rows.append(_row("attn_prefill", time_us / model.layers, batch=1, q_len=q, prefix=prefix, **heads))
    return rows


def _row(op: str, time_us: float, **sizes: float) -> dict[str, Any]:
    """Returns a row of the table with all sizes, because Parquet takes the columns from the first row."""
    names = ("n_tokens", "d_in", "d_out", "batch", "context_len", "q_len", "prefix", "h_q", "h_kv", "d_h")
    return {"op": op, **{name: float(sizes[name]) if name in sizes else None for name in names},
            "time_us": max(float(time_us), _LEAST_US)}


def _powers(most: int) -> list[int]:
    """Returns 1, 1.4, 2, 2.8, … rounded to integers, up to `most`."""
    halves = np.arange(0.0, np.log2(most), 0.5)
    return sorted({*np.rint(2.0 ** halves).astype(int).tolist(), int(most)})


def _chip(fitted: StepModel, model: ModelSpec, engine: dict[str, Any]) -> dict[str, Any]:
    """Returns the chip's YAML: rates derived from whole iterations, and placeholders, marked as such."""
    dense = fitted.dense
    per_token = 2e6 * sum(layer.d_in * layer.d_out for layer in fused_linears(model, 1)) * model.layers
    slope = float((dense.values[-1] - dense.values[0]) / (dense.knots[-1] - dense.knots[0]))
    attention = 4e6 * model.q_width * model.layers
    held = engine["num_blocks"] * engine["block_tokens"] * 2 * model.layers * model.kv_width * model.dtype_bytes
    rate = {"gemm_flops_per_s": per_token / max(slope, _LEAST_US),
            "prefill_attention_flops_per_s": attention / max(fitted.work, _LEAST_US),
            "decode_attention_flops_per_s": attention / max(fitted.decode_context, _LEAST_US)}
    weights = sum(layer.d_in * layer.d_out for layer in fused_linears(model, 1)) * model.layers * model.dtype_bytes
    kv_bytes = 2.0 * model.layers * model.kv_width * model.dtype_bytes
    moved = {"gemm_memory_bytes_per_s": 1e6 * weights / max(fitted.step, _LEAST_US),
             "attention_memory_bytes_per_s": 1e6 * kv_bytes / max(fitted.decode_context, _LEAST_US)}
    peaks = {"peak_flops_per_s": max(rate.values()), "peak_memory_bytes_per_s": max(moved.values())}
    links = dict.fromkeys(("peak_link_bytes_per_s", "allreduce_bytes_per_s"), _OFF)
    measured = f"fitted to whole iterations of {engine['engine']} on {engine.get('cpu') or engine['device']}"
    notes = {**dict.fromkeys(rate, f"{measured}; beyond the tables"),
             **dict.fromkeys(peaks, "the largest fitted rate, not a datasheet's"),
             **dict.fromkeys(links, "not used: one device"),
             "gemm_memory_bytes_per_s": "all weights in the time of an iteration of one token: at least this",
             "attention_memory_bytes_per_s": f"{measured}: keys and values of decoding requests",
             "memory_bytes": "KV blocks of the engine and weights, no more",
             "extended": f"{measured}; element-wise operators are in the tables of linear layers",
             "tables": f"{measured}; linear layers share their sum by operations"}
    overhead = {"prefill_s": 1e-6 * (fitted.step + fitted.pieces), "decode_s": 1e-6 * fitted.step}
    return {"name": "measured_engine", "title": f"{engine['engine']}, {engine.get('cpu') or engine['device']}",
            "memory_bytes": 1.2 * float(held + model.weight_bytes), **peaks, **rate, **moved, **links,
            "extended": {"elementwise": {"memory_bytes_per_s": _OFF}, "overhead": overhead},
            "validity": {"max_tokens": int(engine["max_num_batched_tokens"]), "max_batch": int(engine["max_num_seqs"]),
                         "max_context": int(engine["max_model_len"])},
            "tables": "operators.parquet", "sources": notes}
