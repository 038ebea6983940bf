"""The metrics against the event loop: both judge every request by themselves, and must agree."""

from __future__ import annotations

import numpy as np
import pytest

from ooco_gym.metrics import summarise
from ooco_gym.metrics.chosen import counted
from ooco_gym.metrics.quality import judge, rules_of
from ooco_gym.scenario import Scenario
from ooco_gym.sim.state import PS_PER_S
from ooco_gym.simulation import simulate

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
