"""Step actions: what the scheduler of a mixed instance reads and does to compose an iteration,
named as in vLLM V1.

A rule for `compose` on a mixed instance is the scheduler. It schedules tokens of running requests,
admits waiting ones and preempts, by the actions here, which update all sums. Every running request
holds its memory, with or without tokens. Running requests are State.members[BATCH], in order of
admission, also between iterations.
"""

import numpy as np

from ooco_gym.compile import inlined, inner
from ooco_gym.sim import state as s
from ooco_gym.sim.bidirectional import change_host, pair_fits, pair_grow, paired
from ooco_gym.sim.blocks import (
    append_new_blocks,
    cache_full_blocks,
    find_longest_cache_hit,
    find_offloaded,
    new_table,
    offload,
    pinned_until,
    touch,
    tracked,
    uncache_blocks,
    unpin,
)
from ooco_gym.sim.costs import blocks_for, length
from ooco_gym.sim.memory import free_blocks, measured, take_blocks
from ooco_gym.sim.queues import add_member, dequeue, enqueue, enqueue_by_arrival, note_eviction, remove_member
from ooco_gym.sim.retention import TTL


# --- What a rule may read -------------------------------------------------------------------------------------------
@inlined
def missing(state, slot):
    """Tokens that a request must compute before its next output token; 0 while its blocks load from
    host memory."""
    if is_loading(state, slot):
        return np.int64(0)
    return length(state, slot) - state.requests[slot].num_computed_tokens


@inlined
def is_loading(state, slot):
    """Whether a request's load from host memory is in progress."""
    return state.config.offloading and state.loaded_ps[slot] > state.clock.now_ps


@inner
def num_free_blocks(state, instance):
    """Free blocks minus reserved ones."""
    return state.instances[instance].free_blocks - state.config.reserved_blocks


@inner
def num_new_blocks(state, slot, tokens):
    """Blocks beyond those held that a running request needs for `tokens` more."""
    request = state.requests[slot]
    reach = request.num_computed_tokens + request.num_scheduled_tokens + tokens
    if reach <= request.blocks * state.config.block_tokens:
        return np.int64(0)
    return blocks_for(state, reach) - request.blocks


@inner
def get_computed_blocks(state, instance, slot):
    """(Tokens that a waiting request need not compute, blocks with them, number of these that no
    request reads).

    Blocks are the device's: tokens only in host memory take new blocks.
    """
    request = state.requests[slot]
    if request.host_tokens > 0:
        return np.int64(request.host_tokens), np.int64(0), np.int64(0)
    if state.config.prefix_caching == 0:
        return np.int64(0), np.int64(0), np.int64(0)
    if state.config.prefix_caching == s.LOOKED_UP:
        found = state.owned[slot]
        return np.int64(found[0]), np.int64(found[1]), np.int64(found[2])
    size = state.config.block_tokens
    most = (length(state, slot) - 1) // size
    shared, idle = find_longest_cache_hit(state, instance, slot, most)
    found = np.int64(shared)
    if state.config.offloading:
        found += find_offloaded(state, instance, slot, found, most)
    return found * size, np.int64(shared), np.int64(idle)


@inner
def whole_need(state, instance, slot):
    """(Tokens that a waiting request need not compute, free blocks that its whole context takes)."""
    computed, shared, idle = get_computed_blocks(state, instance, slot)
    return computed, np.int64(blocks_for(state, length(state, slot)) - shared + idle)


@inner
def get_computed_tokens(state, instance, slot):
    """Tokens of a waiting request's context in the prefix cache or in host memory."""
    return get_computed_blocks(state, instance, slot)[0]


@inner
def has_seat(state, instance):
    """Whether one more request may run. A request whose last token is in progress keeps its slot."""
    spec, seats = state.instances[instance], state.config.max_num_seqs
    if state.config.async_scheduling == s.HIDES_FINISHING:
        return spec.running + spec.suspended < seats
    return spec.running < seats


@inlined
def begins_ps(state, instance):
    """Start of the composed iteration: now, or the end of the present one (asynchronous
    scheduling)."""
    spec = state.instances[instance]
    ahead = state.config.async_scheduling != s.SYNCHRONOUS and spec.activity == s.MIXING
    return spec.end_ps if ahead else state.clock.now_ps


@inner
def fits_whole(state, instance, slot):
    """Whether a waiting request may start: a running slot, and memory for its whole context."""
    return fits_chunk(state, instance, slot, length(state, slot), 0)


@inner
def fits_chunk(state, instance, slot, tokens, spare):
    """Whether a waiting request may start with `tokens` uncached tokens and leave `spare` blocks
    free."""
    if not has_seat(state, instance):
        return False
    start, shared, idle = get_computed_blocks(state, instance, slot)
    reach = min(start + tokens, length(state, slot))
    if paired(state):
        return pair_fits(state, instance, slot, reach)
    return blocks_for(state, reach) - shared + idle + spare <= num_free_blocks(state, instance)


@inner
def running_index(state, instance, slot):
    """Index of a request among an instance's running ones, or -1."""
    for index in range(state.instances[instance].running):
        if state.members[s.BATCH, instance, index] == slot:
            return index
    return -1


@inlined
def on_its_way(state, slot):
    """Whether the present iteration generates a request's last token (asynchronous scheduling), not
    known yet."""
    return state.requests[slot].last_token_ps > state.clock.now_ps


# --- What a rule may do ---------------------------------------------------------------------------------------------
@inlined
def allocate_slots(state, instance, slot, tokens):
    """Schedules `tokens` of a running request in the next iteration, with memory; False if memory
    is short."""
    request, size = state.requests[np.uint64(slot)], state.config.block_tokens
    reach = np.int64(request.num_computed_tokens) + request.num_scheduled_tokens + tokens
    # A cached block may become full with this token, or with the one before, known a step later.
    if reach <= request.blocks * size and state.config.bidirectional == 0 and (
            state.config.prefix_caching == 0 or (tokens == 1 and reach % size > 1)):
        request.num_scheduled_tokens += tokens
        return True
    return _allocate_blocks(state, instance, slot, tokens)


@inner
def _allocate_blocks(state, instance, slot, tokens):
    """`allocate_slots` if it takes blocks, fills one that others may find, or blocks have two
    owners."""
    if paired(state):
        return _allocate_pairs(state, instance, slot, tokens)
    if is_loading(state, slot):  # its blocks are full, so giving it tokens leads here
        return True
    more = num_new_blocks(state, slot, tokens)
    if more > 0 and tokens > 0:
        if state.config.retention == TTL and more > num_free_blocks(state, instance):
            take_blocks(state, instance, -unpin(state, instance, more - num_free_blocks(state, instance)))
        if more > num_free_blocks(state, instance):
            return False
        if tracked(state):
            append_new_blocks(state, instance, slot, more)
        state.requests[slot].blocks += more
        take_blocks(state, instance, more)
    request = state.requests[slot]
    request.num_scheduled_tokens += tokens
    if state.config.prefix_caching and tracked(state):
        size, reach = state.config.block_tokens, request.num_computed_tokens + request.num_scheduled_tokens
        if state.config.async_scheduling:
            tokens += reach > tokens  # the last token before these was unknown then
            reach = min(reach, length(state, slot) - on_its_way(state, slot))
        cache_full_blocks(state, instance, slot, (reach - tokens) // size, reach // size)
        if state.config.offloading:
            offload(state, instance, slot)
    return True


@inner
def end_pins(state, instance):
    """Frees held blocks whose time is over before an iteration is composed; if nothing runs, also
    as many others as the longest request may need (`retention` ttl)."""
    spec, more = state.instances[instance], np.int64(0)
    waiting = spec.online_waiting + spec.offline_waiting
    if waiting > 0 and spec.running + spec.suspended == 0:
        more = np.int64(state.config.blocks_per_table) - num_free_blocks(state, instance)
    take_blocks(state, instance, -unpin(state, instance, more))
    if waiting + spec.running > 0:
        wake_at(state, instance, pinned_until(state, instance))


@inner
def _allocate_pairs(state, instance, slot, tokens):
    """`allocate_slots` if blocks have two owners: slots in host memory return first."""
    request = state.requests[slot]
    reach = np.int64(request.num_computed_tokens) + request.num_scheduled_tokens + tokens
    if not pair_fits(state, instance, slot, reach):
        return False
    take_blocks(state, instance, pair_grow(state, instance, slot, reach))
    request.num_scheduled_tokens += tokens
    return True


@inner
def unschedule(state, slot):
    """Removes a request's tokens, not its memory, from the next iteration; returns their number.

    Blocks that it would have filled are no longer findable, except those that another request has
    found.
    """
    request = state.requests[slot]
    tokens = np.int64(request.num_scheduled_tokens)
    request.num_scheduled_tokens = 0
    if tokens > 0 and state.config.prefix_caching and tracked(state):
        size, computed = state.config.block_tokens, np.int64(request.num_computed_tokens)
        uncache_blocks(state, request.instance, slot, computed // size, (computed + tokens) // size)
    return tokens


@inner
def admit(state, instance, slot, tokens):
    """Starts a waiting request, last in order, with its cached tokens and up to `tokens` new ones.

    Returns its tokens in the next iteration. The rule has checked that they fit.
    """
    spec, request = state.instances[instance], state.requests[slot]
    start, shared, idle = get_computed_blocks(state, instance, slot)
    dequeue(state, instance, slot)
    request.status = s.RESIDENT
    request.num_scheduled_tokens = 0
    request.num_computed_tokens = start
    if tracked(state):
        new_table(state, instance, slot)
    if shared > 0:
        if tracked(state):
            touch(state, instance, slot, shared)
        request.blocks = shared
        take_blocks(state, instance, idle)
    if state.config.offloading:
        _load(state, instance, slot, start)
    _note_start(state, instance, slot, start)
    add_member(state, instance, slot)
    state.members[s.BATCH, instance, spec.running] = slot
    spec.running += 1
    tokens = min(tokens, missing(state, slot))
    allocate_slots(state, instance, slot, tokens)
    return tokens


@inner
def preempt(state, instance, index, how):
    """Takes the memory of the running request at `index`; it waits by arrival.

    Its tokens are recomputed (RECOMPUTE), swapped to the host if there is room (SWAP), or taken
    from its copy there (CHECKPOINT; the rest is recomputed).
    """
    slot = state.members[s.BATCH, instance, index]
    _lose(state, instance, index, how)
    enqueue_by_arrival(state, instance, slot)


@inner
def preempt_to_head(state, instance, index, how):
    """As `preempt`, but the request is the next of its class to be admitted."""
    slot = state.members[s.BATCH, instance, index]
    _lose(state, instance, index, how)
    enqueue(state, instance, slot, True)


@inner
def preempt_to_tail(state, instance, index, how):
    """As `preempt`, but the request waits behind all others of its class."""
    slot = state.members[s.BATCH, instance, index]
    _lose(state, instance, index, how)
    enqueue(state, instance, slot, False)


@inner
def checkpoint(state, instance, index):
    """Copies the running request at `index` to the host, from its last copy on, as far as there is
    room.

    The copy crosses the link with the next iteration. It stays until the request finishes or is
    preempted with RECOMPUTE: for policies with preempted_kv CHECKPOINT. Returns the number of
    tokens.
    """
    slot = state.members[s.BATCH, instance, index]
    spec, request = state.instances[instance], state.requests[slot]
    room = (blocks_for(state, request.host_tokens) + spec.host_free_blocks) * state.config.block_tokens
    tokens = min(np.int64(request.num_computed_tokens), room) - request.host_tokens
    if tokens <= 0:
        return np.int64(0)
    spec.swap_tokens += tokens
    change_host(state, instance, slot, tokens)
    return tokens


@inner
def wake_at(state, instance, time_ps):
    """Asks the policy again at `time_ps`, even without an event."""
    spec = state.instances[instance]
    spec.pull_wake_ps = min(spec.pull_wake_ps, max(time_ps, state.clock.now_ps + 1))


@inner
def _load(state, instance, slot, start):
    """Takes blocks for tokens that a starting request finds only in host memory. Loads are
    sequential; until its own is complete the request runs without tokens."""
    tier, request, size = state.tier[instance], state.requests[slot], state.config.block_tokens
    shared, end = np.int64(request.blocks), start // size
    state.loaded_ps[slot] = 0
    if end == shared or request.host_tokens > 0:
        return
    append_new_blocks(state, instance, slot, end - shared)
    request.blocks = end
    take_blocks(state, instance, end - shared)
    cache_full_blocks(state, instance, slot, shared, end)
    state.offloaded[slot] = end
    tokens = (end - shared) * size
    tier.loaded_tokens += tokens
    tier.link_free_ps = max(tier.link_free_ps, state.clock.now_ps) + link_ps(state, instance, tokens)
    state.loaded_ps[slot] = tier.link_free_ps
    if request.cached_tokens < 0:
        tier.hits += tokens


# --- Sums and records -----------------------------------------------------------------------------------------------
@inner
def link_ps(state, instance, tokens):
    """Time in which the KV of `tokens` crosses the link to host memory, in ps."""
    moved = tokens * state.tables[state.instances[instance].table].kv_bytes_per_token
    return np.int64(moved / state.config.host_bytes_per_s * s.PS_PER_S)


@inner
def _note_start(state, instance, slot, start):
    """Counts cache hits at the first admission; returns after a preemption do not count
    (docs/protocol.md)."""
    spec, request = state.instances[instance], state.requests[slot]
    if request.host_tokens > 0:
        spec.swap_tokens += start
        if state.config.preempted_kv != s.CHECKPOINT:
            change_host(state, instance, slot, -start)
    else:
        request.kv_lost = max(0, request.kv_lost - start)
    if request.cached_tokens < 0:
        request.cached_tokens = start
        spec.looked_tokens += length(state, slot)
        spec.cached_tokens += start


@inner
def _lose(state, instance, index, how):
    slot = state.members[s.BATCH, instance, index]
    spec, request = state.instances[instance], state.requests[slot]
    note_eviction(state, slot)
    blocks = blocks_for(state, request.num_computed_tokens) - blocks_for(state, request.host_tokens)
    if how == s.CHECKPOINT:
        lost = request.num_computed_tokens - request.host_tokens + request.kv_lost
        request.kv_lost = min(length(state, slot) - request.host_tokens, lost)
    elif how == s.SWAP and request.num_computed_tokens > 0 and blocks <= spec.host_free_blocks:
        spec.swap_tokens += request.num_computed_tokens - request.host_tokens
        change_host(state, instance, slot, request.num_computed_tokens - request.host_tokens)
    else:  # tokens beyond this point lost earlier must still be recomputed
        request.kv_lost = min(length(state, slot), request.num_computed_tokens + request.kv_lost)
        change_host(state, instance, slot, -request.host_tokens)
    remove_member(state, instance, slot)
    leave_batch(state, instance, index)
    free_blocks(state, slot, True)
    request.num_computed_tokens = 0
    request.num_scheduled_tokens = 0
    request.status = s.WAITING
    request.evictions += 1
    if measured(state):
        state.totals.evictions += 1


@inner
def leave_batch(state, instance, index):
    """Removes a request from the running ones, keeping the order of the others."""
    spec, batch = state.instances[instance], state.members[s.BATCH, instance]
    for i in range(index, spec.running - 1):
        batch[i] = batch[i + 1]
    spec.running -= 1
