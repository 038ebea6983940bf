"""Rounding at the door: what another processor computes in its last bits comes out the same."""

from __future__ import annotations

import numpy as np
import pytest

from ooco_gym.rounding import least_squares, steady


def test_a_last_bit_does_not_pass_the_door() -> None:
    values = np.exp(np.random.default_rng(3).normal(size=10_000))
    beside = np.nextafter(values, np.inf)
    assert np.array_equal(steady(values), steady(beside))
    assert np.abs(steady(values) / values - 1.0).max() < 2.0**-24
    assert steady(0.1) == steady(np.nextafter(0.1, 1.0)) and isinstance(steady(0.1), float)


@pytest.mark.parametrize("negative", [False, True])
def test_fitted_parameters_are_the_same_after_another_sum(negative: bool) -> None:
    draws = np.random.default_rng(4)
    columns = draws.uniform(1.0, 2.0, (500, 4)) * np.array([1.0, 1e4, 1e9, 1.0])
    columns[:, 3] = 0.0
    target = columns @ np.array([3.0, -2e-4 if negative else 0.0, 1e-9, 0.0]) + draws.normal(size=500)
    order = draws.permutation(500)  # the same fit, whose sums round otherwise
    found = least_squares(columns, target, negative)
    assert np.array_equal(found, least_squares(columns[order], target[order], negative))
    assert found[3] == 0.0 and all(float(f"{one:.6g}") == one for one in found)
    exact = np.linalg.lstsq(columns[:, :3], target, rcond=None)[0]
    if negative or (exact >= 0.0).all():
        assert found[:3] == pytest.approx(exact, rel=1e-5)


def test_a_parameter_that_is_but_rounding_is_none() -> None:
    columns = np.column_stack([np.ones(50), np.arange(50.0) ** 2])
    assert least_squares(columns, 7.0 * np.ones(50), negative=True)[1] == 0.0
