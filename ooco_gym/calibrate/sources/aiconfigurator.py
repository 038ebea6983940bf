"""aiconfigurator's kernel tables (github ai-dynamo/aiconfigurator): one operator a file, latency in ms."""

from __future__ import annotations

from typing import Any

import numpy as np

from ooco_gym.calibrate.rows import Rows
from ooco_gym.calibrate.sources import Context, Found, Frame
from ooco_gym.errors import UserError

NAME = "aiconfigurator"
BACKENDS = ("vllm", "sglang", "trtllm", "nccl", "oneccl", "rccl", "hccl")
"""Folders above a version's."""
OPERATIONS = ("gemm", "attention", "comm")
"""Folders of operators between a system's and a backend's; older tables have none."""
SIXTEEN_BIT = ("bfloat16", "float16", "half", "bf16", "fp16")


def claims(frame: Frame) -> bool:
    """By the columns that all of its tables have."""
    return all(name in frame for name in ("op_name", "kernel_source", "latency"))


def read(frame: Frame, context: Context, found: Found) -> None:
    """Takes 16-bit GEMM, prefill and decode attention, and all-reduce; other operators are counted as skipped."""
    name = _operator(frame)
    readers = {"gemm": _gemm, "context_attention": _prefill, "generation_attention": _decode, "all_reduce": _all_reduce}
    if name not in readers:
        found.skip(f"{frame.path.name}: operator '{name}' is not simulated", len(frame))
        return
    keep = _plain(frame, found)
    columns = readers[name](frame)
    rows = Rows.of(
        frame.path, frame.first_row, len(frame), device=_device(frame, context), kernel=frame.texts("kernel_source"),
        time_us=1e3 * frame.numbers("latency"), source=f"aiconfigurator/{_version(frame)}", **columns)
    found.rows.append(rows.select(keep))


def _operator(frame: Frame) -> str:
    """The operator of a file; a file of collectives holds several, of which all-reduce is ours."""
    names = {str(name) for name in frame.texts("op_name")}
    if not names:
        raise UserError(f"'{frame.path}': no row in it; expected measured operators")
    return "all_reduce" if "all_reduce" in names else min(names)


def _plain(frame: Frame, found: Found) -> np.ndarray:
    """Rows of all-reduce only among collectives, 16 bits throughout, full attention, one beam."""
    keep = np.ones(len(frame), dtype=bool)
    names = frame.texts("op_name")
    if "all_reduce" in set(names):
        found.skip(f"{frame.path.name}: another collective", int((names != "all_reduce").sum()))
        keep &= names == "all_reduce"
    for column in ("gemm_dtype", "attn_dtype", "kv_cache_dtype", "nccl_dtype", "allreduce_dtype"):
        if column in frame:
            plain = np.isin(frame.texts(column), SIXTEEN_BIT)
            found.skip(f"{frame.path.name}: {column} is not 16-bit", int((keep & ~plain).sum()))
            keep &= plain
    if "window_size" in frame:
        full = np.nan_to_num(frame.numbers("window_size")) == 0
        found.skip(f"{frame.path.name}: sliding window", int((keep & ~full).sum()))
        keep &= full
    return keep


def _gemm(frame: Frame) -> dict[str, Any]:
    frame.require(["m", "n", "k"])
    return {"op": "gemm", "n_tokens": frame.numbers("m"), "d_in": frame.numbers("k"), "d_out": frame.numbers("n")}


def _heads(frame: Frame) -> dict[str, Any]:
    frame.require(["batch_size", "isl", "num_heads", "num_key_value_heads"])
    queries, keys = frame.numbers("num_heads"), frame.numbers("num_key_value_heads")
    return {"batch": frame.numbers("batch_size"), "h_q": queries, "h_kv": np.where(keys > 0, keys, queries),
            "d_h": frame.numbers("head_dim", 128.0)}


def _prefill(frame: Frame) -> dict[str, Any]:
    shape, prefix = _heads(frame), np.nan_to_num(frame.numbers("step", 0.0))
    new = frame.numbers("isl")
    return {"op": "attn_prefill", **shape, "n_tokens": shape["batch"] * new, "q_len": new, "prefix": prefix,
            "context_len": new + prefix}


def _decode(frame: Frame) -> dict[str, Any]:
    shape = _heads(frame)
    context = frame.numbers("isl") + np.nan_to_num(frame.numbers("step", 0.0))
    return {"op": "attn_decode", **shape, "n_tokens": shape["batch"], "q_len": 1.0, "context_len": context}


def _all_reduce(frame: Frame) -> dict[str, Any]:
    frame.require(["num_gpus", "message_size"])
    return {"op": "all_reduce", "n_gpus": frame.numbers("num_gpus"), "bytes": 2.0 * frame.numbers("message_size")}


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


def _version(frame: Frame) -> str:
    return f"{frame.texts('framework')[0]}-{frame.texts('version')[0]}".lower()
