"""Counterfactual rollouts: simulates copies of one episode, each with its own action, in one
compiled call.

After its action the base policy takes every decision of a copy. `agents/evaluation/play_outs.py`
makes the copies and compares their scores.
"""

from numba import types

from ooco_gym.compile import inner, jit
from ooco_gym.envs import buffers as b
from ooco_gym.envs import reward as r
from ooco_gym.envs.buffers import buffers_at, kernel_at
from ooco_gym.envs.reward import update_reward_sums, work_done
from ooco_gym.envs.stepping import (
    advance,
    answer_of,
    base_answer,
    compose_iteration,
    end_runs,
    opens_admission,
    play_down,
    run_to,
)
from ooco_gym.sim import state as s
from ooco_gym.sim.state import state_at

SCORE = r.TOTAL + r.REWARD - r.TERM  # column of the reward sums: the reward so far, to which a rollout adds


@inner
def _set_back(state, buffers, i, kind):
    """Resets parameters changed by a clock decision to the base policy's values (the action of copy
    0)."""
    if kind == b.CLOCK:
        kernel_at(buffers.bases[b.CLOCK])(state, buffers, i)
    elif kind == b.CONTROL:
        for index in range(buffers.params.size):
            state.params[buffers.params[index]] = buffers.levels[index, buffers.actions[0, index]]
        end_runs(state)


@inner
def _picked(state, buffers, i, answer):
    """Completes an answer if several decisions belong to one moment, or several picks to one
    decision. The base policy completes an iteration; other decisions stop picking."""
    if buffers.status[i, b.KIND] == b.RECLAIM:
        answer = compose_iteration(state, buffers, i)
        if answer == b.MORE and buffers.status[i, b.KIND] == s.COMPOSE:
            buffers.actions[i, 0] = b.BASE_ACTION
            answer = answer_of(state, buffers, i)
    opened = opens_admission(state, buffers, i)
    while opened or answer == b.MORE:
        opened = False
        buffers.actions[i, 0] = b.DECLINE_ACTION
        if buffers.status[i, b.KIND] == b.ADMIT:
            answer = base_answer(state, buffers, i, b.ADMIT)
        else:
            answer = kernel_at(buffers.answers[buffers.status[i, b.KIND]])(state, buffers, i)
    return answer


@inner
def _play_what_holds(state, buffers, i, run_address, answer):
    """Simulates from an answer to the end of the interval for which it is in force, under the
    base policy."""
    turn, end_ps = buffers.status[i], buffers.status[i, b.UNTIL_PS]
    held = buffers.held[i, min(state.pending.instance, buffers.held.shape[1] - 1)]
    turn[b.UNTIL_PS] = min(end_ps, held[b.HELD_UNTIL_PS])
    while advance(state, buffers, i, run_address, answer):
        buffers.actions[i, 0] = b.ILLEGAL
        answer = _picked(state, buffers, i, answer_of(state, buffers, i))
    turn[b.UNTIL_PS] = end_ps


@inner
def _play_on(state, buffers, i, run_address, answer):
    """Simulates from an answer to StepBuffers.status[i, UNTIL_PS]."""
    turn = buffers.status[i]
    if turn[b.KIND] in (s.COMPOSE, b.ADMIT) and buffers.offers[s.COMPOSE] != 0:
        _play_what_holds(state, buffers, i, run_address, answer)
        answer = s.ASK
    if turn[b.NEXT_CONTROL_PS] < turn[b.UNTIL_PS]:
        run_to(state, buffers, i, run_address, buffers.rules[1], turn[b.NEXT_CONTROL_PS], answer)
        _set_back(state, buffers, i, turn[b.STEP_KIND])
        answer = s.ASK
    run_to(state, buffers, i, run_address, buffers.rules[1], turn[b.UNTIL_PS], answer)


@jit(types.void(types.int64, types.int64, types.int64[::1], types.int64, types.int64))
def play_out(buffers_address, run_address, answers, until_ps, end_ps):
    """Takes `StepBuffers.actions` in copies of one episode, and simulates each to a horizon or
    the end.

    A decision of several picks continues with *stop*. Clock decisions return to the base policy's
    values at the next interval. A copy with the same answer as an earlier one takes its score
    without simulation. If the horizon is before the window's end, unfinished offline work is paid
    for the part done.

    Args:
        buffers_address: address of the copies' buffers, all at the same pending decision.
        run_address: address of `sim.loop.run`.
        answers: int64[n], receives the answer of each copy.
        until_ps: the horizon, in simulated time.
        end_ps: the end of the drain.
    """
    buffers = buffers_at(buffers_address)
    for i in range(answers.size):
        state, turn = state_at(buffers.handles[i]), buffers.status[i]
        answer = _picked(state, buffers, i, answer_of(state, buffers, i))
        answers[i], same = answer, -1
        # the answers of these are only counts
        if turn[b.KIND] < b.CLOCK and turn[b.KIND] not in (s.PULL, s.COMPOSE, b.ADMIT):
            for k in range(i):
                if answers[k] == answer:
                    same = k
        if same >= 0:
            buffers.reward_sums[i, SCORE] = buffers.reward_sums[same, SCORE]
            continue
        window_end_ps = turn[b.UNTIL_PS]
        turn[b.UNTIL_PS] = min(until_ps, window_end_ps)
        _play_on(state, buffers, i, run_address, answer)
        update_reward_sums(state, buffers.weights, buffers.reward_sums[i], buffers.own_terms)
        if until_ps >= window_end_ps:
            play_down(state, buffers, i, run_address, min(until_ps, end_ps))
        else:
            buffers.reward_sums[i, SCORE] += buffers.weights[0] * work_done(state)
