"""vidur's profiles (github microsoft/vidur): `mlp.csv` by model, `attention.csv`, and collectives; times in ms."""

from __future__ import annotations

import numpy as np

from ooco_gym.calibrate.rows import Rows
from ooco_gym.calibrate.sources import Context, Found, Frame

NAME = "vidur"
ELEMENTWISE = ("emb", "input_layernorm", "attn_rope", "post_attention_layernorm", "mlp_act", "add")


def claims(frame: Frame) -> bool:
    """Recognises a profile by its columns of statistics."""
    return any(name.startswith("time_stats.") and name.endswith(".median") for name in frame.names)


def read(frame: Frame, context: Context, found: Found) -> None:
    """Reads medians of linear layers, element-wise operators, attention and all-reduce."""
    if "time_stats.all_reduce.median" in frame:
        _collective(frame, context, found)
    elif "time_stats.mlp_up_proj.median" in frame:
        _layers(frame, context, found)
    elif "prefill_chunk_size" in frame:
        _attention(frame, context, found)
    else:
        found.skip(f"{frame.path.name}: operator is not simulated", len(frame))


def _layers(frame: Frame, context: Context, found: Found) -> None:
    frame.require(["n_head", "n_kv_head", "n_embd", "n_expanded_embd", "num_tokens", "num_tensor_parallel_workers"])
    tp, hidden = frame.numbers("num_tensor_parallel_workers"), frame.numbers("n_embd")
    heads, kv_heads = frame.numbers("n_head"), frame.numbers("n_kv_head")
    inner = frame.numbers("n_expanded_embd") / tp
    gated = np.isin(frame.texts("use_gated_mlp"), ("True", "true", "1"))
    head_dim = hidden / heads
    shapes = {
        "attn_pre_proj": (hidden, head_dim * (heads / tp + 2 * np.maximum(kv_heads / tp, 1))),
        "attn_post_proj": (hidden / tp, hidden),
        "mlp_up_proj": (hidden, np.where(gated, 2, 1) * inner),
        "mlp_down_proj": (inner, hidden),
    }
    common = {"device": _device(frame, context), "model": _model(frame), "tp": tp, "h_q": heads, "h_kv": kv_heads,
              "n_tokens": frame.numbers("num_tokens"), "d_h": head_dim, "source": "vidur"}
    for name, (d_in, d_out) in shapes.items():
        _add(frame, found, name, op=f"gemm:{name}", d_in=d_in, d_out=d_out, **common)
    for name in ELEMENTWISE:
        _add(frame, found, name, op=f"elt:{name}", d_in=hidden, d_out=inner, **common)


def _attention(frame: Frame, context: Context, found: Found) -> None:
    frame.require(["batch_size", "kv_cache_size", "n_q_head", "n_kv_head", "n_embd", "num_tensor_parallel_workers"])
    tp, batch = frame.numbers("num_tensor_parallel_workers"), frame.numbers("batch_size")
    new, cached = frame.numbers("prefill_chunk_size"), frame.numbers("kv_cache_size")
    common = {"device": _device(frame, context), "model": _model(frame), "tp": tp, "batch": batch,
              "h_q": frame.numbers("n_q_head") / tp, "h_kv": np.maximum(frame.numbers("n_kv_head") / tp, 1),
              "d_h": frame.numbers("n_embd") / frame.numbers("n_q_head"), "source": "vidur",
              "kernel": frame.texts("attention_backend")}
    _add(frame, found, "attn_prefill", op="attn_prefill", q_len=new, prefix=cached, context_len=new + cached,
         n_tokens=batch * new, **common)
    _add(frame, found, "attn_decode", op="attn_decode", q_len=1.0, context_len=cached, n_tokens=batch, **common)


def _collective(frame: Frame, context: Context, found: Found) -> None:
    frame.require(["num_workers", "size"])
    chips = frame.numbers("num_workers")
    within = frame.numbers("devices_per_node") == chips if "devices_per_node" in frame else chips > 0
    found.skip(f"{frame.path.name}: all_reduce over several nodes (devices_per_node is not num_workers), another link "
               "than that of an instance's chips", int((~within).sum()))
    _add(frame, found, "all_reduce", within, op="all_reduce", n_gpus=chips, bytes=frame.numbers("size"), kernel="NCCL",
         device=_device(frame, context), source="vidur")


def _add(frame: Frame, found: Found, name: str, which: np.ndarray | bool = True, **columns: object) -> None:
    """Adds the rows that measured one operator, restricted to a mask."""
    column = f"time_stats.{name}.median"
    if column not in frame:
        return
    times = 1e3 * frame.numbers(column)
    rows = Rows.of(frame.path, frame.first_row, len(frame), time_us=times, **columns)
    found.rows.append(rows.select(~np.isnan(times) & which))


def _device(frame: Frame, context: Context) -> str:
    """Returns the folder below `compute` or `network`, as in vidur's repository."""
    parts = frame.path.parts
    for folder in ("compute", "network"):
        if folder in parts[:-2]:
            return f"vidur_{parts[parts.index(folder) + 1]}"
    return context.device


def _model(frame: Frame) -> str:
    return "/".join(frame.path.parts[-3:-1])
