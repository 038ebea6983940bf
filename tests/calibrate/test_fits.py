"""Fits find the parameters that made the data, and are judged on what they have not seen."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooco_gym.calibrate import operators, sources, steps
from ooco_gym.calibrate.fitting import errors, folds
from ooco_gym.calibrate.operators import OPERATORS, SHAPES, fit, predict_unseen
from ooco_gym.calibrate.rows import Rows, clean
from ooco_gym.perf.chip import load_chip
from tests.calibrate import synthetic

CHIP = load_chip("a100_80g")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    path = synthetic.write(tmp_path_factory.mktemp("data") / "rows.csv", synthetic.rows())
    return clean(Rows.join(sources.read(path, sources.Context()).rows), CHIP)[0]


@pytest.mark.parametrize("op, limit", [("gemm", 2.0), ("attn_prefill", 3.0), ("attn_decode", 2.5), ("all_reduce", 3.0)])
def test_extended_predicts_unseen_shapes_of_its_own_form(rows: Rows, op: str, limit: float) -> None:
    part, operator = rows.of_kind(op), OPERATORS[op]
    fitted = fit(operator, part, CHIP)
    predicted, said = predict_unseen(operator, part, CHIP, start=fitted.found)
    shapes = len(np.unique(part.distinct(*SHAPES[op])))
    alone = len(part) <= 100 and shapes > 5
    assert said == (f"each of {shapes} shapes" if alone else f"{min(5, shapes)} folds of shapes")
    assert errors(predicted, part.seconds)["mape"] < limit


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 9), min_size=2, max_size=60), st.integers(0, 5))
def test_folds_keep_groups_whole_and_use_all_folds(groups: list[int], seed: int) -> None:
    fold = folds(np.array(groups), seed)
    for group in set(groups):
        assert len({int(value) for value, name in zip(fold, groups, strict=True) if name == group}) == 1
    assert set(fold.tolist()) == set(range(min(5, len(set(groups)))))


def test_iterations_are_composed_of_measured_operators(rows: Rows) -> None:
    composed = steps.compose(rows)
    assert composed is not None
    names = [item.name for item in composed.architectures]
    index = names.index("llama_3_1_8b")
    architecture = composed.architectures[index]
    assert architecture.gemms[:4] == [(4096, 6144), (4096, 4096), (4096, 28672), (14336, 4096)]
    one = np.flatnonzero((composed.arch == index) & ~composed.prefill & (composed.batch == 64)
                         & (composed.context == 1024))[0]
    gemm, decode = rows.of_kind("gemm"), rows.of_kind("attn_decode")
    expected = sum(gemm.seconds[(gemm["d_in"] == d_in) & (gemm["d_out"] == d_out) & (gemm["n_tokens"] == 64)][0]
                   for d_in, d_out in architecture.gemms)
    expected += decode.seconds[(decode["h_q"] == 32) & (decode["h_kv"] == 8) & (decode["batch"] == 64)
                               & (decode["context_len"] == 1024)][0]
    assert composed.seconds[one] == pytest.approx(32 * expected)


def test_both_forms_are_judged_on_unseen_architectures(rows: Rows) -> None:
    composed = steps.compose(rows)
    assert composed is not None and len(composed.architectures) > 1
    roofline = steps.fit_roofline(composed, CHIP)
    fitted = {op: item.found for op, item in operators.fit_kernels(rows, CHIP).items()}
    found = {form: errors(one, composed.seconds) for form, one in steps.unseen(
        composed, rows, CHIP, 0, {"ooco": roofline.found, "extended": fitted}).items()}
    assert found["extended"]["mape"] < 3 and 0.1 < found["ooco"]["mape"] < 10
