"""What the scheduler of a mixed instance may ask and do: the verbs that it composes an iteration with.

A rule for `compose` on a mixed instance is the scheduler: it gives tokens to requests that run, admits waiting ones and
takes memory away, by the verbs here, which keep the books. Every request that runs holds its memory, with or without
tokens. The running requests are State.members[BATCH], in the order of admission, also between iterations.
"""

import numpy as np

from ooco_gym.compile import inlined, inner
from ooco_gym.sim.bidirectional import change_host, pair_fits, pair_grow, paired
from ooco_gym.sim.blocks import append_blocks, hits, name_full, open_table, share, told_apart, unname
from ooco_gym.sim.costs import blocks_for, length
from ooco_gym.sim.memory import let_go, measured, take_blocks
from ooco_gym.sim.queues import LOG_EVICT, add_member, dequeue, enqueue, enqueue_by_arrival, log_event, remove_member
from ooco_gym.sim.state import (
    BATCH,
    RESIDENT,
    SWAP,
    WAITING,
)


# --- What a rule may ask --------------------------------------------------------------------------------------------
@inlined
def lacking(state, slot):
    """Tokens that a request still has to compute until it makes its next one."""
    return length(state, slot) - state.requests[slot].computed_tokens


@inner
def free_blocks(state, instance):
    """Free blocks that may be taken."""
    return state.instances[instance].free_blocks - state.config.reserved_blocks


@inner
def blocks_for_more(state, slot, tokens):
    """Blocks beyond those held that a running request needs to compute `tokens` more."""
    request = state.requests[slot]
    reach = request.computed_tokens + request.scheduled_tokens + tokens
    if reach <= request.blocks * state.config.block_tokens:
        return np.int64(0)
    return blocks_for(state, reach) - request.blocks


@inner
def found(state, instance, slot):
    """(Tokens that a waiting request need not compute, blocks that they are in, how many of these nobody reads)."""
    request = state.requests[slot]
    if request.host_tokens > 0:
        return np.int64(request.host_tokens), np.int64(0), np.int64(0)
    if state.config.prefix_caching == 0:
        return np.int64(0), np.int64(0), np.int64(0)
    size = state.config.block_tokens
    shared, idle = hits(state, instance, slot, (length(state, slot) - 1) // size)
    return np.int64(shared * size), np.int64(shared), np.int64(idle)


@inner
def cached(state, instance, slot):
    """Tokens of a waiting request's context that it would find: in the prefix cache, or in host memory."""
    return found(state, instance, slot)[0]


@inner
def has_seat(state, instance):
    """Whether one more request may run."""
    return state.instances[instance].running < state.config.max_num_seqs


@inner
def fits_whole(state, instance, slot):
    """Whether a waiting request may start: a seat, and memory for its whole context."""
    return fits_chunk(state, instance, slot, length(state, slot))


@inner
def fits_chunk(state, instance, slot, tokens):
    """Whether a waiting request may start with `tokens` tokens beyond those it need not compute."""
    if not has_seat(state, instance):
        return False
    start, shared, idle = found(state, instance, slot)
    reach = min(start + tokens, length(state, slot))
    if paired(state):
        return pair_fits(state, instance, slot, reach)
    return blocks_for(state, reach) - shared + idle <= free_blocks(state, instance)


@inner
def place_of(state, instance, slot):
    """Place of a request among those that run on an instance, or -1."""
    for place in range(state.instances[instance].running):
        if state.members[BATCH, instance, place] == slot:
            return place
    return -1


# --- What a rule may do ---------------------------------------------------------------------------------------------
@inlined
def give(state, instance, slot, tokens):
    """Gives a running request `tokens` tokens in the next iteration; False, and nothing else, where memory lacks."""
    request, size = state.requests[np.uint64(slot)], state.config.block_tokens
    reach = np.int64(request.computed_tokens) + request.scheduled_tokens + tokens
    if reach <= request.blocks * size and state.config.bidirectional == 0 and (
            state.config.prefix_caching == 0 or (tokens == 1 and reach % size > 0)):
        request.scheduled_tokens += tokens
        return True
    return _give_blocks(state, instance, slot, tokens)


@inner
def _give_blocks(state, instance, slot, tokens):
    """`give` where it takes blocks, or fills one that others may find, or where blocks have two owners."""
    if paired(state):
        return _give_slots(state, instance, slot, tokens)
    more = blocks_for_more(state, slot, tokens)
    if more > 0:
        if more > free_blocks(state, instance):
            return False
        if told_apart(state):
            append_blocks(state, instance, slot, more)
        state.requests[slot].blocks += more
        take_blocks(state, instance, more)
    request = state.requests[slot]
    request.scheduled_tokens += tokens
    if state.config.prefix_caching:
        size, reach = state.config.block_tokens, request.computed_tokens + request.scheduled_tokens
        name_full(state, instance, slot, (reach - tokens) // size, reach // size)
    return True


@inner
def _give_slots(state, instance, slot, tokens):
    """`give` where blocks have two owners: slots that went to the host come back first."""
    request = state.requests[slot]
    reach = np.int64(request.computed_tokens) + request.scheduled_tokens + tokens
    if not pair_fits(state, instance, slot, reach):
        return False
    take_blocks(state, instance, pair_grow(state, instance, slot, reach))
    request.scheduled_tokens += tokens
    return True


@inner
def take_back(state, slot):
    """Takes a request's tokens in the next iteration back, not its memory; returns how many.

    Blocks that it would have filled are not to be found, but where somebody has found them already.
    """
    request = state.requests[slot]
    tokens = np.int64(request.scheduled_tokens)
    request.scheduled_tokens = 0
    if tokens > 0 and state.config.prefix_caching:
        size, computed = state.config.block_tokens, np.int64(request.computed_tokens)
        unname(state, request.instance, slot, computed // size, (computed + tokens) // size)
    return tokens


@inner
def admit(state, instance, slot, tokens):
    """Lets a waiting request run, last in order, with what it need not compute and up to `tokens` tokens.

    Returns its tokens in the next iteration. The rule has asked before whether they fit.
    """
    spec, request = state.instances[instance], state.requests[slot]
    start, shared, idle = found(state, instance, slot)
    dequeue(state, instance, slot)
    request.status = RESIDENT
    request.scheduled_tokens = 0
    request.computed_tokens = start
    if told_apart(state):
        open_table(state, instance, slot)
    if shared > 0:
        share(state, instance, slot, shared)
        request.blocks = shared
        take_blocks(state, instance, idle)
    _note_start(state, instance, slot, start)
    add_member(state, instance, slot)
    state.members[BATCH, instance, spec.running] = slot
    spec.running += 1
    tokens = min(tokens, length(state, slot) - start)
    give(state, instance, slot, tokens)
    return tokens


@inner
def preempt(state, instance, place, how):
    """Takes the memory of the running request at `place` (RECOMPUTE, or SWAP to the host); it waits by arrival."""
    slot = state.members[BATCH, instance, place]
    _lose(state, instance, place, how)
    enqueue_by_arrival(state, instance, slot)


@inner
def preempt_front(state, instance, place, how):
    """As `preempt`, but it is the next of its class to be admitted."""
    slot = state.members[BATCH, instance, place]
    _lose(state, instance, place, how)
    enqueue(state, instance, slot, True)


@inner
def wake_at(state, instance, time_ps):
    """Has the policy asked again at `time_ps`, though nothing may have happened."""
    spec = state.instances[instance]
    spec.pull_wake_ps = min(spec.pull_wake_ps, max(time_ps, state.clock.now_ps + 1))


# --- The books ------------------------------------------------------------------------------------------------------
@inner
def _note_start(state, instance, slot, start):
    """Hits count at the first admission: what comes back after a preemption is no gain (PROTOCOL)."""
    spec, request = state.instances[instance], state.requests[slot]
    if request.host_tokens > 0:
        spec.swap_tokens += start
        change_host(state, instance, slot, -start)
    else:
        request.kv_lost = max(0, request.kv_lost - start)
    if request.cached_tokens < 0:
        request.cached_tokens = start
        spec.looked_tokens += length(state, slot)
        spec.cached_tokens += start


@inner
def _lose(state, instance, place, how):
    slot = state.members[BATCH, instance, place]
    spec, request = state.instances[instance], state.requests[slot]
    log_event(state, LOG_EVICT, instance, slot, request.computed_tokens)
    blocks = blocks_for(state, request.computed_tokens) - blocks_for(state, request.host_tokens)
    if how == SWAP and request.computed_tokens > 0 and blocks <= spec.host_free_blocks:
        spec.swap_tokens += request.computed_tokens - request.host_tokens
        change_host(state, instance, slot, request.computed_tokens - request.host_tokens)
    else:  # what an earlier loss left to recompute beyond this point is still to be recomputed
        request.kv_lost = min(length(state, slot), request.computed_tokens + request.kv_lost)
        change_host(state, instance, slot, -request.host_tokens)
    leave_running(state, instance, place)
    let_go(state, slot, True)
    request.computed_tokens = 0
    request.scheduled_tokens = 0
    request.status = WAITING
    request.evictions += 1
    if measured(state):
        state.totals.evictions += 1


@inner
def leave_running(state, instance, place):
    """Takes a request out of the running ones, keeping the order of the others."""
    spec, batch = state.instances[instance], state.members[BATCH, instance]
    remove_member(state, instance, batch[place])
    for i in range(place, spec.running - 1):
        batch[i] = batch[i + 1]
    spec.running -= 1
