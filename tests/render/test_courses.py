"""Plots over time show what the runs hold: the expected curves, with the values that the runs give."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from ooco_gym.errors import UserError
from ooco_gym.metrics.quality import judge
from ooco_gym.metrics.summary import counted, rules_of
from ooco_gym.render import read_record, record_of
from ooco_gym.render.page import online_quality, plots_of
from ooco_gym.render.record import grouped

BUDGET = 0.03


def panel(records, title):
    """Of the plot whose title begins so, where its dashed limits are, and its other curves."""
    found = next(one for one in plots_of(records, BUDGET) if one["title"].startswith(title))
    dashed, curves = ([one for one in found["data"] if (one["line"]["dash"] == "dash") == is_limit] for is_limit in (
        True, False))
    return [one["y"][0] for one in dashed], curves


def test_latency_is_that_of_the_requests(runs, records):
    record = records[0]
    quality = online_quality(record)
    run = runs["ooco", 1]
    requests = counted(run, online=True)
    judged = judge(requests, rules_of(run))
    assert len(requests) == len(quality["late"])
    started, done = ~np.isnan(judged.ttft_s), ~np.isnan(judged.tpot_s)
    np.testing.assert_allclose(quality["ttft_s"][started], judged.ttft_s[started], atol=1e-9)
    np.testing.assert_allclose(quality["tpot_s"][done], judged.tpot_s[done], atol=1e-9)
    assert (quality["late"] == judged.violated).all()
    limits, (curve,) = panel([record], "TTFT P99")
    first = quality["arrival_s"] < 60.0  # a fifth of the window
    assert curve["x"][0] == 0.5 and len(curve["x"]) == 5
    assert curve["y"][0] == pytest.approx(np.quantile(quality["ttft_s"][first], 0.99))
    assert limits == [2.0] and panel([record], "TPOT P99")[0] == [50.0]
    limits, (shares,) = panel([record], "late online requests")
    assert shares["y"][0] == pytest.approx(100 * quality["late"][first].mean()) and limits == [3.0]


def test_unfinished_requests_are_not_left_out(records):
    record = records[0]
    requests = dict(record.requests)
    first, finish = requests["first_token_s"].copy(), requests["finish_s"].copy()
    first[0], finish[0] = np.nan, np.nan
    requests |= {"first_token_s": first, "finish_s": finish, "online": np.ones(len(first), bool)}
    quality = online_quality(replace(record, requests=requests))
    assert quality["ttft_s"][0] == pytest.approx(record.end_s - requests["arrival_s"][0])


def test_a_record_read_back_is_the_record(runs, tmp_path):
    from ooco_gym.files import write_json
    from ooco_gym.metrics import summarise, write_requests

    run = runs["ooco", 1]
    write_json(tmp_path / "summary.json", {"schema": "ooco-gym/simulate/2", **summarise(run), "params": run.params,
                                           "scenario": run.scenario.describe()})
    (tmp_path / "config.yaml").write_text("policy: {name: ooco, slo_margin: 0.85}\n")
    write_requests(run, tmp_path / "requests.parquet")
    read, made = read_record(tmp_path), record_of(run)
    assert read.label == "ooco:slo_margin=0.85"
    assert read.seed == made.seed
    assert made.summary["window_s"] <= read.end_s <= made.end_s
    assert set(read.requests) == set(made.requests)
    for key in read.requests:
        np.testing.assert_array_equal(read.requests[key], made.requests[key])
    summary = json.loads((tmp_path / "summary.json").read_text())
    write_json(tmp_path / "summary.json", {**summary, "schema": "ooco-gym/simulate/1"})
    with pytest.raises(UserError, match="of another version.*simulate it again"):
        read_record(tmp_path)


def test_labels_tell_conditions_apart(records):
    first = replace(records[0], folder="runs/a")
    other = replace(records[1], folder="runs/b",
                    summary={**records[1].summary, "scenario": {**records[1].scenario, "rate_scale": 9.0}})
    assert [label for label, _ in grouped([first, other])] == ["ooco (a)", "ooco (b)"]
    assert [label for label, _ in grouped(records)] == ["ooco", "base_pd"]
