"""A finite batch of offline requests beside online ones: when it is done, and how much of it in time."""

from __future__ import annotations

import numpy as np
import pytest

from ooco_gym import Scenario, simulate
from ooco_gym.sim import state as s

BATCH = {"cluster": "engine_7b", "workload": "sharegpt", "timing": "ooco", "slo": {"ttft_s": 2.0, "tpot_s": 0.05},
         "warmup_s": 0.0, "duration_s": 400.0, "drain_s": 400.0, "rate_scale": 1.0}


@pytest.mark.parametrize(("jobs", "deadline_s"), [(60, 60.0), (60, None), (3000, 60.0)])
def test_a_batch_has_its_makespan_and_the_share_in_time(jobs: int, deadline_s: float | None) -> None:
    offline = {"mode": "jobs", "jobs": jobs, **({"deadline_s": deadline_s} if deadline_s else {})}
    run = simulate(Scenario(**BATCH, offline=offline, seed=4), "deadline")
    mine = run.requests[run.requests["online"] == 0]
    done = mine["status"] == s.FINISHED
    ages_s = (mine["finish_ps"] - mine["arrival_ps"])[done] / s.PS_PER_S
    found = run.summary["offline"]["jobs"]
    assert (found["jobs"], found["left"]) == (jobs, int((~done).sum()))
    assert found["mean_completion_s"] == pytest.approx(ages_s.mean())
    assert found["makespan_s"] == (None if found["left"] else pytest.approx(ages_s.max()))
    assert (found["left"] > 0) == (jobs == 3000)
    late = None if deadline_s is None else np.sum(ages_s > deadline_s) + found["left"]
    assert found["in_time"] == (None if late is None else pytest.approx(1.0 - late / jobs))
