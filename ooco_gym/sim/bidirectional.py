"""KV blocks that an online and an offline request share, filled from both ends (BROS, arXiv
2504.09590, section 5).

A block has at most one online owner, whose slots grow from the left, and at most one offline owner,
whose slots grow from the right. An offline request takes blocks without an offline owner, those
with the most empty slots first. An online request takes a free block, else the block of only an
offline request with the most empty slots. Where the two meet, the online request's next token
overwrites the offline one's last: only that slot goes to host memory (lazy checkpointing), and the
block is preempted until its offline owner is scheduled again and has its slots back.

Choices that the paper leaves open: A slot returns to its place unless the online owner has it by
then, else to the offline request's next slot; online slots never move. A block whose offline slots
all went to the host stays its offline owner's until they return. Among blocks with equally many
empty slots the latest one is taken.

A row of State.pair_lists holds the first block of each list (by kind and empty slots), then two
sums: blocks of only offline requests, and empty slots in blocks of only online requests.
State.owned has a request's first block, last block and slots.
"""

from __future__ import annotations

import numpy as np

from ooco_gym.compile import inner
from ooco_gym.sim.state import State

NONE = -1
FREE, OFFLINE_ONLY, ONLINE_ONLY, SHARED = 0, 1, 2, 3  # kinds of blocks; SHARED ones are in no list
FIRST, LAST, SLOTS = 0, 1, 2  # columns of State.owned
OWN_BLOCKS = 2  # value of `bidirectional`: offline requests do not join blocks of online ones


@inner
def paired(state):
    """Whether blocks have two owners, and are not only counted."""
    return state.pairs.shape[1] > 0


# --- Lists of blocks by kind and by empty slots ---------------------------------------------------------------------
@inner
def _list_place(state, kind, empty):
    return kind * (state.config.block_tokens + 1) + empty


@inner
def _sum_place(state, kind):
    """Index of the sum of blocks of only offline requests, or of empty slots beside online ones."""
    return 3 * (state.config.block_tokens + 1) + (0 if kind == OFFLINE_ONLY else 1)


@inner
def _kind(one):
    if one.online < 0:
        return FREE if one.offline < 0 else OFFLINE_ONLY
    return ONLINE_ONLY if one.offline < 0 else SHARED


@inner
def empty_slots(state, instance, block):
    """Number of empty slots of a block."""
    one = state.pairs[instance, block]
    return state.config.block_tokens - one.online_used - one.offline_used


@inner
def _note(state, instance, kind, empty, change):
    lists = state.pair_lists[instance]
    if kind == OFFLINE_ONLY:
        lists[_sum_place(state, OFFLINE_ONLY)] += change
    elif kind == ONLINE_ONLY:
        lists[_sum_place(state, ONLINE_ONLY)] += change * empty


@inner
def _unlist(state, instance, block):
    """Removes a block, unchanged so far, from its list."""
    pairs, lists = state.pairs[instance], state.pair_lists[instance]
    one = pairs[block]
    kind = _kind(one)
    if kind == SHARED:
        return
    empty = empty_slots(state, instance, block)
    _note(state, instance, kind, empty, -1)
    if one.before < 0:
        lists[_list_place(state, kind, empty)] = one.after
    else:
        pairs[one.before].after = one.after
    if one.after >= 0:
        pairs[one.after].before = one.before


@inner
def _list(state, instance, block):
    """Puts a block at the front of its present list."""
    pairs, lists = state.pairs[instance], state.pair_lists[instance]
    kind = _kind(pairs[block])
    if kind == SHARED:
        return
    empty = empty_slots(state, instance, block)
    _note(state, instance, kind, empty, 1)
    index = _list_place(state, kind, empty)
    head = lists[index]
    pairs[block].before = NONE
    pairs[block].after = head
    if head >= 0:
        pairs[head].before = block
    lists[index] = block


@inner
def _emptiest(state, instance, kind):
    """The first block of a kind with the most empty slots, or -1."""
    lists = state.pair_lists[instance]
    for empty in range(state.config.block_tokens, -1, -1):
        block = lists[_list_place(state, kind, empty)]
        if block >= 0:
            return block
    return NONE


# --- FindBlock and FindPreemptBlock (5.2) ---------------------------------------------------------------------------
@inner
def find_block(state, instance):
    """The block where an offline request continues: free, else the emptiest of only an online one;
    or -1."""
    block = _emptiest(state, instance, FREE)
    if block < 0 and state.config.bidirectional != OWN_BLOCKS:
        block = _emptiest(state, instance, ONLINE_ONLY)
        if block >= 0 and empty_slots(state, instance, block) == 0:
            return NONE
    return block


@inner
def find_preempt_block(state, instance):
    """The block where an online request continues: free, else the emptiest of only an offline one;
    or -1."""
    block = _emptiest(state, instance, FREE)
    return block if block >= 0 else _emptiest(state, instance, OFFLINE_ONLY)


# --- What fits ------------------------------------------------------------------------------------------------------
@inner
def available(state, instance, online):
    """Blocks that an online request could take on an instance, or slots for an offline one, beyond
    its own."""
    spec, lists = state.instances[instance], state.pair_lists[instance]
    free = spec.free_blocks
    if online:  # overwritten slots must fit host memory
        return free + min(np.int64(lists[_sum_place(state, OFFLINE_ONLY)]), max(np.int64(0), spec.host_free_blocks))
    beside = 0 if state.config.bidirectional == OWN_BLOCKS else lists[_sum_place(state, ONLINE_ONLY)]
    return free * state.config.block_tokens + beside


@inner
def pair_need(state, instance, slot, reach):
    """Memory that a request needs beyond its own blocks for `reach` slots: blocks (online), or
    slots (offline)."""
    size, more = state.config.block_tokens, reach - state.owned[slot, SLOTS]
    last = state.owned[slot, LAST]
    if more <= 0:
        return np.int64(0)
    if state.requests[slot].urgent:
        capacity = size - state.pairs[instance, last].online_used if last >= 0 else 0
        return max(np.int64(0), (more - capacity + size - 1) // size)
    if last >= 0:
        more -= _room_at_home(state, instance, slot)
    return max(np.int64(0), np.int64(more))


@inner
def _room_at_home(state, instance, slot):
    """Slots that an offline request could fill in its own blocks: its lost ones, and the rest of
    the last block."""
    pairs, block = state.pairs[instance], state.owned[slot, LAST]
    if state.requests[slot].host_tokens == 0:
        return empty_slots(state, instance, block)
    capacity, rest, block = 0, 0, state.owned[slot, FIRST]
    while block >= 0:
        empty = empty_slots(state, instance, block)
        back = min(empty, pairs[block].preempted)
        capacity += back
        if pairs[block].offline_used + back > 0:  # else the online request gets it (`_restore`)
            rest = empty - back
        block = pairs[block].offline_next
    return capacity + rest


@inner
def pair_fits(state, instance, slot, reach):
    """Whether a request can have `reach` slots."""
    online = state.requests[slot].urgent
    return pair_need(state, instance, slot, reach) <= available(state, instance, online)


# --- Taking and letting go ------------------------------------------------------------------------------------------
@inner
def pair_grow(state, instance, slot, reach):
    """Makes a request own `reach` slots, which fit (`pair_fits`). Returns the number of free blocks
    taken."""
    if state.requests[slot].urgent:
        return _grow_online(state, instance, slot, reach)
    return _grow_offline(state, instance, slot, reach)


@inner
def _grow_online(state, instance, slot, reach):
    size, owned, taken = state.config.block_tokens, state.owned[slot], 0
    while owned[SLOTS] < reach:
        block = owned[LAST]
        if block < 0 or state.pairs[instance, block].online_used == size:
            block = find_preempt_block(state, instance)
            taken += _adopt(state, instance, slot, block)
        more = min(reach - owned[SLOTS], size - state.pairs[instance, block].online_used)
        _unlist(state, instance, block)
        state.pairs[instance, block].online_used += more
        owned[SLOTS] += more
        over = -empty_slots(state, instance, block)
        if over > 0:
            _checkpoint(state, instance, block, over)
        _list(state, instance, block)
    return taken


@inner
def _grow_offline(state, instance, slot, reach):
    owned, taken = state.owned[slot], 0
    if state.requests[slot].host_tokens > 0:
        _restore(state, instance, slot)
    while owned[SLOTS] < reach:
        block = owned[LAST]
        if block < 0 or empty_slots(state, instance, block) == 0:
            block = find_block(state, instance)
            taken += _adopt(state, instance, slot, block)
        more = min(reach - owned[SLOTS], empty_slots(state, instance, block))
        _fill_offline(state, instance, slot, block, more)
    return taken


@inner
def _fill_offline(state, instance, slot, block, more):
    _unlist(state, instance, block)
    state.pairs[instance, block].offline_used += more
    state.owned[slot, SLOTS] += more
    _list(state, instance, block)


@inner
def _adopt(state, instance, slot, block):
    """Makes a request the owner of its class's end of a block. Returns whether the block was free."""
    pairs, owned = state.pairs[instance], state.owned[slot]
    was_free = _kind(pairs[block]) == FREE
    _unlist(state, instance, block)
    last = owned[LAST]
    if state.requests[slot].urgent:
        pairs[block].online = slot
        pairs[block].online_next = NONE
        if last >= 0:
            pairs[last].online_next = block
    else:
        pairs[block].offline = slot
        pairs[block].offline_next = NONE
        if last >= 0:
            pairs[last].offline_next = block
    if last < 0:
        owned[FIRST] = block
    owned[LAST] = block
    state.requests[slot].blocks += 1
    _list(state, instance, block)
    return 1 if was_free else 0


@inner
def _checkpoint(state, instance, block, tokens):
    """Copies the offline owner's slots to host memory before they are overwritten (lazy
    checkpointing)."""
    one = state.pairs[instance, block]
    one.offline_used -= tokens
    one.preempted += tokens
    state.owned[one.offline, SLOTS] -= tokens
    state.instances[instance].swap_tokens += tokens
    change_host(state, instance, one.offline, tokens)


@inner
def change_host(state, instance, slot, tokens):
    """Changes the number of a request's tokens in host memory, and the free space there."""
    request, size = state.requests[slot], state.config.block_tokens
    held = (request.host_tokens + size - 1) // size
    request.host_tokens += tokens
    state.instances[instance].host_free_blocks -= (request.host_tokens + size - 1) // size - held


@inner
def _restore(state, instance, slot):
    """Swaps an offline request's lost slots back to their places if empty; the rest goes elsewhere.

    The request gives up blocks in which it has nothing left.
    """
    pairs, owned = state.pairs[instance], state.owned[slot]
    block, before = owned[FIRST], NONE
    while block >= 0:
        after = pairs[block].offline_next
        if pairs[block].preempted > 0:
            back = min(empty_slots(state, instance, block), pairs[block].preempted)
            pairs[block].preempted = 0
            _fill_offline(state, instance, slot, block, back)
        if pairs[block].offline_used == 0:
            _abandon(state, instance, slot, block, before)
        else:
            before = block
        block = after
    state.instances[instance].swap_tokens += state.requests[slot].host_tokens
    change_host(state, instance, slot, -state.requests[slot].host_tokens)


@inner
def _abandon(state, instance, slot, block, before):
    """Leaves a block to the online request that fills it; `before` is the preceding block in the
    chain."""
    pairs, owned = state.pairs[instance], state.owned[slot]
    _unlist(state, instance, block)
    after = pairs[block].offline_next
    if before < 0:
        owned[FIRST] = after
    else:
        pairs[before].offline_next = after
    if owned[LAST] == block:
        owned[LAST] = before
    pairs[block].offline = NONE
    state.requests[slot].blocks -= 1
    _list(state, instance, block)


@inner
def pair_release(state, instance, slot):
    """Releases all slots of a request. Returns the number of blocks that became free."""
    pairs, owned, free = state.pairs[instance], state.owned[slot], 0
    block, online = owned[FIRST], state.requests[slot].urgent
    while block >= 0:
        after = pairs[block].online_next if online else pairs[block].offline_next
        _unlist(state, instance, block)
        if online:
            pairs[block].online, pairs[block].online_used = NONE, 0
        else:
            pairs[block].offline, pairs[block].offline_used, pairs[block].preempted = NONE, 0, 0
        free += _kind(pairs[block]) == FREE
        _list(state, instance, block)
        block = after
    owned[FIRST], owned[LAST], owned[SLOTS] = NONE, NONE, 0
    return free


# --- Initial state --------------------------------------------------------------------------------------
def pair_entries(block_tokens: int) -> int:
    """Number of entries of a row of State.pair_lists."""
    return 3 * (block_tokens + 1) + 2


def fill_pairs(state: State) -> None:
    """Makes all blocks of all instances free, the last one first in the list."""
    size = int(state.config.block_tokens)
    state.owned[:, FIRST], state.owned[:, LAST] = NONE, NONE
    state.pair_lists[:, : 3 * (size + 1)] = NONE
    for instance, spec in enumerate(state.instances):
        total, pairs = int(spec["total_blocks"]), state.pairs[instance]
        for name in ("online", "offline", "online_next", "offline_next", "before", "after"):
            pairs[name] = NONE
        pairs["after"][1:total] = np.arange(total - 1)
        pairs["before"][: max(0, total - 1)] = np.arange(1, total)
        state.pair_lists[instance, size] = total - 1
