"""`ooco_gym/Retention-v1`: how long does a finished request's prefix stay in the cache?"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from ooco_gym.envs import buffers as b
from ooco_gym.envs.base import DecisionEnv
from ooco_gym.envs.batching import feature_of, fill_engine
from ooco_gym.envs.buffers import FIXED, step_kernel
from ooco_gym.envs.config import EpisodeConfig
from ooco_gym.envs.decision import Decision, OpenDecision
from ooco_gym.envs.features import RETAINED, columns
from ooco_gym.envs.filling import SHORT, log_scale, share
from ooco_gym.envs.stepping import base_pick, pending_view
from ooco_gym.envs.vector import register
from ooco_gym.policy.policy import Policy
from ooco_gym.policy.retention import FIRST_TO_GO, client, hint, new_tokens, pressure, turn
from ooco_gym.runtime.features import ENGINE
from ooco_gym.sim.costs import length
from ooco_gym.sim.retention import WORTH
from ooco_gym.sim.state import PS_PER_S, RETAIN

COLUMN = columns(RETAINED)
LEVELS_S = (-1e6, -300.0, -100.0, 0.0, 100.0, 300.0)  # the first is below all others: first to go
_TURNS, _HOUR = 1.0 / math.log1p(40.0), 1.0 / math.log1p(3_600.0)


@step_kernel
def offer_levels(state, buffers, i):
    """Offers the levels, each with the request and the state of the cache."""
    view = pending_view(state)
    request, heap = state.requests[view.request], state.heaps[view.instance]
    seconds, nearest = base_pick(state, buffers, i) / 1e6, 0
    oldest = (state.clock.now_ps - heap[1, WORTH]) / PS_PER_S if heap[0, WORTH] > 0 else 0.0
    for k in range(buffers.levels.shape[1]):
        nearest = k if abs(buffers.levels[0, k] - seconds) < abs(buffers.levels[0, nearest] - seconds) else nearest
    for k in range(buffers.levels.shape[1]):
        out = buffers.candidates[i, k]
        out[COLUMN.present] = 1.0
        out[COLUMN.level] = max(-1.0, buffers.levels[0, k] / 500.0)
        out[COLUMN.online] = request.online
        out[COLUMN.turn] = log_scale(turn(view), _TURNS)
        out[COLUMN.tokens] = log_scale(length(state, view.request), SHORT)
        out[COLUMN.new_tokens] = log_scale(new_tokens(view), SHORT)
        out[COLUMN.cached] = share(request.cached_tokens / request.prompt_tokens, 1.0)
        out[COLUMN.client] = share(client(view) + 1.0, 16.0)
        out[COLUMN.hint] = 2.0 * hint(view) - 1.0 if hint(view) >= 0 else 0.0
        out[COLUMN.pressure] = pressure(view)
        out[COLUMN.oldest] = log_scale(oldest, _HOUR)
        out[COLUMN.base_policy] = k == nearest
        buffers.chosen[i, k] = k
        buffers.mask[i, FIXED + k] = 1
    return buffers.levels.shape[1]


@step_kernel
def answer_level(state, buffers, i):
    """Returns the microseconds of the level."""
    seconds = buffers.levels[0, buffers.actions[i, 0] - FIXED]
    return FIRST_TO_GO if seconds < -1e5 else np.int64(round(1e6 * seconds))


def action_of_level(opened: OpenDecision) -> int:
    """Returns the level that is nearest to a rule's answer."""
    return FIXED + int(np.argmin(np.abs(np.array(LEVELS_S) - opened.answer / 1e6)))


def levels(policy: Policy, config: EpisodeConfig) -> np.ndarray:
    """Returns the levels in seconds: float64[1, 6], ascending."""
    return np.array([LEVELS_S])


@step_kernel
def observe_engine(state, buffers, i):
    """Completes the observation of an open decision."""
    fill_engine(state, state.pending.instance, buffers.reward_sums[i], buffers.notes[i], buffers.cluster[i])
    return b.NO_KIND


DECISION = Decision(
    "retain", RETAIN, offer_levels, answer_level, action_of_level, levels=levels,
    question="How long does this request's prefix stay in the cache?",
    take="its blocks stay as long as this level says", candidates="levels",
    table=RETAINED, cluster=tuple(map(feature_of, ENGINE)), observe=observe_engine, marks=((353, 240),))


class RetentionEnv(DecisionEnv):
    """Which prefixes stay in the KV cache of an engine that serves chat beside offline work.

    ## Description
    A request has ended. Its blocks stay in the prefix cache until others need the memory; a
    conversation that returns in time need not compute them again. Engines evict the block whose
    last use is longest ago. But offline prompts seldom return, clients of one kind leave after a
    turn and those of another stay, and which they are can be learned from their turns. The agent
    says for each request how much longer its blocks stay than their last use says. The base
    policy takes all other decisions, and its cluster's `retention` is the base policy's own
    answer; it must be a rule that is asked (`offline_first`, `turns`, or a file), not `lru`.

    ## Action Space
    `Discrete(2 + K)`: 0 is never legal, 1 is the base policy's answer, `2 + k` takes level k:
    first to go, 300 or 100 s less, 0 s (as LRU), 100 or 300 s longer.

    ## Candidates
    The levels, ascending, each with the same features of the request and of the cache.
    """

    id: ClassVar[str] = "ooco_gym/Retention-v1"
    decisions: ClassVar[tuple[Decision, ...]] = (DECISION,)
    default_scenario: ClassVar[str] = "retention"
    most_candidates: ClassVar[int] = 6


register(RetentionEnv)
