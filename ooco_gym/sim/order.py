"""The waiting offline requests in the order of what their prompts begin with: a tree of bits over ranks.

A request's rank (State.order) is its place in a depth-first walk through the trie of all prompts, or through the tries
of prompts of like length. One bit says whether the request of that rank waits on an instance; 64 bits have one above
them that says whether any is set, and so on: next and previous are found in as many looks as there are levels.
"""

from typing import Any

import numpy as np
from numba.cpython.unsafe import numbers

from ooco_gym.compile import inner
from ooco_gym.sim.state import BUCKETS

leading_zeros: Any = numbers.leading_zeros
trailing_zeros: Any = numbers.trailing_zeros

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
    bits, place, offset, size = state.waiting[instance], np.int64(rank_of(state, slot)), 0, state.requests.size
    while True:
        size = (size + 63) // 64
        word, bit = offset + (place >> 6), ONE << np.uint64(place & 63)
        if on:
            bits[word] |= bit
        else:
            bits[word] &= ~bit
            if bits[word] != 0:
                return
        if size <= 1:
            return
        offset += size
        place >>= 6


@inner
def next_in_order(state, instance, rank):
    """The waiting offline request of the smallest rank from `rank` on, or -1."""
    bits, place, offset, size, depth = state.waiting[instance], np.int64(rank), 0, state.requests.size, 0
    if place >= size:
        return NONE
    while True:  # up, until something is set at or behind the place
        size = (size + 63) // 64
        rest = np.uint64(0)
        if place >> 6 < size:
            rest = bits[offset + (place >> 6)] & (ALL_BITS << np.uint64(place & 63))
        if rest != 0:
            place = (place >> 6 << 6) + np.int64(trailing_zeros(rest))
            break
        if size <= 1:
            return NONE
        offset += size
        place = (place >> 6) + 1
        depth += 1
    return slot_at(state, _descend(state, instance, place, depth, False))


@inner
def previous_in_order(state, instance, rank):
    """The waiting offline request of the largest rank up to `rank`, or -1."""
    bits, place, offset, size, depth = state.waiting[instance], np.int64(rank), 0, state.requests.size, 0
    place = min(place, size - 1)
    while place >= 0:
        size = (size + 63) // 64
        rest = bits[offset + (place >> 6)] & (ALL_BITS >> np.uint64(63 - (place & 63)))
        if rest != 0:
            place = (place >> 6 << 6) + 63 - np.int64(leading_zeros(rest))
            return slot_at(state, _descend(state, instance, place, depth, True))
        if size <= 1:
            return NONE
        offset += size
        place = (place >> 6) - 1
        depth += 1
    return NONE


@inner
def _descend(state, instance, place, depth, last):
    """From a set bit `depth` levels up, the rank of the first (or last) request below it."""
    bits = state.waiting[instance]
    for level in range(depth - 1, -1, -1):
        offset, size = 0, state.requests.size
        for _ in range(level):
            size = (size + 63) // 64
            offset += size
        word = bits[offset + place]
        place = place * 64 + (63 - np.int64(leading_zeros(word)) if last else np.int64(trailing_zeros(word)))
    return place
