"""The front of each instance's queue of offline requests, side by side: what a gate looks at.

A gate looks at the first `gate_window` requests far more often than they change, and to follow a linked list is to wait
for the memory at each of its links. So they are kept in the queue's order and in the order of their lengths.
"""

from ooco_gym.compile import inlined, inner

FIRST, FIRST_LENGTH, SHORTEST, SHORTEST_LENGTH, FRONT_ROWS = range(5)  # rows of State.front


@inlined
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
    if first:
        place = 0
        open_gap(front[FIRST], 0, size)
        open_gap(front[FIRST_LENGTH], 0, size)
    front[FIRST, place], front[FIRST_LENGTH, place] = slot, tokens
    _join_order(front, slot, tokens, size, first)
    spec.front_size = size + 1


@inlined
def leave_front(state, instance, slot):
    """Takes out a request that has left the queue; the first one beyond the front, if there is one, moves up."""
    spec, front = state.instances[instance], state.front[instance]
    last, place = spec.front_size - 1, 0
    while place <= last and front[FIRST, place] != slot:
        place += 1
    if place > last:
        return
    close_gap(front[FIRST], place, last)
    close_gap(front[FIRST_LENGTH], place, last)
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


@inlined
def _join_order(front, slot, tokens, size, first):
    """Of equals, who is first in the queue goes first."""
    lengths, place = front[SHORTEST_LENGTH, :size], 0
    for other in range(lengths.size):
        place += (lengths[other] < tokens) | ((lengths[other] == tokens) & (not first))
    open_gap(front[SHORTEST], place, size)
    open_gap(front[SHORTEST_LENGTH], place, size)
    front[SHORTEST, place], front[SHORTEST_LENGTH, place] = slot, tokens


@inlined
def _leave_order(front, slot, size):
    place = 0
    while front[SHORTEST, place] != slot:
        place += 1
    close_gap(front[SHORTEST], place, size - 1)
    close_gap(front[SHORTEST_LENGTH], place, size - 1)


@inlined
def close_gap(values, place, last):
    """Moves what stands behind `place`, up to `last`, one to the front."""
    part = values[place : last + 1]  # from here on no place is negative: a processor moves many at once
    for other in range(part.size - 1):
        part[other] = part[other + 1]


@inlined
def open_gap(values, place, size):
    """Moves what stands from `place` on, of `size` entries, one back."""
    part = values[place : size + 1]
    for other in range(part.size - 1, 0, -1):
        part[other] = part[other - 1]
