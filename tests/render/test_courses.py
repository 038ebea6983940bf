"""Plots over time show what a run holds: the expected curves, with the values that the run gives."""

from __future__ import annotations

import numpy as np
import pytest

from ooco_gym import Scenario, simulate
from ooco_gym.metrics import summarise
from ooco_gym.metrics.chosen import counted
from ooco_gym.metrics.quality import judge, rules_of
from ooco_gym.render.page import online_quality, outcome_of, policy_words

BRIEF = Scenario(workload="azure_conv", rate_scale=0.06, duration_s=300.0, warmup_s=120.0, drain_s=60.0,
                 offline={"mode": "rate", "rate": 2.0})


def plotted(outcome, title):
    """Of the plot whose title begins so, where its dashed limits are, and its curve."""
    found = next(one for one in outcome.plots if one["title"].startswith(title))
    *limits, shown = found["data"]
    return [one["y"][0] for one in limits], shown


def test_latency_is_that_of_the_requests():
    run = simulate(BRIEF, "ooco")
    summary = {**summarise(run), "params": run.params, "scenario": run.scenario.describe()}
    outcome = outcome_of(run, summary, "ooco")
    quality = {name: online_quality(run, name) for name in ("arrival_s", "ttft_s", "tpot_s", "late")}
    requests = counted(run, online=True)
    judged = judge(requests, rules_of(run))
    assert len(requests) == len(quality["late"])
    started, done = ~np.isnan(judged.ttft_s), ~np.isnan(judged.tpot_s)
    np.testing.assert_allclose(quality["ttft_s"][started], judged.ttft_s[started], atol=1e-9)
    np.testing.assert_allclose(quality["tpot_s"][done], judged.tpot_s[done], atol=1e-9)
    assert (quality["late"] == judged.violated).all() and not np.isnan(quality["ttft_s"]).any()
    first = quality["arrival_s"] < 60.0  # a fifth of the window
    limits, shown = plotted(outcome, "TTFT P99")
    assert shown["x"][0] == 0.5 and len(shown["x"]) == 5 and limits == [2.0]
    assert shown["y"][0] == pytest.approx(np.quantile(quality["ttft_s"][first], 0.99))
    assert plotted(outcome, "TPOT P99")[0] == [50.0]
    limits, shown = plotted(outcome, "SLO violations")
    assert shown["y"][0] == pytest.approx(100 * quality["late"][first].mean()) and limits == [3.0]


def test_a_policy_is_called_as_it_was_asked_for():
    assert policy_words({"policy": "mine.py:rule"}) == "mine.py:rule"
    assert policy_words({"policy": {"name": "ooco"}}) == "ooco"
    assert policy_words({"policy": {"name": "ooco", "slo_margin": 0.85}}) == "ooco:slo_margin=0.85"
