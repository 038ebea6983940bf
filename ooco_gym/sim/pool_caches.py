"""Prefix caches of relaxed and strict instances: block tables of requests that decode in runs.

A run takes blocks by count (`batch.hold_tokens`). Which ones these are matters only when a prefix is looked up, or
blocks are taken or freed one by one; `settle` then gives each member's table the blocks that its tokens have taken
since, so that a run stays one event. Blocks become findable when their request's prefill ends, and those of its output
when it leaves the instance: its next turn comes later.

A moving request has a table on either side: at its destination the blocks that are found there, and new ones for the
rest, which alone crosses the link.
"""

from ooco_gym.compile import inlined, inner
from ooco_gym.sim import state as s
from ooco_gym.sim.blocks import (
    append_from,
    cache_full_blocks,
    find_longest_cache_hit,
    free_table,
    new_table,
    touch,
    tracked,
)
from ooco_gym.sim.costs import length
from ooco_gym.sim.lanes import member_count, write_down

TABLED, ROW_THERE, FOUND_THERE = range(3)  # columns of State.owned: blocks in a request's table; at its destination
# the row of its table, and the blocks that were found


@inlined
def caches(state):
    """Whether relaxed and strict instances keep prefixes."""
    return tracked(state) and state.instances[0].role != s.MIXED


@inner
def settle(state, instance):
    """Gives members' tables the blocks that a run has taken for them, after a flush of its totals."""
    write_down(state, instance)
    for row in (s.URGENT, s.OFFLINE):
        for index in range(member_count(state.instances[instance], row)):
            slot = state.members[row, instance, index]
            request, held = state.requests[slot], state.owned[slot, TABLED]
            if request.blocks > held:
                append_from(state, instance, request.row, held, request.blocks - held)
                state.owned[slot, TABLED] = request.blocks


@inner
def _open(state, instance, slot, blocks):
    """Gives a request a table of `blocks` on a settled instance. Returns (of these, found ones; free ones taken)."""
    shared, idle = find_longest_cache_hit(state, instance, slot, (length(state, slot) - 1) // state.config.block_tokens)
    new_table(state, instance, slot)
    touch(state, instance, slot, shared)
    append_from(state, instance, state.requests[slot].row, shared, blocks - shared)
    return shared, blocks - shared + idle


@inner
def open_table(state, instance, slot):
    """Gives a request that starts its prefill its blocks, cached ones first. Returns the free ones taken."""
    spec, request = state.instances[instance], state.requests[slot]
    shared, taken = _open(state, instance, slot, request.blocks)
    state.owned[slot, TABLED] = request.blocks
    request.num_computed_tokens = shared * state.config.block_tokens
    if request.cached_tokens < 0:  # returns after an eviction do not count (docs/protocol.md)
        request.cached_tokens = request.num_computed_tokens
        spec.looked_tokens += length(state, slot)
        spec.cached_tokens += request.num_computed_tokens
    return taken


@inner
def keep_prefix(state, slot, tokens):
    """Makes a request's blocks findable that are full with its first `tokens`, which are computed."""
    state.requests[slot].num_computed_tokens = tokens
    cache_full_blocks(state, state.requests[slot].instance, slot, 0, tokens // state.config.block_tokens)


@inner
def open_there(state, slot, target):
    """Gives a request `target_blocks` at its settled destination, beside its present table. Returns the free ones
    taken."""
    request = state.requests[slot]
    here = request.row
    found, taken = _open(state, target, slot, request.target_blocks)
    state.owned[slot, ROW_THERE], state.owned[slot, FOUND_THERE] = request.row, found
    request.row = here
    return taken


@inner
def close_there(state, slot):
    """Frees a request's blocks at its settled destination. Returns the number of blocks that are free now."""
    request = state.requests[slot]
    here, blocks = request.row, request.blocks
    request.row, request.blocks = state.owned[slot, ROW_THERE], request.target_blocks
    freed = free_table(state, request.target, slot, True)
    request.row, request.blocks = here, blocks
    return freed


@inner
def arrive(state, slot):
    """Makes the table at a moved request's destination, its instance by now, its own."""
    state.requests[slot].row = state.owned[slot, ROW_THERE]
    state.owned[slot, TABLED] = state.requests[slot].blocks
    keep_prefix(state, slot, length(state, slot) - 1)  # the newest token has no KV entry yet


@inlined
def moved_tokens(state, slot):
    """Tokens whose KV a move transfers: not those found at the destination, nor the newest one."""
    tokens = length(state, slot) - 1
    if caches(state):
        tokens = max(0, tokens - state.owned[slot, FOUND_THERE] * state.config.block_tokens)
    return tokens


@inner
def uncached_tokens(state, instance, slot):
    """Tokens of a waiting request's context that a prefill there would compute, on a settled instance."""
    if not caches(state):
        return length(state, slot)
    shared, _ = find_longest_cache_hit(state, instance, slot, (length(state, slot) - 1) // state.config.block_tokens)
    return length(state, slot) - shared * state.config.block_tokens
