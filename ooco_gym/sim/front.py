"""The front of each instance's queue of offline requests, side by side: what a gate looks at.

A gate looks at the first `gate_window` requests far more often than they change, and to follow a linked list is to wait
for the memory at each of its links. So they are kept in the queue's order and in the order of their lengths.
"""

from ooco_gym.compile import inner

FIRST, FIRST_LENGTH, SHORTEST, SHORTEST_LENGTH, FRONT_ROWS = range(5)  # rows of State.front


@inner
def join_front(state, instance, slot, tokens, first):
    """Adds a request that joins the queue at its head, or at its end: there, if nobody waits beyond the front."""
    spec, front = state.instances[instance], state.front[instance]
    size, room = spec.front_size, front.shape[1]
    if room == 0 or (size == room and not first):
        return
    if first and size == room:
        size -= 1
        _leave_order(front, front[FIRST, size], size + 1)
    place = size
    while first and place > 0:
        front[FIRST, place], front[FIRST_LENGTH, place] = front[FIRST, place - 1], front[FIRST_LENGTH, place - 1]
        place -= 1
    front[FIRST, place], front[FIRST_LENGTH, place] = slot, tokens
    _join_order(front, slot, tokens, size, first)
    spec.front_size = size + 1


@inner
def leave_front(state, instance, slot):
    """Takes out a request that has left the queue; the first one beyond the front, if there is one, moves up."""
    spec, front = state.instances[instance], state.front[instance]
    last, place = spec.front_size - 1, 0
    while place <= last and front[FIRST, place] != slot:
        place += 1
    if place > last:
        return
    for other in range(place, last):
        front[FIRST, other], front[FIRST_LENGTH, other] = front[FIRST, other + 1], front[FIRST_LENGTH, other + 1]
    _leave_order(front, slot, last + 1)
    spec.front_size = last
    if spec.offline_waiting > last:
        after = state.requests[front[FIRST, last - 1]].next if last > 0 else spec.offline_head
        join_front(state, instance, after, _tokens(state, after), False)


@inner
def lay_front(state, instance):
    """Lays the front anew, as the queue is."""
    spec = state.instances[instance]
    spec.front_size, slot = 0, spec.offline_head
    while slot >= 0 and spec.front_size < state.front.shape[2]:
        join_front(state, instance, slot, _tokens(state, slot), False)
        slot = state.requests[slot].next


@inner
def _tokens(state, slot):
    return state.requests[slot].prompt_tokens + state.requests[slot].generated_tokens


@inner
def _join_order(front, slot, tokens, size, first):
    """Of equals, who is first in the queue goes first."""
    place = size
    while place > 0 and (front[SHORTEST_LENGTH, place - 1] > tokens
                         or (first and front[SHORTEST_LENGTH, place - 1] == tokens)):
        front[SHORTEST, place] = front[SHORTEST, place - 1]
        front[SHORTEST_LENGTH, place] = front[SHORTEST_LENGTH, place - 1]
        place -= 1
    front[SHORTEST, place], front[SHORTEST_LENGTH, place] = slot, tokens


@inner
def _leave_order(front, slot, size):
    place = 0
    while front[SHORTEST, place] != slot:
        place += 1
    for other in range(place, size - 1):
        front[SHORTEST, other] = front[SHORTEST, other + 1]
        front[SHORTEST_LENGTH, other] = front[SHORTEST_LENGTH, other + 1]
