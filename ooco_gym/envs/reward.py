"""The reward's terms, as differences of sums that the simulator keeps.

| term | charged | when |
|---|---|---|
| service | reference GPU-seconds of offline requests, of prompt and output | at completion |
| waiting | reference GPU-seconds of offline work in the system, times seconds | as time goes by |
| ttft, tpot | online requests that violated that SLO | when the deadline passes, or the violation becomes certain |
| late | online requests that are past an SLO and unfinished, times seconds | as time goes by |
| burst | online requests beyond the violation budget within a block of time | when they violate an SLO |
| waste | instance time to be spent again | when it is lost |

Columns of an environment's own terms (`custom.Term`) start at REWARD_SUMS: the readings at the
last decision, the step's terms, then the episode's totals.
"""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from ooco_gym.compile import inlined, inner
from ooco_gym.envs.custom import reading_at
from ooco_gym.sim.costs import prefill_one
from ooco_gym.sim.memory import late_area
from ooco_gym.sim.sessions import rows_arrived
from ooco_gym.sim.state import ABORTED, FINISHED, LEAVING, MIXED, MOVING, PS_PER_S, PUSH_WAITING, REJECTED, RESIDENT

TERMS = ("service", "waiting", "ttft", "tpot", "late", "burst", "waste")
COSTS = ("ttft", "tpot")  # terms that count SLO violations: info["cost_<term>"]
BURST_S = 600.0  # length of a block of time with its own violation budget
_N = len(TERMS)
# First columns in the reward sums: totals at the last decision (OLD), the step's terms, their total, cost, costs by
# SLO, elapsed seconds, values at the last decision and at the start of the present block of time, the violation
# budget, and totals of the episode (TOTAL: the columns from TERM to COST). REWARD_SUMS is the number of columns.
(OLD, TERM, REWARD, COST, TTFT_COUNT, TPOT_COUNT, ELAPSED, OLD_TIME, OLD_ARRIVED, OLD_VIOLATIONS, BLOCK, BLOCK_ARRIVED,
 BLOCK_VIOLATED, BLOCK_EXCESS, BUDGET, TOTAL, REWARD_SUMS) = accumulate((0, _N, _N, *(1,) * 13, _N + 2))
SERVICE, WAITING, TTFT, TPOT, LATE, BURST, WASTE = range(_N)


@inner
def update_reward_sums(state, weights, reward_sums, own):
    """Writes the terms of the reward since the last call, as weighted differences of the
    simulator's sums.

    Args:
        state: the episode.
        weights: float64[terms + own terms], at least 0.
        reward_sums: float64[REWARD_SUMS + 3 own terms], kept between calls.
        own: int64[own terms], addresses of the own terms' readings.
    """
    totals = state.totals
    now = state.clock.now_ps / PS_PER_S
    waited = (state.clock.now_ps - state.gauges.outstanding_since_ps) / PS_PER_S
    reward_sums[TTFT_COUNT] = totals.ttft_misses - reward_sums[OLD + TTFT]
    reward_sums[TPOT_COUNT] = totals.tpot_misses - reward_sums[OLD + TPOT]
    reward_sums[COST] = totals.violations - reward_sums[OLD_VIOLATIONS]
    reward_sums[ELAPSED] = now - reward_sums[OLD_TIME]
    reward_sums[OLD_TIME] = now
    _book(reward_sums, weights, SERVICE, 1.0, totals.service_ps / PS_PER_S)
    _book(reward_sums, weights, WAITING, -1.0,
          state.integrals.waiting_area + state.gauges.outstanding_ps / PS_PER_S * waited)
    _book(reward_sums, weights, TTFT, -1.0, float(totals.ttft_misses))
    _book(reward_sums, weights, TPOT, -1.0, float(totals.tpot_misses))
    _book(reward_sums, weights, LATE, -1.0, late_area(state))
    _book(reward_sums, weights, BURST, -1.0, _excess(state, reward_sums, now))
    _book(reward_sums, weights, WASTE, -1.0, totals.wasted_ps / PS_PER_S)
    reward_sums[OLD_ARRIVED], reward_sums[OLD_VIOLATIONS] = totals.online_arrived, totals.violations
    reward_sums[REWARD] = 0.0
    for term in range(_N):
        reward_sums[REWARD] += reward_sums[TERM + term]
    if own.size:
        _book_own(state, weights, reward_sums, own)
    for column in range(_N + 2):
        reward_sums[TOTAL + column] += reward_sums[TERM + column]


@inlined
def _book(reward_sums, weights, term, sign, total):
    reward_sums[TERM + term] = sign * weights[term] * (total - reward_sums[OLD + term])
    reward_sums[OLD + term] = total


@inner
def _book_own(state, weights, reward_sums, own):
    count = own.size
    for k in range(count):
        total = reading_at(own[k])(state, np.int64(-1))
        term = weights[_N + k] * (total - reward_sums[REWARD_SUMS + k])
        reward_sums[REWARD_SUMS + k] = total
        reward_sums[REWARD_SUMS + count + k] = term
        reward_sums[REWARD_SUMS + 2 * count + k] += term
        reward_sums[REWARD] += term


@inlined
def _excess(state, reward_sums, now):
    """Online requests beyond the violation budget, summed over all blocks of time up to now."""
    block = np.floor(now / BURST_S)
    if block != reward_sums[BLOCK]:  # no call has turned the block: events since the last call belong to this one
        reward_sums[BLOCK_EXCESS], reward_sums[BLOCK] = reward_sums[OLD + BURST], block
        reward_sums[BLOCK_ARRIVED], reward_sums[BLOCK_VIOLATED] = reward_sums[OLD_ARRIVED], reward_sums[OLD_VIOLATIONS]
    violated = state.totals.violations - reward_sums[BLOCK_VIOLATED]
    arrived = state.totals.online_arrived - reward_sums[BLOCK_ARRIVED]
    return reward_sums[BLOCK_EXCESS] + max(0.0, violated - reward_sums[BUDGET] * arrived)


@inlined
def block_end_ps(reward_sums):
    """End of the present block of time."""
    return np.int64((reward_sums[BLOCK] + 1.0) * BURST_S) * PS_PER_S


@inner
def turn_block(state, reward_sums):
    """Ends a block of time: stores its excess over the budget, and starts the next block."""
    now = state.clock.now_ps / PS_PER_S
    reward_sums[BLOCK_EXCESS] = _excess(state, reward_sums, reward_sums[BLOCK] * BURST_S)
    reward_sums[BLOCK] = np.floor(now / BURST_S)
    reward_sums[BLOCK_ARRIVED], reward_sums[BLOCK_VIOLATED] = state.totals.online_arrived, state.totals.violations


@inner
def open_reward_sums(state, weights, budget, reward_sums, own):
    """Resets the reward sums at the start of an episode, whose sums count from here.

    Args:
        weights, reward_sums, own: as in `update_reward_sums`.
        budget: share of the online requests that may violate an SLO.
    """
    reward_sums[:] = 0.0
    reward_sums[BUDGET] = budget
    reward_sums[BLOCK] = np.floor(state.clock.now_ps / PS_PER_S / BURST_S)
    update_reward_sums(state, weights, reward_sums, own)
    for column in range(_N + 2):
        reward_sums[TERM + column] = 0.0
        reward_sums[TOTAL + column] = 0.0
    for column in range(REWARD_SUMS + own.size, reward_sums.size):
        reward_sums[column] = 0.0
    reward_sums[ELAPSED] = 0.0


@inlined
def recent_violations(state, reward_sums):
    """Share of the online requests in the present block of time that violated an SLO."""
    arrived = state.totals.online_arrived - reward_sums[BLOCK_ARRIVED]
    return (state.totals.violations - reward_sums[BLOCK_VIOLATED]) / max(1.0, arrived)


@inner
def work_done(state):
    """Reference GPU-seconds computed, and not lost, for unfinished offline requests."""
    total, table = 0.0, state.instances[0].table
    for slot in range(rows_arrived(state)):
        request = state.requests[slot]
        status = request.status
        if request.online or status in (FINISHED, REJECTED, ABORTED):
            continue
        held = status in (RESIDENT, LEAVING, MOVING, PUSH_WAITING)
        if not held and request.generated_tokens == 0:
            continue
        alone = prefill_one(state, table, request.prompt_tokens)
        decoding = max(0, request.service_ps - alone)
        total += decoding * request.generated_tokens / max(1, request.output_tokens)
        if held and state.instances[0].role == MIXED and request.generated_tokens == 0:
            total += alone * request.num_computed_tokens / request.prompt_tokens
        elif held:
            total += alone
        else:  # its prompt and generated tokens must be prefilled again
            total -= prefill_one(state, table, request.prompt_tokens + request.generated_tokens) - alone
    return total / PS_PER_S
