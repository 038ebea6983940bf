"""Intervals over seeds and windows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ooco_gym.metrics import crossed, summarise
from ooco_gym.metrics.chosen import counted
from ooco_gym.metrics.quality import judge, rules_of
from ooco_gym.metrics.statistics import (
    expanded_tail,
    interval,
    interval_words,
    paired_interval,
    resampled_estimate,
    resampled_interval,
    within,
)
from ooco_gym.scenario import Scenario
from ooco_gym.sim.state import PS_PER_S
from ooco_gym.simulation import simulate

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


# --- The metrics against the event loop: both judge every request by themselves, and must agree ----------------------
TTFT, TPOT = 1, 2  # bits of a request's `violated`


def played(policy, tpot_from):
    # Tight, so that many miss either SLO, and short outputs their deadline.
    slo = {"ttft_s": 0.25, "tpot_s": 0.022, "tpot_from": tpot_from}
    return simulate(Scenario(workload="azure_conv", rate_scale=0.06, slo=slo, duration_s=300.0, warmup_s=60.0,
                             drain_s=120.0, offline={"mode": "rate", "rate": 2.0}), policy=policy)


@pytest.mark.parametrize("policy", ["ooco", "ooco_xllm", "base_pd", "online_priority"])
@pytest.mark.parametrize("tpot_from", ["first_token", "first_decode"])
def test_the_loop_charges_what_the_metrics_find(policy, tpot_from):
    run = played(policy, tpot_from)
    requests = counted(run, online=True)
    quality, charged = judge(requests, rules_of(run)), requests["violated"]
    done = quality.finished
    assert 0.02 < quality.violated.mean() < 1.0
    np.testing.assert_array_equal(quality.ttft_missed[done], (charged[done] & TTFT) > 0)
    np.testing.assert_array_equal(quality.violated[done], charged[done] > 0)
    assert (quality.violated | (charged == 0)).all()  # what was charged certainly violates, finished or not


def test_sums_of_the_loop_are_those_of_the_table():
    run = played("ooco", "first_token")
    summary, counters = summarise(run), run.counters
    window_s = run.window_s[1] - run.window_s[0]
    assert counters["online_arrived"] == summary["online"]["arrived"]
    assert counters["offline_finished"] == summary["offline"]["finished"]
    assert counters["service_ps"] / PS_PER_S / window_s == pytest.approx(summary["offline"]["reference_gpu_s_per_s"])
    assert counters["offline_output_tokens"] / window_s == pytest.approx(summary["offline"]["output_tokens_per_s"])
    gaps = counted(run, online=True)["generated_tokens"].astype(np.int64) - 1
    assert run.itl.sum() == np.maximum(gaps, 0).sum()


def test_either_definition_from_one_run():
    run, other = played("ooco", "first_decode"), played("ooco", "first_token")
    assert summarise(run)["online"]["violation_rate_first_decode"] == summarise(run)["online"]["violation_rate"]
    assert summarise(run)["online"]["violation_rate_first_token"] == summarise(other)["online"]["violation_rate"]
    assert summarise(other)["online"]["violation_rate"] >= summarise(run)["online"]["violation_rate"]


# --- Figures of several runs on the same windows: as rliable defines them, with intervals that cover -----------------
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
