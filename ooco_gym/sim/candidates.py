"""Who may be chosen at a decision on an instance: who may lose their memory, whose prefill may start."""

from ooco_gym.compile import inlined, inner
from ooco_gym.sim.front import FIRST, FIRST_LENGTH, SHORTEST_LENGTH
from ooco_gym.sim.lanes import member_count, write_down
from ooco_gym.sim.queues import has_room
from ooco_gym.sim.state import OFFLINE, PUSH_WAITING, RESIDENT


@inner
def gather_evictable(state, instance, row):
    """Writes the members that may lose their memory to State.picks; returns (how many, their blocks)."""
    spec, found, blocks = state.instances[instance], 0, 0
    write_down(state, instance)
    for i in range(member_count(spec, row)):
        slot = state.members[row, instance, i]
        status = state.requests[slot].status
        if status == RESIDENT or (status == PUSH_WAITING and row == OFFLINE):
            state.picks[found] = slot
            blocks += state.requests[slot].blocks
            found += 1
    return found, blocks


@inlined
def gather_waiting(state, instance):
    """Writes the first waiting offline requests whose prefill fits to State.picks; returns how many."""
    spec, found = state.instances[instance], 0
    if not has_room(state, instance):
        return found
    slots, lengths, picks = state.front[instance, FIRST], state.front[instance, FIRST_LENGTH], state.picks
    most = spec.free_blocks * state.config.block_tokens - 1  # tokens, with room for the next one
    size = spec.front_size
    if size > 0 and state.front[instance, SHORTEST_LENGTH, size - 1] <= most:  # the longest fits, and so do all
        for place in range(size):
            picks[place] = slots[place]
        return size
    for place in range(size):
        picks[found] = slots[place]
        found += lengths[place] <= most
    return found


@inner
def legal(answer, count):
    """An answer from outside that is out of range falls back to the first candidate."""
    return answer if 0 <= answer < count else 0
