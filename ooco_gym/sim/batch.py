"""Who takes part in a decode step, and the memory that the batch's next tokens need."""

import numpy as np

from ooco_gym.compile import inlined, inner
from ooco_gym.sim.costs import blocks_for, length
from ooco_gym.sim.lanes import COMPOSED, WRITTEN, member_count, write_down
from ooco_gym.sim.queues import number_members
from ooco_gym.sim.state import BATCH, DECODE, OFFLINE, RESIDENT, URGENT


@inner
def _fill_picked(state, instance, picks):
    """Writes the picked slots that are residents here to the batch row, each once; returns how many."""
    spec, count = state.instances[instance], 0
    seen = state.scratch  # by place in the member lists
    seen[URGENT, : spec.urgent_members] = 0
    seen[OFFLINE, : spec.offline_members] = 0
    number_members(state, instance)
    for i in range(picks):
        slot = state.picks[i]
        if slot < 0 or slot >= state.requests.size:
            continue
        request = state.requests[slot]
        if request.status != RESIDENT or request.instance != instance:
            continue
        row = URGENT if request.urgent else OFFLINE
        if seen[row, request.position] == 0:
            seen[row, request.position] = 1
            state.members[BATCH, instance, count] = slot
            count += 1
    return count


@inlined
def _fill_all(state, instance):
    """Writes everything decodable to the batch row, urgent requests first; returns how many.

    Where that is every member, and rules settle whom they look at, it is written once somebody does (`sim.lanes`).
    """
    spec, count, batch = state.instances[instance], 0, state.members[BATCH, instance]
    if state.config.rules_flush and spec.decodable == spec.urgent_members + spec.offline_members:
        spec.unwritten = COMPOSED
        return spec.decodable
    for row in (URGENT, OFFLINE):
        members = state.members[row, instance]
        for i in range(member_count(spec, row)):
            if state.requests[members[i]].status == RESIDENT:
                batch[count] = members[i]
                count += 1
    return count


@inlined
def fill_batch(state, instance, picks):
    """Writes the batch row: everything decodable (`picks` < 0), or the first `picks` of State.picks that are legal."""
    spec, count = state.instances[instance], 0
    spec.unwritten = WRITTEN
    if picks >= 0:
        count = _fill_picked(state, instance, min(picks, state.picks.size))
    else:
        count = _fill_all(state, instance)
    spec.running = count
    spec.all_included = 1 if count == spec.decodable else 0
    spec.whole = 1 if picks < 0 and count == spec.urgent_members + spec.offline_members else 0
    return count


@inner
def growth(state, instance, steps):
    """Blocks that the batch needs beyond what it holds, to make `steps` more tokens each."""
    total = 0
    write_down(state, instance)
    for i in range(state.instances[instance].running):
        slot = state.members[BATCH, instance, i]
        total += max(0, blocks_for(state, length(state, slot) + steps) - state.requests[slot].blocks)
    return total


@inner
def fits_for_sure(state, instance, steps):
    """Whether the batch can make `steps` more tokens each wherever its requests stand in their last blocks."""
    spec = state.instances[instance]
    return spec.running * (steps // state.config.block_tokens + 1) <= spec.free_blocks


@inner
def steps_in_memory(state, instance, most):
    """Largest number of steps, at most `most`, whose growth fits the free blocks; at least 1 (checked before)."""
    if fits_for_sure(state, instance, most):
        return most
    free = state.instances[instance].free_blocks
    if growth(state, instance, most) <= free:
        return most
    low = 1
    while low < most:
        middle = (low + most + 1) // 2
        if growth(state, instance, middle) <= free:
            low = middle
        else:
            most = middle - 1
    return low


@inlined
def hold_tokens(request, tokens, block_tokens):
    """Lets a request hold the blocks of `tokens`; returns how many more than before."""
    lacking = tokens - request.blocks * block_tokens
    more = np.int64(lacking > 0)  # no branch: who needs one more, a processor cannot foresee
    if lacking > block_tokens:
        more = (lacking + block_tokens - 1) // block_tokens
    request.blocks += more
    return more


@inner
def leave_batch(state, instance, slot):
    """Takes a request that loses its memory out of the batch that is running, if it is in it."""
    spec = state.instances[instance]
    if spec.activity != DECODE:
        return
    for i in range(spec.running):
        if state.members[BATCH, instance, i] == slot:
            for j in range(i, spec.running - 1):
                state.members[BATCH, instance, j] = state.members[BATCH, instance, j + 1]
            spec.running -= 1
            spec.urgent_running -= state.requests[slot].urgent
            return


@inner
def first_step_fits(state, instance):
    """Whether the batch's next token fits the free memory."""
    spec = state.instances[instance]
    return spec.running <= spec.free_blocks or growth(state, instance, 1) <= spec.free_blocks
