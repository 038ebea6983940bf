"""N episodes in one call: answer each open decision, run on to the next one, observe, account."""

import numpy as np
from numba import types

from ooco_gym.compile import inlined, inner, jit
from ooco_gym.envs import buffers as b
from ooco_gym.envs import reward as r
from ooco_gym.envs.buffers import buffers_at, kernel_at
from ooco_gym.envs.features import CANDIDATE_SIZE, CLUSTER_COLUMN
from ooco_gym.envs.filling import fill_cluster, rank_candidates, share
from ooco_gym.envs.reward import block_end_ps, open_account, recent_violations, turn_block, update_account
from ooco_gym.errors import UserError
from ooco_gym.policy.latency_budget import LEAVE_OPEN, LEFT_OPEN, OPEN_FIGURES, WHOLE
from ooco_gym.sim import state as s
from ooco_gym.sim.batch import first_step
from ooco_gym.sim.costs import prefill_one
from ooco_gym.sim.decode import cut, flush, flush_totals
from ooco_gym.sim.dispatch import ask_rule
from ooco_gym.sim.lanes import drop_lanes
from ooco_gym.sim.loop import run_at
from ooco_gym.sim.state import View, rule_at, state_at


@inlined
def pending_view(state):
    """The open decision as a rule sees it."""
    pending = state.pending
    return View(state, pending.instance, pending.request, state.picks[: pending.count])


@inlined
def partner_pick(state, buffers, i):
    """What the partner's rule answers to the open decision; StepBuffers.turns[i, PLANNED] keeps it."""
    view = pending_view(state)
    spec = state.instances[max(0, view.instance)]
    wake_ps, turn = spec.pull_wake_ps, state.pending.route_step
    answer = ask_rule(rule_at(buffers.rules[1, buffers.turns[i, b.KIND] - 1]), view)
    spec.pull_wake_ps, state.pending.route_step = wake_ps, turn
    buffers.turns[i, b.PLANNED] = answer
    return answer


@inner
def partner_answer(state, buffers, i, kind):
    """What the partner's own rule answers to the open decision; by the clock, its parameters stay as tuned."""
    if kind in (b.CLOCK, b.ADMIT):
        return kernel_at(buffers.partners[kind])(state, buffers, i)
    if kind == b.CONTROL:
        return s.ASK
    return ask_rule(rule_at(buffers.rules[1, kind - 1]), pending_view(state))


@inner
def set_margin(state, buffers, value):
    """Sets the partner's margin on the latency of strict (or mixed) steps; runs that counted on the old one end."""
    index = np.int64(buffers.settings[b.PACK_PARAM])
    if index < 0 or state.params[index] == value:
        return
    state.params[index] = value
    end_runs(state)


@inner
def end_runs(state):
    """Lets what strict instances run end with its step: the next one is composed under other parameters."""
    for instance in range(state.config.relaxed_count, state.instances.size):
        flush_totals(state, instance)
        cut(state, instance)


@inlined
def run_to(state, buffers, i, run_address, rules, until_ps, answer):
    """Runs an episode under rules until a time or what they ask; the account's blocks turn on the way.

    Returns why the simulator stopped.
    """
    while True:
        edge_ps = block_end_ps(buffers.account[i])
        why = run_at(run_address)(buffers.handles[i], rules, min(until_ps, edge_ps), answer)
        if why == s.LOG_FULL:  # more than is kept of one step (`recording`): what came first goes
            state.queues.log_used, answer = 0, s.ASK
            continue
        if why == s.ASKED or state.clock.now_ps < edge_ps:
            return why
        turn_block(state, buffers.account[i])
        if edge_ps >= until_ps:
            return why
        answer = s.ASK


@inlined
def advance(state, buffers, i, run_address, answer):
    """Runs an episode on to its next decision that has something to decide. Returns whether there is one."""
    turn = buffers.turns[i]
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
        if kind == s.COMPOSE and buffers.offers[b.ADMIT] != 0:
            state.instances[state.pending.instance].stage = LEAVE_OPEN
        if kind == s.COMPOSE and buffers.offers[kind] == 0 and buffers.offers[b.ADMIT] != 0:
            answer = partner_answer(state, buffers, i, kind)
        elif kind == s.COMPOSE and in_force(state, buffers, i):
            answer = own_answer(state, buffers, i)
        elif offer(state, buffers, i):
            return True
        else:
            answer = partner_answer(state, buffers, i, kind)
        if opens_admission(state, buffers, i):
            if offer(state, buffers, i):
                return True
            answer = partner_answer(state, buffers, i, b.ADMIT)


@inlined
def opens_admission(state, buffers, i):
    """Whether the iteration that has been composed leaves open which offline requests enter; ADMIT is then asked."""
    turn = buffers.turns[i]
    if turn[b.KIND] != s.COMPOSE or buffers.offers[b.ADMIT] == 0:
        return False
    spec = state.instances[state.pending.instance]
    left = spec.stage == LEFT_OPEN
    spec.stage = WHOLE
    if left:
        for index in range(OPEN_FIGURES):
            buffers.iteration[i, index] = state.scratch[0, index]
        turn[b.KIND] = b.ADMIT
    return left


@inlined
def in_force(state, buffers, i):
    """Whether the last action on the instance that is asked is still in force; it then is the action again."""
    held = buffers.held[i, min(state.pending.instance, buffers.held.shape[1] - 1)]
    if state.clock.now_ps >= held[b.HELD_UNTIL_PS]:
        return False
    for part in range(buffers.actions.shape[1]):
        buffers.actions[i, part] = held[b.HELD_ACTION + part]
    return True


@inlined
def put_in_force(state, buffers, i):
    """Keeps the action on the instance that is asked for an interval."""
    held = buffers.held[i, min(state.pending.instance, buffers.held.shape[1] - 1)]
    held[b.HELD_UNTIL_PS] = state.clock.now_ps + np.int64(buffers.settings[b.CONTROL_INTERVAL_PS])
    for part in range(buffers.actions.shape[1]):
        held[b.HELD_ACTION + part] = buffers.actions[i, part]


@inlined
def offer(state, buffers, i):
    """Offers the candidates of the open decision. Returns whether there are two actions at least."""
    chosen, candidates = buffers.chosen[i], buffers.candidates[i]
    for k in range(chosen.size):
        chosen[k] = -1
        for index in range(CANDIDATE_SIZE):
            candidates[k, index] = 0.0
    buffers.mask[i, :] = 0
    if buffers.offers[buffers.turns[i, b.KIND]] == 0:
        raise UserError("a rule of the partner answered ASK to a decision that this environment does not ask; "
                        "let it answer, or take an environment that asks for it")
    return kernel_at(buffers.offers[buffers.turns[i, b.KIND]])(state, buffers, i) >= 2


@inlined
def answer_of(state, buffers, i):
    """The answer for the simulator, or MORE; an action that is not legal does what the partner would do."""
    kind, action = buffers.turns[i, b.KIND], buffers.actions[i, 0]
    if kind != b.CONTROL and not buffers.settings[b.BOX]:
        size = buffers.mask.shape[1]
        if not 0 <= action < size or buffers.mask[i, action] == 0:
            buffers.actions[i, 0] = b.PARTNER_ACTION
    if kind == s.COMPOSE:
        put_in_force(state, buffers, i)
    return own_answer(state, buffers, i)


@inlined
def own_answer(state, buffers, i):
    """The answer for an action that is known to be legal."""
    kind, action = buffers.turns[i, b.KIND], buffers.actions[i, 0]
    theirs = b.ILLEGAL if buffers.settings[b.BOX] else b.PARTNER_ACTION
    if kind != b.CONTROL and action == theirs:
        return partner_answer(state, buffers, i, kind)
    return kernel_at(buffers.answers[kind])(state, buffers, i)


@inlined
def observe(state, buffers, i):
    """Completes the observation of the open decision: the cluster, the decision, how the candidates compare."""
    kind, instance = buffers.turns[i, b.KIND], np.int64(0)
    buffers.decision[i, :] = 0.0
    buffers.decision[i, buffers.slots[kind]] = 1.0
    if buffers.observers[kind] != 0:
        kernel_at(buffers.observers[kind])(state, buffers, i)
        return
    if kind < b.CLOCK:
        instance = state.pending.instance
        slot = state.pending.request
        if instance < 0:
            instance = np.int64(max(0, state.requests[slot].instance)) if slot >= 0 else np.int64(0)
    else:
        instance = min(state.config.relaxed_count, state.instances.size - 1)
    out = buffers.cluster[i]
    fill_cluster(state, instance, buffers.days[i] + state.clock.now_ps / s.PS_PER_S, out)
    index = np.int64(buffers.settings[b.PACK_PARAM])
    packing = state.params[index] * buffers.settings[b.PACK_SCALE] if index >= 0 else 0.0
    out[CLUSTER_COLUMN.packing] = share(packing, 2.0)
    out[CLUSTER_COLUMN.recent_violations] = share(recent_violations(state, buffers.account[i]), 0.06)
    out[CLUSTER_COLUMN.picks] = share(float(buffers.turns[i, b.PICKED]), float(b.MOST_PICKS))
    rank_candidates(buffers.candidates[i])


@inner
def blank(buffers, i):
    """The observation of an episode that is over: nothing but the partner's action."""
    buffers.cluster[i, :] = 0.0
    buffers.candidates[i, :, :] = 0.0
    buffers.decision[i, :] = 0.0
    buffers.mask[i, :] = 0
    if buffers.mask.shape[1] > b.PARTNER_ACTION:
        buffers.mask[i, b.PARTNER_ACTION] = 1


@inlined
def show(state, buffers, i, goes_on):
    """Writes what is seen after a step: the open decision, or that there is none any more."""
    if goes_on:
        observe(state, buffers, i)
    else:
        blank(buffers, i)


@inner
def _step(state, buffers, i, run_address):
    if buffers.turns[i, b.KIND] == b.NO_KIND:  # a window without a decision: its one step is its end
        update_account(state, buffers.weights, buffers.account[i])
        return False
    answer = answer_of(state, buffers, i)
    if answer == b.MORE:
        if offer(state, buffers, i):
            observe(state, buffers, i)
            update_account(state, buffers.weights, buffers.account[i])
            return True
        buffers.actions[i, 0] = 0  # no request is left to pick: what has been picked is the answer
        answer = kernel_at(buffers.answers[buffers.turns[i, b.KIND]])(state, buffers, i)
    elif opens_admission(state, buffers, i):
        if offer(state, buffers, i):
            observe(state, buffers, i)
            update_account(state, buffers.weights, buffers.account[i])
            return True
        answer = partner_answer(state, buffers, i, b.ADMIT)
    goes_on = advance(state, buffers, i, run_address, answer)
    update_account(state, buffers.weights, buffers.account[i])
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
        if buffers.turns[i, b.OPEN]:
            ended += not _step(state_at(buffers.handles[i]), buffers, i, run_address)
    return ended


@jit(types.boolean(types.int64, types.int64, types.int64))
def begin(buffers_address, run_address, i):
    """Opens the account of an episode and runs it to its first decision. Returns whether there is one."""
    buffers = buffers_at(buffers_address)
    state, turn = state_at(buffers.handles[i]), buffers.turns[i]
    turn[b.NEXT_CONTROL_PS] = s.NEVER
    if turn[b.STEP_KIND] != b.NO_KIND:
        turn[b.NEXT_CONTROL_PS] = state.clock.now_ps
    open_account(state, buffers.weights, buffers.settings[b.VIOLATION_BUDGET], buffers.account[i])
    goes_on = advance(state, buffers, i, run_address, s.ASK)
    show(state, buffers, i, goes_on)
    return goes_on


@inner
def play_down(state, buffers, i, run_address, end_ps):
    """The rest of the load after the window: nothing waits on the agent's account any more."""
    waiting, buffers.weights[r.WAITING] = buffers.weights[r.WAITING], 0.0
    set_margin(state, buffers, buffers.tuned[i])
    if buffers.turns[i, b.STEP_KIND] == b.CLOCK:
        kernel_at(buffers.partners[b.CLOCK])(state, buffers, i)
    run_to(state, buffers, i, run_address, buffers.rules[1], end_ps, s.ASK)
    update_account(state, buffers.weights, buffers.account[i])
    buffers.weights[r.WAITING] = waiting


@jit(types.void(types.int64, types.int64, types.int64, types.int64))
def drain(buffers_address, run_address, i, end_ps):
    """Plays an episode on under the partner until its online requests have finished or failed; accounts for it."""
    buffers = buffers_at(buffers_address)
    play_down(state_at(buffers.handles[i]), buffers, i, run_address, end_ps)


# --- Looking ahead: copies of one episode, each with an action of its own, played out in one compiled call -----------
SCORE = r.TOTAL + r.REWARD - r.TERM  # column of an account: the reward so far, and what a play-out adds to it
# What answers after the first action: the partner; in decisions of the environment, *no*, or the shortest or longest
# request offered (the partner where no requests are offered); by the clock, the same action again and again.
PARTNER, DECLINE, SHORTEST, LONGEST, HOLD = range(5)
BASES = ("partner", "decline", "shortest", "longest", "hold")
TOKENS = 1  # feature of a candidate: its context (features.CANDIDATES)


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
def work_done(state):
    """Reference GPU-seconds of what has been computed, and not been lost, for unfinished offline requests."""
    total, table = 0.0, state.instances[0].table
    for slot in range(state.clock.next_arrival):
        request = state.requests[slot]
        status = request.status
        if request.online or status in (s.FINISHED, s.REJECTED):
            continue
        held = status in (s.RESIDENT, s.LEAVING, s.MOVING, s.PUSH_WAITING)
        if not held and request.generated_tokens == 0:
            continue
        alone = prefill_one(state, table, request.prompt_tokens)
        decoding = max(0, request.service_ps - alone)
        total += decoding * request.generated_tokens / max(1, request.output_tokens)
        if held and state.instances[0].role == s.MIXED and request.generated_tokens == 0:
            total += alone * request.num_computed_tokens / request.prompt_tokens
        elif held:
            total += alone
        else:  # its prompt is to be prefilled anew, with all that it had generated
            total -= prefill_one(state, table, request.prompt_tokens + request.generated_tokens) - alone
    return total / s.PS_PER_S


@inner
def own_action(state, buffers, i, base):
    """What a base that is not the partner does at the open decision."""
    kind, size = buffers.turns[i, b.KIND], buffers.candidates.shape[1]
    if base == HOLD:
        return buffers.actions[i, 0]
    if base == DECLINE:
        return b.DECLINE_ACTION if buffers.mask[i, b.DECLINE_ACTION] else b.PARTNER_ACTION
    if kind not in (s.GATE, s.EVICT, s.PULL, b.ADMIT):
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
    """The answer of a decision of several picks: the base goes on picking; the partner stops, or, of ADMIT, goes on."""
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
        update_account(state, buffers.weights, buffers.account[i])
        if until_ps >= window_end_ps:
            play_down(state, buffers, i, run_address, min(until_ps, end_ps))
        elif progress > 0.0:
            buffers.account[i, SCORE] += progress * buffers.weights[0] * work_done(state)


@jit(types.void(types.int64))
def change_lengths(handle):
    """Output lengths have been changed: runs end with the step in progress, and none counts on the old ones.

    Before they are changed, all records must be up to date (`sim.loop.flush_handle`).
    """
    state = state_at(handle)
    for slot in range(state.clock.next_arrival):
        request = state.requests[slot]
        if request.online and request.status < s.FINISHED and request.first_decode_ps > 0:
            first_step(state, slot, request.first_decode_ps)
    for instance in range(state.instances.size):
        spec = state.instances[instance]
        drop_lanes(state, instance)  # they count on the old lengths
        if spec.activity != s.DECODE:
            continue
        flush(state, instance)
        cut(state, instance)
        left, miss_ps = np.int64(s.NEVER), np.int64(s.NEVER)
        for i in range(spec.running):
            request = state.requests[state.members[s.BATCH, instance, i]]
            left = min(left, np.int64(request.output_tokens - request.generated_tokens))
            miss_ps = min(miss_ps, request.latest_ps)
        spec.left, spec.miss_ps = left, miss_ps
