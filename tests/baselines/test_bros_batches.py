"""Best-effort requests in batches, as BROS's evaluation has them."""

from __future__ import annotations

import numpy as np
import pytest

from baselines.bros_batches import POLL_S, simulate_batches
from ooco_gym.scenario import Scenario
from ooco_gym.sim import state as s

BATCH = 6


@pytest.fixture(scope="module")
def requests() -> np.ndarray:
    """The requests of a short run under round robin, in seconds where they are times."""
    scenario = Scenario(cluster="bros_opt_13b", workload="bros_sharegpt", slo="bros", duration_s=20.0, warmup_s=2.0,
                        drain_s=60.0, start_s=0.0, online_rate=1.0,
                        offline={"mode": "jobs", "jobs": 20 * BATCH, "dataset": "bros_be"})
    run = simulate_batches(scenario, "round_robin", BATCH)
    assert run.summary["simulated_s"] >= 20.0
    return run.requests


def test_a_batch_arrives_when_the_last_one_is_done(requests: np.ndarray) -> None:
    done = requests[(requests["online"] == 0) & (requests["arrival_ps"] < s.NEVER)]
    arrivals = np.unique(done["arrival_ps"])
    assert len(arrivals) > 3
    batches = [done[done["arrival_ps"] == at] for at in arrivals]
    assert all(len(batch) == BATCH for batch in batches)
    for before, after in zip(batches, arrivals[1:], strict=False):
        wait_s = (after - before["finish_ps"].max()) / s.PS_PER_S
        assert 0.0 <= wait_s <= POLL_S + 1e-6
