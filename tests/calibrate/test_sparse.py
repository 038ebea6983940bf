"""Experts, latent attention, weights of 8 bits: fits find what made the data, iterations are composed of them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ooco_gym.calibrate import operators, steps
from ooco_gym.calibrate.fitting import Fitted, errors
from ooco_gym.calibrate.operators import OPERATORS, fit, predict_unseen, with_linears
from ooco_gym.calibrate.rows import Rows, clean
from ooco_gym.errors import UserError
from ooco_gym.perf import kernels
from ooco_gym.perf.chip import load_chip

CHIP = load_chip("h100")
GEMM = kernels.GemmParameters(800e12, 3e12, 4e-6, 2.5, depth=100.0, waste=0.2, padding=0.5, edge=5.0, units=132.0)
EIGHT = replace(GEMM, flops_per_s=1.4e15, cast=5.0)
EXPERTS = kernels.ExpertParameters(650e12, 2.9e12, 3e-5, 2.0, block_rows=12.0, gathers=2.0, inner=6.0, depth=80.0)
PREFILL = kernels.PrefillAttentionParameters(900e12, 2e12, 8e-5, 2.0, critical_flops_per_s=2e12, tile=16.0)
DECODE = kernels.DecodeAttentionParameters(1.5e15, 3e12, 6e-5, 1.5, request_head_s=1e-7, critical_s_per_token=3e-10)
MADE = {"gemm": GEMM, "gemm_fp8": EIGHT, "experts": EXPERTS, "experts_fp8": replace(EXPERTS, flops_per_s=7e14),
        "latent_prefill": PREFILL, "latent_decode": DECODE}
TOKENS = np.array([1, 4, 16, 64, 256, 1024, 2048, 4096, 8192], dtype=float)


def _rows(noise: float = 0.0) -> Rows:
    """Rows as `MADE` has them: experts of six architectures, latents of three numbers of heads, linear layers."""
    parts, draws = [], np.random.default_rng(1)

    def add(op: str, rows: int, **columns: object) -> None:
        part = Rows.of(Path("made"), 1, rows, op=op, device="testchip", time_us=1.0, **columns)
        part = with_linears(part, CHIP, {name: Fitted(vars(one), 0, 0.0) for name, one in MADE.items()})
        kernel = op.removesuffix("_fp8") if op.startswith("latent") else op
        seconds = OPERATORS[kernel].seconds(MADE[kernel], part) * np.exp(noise * draws.standard_normal(rows))
        parts.append(part.with_columns(time_us=1e6 * seconds, alone_us=np.full(rows, np.nan)))

    for hidden, inner, top_k, experts in ((2048, 768, 8, 128), (4096, 1536, 8, 128), (4096, 2048, 8, 256),
                                          (6144, 2560, 8, 160), (4096, 14336, 2, 8), (7168, 2048, 8, 384)):
        for op, tp in (("experts", 1), ("experts", 2), ("experts_fp8", 1)):
            add(op, len(TOKENS), n_tokens=TOKENS, d_in=hidden, d_out=inner / tp, experts=experts, top_k=top_k,
                matrices=3, read=np.minimum(TOKENS * top_k, experts), routed=TOKENS * top_k)
    for op in ("gemm", "gemm_fp8"):
        for d_in, d_out in ((2048, 5120), (4096, 2048), (7168, 36864), (18432, 7168), (7168, 4096), (2048, 7168)):
            add(op, len(TOKENS), n_tokens=TOKENS, d_in=d_in, d_out=d_out)
    for heads in (16, 64, 128):
        batch, q = (one.ravel() for one in np.meshgrid([1.0, 4.0, 16.0], [64.0, 256.0, 1024.0]))
        latent = {"model": "deepseek_v3", "h_q": heads, "batch": batch}
        add("latent_prefill", len(q), n_tokens=batch * q, q_len=q, prefix=0.0, context_len=q, **latent)
        add("latent_prefill_fp8", len(q), n_tokens=batch * q, q_len=q, prefix=0.0, context_len=q, **latent)
        for op in ("latent_decode", "latent_decode_fp8"):
            add(op, len(q), n_tokens=batch, q_len=1.0, prefix=q - 1, context_len=q, **latent)
    attention = kernels.decode_attention(CHIP.extended.decode_attention, 32, 4, 128)  # type: ignore[union-attr]
    batch, context = (one.ravel() for one in np.meshgrid([1.0, 16.0, 64.0], [512.0, 2048.0]))
    parts.append(Rows.of(Path("made"), 1, len(batch), op="attn_decode", device="testchip", h_q=32, h_kv=4, d_h=128,
                         batch=batch, context_len=context, q_len=1.0, n_tokens=batch, time_us=1e6 * attention.seconds(
                             batch * context, batch, batch * context, batch)))
    return Rows.join(parts)


@pytest.mark.parametrize("op", ["experts", "experts_fp8", "gemm_fp8", "latent_prefill", "latent_decode"])
def test_fits_predict_unseen_shapes_of_their_own_form(op: str) -> None:
    """Architectures, widths or numbers of heads that the fit has not seen."""
    kept = clean(_rows(0.01), CHIP)[0]
    known = {name: Fitted(vars(MADE[name]), 0, 0.0) for name in ("gemm", "gemm_fp8")}
    part = with_linears(kept.of_kind(op), CHIP, known)
    fitted = fit(OPERATORS[op], part, CHIP)
    predicted, said = predict_unseen(OPERATORS[op], part, CHIP, start=fitted.found)
    assert "shapes" in said and errors(predicted, part.seconds)["mape"] < 3.0


def test_iterations_of_sparse_models_are_what_their_kernels_take() -> None:
    """Composed of rows that the kernels made they take what the kernels say, in `timing=extended`."""
    kept = clean(_rows(), CHIP)[0]
    composed = steps.compose(kept, sparse=True)
    assert composed is not None and steps.compose(kept) is None  # none of a dense model
    names = [one.name for one in composed.architectures]
    assert {"kimi_k2", "qwen3_30b_a3b"} <= set(names)
    found = MADE | {"decode_attention": CHIP.extended.decode_attention}  # type: ignore[union-attr]
    assert steps.extended_s(found, composed) == pytest.approx(composed.seconds, rel=1e-9)
    which = composed.select(composed.arch == names.index("qwen3_30b_a3b"))
    gemm, experts = kept.of_kind("gemm"), kept.of_kind("experts")
    one = np.flatnonzero((which.batch == 64) & (which.context == 2048))[0]
    expected = sum(gemm.seconds[(gemm["d_in"] == d_in) & (gemm["d_out"] == d_out) & (gemm["n_tokens"] == 64)][0]
                   for d_in, d_out in ((2048, 5120), (4096, 2048)))
    expected += experts.seconds[(experts["d_out"] == 768) & (experts["n_tokens"] == 64)][0]
    decode = kept.of_kind("attn_decode")
    expected += decode.seconds[(decode["batch"] == 64) & (decode["context_len"] == 2048)][0]
    assert which.seconds[one] == pytest.approx(48 * expected)


def test_a_model_left_out_has_no_row_in_the_fit() -> None:
    """Neither its experts, however they are split, nor its heads or linear layers."""
    kept = clean(_rows(), CHIP)[0]
    composed = steps.compose(kept, sparse=True)
    assert composed is not None
    names = [one.name for one in composed.architectures]
    known = kept.select(steps._of_other_architectures(kept, composed.select(composed.arch == names.index("kimi_k2")),
                                                      composed))
    experts = known.of_kind("experts_fp8")
    assert len(experts) and not (experts["experts"] == 384).any()
    assert set(known.of_kind("latent_prefill_fp8")["h_q"]) == {16, 128}
    assert (known.of_kind("gemm_fp8")["d_in"] != 18432).all()


def test_rows_without_a_gate_have_two_matrices() -> None:
    three, two = (kernels.experts_s(replace(EXPERTS, exponent=math.inf), 4096, 1024, 64, 64, 64, matrices=number)
                  for number in (3, 2))
    assert float(three) > 1.3 * float(two)


def test_latent_rows_of_another_model_are_refused() -> None:
    rows = Rows.of(Path("m.csv"), 2, 1, op="latent_decode", model="llama_3_1_8b", h_q=16, batch=1, q_len=1,
                   context_len=64, time_us=1.0)
    with pytest.raises(UserError, match="m.csv, row 2: latent attention of 16 heads is none of model 'llama_3_1_8b'"):
        operators.with_linears(rows, CHIP, {})


def test_activations_written_anew_in_eight_bits_take_longer() -> None:
    """`cast` adds what the inner width's bytes take, and leaves what has none as it was."""
    m, k, n = np.array([1.0, 4096.0]), 4096.0, 8192.0
    plain = kernels.gemm_s(replace(EIGHT, cast=0.0), m, k, n, 2.0, 1.0)
    assert kernels.gemm_s(EIGHT, m, k, n, 2.0, 1.0) - plain == pytest.approx(5.0 * m * k / 3e12)
