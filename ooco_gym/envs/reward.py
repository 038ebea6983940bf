"""The reward in its terms, from sums that the simulator keeps: what each decision costs is a difference of them.

| term | charged | when |
|---|---|---|
| service | reference GPU-seconds of offline requests, of prompt and output | at completion |
| waiting | reference GPU-seconds of offline work in the system, times seconds | as time goes by |
| ttft, tpot | online requests that missed that SLO | when the deadline passes, or the miss becomes certain |
| late | online requests that are past an SLO and unfinished, times seconds | as time goes by |
| burst | online requests beyond the violation budget within a block of time | when they miss |
| waste | instance time to be spent again | when it is lost |

Terms that an environment has of its own (`custom.Term`) come after these: the columns from ACCOUNT on have, for each of
them, the reading at the last decision, the step's term, and the episode's total.
"""

from __future__ import annotations

import numpy as np

from ooco_gym.compile import inlined, inner
from ooco_gym.envs.custom import reading_at
from ooco_gym.sim.costs import prefill_one
from ooco_gym.sim.memory import late_area
from ooco_gym.sim.sessions import rows_arrived
from ooco_gym.sim.state import FINISHED, LEAVING, MIXED, MOVING, PS_PER_S, PUSH_WAITING, REJECTED, RESIDENT

TERMS = ("service", "waiting", "ttft", "tpot", "late", "burst", "waste")
COSTS = ("ttft", "tpot")  # terms that are online requests beyond an SLO: info["cost_<term>"]
BURST_S = 600.0  # a block of time within which the violation budget must hold, too
_N = len(TERMS)
# Columns of an account: sums at the last decision, the step's terms, their total, cost, costs by SLO, elapsed seconds,
# what was at the beginning of the present block of time, the share of online requests that may miss an SLO, then totals
# of the episode.
OLD, TERM, REWARD, COST, TTFT_COUNT, TPOT_COUNT, ELAPSED = 0, _N, 2 * _N, 2 * _N + 1, 2 * _N + 2, 2 * _N + 3, 2 * _N + 4
OLD_TIME, OLD_ARRIVED, OLD_VIOLATIONS, BLOCK, BLOCK_ARRIVED, BLOCK_VIOLATED, BLOCK_EXCESS, BUDGET = range(
    2 * _N + 5, 2 * _N + 13)
TOTAL = 2 * _N + 13  # and on, as from TERM to COST
ACCOUNT = TOTAL + _N + 2
SERVICE, WAITING, TTFT, TPOT, LATE, BURST, WASTE = range(_N)


@inner
def update_account(state, weights, account, own):
    """Writes the terms of the reward since the last call: differences of the simulator's sums, weighted.

    Args:
        state: the episode.
        weights: float64[terms + own ones], at least 0.
        account: float64[ACCOUNT + 3 own ones], kept from call to call.
        own: int64[own ones], addresses of the readings of the environment's own terms.
    """
    totals = state.totals
    now = state.clock.now_ps / PS_PER_S
    waited = (state.clock.now_ps - state.gauges.outstanding_since_ps) / PS_PER_S
    account[TTFT_COUNT] = totals.ttft_misses - account[OLD + TTFT]
    account[TPOT_COUNT] = totals.tpot_misses - account[OLD + TPOT]
    account[COST] = totals.violations - account[OLD_VIOLATIONS]
    account[ELAPSED] = now - account[OLD_TIME]
    account[OLD_TIME] = now
    _book(account, weights, SERVICE, 1.0, totals.service_ps / PS_PER_S)
    _book(account, weights, WAITING, -1.0,
          state.integrals.waiting_area + state.gauges.outstanding_ps / PS_PER_S * waited)
    _book(account, weights, TTFT, -1.0, float(totals.ttft_misses))
    _book(account, weights, TPOT, -1.0, float(totals.tpot_misses))
    _book(account, weights, LATE, -1.0, late_area(state))
    _book(account, weights, BURST, -1.0, _excess(state, account, now))
    _book(account, weights, WASTE, -1.0, totals.wasted_ps / PS_PER_S)
    account[OLD_ARRIVED], account[OLD_VIOLATIONS] = totals.online_arrived, totals.violations
    account[REWARD] = 0.0
    for term in range(_N):
        account[REWARD] += account[TERM + term]
    if own.size:
        _book_own(state, weights, account, own)
    for column in range(_N + 2):
        account[TOTAL + column] += account[TERM + column]


@inlined
def _book(account, weights, term, sign, total):
    account[TERM + term] = sign * weights[term] * (total - account[OLD + term])
    account[OLD + term] = total


@inner
def _book_own(state, weights, account, own):
    count = own.size
    for k in range(count):
        total = reading_at(own[k])(state, np.int64(-1))
        term = weights[_N + k] * (total - account[ACCOUNT + k])
        account[ACCOUNT + k] = total
        account[ACCOUNT + count + k] = term
        account[ACCOUNT + 2 * count + k] += term
        account[REWARD] += term


@inlined
def _excess(state, account, now):
    """Online requests beyond the budget, summed over the blocks of time so far; of the present one, so far."""
    block = np.floor(now / BURST_S)
    if block != account[BLOCK]:  # no call has turned it: what has happened since the last one is of this block
        account[BLOCK_EXCESS], account[BLOCK] = account[OLD + BURST], block
        account[BLOCK_ARRIVED], account[BLOCK_VIOLATED] = account[OLD_ARRIVED], account[OLD_VIOLATIONS]
    violated = state.totals.violations - account[BLOCK_VIOLATED]
    arrived = state.totals.online_arrived - account[BLOCK_ARRIVED]
    return account[BLOCK_EXCESS] + max(0.0, violated - account[BUDGET] * arrived)


@inlined
def block_end_ps(account):
    """When the present block of time ends."""
    return np.int64((account[BLOCK] + 1.0) * BURST_S) * PS_PER_S


@inner
def turn_block(state, account):
    """At the end of a block of time: what it had beyond the budget stays, and the next one begins."""
    now = state.clock.now_ps / PS_PER_S
    account[BLOCK_EXCESS] = _excess(state, account, account[BLOCK] * BURST_S)
    account[BLOCK] = np.floor(now / BURST_S)
    account[BLOCK_ARRIVED], account[BLOCK_VIOLATED] = state.totals.online_arrived, state.totals.violations


@inner
def open_account(state, weights, budget, account, own):
    """Opens the account at the beginning of an episode: nothing before it counts.

    Args:
        weights, account, own: as of `update_account`.
        budget: share of the online requests that may miss an SLO.
    """
    account[:] = 0.0
    account[BUDGET] = budget
    account[BLOCK] = np.floor(state.clock.now_ps / PS_PER_S / BURST_S)
    update_account(state, weights, account, own)
    for column in range(_N + 2):
        account[TERM + column] = 0.0
        account[TOTAL + column] = 0.0
    for column in range(ACCOUNT + own.size, account.size):
        account[column] = 0.0
    account[ELAPSED] = 0.0


@inlined
def recent_violations(state, account):
    """Share of the online requests of the present block of time that missed an SLO."""
    arrived = state.totals.online_arrived - account[BLOCK_ARRIVED]
    return (state.totals.violations - account[BLOCK_VIOLATED]) / max(1.0, arrived)


@inner
def work_done(state):
    """Reference GPU-seconds of what has been computed, and not been lost, for unfinished offline requests."""
    total, table = 0.0, state.instances[0].table
    for slot in range(rows_arrived(state)):
        request = state.requests[slot]
        status = request.status
        if request.online or status in (FINISHED, REJECTED):
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
        else:  # its prompt is to be prefilled anew, with all that it had generated
            total -= prefill_one(state, table, request.prompt_tokens + request.generated_tokens) - alone
    return total / PS_PER_S
