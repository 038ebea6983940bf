"""Paired comparison of summaries."""

from __future__ import annotations

import math

import pytest

from experiments.compare import _caption, compare, figure
from ooco_gym.errors import UserError


def summary(violations, tokens):
    return {"policy": "p", "online": {"violation_rate": violations, "ttft_p99_s": None},
            "offline": {"output_tokens_per_s": tokens}, "instances": []}


RUNS = {"a": [summary(0.01, 100.0), summary(0.02, 200.0), summary(0.015, 300.0)],
        "b": [summary(0.01, 110.0), summary(0.05, 215.0), summary(0.02, 312.0)]}
METRICS = ["online.violation_rate", "offline.output_tokens_per_s"]


def test_differences_are_paired():
    rows = {(row["metric"], row["policy"]): row for row in compare(RUNS, METRICS, "a", 0.03)}
    assert len(rows) == 4
    better = rows["offline.output_tokens_per_s", "b"]
    assert better["mean"] == pytest.approx(637 / 3)
    assert better["difference"] == pytest.approx(37 / 3)
    assert 10.0 <= better["difference_low"] < better["difference_high"] <= 15.0  # although seeds differ by 100
    assert rows["offline.output_tokens_per_s", "a"]["difference"] is None
    assert better["values"] == [110.0, 215.0, 312.0]


def test_feasibility_looks_at_the_upper_limit():
    rows = compare(RUNS, METRICS, "a", 0.03)
    assert {row["policy"]: row["feasible"] for row in rows} == {"a": True, "b": False}


def test_without_online_requests_nobody_is_ranked():
    runs = {"a": [summary(None, 100.0), summary(0.01, 110.0)], "b": [summary(0.01, 90.0), summary(0.01, 95.0)]}
    rows = compare(runs, METRICS, "b", 0.03)
    assert {row["policy"]: row["feasible"] for row in rows} == {"a": False, "b": True}
    first = next(row for row in rows if (row["metric"], row["policy"]) == ("online.violation_rate", "a"))
    assert math.isnan(first["mean"]) and math.isnan(first["difference"])


def test_the_caption_says_how_many_seeds_the_intervals_are_of():
    caption = _caption(compare(RUNS, METRICS, "a", 0.03), RUNS)
    assert "bootstrap over 3 seeds" in caption and "at least 5 are advised" in caption
    assert "Not to be ranked, more violations than allowed: b." in caption


def test_metrics_by_name():
    assert math.isnan(figure(RUNS["a"][0], "online.ttft_p99_s"))
    with pytest.raises(UserError, match="online.violation_rate"):
        figure(RUNS["a"][0], "online.violation_rat")
    with pytest.raises(UserError, match="single number"):
        figure(RUNS["a"][0], "online")
