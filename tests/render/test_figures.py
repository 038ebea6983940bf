"""Figures show what the runs hold: the expected curves, with the values that the runs give."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ooco_gym.metrics.quality import judge
from ooco_gym.metrics.summary import counted, rules_of
from ooco_gym.render import read_record, record_of, write_samples
from ooco_gym.render.figures import (
    TimeAxis,
    bin_s,
    evaluation_figure,
    glance_figure,
    instance_figure,
    latency_figure,
    load_figure,
    offered_tokens_per_s,
    online_quality,
    throughput_figure,
    training_figure,
    violation_figure,
)
from ooco_gym.render.record import grouped, one_seed, with_distinct_labels
from ooco_gym.report.pages import POLICY_COLOURS, WORK_COLOURS, colours

BUDGET = 0.03


def named(figure, name):
    """The traces of one name."""
    return [trace for trace in figure.data if trace.name == name]


def axis_titles(figure):
    return " ".join(axis.title.text or "" for axis in [*figure.select_xaxes(), *figure.select_yaxes()])


def first_seed(records):
    return one_seed(grouped(records))


def test_at_a_glance_each_policy_has_what_it_breaks_and_what_it_serves(records):
    groups = grouped(records)
    figure = glance_figure(groups, BUDGET)
    for name, members in groups.items():
        broken, served = named(figure, name)
        assert broken.x[0] == pytest.approx(100 * np.mean([one.summary["online"]["violation_rate"] for one in members]))
        assert served.x[0] == pytest.approx(np.mean([one.summary["offline"]["output_tokens_per_s"] for one in members]))
    name = next(iter(groups))
    shapes = [named(glance_figure(groups, budget), name)[0].marker.pattern.shape for budget in (1.0, -1.0)]
    assert shapes == ["", "/"]
    assert "miss a promise" in axis_titles(figure)


def test_load_has_arrivals_once_and_completions_for_each_policy(records):
    figure = load_figure(first_seed(records))
    (arrivals,) = named(figure, "online arrivals")
    assert [len(named(figure, name)) for name in ("ooco", "base_pd")] == [2, 2]  # completions and queue
    assert len(arrivals.x) == len(arrivals.y) == 5
    online = records[0].summary["online"]["arrived"] / records[0].window_s
    assert np.mean(arrivals.y) == pytest.approx(online, rel=0.02)
    completions = named(figure, "ooco")[0]
    assert np.mean(completions.y) == pytest.approx(records[0].summary["offline"]["finished"] / 300.0, rel=0.02)
    assert completions.line.color == POLICY_COLOURS["ooco"]
    assert "requests/s" in axis_titles(figure) and "(min)" in axis_titles(figure)


def test_load_draws_arrivals_of_each_where_they_differ(records):
    other = replace(next(record for record in records if record.seed == 2), label="other day")
    figure = load_figure([records[0], other])
    assert named(figure, "online arrivals, ooco") and named(figure, "online arrivals, other day")


def test_latency_is_that_of_the_requests(runs, records):
    record = records[0]
    edges, which, quality = online_quality(record)
    run = runs["ooco", 1]
    requests = counted(run, online=True)
    judged = judge(requests, rules_of(run))
    assert len(requests) == len(which)
    started = ~np.isnan(judged.ttft_s)
    np.testing.assert_allclose(quality["ttft_s"][started], judged.ttft_s[started], atol=1e-9)
    done = ~np.isnan(judged.tpot_s)
    np.testing.assert_allclose(quality["tpot_s"][done], judged.tpot_s[done], atol=1e-9)
    assert (quality["violated"] == judged.violated).all()
    figure = latency_figure([record], BUDGET)
    in_first = quality["ttft_s"][which == 0]
    assert named(figure, "ooco P99")[0].y[0] == pytest.approx(np.quantile(in_first, 0.99), rel=1e-5)
    assert named(figure, "ooco P50")[0].y[0] == pytest.approx(np.quantile(in_first, 0.5), rel=1e-5)
    shares = named(figure, "ooco violations")[0].y
    assert shares[0] == pytest.approx(100 * quality["violated"][which == 0].mean())
    limits = {trace.y[0] for trace in named(figure, "SLO, violation budget")}
    assert limits == {2.0, 0.05, 3.0}
    assert edges[0] == 0.0 and edges[-1] == 300.0


def test_unfinished_requests_are_not_left_out(records):
    record = records[0]
    requests = dict(record.requests)
    first, finish = requests["first_token_s"].copy(), requests["finish_s"].copy()
    first[0], finish[0] = np.nan, np.nan
    requests |= {"first_token_s": first, "finish_s": finish, "online": np.ones(len(first), bool)}
    _, _, quality = online_quality(replace(record, requests=requests))
    assert quality["ttft_s"][0] == pytest.approx(record.end_s - requests["arrival_s"][0])


def test_intervals_over_the_budget_are_crossed(records):
    record = records[0]
    requests = dict(record.requests)
    requests["violated"] = (requests["arrival_s"] < 60.0) & requests["online"]
    marks = named(latency_figure([replace(record, requests=requests)], BUDGET), "ooco over the budget")[0]
    assert len(marks.x) == 1 and marks.y[0] == pytest.approx(100.0)
    assert marks.marker.symbol == "x"


def test_instances_are_fully_accounted_for(records):
    shown = first_seed(records)
    figure = instance_figure(shown)
    titles = [note.text for note in figure.layout.annotations]
    assert titles[0] == "ooco: instance 0 (relaxed)" and "base_pd: instance 1 (strict)" in titles
    groups = {trace.stackgroup for trace in figure.data if trace.stackgroup}
    for group in groups:
        total = np.sum([trace.y for trace in figure.data if trace.stackgroup == group], axis=0)
        np.testing.assert_allclose(total, 100.0, atol=0.5)
    assert {trace.name for trace in figure.data if trace.stackgroup == "1,1"} == {
        "online prefill", "offline prefill", "decode", "idle"}
    assert "prefill of either class" in {trace.name for trace in figure.data if trace.stackgroup == "2,1"}
    memory = named(figure, "KV memory in use")
    assert len(memory) == 4
    assert memory[0].y.max() <= 100.0
    assert all(trace.fillcolor == WORK_COLOURS[trace.name] for trace in figure.data if trace.stackgroup)


def test_many_instances_become_the_mean_of_each_role(records):
    record = records[0]
    samples = {key: np.repeat(values, 3, axis=1) if values.ndim == 2 else values
               for key, values in record.samples.items()}
    one = record.summary["instances"]
    summary = {**record.summary, "instances": [one[0]] * 3 + [one[1]] * 3}
    figure = instance_figure([replace(record, samples=samples, summary=summary)])
    assert [note.text for note in figure.layout.annotations] == [
        "ooco: mean of 3 relaxed instances", "ooco: mean of 3 strict instances"]


def test_totals_have_means_intervals_and_the_budget(records):
    groups = grouped(records)
    figure = violation_figure(groups, BUDGET)
    rates = [100 * record.summary["online"]["violation_rate"] for record in groups["base_pd"]]
    dot = named(figure, "base_pd")[0]
    assert dot.x[0] == pytest.approx(max(0.01, np.mean(rates)))
    assert len(named(figure, "base_pd, each seed")[0].x) == 2
    assert figure.layout.shapes[0].x0 == pytest.approx(3.0)
    bars = throughput_figure(groups, BUDGET)
    served = [record.summary["offline"]["output_tokens_per_s"] for record in groups["ooco"]]
    bar = named(bars, "ooco")[0]
    assert bar.x[0] == pytest.approx(np.mean(served))
    assert bar.error_x.array[0] >= 0
    assert "tokens/s" in axis_titles(bars)
    offered = offered_tokens_per_s(groups["ooco"])
    assert bars.layout.shapes[0].x0 == pytest.approx(offered)


def test_a_policy_over_the_budget_is_hatched_and_said_not_to_be_ranked(records):
    bad = [replace(record, summary={**record.summary, "online": {**record.summary["online"], "violation_rate": 0.5}})
           for record in records if record.label == "ooco"]
    figure = throughput_figure({"ooco": bad}, BUDGET)
    assert named(figure, "ooco")[0].marker.pattern.shape == "/"
    assert any("not ranked" in note.text for note in figure.layout.annotations)


def test_one_seed_has_no_interval(records):
    groups = {"ooco": [records[0]]}
    assert named(violation_figure(groups, BUDGET), "ooco")[0].error_x.array is None
    assert named(throughput_figure(groups, BUDGET), "ooco")[0].error_x.array is None


def test_evaluation_and_training_figures():
    rows = [{"policy": policy, "metric": metric, "mean": mean, "ci_low": mean - 0.01, "ci_high": mean + 0.02}
            for policy, mean in (("gate", 0.02), ("ooco", 0.5))
            for metric in ("violation_rate", "offline_reference_gpu_s_per_s", "episode_reward")]
    figure = evaluation_figure(rows, BUDGET)
    dots = named(figure, "gate")
    assert len(dots) == 3
    assert dots[0].x[0] == pytest.approx(2.0) and dots[0].error_x.array[0] == pytest.approx(2.0)
    assert dots[1].x[0] == pytest.approx(0.02)
    history = [{"timesteps": 10, "reward": 1.0, "violation_rate": 0.01},
               {"timesteps": 20, "reward": 2.0, "violation_rate": 0.02}]
    curve = training_figure(history, BUDGET)
    assert list(named(curve, "violation_rate")[0].y) == [1.0, 2.0]


def test_a_record_read_back_is_the_record(runs, tmp_path):
    from ooco_gym.files import write_json
    from ooco_gym.metrics import summarise, write_requests

    run = runs["ooco", 1]
    write_json(tmp_path / "summary.json", {"schema": "ooco-gym/simulate/1", **summarise(run), "params": run.params,
                                           "scenario": run.scenario.describe()})
    (tmp_path / "config.yaml").write_text("policy: {name: ooco, slo_margin: 0.85}\n")
    write_requests(run, tmp_path / "requests.parquet")
    write_samples(run, tmp_path / "samples.npz")
    write_samples(run, tmp_path / "again.npz")
    assert (tmp_path / "samples.npz").read_bytes() == (tmp_path / "again.npz").read_bytes()
    read, made = read_record(tmp_path), record_of(run)
    assert read.label.startswith("ooco:") and "slo_margin=0.85" in read.label
    assert read.seed == made.seed and read.day_start_s == made.day_start_s
    assert read.end_s == pytest.approx(made.end_s)
    for kind in ("requests", "samples"):
        mine, theirs = getattr(read, kind), getattr(made, kind)
        assert set(mine) == set(theirs)
        for key in mine:
            np.testing.assert_array_equal(mine[key], theirs[key])


def test_colours_are_a_policys_own_and_differ():
    chosen = colours(["base_pd", "gate", "ooco", "ooco:slo_margin=0.8"])
    assert chosen["ooco"] == POLICY_COLOURS["ooco"] and chosen["base_pd"] == POLICY_COLOURS["base_pd"]
    assert len(set(chosen.values())) == 4
    assert not set(POLICY_COLOURS.values()) & set(WORK_COLOURS.values())


def test_bins_are_few_and_the_axis_has_a_unit(records):
    assert bin_s(86400.0) == 300.0
    assert bin_s(300.0) == 60.0
    assert 86400.0 * 30 / bin_s(86400.0 * 30) <= 300
    long = replace(records[0], summary={**records[0].summary, "window_s": 86400.0}, day_start_s=3600.0)
    axis = TimeAxis(long)
    assert axis.title == "time of day (h)"
    assert axis.at(np.array([0.0, 3600.0])).tolist() == [1.0, 2.0]


def test_labels_tell_conditions_apart(records):
    first = replace(records[0], folder="runs/a")
    other = replace(records[1], folder="runs/b",
                    summary={**records[1].summary, "scenario": {**records[1].scenario, "rate_scale": 9.0}})
    assert [record.label for record in with_distinct_labels([first, other])] == ["ooco (a)", "ooco (b)"]
    assert [record.label for record in with_distinct_labels(records)] == ["ooco", "ooco", "base_pd", "base_pd"]
