"""The optional promise on the longest gap between two tokens, and the scheduler's own time."""

import numpy as np
import pytest

from ooco_gym import Scenario, UserError, simulate

BASE = Scenario(rate_scale=0.04, duration_s=120.0, warmup_s=60.0, drain_s=60.0, offline={"mode": "rate", "rate": 2.0})
GAP = {"ttft_s": 2.0, "tpot_s": 0.05, "gap_s": 0.06}


def test_gaps_are_charged_at_once_as_step_by_step_and_as_recomputed():
    scenario = BASE.with_(slo=GAP)
    once, step = simulate(scenario, "ooco"), simulate(scenario, "ooco", bulk=False)
    counted = (once.requests["counted"] == 1) & (once.requests["online"] == 1)
    over = int(np.count_nonzero(once.requests["max_gap_ps"][counted] > 60e9))
    assert 0 < over <= once.counters["violations"]
    assert once.counters["violations"] == step.counters["violations"]
    assert once.summary["online"]["violation_rate"] == pytest.approx(once.counters["violations"] / counted.sum())
    assert simulate(BASE, "ooco").counters["violations"] < once.counters["violations"]


def test_a_gap_must_be_positive():
    with pytest.raises(UserError, match=r"slo\.gap_s"):
        simulate(BASE.with_(slo={**GAP, "gap_s": -1.0}), "ooco")


def test_decision_time_slows_iterations_but_not_what_work_is_worth():
    quick, slow = simulate(BASE, "base_pd"), simulate(BASE.with_(decision_s=0.005), "base_pd")
    assert slow.summary["online"]["itl_mean_s"] > quick.summary["online"]["itl_mean_s"] + 0.004
    assert np.array_equal(quick.requests["service_ps"], slow.requests["service_ps"])
