"""Intervals over seeds and windows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooco_gym.metrics.statistics import (
    expanded_tail,
    interval,
    interval_words,
    paired_interval,
    resampled_estimate,
    resampled_interval,
    within,
)

FIGURES = st.lists(st.floats(-100, 100), min_size=2, max_size=8)


@given(FIGURES)
@settings(max_examples=25, deadline=None)
def test_interval_holds_the_mean_and_stays_within_the_figures(values):
    mean, low, high = interval(values, n_boot=500)
    slack = 1e-9 * (1 + max(map(abs, values)))
    assert min(values) - slack <= low <= mean + slack
    assert mean - slack <= high <= max(values) + slack


def test_pairing_removes_what_seeds_share():
    seeds = np.array([0.0, 10.0, 20.0, 30.0])
    assert paired_interval(seeds + 1.0, seeds) == (1.0, 1.0, 1.0)


def test_three_seeds_span_themselves():
    assert expanded_tail(3) < 1e-6
    assert interval([1.0, 2.0, 6.0])[1:] == (1.0, 6.0)


def test_figures_of_resamples():
    values = np.arange(27.0)
    assert resampled_interval(values, 3) == pytest.approx((0.0, 26.0), abs=1e-3)
    low, high = resampled_interval(np.arange(10_001.0), 30)
    assert 0.01 < low / 10_000 < 0.025 and 0.975 < high / 10_000 < 0.99
    assert math.isnan(resampled_interval([1.0], 1)[0])


def test_one_figure_has_no_interval():
    mean, low, high = interval([2.5])
    assert mean == 2.5
    assert math.isnan(low) and math.isnan(high)
    assert math.isnan(interval([1.0, math.nan])[1])


def test_a_violation_rate_is_within_the_budget_by_its_upper_limit():
    assert within([0.01, 0.02, 0.015], 0.03)
    assert not within([0.01, 0.05, 0.02], 0.03)  # the mean is within, the upper limit is not
    assert within([0.02], 0.03) and not within([0.04], 0.03)
    assert within([0.0, 0.0], 0.03)
    assert not within([None], 0.03) and not within([0.01, None, 0.01], 0.03)  # nothing was served: nothing was kept


def test_a_footnote_says_which_interval_it_is_and_advises_more_seeds():
    few, enough = interval_words(3), interval_words(5)
    assert "bootstrap over 3 seeds, widened to match Student's t" in few and "at least 5 seeds are advised" in few
    assert "5 seeds" in enough and "advised" not in enough
    assert "no interval" in interval_words(1) and "advised" in interval_words(1)


def test_coverage_is_near_its_name():
    rng = np.random.default_rng(1)
    hits = 0
    for trial in range(200):
        _, low, high = interval(rng.normal(0, 1, 10), n_boot=400, seed=trial)
        hits += low <= 0 <= high
    assert 0.88 <= hits / 200 <= 0.99


@given(FIGURES)
@settings(max_examples=25, deadline=None)
def test_an_interval_of_resamples_holds_its_estimate(values):
    estimate, low, high = resampled_estimate(values, len(values))
    assert low <= estimate <= high
