"""`ooco_gym/Scaling-v1`: how many instances of an elastic fleet are on?"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from ooco_gym.envs import buffers as b
from ooco_gym.envs.base import DecisionEnv
from ooco_gym.envs.buffers import step_kernel
from ooco_gym.envs.config import EpisodeConfig
from ooco_gym.envs.custom import OwnFeature, Term, reading, scaled, scales_of
from ooco_gym.envs.decision import Decision, OpenDecision
from ooco_gym.envs.features import CHANGE, FLEET
from ooco_gym.envs.stepping import base_pick, pending_view
from ooco_gym.envs.vector import register
from ooco_gym.policy import scaling as f
from ooco_gym.policy.policy import Policy
from ooco_gym.sim import state as s
from ooco_gym.sim.fleet import used_chip_s
from ooco_gym.sim.roles import steers_roles

CHANGES = (-2, -1, 0, 1, 2)
SHORT_S, LONG_S = 120.0, 600.0
_SCALES, _FLEET_SCALES = (scales_of(list(map(OwnFeature, table, table))) for table in (CHANGE, FLEET))


@step_kernel
def offer_changes(state, buffers, i):
    """Offers the changes within the group's bounds: of instances that are on or starting, or that are relaxed."""
    view, offered = pending_view(state), 0
    group, have, cost = f.group_of(view), f.count_in(view, s.ON) + f.count_in(view, s.STARTING), f.token_s(view)
    if steers_roles(state):
        have, cost = np.int64(group.target), (cost[0], 0.0)
    wanted = min(max(base_pick(state, buffers, i), group.least), group.most)
    load = f.instances_for(view, 0, max(1, int(SHORT_S / f.interval_s(view))), cost)
    for k in range(buffers.levels.shape[1]):
        change = np.int64(buffers.levels[0, k])
        if have + change < group.least or have + change > group.most:
            continue
        out = buffers.candidates[i, k]
        out[0], out[4] = 1.0, have + change == wanted
        out[1], out[2] = scaled(float(change), _SCALES[1]), scaled(float(have + change), _SCALES[2])
        out[3] = scaled(load / max(1, have + change), _SCALES[3])
        buffers.chosen[i, k] = have + change
        buffers.mask[i, b.FIXED + k] = 1
        offered += 1
    return offered


@step_kernel
def answer_change(state, buffers, i):
    """Returns the number of instances."""
    return buffers.chosen[i, buffers.actions[i, 0] - b.FIXED]


def action_of_number(opened: OpenDecision) -> int:
    """Returns the action whose number is nearest to a rule's answer."""
    near = np.where(opened.chosen >= 0, np.abs(opened.chosen.astype(np.int64) - opened.answer), np.iinfo(np.int64).max)
    return b.FIXED + int(near.argmin())


def levels(policy: Policy, config: EpisodeConfig) -> np.ndarray:
    """Returns the changes: float64[1, 5], ascending."""
    return np.array([CHANGES], np.float64)


@step_kernel
def observe_fleet(state, buffers, i):
    """Completes the observation of an open decision."""
    view = pending_view(state)
    cost, interval, offline = f.token_s(view), f.interval_s(view), np.int64(0)
    angle, group = 2.0 * math.pi * f.time_of_day_s(view) / 86_400.0, f.group_of(view)
    for instance in range(group.first, group.first + group.engines):
        offline += state.instances[instance].offline_waiting
    values = (float(f.count_in(view, s.ON)), float(f.count_in(view, s.STARTING)), float(f.count_in(view, s.DRAINING)),
              f.instances_for(view, 0, 1, cost), f.instances_for(view, 0, max(1, int(SHORT_S / interval)), cost),
              f.instances_for(view, 0, max(1, int(LONG_S / interval)), cost), float(f.running(view)),
              float(f.waiting(view)[0]), f.kv_used(view), float(offline), group.start_ps / s.PS_PER_S,
              math.sin(angle), math.cos(angle))
    for index in range(len(values)):
        buffers.cluster[i, index] = scaled(values[index], _FLEET_SCALES[index])
    return b.NO_KIND


@reading
def paid(state, instance):
    """Minus the chip-seconds that were paid for."""
    return -used_chip_s(state)


DECISION = Decision(
    "scale", s.SCALE, offer_changes, answer_change, action_of_number, levels=levels,
    question="How many instances more, or fewer, are to be on?", take="change the number of instances by this",
    candidates="changes", table=CHANGE, cluster=FLEET, observe=observe_fleet, marks=((158, 147),))


class ScalingEnv(DecisionEnv):
    """How many instances of a fleet are on, while load has tides and a start takes minutes.

    ## Description
    Every 30 s (the cluster's `scale_interval_s`) the agent changes the number of instances that
    are on or starting. An instance serves a minute and more after its start began, is paid for from
    then on, and one that stops first ends its online requests; its offline work is recomputed
    elsewhere. The agent sees what a controller sees ([Elastic fleets](../elastic.md)), not the
    requests to come. The reward pays offline work, and charges chips (`paid`, chip-seconds) and SLO
    violations. The base policy schedules requests; its `scale` rule is action 1. Controllers are
    heuristics by name (`deadline:scale=hpa`).

    ## Action Space
    `Discrete(2 + K)`: 0 is never legal, 1 takes the base policy's number, `2 + k` takes change k,
    masked where the number would leave `min` to `max`.

    ## Candidates
    The changes: two or one fewer, none, one or two more.
    """

    id: ClassVar[str] = "ooco_gym/Scaling-v1"
    decisions: ClassVar[tuple[Decision, ...]] = (DECISION,)
    terms: ClassVar[tuple[Term, ...]] = (Term("paid", paid),)
    default_scenario: ClassVar[str] = "scaling"
    most_candidates: ClassVar[int] = 5


register(ScalingEnv)
