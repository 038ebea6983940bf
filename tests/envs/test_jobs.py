"""`Jobs-v1`: what its reward adds up to, and that the base policy's order is played request by request."""

from __future__ import annotations

import numpy as np
import pytest

from ooco_gym import Simulation, candidate_table
from ooco_gym.envs import jobs
from ooco_gym.policy import policy_of
from tests.envs.episodes_in_short import at_random, differences, make, play

NAME = "ooco_gym/Jobs-v1"


def as_the_rule(env):
    first = np.flatnonzero(candidate_table(env._observation())[:, jobs.F.first])
    return 2 + int(first[0]) if len(first) else 0 if env.action_masks()[0] else 1


def test_the_base_policys_order_request_by_request_gives_the_same_bytes():
    env = make(NAME)
    assert len(play(env, as_the_rule)) > 20
    whole = Simulation(env.config.window(1, 0), policy_of(env.config.base_policy))
    assert not whole.advance()
    assert differences(env.simulation.state, whole.state) == []


@pytest.mark.parametrize("workload", ["agents@offline", "rollouts@offline"])
def test_the_reward_is_the_mean_time_that_jobs_are_open(workload):
    env = make(NAME, scenario={"workload": workload, "rate_scale": 2.0})
    env.reset(seed=1, options={"window": 0})
    begin_s = env.simulation.window_s[0]
    steps = play(env, at_random(1))
    total = sum(step.reward for step in steps)
    requests, job, now_s = env.simulation.state.requests, env.simulation.job, env.simulation.now_s
    open_s = []
    for one in np.unique(job):
        mine = requests[job == one]
        came_s, ended_s = mine["arrival_ps"].min() / 1e12, mine["finish_ps"].max() / 1e12
        until_s = ended_s if (mine["finish_ps"] > 0).all() else now_s
        open_s.append(max(0.0, until_s - max(came_s, begin_s)))
    assert total == pytest.approx(-np.mean(open_s), rel=1e-6)
    assert len(open_s) > 50 and (requests["finish_ps"] > 0).any()
