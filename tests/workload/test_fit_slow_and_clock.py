"""A client's clock is found and made again; tide and drift are taken out before bursts, and nothing counts twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooco_gym.errors import UserError
from ooco_gym.workload import generate
from ooco_gym.workload.arrivals import WEEK_S, Arrivals, Bursts, OrnsteinUhlenbeck
from ooco_gym.workload.describe import dispersion, ks, play
from ooco_gym.workload.dispersion import expected_dispersion
from ooco_gym.workload.fit_arrivals import find_clock
from ooco_gym.workload.fit_tide import fit_slow
from ooco_gym.workload.fitting import fit
from ooco_gym.workload.reading import Sample
from ooco_gym.workload.sharing import Chat

FLAT = (1.0,) * 24
TIDE = tuple(1.0 + 0.4 * np.sin(2 * np.pi * hour / 24) for hour in range(24))
SMALL = {"prompt": {"constant": 100}, "output": {"constant": 10}}


def spec(**more: Any) -> dict[str, Any]:
    return {"name": "slow", "mean_rate_per_s": 6.0, "lengths": SMALL, **more}


@settings(deadline=None, max_examples=6)
@given(st.sampled_from([0.05, 0.1, 0.25, 0.5]), st.floats(0.01, 0.1), st.integers(0, 99),
       st.sampled_from([None, {"factor": 8.0, "on_s": 5.0, "off_s": 30.0}]))
def test_a_clock_is_found(step_s: float, jitter: float, seed: int, bursts: dict[str, float] | None) -> None:
    trace = generate(spec(batch_s=step_s, batch_jitter_s=jitter * step_s, bursts=bursts, mean_rate_per_s=15.0),
                     duration_s=900, seed=seed)
    assert find_clock(trace.arrival_s) == pytest.approx(step_s, rel=0.004)


@settings(deadline=None, max_examples=6)
@given(st.floats(0.0, 1.0), st.floats(0.25, 500.0), st.sampled_from([None, Bursts(1000.0, 0.3, 3.0),
                                                                     Bursts(6.0, 5.0, 40.0)]), st.integers(0, 99))
def test_bursts_are_no_clock(sigma: float, tau_s: float, bursts: Bursts | None, seed: int) -> None:
    process = Arrivals(10.0, FLAT, (OrnsteinUhlenbeck(sigma, tau_s),), bursts)
    assert find_clock(play(process, 0.0, 900.0, seed)) == 0.0


def test_jitter_keeps_each_request_in_its_batch_and_in_order() -> None:
    plain, strict, loose = (generate(spec(**more), duration_s=1200, seed=5) for more in (
        {}, {"batch_s": 0.5}, {"batch_s": 0.5, "batch_jitter_s": 0.05}))
    assert len(plain) == len(strict) == len(loose)
    assert np.array_equal(np.floor(loose.arrival_s / 0.5), strict.arrival_s / 0.5)
    late = loose.arrival_s % 0.5
    assert late.mean() == pytest.approx(0.05, rel=0.15) and np.median(late) < 0.4 * late.mean()
    with pytest.raises(UserError, match="'batch_jitter_s' must be at most batch_s"):
        generate(spec(batch_jitter_s=0.1), duration_s=10, seed=1)


def test_gaps_of_an_on_off_trace_with_a_clock_are_fitted() -> None:
    trace = generate(spec(mean_rate_per_s=3.0, batch_s=0.1, batch_jitter_s=0.006,
                          bursts={"factor": 500.0, "on_s": 11.0, "off_s": 30.0}), duration_s=3600, seed=4)
    fitted = fit(Sample.of(trace), name="again", source="a test", arrivals="on_off")
    assert fitted.spec["batch_s"] == 0.1 and fitted.spec["batch_jitter_s"] == pytest.approx(0.006, rel=0.4)
    assert fitted.report["arrivals"]["ks_gaps"] < 0.06
    as_it_was = {key: value for key, value in fitted.spec.items() if not key.startswith("batch")}
    gaps = np.diff(generate(as_it_was, duration_s=3600, seed=2).arrival_s)
    assert ks(gaps, np.diff(trace.arrival_s)) > 0.15, "without a clock they are others"


def test_tide_and_drift_are_taken_out_and_add_up_to_the_trace() -> None:
    trace = generate(spec(mean_rate_per_s=0.02, tide=list(TIDE), drift={"sigma": 0.5}), duration_s=3 * WEEK_S, seed=5)
    slow = fit_slow(trace.arrival_s)
    assert slow.drift == pytest.approx(0.5, rel=0.4) and len(slow.weeks) == 3
    plain = slow.plain(trace.arrival_s)
    assert np.all(np.diff(plain) >= 0)
    for window_s in (300.0, 3600.0):
        raw, left = dispersion(trace.arrival_s, window_s), dispersion(plain, window_s)
        assert raw is not None and left is not None and left - 1 < 0.1 * (raw - 1), "nothing is left for bursts"
    process = Arrivals(slow.rate_per_s, slow.tide, drift=slow.drift)
    runs = [play(process, 0.0, 3 * WEEK_S, seed) for seed in range(3)]
    played = np.array([dispersion(run, 3600.0) for run in runs]).mean()
    assert played == pytest.approx(dispersion(trace.arrival_s, 3600.0), rel=0.35)


def test_a_trace_without_drift_keeps_its_mean_day() -> None:
    trace = generate(spec(mean_rate_per_s=0.05, tide=list(TIDE)), duration_s=2 * WEEK_S, seed=5)
    slow = fit_slow(trace.arrival_s)
    assert slow.drift < 0.05 and np.asarray(slow.tide) == pytest.approx(np.asarray(TIDE) / np.mean(TIDE), abs=0.1)
    short = fit_slow(trace.arrival_s[:100])
    assert short.tide == FLAT and np.array_equal(short.plain(trace.arrival_s[:100]), trace.arrival_s[:100])


@pytest.mark.parametrize(("sigma", "ou"), [(0.8, ()), (1.2, (OrnsteinUhlenbeck(0.3, 20.0),)),
                                           (0.6, (OrnsteinUhlenbeck(0.3, 200.0),))])
def test_the_dispersion_of_turns_at_lognormal_times(sigma: float, ou: tuple[OrnsteinUhlenbeck, ...]) -> None:
    chat, window_s, span_s = Chat(0.5, 20.0, 0, 3.0, sigma, 0.3), np.array([1.0, 5.0, 30.0, 120.0]), 5400.0
    runs = [play(Arrivals(6.0, FLAT, ou), 0.0, span_s, seed, chat) for seed in range(30)]
    found = np.array([[dispersion(run, float(x), span_s - run[0]) for x in window_s] for run in runs]).mean(axis=0)
    assert found == pytest.approx(expected_dispersion(6.0, ou, None, window_s, (span_s // window_s).astype(int), chat),
                                  rel=0.12)
