"""Queues, member lists, the event heap and the task ring: data structures of the loop.

A request is in at most one linked queue at a time (`previous` and `next`), and in at most one
member list. Operations are O(1), except removal from a member list, which keeps the order of
joining.
"""

import numpy as np

from ooco_gym.compile import inlined, inner
from ooco_gym.compile.instructions import prefetch
from ooco_gym.sim import state as s
from ooco_gym.sim.lanes import leave_lanes, member_count
from ooco_gym.sim.records import CACHE_LINE, INSTANCE
from ooco_gym.sim.sessions import arrival_order
from ooco_gym.sim.waiting import close_gap, join_window, leave_window, ordered, rebuild_window, set_waiting

NONE = -1
ONE = np.uint64(1)
TAKEN = -1  # time of a past event, before all others
FEW = 32  # number of instances that a cache holds
INSTANCE_BYTES = INSTANCE.itemsize + CACHE_LINE


# --- Linked queues of requests --------------------------------------------------------------------------------------
@inlined
def append(requests, head, tail, slot):
    """Adds `slot` at the end; returns the queue's new head and tail."""
    requests[slot].previous = tail
    requests[slot].next = NONE
    if tail == NONE:
        return slot, slot
    requests[tail].next = slot
    return head, slot


@inlined
def prepend(requests, head, tail, slot):
    """Adds `slot` at the head; returns the queue's new head and tail."""
    requests[slot].next = head
    requests[slot].previous = NONE
    if head == NONE:
        return slot, slot
    requests[head].previous = slot
    return slot, tail


@inlined
def unlink(requests, head, tail, slot):
    """Removes `slot` from any position; returns the queue's new head and tail."""
    before, after = requests[slot].previous, requests[slot].next
    if before == NONE:
        head = after
    else:
        requests[before].next = after
    if after == NONE:
        tail = before
    else:
        requests[after].previous = before
    requests[slot].previous = NONE
    requests[slot].next = NONE
    return head, tail


# --- Waiting for prefill, by instance and class ---------------------------------------------------------------------
@inlined
def enqueue(state, instance, slot, at_head):
    """Adds a request to its instance's queue for prefill, at the head or the end."""
    spec, request = state.instances[instance], state.requests[slot]
    tokens = request.prompt_tokens + request.generated_tokens
    if request.urgent:
        head, tail = spec.online_head, spec.online_tail
    else:
        head, tail = spec.offline_head, spec.offline_tail
    if at_head:
        head, tail = prepend(state.requests, head, tail, slot)
    else:
        head, tail = append(state.requests, head, tail, slot)
    if request.urgent:
        spec.online_head, spec.online_tail = head, tail
        spec.online_waiting += 1
        spec.online_waiting_tokens += tokens
    else:
        spec.offline_head, spec.offline_tail = head, tail
        if at_head or spec.window_size == spec.offline_waiting:
            join_window(state, instance, slot, tokens, at_head)
        spec.offline_waiting += 1
        spec.offline_waiting_tokens += tokens
        if ordered(state):
            set_waiting(state, instance, slot, True)


@inner
def enqueue_by_arrival(state, instance, slot):
    """Returns a request to its instance's queue for prefill, at its place in order of arrival."""
    spec, requests = state.instances[instance], state.requests
    request, mine = requests[slot], arrival_order(state, slot)
    after = spec.online_head if request.urgent else spec.offline_head
    while after >= 0 and arrival_order(state, after) < mine:  # preempted requests are among the earliest
        after = requests[after].next
    before = NONE if after < 0 else requests[after].previous
    if after < 0 or before < 0:
        enqueue(state, instance, slot, after >= 0)
        return
    enqueue(state, instance, slot, True)  # counts it; then it is moved
    head, tail = (spec.online_head, spec.online_tail) if request.urgent else (spec.offline_head, spec.offline_tail)
    head, tail = unlink(requests, head, tail, slot)
    if request.urgent:
        spec.online_head = head
    else:
        spec.offline_head = head
    requests[before].next = slot
    requests[after].previous = slot
    request.previous, request.next = before, after
    rebuild_window(state, instance)


@inner
def promote(state, instance):
    """Lets the offline requests that have waited `Config.aging_s` be served as online ones, in order of arrival."""
    slot, since_ps = state.instances[instance].offline_head, state.clock.now_ps - state.config.aging_s * s.PS_PER_S
    while slot >= 0 and state.requests[slot].arrival_ps <= since_ps:
        after = state.requests[slot].next
        dequeue(state, instance, slot)
        state.requests[slot].urgent = 1
        enqueue_by_arrival(state, instance, slot)
        slot = after


@inner
def dequeue(state, instance, slot):
    """Removes a request from its instance's queue for prefill."""
    spec, request = state.instances[instance], state.requests[slot]
    tokens = request.prompt_tokens + request.generated_tokens
    if request.urgent:
        spec.online_head, spec.online_tail = unlink(state.requests, spec.online_head, spec.online_tail, slot)
        spec.online_waiting -= 1
        spec.online_waiting_tokens -= tokens
    else:
        spec.offline_head, spec.offline_tail = unlink(state.requests, spec.offline_head, spec.offline_tail, slot)
        spec.offline_waiting -= 1
        spec.offline_waiting_tokens -= tokens
        leave_window(state, instance, slot)
        if ordered(state):
            set_waiting(state, instance, slot, False)


# --- Prefilled and waiting for memory on a decode instance ----------------------------------------------------------
@inner
def join_push_queue(state, slot, at_head):
    """Adds a prefilled request to its class's queue for a decode instance; the online queue is
    served first."""
    queue = state.push_queues[s.URGENT if state.requests[slot].urgent else s.OFFLINE]
    if at_head:
        queue.head, queue.tail = prepend(state.requests, queue.head, queue.tail, slot)
    else:
        queue.head, queue.tail = append(state.requests, queue.head, queue.tail, slot)


@inner
def leave_push_queue(state, slot):
    """Removes a request from the queue for a decode instance."""
    queue = state.push_queues[s.URGENT if state.requests[slot].urgent else s.OFFLINE]
    queue.head, queue.tail = unlink(state.requests, queue.head, queue.tail, slot)


# --- Members: the requests that hold KV memory on an instance -------------------------------------------------------
@inner
def number_members(state, instance):
    """Writes each member's list index to its record; indices change when a member leaves."""
    for row in range(2):
        for index in range(member_count(state.instances[instance], row)):
            state.requests[state.members[row, instance, index]].position = index


@inlined
def add_member(state, instance, slot):
    """Adds a request at the end of its class's member list."""
    spec, request = state.instances[instance], state.requests[slot]
    row = 0 if request.urgent else 1
    index = member_count(spec, row)
    state.members[row, instance, index] = slot
    if row == 0:
        spec.urgent_members += 1
    else:
        spec.offline_members += 1


@inlined
def remove_member(state, instance, slot):
    """Removes a request from its member list, keeping the order of the others."""
    spec, request = state.instances[instance], state.requests[slot]
    row = 0 if request.urgent else 1
    members, last, left = state.members[row, instance], member_count(spec, row) - 1, 0
    while members[left] != slot:
        left += 1
    close_gap(members, left, last)
    leave_lanes(state, instance, row, left, request)
    if row == 0:
        spec.urgent_members -= 1
    else:
        spec.offline_members -= 1


@inlined
def join_decodable(state, instance, slot):
    """Counts a member, and its context length, as decodable from now on."""
    spec, request = state.instances[instance], state.requests[slot]
    tokens = request.prompt_tokens + request.generated_tokens
    spec.decodable += 1
    state.gauges.relaxed_decodable += spec.role == s.RELAXED
    if request.urgent:
        spec.urgent_decodable += 1
        spec.urgent_context += tokens
    else:
        spec.offline_context += tokens


@inlined
def leave_decodable(state, instance, slot):
    """Counts a flushed member as no longer decodable here."""
    spec, request = state.instances[instance], state.requests[slot]
    tokens = request.prompt_tokens + request.generated_tokens
    spec.decodable -= 1
    state.gauges.relaxed_decodable -= spec.role == s.RELAXED
    if request.urgent:
        spec.urgent_decodable -= 1
        spec.urgent_context -= tokens
    else:
        spec.offline_context -= tokens


@inlined
def has_capacity(state, instance):
    """Whether the member and batch lists of an instance can take one more request; what it prefills joins them."""
    spec = state.instances[instance]
    held = spec.urgent_members + spec.offline_members + spec.arriving + spec.suspended
    if spec.activity == s.PREFILL_ONLINE or spec.activity == s.PREFILL_OFFLINE:
        held += spec.running
    return held < state.members.shape[2]


# --- The event heap: one entry for each source (an instance or a link) ----------------------------------------------
# heap[0, index] is an event's time, heap[1, index] its source, heap[2, source] the index (-1: not
# in the heap).
@inlined
def _before(heap, index, time_ps, source):
    return (heap[0, index] < time_ps) | ((heap[0, index] == time_ps) & (heap[1, index] < source))


@inlined
def _put(heap, index, time_ps, source):
    heap[0, index], heap[1, index], heap[2, source] = time_ps, source, index


@inlined
def _sift(heap, size, free, time_ps, source):
    """Puts an event in its place; events between there and the free index move."""
    index = np.uint64(free)  # unsigned: no check for negative indices
    while index > 0 and not _before(heap, (index - ONE) >> ONE, time_ps, source):
        parent = (index - ONE) >> ONE
        _put(heap, index, heap[0, parent], heap[1, parent])
        index = parent
    while True:
        child = (index << ONE) + ONE
        if child >= size:
            break
        other = child + ONE
        if other < size:
            child += np.uint64(_before(heap, other, heap[0, child], heap[1, child]))  # no branch: either is as likely
        if not _before(heap, child, time_ps, source):
            break
        _put(heap, index, heap[0, child], heap[1, child])
        index = child
    _put(heap, index, time_ps, source)


@inlined
def schedule(state, source, time_ps):
    """Sets the next event of `source`, replacing an earlier one."""
    heap = state.heap
    index = heap[2, source]
    if index < 0:
        index = state.queues.heap_size
        state.queues.heap_size += 1
    _sift(heap, np.uint64(state.queues.heap_size), index, time_ps, source)


@inlined
def cancel(state, source):
    """Removes the event of `source`, if it has one."""
    heap = state.heap
    index = heap[2, source]
    if index < 0:
        return
    last = state.queues.heap_size - 1
    state.queues.heap_size = last
    heap[2, source] = NONE
    if index < last:
        _sift(heap, np.uint64(last), index, heap[0, last], heap[1, last])


@inlined
def next_event(state):
    """Time of the next event, or NEVER."""
    heap = state.heap
    if state.queues.heap_size > 0 and heap[0, 0] == TAKEN:
        cancel(state, heap[1, 0])
    return heap[0, 0] if state.queues.heap_size > 0 else s.NEVER


@inlined
def take_event(state):
    """Returns the source of the next event, which stays at the top of the heap until its source has
    another one."""
    heap = state.heap
    heap[0, 0] = TAKEN
    if state.instances.size > FEW:
        for index in range(1, min(3, state.queues.heap_size)):  # one of these is next, unless a new event comes first
            _fetch_source(state, heap[1, index])
    return heap[1, 0]


@inner
def _fetch_source(state, source):
    """Prefetches what an event of a source reads."""
    if source >= state.instances.size:
        prefetch(state.links[source - state.instances.size], 0)
        return
    for line in range(0, INSTANCE_BYTES, CACHE_LINE):
        prefetch(state.instances[source], line)


@inner
def stop_at_layer(state, instance, layers):
    """Ends the present iteration at the next boundary of its `layers` layers. Returns the layers
    done by then, or -1 if it ends as early anyway."""
    spec, now = state.instances[instance], state.clock.now_ps
    duration = spec.end_ps - spec.start_ps
    done = -((spec.start_ps - now) * layers // duration)
    stop_ps = spec.start_ps + done * duration // layers
    if done >= layers or stop_ps >= spec.end_ps:
        return -1
    spec.end_ps = max(stop_ps, now)
    spec.interrupted = 1
    schedule(state, instance, spec.end_ps)
    return done


# --- Tasks ----------------------------------------------------------------------------------------------------------
@inlined
def add_task(state, kind, instance, slot):
    """Appends a task to the ring."""
    tail = state.queues.task_tail
    if tail - state.queues.task_head >= s.TASKS:
        raise RuntimeError("the ring of tasks is full")
    state.tasks[tail % s.TASKS, 0] = kind
    state.tasks[tail % s.TASKS, 1] = instance
    state.tasks[tail % s.TASKS, 2] = slot
    state.queues.task_tail = tail + 1


@inlined
def add_dispatch(state, instance):
    """Adds a task to dispatch an instance, if there is none."""
    if state.instances[instance].queued == 0:
        state.instances[instance].queued = 1
        add_task(state, s.DISPATCH, instance, NONE)


@inlined
def retry_waiting(state):
    """Adds tasks to retry the queues for decode instances, online first, as memory is free again.

    (With one task for both, the first queue's decision would take an outside answer for the
    second's.)
    """
    for queue in (s.URGENT, s.OFFLINE):
        if state.push_queues[queue].head >= 0:
            add_task(state, s.RETRY_PUSHES, queue, NONE)


# --- Evictions ------------------------------------------------------------------------------------------------------
@inlined
def note_eviction(state, slot):
    """Records that a request loses its memory, if evictions are recorded."""
    used = state.queues.evicted
    if used < state.evicted.size:
        state.evicted[used] = slot
        state.queues.evicted = used + 1
