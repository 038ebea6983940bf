"""`ooco_gym/Batching-v1`: how is the next iteration of a mixed instance filled?"""

from __future__ import annotations

from itertools import product
from typing import ClassVar

import numpy as np

from ooco_gym.compile import inlined, inner
from ooco_gym.envs import buffers as b
from ooco_gym.envs.base import DecisionEnv
from ooco_gym.envs.buffers import step_kernel
from ooco_gym.envs.config import MOST_CANDIDATES, EpisodeConfig
from ooco_gym.envs.decision import Decision
from ooco_gym.envs.features import Feature, columns
from ooco_gym.envs.reward import BLOCK_ARRIVED, BLOCK_VIOLATED, BUDGET
from ooco_gym.envs.vector import register
from ooco_gym.errors import UserError
from ooco_gym.perf.latency import sums_latency
from ooco_gym.policy.engine_features import (
    ALONE_PS,
    OFFLINE_PS,
    ONLINE_PS,
    SLACKS,
    count_late,
    engine_row,
    engine_stack,
    even_sums,
)
from ooco_gym.policy.latency_budget import OFFLINE_CLASS, FillLimits, decodes, fill, preempt_last
from ooco_gym.policy.policy import Policy
from ooco_gym.runtime.features import ACTION, ENGINE, Contracted
from ooco_gym.schema import Share, check, check_keys, demand
from ooco_gym.sim.costs import length
from ooco_gym.sim.state import BATCH, COMPOSE, NEVER, RECOMPUTE

# --- What is observed: `ooco_gym.runtime.features` has the table and the meaning of each feature ---------------------
FEATURES = len(ENGINE)
F = columns(ACTION)
_MOST_TIMES = ACTION[F.time].limit


def feature_of(one: Contracted) -> Feature:
    """Converts a feature of the contract to the environments' `Feature`."""
    return Feature(one.name, one.unit, one.scale, one.limit, one.low, one.high, one.meaning)


@inner
def fill_engine(state, instance, sums, notes, out):
    """Writes the `ENGINE` features of a mixed instance by `engine_row`, which writes intermediate
    values to `notes`."""
    row = engine_stack()
    engine_row(state, instance, (sums[BUDGET], sums[BLOCK_ARRIVED], sums[BLOCK_VIOLATED]), notes, row)
    for index in range(FEATURES):  # an environment's own are behind them
        out[index] = row[index]


@inner
def fill_actions(state, buffers, i):
    """Writes the `ACTION` features of every candidate; `fill_engine` must have run before."""
    notes, levels, tpot_ps = buffers.notes[i], buffers.levels, state.config.default_tpot_ps
    alone, online_work, offline_work = notes[ALONE_PS], notes[ONLINE_PS], notes[OFFLINE_PS]
    count = np.int64(notes[SLACKS])
    per_tpot = 1.0 / (tpot_ps * _MOST_TIMES)
    for k in range(levels.shape[1]):
        out = buffers.candidates[i, k]
        room = max(0.0, levels[0, k] * tpot_ps - alone)
        online = min(levels[1, k] * room, online_work)
        offline = max(0.0, min(levels[2, k] * room - online, offline_work))
        step = alone + online + offline
        out[F.present] = 1.0
        out[F.time] = min(1.0, levels[0, k] / _MOST_TIMES)
        out[F.online_share] = levels[1, k]
        out[F.offline_share] = levels[2, k]
        out[F.step] = min(1.0, step * per_tpot)
        out[F.late] = count_late(state, count, step) / max(1, count)
        out[F.online_time] = min(1.0, online * per_tpot)
        out[F.offline_time] = min(1.0, offline * per_tpot)


@step_kernel
def observe_engine(state, buffers, i):
    """Completes the observation of an open decision."""
    fill_engine(state, state.pending.instance, buffers.reward_sums[i], buffers.notes[i], buffers.cluster[i])
    fill_actions(state, buffers, i)
    return b.NO_KIND


# --- What is offered, and what an action does ---------------------------------------------------------------------
TIME, ONLINE, OFFLINE = range(3)  # rows of StepBuffers.levels
SHARES = ("online", "offline")
LEAST_TOKENS = 256  # tokens of an iteration into which nothing fits, so that runnable requests go on


@inlined
def _limits(online_ps, offline_ps, tokens):
    """Limits of an iteration without a smallest chunk."""
    online_ps, offline_ps, one, none = np.int64(online_ps), np.int64(offline_ps), np.int64(1), np.int64(0)
    return FillLimits(online_ps, offline_ps, offline_ps, np.int64(tokens), one, one, none, none, np.int64(RECOMPUTE))


@inner
def compose(state, instance, limit_ps, online_share, offline_share):
    """Composes the next iteration by predicted latency, and returns its tokens. It is never empty
    if a request can run.

    Args:
        limit_ps: limit on the predicted latency; online decodes may exceed it.
        online_share: share of the time left by online decodes that online prompts may take.
        offline_share: share of that time up to which offline work may fill the iteration; 0:
            none.
    """
    spec, batch, count, context = state.instances[instance], state.members[BATCH, instance], 0, np.int64(0)
    for place in range(spec.running):
        slot = np.int64(batch[np.uint64(place)])
        if state.requests[np.uint64(slot)].urgent and decodes(state, slot):
            count += 1
            context += length(state, slot)
    alone = np.int64(0)
    if count > 0:
        alone = np.int64(sums_latency(state, spec.belief, even_sums(count, context)))
    room, budget = max(0.0, limit_ps - alone), state.config.max_num_batched_tokens
    online_ps = alone + np.int64(online_share * room)
    offline_ps = alone + np.int64(offline_share * room) if offline_share > 0.0 and room > 0.0 else np.int64(0)
    tokens = fill(state, instance, _limits(online_ps, offline_ps, budget))
    while tokens == 0 and (spec.running > 0 or spec.online_waiting > 0 or spec.offline_waiting > 0):
        tokens = fill(state, instance, _limits(NEVER, NEVER, min(budget, LEAST_TOKENS)))
        if tokens == 0 and not preempt_last(state, instance, OFFLINE_CLASS, -1, RECOMPUTE):
            break  # running requests are blocked by the memory of their own class, not by offline requests
    return tokens


@inlined
def _decodes_online(state, instance):
    """Whether an online request decodes on the instance, and whether it has any other work."""
    spec, batch, some, others = state.instances[instance], state.members[BATCH, instance], False, False
    others = spec.online_waiting > 0 or spec.offline_waiting > 0
    place = 0
    while place < spec.running and not (some and others):
        slot = np.int64(batch[np.uint64(place)])
        if state.requests[np.uint64(slot)].urgent and decodes(state, slot):
            some = True
        else:
            others = True
        place += 1
    return some, others


@step_kernel
def offer_times(state, buffers, i):
    """Offers every combination if there is more to do than online decodes."""
    decodes, others = _decodes_online(state, state.pending.instance)
    if not others:
        return 0
    candidates, count = buffers.candidates[i], buffers.levels.shape[1]
    for k in range(count):
        candidates[k, F.present] = 1.0
        buffers.chosen[i, k] = k
        buffers.mask[i, b.FIXED + k] = 1
    buffers.mask[i, b.DECLINE_ACTION] = decodes
    buffers.mask[i, b.BASE_ACTION] = 1
    return count + decodes


@step_kernel
def answer_times(state, buffers, i):
    actions, levels, instance = buffers.actions[i], buffers.levels, state.pending.instance
    tpot_ps = state.config.default_tpot_ps
    if buffers.settings[b.BOX]:
        least, most = levels[TIME, 0], levels[TIME, levels.shape[1] - 1]
        time = least + (most - least) * actions[TIME] / b.BOX_ONE
        return compose(state, instance, time * tpot_ps, actions[ONLINE] / b.BOX_ONE, actions[OFFLINE] / b.BOX_ONE)
    if actions[0] == b.DECLINE_ACTION:
        return compose(state, instance, 0.0, 0.0, 0.0)
    k = actions[0] - b.FIXED
    return compose(state, instance, levels[TIME, k] * tpot_ps, levels[ONLINE, k], levels[OFFLINE, k])


def time_levels(policy: Policy, config: EpisodeConfig) -> np.ndarray:
    """Returns the candidates, float64[3, candidates]: time over the TPOT SLO, online share,
    offline share, by ascending time.

    Raises:
        UserError: no levels, invalid shares, or too many combinations.
    """
    check_keys("shares", config.shares, SHARES)
    lists = {name: config.shares.get(name, (0.0, 0.5, 1.0)) for name in SHARES}
    for name, values in lists.items():
        what = f"shares.{name}"
        demand(check(tuple[Share, ...], what, values), what, values, "a list of shares, such as [0, 0.5, 1]")
    times = sorted(set(config.levels))
    if not times or times[0] <= 0:
        raise UserError(f"levels={list(config.levels)!r} must be positive: limits of an iteration's latency as shares "
                        "of the TPOT SLO; action 0 is online decodes only")
    answers = [answer for answer in product(times, *(sorted(set(lists[name])) for name in SHARES)) if any(answer[1:])]
    if not 2 <= len(answers) <= MOST_CANDIDATES:
        raise UserError(f"levels and shares make {len(answers)} candidates; expected 2 to {MOST_CANDIDATES}")
    return np.array(answers, float).T.copy()


DECISION = Decision(
    "batch", COMPOSE, offer_times, answer_times, levels=time_levels,
    question="Which latency limit does the next iteration have, and how is it shared?", no="run online decodes only",
    take="fill the iteration up to this latency, with these shares for online prefills and offline work",
    candidates="latency limits and shares", table=tuple(map(feature_of, ACTION)),
    cluster=tuple(map(feature_of, ENGINE)), observe=observe_engine, box=True, marks=((646, 104),))


class BatchingEnv(DecisionEnv):
    """How to fill the next iterations of an engine that puts prompts and decodes of both classes
    into one batch.

    ## Description
    HyGen (arXiv 2501.14808) fills every iteration up to one latency budget, vLLM up to one number
    of tokens. Here the agent chooses, at each iteration with a choice (or every `interval_s` per
    instance), how long the iteration may take, and up to which shares of that time online prompts
    and offline work may fill it. `fill` (`ooco_gym/policy/latency_budget.py`) converts these to
    tokens by predicted latencies. Every iteration includes the online decodes; iterations of
    online decodes only leave no choice.

    ## Action Space
    `Discrete(2 + K)`: 0 runs only online decodes (legal if there are any), 1 does what the base
    policy would do, `2 + k` takes a time with two shares. The K candidates are all combinations
    of `levels` and `shares` except those with both shares 0. With `action="box"` the space is
    `Box(-1, 1, (3,))`: time (from the least to the largest of `levels`), online share and offline
    share (from 0 to 1); a vector with a NaN takes the base policy's action.

    ## Candidates
    All combinations, by time. Online prompts get their share of the time left by online decodes.
    Offline work then fills the iteration up to its share: with decodes, and with prompts if no
    online prompt is held back. If nothing fits, the iteration runs a few tokens.
    """

    id: ClassVar[str] = "ooco_gym/Batching-v1"
    decisions: ClassVar[tuple[Decision, ...]] = (DECISION,)
    default_scenario: ClassVar[str] = "batching"


register(BatchingEnv)
