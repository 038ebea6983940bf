"""Requests that leave before their last token: their time-out has passed, or their client has aborted them
(State.quit_ps). Mixed instances only.

As vLLM's `abort_requests`, this takes effect between iterations: a request that waits leaves at once, before what
happens at that time; one that runs, at the end of the iteration in progress, which may still finish it. What was
computed for it is then waste. What waits for it in a closed session never arrives.
"""

import numpy as np

from ooco_gym.compile import inlined, inner
from ooco_gym.sim import state as s
from ooco_gym.sim.bidirectional import change_host
from ooco_gym.sim.blocks import note_demand
from ooco_gym.sim.memory import change_late, change_outstanding, check_token, close_online, free
from ooco_gym.sim.prefill import charge_waste
from ooco_gym.sim.queues import add_dispatch, dequeue, remove_member
from ooco_gym.sim.sessions import QUIT, UNKNOWN, before, end_call, pop_turn, push_turn, release
from ooco_gym.sim.step_actions import leave_batch, running_index, unschedule


@inner
def begin_patience(state, slot):
    """Notes when an arriving request leaves unless it is done by then."""
    quit_ps = state.quit_ps
    quit_ps[slot] = min(s.NEVER, state.requests[slot].arrival_ps + quit_ps[slot])
    if quit_ps[slot] < s.NEVER:
        push_turn(state, QUIT, slot)


@inner
def leave_next(state):
    """Lets the next request leave if its time has come; of one that is in an iteration, that follows at its end.
    Returns whether there was one."""
    clock = state.clock
    if state.turns[QUIT, 0] == 0 or state.quit_ps[state.turns[QUIT, 1]] > clock.now_ps:
        return False
    slot = np.int64(pop_turn(state, QUIT))
    clock.next_arrival_ps = UNKNOWN
    request = state.requests[slot]
    spec = state.instances[request.instance]
    if request.status == s.WAITING and request.generated_tokens < request.output_tokens:
        dequeue(state, request.instance, slot)
        _leave(state, slot)
    elif request.status == s.RESIDENT and spec.activity == s.IDLE:
        _stop(state, request.instance, running_index(state, request.instance, slot))
    else:
        return True
    if spec.activity == s.IDLE:
        add_dispatch(state, request.instance)
    return True


@inner
def leave_due(state, instance):
    """Lets the running requests leave whose time came during the iteration that has just ended, in that order."""
    spec, batch = state.instances[instance], state.members[s.BATCH, instance]
    first = 0
    while first >= 0:
        first = -1
        for index in range(spec.running):
            due = state.quit_ps[batch[index]] <= state.clock.now_ps
            if due and (first < 0 or before(state, QUIT, batch[index], batch[first])):
                first = index
        if first >= 0:
            _stop(state, instance, first)


@inlined
def _stop(state, instance, index):
    """Lets a running request leave; asynchronously composed tokens of it are left out, too."""
    slot = np.int64(state.members[s.BATCH, instance, index])
    unschedule(state, slot)
    leave_batch(state, instance, index)
    remove_member(state, instance, slot)
    _leave(state, slot)


@inner
def _leave(state, slot):
    """Ends a request that is in no list: frees its memory, and charges what was computed for it as waste."""
    request, now = state.requests[slot], state.clock.now_ps
    computed = request.num_computed_tokens if request.status == s.RESIDENT else request.host_tokens
    tokens = computed + request.kv_lost - max(0, request.cached_tokens)
    charge_waste(state, slot, max(0, np.int64(tokens)), 0)
    if request.online and request.generated_tokens > 0 and request.output_tokens > 1:
        check_token(state, slot, now)
    if not request.online:
        note_demand(state, slot, -1)
    if request.status == s.RESIDENT:
        free(state, slot)
    if request.host_tokens > 0:
        change_host(state, request.instance, slot, -request.host_tokens)
    request.status = s.ABORTED
    request.finish_ps = max(now, request.last_token_ps)
    if state.job.size > 0:
        end_call(state, slot, 0)
    if state.config.clients:
        release(state, slot)
    if request.online:
        if request.counted and request.violated == 0:
            close_online(state, now)
        elif request.counted:
            change_late(state, -1, now)
    else:
        change_outstanding(state, -request.service_ps)
        state.gauges.open_offline -= request.counted
