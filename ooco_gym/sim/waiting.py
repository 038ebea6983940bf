"""Waiting offline requests of each instance: a window of the first ones, and a tree in the order of
prompts.

The waiting window: a gate reads the first `gate_window` requests far more often than they change,
and following a linked list waits for memory at each link. So the window holds them contiguously in
queue order and in order of length.

The tree: a request's rank (State.order) is its index in a depth-first walk through the trie of all
prompts, or through tries of prompts of similar length. One bit tells whether the request of that
rank waits on an instance; above 64 bits, one bit tells whether any is set, and so on. Finding next
and previous takes one look per level.
"""


import numpy as np

from ooco_gym.compile import inlined, inner
from ooco_gym.compile.instructions import leading_zeros, trailing_zeros
from ooco_gym.sim.state import BUCKETS

FIRST, FIRST_LENGTH, SHORTEST, SHORTEST_LENGTH, WINDOW_ROWS = range(5)  # rows of State.waiting_window


@inner
def join_window(state, instance, slot, tokens, first):
    """Adds a request that joins the queue at its head, or at its end if none waits beyond the
    window."""
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
    """Removes a request that has left the queue; the first one beyond the window, if any, moves up."""
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
    """Inserts into the order by length; ties: queue order."""
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
    """Moves the entries behind `index`, up to `last`, one forward."""
    part = values[index : last + 1]  # no index is negative from here on, which allows vector code
    for other in range(part.size - 1):
        part[other] = part[other + 1]


@inlined
def open_gap(values, index, size):
    """Moves the entries from `index` on, of `size`, one back."""
    part = values[index : size + 1]
    for other in range(part.size - 1, 0, -1):
        part[other] = part[other - 1]


NONE = -1
ONE, ALL_BITS = np.uint64(1), np.uint64(0xFFFFFFFFFFFFFFFF)


def words_for(ranks: int) -> int:
    """Number of words of a tree over `ranks` ranks."""
    total, size = 0, ranks
    while size > 1 or total == 0:
        size = -(-size // 64)
        total += size
    return total


@inner
def ordered(state):
    """Whether waiting offline requests are kept in order."""
    return state.order.size > 0


@inner
def rank_of(state, slot):
    return state.order[slot]


@inner
def slot_at(state, rank):
    return state.order[state.requests.size + rank]


@inner
def bucket_start(state, bucket):
    """First rank of a bucket of prompt lengths; that of bucket + 1 is its end."""
    return state.order[2 * state.requests.size + bucket]


@inner
def bucket_of(tokens):
    """Bucket of a prompt length: b has lengths 2 ** (b - 1) to 2 ** b - 1."""
    return min(BUCKETS - 1, 64 - np.int64(leading_zeros(np.uint64(tokens))))


@inner
def set_waiting(state, instance, slot, on):
    """Sets whether a request waits on an instance."""
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
    """The waiting offline request with the smallest rank from `rank` on, or -1."""
    bits, index, offset, size, depth = state.waiting[instance], np.int64(rank), 0, state.requests.size, 0
    if index >= size:
        return NONE
    while True:  # up, until a bit is set at or behind the index
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
    """The waiting offline request with the largest rank up to `rank`, or -1."""
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
    """Rank of the first (or last) request below a set bit `depth` levels up."""
    bits = state.waiting[instance]
    for level in range(depth - 1, -1, -1):
        offset, size = 0, state.requests.size
        for _ in range(level):
            size = (size + 63) // 64
            offset += size
        word = bits[offset + index]
        index = index * 64 + (63 - np.int64(leading_zeros(word)) if last else np.int64(trailing_zeros(word)))
    return index
