"""Tracked KV blocks: which request reads which block, and the contents of free blocks.

Used if a policy has prefix caching; otherwise blocks are only counted. It follows vLLM's block
pool: a full block's key covers all tokens up to its end, a starting request takes its longest run
of cached blocks, and a block that no request reads keeps its content until it is taken. Empty
blocks are taken first, the latest first; then others in the order of release, each request's last
block before its first (as in vLLM 0.24 and newer; before, empty blocks waited in the same order).
With `kv_priority=task` (Echo 4.2) the queue is split into levels by the content's future use. A
cluster's `retention` has other orders for blocks with content (`sim.retention`).

With a cluster's `kv_offloading_gib` host memory is a second tier, as in vLLM's offloading
connector: a request's computed blocks are stored there too, under the same keys, and a starting
request continues there where the device's run ends. Its blocks have their own rows of State.blocks
and State.kv, and one queue, as none is read in place.

A row of State.kv holds in order the index of keys (a hash table of blocks + 1, linear probing),
first and last block of each level's queue, the free block tables, and the block tables.
"""

import numpy as np

from ooco_gym.compile import inlined, inner
from ooco_gym.sim.engine_versions import FREED_IN_ORDER
from ooco_gym.sim.free_queue import NONE, push, queue_index, unlink
from ooco_gym.sim.queues import add_task
from ooco_gym.sim.retention import (
    BELADY,
    PINNED,
    RULED,
    S3FIFO,
    TTL,
    WORTH,
    by_worth,
    least_worth,
    push_heap,
    unlink_heap,
    worth_for,
    worth_of,
)
from ooco_gym.sim.s3fifo import enter_fifo, fifo_of, fifo_victim, leave_fifo, use_again
from ooco_gym.sim.state import ASK, LEVELS, NEVER, RETAIN_FOR, View, rule_at

FINISHED_OFFLINE, FINISHED_ONLINE = 0, 1  # levels of content that no known request wants


# --- Offsets in a row of State.kv ------------------------------------------------------------------------------------
@inner
def _spare_index(state):
    return state.config.index_size + 2 * LEVELS


@inner
def _table_index(state, row):
    return state.config.index_size + 2 * LEVELS + state.config.block_tables + row * state.config.blocks_per_table


@inner
def tracked(state):
    """Whether blocks are tracked one by one, and not only counted."""
    return state.blocks.shape[1] > 0


# --- Keys -----------------------------------------------------------------------------------------------------------
@inner
def hash_index(state, slot, block):
    """Index in State.hash_ids of the name of the prefix that ends with a request's `block`; -1 if
    no other request is known to share it."""
    end = (block + 1) * state.config.block_tokens
    if state.hash_ids.size == 0 or end > state.hash_ids[state.requests.size + slot]:
        return -1
    return state.hash_ids[slot] + (end - 1) // state.config.hash_tokens


@inlined
def prompt_names(state, slot):
    """(Index in State.hash_ids of a prompt's first name, number of its names); (0, 0) if it has
    none."""
    if state.hash_ids.size == 0:
        return np.int64(0), np.int64(0)
    tokens = min(np.int64(state.requests[slot].prompt_tokens), np.int64(state.hash_ids[state.requests.size + slot]))
    return np.int64(state.hash_ids[slot]), -(-tokens // state.config.hash_tokens)


@inner
def key_of(state, slot, block):
    """Key of a request's full block, never 0: equal for equal tokens from the start of the prompt."""
    index = hash_index(state, slot, block)
    if index < 0:
        return -((np.int64(slot) << 24) | block) - 1
    size, span = state.config.block_tokens, state.config.hash_tokens
    first = (index - state.hash_ids[slot]) * span // size
    return np.int64(state.hash_ids[index]) * (span // size + 2) + (block - first) + 1


# --- The index: maps a key to the first block that holds it ---------------------------------------------------------
@inner
def _home(state, key):
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    return np.int64(mixed & np.uint64(state.config.index_size - 1))


@inner
def _probe(state, instance, key):
    """Position of a key in the index, or of the empty entry for it."""
    index, last, kv = _home(state, key), state.config.index_size - 1, state.kv[instance]
    while kv[index] > 0 and state.blocks[instance, kv[index] - 1].key != key:
        index = (index + 1) & last
    return index


@inner
def get_cached_block(state, instance, key):
    """The first block that holds the content of `key`, or -1."""
    return state.kv[instance, _probe(state, instance, key)] - 1


@inner
def _insert(state, instance, block, key):
    blocks, kv = state.blocks[instance], state.kv[instance]
    index = _probe(state, instance, key)
    blocks[block].key = key
    blocks[block].twin = NONE
    if state.config.retention == S3FIFO:
        enter_fifo(state, instance, block, key)
    if kv[index] == 0:
        kv[index] = block + 1
        return
    last = kv[index] - 1
    while blocks[last].twin >= 0:
        last = blocks[last].twin
    blocks[last].twin = block


@inner
def _forget(state, instance, block):
    """Removes a block's content from the index."""
    blocks, kv = state.blocks[instance], state.kv[instance]
    key = blocks[block].key
    if key == 0:
        return
    if state.config.retention == S3FIFO:
        leave_fifo(state, instance, block)
    index = _probe(state, instance, key)
    first, after = kv[index] - 1, blocks[block].twin
    blocks[block].key = 0
    blocks[block].twin = NONE
    if first != block:
        while blocks[first].twin != block:
            first = blocks[first].twin
        blocks[first].twin = after
    elif after >= 0:
        kv[index] = after + 1
    else:
        _close_gap(state, instance, index)


@inner
def _close_gap(state, instance, index):
    """Empties an entry; entries behind it that belong further ahead move up, so that probing still
    finds them."""
    kv, last = state.kv[instance], state.config.index_size - 1
    kv[index] = 0
    ahead = (index + 1) & last
    while kv[ahead] > 0:
        home = _home(state, state.blocks[instance, kv[ahead] - 1].key)
        if ((ahead - home) & last) >= ((ahead - index) & last):
            kv[index] = kv[ahead]
            kv[ahead] = 0
            index = ahead
        ahead = (ahead + 1) & last


# --- Free blocks ----------------------------------------------------------------------------------------------------
@inner
def _get_new_block(state, instance):
    """Takes the free block with the least valuable content, which is forgotten."""
    kv, level = state.kv[instance], 0
    if by_worth(state) and kv[queue_index(state, 0)] < 0:
        block = least_worth(state, instance)
    elif state.config.retention == S3FIFO and kv[queue_index(state, 0)] < 0:
        block = fifo_victim(state, instance)
    else:
        while kv[queue_index(state, level)] < 0:  # callers have checked that there is one
            level += 1
        block = kv[queue_index(state, level)]
    unlink(state, instance, block)
    _forget(state, instance, block)
    return block


@inner
def _level_of(state, instance, block, hash_id):
    """Queue of a block with content: one for all (LRU), S3-FIFO's two, or by future use (Echo 4.2)."""
    if state.config.retention == S3FIFO:
        return fifo_of(state, instance, block)
    if state.config.kv_priority == 0:
        return 0
    wanted = state.reuse[hash_id] if hash_id >= 0 else 0
    if wanted > 0:
        return min(wanted + 1, LEVELS - 1)
    return FINISHED_ONLINE if state.blocks[instance, block].online else FINISHED_OFFLINE


@inner
def worthless(state, instance, most):
    """Number of the next blocks to be taken, at most `most`, whose content no known request wants."""
    blocks, by_task, count = state.blocks[instance], state.config.kv_priority, 0
    for level in range(FINISHED_ONLINE + 1):
        block = state.kv[instance, queue_index(state, level)]
        while block >= 0 and count < most and (by_task or blocks[block].key == 0):
            count += 1
            block = blocks[block].next
    return count


# --- Block tables ---------------------------------------------------------------------------------------------------
@inner
def new_table(state, instance, slot):
    """Gives a starting request an empty block table."""
    spec = state.instances[instance]
    spec.rows_free -= 1
    state.requests[slot].row = state.kv[instance, _spare_index(state) + spec.rows_free]


@inner
def append_new_blocks(state, instance, slot, more):
    """Takes `more` blocks for a request, at the end of its table."""
    append_from(state, instance, state.requests[slot].row, state.requests[slot].blocks, more)


@inner
def append_from(state, instance, row, first, more):
    """Takes `more` blocks for a block table of `first` ones, at its end."""
    index = _table_index(state, row) + first
    for i in range(more):
        block = _get_new_block(state, instance)
        state.blocks[instance, block].references = 1
        state.kv[instance, index + i] = block


@inner
def find_longest_cache_hit(state, instance, slot, most):
    """(Number of a waiting request's first `most` blocks that are cached, number of these that are
    free)."""
    found, idle = 0, 0
    while found < most:
        block = get_cached_block(state, instance, key_of(state, slot, found))
        if block < 0:
            break
        one = state.blocks[instance, block]
        idle += one.references == 0 and not (state.config.retention == TTL and one.level == PINNED)
        found += 1
    return found, idle


@inner
def touch(state, instance, slot, count):
    """Puts a request's first `count` blocks, which are cached, into its empty table."""
    index, counts = _table_index(state, state.requests[slot].row), state.config.retention == S3FIFO
    for i in range(count):
        block = get_cached_block(state, instance, key_of(state, slot, i))
        one = state.blocks[instance, block]
        if one.references == 0:
            unlink(state, instance, block)
        if counts:
            use_again(state, instance, block)
        one.references += 1
        state.kv[instance, index + i] = block


@inner
def cache_full_blocks(state, instance, slot, first, end):
    """Makes a request's blocks `first` to `end` - 1, full with this iteration, findable."""
    index = _table_index(state, state.requests[slot].row)
    for i in range(first, end):
        block = state.kv[instance, index + i]
        if state.blocks[instance, block].key == 0:
            _insert(state, instance, block, key_of(state, slot, i))


@inner
def uncache_blocks(state, instance, slot, first, end):
    """Removes the keys of blocks that a request will not fill now, except those that other requests
    read."""
    index = _table_index(state, state.requests[slot].row)
    for i in range(first, end):
        block = state.kv[instance, index + i]
        if state.blocks[instance, block].references == 1:
            _forget(state, instance, block)


@inner
def free_table(state, instance, slot, wanted):
    """Frees a request's blocks and its table; `wanted`: the request will come back for them.

    Returns the number of blocks that are free now: unread, and not held for a time.
    """
    spec, request = state.instances[instance], state.requests[slot]
    if state.config.offloading:
        offload(state, instance, slot)
        if not wanted:
            renew_offloaded(state, instance, slot)
    index, idle, worth = _table_index(state, request.row), 0, state.clock.now_ps
    order, in_order = state.config.retention, state.config.engine_version >= FREED_IN_ORDER
    if order == RULED and state.config.retain_rule and not wanted:
        answer = rule_at(state.config.retain_rule)(View(state, instance, slot, state.picks[:0]))
        if answer != ASK:
            worth = worth_for(state, answer)
        else:
            add_task(state, RETAIN_FOR, instance, slot)
    for i in range(request.blocks - 1, -1, -1):
        block = state.kv[instance, index + i]
        one = state.blocks[instance, block]
        one.references -= 1
        if one.references > 0:
            continue
        idle += 1
        one.online = request.online
        if one.key == 0:
            if in_order:
                push(state, instance, block, 0, False)
        elif order == TTL and not wanted:
            _pin(state, instance, block)
            idle -= 1
        elif order == RULED:
            push_heap(state, instance, block, worth)
        elif order == BELADY:
            _keep(state, instance, slot, i, block, wanted)
        else:
            where = hash_index(state, slot, i)
            level = _level_of(state, instance, block, state.hash_ids[where] if where >= 0 else -1)
            if wanted and state.config.kv_priority:
                level = max(level, 2) if not request.online else LEVELS - 1
            push(state, instance, block, level, False)
    for i in range(0 if in_order else request.blocks):
        block = state.kv[instance, index + i]
        if state.blocks[instance, block].references == 0 and state.blocks[instance, block].key == 0:
            push(state, instance, block, 0, True)
    state.kv[instance, _spare_index(state) + spec.rows_free] = request.row
    spec.rows_free += 1
    request.row = NONE
    return idle


@inner
def keep_for(state, instance, slot, answer):
    """Changes the value of a finished request's blocks that no other request reads."""
    for i in range(state.requests[slot].num_computed_tokens // state.config.block_tokens - 1, -1, -1):
        block = get_cached_block(state, instance, key_of(state, slot, i))
        if block >= 0 and state.blocks[instance, block].references == 0:
            unlink_heap(state, instance, block)
            push_heap(state, instance, block, worth_for(state, answer))


@inner
def _pin(state, instance, block):
    """Holds an unread block for a time."""
    state.heaps[instance, block, WORTH] = state.clock.now_ps + state.config.pinned_ps
    push(state, instance, block, PINNED, False)


@inner
def unpin(state, instance, more):
    """Frees the blocks whose time is over, and of the others the `more` held longest.

    Returns their number.
    """
    freed, head = 0, state.kv[instance, queue_index(state, PINNED)]
    while head >= 0:
        if state.heaps[instance, head, WORTH] > state.clock.now_ps:
            if more <= 0:
                break
            more -= 1
        unlink(state, instance, head)
        push(state, instance, head, 0, False)
        freed += 1
        head = state.kv[instance, queue_index(state, PINNED)]
    return freed


@inner
def pinned_until(state, instance):
    """When the time of the longest-held blocks is over; NEVER if none are held."""
    head = state.kv[instance, queue_index(state, PINNED)]
    return state.heaps[instance, head, WORTH] if head >= 0 else np.int64(NEVER)


@inner
def _keep(state, instance, slot, i, block, wanted):
    """Queues a request's `i`-th block, which no request reads any more, by its value.

    Only the first block with a content is found, so if the next use is known, only that one has
    value.
    """
    where = hash_index(state, slot, i)
    worth = worth_of(state, slot, np.int64(state.hash_ids[where]) if where >= 0 else np.int64(-1), wanted)
    if state.config.retention == BELADY:
        first = get_cached_block(state, instance, state.blocks[instance, block].key)
        if first != block:
            push_heap(state, instance, block, -np.int64(state.requests.size))
            if state.blocks[instance, first].references > 0:
                return
            unlink_heap(state, instance, first)
            block = first
    push_heap(state, instance, block, worth)


# --- The second tier: host memory -----------------------------------------------------------------------------------
@inner
def host_row(state, instance):
    """Row of State.blocks and State.kv for an instance's blocks in host memory."""
    return state.instances.size + instance


@inner
def find_offloaded(state, instance, slot, first, most):
    """Length of the run of a request's blocks from `first` up to `most` - 1 that are in host
    memory."""
    row, end = host_row(state, instance), first
    while end < most and get_cached_block(state, row, key_of(state, slot, end)) >= 0:
        end += 1
    return end - first


@inner
def offload(state, instance, slot):
    """Stores the blocks that a request has computed since the last call, replacing the least
    recently used.

    Nothing is stored if these blocks would replace each other (vLLM's `prepare_store`, which tries
    again later).
    """
    row = host_row(state, instance)
    blocks, first = state.blocks[row], np.int64(state.offloaded[slot])
    end = np.int64(state.requests[slot].num_computed_tokens) // state.config.block_tokens
    if not first < end <= first + state.tier[instance].blocks:
        return
    _hold(state, row, slot, first, end, 1)
    oldest = state.kv[row, queue_index(state, 0)]
    for i in range(first, end):
        key = key_of(state, slot, i)
        if get_cached_block(state, row, key) >= 0:
            continue
        while blocks[oldest].references > 0:
            oldest = blocks[oldest].next
        block, oldest = oldest, blocks[oldest].next
        unlink(state, row, block)
        _forget(state, row, block)
        _insert(state, row, block, key)
        push(state, row, block, 0, False)
        blocks[block].references = 1
    _hold(state, row, slot, first, end, 0)
    state.offloaded[slot] = end


@inner
def _hold(state, row, slot, first, end, references):
    """Sets the reference count of a request's blocks `first` to `end` - 1 in host memory; above 0
    they are not reused."""
    for i in range(first, end):
        block = get_cached_block(state, row, key_of(state, slot, i))
        if block >= 0:
            state.blocks[row, block].references = references


@inner
def renew_offloaded(state, instance, slot):
    """Moves a finished request's blocks in host memory to the end of the queue, the first one last."""
    row = host_row(state, instance)
    for i in range(state.requests[slot].num_computed_tokens // state.config.block_tokens - 1, -1, -1):
        block = get_cached_block(state, row, key_of(state, slot, i))
        if block >= 0:
            unlink(state, row, block)
            push(state, row, block, 0, False)


# --- Future use of content (Echo 4.2) ----------------------------------------------------------------------
@inner
def forget_all(state, instance):
    """Empties the prefix cache of an instance that runs nothing. Returns the number of blocks that were held."""
    blocks, total = state.blocks[instance], state.instances[instance].total_blocks
    held = unpin(state, instance, total) if state.config.retention == TTL else np.int64(0)
    for block in range(total if tracked(state) else 0):
        if blocks[block].key != 0:
            unlink(state, instance, block)
            _forget(state, instance, block)
            push(state, instance, block, 0, False)
    return held


@inner
def note_demand(state, slot, change):
    """Updates the levels of blocks that an offline request shares when it arrives (`change` 1) or
    leaves (-1)."""
    if state.config.kv_priority == 0 or state.hash_ids.size == 0 or not tracked(state):
        return
    sub_blocks = state.config.hash_tokens // state.config.block_tokens + 2
    begin, count = prompt_names(state, slot)
    for index in range(begin, begin + count):
        shared = state.hash_ids[index]
        state.reuse[shared] += change
        for instance in range(state.instances.size):
            for i in range(sub_blocks):
                block = get_cached_block(state, instance, np.int64(shared) * sub_blocks + i + 1)
                while block >= 0:
                    if state.blocks[instance, block].references == 0:
                        unlink(state, instance, block)
                        push(state, instance, block, _level_of(state, instance, block, shared), False)
                    block = state.blocks[instance, block].twin
