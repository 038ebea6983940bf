"""The waiting offline requests of each instance: the first ones side by side, and all in the order of their prompts.

The waiting window: a gate looks at the first `gate_window` requests far more often than they change, and to follow a
linked list is to wait for the memory at each of its links. So the window holds them in the queue's order and in the
order of their lengths.

The tree: a request's rank (State.order) is its index in a depth-first walk through the trie of all prompts, or through
the tries of prompts of like length. One bit says whether the request of that rank waits on an instance; 64 bits have
one above them that says whether any is set, and so on: next and previous are found in as many looks as there are
levels.
"""


import numpy as np

from ooco_gym.compile import inlined, inner
from ooco_gym.compile.instructions import leading_zeros, trailing_zeros
from ooco_gym.sim.state import BUCKETS

FIRST, FIRST_LENGTH, SHORTEST, SHORTEST_LENGTH, WINDOW_ROWS = range(5)  # rows of State.waiting_window


@inner
def join_window(state, instance, slot, tokens, first):
    """Adds a request that joins the queue at its head, or at its end: there, if none waits beyond the window."""
    spec, window = state.instances[instance], state.waiting_window[instance]
    size, capacity = spec.window_size, window.shape[1]
    if capacity == 0 or (size == capacity and not first):
        return
    if first and size == capacity:
        size -= 1
        _leave_order(window, window[FIRST, size], size + 1)
    index = size
    if first:
        index = 0
        open_gap(window[FIRST], 0, size)
        open_gap(window[FIRST_LENGTH], 0, size)
    window[FIRST, index], window[FIRST_LENGTH, index] = slot, tokens
    _join_order(window, slot, tokens, size, first)
    spec.window_size = size + 1


@inlined
def leave_window(state, instance, slot):
    """Takes out a request that has left the queue; the first one beyond the window, if there is one, moves up."""
    spec, window = state.instances[instance], state.waiting_window[instance]
    last, index = spec.window_size - 1, 0
    while index <= last and window[FIRST, index] != slot:
        index += 1
    if index > last:
        return
    close_gap(window[FIRST], index, last)
    close_gap(window[FIRST_LENGTH], index, last)
    _leave_order(window, slot, last + 1)
    spec.window_size = last
    if spec.offline_waiting > last:
        after = state.requests[window[FIRST, last - 1]].next if last > 0 else spec.offline_head
        join_window(state, instance, after, _tokens(state, after), False)


@inner
def rebuild_window(state, instance):
    """Rebuilds the window from the queue."""
    spec = state.instances[instance]
    spec.window_size, slot = 0, spec.offline_head
    while slot >= 0 and spec.window_size < state.waiting_window.shape[2]:
        join_window(state, instance, slot, _tokens(state, slot), False)
        slot = state.requests[slot].next


@inner
def _tokens(state, slot):
    return state.requests[slot].prompt_tokens + state.requests[slot].generated_tokens


@inlined
def _join_order(window, slot, tokens, size, first):
    """Of equals, the first in the queue goes first."""
    lengths, index = window[SHORTEST_LENGTH, :size], 0
    for other in range(lengths.size):
        index += (lengths[other] < tokens) | ((lengths[other] == tokens) & (not first))
    open_gap(window[SHORTEST], index, size)
    open_gap(window[SHORTEST_LENGTH], index, size)
    window[SHORTEST, index], window[SHORTEST_LENGTH, index] = slot, tokens


@inlined
def _leave_order(window, slot, size):
    index = 0
    while window[SHORTEST, index] != slot:
        index += 1
    close_gap(window[SHORTEST], index, size - 1)
    close_gap(window[SHORTEST_LENGTH], index, size - 1)


@inlined
def close_gap(values, index, last):
    """Moves what stands behind `index`, up to `last`, one to the window."""
    part = values[index : last + 1]  # from here on no index is negative: a processor moves many at once
    for other in range(part.size - 1):
        part[other] = part[other + 1]


@inlined
def open_gap(values, index, size):
    """Moves what stands from `index` on, of `size` entries, one back."""
    part = values[index : size + 1]
    for other in range(part.size - 1, 0, -1):
        part[other] = part[other - 1]


NONE = -1
ONE, ALL_BITS = np.uint64(1), np.uint64(0xFFFFFFFFFFFFFFFF)


def words_for(ranks: int) -> int:
    """Words of the whole tree over so many ranks."""
    total, size = 0, ranks
    while size > 1 or total == 0:
        size = -(-size // 64)
        total += size
    return total


@inner
def ordered(state):
    """Whether the waiting offline requests are kept in order."""
    return state.order.size > 0


@inner
def rank_of(state, slot):
    """A request's rank."""
    return state.order[slot]


@inner
def slot_at(state, rank):
    """The request of a rank."""
    return state.order[state.requests.size + rank]


@inner
def bucket_start(state, bucket):
    """First rank of a bucket of prompt lengths; bucket + 1 gives where it ends."""
    return state.order[2 * state.requests.size + bucket]


@inner
def bucket_of(tokens):
    """Bucket of a prompt length: b holds the lengths from 2 ** (b - 1) to 2 ** b - 1."""
    return min(BUCKETS - 1, 64 - np.int64(leading_zeros(np.uint64(tokens))))


@inner
def set_waiting(state, instance, slot, on):
    """Notes that a request waits on an instance, or does so no longer."""
    bits, index, offset, size = state.waiting[instance], np.int64(rank_of(state, slot)), 0, state.requests.size
    while True:
        size = (size + 63) // 64
        word, bit = offset + (index >> 6), ONE << np.uint64(index & 63)
        if on:
            bits[word] |= bit
        else:
            bits[word] &= ~bit
            if bits[word] != 0:
                return
        if size <= 1:
            return
        offset += size
        index >>= 6


@inner
def next_in_order(state, instance, rank):
    """The waiting offline request of the smallest rank from `rank` on, or -1."""
    bits, index, offset, size, depth = state.waiting[instance], np.int64(rank), 0, state.requests.size, 0
    if index >= size:
        return NONE
    while True:  # up, until something is set at or behind the index
        size = (size + 63) // 64
        rest = np.uint64(0)
        if index >> 6 < size:
            rest = bits[offset + (index >> 6)] & (ALL_BITS << np.uint64(index & 63))
        if rest != 0:
            index = (index >> 6 << 6) + np.int64(trailing_zeros(rest))
            break
        if size <= 1:
            return NONE
        offset += size
        index = (index >> 6) + 1
        depth += 1
    return slot_at(state, _descend(state, instance, index, depth, False))


@inner
def previous_in_order(state, instance, rank):
    """The waiting offline request of the largest rank up to `rank`, or -1."""
    bits, index, offset, size, depth = state.waiting[instance], np.int64(rank), 0, state.requests.size, 0
    index = min(index, size - 1)
    while index >= 0:
        size = (size + 63) // 64
        rest = bits[offset + (index >> 6)] & (ALL_BITS >> np.uint64(63 - (index & 63)))
        if rest != 0:
            index = (index >> 6 << 6) + 63 - np.int64(leading_zeros(rest))
            return slot_at(state, _descend(state, instance, index, depth, True))
        if size <= 1:
            return NONE
        offset += size
        index = (index >> 6) - 1
        depth += 1
    return NONE


@inner
def _descend(state, instance, index, depth, last):
    """From a set bit `depth` levels up, the rank of the first (or last) request below it."""
    bits = state.waiting[instance]
    for level in range(depth - 1, -1, -1):
        offset, size = 0, state.requests.size
        for _ in range(level):
            size = (size + 63) // 64
            offset += size
        word = bits[offset + index]
        index = index * 64 + (63 - np.int64(leading_zeros(word)) if last else np.int64(trailing_zeros(word)))
    return index
