"""The table of errors on the calibration's page: quantiles, and a comment where a fit is poor."""

from __future__ import annotations

import numpy as np
import pytest

from ooco_gym.calibrate.show import error_rows, error_table


def panel(name: str, factors: np.ndarray) -> dict:
    size = np.arange(1.0, len(factors) + 1)
    return {"name": name, "by": "tokens", "size": size, "seconds": size, "predicted": {"ooco": size * factors}}


def test_quantiles_are_of_relative_errors() -> None:
    (row,) = error_rows([panel("gemm", np.tile([0.98, 1.01, 1.03], 33))])
    assert (row.operation, row.form, row.points) == ("gemm", "ooco", 99)
    assert (row.median, row.p90) == (pytest.approx(0.02), pytest.approx(0.03))
    assert row.comment == ""


def test_a_poor_fit_is_commented_with_where_it_is_wrong() -> None:
    factors = np.concatenate([np.full(40, 0.5), np.full(50, 1.01)])
    poor, good = error_rows([panel("attn <x>", factors), panel("gemm", np.ones(9))])
    assert poor.comment == ("poor: +1.0 % in the median, -50.0 % up to 31 and +1.0 % from 60 tokens; "
                            "worst at small sizes")
    (wild,) = error_rows([panel("gemm", np.tile([0.5, 1.5], 45))])
    assert wild.comment.endswith("tokens; scattered at all sizes")
    (few,) = error_rows([panel("gemm", np.full(3, 2.0))])
    assert few.comment == "poor: +100.0 % in the median"
    table = error_table([poor, good]).html()
    assert table.count("class=marked") == 1 and "attn &lt;x&gt;" in table and good.comment == ""
