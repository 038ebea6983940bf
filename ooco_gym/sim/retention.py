"""Eviction orders of the prefix cache other than LRU (a cluster's `retention`): free blocks by
value.

A block's value is set when no request reads it any more, and the block of the lowest value is taken
first; ties: the first freed, so that a request's last block goes before its first. With a rule
(`policy.decisions.RETAIN`) it is the time of last use plus what the rule says of the request that
used it. With `belady` it is how soon the content will be used again, which no engine can know: a
bound.

With `ttl` the order is LRU, but a finished request's blocks are held for a time before they count
as free.

State.heaps has a binary heap for each instance: row 0 has its size and the number of blocks ever
put there, row i the i-th block of the heap, its value and its number. BLOCK.previous is a block's
index in it. With `ttl` row i has the time until which block i is held.
"""

from typing import NamedTuple

import numpy as np

from ooco_gym.compile import inlined, inner
from ooco_gym.sim import state as s
from ooco_gym.workload import Trace
from ooco_gym.workload.context_names import ContextNames, name_counts, walk
from ooco_gym.workload.keyed import keyed_generator

LRU, TTL, S3FIFO, TASK, RULED, BELADY = range(6)  # values of `Policy.keeps`
LONGEST_US = np.int64(1_000_000_000_000)  # a rule's largest answer, eleven days
TURN, FRESH, HINT, KNOWN = range(4)  # columns of State.retained, of each request, if a rule is asked (`history`)
HEAPED = s.LEVELS  # BLOCK.level of a block in the heap
PINNED = s.LEVELS - 1  # BLOCK.level of a block held for a time (`ttl`), in order of its end
WORTH, NUMBER, HELD = range(3)  # columns of State.heaps


class Retention(NamedTuple):
    """A cluster's order of eviction, how long `ttl` holds blocks, in seconds, and the share of wrong hints on a
    session's end (None: clients give none)."""

    order: int = LRU
    ttl_s: float = 0.0
    hint_error: float | None = None


VLLMS_ORDER = Retention()


@inlined
def by_worth(state):
    """Whether free blocks with content wait in the heap, not in a queue."""
    return state.config.retention >= RULED


# --- The heap -------------------------------------------------------------------------------------------------------
@inner
def _goes_before(heap, one, other):
    return heap[one, WORTH] < heap[other, WORTH] or (
        heap[one, WORTH] == heap[other, WORTH] and heap[one, NUMBER] < heap[other, NUMBER])


@inner
def _exchange(state, instance, one, other):
    heap, blocks = state.heaps[instance], state.blocks[instance]
    for column in range(3):
        kept = heap[one, column]
        heap[one, column] = heap[other, column]
        heap[other, column] = kept
    blocks[heap[one, HELD]].previous = one
    blocks[heap[other, HELD]].previous = other


@inner
def _settle(state, instance, place):
    """Moves a block in the heap to its correct position."""
    heap = state.heaps[instance]
    size = heap[0, WORTH]
    while place > 1 and _goes_before(heap, place, place // 2):
        _exchange(state, instance, place, place // 2)
        place //= 2
    while 2 * place <= size:
        child = 2 * place
        if child < size and _goes_before(heap, child + 1, child):
            child += 1
        if not _goes_before(heap, child, place):
            break
        _exchange(state, instance, place, child)
        place = child


@inner
def push_heap(state, instance, block, worth):
    """Puts an unread block with content into the heap."""
    heap, one = state.heaps[instance], state.blocks[instance, block]
    heap[0, WORTH] += 1
    heap[0, NUMBER] += 1
    place = heap[0, WORTH]
    heap[place, WORTH], heap[place, NUMBER], heap[place, HELD] = worth, heap[0, NUMBER], block
    one.level, one.previous = HEAPED, place
    _settle(state, instance, place)


@inner
def unlink_heap(state, instance, block):
    """Removes a block from the heap."""
    heap, place = state.heaps[instance], np.int64(state.blocks[instance, block].previous)
    last = heap[0, WORTH]
    if place < last:
        _exchange(state, instance, place, last)
    heap[0, WORTH] = last - 1
    if place < last:
        _settle(state, instance, place)


@inner
def least_worth(state, instance):
    """The block of the lowest value; the heap is not empty."""
    return state.heaps[instance, 1, HELD]


# --- Value of a block ------------------------------------------------------------------------------------------
@inlined
def worth_for(state, answer):
    """Returns the value of a block that a rule keeps `answer` microseconds longer than its last use says."""
    state.config.retain_wrong += answer < -LONGEST_US or answer > LONGEST_US
    return state.clock.now_ps + min(max(answer, -LONGEST_US), LONGEST_US) * np.int64(1_000_000)


@inner
def worth_of(state, slot, name, wanted):
    """Returns the value of a block whose last user is request `slot`; `name` is its content's name, or
    -1; `wanted`: the request will come back for it."""
    if wanted:
        return -np.int64(slot)
    return -_next_use(state, name) if name >= 0 else -np.int64(state.requests.size)


@inner
def _next_use(state, name):
    """The first request (slot) that will look for a name; the number of requests if there is none.

    State.retained has for each name an index into itself: the requests with that name in order,
    then the number of all requests. The index moves past admitted requests.
    """
    place = state.retained[name]
    while state.retained[place] < state.requests.size:
        request = state.requests[state.retained[place]]
        if request.cached_tokens < 0 and request.status not in (s.REJECTED, s.ABORTED):
            break
        place += 1
    state.retained[name] = place
    return state.retained[place]


# --- Before the episode ---------------------------------------------------------------------------------------------
def retained_size(retention: int, trace: Trace, names: ContextNames | None, places: int) -> int:
    """Number of entries of State.retained; `places`: for ghosts of all instances."""
    if retention == S3FIFO:
        return 2 * places
    if retention == RULED:
        return KNOWN * len(trace)
    if retention != BELADY or names is None:
        return 0
    return 2 * len(np.unique(names.values)) + int(name_counts(trace, names).sum())


def history(trace: Trace, names: ContextNames | None, hint_error: float | None, seed: int) -> np.ndarray:
    """Returns State.retained for a rule: each request's turn, its new tokens, and its client's hint.

    Its turn is one more than the number of earlier prompts that it begins with, in whole hashes.
    New tokens are those behind the hashes that earlier prompts have. The hint is 1 if the client says
    that the session ends with this request, 0 if it says that it goes on, each wrong with probability
    `hint_error`; -1 without hints. A session goes on if a later prompt begins with this one.
    """
    next_of = np.full(len(trace), -1)
    turn, fresh = np.ones(len(trace), np.int64), trace.prompt_tokens.astype(np.int64)
    if names is not None:
        known = set[int]()
        for slot, (own, before) in enumerate(walk(trace, names)):
            found = sum(name in known for name in own)  # the known names come first
            turn[slot] += len(before)
            if before:
                next_of[before[-1]] = slot
            fresh[slot] = max(0, fresh[slot] - found * trace.block_tokens)
            known.update(own)
    hint = np.full(len(trace), -1)
    if hint_error is not None:
        wrong = keyed_generator(seed, "hints").random(len(trace)) < hint_error
        hint = ((next_of < 0) != wrong).astype(np.int64)
    return np.stack([turn, fresh, hint], axis=1).ravel()


def next_uses(trace: Trace, names: ContextNames, ids: np.ndarray) -> np.ndarray:
    """Returns State.retained for `belady` (`_next_use`), from the dense number of each of
    `names.values`."""
    n, distinct = len(trace), int(ids.max(initial=-1)) + 1
    counts = name_counts(trace, names)
    slots = np.repeat(np.arange(n), counts)
    inside = np.arange(len(slots)) - np.repeat(np.cumsum(counts) - counts, counts)
    own = ids[names.first[slots] + inside]
    order = np.argsort(own, kind="stable")
    uses = np.bincount(own, minlength=distinct)
    begins = distinct + np.cumsum(uses + 1) - (uses + 1)
    retained = np.full(2 * distinct + len(slots), n, np.int64)
    retained[:distinct] = begins
    retained[distinct + np.arange(len(slots)) + own[order]] = slots[order]
    return retained
