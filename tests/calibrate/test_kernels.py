"""The kernels themselves: what they reduce to, where they must not be negative, and how they are read."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooco_gym.perf import kernels

GEMM = kernels.GemmParameters(200e12, 1.5e12, 5e-6, 2.5, 100.0, 0.3, 0.6, 8.0, 0.02, 108.0)


def test_without_its_terms_a_gemm_is_the_roofline() -> None:
    roofline = kernels.GemmParameters(200e12, 1.5e12, exponent=math.inf)
    m, k, n = np.array([1.0, 128.0, 4096.0]), 4096.0, 14336.0
    expected = np.maximum(2 * m * k * n / 200e12, 2 * (m * k + k * n + m * n) / 1.5e12)
    np.testing.assert_allclose(kernels.gemm_s(roofline, m, k, n), expected)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 20_000), st.integers(64, 20_000), st.integers(64, 60_000))
def test_a_gemm_takes_at_least_its_launch_and_its_roofs(m: int, k: int, n: int) -> None:
    compute, memory = kernels.gemm_roofs_s(GEMM, m, k, n)
    seconds = kernels.gemm_s(GEMM, m, k, n)
    assert seconds >= GEMM.launch_s + max(compute, memory) * (1 - 1e-12)
    assert seconds <= GEMM.launch_s + compute + memory + 1e-15


def test_prefill_attention_packs_heads_counts_the_triangle_and_stores_keys() -> None:
    p = kernels.PrefillAttentionParameters(1e14, 1e15, exponent=math.inf, tile=64.0)
    assert kernels.prefill_attention(p, 32, 8, 128).tile == 64
    packed = kernels.prefill_attention(replace(p, packed=1.0), 32, 8, 128)
    assert packed.tile == 16
    features = packed.features([1024], [1024])
    assert packed.seconds(*features) == pytest.approx(4 * 32 * 128 * 1024 * 512 / 1e14)
    stored = kernels.prefill_attention(replace(p, store_s=1e-12), 32, 2, 128)
    assert stored.linear_s[1] == pytest.approx(256e-12)
    capped = kernels.prefill_attention(replace(p, store_s=1e-12), 32, 32, 128)
    assert capped.linear_s[1] == pytest.approx(512e-12)


def test_all_reduce_is_nothing_on_one_chip_and_switches_kernels() -> None:
    p = kernels.AllReduceParameters(100e9, 5e-6, 1e-6, direct_bytes_per_s=200e9, ring_latency_s=10e-6,
                                    switch_bytes=1e7, switched_bytes_per_s=150e9, switched_latency_s=4e-5)
    assert kernels.allreduce_s(p, 1e6, 1) == 0
    assert kernels.allreduce_s(p, 1e3, 4) == pytest.approx(8e-6 + 3e3 / 200e9)
    assert kernels.allreduce_s(p, 5e6, 8) == pytest.approx(22e-6 + 1.75 * 5e6 / 100e9)
    assert kernels.allreduce_s(p, 2e7, 2) == pytest.approx(4e-5 + 2e7 / 150e9)
