"""Looking ahead: copies of one episode, each with an action of its own, are played out in one compiled call.

Bases say what answers after the first action (`BASES`); `agents/lookahead` copies episodes and compares their scores.
"""

from numba import types

from ooco_gym.compile import inner, jit
from ooco_gym.envs import buffers as b
from ooco_gym.envs import reward as r
from ooco_gym.envs.buffers import buffers_at, kernel_at
from ooco_gym.envs.reward import update_account, work_done
from ooco_gym.envs.stepping import (
    advance,
    answer_of,
    compose_iteration,
    end_runs,
    offer,
    opens_admission,
    partner_answer,
    play_down,
    run_to,
)
from ooco_gym.sim import state as s
from ooco_gym.sim.state import state_at

SCORE = r.TOTAL + r.REWARD - r.TERM  # column of an account: the reward so far, and what a play-out adds to it
# What answers after the first action: the partner; in decisions of the environment, *no*, or the shortest or longest
# request offered (the partner where no requests are offered); by the clock, the same action again and again.
PARTNER, DECLINE, SHORTEST, LONGEST, HOLD = range(5)
BASES = ("partner", "decline", "shortest", "longest", "hold")
TOKENS = 1  # feature of a candidate: its context (features.REQUEST)


@inner
def _set_back(state, buffers, i, kind):
    """What the clock's decision has set goes back to what the partner has."""
    if kind == b.CLOCK:
        kernel_at(buffers.partners[b.CLOCK])(state, buffers, i)
    elif kind == b.CONTROL:
        for index in range(buffers.params.size):
            state.params[buffers.params[index]] = buffers.levels[index, buffers.actions[0, index]]
        end_runs(state)


@inner
def own_action(state, buffers, i, base):
    """What a base that is not the partner does at the open decision."""
    kind, size = buffers.turns[i, b.KIND], buffers.candidates.shape[1]
    if base == HOLD:
        return buffers.actions[i, 0]
    if base == DECLINE:
        return b.DECLINE_ACTION if buffers.mask[i, b.DECLINE_ACTION] else b.PARTNER_ACTION
    if kind not in (s.GATE, s.EVICT, s.PULL, b.RECLAIM, b.ADMIT):
        return b.PARTNER_ACTION
    best = -1
    for k in range(size):
        if buffers.mask[i, b.FIXED + k] == 0:
            continue
        lead = buffers.candidates[i, k, TOKENS] - buffers.candidates[i, max(0, best), TOKENS]
        if best < 0 or (lead < 0.0 if base == SHORTEST else lead > 0.0):
            best = k
    return b.FIXED + best if best >= 0 else b.DECLINE_ACTION


@inner
def _picked(state, buffers, i, answer, base):
    """The answer where several decisions are of one moment, or one is of several picks: the base goes on with them.

    The partner goes on with an iteration as it would; of other decisions it stops.
    """
    if buffers.turns[i, b.KIND] == b.RECLAIM:
        answer = _reclaimed(state, buffers, i, answer, base)
    opened = opens_admission(state, buffers, i)
    while opened or answer == b.MORE:
        opened = False
        buffers.actions[i, 0] = b.DECLINE_ACTION
        if base != PARTNER and offer(state, buffers, i):
            buffers.actions[i, 0] = own_action(state, buffers, i, base)
            answer = answer_of(state, buffers, i)
        elif buffers.turns[i, b.KIND] == b.ADMIT:
            answer = partner_answer(state, buffers, i, b.ADMIT)
        else:
            answer = kernel_at(buffers.answers[buffers.turns[i, b.KIND]])(state, buffers, i)
    return answer


@inner
def _reclaimed(state, buffers, i, answer, base):
    """What composes the iteration after an answer to who gives way; MORE: who enters it is open."""
    while answer == b.MORE and base != PARTNER and offer(state, buffers, i):
        buffers.actions[i, 0] = own_action(state, buffers, i, base)
        answer = answer_of(state, buffers, i)
    answer = compose_iteration(state, buffers, i)
    if answer == b.MORE and buffers.turns[i, b.KIND] == s.COMPOSE:
        buffers.actions[i, 0] = b.PARTNER_ACTION if base == PARTNER else own_action(state, buffers, i, base)
        answer = answer_of(state, buffers, i)
    return answer


@inner
def _play_what_holds(state, buffers, i, run_address, answer):
    """From an answer to the end of the interval for which it is in force; what else is asked, the partner decides."""
    turn, end_ps = buffers.turns[i], buffers.turns[i, b.UNTIL_PS]
    held = buffers.held[i, min(state.pending.instance, buffers.held.shape[1] - 1)]
    turn[b.UNTIL_PS] = min(end_ps, held[b.HELD_UNTIL_PS])
    while advance(state, buffers, i, run_address, answer):
        buffers.actions[i, 0] = b.ILLEGAL
        answer = _picked(state, buffers, i, answer_of(state, buffers, i), PARTNER)
    turn[b.UNTIL_PS] = end_ps


@inner
def _play_on(state, buffers, i, run_address, answer, base):
    """From an answer to StepBuffers.turns[i, UNTIL_PS] under a base."""
    turn = buffers.turns[i]
    if base == PARTNER:
        if turn[b.KIND] in (s.COMPOSE, b.ADMIT) and buffers.offers[s.COMPOSE] != 0:
            _play_what_holds(state, buffers, i, run_address, answer)
            answer = s.ASK
        if turn[b.NEXT_CONTROL_PS] < turn[b.UNTIL_PS]:
            run_to(state, buffers, i, run_address, buffers.rules[1], turn[b.NEXT_CONTROL_PS], answer)
            _set_back(state, buffers, i, turn[b.STEP_KIND])
            answer = s.ASK
        run_to(state, buffers, i, run_address, buffers.rules[1], turn[b.UNTIL_PS], answer)
        return
    while advance(state, buffers, i, run_address, answer):
        buffers.actions[i, 0] = own_action(state, buffers, i, base)
        answer = _picked(state, buffers, i, answer_of(state, buffers, i), base)


@jit(types.void(types.int64, types.int64, types.int64[:, ::1], types.int64, types.int64, types.float64))
def play_out(buffers_address, run_address, bases, until_ps, end_ps, progress):
    """Takes `StepBuffers.actions` in copies of one episode and plays each on under a base, to a horizon or the end.

    An action of several picks goes on with *stop* where the base is the partner. What is set by the clock is set back
    to the action of copy 0, the partner's, at the next interval, but for the base HOLD. A copy whose answer and base an
    earlier one has had is not played: its score is the same.

    Args:
        buffers_address: address of the buffers of the copies, which stand at the same open decision.
        run_address: address of `sim.loop.run`.
        bases: int64[2, n]: the base of each copy; the second row is written over (answers).
        until_ps: the horizon; time of the simulation.
        end_ps: the end of the drain.
        progress: share of its worth that is credited for unfinished offline work, where the horizon comes before the
            window's end.
    """
    buffers = buffers_at(buffers_address)
    for i in range(bases.shape[1]):
        state, turn, base = state_at(buffers.handles[i]), buffers.turns[i], bases[0, i]
        answer = _picked(state, buffers, i, answer_of(state, buffers, i), base)
        bases[1, i], same = answer, -1
        # of these, answers are no more than counts
        if turn[b.KIND] < b.CLOCK and turn[b.KIND] not in (s.PULL, s.COMPOSE, b.ADMIT):
            for k in range(i):
                if bases[0, k] == base and bases[1, k] == answer:
                    same = k
        if same >= 0:
            buffers.account[i, SCORE] = buffers.account[same, SCORE]
            continue
        window_end_ps = turn[b.UNTIL_PS]
        turn[b.UNTIL_PS] = min(until_ps, window_end_ps)
        _play_on(state, buffers, i, run_address, answer, base)
        update_account(state, buffers.weights, buffers.account[i], buffers.own_terms)
        if until_ps >= window_end_ps:
            play_down(state, buffers, i, run_address, min(until_ps, end_ps))
        elif progress > 0.0:
            buffers.account[i, SCORE] += progress * buffers.weights[0] * work_done(state)
