"""Steps N episodes in one call: takes each pending action, runs to the next decision, observes,
and sums rewards.

A step on pools is `answer_of` (the action becomes the answer to the simulator), `advance` (the
simulator runs to the next decision), `observe`. On mixed instances one iteration is composed in
between, in the parts `begin_iteration`, `compose_iteration` and `complete_iteration`.
"""

import numpy as np
from numba import types

from ooco_gym.compile import inlined, inner, jit
from ooco_gym.envs import buffers as b
from ooco_gym.envs import reward as r
from ooco_gym.envs.ahead import look_ahead
from ooco_gym.envs.buffers import buffers_at, kernel_at
from ooco_gym.envs.custom import reading_at, scaled
from ooco_gym.envs.filling import fill_cluster, share
from ooco_gym.envs.reward import block_end_ps, open_reward_sums, recent_violations, turn_block, update_reward_sums
from ooco_gym.errors import UserError
from ooco_gym.policy.latency_budget import LEAVE_OPEN, LEFT_OPEN, OPEN_FIELDS, WHOLE
from ooco_gym.sim import state as s
from ooco_gym.sim.decode import cut, flush_totals
from ooco_gym.sim.dispatch import ask_rule
from ooco_gym.sim.loop import run_at
from ooco_gym.sim.state import View, rule_at, state_at


@inlined
def pending_view(state):
    """The pending decision as a rule sees it."""
    pending = state.pending
    return View(state, pending.instance, pending.request, state.picks[: pending.count])


@inlined
def base_pick(state, buffers, i):
    """Returns the base policy's answer to the pending decision, and keeps it in
    StepBuffers.status[i, PLANNED]."""
    view = pending_view(state)
    spec = state.instances[max(0, view.instance)]
    wake_ps, turn = spec.pull_wake_ps, state.pending.route_step
    answer = ask_rule(rule_at(buffers.rules[1, buffers.status[i, b.KIND] - 1]), view)
    spec.pull_wake_ps, state.pending.route_step = wake_ps, turn
    buffers.status[i, b.PLANNED] = answer
    return answer


@inner
def base_answer(state, buffers, i, kind):
    """Returns the base policy's answer to the pending decision; at a clock decision its
    parameters stay tuned."""
    if kind in (b.CLOCK, b.RECLAIM, b.ADMIT):
        return kernel_at(buffers.bases[kind])(state, buffers, i)
    if kind == b.CONTROL:
        return s.ASK
    return ask_rule(rule_at(buffers.rules[1, kind - 1]), pending_view(state))


@inner
def set_margin(state, buffers, value):
    """Sets the base policy's margin on the latency of strict (or mixed) steps; ends runs planned
    with the old margin."""
    index = np.int64(buffers.settings[b.PACK_PARAM])
    if index < 0 or state.params[index] == value:
        return
    state.params[index] = value
    end_runs(state)


@inner
def end_runs(state):
    """Ends strict instances' decode runs after the present step, so that new parameters apply to
    the next one."""
    for instance in range(state.config.strict_from, state.instances.size):
        flush_totals(state, instance)
        cut(state, instance)


@inlined
def run_to(state, buffers, i, run_address, rules, until_ps, answer):
    """Runs an episode under rules until a time or their next question, and turns the reward's
    10-minute blocks.

    Returns why the simulator stopped.
    """
    while True:
        edge_ps = block_end_ps(buffers.reward_sums[i])
        why = run_at(run_address)(buffers.handles[i], rules, min(until_ps, edge_ps), answer)
        if why == s.ASKED or state.clock.now_ps < edge_ps:
            return why
        turn_block(state, buffers.reward_sums[i])
        if edge_ps >= until_ps:
            return why
        answer = s.ASK


@inner
def advance(state, buffers, i, run_address, answer):
    """Runs an episode to its next decision with a choice. Returns whether there is one."""
    turn = buffers.status[i]
    while True:
        until_ps = min(turn[b.UNTIL_PS], turn[b.NEXT_CONTROL_PS])
        if run_to(state, buffers, i, run_address, buffers.rules[0], until_ps, answer) == s.ASKED:
            kind = state.pending.point
        elif until_ps < turn[b.UNTIL_PS] and state.clock.now_ps >= until_ps:
            kind = turn[b.STEP_KIND]
            turn[b.NEXT_CONTROL_PS] += np.int64(buffers.settings[b.CONTROL_INTERVAL_PS])
        else:
            turn[b.KIND] = b.NO_KIND
            return False
        turn[b.KIND], turn[b.PICKED], turn[b.PLANNED] = kind, 0, 0
        if kind == s.COMPOSE:
            answer = begin_iteration(state, buffers, i)
        elif offer(state, buffers, i):
            return True
        else:
            answer = base_answer(state, buffers, i, kind)
        if answer == b.MORE:
            return True


# --- An iteration of a mixed instance: preemption if blocks are short, filling, admission ----------
@inlined
def begin_iteration(state, buffers, i):
    """Asks for preemption, then the rest; returns the iteration's answer, or MORE if a decision
    is pending."""
    if buffers.offers[b.RECLAIM] != 0:
        buffers.status[i, b.KIND] = b.RECLAIM
        if offer(state, buffers, i):
            return b.MORE
    return compose_iteration(state, buffers, i)


@inner
def compose_iteration(state, buffers, i):
    """Fills the iteration after preemptions; returns the answer, or MORE."""
    turn, enters = buffers.status[i], buffers.offers[b.ADMIT] != 0
    turn[b.KIND], turn[b.PICKED], turn[b.PLANNED] = s.COMPOSE, 0, 0
    if enters:
        state.instances[state.pending.instance].stage = LEAVE_OPEN
    if buffers.offers[s.COMPOSE] == 0 and (enters or buffers.offers[b.RECLAIM] != 0):
        answer = base_answer(state, buffers, i, s.COMPOSE)
    elif in_force(state, buffers, i):
        answer = own_answer(state, buffers, i)
    elif offer(state, buffers, i):
        return b.MORE
    else:
        answer = base_answer(state, buffers, i, s.COMPOSE)
    return complete_iteration(state, buffers, i, answer)


@inlined
def complete_iteration(state, buffers, i, answer):
    """Asks which requests enter the filled iteration; returns the answer, or MORE."""
    if opens_admission(state, buffers, i):
        if offer(state, buffers, i):
            return b.MORE
        return base_answer(state, buffers, i, b.ADMIT)
    return answer


@inlined
def go_on(state, buffers, i, answer):
    """Returns the simulator's answer after `answer_of`; MORE if another decision of the same
    moment is pending."""
    kind = buffers.status[i, b.KIND]
    if answer == b.MORE:
        if offer(state, buffers, i):
            return b.MORE
        if kind != b.RECLAIM:  # no request is left to pick: the picks so far are the answer
            buffers.actions[i, 0] = b.DECLINE_ACTION
            return kernel_at(buffers.answers[kind])(state, buffers, i)
    if kind == b.RECLAIM:
        return compose_iteration(state, buffers, i)
    return complete_iteration(state, buffers, i, answer)


@inlined
def opens_admission(state, buffers, i):
    """Whether the composed iteration leaves open which offline requests enter; the pending kind
    is then ADMIT."""
    turn = buffers.status[i]
    if turn[b.KIND] != s.COMPOSE or buffers.offers[b.ADMIT] == 0:
        return False
    spec = state.instances[state.pending.instance]
    left = spec.stage == LEFT_OPEN
    spec.stage = WHOLE
    if left:
        for index in range(OPEN_FIELDS):
            buffers.iteration[i, index] = state.scratch[0, index]
        turn[b.KIND] = b.ADMIT
    return left


@inlined
def in_force(state, buffers, i):
    """Whether the instance's last action is still in force; it is then taken again."""
    held = buffers.held[i, min(state.pending.instance, buffers.held.shape[1] - 1)]
    if state.clock.now_ps >= held[b.HELD_UNTIL_PS]:
        return False
    for part in range(buffers.actions.shape[1]):
        buffers.actions[i, part] = held[b.HELD_ACTION + part]
    return True


@inlined
def put_in_force(state, buffers, i):
    """Keeps the action on the present instance for an interval."""
    held = buffers.held[i, min(state.pending.instance, buffers.held.shape[1] - 1)]
    held[b.HELD_UNTIL_PS] = state.clock.now_ps + np.int64(buffers.settings[b.CONTROL_INTERVAL_PS])
    for part in range(buffers.actions.shape[1]):
        held[b.HELD_ACTION + part] = buffers.actions[i, part]


@inlined
def offer(state, buffers, i):
    """Offers the candidates of the pending decision. Returns whether there are at least two
    actions."""
    chosen, candidates = buffers.chosen[i], buffers.candidates[i]
    for k in range(chosen.size):
        chosen[k] = -1
        for index in range(candidates.shape[1]):
            candidates[k, index] = 0.0
    buffers.mask[i, :] = 0
    if buffers.offers[buffers.status[i, b.KIND]] == 0:
        raise UserError("the base policy returned ASK for a decision that this environment does not ask; let it "
                        "decide, or use an environment that asks this decision")
    return kernel_at(buffers.offers[buffers.status[i, b.KIND]])(state, buffers, i) >= 2


@inner
def note_illegal(buffers, i):
    buffers.status[i, b.WAS_ILLEGAL] = 1
    buffers.status[i, b.ILLEGALS] += 1
    buffers.settings[b.ANY_ILLEGAL] = 1.0


@inlined
def answer_of(state, buffers, i):
    """Returns the answer for the simulator, or MORE; an illegal action does what the base policy
    would do.

    The mask has the base policy's action only if no other action does the same, but it is always
    accepted.
    """
    kind, action = buffers.status[i, b.KIND], buffers.actions[i, 0]
    if kind != b.CONTROL and not buffers.settings[b.BOX]:
        size = buffers.mask.shape[1]
        if action != b.BASE_ACTION and (not 0 <= action < size or buffers.mask[i, action] == 0):
            buffers.actions[i, 0] = b.BASE_ACTION
            note_illegal(buffers, i)
    if kind == s.COMPOSE:
        put_in_force(state, buffers, i)
    return own_answer(state, buffers, i)


@inlined
def own_answer(state, buffers, i):
    kind, action = buffers.status[i, b.KIND], buffers.actions[i, 0]
    theirs = b.ILLEGAL if buffers.settings[b.BOX] else b.BASE_ACTION
    if kind != b.CONTROL and action == theirs:
        return base_answer(state, buffers, i, kind)
    return kernel_at(buffers.answers[kind])(state, buffers, i)


@inlined
def _where(state, kind):
    """The instance of the pending decision; at a clock decision, the first strict one."""
    if kind >= b.CLOCK:
        return np.int64(min(state.config.strict_from, state.instances.size - 1))
    instance, slot = np.int64(state.pending.instance), state.pending.request
    if instance < 0:
        instance = np.int64(max(0, state.requests[slot].instance)) if slot >= 0 else np.int64(0)
    return instance


@inner
def _observe_own(state, buffers, i):
    """Writes the environment's own features: the last ones of `cluster`."""
    out, instance = buffers.cluster[i], _where(state, buffers.status[i, b.KIND])
    first = out.size - buffers.own_features.size
    for k in range(buffers.own_features.size):
        out[first + k] = scaled(reading_at(buffers.own_features[k])(state, instance), buffers.own_scales[k])


@inner
def observe(state, buffers, i):
    """Completes the observation of the pending decision: `cluster` and `decision`."""
    kind = buffers.status[i, b.KIND]
    buffers.decision[i, :] = 0.0
    buffers.decision[i, buffers.slots[kind]] = 1.0
    if buffers.own_features.size:
        _observe_own(state, buffers, i)
    if buffers.observers[kind] != 0:
        kernel_at(buffers.observers[kind])(state, buffers, i)
        return
    instance, out = _where(state, kind), buffers.cluster[i]
    index = np.int64(buffers.settings[b.PACK_PARAM])
    packing = state.params[index] * buffers.settings[b.PACK_SCALE] if index >= 0 else 0.0
    fill_cluster(state, instance, buffers.days[i] + state.clock.now_ps / s.PS_PER_S, share(packing, 2.0),
                 share(recent_violations(state, buffers.reward_sums[i]), 0.06),
                 share(float(buffers.status[i, b.PICKED]), float(b.MOST_PICKS)), buffers.shown, out)


@inner
def blank(buffers, i):
    """Writes an observation without a decision: only the base policy's action is legal, or all vectors of levels."""
    buffers.cluster[i, :] = 0.0
    buffers.candidates[i, :, :] = 0.0
    buffers.decision[i, :] = 0.0
    buffers.mask[i, :] = buffers.offers[b.CONTROL] != 0
    if buffers.mask.shape[1] > b.BASE_ACTION:
        buffers.mask[i, b.BASE_ACTION] = 1


@inlined
def show(state, buffers, i, goes_on):
    """Writes the observation: the pending decision, or a blank one."""
    if goes_on:
        observe(state, buffers, i)
    else:
        blank(buffers, i)


@inner
def _step(state, buffers, i, run_address):
    if buffers.status[i, b.KIND] == b.NO_KIND:  # a window without a decision ends with its only step
        update_reward_sums(state, buffers.weights, buffers.reward_sums[i], buffers.own_terms)
        return False
    answer = go_on(state, buffers, i, answer_of(state, buffers, i))
    if answer == b.MORE:
        observe(state, buffers, i)
        update_reward_sums(state, buffers.weights, buffers.reward_sums[i], buffers.own_terms)
        return True
    goes_on = advance(state, buffers, i, run_address, answer)
    update_reward_sums(state, buffers.weights, buffers.reward_sums[i], buffers.own_terms)
    if goes_on:
        observe(state, buffers, i)
    return goes_on


@jit(types.int64(types.int64, types.int64, types.int64, types.int64), nogil=True)
def step_all(buffers_address, run_address, first, last):
    """Takes `StepBuffers.actions` in the open episodes first … last - 1. Returns how many ended.

    Args:
        buffers_address: address of the buffers (`buffers.buffers_handle`).
        run_address: address of `sim.loop.run`.
        first, last: range of episodes.
    """
    buffers, ended = buffers_at(buffers_address), 0
    for i in range(first, last):
        look_ahead(buffers, i, last)
        if buffers.status[i, b.OPEN]:
            ended += not _step(state_at(buffers.handles[i]), buffers, i, run_address)
    return ended


@jit(types.boolean(types.int64, types.int64, types.int64))
def begin(buffers_address, run_address, i):
    """Opens an episode's reward sums and runs it to its first decision. Returns whether there is
    one."""
    buffers = buffers_at(buffers_address)
    state, turn = state_at(buffers.handles[i]), buffers.status[i]
    turn[b.NEXT_CONTROL_PS] = s.NEVER
    if turn[b.STEP_KIND] != b.NO_KIND:
        turn[b.NEXT_CONTROL_PS] = state.clock.now_ps
    budget = buffers.settings[b.VIOLATION_BUDGET]
    open_reward_sums(state, buffers.weights, budget, buffers.reward_sums[i], buffers.own_terms)
    goes_on = advance(state, buffers, i, run_address, s.ASK)
    show(state, buffers, i, goes_on)
    return goes_on


@jit(types.void(types.int64, types.int64, types.int64, types.int64))
def look_on(buffers_address, run_address, i, end_ps):
    """Observes the first decision after the window; a blank observation if none comes up before `end_ps`."""
    buffers = buffers_at(buffers_address)
    state, buffers.status[i, b.UNTIL_PS] = state_at(buffers.handles[i]), end_ps
    show(state, buffers, i, advance(state, buffers, i, run_address, s.ASK))


@inner
def play_down(state, buffers, i, run_address, end_ps):
    """Simulates the rest of the load after the window, without charging waiting."""
    waiting, buffers.weights[r.WAITING] = buffers.weights[r.WAITING], 0.0
    set_margin(state, buffers, buffers.tuned[i])
    if buffers.status[i, b.STEP_KIND] == b.CLOCK:
        kernel_at(buffers.bases[b.CLOCK])(state, buffers, i)
    run_to(state, buffers, i, run_address, buffers.rules[1], end_ps, s.ASK)
    update_reward_sums(state, buffers.weights, buffers.reward_sums[i], buffers.own_terms)
    buffers.weights[r.WAITING] = waiting


@jit(types.void(types.int64, types.int64, types.int64, types.int64))
def drain(buffers_address, run_address, i, end_ps):
    """Simulates under the base policy until the episode's online requests have finished or
    failed; updates the reward."""
    buffers = buffers_at(buffers_address)
    play_down(state_at(buffers.handles[i]), buffers, i, run_address, end_ps)
