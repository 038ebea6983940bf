"""Dispatch of idle instances and placement of prefilled requests, as resumable tasks of the loop.

Each function runs up to a decision, asks for it (`ask`), and continues with the answer. If the
answer comes from outside, the function returns 0, the loop returns to its caller, and the same task
runs again with the answer. So nothing may change before a decision that the second run would change
again.
"""

import numpy as np

from ooco_gym.compile import inlined, inner
from ooco_gym.sim import state as s
from ooco_gym.sim.batch import fill_batch, first_step_fits, leave_batch
from ooco_gym.sim.decode import cut, flush, flush_all, flush_totals, start_run, wake
from ooco_gym.sim.fleet import elastic, leave, leaving
from ooco_gym.sim.lanes import WRITTEN, member_count, write_down
from ooco_gym.sim.memory import evict
from ooco_gym.sim.mixed import start_mixed
from ooco_gym.sim.pool_caches import caches, settle
from ooco_gym.sim.prefill import (
    drop_suspended,
    new_token,
    prefill_fits,
    prompt_blocks,
    resume_prefill,
    start_prefill,
)
from ooco_gym.sim.queues import (
    cancel,
    dequeue,
    has_capacity,
    join_decodable,
    join_push_queue,
    leave_push_queue,
    promote,
    retry_waiting,
    schedule,
)
from ooco_gym.sim.ranks import AHEAD, NOW, start_ranks
from ooco_gym.sim.retention import TTL
from ooco_gym.sim.roles import changing, enter, roles_change, settle_roles
from ooco_gym.sim.state import rule_at
from ooco_gym.sim.step_actions import end_pins
from ooco_gym.sim.transfers import accept_pull, blocks_there, can_reserve, reserve, send, surely_reservable
from ooco_gym.sim.waiting import FIRST, FIRST_LENGTH, SHORTEST_LENGTH


@inner
def gather_evictable(state, instance, row):
    """Writes the evictable members to State.picks; returns (their number, their blocks)."""
    spec, found, blocks = state.instances[instance], 0, 0
    write_down(state, instance)
    for i in range(member_count(spec, row)):
        slot = state.members[row, instance, i]
        status = state.requests[slot].status
        if status == s.RESIDENT or (status == s.PUSH_WAITING and row == s.OFFLINE):
            state.picks[found] = slot
            blocks += state.requests[slot].blocks
            found += 1
    return found, blocks


@inlined
def gather_waiting(state, instance):
    """Writes the first waiting offline requests whose prefill fits to State.picks; returns their
    number."""
    spec, found = state.instances[instance], 0
    if not has_capacity(state, instance):
        return found
    window, picks = state.waiting_window[instance], state.picks
    slots, lengths = window[FIRST], window[FIRST_LENGTH]
    most = spec.free_blocks * state.config.block_tokens - 1  # tokens, with space for the next token
    size = spec.window_size
    if size > 0 and window[SHORTEST_LENGTH, size - 1] <= most:  # the longest fits, so all do
        for index in range(size):
            picks[index] = slots[index]
        return size
    for index in range(size):
        picks[found] = slots[index]
        found += lengths[index] <= most
    return found


@inner
def legal(answer, count):
    """Returns an outside answer, or 0 (the first candidate) if it is out of range."""
    return answer if 0 <= answer < count else 0


TASK_DONE, UNANSWERED, DECLINED = 1, 0, -2
CHOOSE, COMPOSING, PULLING, STARTING = range(4)  # stages of a dispatch


@inlined
def ask_rule(rule, view):
    """Asks a rule, after flushing every instance if a rule of the policy does not flush itself."""
    if view.state.config.rules_flush == 0:
        flush_all(view.state)
    return rule(view)


@inlined
def ask(state, point, instance, slot, count, hook):
    """Takes a decision: the outside answer if there is one, else the hook's.

    The candidates are State.picks[:count]. Returns the answer, or ASK if the loop must return to
    its caller.
    """
    pending = state.pending
    if pending.answered == 1 and pending.point == point:
        pending.answered = 0
        pending.point = s.NO_POINT
        state.totals.decisions += 1
        return pending.answer
    answer = ask_rule(hook, s.View(state, np.int64(instance), np.int64(slot), state.picks[:count]))
    if answer == s.ASK:
        pending.point = point
        pending.instance = instance
        pending.request = slot
        pending.count = count
        return answer
    state.totals.decisions += 1
    return answer


@inner
def ask_beside(state, point, instance, slot, address):
    """As `ask`, of a mixed instance beside pools; meanwhile its policy's parameters are where rules read them."""
    _take_side(state, 1)
    answer = ask(state, point, instance, slot, 0, rule_at(address))
    if answer != s.ASK:
        _take_side(state, 0)
    return answer


@inner
def _take_side(state, side):
    params, other = state.params[: s.PARAMS], state.params[s.RULE_PARAMS - s.PARAMS :]
    for index in range(s.PARAMS if state.config.side != side else 0):
        params[index], other[index] = other[index], params[index]
    state.config.side = side


@inner
def evict_from(state, instance, slot):
    """Evicts a resident request from any batch; the present step goes on without it."""
    flush(state, instance)
    if caches(state):
        settle(state, instance)
    cut(state, instance)
    leave_batch(state, instance, slot)
    origin = state.requests[slot].origin
    evict(state, slot)
    state.instances[instance].pull_due = 1
    wake(state, instance)
    retry_waiting(state)
    wake(state, origin)


# --- Where a request waits for prefill ------------------------------------------------------------------------------
@inlined
def choose_entry(state, slot, reached, route):
    """Instance, of the first `reached`, where a request queues for prefill; ASK if that is asked outside."""
    if reached <= 1:
        return np.int64(0)
    answer = np.int64(ask(state, s.ROUTE, -1, slot, 0, route))
    if answer == s.ASK:
        return answer
    answer = _entry(state, answer, reached)
    if state.config.mixed_count > 0:  # the pools' choice, or a mixed instance; asked outside, the answer was for both
        rule = rule_at(state.config.between_rule)
        between = np.int64(ask_rule(rule, s.View(state, answer, np.int64(slot), state.picks[:0])))
        answer = answer if between == s.ASK else _entry(state, between, reached)
    return answer


@inlined
def _entry(state, answer, reached):
    return answer if 0 <= answer < reached and not changing(state, answer) else np.int64(0)


@inner
def hand_back(state, instance, route):
    """Routes the requests anew that wait on an instance whose role does not prefill them."""
    spec = state.instances[instance]
    online = changing(state, instance) or state.config.local_prefill_tokens == 0
    while instance >= state.config.relaxed_count and (spec.offline_waiting > 0 or (online and spec.online_waiting > 0)):
        slot = spec.online_head if online and spec.online_waiting > 0 else spec.offline_head
        state.requests[slot].status = s.FUTURE  # by which rules know a request that arrives
        answer = choose_entry(state, slot, state.config.relaxed_count, route)
        if answer == s.ASK:
            return UNANSWERED
        dequeue(state, instance, slot)
        enter(state, slot, answer)
    return TASK_DONE


# --- An idle instance -----------------------------------------------------------------------------------------------
@inlined
def dispatch(state, instance, route, gate, compose, evict_hook, pull):
    """Gives an idle instance its next iteration. Returns UNANSWERED if a decision is pending."""
    spec = state.instances[instance]
    if spec.role == s.MIXED:
        return _dispatch_mixed(state, instance, compose)
    if instance >= state.config.relaxed_count and roles_change(state) and spec.activity == s.IDLE:
        if changing(state, instance) and spec.suspended > 0:
            drop_suspended(state, instance)
        if hand_back(state, instance, route) == UNANSWERED:
            return UNANSWERED
        settle_roles(state)
    while spec.activity == s.IDLE:
        if spec.stage == CHOOSE:
            if spec.role == s.RELAXED or spec.online_waiting > 0:
                done = _start_online(state, instance, evict_hook)
                if done == DECLINED:
                    spec.hold = s.HOLD  # the refused request asks again at the next step
                elif done < 0 and spec.role == s.RELAXED:
                    done = _start_offline(state, instance, gate)
                if done >= 0:
                    return done
            spec.stage = COMPOSING
        if spec.stage == COMPOSING:
            if _compose(state, instance, compose) == UNANSWERED:
                return UNANSWERED
            spec.stage = PULLING
        if spec.stage == PULLING:
            pulls = spec.role == s.STRICT and instance >= state.config.strict_from
            if pulls and _pull(state, instance, pull) == UNANSWERED:
                return UNANSWERED
            spec.stage = STARTING
        if spec.running == 0:
            _rest(state, instance)
            return TASK_DONE
        if first_step_fits(state, instance):
            spec.stage = CHOOSE
            start_run(state, instance)
            return TASK_DONE
        done = _make_room(state, instance, evict_hook)
        if done >= 0:
            return done
    return TASK_DONE


@inlined
def _dispatch_mixed(state, instance, compose):
    """Composes and starts the next iteration. With asynchronous scheduling the one after it is
    composed at once (vLLM: `step_with_batch_queue`)."""
    spec = state.instances[instance]
    ahead = state.config.async_scheduling != s.SYNCHRONOUS
    if elastic(state) and spec.power != s.ON:
        if leave(state, instance):
            return TASK_DONE
        ahead = ahead and not leaving(state, instance)
    if state.config.retention == TTL:
        end_pins(state, instance)
    if state.config.aging_s > 0:
        promote(state, instance)
    if state.config.data_parallel > 0 and spec.ranks > 0:
        return _dispatch_rank(state, instance, compose)
    while spec.activity == s.IDLE or (ahead and spec.composed == 0):
        composes = spec.composed == 0
        if composes and _compose_mixed(state, instance, compose) == s.ASK:
            return UNANSWERED
        if spec.activity == s.MIXING:
            spec.composed = 1
            return TASK_DONE
        spec.composed = 0
        start_mixed(state, instance)
        if composes and spec.activity == s.IDLE:
            return TASK_DONE
    return TASK_DONE


@inlined
def _compose_mixed(state, instance, compose):
    if state.config.mixed_count > 0:
        return ask_beside(state, s.COMPOSE, instance, -1, state.config.mixed_compose)
    return ask(state, s.COMPOSE, instance, -1, 0, compose)


@inner
def _dispatch_rank(state, instance, compose):
    """Composes a data-parallel rank's next iteration, which starts with the other ranks'."""
    spec, again = state.instances[instance], True
    while again:
        if spec.composed == 0:
            if _compose_mixed(state, instance, compose) == s.ASK:
                return UNANSWERED
            spec.composed = AHEAD if spec.activity == s.MIXING else NOW
        again = start_ranks(state, instance)
    return TASK_DONE


@inlined
def _compose(state, instance, compose):
    """Asks which residents join the next step, and writes the batch."""
    if state.instances[instance].decodable == 0:
        fill_batch(state, instance, 0)
        return TASK_DONE
    answer = ask(state, s.COMPOSE, instance, -1, 0, compose)
    if answer == s.ASK:
        return UNANSWERED
    fill_batch(state, instance, answer)
    return TASK_DONE


@inlined
def _pull(state, instance, pull):
    """Asks which requests a strict instance pulls, after its batch is composed (OOCO, Algorithm 1)."""
    spec = state.instances[instance]
    if spec.pull_due == 0 and state.clock.now_ps < spec.pull_wake_ps:
        return TASK_DONE
    answer = ask(state, s.PULL, instance, -1, 0, pull)
    if answer == s.ASK:
        return UNANSWERED
    spec.pull_due = 0
    if spec.pull_wake_ps <= state.clock.now_ps:
        spec.pull_wake_ps = s.NEVER  # a rule sets a later time to be asked again by the clock
    spec.wants_pull = 1 if answer == 0 else 0
    accepted = 0
    for i in range(min(answer, state.picks.size)):
        accepted += accept_pull(state, state.picks[i], instance)
    if accepted > 0:
        spec.last_pull_ps = state.clock.now_ps
    return TASK_DONE


@inlined
def _rest(state, instance):
    """Puts an instance without work to sleep until something changes, or its gate is asked again."""
    spec = state.instances[instance]
    spec.stage = CHOOSE
    spec.running, spec.unwritten = 0, WRITTEN
    if spec.role == s.RELAXED and spec.hold == s.HOLD and spec.offline_waiting > 0:
        schedule(state, instance, state.clock.now_ps + state.config.gate_poll_ps)
    elif spec.role == s.STRICT and state.clock.now_ps < spec.pull_wake_ps < s.NEVER:
        schedule(state, instance, spec.pull_wake_ps)
    else:
        cancel(state, instance)


@inlined
def _start_online(state, instance, evict_hook):
    """Starts the first online prefill, and evicts offline residents for it.

    Returns -1 if no online prefill can start, DECLINED if the rule declines to evict.
    """
    spec = state.instances[instance]
    while spec.online_waiting > 0:
        head = spec.online_head
        if prefill_fits(state, instance, head):
            start_prefill(state, instance, head)
            return TASK_DONE
        if spec.suspended > 0:
            drop_suspended(state, instance)
            continue
        found, blocks = gather_evictable(state, instance, s.OFFLINE)
        if found == 0 or spec.free_blocks + blocks < prompt_blocks(state, head):
            return -1
        answer = ask(state, s.EVICT, instance, head, found, evict_hook)
        if answer == s.ASK:
            return UNANSWERED
        if answer == s.DECLINE:
            return DECLINED
        evict_from(state, instance, state.picks[legal(answer, found)])
    return -1


@inlined
def _start_offline(state, instance, gate):
    """Without waiting online requests: resumes a prefill, or asks the gate. Returns -1 if it holds."""
    spec = state.instances[instance]
    spec.hold = s.HOLD_UNTIL_CHANGE
    if spec.online_waiting > 0:
        return -1
    if spec.suspended > 0:
        resume_prefill(state, instance)
        return TASK_DONE
    if spec.offline_waiting == 0:
        return -1
    found = gather_waiting(state, instance)
    if found == 0:
        return -1
    answer = ask(state, s.GATE, instance, -1, found, gate)
    if answer == s.ASK:
        return UNANSWERED
    if 0 <= answer < found:
        start_prefill(state, instance, state.picks[answer])
        return TASK_DONE
    spec.hold = s.HOLD_UNTIL_CHANGE if answer == s.HOLD_UNTIL_CHANGE else s.HOLD
    return -1


@inlined
def _make_room(state, instance, evict_hook):
    """Evicts a request, as the composed batch's next tokens do not fit. Returns -1 to compose
    again."""
    spec = state.instances[instance]
    found, _ = gather_evictable(state, instance, s.OFFLINE)
    if found == 0:
        found, _ = gather_evictable(state, instance, s.URGENT)
    if found == 0 or (found == 1 and spec.running == 1 and state.picks[0] == state.members[s.BATCH, instance, 0]):
        _rest(state, instance)  # transfers hold the memory; their end wakes the instance
        return TASK_DONE
    answer = ask(state, s.EVICT, instance, -1, found, evict_hook)
    if answer == s.ASK:
        return UNANSWERED
    spec.stage = CHOOSE
    evict_from(state, instance, state.picks[legal(answer, found)])
    return -1


# --- A prefilled request --------------------------------------------------------------------------------------------
@inlined
def place(state, slot, queued, route, evict_hook):
    """Finds an instance where a prefilled request decodes. Returns UNANSWERED, TASK_DONE, or -1 if it
    must wait.

    `queued`: it is in the queue for a decode instance, which it then leaves.
    """
    request = state.requests[slot]
    if request.target < 0:
        answer = s.STAY  # prefilled where it decodes
        if state.instances[request.instance].role == s.RELAXED:
            answer = _choose_target(state, slot, route)
        if answer == s.ASK:
            return UNANSWERED
        if answer == s.STAY:
            if queued:
                leave_push_queue(state, slot)
            request.status = s.RESIDENT
            if request.generated_tokens == 0:  # a decode instance would have generated it
                new_token(state, slot, state.clock.now_ps)
            join_decodable(state, request.instance, slot)
            _wake_pullers(state)
            wake(state, request.instance)
            return TASK_DONE
        if answer < 0:
            return -1
        request.target = answer
    target = request.target
    if not surely_reservable(state, slot, target):
        flush_totals(state, target)
    while not can_reserve(state, slot, target):
        found, blocks = gather_evictable(state, target, s.OFFLINE)
        spec = state.instances[target]
        if not request.urgent or found == 0 or spec.free_blocks + blocks < blocks_there(state, slot):
            request.target = -1
            return -1
        answer = ask(state, s.EVICT, target, slot, found, evict_hook)
        if answer == s.ASK:
            return UNANSWERED
        if answer == s.DECLINE:
            request.target = -1
            return -1
        evict_from(state, target, state.picks[legal(answer, found)])
    if queued:
        leave_push_queue(state, slot)
    reserve(state, slot, target)
    send(state, slot, True)
    return TASK_DONE


@inlined
def _choose_target(state, slot, route):
    first, instances = state.config.strict_from, state.instances.size
    if state.requests[slot].urgent and instances - first == 1:
        return first
    answer = ask(state, s.ROUTE, -1, slot, 0, route)
    if answer >= 0 and not first <= answer < instances:
        return first
    if answer == s.STAY and state.requests[slot].urgent:
        return first  # online requests never decode on a relaxed instance
    return answer


@inlined
def _wake_pullers(state):
    """Wakes strict instances that found no request to pull, as a new offline request decodes on a
    relaxed one."""
    for instance in range(state.config.strict_from, state.instances.size):
        if state.instances[instance].wants_pull:
            state.instances[instance].wants_pull = 0
            state.instances[instance].pull_due = 1
            wake(state, instance)


@inner
def retry_pushes(state, queue, route, evict_hook):
    """Places the heads of a queue for decode instances, until one must keep waiting."""
    placed = TASK_DONE
    while state.push_queues[queue].head >= 0 and placed == TASK_DONE:
        placed = place(state, state.push_queues[queue].head, True, route, evict_hook)
    return UNANSWERED if placed == UNANSWERED else TASK_DONE


@inlined
def place_new(state, slot, route, evict_hook):
    """Places a request that has just been prefilled, or queues it."""
    queue = s.URGENT if state.requests[slot].urgent else s.OFFLINE
    placed = -1
    stays = state.instances[state.requests[slot].instance].role == s.STRICT
    if stays or state.push_queues[queue].head < 0:  # first come, first served
        placed = place(state, slot, False, route, evict_hook)
    if placed == UNANSWERED:
        return UNANSWERED
    if placed < 0:
        join_push_queue(state, slot, False)
    return TASK_DONE
