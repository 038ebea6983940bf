"""Rows that no fit may see are left out and named."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ooco_gym.calibrate.operators import with_bytes
from ooco_gym.calibrate.rows import Rows, clean, fastest_kernels
from ooco_gym.perf.chip import load_chip

CHIP = load_chip("a100_80g")


def _gemms(times_us: list[float], tokens: float = 512.0, d_in: float = 4096.0, d_out: float = 14336.0) -> Rows:
    return Rows.of(Path("t.csv"), 2, len(times_us), op="gemm", n_tokens=tokens, d_in=d_in, d_out=d_out,
                   time_us=np.array(times_us))


def test_impossible_times_are_named_by_row() -> None:
    flops_us = 1e6 * 2 * 512 * 4096 * 14336 / CHIP.peak_flops_per_s
    kept, excluded = clean(_gemms([2 * flops_us, -1.0, np.nan, 0.5 * flops_us]), CHIP)
    assert len(kept) == 1
    reasons = {item.reason: item for item in excluded}
    assert reasons["time is not positive"].first == ["t.csv, row 3", "t.csv, row 4"]
    assert reasons["faster than 1.1 times the chip's peak FLOP/s"].first == ["t.csv, row 5"]


def test_missing_shapes_and_cached_weights() -> None:
    rows = Rows.join([_gemms([300.0]), _gemms([300.0], d_in=np.nan), _gemms([20.0], d_in=512.0, d_out=512.0),
                      Rows.of(Path("t.csv"), 9, 1, op="conv", time_us=3.0)])
    kept, excluded = clean(rows, CHIP)
    assert len(kept) == 1 and sum(item.rows for item in excluded) == 3
    assert any("16 MB" in item.reason for item in excluded)


def test_known_bad_rows_of_public_tables() -> None:
    attention = {"op": "attn_prefill", "batch": 4.0, "q_len": 512.0, "d_h": 128.0, "time_us": 100.0}
    rows = Rows.join([
        Rows.of(Path("a"), row, 1, source=f"aiconfigurator/vllm-{version}", device="h200_sxm", h_q=heads, h_kv=kv_heads,
                **attention)
        for row, version, heads, kv_heads in (
            (1, "0.19.0", 32.0, 8.0), (2, "0.24.0", 4.0, 4.0), (3, "0.24.0", 32.0, 8.0))])
    kept, excluded = clean(rows, CHIP)
    assert kept["row"].tolist() == [3] and all("known to be wrong" in item.reason for item in excluded)


def test_of_several_kernels_the_fastest_counts() -> None:
    rows = Rows.of(Path("a"), 1, 4, op="all_reduce", n_gpus=2.0, bytes=np.array([1e3, 1e3, 1e6, 1e6]),
                   kernel=["a", "b", "a", "b"], time_us=np.array([5.0, 9.0, 40.0, 20.0]))
    assert sorted(fastest_kernels(rows)["time_us"]) == [5.0, 20.0]


def test_bytes_of_elementwise_operators() -> None:
    shape = {"d_in": 4096.0, "n_tokens": 10.0, "h_q": 32.0, "h_kv": 8.0, "d_h": 128.0, "tp": 1.0, "model": "m"}
    rows = Rows.join([Rows.of(Path("a"), 1, 4, op=["elt:norm", "elt:act_fn", "elt:rotary_emb", "elt:unheard_of"],
                              d_out=np.array([np.nan, 14336.0, np.nan, np.nan]), time_us=3.0, **shape)])
    found, unknown = with_bytes(rows)
    assert unknown == 1
    assert found["bytes"].tolist() == [4 * 2 * 4096 * 10, 3 * 2 * 14336 * 10, 2 * 2 * 40 * 128 * 10]
