"""The search for the sustainable rate, on curves that are known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooco_gym.study.search import EDGES, MOST_RATES, Crossing, Limits, Point, SearchPlan, crossing_near, first_crossing
from ooco_gym.study.tuning import tune

LIMITS = Limits()
PLAN = SearchPlan(first=0.1, factor=1.5, last=20.0, precision=0.02)


def point(rate, violations, kept_up=1.0):
    violations, kept_up = np.atleast_1d(violations), np.broadcast_to(kept_up, np.shape(np.atleast_1d(violations)))
    served = np.full(violations.shape, 1000.0 * rate)
    kept_up = np.array(kept_up, float)
    return Point(rate, violations, kept_up, kept_up, served)


@given(st.floats(0.2, 15.0))
@settings(max_examples=30, deadline=None)
def test_finds_a_knee_from_below(knee):
    found = first_crossing(lambda rate: point(rate, 0.01 if rate <= knee else 0.2), PLAN, LIMITS)
    assert found.best is not None and found.failed is not None
    assert found.best.rate <= knee < found.failed.rate
    assert found.failed.rate - found.best.rate <= 0.02 * found.failed.rate * 1.0001


@given(st.floats(0.5, 8.0), st.sampled_from([0.0, 0.3, 1.0, 3.0, 12.0]), st.floats(0.0, 0.4))
@settings(max_examples=15, deadline=None)
def test_finds_the_mean_knee_from_near_it_and_measures_as_far_as_the_interval_reaches(knee, near, spread):
    knees = knee * np.exp(spread * np.random.default_rng(1).standard_normal(20))
    found = crossing_near(lambda rate: point(rate, 0.03 * (rate / knees) ** 3), near, PLAN, LIMITS)
    true = np.mean(1 / knees**3) ** (-1 / 3)
    assert found.best is not None and found.failed is not None and len(found.points) <= MOST_RATES
    assert found.best.rate <= true < found.failed.rate
    if len(found.points) < MOST_RATES:
        assert found.failed.rate - found.best.rate <= 0.02 * found.failed.rate * 1.0001
        low, high = np.quantile(found.resampled[0], [0.025, 0.975])
        beside = [one.rate for one in found.points[1:]]
        assert sum(one > found.failed.rate for one in beside) >= EDGES or high < beside[-1]
        assert sum(one < found.best.rate for one in beside) >= EDGES or low > beside[0] * 0.999


def test_a_growing_backlog_does_not_hold():
    found = first_crossing(lambda rate: point(rate, 0.0, min(1.0, 2.0 / max(rate, 1e-9))), PLAN, LIMITS)
    assert found.best is not None
    assert found.best.rate == pytest.approx(2.0 / 0.98, rel=0.03)


def test_a_knee_below_the_grid_is_bisected_from_zero():
    found = first_crossing(lambda rate: point(rate, 0.01 if rate <= 0.03 else 0.2), PLAN, LIMITS)
    assert found.best is not None
    assert found.best.rate == pytest.approx(0.03, rel=0.03)


def test_resamples_of_seeds_cross_where_their_mean_does():
    points = [point(rate, np.array([0.01 * rate, 0.02 * rate, 0.001 * rate])) for rate in (0.0, 1.0, 2.0, 4.0)]
    draws = np.array([[0, 0, 0], [1, 1, 1], [2, 2, 2], [0, 1, 2], [0, 0, 1]])
    rates, tokens = Crossing(points, LIMITS).of(draws)
    assert rates == pytest.approx([3.0, 1.5, 4.0, 0.03 / (0.031 / 3), 0.03 / (0.04 / 3)])
    assert tokens == pytest.approx(1000 * rates)


def test_tuning_finds_the_candidate_that_holds_the_highest_rate():
    knees = {"p": 1.0, "p:cap=1": 0.8, "p:cap=2": 1.35, "p:cap=3": 1.2}
    asked = []

    def evaluate(policy, rate):
        asked.append(policy)
        return point(rate, 0.01 if rate <= knees[policy] else 0.2)

    policy, rate, default_rate = tune("p", list(knees)[1:], evaluate, PLAN, LIMITS)
    assert policy == "p:cap=2" and 1.35 / 1.08 <= rate <= 1.35 and default_rate == pytest.approx(1.0, rel=0.03)
    assert set(asked) == set(knees)
