"""aiconfigurator's kernel tables (github ai-dynamo/aiconfigurator): one operator a file, latency in ms."""

from __future__ import annotations

from typing import Any

import numpy as np

from ooco_gym.calibrate.rows import Rows
from ooco_gym.calibrate.sources import Context, Found, Frame
from ooco_gym.errors import UserError

NAME = "aiconfigurator"
LIBRARIES = ("nccl", "oneccl", "rccl", "hccl")
"""Of collectives, which any engine may call."""
BACKENDS = ("vllm", "sglang", "trtllm", *LIBRARIES)
"""Folders above a version's."""
OPERATIONS = ("gemm", "attention", "comm")
"""Folders of operators between a system's and a backend's; older tables have none."""
SIXTEEN_BIT = ("bfloat16", "float16", "half", "bf16", "fp16")


def claims(frame: Frame) -> bool:
    """By the columns that all of its tables have."""
    return all(name in frame for name in ("op_name", "kernel_source", "latency"))


def read(frame: Frame, context: Context, found: Found) -> None:
    """Takes 16-bit GEMM, prefill and decode attention, and all-reduce; other operators are counted as skipped."""
    names, file = frame.texts("op_name"), frame.path.name
    if not len(frame):
        raise UserError(f"'{frame.path}': no row in it; expected measured operators")
    name = "all_reduce" if "all_reduce" in names else min(names)  # a file of collectives holds several
    if name not in _COLUMNS:
        found.skip(f"{file}: operator '{name}' is not simulated", len(frame))
        return
    keep = np.ones(len(frame), dtype=bool)

    def take(which: np.ndarray, reason: str) -> None:
        nonlocal keep
        found.skip(f"{file}: {reason}", int((keep & ~which).sum()))
        keep &= which

    if name == "all_reduce":
        take(names == name, "another collective")
    for column in ("gemm_dtype", "attn_dtype", "kv_cache_dtype", "nccl_dtype", "allreduce_dtype"):
        if column in frame:
            take(np.isin(frame.texts(column), SIXTEEN_BIT), f"{column} is not 16-bit")
    if "window_size" in frame:
        take(np.nan_to_num(frame.numbers("window_size")) == 0, "sliding window")
    frame.require(_COLUMNS[name])
    kernel = frame.texts("kernel_source")
    engine = kernel[0] if kernel[0].lower() in LIBRARIES else frame.texts("framework")[0]
    version = f"{engine}-{frame.texts('version')[0]}".lower()
    rows = Rows.of(
        frame.path, frame.first_row, len(frame), device=_device(frame, context), kernel=kernel,
        time_us=1e3 * frame.numbers("latency"), source=f"aiconfigurator/{version}",
        **_shape(name, frame, *(frame.numbers(column) for column in _COLUMNS[name])))
    found.rows.append(rows.select(keep))


_ATTENTION = ("batch_size", "isl", "num_heads", "num_key_value_heads")
_COLUMNS = {"gemm": ("m", "n", "k"), "all_reduce": ("num_gpus", "message_size"), "context_attention": _ATTENTION,
            "generation_attention": _ATTENTION}
"""What is read of each operator."""


def _shape(name: str, frame: Frame, *sizes: np.ndarray) -> dict[str, Any]:
    """The row's shape in our columns, from those of `_COLUMNS`."""
    if name == "gemm":
        return {"op": "gemm", "n_tokens": sizes[0], "d_in": sizes[2], "d_out": sizes[1]}
    if name == "all_reduce":
        return {"op": "all_reduce", "n_gpus": sizes[0], "bytes": 2.0 * sizes[1]}
    batch, new, queries, keys = sizes
    prefix = np.nan_to_num(frame.numbers("step", 0.0))
    shape = {"batch": batch, "h_q": queries, "h_kv": np.where(keys > 0, keys, queries),
             "d_h": frame.numbers("head_dim", 128.0), "context_len": new + prefix}
    if name == "context_attention":
        return {"op": "attn_prefill", **shape, "n_tokens": batch * new, "q_len": new, "prefix": prefix}
    return {"op": "attn_decode", **shape, "n_tokens": batch, "q_len": 1.0}


def _device(frame: Frame, context: Context) -> Any:
    """The system's folder (`h200_sxm/gemm/vllm/0.24.0/…`, `h200_sxm/vllm/0.24.0/…`), else the file's own name."""
    parts = frame.path.absolute().parts[:-1]
    if len(parts) > 2 and parts[-2] in BACKENDS and parts[-1][:1].isdigit():
        above = parts[:-3] if parts[-3] in OPERATIONS else parts[:-2]
        if above and above[-1] != "/":
            return above[-1]
    if "data" in parts and parts.index("data") + 1 < len(parts):
        return parts[len(parts) - 1 - parts[::-1].index("data") + 1]
    return frame.texts("device", context.device)
