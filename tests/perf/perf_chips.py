"""What the tests of timing share: an H200 with kernels as fits to public tables have them, made-up measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet

from ooco_gym.perf import Deployment, ModelSpec
from ooco_gym.perf.timing import Attention
from ooco_gym.perf.timing.extended import fused_linears
from ooco_gym.resources import load_yaml

KERNELS: dict[str, dict[str, float]] = {
    "gemm": {"flops_per_s": 868e12, "memory_bytes_per_s": 3.96e12, "launch_s": 3.7e-6, "exponent": 3.63, "depth": 127,
             "waste": 0.31, "padding": 0.31, "tall": 0.057, "units": 132},
    "prefill_attention": {"flops_per_s": 662e12, "memory_bytes_per_s": 3.09e12, "launch_s": 9.4e-6, "exponent": 2.02,
                          "row_tokens": 425, "critical_flops_per_s": 4e12, "reread": 2},
    "decode_attention": {"flops_per_s": 180e12, "memory_bytes_per_s": 5.31e12, "launch_s": 11.9e-6, "exponent": 2.16,
                         "group_rows": 29, "request_head_s": 17e-9},
    "allreduce": {"bytes_per_s": 278e9, "latency_s": 4.8e-6, "rank_latency_s": 0.5e-6},
    "elementwise": {"memory_bytes_per_s": 3.5e12, "launch_s": 2e-6},
    "overhead": {"prefill_s": 1e-4, "decode_s": 6e-5, "sequence_s": 1e-6},
}


def chip(**changes: Any) -> dict[str, Any]:
    """An H200 with `KERNELS`; `changes` are fields."""
    return load_yaml("chip", "h200") | {"name": "h200_kernels", "extended": KERNELS, "validity": None} | changes


def deploy(timing: str, model: Any = "llama_3_1_8b", tp: int = 1, **changes: Any) -> Deployment:
    return Deployment.from_config({"chip": chip(**changes), "model": model, "tp": tp, "timing": timing})


def measured_rows(model: ModelSpec, tokens: tuple[int, ...] = (1, 8, 64, 512)) -> list[dict[str, Any]]:
    """Made-up times in µs of all operators of a model on one chip, each nearly affine in its sizes."""
    heads = {"h_q": model.heads, "h_kv": model.kv_heads, "d_h": model.head_dim}
    rows: list[dict[str, Any]] = []
    for linear in fused_linears(model, 1):
        rows += [{"op": f"gemm:{linear.name}", "n_tokens": n, "d_in": linear.d_in, "d_out": linear.d_out,
                  "time_us": 20 + 0.3 * n} for n in tokens]
    rows += [{"op": "gemm:lm_head", "n_tokens": n, "d_in": model.hidden, "d_out": model.vocab, "time_us": 900 + n}
             for n in tokens]
    for name in ("layernorm", "rotary_emb", "act_fn", "embedding", "sampler"):
        rows += [{"op": f"elt:{name}", "n_tokens": n, "d_in": model.hidden, "tp": 1, "time_us": 2 + 0.01 * n, **heads}
                 for n in tokens]
    rows += [{"op": "attn_decode", "batch": b, "context_len": c, "time_us": 9 + 0.002 * b * c, **heads}
             for b in (1, 4, 32) for c in (16, 256, 4096)]
    rows += [{"op": "attn_prefill", "batch": 1, "q_len": q, "prefix": c, "time_us": 10 + 1e-4 * q * (c + q), **heads}
             for q in (16, 256, 2048) for c in (0, 512, 8192)]
    return rows


def write_tables(path: Path, rows: list[dict[str, Any]]) -> str:
    """Writes measurements as a Parquet file and returns its path."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    pyarrow.parquet.write_table(pyarrow.table({name: [row.get(name) for row in rows] for name in names}), path)
    return str(path)


def prefill_s(attention: Attention, q: float, kv: float) -> float:
    """Attention of one prompt with `q` new tokens of `kv`."""
    return float(attention.seconds(*attention.features(np.array([q]), np.array([kv]))))


def decode_s(attention: Attention, batch: float, context: Any) -> np.ndarray:
    """Attention of decode steps of `batch` requests at mean contexts."""
    requests, total = np.full(np.shape(context), batch), batch * np.asarray(context)
    return attention.seconds(total, requests, total, requests)
