"""The generators: one endless realisation, the right means, OOCO's scaling, paired offline load."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooco_gym.errors import UserError
from ooco_gym.workload import (
    Trace,
    generate,
    generate_lengths,
    list_workloads,
    load_spec,
    load_workload,
    merge,
    offline_trace,
    parse_workload,
    resolve_workload,
    scale,
    workload_mean_rate,
)
from ooco_gym.workload.arrivals import DAY_S, Arrivals, Bursts, OrnsteinUhlenbeck, intensity, peak_start_s, tide_at

# OOCO, Table 5: mean prompt and output tokens.
TABLE_5 = {"ooc": (1892.47, 1062.62), "azure_conv": (1512.30, 98.75), "azure_code": (2317.18, 22.74)}
MEANS = {**TABLE_5, "ooc_offline": (1200.52, 671.51), "azure_conv_2023": (1154.7, 211.1)}
BUSY = {"mean_rate_per_s": 2.0, "tide": list(range(1, 25)),
        "ou": [{"sigma": 0.3, "tau_s": 900}, {"sigma": 0.2, "tau_s": 5}],
        "bursts": {"factor": 3.0, "on_s": 5.0, "off_s": 40.0},
        "lengths": {"prompt": {"quantiles": [0, 1], "tokens": [1, 1000]}, "output": {"constant": 7}}}


def offline_load(mode: str, *, duration_s: float, seed: int, start_s: float = 0.0, **load: Any) -> Trace:
    return offline_trace({"mode": mode, **load}, duration_s=duration_s, seed=seed, start_s=start_s)


def test_a_window_of_each_embedded_day_is_that_part_of_the_day() -> None:
    for name in list_workloads():
        factor = 0.3 / load_spec(name).arrivals.mean_rate_per_s
        day = generate(name, duration_s=86_400, seed=3, rate_scale=factor)
        window = generate(name, start_s=81_234.5, duration_s=7000, seed=3, rate_scale=factor)
        assert len(window) > 100
        assert window.slice_time(0, 86_400).equals(day.slice_time(81_234.5, 86_400)), name


def test_seeds_and_streams_are_independent() -> None:
    one = generate("ooc", duration_s=600, seed=1)
    assert not one.equals(generate("ooc", duration_s=600, seed=2))
    assert not one.equals(generate("ooc", duration_s=600, seed=1, stream="another"))
    assert one.equals(generate("ooc", duration_s=600, seed=1))
    assert one.online.all()


@pytest.mark.parametrize("name", sorted(MEANS))
def test_mean_lengths_are_those_that_are_published(name: str) -> None:
    drawn = [generate_lengths(name, 400_000, seed=1)]
    if name in TABLE_5:
        trace = generate(name, duration_s=86_400, seed=5, rate_scale=200_000 / 86_400 / workload_mean_rate(name))
        drawn.append((trace.prompt_tokens, trace.output_tokens))
    for prompt, output in drawn:
        assert (prompt.mean(), output.mean()) == pytest.approx(MEANS[name], rel=0.02)


def test_rates_follow_the_mean_and_the_tide() -> None:
    days = [generate("azure_code", duration_s=86_400, seed=seed, rate_scale=0.05) for seed in range(6)]
    counts = np.mean([np.bincount((day.arrival_s // 3600).astype(int), minlength=24) for day in days], axis=0)
    arrivals = load_spec("azure_code").arrivals
    tide = np.array(arrivals.tide) / np.mean(arrivals.tide)
    assert counts.sum() / 86_400 == pytest.approx(0.05 * arrivals.mean_rate_per_s, rel=0.04)
    assert np.corrcoef(counts, tide)[0, 1] > 0.97


def test_the_tide_is_smooth_keeps_its_mean_and_meets_each_hour_in_its_middle() -> None:
    tide = load_spec("ooc").arrivals.tide
    time_s = np.arange(0, 86_400, 10.0) + 5
    level = tide_at(tide, time_s)
    assert level.mean() == pytest.approx(np.mean(tide), rel=1e-6)
    assert tide_at(tide, (np.arange(24) + 0.5) * 3600) == pytest.approx(tide)
    assert np.abs(np.diff(level, append=level[:1])).max() < 0.01
    assert np.array_equal(tide_at(tide, time_s[:9]), tide_at(tide, time_s[:9] + 86_400))


def test_ou_processes_have_their_spread_and_correlation_time() -> None:
    process = OrnsteinUhlenbeck(0.5, 300.0)
    rate = intensity(Arrivals(1.0, (1.0,) * 24, (process,)), 1, "t", 0, 6000)
    log = np.log(rate).ravel() + process.sigma**2 / 2
    lag = round(300 / (600 / rate.shape[1]))
    assert log.mean() == pytest.approx(0.0, abs=0.03)
    assert log.std() == pytest.approx(0.5, rel=0.03)
    assert np.corrcoef(log[:-lag], log[lag:])[0, 1] == pytest.approx(np.exp(-1), abs=0.03)
    assert rate.mean() == pytest.approx(1.0, rel=0.03)


def test_bursts_have_their_share_and_mean_one() -> None:
    rate = intensity(Arrivals(1.0, (1.0,) * 24, (), Bursts(4.0, 10.0, 30.0)), 1, "t", 7, 3000)
    assert rate.mean() == pytest.approx(1.0, rel=0.02)
    assert (rate > 1).mean() == pytest.approx(0.25, abs=0.01)
    lag = round(7.5 / (600 / rate.shape[1]))  # 1 / (1/10 + 1/30) s
    assert np.corrcoef(rate.ravel()[:-lag], rate.ravel()[lag:])[0, 1] == pytest.approx(np.exp(-1), abs=0.02)


def test_the_yaml_peak_is_the_busiest_four_hours_around_the_highest_rate() -> None:
    for name in list_workloads():
        workload = load_spec(name)
        if len(set(workload.arrivals.tide)) > 1:
            assert workload.peak_start_s == peak_start_s(workload.arrivals.tide), name
            highest_s = float(np.argmax(tide_at(workload.arrivals.tide, np.arange(86_400.0))))
            assert 0 <= (highest_s - workload.peak_start_s) % 86_400 < 4 * 3600


@settings(deadline=None, max_examples=20)
@given(st.floats(0, 4), st.floats(0, 4), st.integers(0, 99))
def test_scaling_drops_or_replicates_and_keeps_the_time_axis(a: float, b: float, seed: int) -> None:
    trace = generate(BUSY, duration_s=1200, seed=seed)
    small, large = (scale(trace, factor, seed) for factor in sorted((a, b)))
    assert np.isin(small.arrival_s, large.arrival_s).all()
    if len(small):
        assert trace.arrival_s[0] <= small.arrival_s[0] and small.arrival_s[-1] <= trace.arrival_s[-1]
    slack = 5 * np.sqrt(len(trace)) + 1
    assert abs(len(large) - max(a, b) * len(trace)) <= slack


def test_scaling_keeps_lengths_shape_and_identity_at_one() -> None:
    trace = generate("azure_conv", duration_s=14_400, start_s=36_000, seed=1, rate_scale=0.2)
    assert scale(trace, 1.0, 5) is trace
    bigger = scale(trace, 2.5, 5)
    assert bigger.prompt_tokens.mean() == pytest.approx(trace.prompt_tokens.mean(), rel=0.02)
    minutes = [np.bincount((item.arrival_s // 600).astype(int) - 60, minlength=24) for item in (trace, bigger)]
    assert np.allclose(minutes[1], 2.5 * minutes[0], rtol=0.05)
    with pytest.raises(UserError, match="scale factor"):
        scale(trace, -1.0, 5)


@settings(deadline=None, max_examples=15)
@given(st.floats(0.01, 30), st.floats(0.01, 30), st.integers(0, 2**70))
def test_offline_lengths_are_paired_whatever_the_rate(a: float, b: float, seed: int) -> None:
    first, second = (offline_load("rate", rate=rate, duration_s=300, seed=seed, start_s=50) for rate in (a, b))
    jobs = offline_load("jobs", jobs=max(len(first), len(second)), duration_s=300, seed=seed)
    n = min(len(first), len(second))
    assert np.array_equal(first.prompt_tokens[:n], second.prompt_tokens[:n])
    assert np.array_equal(first.output_tokens, jobs.output_tokens[:len(first)])
    assert not first.online.any() and np.allclose(np.diff(first.arrival_s), 1 / a)
    assert np.all((first.arrival_s >= 50) & (first.arrival_s < 350)) and abs(len(first) - 300 * a) <= 1


def test_backlogs_and_job_sets_are_there_from_the_start() -> None:
    backlog = offline_load("backlog", duration_s=3600, seed=1, start_s=7.0)
    assert len(backlog) == 72_000 and set(backlog.arrival_s) == {7.0}
    assert len(offline_load("jobs", jobs=5, duration_s=3600, seed=1)) == 5
    assert len(offline_load("rate", rate=0, duration_s=3600, seed=1)) == 0


def test_mixes_are_the_sum_of_their_parts() -> None:
    window = {"start_s": 3600.0, "duration_s": 1200.0, "seed": 4}
    mixed = load_workload("ooc+0.5*azure_conv", rate_scale=0.2, **window)
    parts = generate("ooc", rate_scale=0.2, **window), generate("azure_conv", rate_scale=0.1, **window)
    assert mixed.equals(merge(*parts))
    assert load_workload({"mix": "ooc+0.5*azure_conv", "scale": 0.2}, **window).equals(mixed)
    twice = load_workload("ooc+ooc", rate_scale=0.2, **window)
    assert len(np.unique(twice.arrival_s)) == len(twice), "the two parts must be independent"
    assert workload_mean_rate("ooc+0.5*azure_conv") == pytest.approx(
        workload_mean_rate("ooc") + 0.5 * workload_mean_rate("azure_conv"))
    assert 0 <= resolve_workload("ooc+azure_conv").peak_start_s(14_400.0) < 86_400
    assert [part.weight for part in parse_workload("2*ooc + azure_code")] == [2.0, 1.0]


def test_a_mapping_changes_an_embedded_workload() -> None:
    slow = load_workload({"name": "ooc", "mean_rate_per_s": 1.0}, duration_s=20_000, seed=1)
    assert slow.equals(generate({"name": "ooc", "mean_rate_per_s": 1.0}, duration_s=20_000, seed=1))
    assert 0.5 < slow.mean_rate < 3


@pytest.mark.parametrize(("spec", "message"), [
    ("azure_con", "did you mean 'azure_conv'"),
    ("ooc+", "empty part"),
    ("", "empty"),
    ("x*ooc", "weight 'x'"),
    ("-1*ooc", "weight"),
    ({"name": "ooc", "tides": []}, "unknown key 'tides' .did you mean 'tide'"),
    ({"name": "ooc", "ou": [{"sigma": 0.1}]}, r"ou\[0\].tau_s is missing"),
    ({"name": "ooc", "lengths": {"prompt": {"constant": 0}, "output": {"constant": 1}}}, "lengths.prompt.constant"),
    ({"name": "ooc", "scale": -1}, "scale"),
    ({"path": "/nowhere/x.csv"}, "/nowhere/x.csv"),
    ("nowhere.yaml", "nowhere.yaml"),
    ("nowhere.csv", "nowhere.csv"),
])
def test_mistakes_in_a_workload_are_named(spec: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_workload(spec, duration_s=60, seed=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(("arguments", "message"), [
    ({"mode": "rate"}, "offline.rate"), ({"mode": "jobs"}, "offline.jobs"),
    ({"mode": "rate", "rate": 1, "lengths": "oc"}, "did you mean 'ooc'"),
    ({"mode": "rate", "rate": 1, "seed": 1.5}, "seed"),
])
def test_mistakes_in_offline_load_are_named(arguments: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        offline_load(**{"duration_s": 60, "seed": 1, **arguments})


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_any_specification_ends_in_a_trace_or_a_user_error(data: st.DataObject) -> None:
    leaves = st.one_of(st.none(), st.booleans(), st.integers(-5, 10**12), st.floats(),
                       st.text("abc01.+*/ \0é", max_size=5))
    keys = st.sampled_from(["sigma", "tau_s", "prompt", "mu"])
    values = st.recursive(leaves, lambda inner: st.one_of(st.lists(inner, max_size=3),
                                                          st.dictionaries(keys, inner, max_size=3)), max_leaves=6)
    spec = {**BUSY, data.draw(st.sampled_from([*BUSY, "scale", "rate_scale", "path", "mix", "peak_start_s", "other"])):
            data.draw(values)}
    message = ""
    try:
        load_workload(spec, duration_s=30, seed=1, rate_scale=0.01)
    except UserError as error:
        message = str(error)
    assert "\n" not in message


@pytest.mark.parametrize("cv", [0.3, 3.0, 10.0])
def test_gaps_of_a_renewal_process_vary_as_told(cv):
    """Rate and coefficient of variation of a day, and a window of it holds what the day has there."""
    spec = {"name": "lmsys", "mean_rate_per_s": 5.0, "cv": cv}
    day = generate(spec, duration_s=DAY_S, seed=1)
    gaps = np.diff(day.arrival_s)
    assert len(day) / DAY_S == pytest.approx(5.0, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1)
    window = generate(spec, start_s=40_000.0, duration_s=900.0, seed=1)
    inside = (day.arrival_s >= 40_000.0) & (day.arrival_s < 40_900.0)
    assert np.array_equal(window.arrival_s, day.arrival_s[inside])
    assert np.array_equal(window.output_tokens, day.output_tokens[inside])


def test_clients_have_their_shares_their_gaps_and_their_lengths():
    own = {"prompt": {"constant": 7}, "output": {"constant": 3}}
    clients = [{"share": 3}, {"share": 1, "cv": 10.0, "lengths": own}, {"share": 0}]
    trace = generate({"name": "lmsys", "mean_rate_per_s": 4.0, "clients": clients}, duration_s=DAY_S, seed=1)
    second = (trace.prompt_tokens == 7) & (trace.output_tokens == 3)
    gaps = np.diff(trace.arrival_s[second])
    assert np.count_nonzero(second) / DAY_S == pytest.approx(1.0, rel=0.1)
    assert np.count_nonzero(~second) / DAY_S == pytest.approx(3.0, rel=0.02)
    assert gaps.std() / gaps.mean() == pytest.approx(10.0, rel=0.1)


@pytest.mark.parametrize("change, said", [
    ({"cv": 0}, "cv"), ({"clients": [{"share": 0}]}, "clients with a share each, not all 0"),
    ({"clients": [{"cv": 2}]}, "client|share"), ({"clients": [{"share": 1, "rate": 2}]}, "rate")])
def test_impossible_gaps_and_clients_are_refused(change, said):
    with pytest.raises(UserError, match=said):
        generate({"name": "lmsys", **change}, duration_s=10.0, seed=1)
