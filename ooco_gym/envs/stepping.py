"""N episodes in one call: answer each open decision, run on to the next one, observe, account."""

import numpy as np
from numba import types

from ooco_gym.compile import inlined, inner, jit
from ooco_gym.envs.buffers import (
    CONTROL,
    CONTROL_INTERVAL_PS,
    KIND,
    KIND_ORDER,
    MORE,
    MOST_PICKS,
    NEXT_CONTROL_PS,
    NO_KIND,
    OPEN,
    PACK,
    PACK_PARAM,
    PACK_SCALE,
    PARTNER_ACTION,
    PICKED,
    PLANNED,
    STEP_KIND,
    UNTIL_PS,
    VIOLATION_BUDGET,
    buffers_at,
    offer_at,
)
from ooco_gym.envs.features import CANDIDATE_SIZE
from ooco_gym.envs.filling import fill_cluster, rank_candidates, share
from ooco_gym.envs.reward import WAITING, block_end_ps, open_account, recent_violations, settle_account, turn_block
from ooco_gym.errors import UserError
from ooco_gym.sim.decode import cut, settle_books
from ooco_gym.sim.dispatch import ask_rule
from ooco_gym.sim.loop import run_at
from ooco_gym.sim.state import (
    ASK,
    ASKED,
    LOG_FULL,
    LOG_USED,
    NEVER,
    NOW,
    PENDING,
    PENDING_COUNT,
    PENDING_INSTANCE,
    PENDING_REQUEST,
    PS_PER_S,
    RELAXED_COUNT,
    View,
    rule_at,
    state_at,
)

ORDER = tuple(int(place) for place in KIND_ORDER)


@inlined
def pending_view(state):
    """The open decision as a rule sees it."""
    counters = state.counters
    return View(state, counters[PENDING_INSTANCE], counters[PENDING_REQUEST], state.picks[: counters[PENDING_COUNT]])


@inner
def partner_answer(state, buffers, i, kind):
    """What the partner's own rule answers to the open decision; by the clock, it leaves its parameters as tuned."""
    if kind == PACK:
        set_margin(state, buffers, buffers.tuned[i])
        return ASK
    if kind == CONTROL:
        return ASK
    return ask_rule(rule_at(buffers.rules[1, kind - 1]), pending_view(state))


@inner
def set_margin(state, buffers, value):
    """Sets the partner's margin on the latency of strict (or mixed) steps; runs that counted on the old one end."""
    place = np.int64(buffers.settings[PACK_PARAM])
    if place < 0 or state.params[place] == value:
        return
    state.params[place] = value
    end_runs(state)


@inner
def end_runs(state):
    """Lets what strict instances run end with its step: the next one is composed under other parameters."""
    for instance in range(state.counters[RELAXED_COUNT], state.instances.size):
        settle_books(state, instance)
        cut(state, instance)


@inlined
def run_to(state, buffers, i, run_address, rules, until_ps, answer):
    """Runs an episode under rules until a time or what they ask; the account's blocks turn on the way.

    Returns why the simulator stopped.
    """
    while True:
        edge_ps = block_end_ps(buffers.account[i])
        why = run_at(run_address)(buffers.handles[i], rules, min(until_ps, edge_ps), answer)
        if why == LOG_FULL:  # more than is kept of one step (`recording`): what came first goes
            state.counters[LOG_USED], answer = 0, ASK
            continue
        if why == ASKED or state.counters[NOW] < edge_ps:
            return why
        turn_block(state, buffers.account[i])
        if edge_ps >= until_ps:
            return why
        answer = ASK


@inlined
def advance(state, buffers, i, run_address, answer):
    """Runs an episode on to its next decision that has something to decide. Returns whether there is one."""
    turn = buffers.turns[i]
    while True:
        until_ps = min(turn[UNTIL_PS], turn[NEXT_CONTROL_PS])
        if run_to(state, buffers, i, run_address, buffers.rules[0], until_ps, answer) == ASKED:
            kind = state.counters[PENDING]
        elif until_ps < turn[UNTIL_PS] and state.counters[NOW] >= until_ps:
            kind = turn[STEP_KIND]
            turn[NEXT_CONTROL_PS] += np.int64(buffers.settings[CONTROL_INTERVAL_PS])
        else:
            turn[KIND] = NO_KIND
            return False
        turn[KIND], turn[PICKED], turn[PLANNED] = kind, 0, 0
        if offer(state, buffers, i):
            return True
        answer = partner_answer(state, buffers, i, kind)


@inlined
def offer(state, buffers, i):
    """Offers the candidates of the open decision. Returns whether there are two actions at least."""
    chosen, candidates = buffers.chosen[i], buffers.candidates[i]
    for k in range(chosen.size):
        chosen[k] = -1
        for place in range(CANDIDATE_SIZE):
            candidates[k, place] = 0.0
    buffers.mask[i, :] = 0
    if buffers.offers[buffers.turns[i, KIND]] == 0:
        raise UserError("a rule of the partner answered ASK to a decision that this environment does not ask; "
                        "let it answer, or take an environment that asks for it")
    return offer_at(buffers.offers[buffers.turns[i, KIND]])(state, buffers, i) >= 2


@inlined
def answer_of(state, buffers, i):
    """The answer for the simulator, or MORE; an action that is not legal does what the partner would do."""
    kind, action = buffers.turns[i, KIND], buffers.actions[i, 0]
    if kind != CONTROL:
        size = buffers.mask.shape[1]
        if action == PARTNER_ACTION or not 0 <= action < size or buffers.mask[i, action] == 0:
            return partner_answer(state, buffers, i, kind)
    return offer_at(buffers.answers[kind])(state, buffers, i)


@inlined
def observe(state, buffers, i):
    """Completes the observation of the open decision: the cluster, the decision, how the candidates compare."""
    kind, instance = buffers.turns[i, KIND], np.int64(0)
    if kind < PACK:
        instance = state.counters[PENDING_INSTANCE]
        slot = state.counters[PENDING_REQUEST]
        if instance < 0:
            instance = np.int64(max(0, state.requests[slot].instance)) if slot >= 0 else np.int64(0)
    else:
        instance = min(state.counters[RELAXED_COUNT], state.instances.size - 1)
    out = buffers.cluster[i]
    fill_cluster(state, instance, buffers.days[i] + state.counters[NOW] / PS_PER_S, out)
    place = np.int64(buffers.settings[PACK_PARAM])
    out[32] = share(state.params[place] * buffers.settings[PACK_SCALE], 2.0) if place >= 0 else 0.0
    out[34] = share(recent_violations(state, buffers.account[i]), 0.06)
    out[35] = share(float(buffers.turns[i, PICKED]), float(MOST_PICKS))
    buffers.decision[i, :] = 0.0
    buffers.decision[i, ORDER[kind]] = 1.0
    rank_candidates(buffers.candidates[i])


@inner
def blank(buffers, i):
    """The observation of an episode that is over: nothing but the partner's action."""
    buffers.cluster[i, :] = 0.0
    buffers.candidates[i, :, :] = 0.0
    buffers.decision[i, :] = 0.0
    buffers.mask[i, :] = 0
    if buffers.mask.shape[1] > PARTNER_ACTION:
        buffers.mask[i, PARTNER_ACTION] = 1


@inlined
def show(state, buffers, i, goes_on):
    """Writes what is seen after a step: the open decision, or that there is none any more."""
    if goes_on:
        observe(state, buffers, i)
    else:
        blank(buffers, i)


@inner
def _step(state, buffers, i, run_address):
    if buffers.turns[i, KIND] == NO_KIND:  # a window without a decision: its one step is its end
        settle_account(state, buffers.weights, buffers.account[i])
        return False
    answer = answer_of(state, buffers, i)
    if answer == MORE:
        if offer(state, buffers, i):
            observe(state, buffers, i)
            settle_account(state, buffers.weights, buffers.account[i])
            return True
        buffers.actions[i, 0] = 0  # nobody is left to pick: what has been picked is the answer
        answer = offer_at(buffers.answers[buffers.turns[i, KIND]])(state, buffers, i)
    goes_on = advance(state, buffers, i, run_address, answer)
    settle_account(state, buffers.weights, buffers.account[i])
    show(state, buffers, i, goes_on)
    return goes_on


@jit(types.int64(types.int64, types.int64, types.int64, types.int64))
def step_all(buffers_address, run_address, first, last):
    """Takes `StepBuffers.actions` in the episodes first … last - 1 that are open. Returns how many came to their end.

    Args:
        buffers_address: address of the buffers (`buffers.buffers_handle`).
        run_address: address of `sim.loop.run`.
        first, last: the episodes.
    """
    buffers, ended = buffers_at(buffers_address), 0
    for i in range(first, last):
        if buffers.turns[i, OPEN]:
            ended += not _step(state_at(buffers.handles[i]), buffers, i, run_address)
    return ended


@jit(types.boolean(types.int64, types.int64, types.int64))
def begin(buffers_address, run_address, i):
    """Opens the books of an episode and runs it to its first decision. Returns whether there is one."""
    buffers = buffers_at(buffers_address)
    state, turn = state_at(buffers.handles[i]), buffers.turns[i]
    turn[NEXT_CONTROL_PS] = NEVER
    if turn[STEP_KIND] != NO_KIND:
        turn[NEXT_CONTROL_PS] = state.counters[NOW]
    open_account(state, buffers.weights, buffers.settings[VIOLATION_BUDGET], buffers.account[i])
    goes_on = advance(state, buffers, i, run_address, ASK)
    show(state, buffers, i, goes_on)
    return goes_on


@inner
def play_down(state, buffers, i, run_address, end_ps):
    """The rest of the load after the window: nothing waits on the agent's account any more."""
    waiting, buffers.weights[WAITING] = buffers.weights[WAITING], 0.0
    set_margin(state, buffers, buffers.tuned[i])
    run_to(state, buffers, i, run_address, buffers.rules[1], end_ps, ASK)
    settle_account(state, buffers.weights, buffers.account[i])
    buffers.weights[WAITING] = waiting


@jit(types.void(types.int64, types.int64, types.int64, types.int64))
def drain(buffers_address, run_address, i, end_ps):
    """Plays an episode on under the partner, until its online requests are settled, and accounts for it."""
    buffers = buffers_at(buffers_address)
    play_down(state_at(buffers.handles[i]), buffers, i, run_address, end_ps)

