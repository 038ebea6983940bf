"""`ooco_gym/ScalingPools-v1`: how many instances of a cluster of pools are relaxed?"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ooco_gym.envs import buffers as b
from ooco_gym.envs.base import DecisionEnv
from ooco_gym.envs.buffers import step_kernel
from ooco_gym.envs.custom import OwnFeature, scaled, scales_of
from ooco_gym.envs.decision import Decision
from ooco_gym.envs.features import CHANGE, POOLS
from ooco_gym.envs.scaling import LONG_S, SHORT_S, action_of_number, answer_change, levels, offer_changes
from ooco_gym.envs.stepping import pending_view
from ooco_gym.envs.vector import register
from ooco_gym.policy import scaling as f

_POOL_SCALES = scales_of(list(map(OwnFeature, POOLS, POOLS)))


@step_kernel
def observe_pools(state, buffers, i):
    """Completes the observation of an open decision."""
    view = pending_view(state)
    cost, interval, config = f.token_s(view), f.interval_s(view), state.config
    group, offline = f.group_of(view), np.int64(0)
    short, long = max(1, int(SHORT_S / interval)), max(1, int(LONG_S / interval))
    for instance in range(group.first, group.first + group.engines):
        offline += state.instances[instance].offline_waiting
    prompts, outputs = (cost[0], 0.0), (0.0, cost[1])
    values = (float(group.target), float(config.strict_from - config.relaxed_count),
              f.instances_for(view, 0, 1, prompts), f.instances_for(view, 0, short, prompts),
              f.instances_for(view, 0, long, prompts), f.instances_for(view, 0, 1, outputs),
              f.instances_for(view, 0, short, outputs), f.instances_for(view, 0, long, outputs),
              float(f.running(view)), float(f.waiting(view)[0]), float(offline))
    for index in range(len(values)):
        buffers.cluster[i, index] = scaled(values[index], _POOL_SCALES[index])
    return b.NO_KIND


DECISION = Decision(
    "roles", f.s.SCALE, offer_changes, answer_change, action_of_number, levels=levels,
    question="How many instances more, or fewer, are to be relaxed?", take="change the number of relaxed ones by this",
    candidates="changes", table=CHANGE, cluster=POOLS, observe=observe_pools, marks=((158, 147),))


class ScalingPoolsEnv(DecisionEnv):
    """How many instances prefill (relaxed ones), and how many decode (strict ones), while the traffic differs.

    ## Description
    Every 30 s (the cluster's `scale_interval_s`) the agent moves the boundary between both pools.
    An instance first drains: one that becomes strict hands back what waits, one that becomes relaxed
    lets its online requests end. Nothing starts or stops. Code wants relaxed instances, long answers
    want strict ones, and no number suits all of the traffic that episodes draw: the wrong one
    breaks every SLO, a safe one leaves up to half of the offline work. The base policy schedules
    requests; its `scale` rule is action 1. Rules are heuristics by name (`memory_gate:scale=ratio`).

    ## Action Space
    `Discrete(2 + K)`: 0 is never legal, 1 takes the base policy's number, `2 + k` takes change k,
    masked where the number would leave `relaxed_min` to `relaxed_max`.

    ## Candidates
    The changes: two or one fewer, none, one or two more.
    """

    id: ClassVar[str] = "ooco_gym/ScalingPools-v1"
    decisions: ClassVar[tuple[Decision, ...]] = (DECISION,)
    default_scenario: ClassVar[str] = "scalingpools"
    most_candidates: ClassVar[int] = 5


register(ScalingPoolsEnv)
