"""Closed sessions: a turn of a conversation arrives its think time after the previous turn has
finished, an agent's call after all that it waits for have (State.followers, State.unfinished).
Clients that share their requests (`Config.clients`): the next request in order arrives whenever a
client has an answer.

A turn is *released* when that has happened; until then its arrival is NEVER. State.turns has
binary heaps of released turns: those to arrive, by arrival, and online ones, by TTFT deadline; and one of the requests
that leave unless they are done (`sim.leaving`), by that time.
`heap[0]` is the size, `heap[1]` the first; `heap[2 i]` and `heap[2 i + 1]` come no earlier than
`heap[i]`. Requests that arrive at the trace's own time (State.think_ps < 0) are in neither: the
clock passes them in order.
"""

import numpy as np

from ooco_gym.compile import inlined, inner
from ooco_gym.sim import state as s

ARRIVAL, DUE, QUIT = range(3)  # rows of State.turns
BEGUN, ATTAINED, LEFT, TURN, END, CHAIN = range(6)  # columns of State.jobs
ENDED, SERVICE, LAST, EXPECTED = range(4)  # columns of State.calls
UNKNOWN = 0  # next arrival time that must be looked up


@inlined
def closed(state):
    """Whether some request waits for another one to finish."""
    return state.followers.size > 0


@inlined
def rows_arrived(state):
    """Number of leading request rows that may have arrived; without closed sessions all of these
    have."""
    return state.requests.size if closed(state) else state.clock.next_arrival


@inlined
def arrival_order(state, slot):
    """A number that orders requests by arrival: the slot, or the time if sessions are closed."""
    return state.requests[slot].arrival_ps if closed(state) else np.int64(slot)


@inlined
def _time_ps(state, row, slot):
    if row == QUIT:
        return state.quit_ps[slot]
    return state.requests[slot].arrival_ps + row * state.requests[slot].ttft_slo_ps


@inner
def before(state, row, a, b):
    """Whether request `a` arrives, has its deadline, or leaves before `b`; ties: trace order."""
    a_ps, b_ps = _time_ps(state, row, a), _time_ps(state, row, b)
    return a_ps < b_ps or (a_ps == b_ps and a < b)


@inner
def push_turn(state, row, slot):
    """Adds a turn to a heap."""
    heap = state.turns[row]
    place = np.int64(heap[0]) + 1
    heap[0] = place
    while place > 1 and before(state, row, slot, heap[place // 2]):
        heap[place] = heap[place // 2]
        place //= 2
    heap[place] = slot


@inner
def pop_turn(state, row):
    """Removes and returns the first turn of a non-empty heap."""
    heap = state.turns[row]
    size = np.int64(heap[0]) - 1
    first, last, place = np.int64(heap[1]), heap[size + 1], 1
    heap[0] = size
    while 2 * place <= size:
        child = 2 * place
        if child < size and before(state, row, heap[child + 1], heap[child]):
            child += 1
        if before(state, row, last, heap[child]):
            break
        heap[place] = heap[child]
        place = child
    heap[place] = last
    return first


@inlined
def _next_of_clients(state):
    """The next request of all clients, which one of them now sends, or -1."""
    clock = state.clock
    while clock.next_of_clients < state.requests.size and state.think_ps[clock.next_of_clients] < 0:
        clock.next_of_clients += 1
    if clock.next_of_clients == state.requests.size:
        return np.int64(-1)
    clock.next_of_clients += 1
    return clock.next_of_clients - 1


@inner
def release(state, slot):
    """Releases the turns that wait for a finished request and for no other one. With `Config.clients`, a rejected
    request, too, leaves its client free."""
    if state.config.clients:
        turn = _next_of_clients(state) if state.requests[slot].online else np.int64(-1)
        if turn >= 0:
            _release(state, slot, turn)
        return
    for place in range(state.followers[slot], state.followers[slot + 1]):
        turn = np.int64(state.followers[place])
        state.unfinished[turn] -= 1
        if state.unfinished[turn] == 0:
            _release(state, slot, turn)


@inner
def _release(state, slot, turn):
    """Lets a turn arrive its think time after the client has the answer to `slot`, but at least a picosecond later, as
    all arrivals of this time are processed."""
    clock, config, ended = state.clock, state.config, state.requests[slot]
    request = state.requests[turn]
    answer_ps = config.frontend_ps + config.frontend_token_ps * ended.prompt_tokens
    request.arrival_ps = min(s.NEVER, clock.now_ps + max(1, min(s.NEVER, state.think_ps[turn] + answer_ps)))
    request.counted = 1 if clock.window_start_ps <= request.arrival_ps < clock.window_end_ps else 0
    clock.next_arrival_ps = UNKNOWN
    push_turn(state, ARRIVAL, turn)
    if request.online:
        state.gauges.open_online += request.counted
        clock.next_deadline_ps = min(clock.next_deadline_ps, request.arrival_ps + request.ttft_slo_ps)
        push_turn(state, DUE, turn)
    else:
        state.gauges.open_offline += request.counted
        if state.due_ps.size > 0:
            state.due_ps[turn] = min(s.NEVER, state.due_ps[turn] + request.arrival_ps)


# --- Jobs of several requests (State.jobs) ----------------------------------------------------------------------------
@inner
def note_call(state, slot):
    """Notes when a job's first request arrives, and what it has had when each does."""
    job = np.int64(state.job[slot])
    if job < 0:
        return
    state.chain[slot] = np.int32(state.jobs[job, CHAIN])
    if state.jobs[job, BEGUN] < 0.0:
        state.jobs[job, BEGUN] = state.requests[slot].arrival_ps


@inlined
def kind_of(state, slot):
    """The row of `State.calls` of a request: its client's, the last without one."""
    return np.int64(state.client[slot]) // 2 if state.client.size > 0 else state.calls.shape[0] - 1


@inner
def end_call(state, slot, done):
    """Counts a finished request's service to its job; of one that has left, it is no longer to come."""
    job, service_ps = np.int64(state.job[slot]), state.requests[slot].service_ps
    if job < 0:
        return
    of = state.jobs[job]
    turn, calls = min(s.TURNS - 1, np.int64(of[TURN])), state.calls[kind_of(state, slot)]
    of[ATTAINED] += done * service_ps
    of[LEFT] -= service_ps
    of[TURN] += 1.0
    of[CHAIN] = max(of[CHAIN], float(state.chain[slot] + state.requests[slot].generated_tokens))
    if of[LEFT] <= 0.0:
        of[END] = state.clock.now_ps
    if done:
        calls[turn, ENDED] += 1.0
        calls[turn, SERVICE] += service_ps
        calls[turn, LAST] += of[LEFT] <= 0.0
        _learn(calls, turn)


@inner
def _learn(calls, turn):
    """Renews the expected service left of jobs of a kind, from the call after `turn` ended ones on: a call's mean, and
    what is expected after it if it is not the last, which the share says of those of this number that have ended."""
    for at in range(turn, -1, -1):
        if calls[at, ENDED] > 0.0:
            after = calls[at + 1, EXPECTED] if at + 1 < s.TURNS else 0.0
            calls[at, EXPECTED] = (calls[at, SERVICE] + (calls[at, ENDED] - calls[at, LAST]) * after) / calls[at, ENDED]


@inlined
def expected_left(state, slot):
    """Service that is expected to be left of a request's job, in ps, learned by its client and by how many of its calls
    have ended; of more than any before had, what it was for the most; 0 where nothing is known."""
    calls, turn = state.calls[kind_of(state, slot)], np.int64(0)
    if state.job[slot] >= 0:
        turn = min(s.TURNS - 1, np.int64(state.jobs[state.job[slot], TURN]))
    while turn > 0 and calls[turn, ENDED] == 0.0:
        turn -= 1
    return calls[turn, EXPECTED]


# --- What comes next ------------------------------------------------------------------------------------------------
@inner
def skip_turns(state):
    """Passes over turns, which arrive when released."""
    clock = state.clock
    while clock.next_arrival < state.requests.size and state.think_ps[clock.next_arrival] >= 0:
        clock.next_arrival += 1


@inner
def take_arrival(state):
    """Returns the next request to arrive, and marks it as arrived."""
    clock, turns = state.clock, state.turns[ARRIVAL]
    slot = np.int64(clock.next_arrival)
    clock.next_arrival_ps = UNKNOWN
    if turns[0] > 0 and (slot >= state.requests.size or before(state, ARRIVAL, turns[1], slot)):
        slot = pop_turn(state, ARRIVAL)
    else:
        clock.next_arrival += 1
    clock.last_arrival = slot
    return slot


@inlined
def next_due(state):
    """The online request whose TTFT deadline passes next, or -1."""
    clock, turns, slot = state.clock, state.turns[DUE], np.int64(-1)
    if clock.next_deadline < state.deadlines.size:
        slot = np.int64(state.deadlines[clock.next_deadline])
    if turns[0] > 0 and (slot < 0 or before(state, DUE, turns[1], slot)):
        slot = np.int64(turns[1])
    return slot


@inlined
def pass_due(state, slot):
    """Passes the deadline of `next_due`."""
    if state.turns[DUE, 0] > 0 and state.turns[DUE, 1] == slot:
        pop_turn(state, DUE)
    else:
        state.clock.next_deadline += 1
