"""One call across the border for each decision: answer, run on to the next, observe, account."""

import numpy as np
from numba import types

from ooco_gym.compile import inner, jit
from ooco_gym.envs.features import CANDIDATE_SIZE, fill_candidate, fill_cluster
from ooco_gym.sim.costs import length
from ooco_gym.sim.loop import run_at
from ooco_gym.sim.reference import refer
from ooco_gym.sim.state import (
    ASKED,
    NOW,
    OUTSTANDING_PS,
    OUTSTANDING_SINCE_PS,
    PENDING_COUNT,
    PENDING_INSTANCE,
    PS_PER_S,
    RULES_TYPE,
    SERVICE_PS,
    STATE_TYPE,
    TPOT_MISSES,
    TTFT_MISSES,
    VIOLATIONS,
    WAITING_AREA,
    WASTED_PS,
)

# What the account of a step holds: the sums of the previous decision (to take differences of), then this step's parts.
(OLD_SERVICE, OLD_WAITING, OLD_TTFT, OLD_TPOT, OLD_WASTE, OLD_VIOLATIONS, OLD_TIME,
 SERVICE, WAITING_COST, TTFT_COST, TPOT_COST, WASTE_COST, REWARD, COST, ELAPSED, ACCOUNT) = range(16)
PARTS = ("service", "waiting", "ttft", "tpot", "waste")

_float32_1d = types.Array(types.float32, 1, "C")
_float32_2d = types.Array(types.float32, 2, "C")
_float64_1d = types.Array(types.float64, 1, "C")
_int8_1d = types.Array(types.int8, 1, "C")
_int32_1d = types.Array(types.int32, 1, "C")


@inner
def choose_candidates(state, count, chosen):
    """Picks what is offered: the head of the queue (what every published gate takes), then length quantiles.

    Writes positions among the decision's candidates to `chosen` (-1 where there are fewer), shortest quantile first.
    """
    size = chosen.size
    chosen[:] = -1
    chosen[0] = 0
    others = count - 1
    if others <= 0:
        return
    keys, order = state.scratch[0], state.scratch[1]
    for i in range(others):
        key = length(state, state.picks[i + 1])
        j = i
        while j > 0 and keys[j - 1] > key:
            keys[j], order[j] = keys[j - 1], order[j - 1]
            j -= 1
        keys[j], order[j] = key, i + 1
    offered = min(size - 1, others)
    for k in range(offered):
        place = k if offered == others else (k * (others - 1)) // max(1, offered - 1)
        chosen[k + 1] = order[place]


@inner
def observe(state, start_day_s, cluster, candidates, mask, chosen):
    """Fills the observation of the gate decision that is open."""
    instance, count = state.counters[PENDING_INSTANCE], state.counters[PENDING_COUNT]
    choose_candidates(state, count, chosen)
    fill_cluster(state, instance, start_day_s + state.counters[NOW] / PS_PER_S, cluster)
    candidates[:] = 0.0
    mask[:] = 0
    mask[0] = 1
    size = chosen.size
    for k in range(size):
        if chosen[k] >= 0:
            mask[k + 1] = 1
            fill_candidate(state, instance, state.picks[chosen[k]], candidates[k])
    for k in range(size):
        shorter, others = 0, 0
        for j in range(size):
            if chosen[k] >= 0 and chosen[j] >= 0 and j != k:
                others += 1
                shorter += candidates[j, 1] < candidates[k, 1]
        candidates[k, CANDIDATE_SIZE - 1] = shorter / max(1, others)


@inner
def settle_account(state, weights, account):
    """Parts of the reward since the last decision: differences of sums that the simulator keeps."""
    counters = state.counters
    span = (counters[NOW] - counters[OUTSTANDING_SINCE_PS]) / PS_PER_S
    waiting = state.stats[WAITING_AREA] + counters[OUTSTANDING_PS] / PS_PER_S * span
    now = counters[NOW] / PS_PER_S
    service, waste = counters[SERVICE_PS] / PS_PER_S, counters[WASTED_PS] / PS_PER_S
    ttft, tpot, violations = float(counters[TTFT_MISSES]), float(counters[TPOT_MISSES]), float(counters[VIOLATIONS])
    account[SERVICE] = weights[0] * (service - account[OLD_SERVICE])
    account[WAITING_COST] = -weights[1] * (waiting - account[OLD_WAITING])
    account[TTFT_COST] = -weights[2] * (ttft - account[OLD_TTFT])
    account[TPOT_COST] = -weights[3] * (tpot - account[OLD_TPOT])
    account[WASTE_COST] = -weights[4] * (waste - account[OLD_WASTE])
    account[REWARD] = (account[SERVICE] + account[WAITING_COST] + account[TTFT_COST] + account[TPOT_COST]
                       + account[WASTE_COST])
    account[COST] = violations - account[OLD_VIOLATIONS]
    account[ELAPSED] = now - account[OLD_TIME]
    account[OLD_SERVICE], account[OLD_WAITING], account[OLD_TTFT] = service, waiting, ttft
    account[OLD_TPOT], account[OLD_WASTE], account[OLD_VIOLATIONS], account[OLD_TIME] = tpot, waste, violations, now


@jit(types.int64(STATE_TYPE, types.int64, RULES_TYPE, types.int64, types.int64, types.float64, _float64_1d, _float64_1d,
                 _float32_1d, _float32_2d, _int8_1d, _int32_1d))
def step_gate(state, run_address, rules, until_ps, answer, start_day_s, weights, account, cluster, candidates, mask,
              chosen):
    """Answers the open decision, runs to the next one or to `until_ps`, observes and accounts. Returns why it stopped.

    Args:
        state: the episode.
        run_address: address of `sim.loop.run`.
        rules: addresses of the rules, the gate's asking outside.
        until_ps: end of the window.
        answer: to the open decision, or ASK.
        start_day_s: time of day at time 0 of the episode, in seconds.
        weights: float64[5], of the reward's parts.
        account: float64[ACCOUNT], this function's own books.
        cluster, candidates, mask, chosen: written: the observation, and positions of the offered candidates.
    """
    why = run_at(run_address)(state, rules, until_ps, answer)
    if why == ASKED:
        observe(refer(state), start_day_s, cluster, candidates, mask, chosen)
    settle_account(refer(state), weights, account)
    return why


def new_account() -> np.ndarray:
    """Empty books: float64[ACCOUNT]."""
    return np.zeros(ACCOUNT)
