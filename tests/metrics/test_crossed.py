"""Figures of several runs on the same windows: as rliable defines them, with intervals that cover."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ooco_gym.metrics import crossed
from ooco_gym.metrics.statistics import expanded_tail, interval

GRIDS = st.integers(0, 2**32 - 1).flatmap(lambda key: st.tuples(
    st.just(key), st.integers(1, 12), st.integers(1, 12), st.integers(2, 40)))


def grids(key, mine, other, windows, whole=False):
    random = np.random.default_rng(key)
    draw = (lambda n: random.integers(0, 4, (n, windows)).astype(float)) if whole else (
        lambda n: random.normal(0.5, 1.0, (n, windows)))
    return draw(mine), draw(other)


@given(GRIDS)
@settings(deadline=None, max_examples=40)
def test_aggregates_are_rliables(parts):
    mine = grids(*parts)[0]
    assert crossed.iqm(mine) == pytest.approx(stats.trim_mean(mine, proportiontocut=0.25, axis=None))


@given(GRIDS, st.booleans())
@settings(deadline=None, max_examples=40)
def test_probability_of_improvement_is_mann_whitneys_u(parts, ties):
    mine, other = grids(*parts, whole=ties)
    each = [stats.mannwhitneyu(mine[:, w], other[:, w], alternative="greater").statistic / (len(mine) * len(other))
            for w in range(mine.shape[1])]
    assert crossed.probability_of_improvement(mine, other) == pytest.approx(np.mean(each))
    assert crossed.probability_of_improvement(other, mine) == pytest.approx(1 - np.mean(each))


@pytest.mark.parametrize("windows", [3, 12, 36])
def test_of_one_run_it_is_the_plain_bootstrap_over_windows(windows):
    values = np.random.default_rng(7).gamma(2.0, 1.0, windows)
    assert crossed.crossed_tail(values[None, :]) == pytest.approx(expanded_tail(windows))
    assert crossed.crossed_tail(values[:, None]) == pytest.approx(expanded_tail(windows))  # one window, many runs
    got, expected = crossed.estimate(values), interval(values)
    spread = expected[2] - expected[1]
    assert got.value == pytest.approx(expected[0])
    assert (got.low, got.high) == pytest.approx(expected[1:], abs=0.03 * spread)


def test_intervals_cover_what_runs_and_windows_have_in_common():
    """Effects of 5 runs and of 20 windows: 95 % intervals hold the truth about as often as they say; an interval that
    took the 100 figures for independent ones would hold it in half of the cases."""
    random, held, naive = np.random.default_rng(0), 0, 0
    for trial in range(200):
        values = (random.normal(0, 0.5, (5, 1)) + random.normal(0, 1.0, (1, 20)) + random.normal(0, 0.3, (5, 20)))
        got = crossed.estimate(values, n_boot=600, seed=trial)
        held += got.low <= 0.0 <= got.high
        half = 1.96 * values.std() / 10
        naive += abs(values.mean()) <= half
    assert 183 <= held <= 200
    assert naive < 150


def test_a_share_of_two_others_has_the_freedom_of_its_runs():
    """Load differs much between windows, and is common to all; what a share varies by is five runs."""
    random = np.random.default_rng(0)
    load, gap, runs = random.normal(50, 10, (1, 30)), random.gamma(4, 0.5, (1, 30)), random.normal(0, 1, (5, 1))
    mine, most = load + 0.5 * gap + runs, load + gap

    def share(mine, best, most):
        return (crossed.mean(mine) - crossed.mean(best)) / (crossed.mean(most) - crossed.mean(best))

    value = float(share(mine, load, most))
    got = crossed.estimate(mine, share, [load, most], weights=(1 - value, value))
    drawn = crossed.resampled([mine, load, most], share)
    freedom_4 = stats.norm.cdf(-stats.t.ppf(0.975, 4) * np.sqrt(5 / 4))
    assert (got.low, got.high) == pytest.approx(tuple(np.quantile(drawn, [freedom_4, 1 - freedom_4])), rel=0.02)
    by_windows = np.quantile(drawn, [expanded_tail(30), 1 - expanded_tail(30)])
    assert got.high - got.low > 1.2 * (by_windows[1] - by_windows[0])
    for weights in (None, (1.0,)):
        with pytest.raises(ValueError, match="weight each"):
            crossed.estimate(mine, share, [load, most], weights=weights)


def test_the_same_windows_are_drawn_for_all():
    """What all share in a window cancels: policies that differ by a constant differ by it in every resample."""
    random = np.random.default_rng(5)
    other = np.tile(random.normal(0, 10, (1, 30)), (4, 1))
    got = crossed.estimate(other[:2] + 1.0, lambda a, b: crossed.mean(a) - crossed.mean(b), [other])
    assert got == pytest.approx((1.0, 1.0, 1.0))
    assert crossed.estimate(other + 1.0, crossed.probability_of_improvement, [other]) == pytest.approx((1.0, 1.0, 1.0))


def test_what_has_no_spread_has_no_interval():
    assert crossed.estimate([[2.0]]).value == 2.0 and np.isnan(crossed.estimate([[2.0]]).low)
    assert crossed.estimate(np.full((3, 4), 2.0)) == (2.0, 2.0, 2.0)
    assert np.isnan(crossed.estimate([[1.0, np.nan]]).high)
    assert crossed.estimate([[1.0, 2.0, 4.0]]) == crossed.estimate([[1.0, 2.0, 4.0]])
