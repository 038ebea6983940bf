"""Measurements of a chip that we made up: rows that follow known kernels, with a little noise."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from ooco_gym.perf import kernels

GEMM = kernels.GemmParameters(200e12, 1.6e12, 5e-6, 2.5, depth=100.0, waste=0.2, padding=0.5, edge=5.0, units=108.0)
PREFILL = kernels.PrefillAttentionParameters(150e12, 1.5e12, 8e-6, 2.0, row_tokens=100.0, critical_flops_per_s=2e12,
                                             tile=64.0)
DECODE = kernels.DecodeAttentionParameters(80e12, 1.4e12, 12e-6, 2.0, request_head_s=3e-8)
ALLREDUCE = kernels.AllReduceParameters(150e9, 5e-6, 1e-6)
SHAPES = ((4096, 6144), (4096, 4096), (4096, 28672), (14336, 4096), (8192, 10240), (8192, 8192), (3584, 37888))
HEADS = ((32, 8), (32, 32), (28, 4))


def rows(seed: int = 0, noise: float = 0.01) -> list[dict[str, object]]:
    """Rows of our own schema: GEMMs, both kinds of attention, and all-reduce."""
    draws, found = np.random.default_rng(seed), []

    def add(op: str, seconds: float, **shape: float) -> None:
        time_us = 1e6 * float(seconds) * float(np.exp(noise * draws.standard_normal()))
        found.append({"device": "testchip", "op": op, "source": "synthetic", "time_us": time_us, **shape})

    for d_in, d_out in SHAPES:
        for tokens in (1, 4, 16, 33, 64, 100, 128, 200, 256, 512, 1000, 1024, 2048, 4096, 8192):
            add("gemm", kernels.gemm_s(GEMM, tokens, d_in, d_out), n_tokens=tokens, d_in=d_in, d_out=d_out)
    for heads, kv_heads in HEADS:
        prefill, decode = (form(parameters, heads, kv_heads, 128) for form, parameters in (
            (kernels.prefill_attention, PREFILL), (kernels.decode_attention, DECODE)))
        for batch in (1, 4, 16, 64):
            for context in (64, 256, 1024, 4096):
                shape = {"batch": batch, "h_q": heads, "h_kv": kv_heads, "d_h": 128, "context_len": context}
                features = batch * prefill.features([context], [context])
                tokens = {"q_len": context, "prefix": 0, "n_tokens": batch * context}
                add("attn_prefill", prefill.seconds(*features), **tokens, **shape)
                total = batch * context
                add("attn_decode", decode.seconds(total, batch, total, batch), q_len=1, n_tokens=batch, **shape)
    for chips in (2, 4, 8):
        for size in 2 ** np.arange(10, 28, 2):
            add("all_reduce", kernels.allreduce_s(ALLREDUCE, float(size), chips), n_gpus=chips, bytes=int(size))
    return found


def write(path: Path, measurements: list[dict[str, object]]) -> Path:
    names = list(dict.fromkeys(name for row in measurements for name in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, restval="")
        writer.writeheader()
        writer.writerows(measurements)
    return path
