"""Looking ahead: copies of one episode, each with an action of its own, played out in one compiled call."""

import numpy as np
from numba import types

from ooco_gym.compile import inner, jit
from ooco_gym.envs.job import (
    CONTROL,
    DECLINE_ACTION,
    KIND,
    MORE,
    NEXT_CONTROL_PS,
    PACK,
    STEP_KIND,
    UNTIL_PS,
    job_at,
    offer_at,
)
from ooco_gym.envs.reward import PART, REWARD, TOTAL, WAITING, settle_account
from ooco_gym.envs.stepping import answer_of, end_runs, set_margin
from ooco_gym.sim.costs import prefill_one
from ooco_gym.sim.decode import cut, first_step, settle
from ooco_gym.sim.loop import run_at, settle_all
from ooco_gym.sim.state import (
    ASK,
    BATCH,
    DECODE,
    FINISHED,
    LEAVING,
    MOVING,
    NEVER,
    NEXT_ARRIVAL,
    PULL,
    PUSH_WAITING,
    REJECTED,
    RESIDENT,
    state_at,
)
from ooco_gym.sim.state import PS_PER_S as SECOND

SCORE = TOTAL + REWARD - PART  # column of an account: the reward so far, and what a play-out adds to it
NO_ANSWER = -99


@inner
def _set_back(state, job, i, kind):
    """What the clock's decision has set goes back to what the partner has."""
    if kind == PACK:
        set_margin(state, job, job.tuned[i])
    elif kind == CONTROL:
        for part in range(job.params.size):
            state.params[job.params[part]] = job.levels[part, job.actions[0, part]]
        end_runs(state)


@inner
def _done(state):
    """Reference GPU-seconds of what has been computed, and not been lost, for unfinished offline requests."""
    total, table = 0.0, state.instances[0].table
    for slot in range(state.counters[NEXT_ARRIVAL]):
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
        if held:
            total += alone
        else:  # its prompt is to be prefilled anew, with all that it had generated
            total -= prefill_one(state, table, request.prompt_tokens + request.generated_tokens) - alone
    return total / SECOND


@inner
def _finish(state, job, i, run_address, answer, until_ps, end_ps, progress):
    """From an answer to the horizon: the interval, the window, the drain, each with its books."""
    turn, handle = job.turns[i], job.handles[i]
    stop_ps = min(until_ps, turn[UNTIL_PS])
    if turn[NEXT_CONTROL_PS] < stop_ps:
        run_at(run_address)(handle, job.rules[1], turn[NEXT_CONTROL_PS], answer)
        _set_back(state, job, i, turn[STEP_KIND])
        answer = ASK
    run_at(run_address)(handle, job.rules[1], stop_ps, answer)
    settle_account(state, job.weights, job.account[i])
    if until_ps < turn[UNTIL_PS]:
        if progress > 0.0:
            job.account[i, SCORE] += progress * job.weights[0] * _done(state)
        return
    waiting, job.weights[WAITING] = job.weights[WAITING], 0.0  # at an episode's end nothing waits on its account
    set_margin(state, job, job.tuned[i])
    run_at(run_address)(handle, job.rules[1], min(until_ps, end_ps), ASK)
    settle_account(state, job.weights, job.account[i])
    job.weights[WAITING] = waiting


@jit(types.void(types.int64, types.int64, types.int64, types.int64, types.int64, types.float64))
def play_out(job_address, run_address, count, until_ps, end_ps, progress):
    """Takes `Job.actions` in copies 0 … count - 1 of one episode and plays each on under the partner.

    An action of several picks goes on with *stop*; what is set by the clock is set back to the action of copy 0, the
    partner's, at the next interval. A copy whose answer is that of copy 0 is not played: its score is the same.

    Args:
        job_address: address of the job of the copies, which stand at the same open decision.
        run_address: address of `sim.loop.run`.
        count: how many.
        until_ps: the horizon; time of the simulation.
        end_ps: the end of the drain.
        progress: share of its worth that is credited for unfinished offline work, where the horizon comes before the
            window's end.
    """
    job, first = job_at(job_address), NO_ANSWER
    for i in range(count):
        state = state_at(job.handles[i])
        kind, single = job.turns[i, KIND], job.turns[i, KIND] != PULL and job.turns[i, KIND] < PACK
        answer = answer_of(state, job, i)
        if answer == MORE:
            job.actions[i, 0] = DECLINE_ACTION
            answer = offer_at(job.answers[kind])(state, job, i)
        if single and i > 0 and answer == first:
            job.account[i, SCORE] = job.account[0, SCORE]
            continue
        if single and i == 0:
            first = answer
        _finish(state, job, i, run_address, answer, until_ps, end_ps, progress)


@jit(types.void(types.int64))
def bring_up(handle):
    """Brings the books of every instance up to now, so that lengths may be changed (`change_lengths`)."""
    settle_all(state_at(handle))


@jit(types.void(types.int64))
def change_lengths(handle):
    """After output lengths have been changed: runs that counted on the old ones end with the step in progress."""
    state = state_at(handle)
    for slot in range(state.counters[NEXT_ARRIVAL]):
        request = state.requests[slot]
        if request.online and request.status < FINISHED and request.first_decode_ps > 0:
            first_step(state, slot, request.first_decode_ps)
    for instance in range(state.instances.size):
        spec = state.instances[instance]
        if spec.activity != DECODE:
            continue
        settle(state, instance)
        cut(state, instance)
        left, miss_ps = np.int64(NEVER), np.int64(NEVER)
        for i in range(spec.running):
            request = state.requests[state.members[BATCH, instance, i]]
            left = min(left, np.int64(request.output_tokens - request.generated_tokens))
            miss_ps = min(miss_ps, request.latest_ps)
        spec.left, spec.miss_ps = left, miss_ps
