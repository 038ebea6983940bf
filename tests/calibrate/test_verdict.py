"""Each fit is judged; kinds of element-wise operators have their own launch and rate; a poor fit says what to do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ooco_gym.calibrate.command import notes, table
from ooco_gym.calibrate.operators import OPERATORS, fit, predict_unseen
from ooco_gym.calibrate.rows import Rows
from ooco_gym.calibrate.times import elementwise_kinds
from ooco_gym.perf import kernels
from ooco_gym.perf.chip import load_chip

CHIP = load_chip("rtx4090")
TRUE = kernels.ElementwiseParameters(
    1e12, 2e-6, 1.5, cache_bytes=6e7, spilled_bytes_per_s=1.5e12, norm_launch_s=2e-6, norm_bytes_per_s=3e12,
    activation_launch_s=4e-6, activation_bytes_per_s=1.5e12, rotary_launch_s=2.5e-6, rotary_bytes_per_s=2e12)
ERRORS = {"mape": 3.0, "median": 2.0, "p90": 8.0, "p95": 10.0, "worst": 20.0, "median_bias": 1.0, "rows": 50,
          "verdict": "good"}
BAD = ERRORS | {"median": 14.0, "p90": 60.0, "median_bias": -14.0, "verdict": "poor"}


def measured(widths: tuple[int, ...] = (4096,)) -> Rows:
    """Rows of three kinds that follow `TRUE`."""
    parts = []
    for op, name in (("elt:layernorm", "norm"), ("elt:act_fn", "activation"), ("elt:rotary_emb", "rotary")):
        for width in widths:
            tokens = np.unique(np.geomspace(1, 8192, 40).astype(int)).astype(float)
            moved = 8.0 * width * tokens
            parts.append(Rows.of(Path("elt.csv"), 2, len(tokens), op=op, n_tokens=tokens, d_in=float(width), tp=1.0,
                                 bytes=moved, time_us=1e6 * kernels.elementwise_s(TRUE, moved, name)))
    return Rows.join(parts)


@pytest.mark.parametrize("widths", [(4096,), (2048, 5120)])
def test_kinds_of_elementwise_operators_are_told_apart_on_what_the_fit_has_not_seen(widths: tuple[int, ...]) -> None:
    rows, operator = measured(widths), OPERATORS["elementwise"]
    found = fit(operator, rows, CHIP)
    predicted, said = predict_unseen(operator, rows, CHIP, 0, found.found)
    assert ("sizes" if len(widths) == 1 else "shapes") in said
    for kind in ("norm", "activation", "rotary"):
        mine = elementwise_kinds(rows) == kind
        assert np.median(np.abs(predicted[mine] / rows.seconds[mine] - 1)) < 0.06, kind
    p = operator.parameters(found.found)
    assert p.activation_bytes_per_s == pytest.approx(TRUE.activation_bytes_per_s, rel=0.3)
    other = kernels.elementwise_s(p, 1e6, "embedding")
    assert kernels.elementwise_s(p, 1e6, "norm") < other < kernels.elementwise_s(p, 1e6, "activation")


def test_a_poor_fit_says_what_to_do_wherever_it_is_shown() -> None:
    errors = [one | {"held_out": "shapes"} for one in (
        ERRORS | {"operation": "gemm", "form": "extended"}, BAD | {"operation": "attn_decode", "form": "extended"},
        BAD | {"operation": "iterations", "form": "ooco"}, ERRORS | {"operation": "iterations", "form": "extended"})]
    summary = {"device": "d", "errors": errors, "excluded": [], "not_fitted": [], "skipped_by_readers": {}, "notes": []}
    lines = [line for line in notes(summary) if line.startswith("poor: ")]
    assert len(lines) == 2 and all("take timing=" in line and "14 % off in the median" in line for line in lines)
    assert [row[-1] for row in table(summary).rows].count("poor") == 2
