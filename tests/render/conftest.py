"""Short real runs that all tests of pictures share: two policies on two seeds, ten minutes of which five count."""

from __future__ import annotations

import pytest

from ooco_gym import Scenario, simulate

BRIEF = Scenario(workload="azure_conv", rate_scale=0.06, duration_s=300.0, warmup_s=120.0, drain_s=60.0,
                 offline={"mode": "rate", "rate": 2.0})


@pytest.fixture(scope="package")
def runs():
    """Runs by (policy, seed)."""
    return {(policy, seed): simulate(BRIEF.with_(seed=seed), policy, sample_s=30.0)
            for policy in ("ooco", "base_pd") for seed in (1, 2)}


@pytest.fixture(scope="package")
def records(runs):
    from ooco_gym.render import record_of

    return [record_of(run) for run in runs.values()]
