"""What every decode step changes of an instance's members, side by side instead of in their records.

A step gives each request of its batch a token. Written to the records, that is a line of memory for each of them; here
it is one number for the whole instance (`lane_steps`), and what depends on the request stands in lanes, an array each,
in the order of the member lists: at which step it has all its tokens, at which step its blocks are full, how long it
was at step 0, the longest time between two of its tokens, when its TPOT miss becomes certain. A processor takes many
entries of a lane at once, where the loop over them changes nothing else.

Lanes hold while every member takes part in every run. The first `laned` members of a list have them, the first
`seasoned` of these have made a step on them: members join at the end of their list and keep their order. A record is
brought up to date when somebody wants to read it (`write_down`).
"""

import numpy as np

from ooco_gym.compile import inner
from ooco_gym.sim.front import close_gap
from ooco_gym.sim.state import BATCH, BLOCK_TOKENS, DECODE, GAP_PS, NEVER, OFFLINE, RESIDENT, URGENT

FINISH, ROOM, BASE = 0, 2, 4  # rows of State.lanes[instance]: each two, for URGENT and OFFLINE members
GAP, LATEST = range(2)  # rows of State.gaps[instance], of urgent members
WRITTEN, COMPOSED, ENDED = range(3)  # what is left out of an instance's batch row: nothing, the batch, the last one
UNKNOWN = -1  # when the first of them has all its tokens must be looked for anew


@inner
def laned(spec, row):
    """How many members of a list have lanes."""
    return spec.laned_urgent if row == URGENT else spec.laned_offline


@inner
def may_run_on_lanes(state, instance):
    """Whether the batch just composed is every member, in the order of the lists."""
    spec = state.instances[instance]
    return spec.whole == 1 and spec.running == spec.urgent_members + spec.offline_members and (
        state.counters[GAP_PS] >= NEVER)


@inner
def open_lanes(state, instance):
    """Lanes begin anew, of nobody."""
    spec = state.instances[instance]
    spec.lanes, spec.stale, spec.lane_steps, spec.lane_held, spec.lane_counted = 1, 0, 0, 0, 0
    spec.laned_urgent, spec.laned_offline, spec.seasoned_urgent, spec.seasoned_offline = 0, 0, 0, 0
    spec.lane_gap_ps, spec.lane_first = NEVER, NEVER


@inner
def lay(state, instance, row, place, slot):
    """Lays the lanes of a member whose record is up to date, and holds the memory of its next token."""
    spec, request, lanes = state.instances[instance], state.requests[slot], state.lanes[instance]
    generated = np.int64(request.generated_tokens)
    finish = spec.lane_steps + request.output_tokens - generated
    lanes[FINISH + row, place] = finish
    lanes[BASE + row, place] = request.prompt_tokens + generated - spec.lane_steps
    spec.lane_first = min(spec.lane_first, finish)
    lanes[ROOM + row, place] = (spec.lane_steps + np.int64(request.blocks) * state.counters[BLOCK_TOKENS]
                                - request.prompt_tokens - generated)
    if row == URGENT:
        state.gaps[instance, GAP, place] = request.max_gap_ps
        state.gaps[instance, LATEST, place] = request.latest_ps
        spec.lane_gap_ps = min(spec.lane_gap_ps, request.max_gap_ps)


@inner
def hold_until(state, instance, step):
    """Lets every member with lanes hold the memory of its tokens up to a step. Returns the blocks that it takes."""
    spec, taken, size = state.instances[instance], 0, state.counters[BLOCK_TOKENS]
    while spec.lane_held < step:
        spec.lane_held = min(step, spec.lane_held + size)  # in so many steps, a block more each is enough
        for row in (URGENT, OFFLINE):
            taken += _hold(state.lanes[instance, ROOM + row, : laned(spec, row)], spec.lane_held, size)
    if taken > 0:
        spec.stale = 1
    return taken


@inner
def _hold(room, step, size):
    """Gives a block more to those whose tokens do not fit theirs; returns how many they are."""
    step, size, more = np.int32(step), np.int32(size), np.int32(0)
    for place in range(room.size):
        lacks = np.int32(room[place] < step)
        room[place] += lacks * size
        more += lacks
    return more


@inner
def fewest_left(state, instance):
    """Steps after which the first member with lanes has all its tokens."""
    spec = state.instances[instance]
    if spec.lane_first == UNKNOWN:
        spec.lane_first = min(_least(state.lanes[instance, FINISH + URGENT, : spec.laned_urgent]),
                              _least(state.lanes[instance, FINISH + OFFLINE, : spec.laned_offline]))
    return spec.lane_first - spec.lane_steps


@inner
def _least(values):
    least = np.int32(2**31 - 1)
    for place in range(values.size):
        least = min(least, values[place])
    return np.int64(least)


@inner
def first_miss(state, instance):
    """When the first TPOT miss of a member with lanes becomes certain; NEVER where none does."""
    first, latest = np.int64(NEVER), state.gaps[instance, LATEST, : state.instances[instance].laned_urgent]
    for place in range(latest.size):
        first = min(first, latest[place])
    return first


@inner
def gather_lengths(state, instance, row, lengths, slots):
    """Writes lengths (context, in tokens) and slots of those members of a class that decode, in the order of their
    list, as far as the instance's books are settled (`decode.settle_books`).

    Args:
        state: the episode.
        instance: whose members.
        row: URGENT or OFFLINE.
        lengths, slots: int64[members], written.

    Returns:
        How many they are.
    """
    spec, members = state.instances[instance], state.members[row, instance]
    size, first, count = spec.urgent_members if row == URGENT else spec.offline_members, 0, 0
    if spec.lanes and spec.decodable == spec.urgent_members + spec.offline_members:
        first = count = np.int64(laned(spec, row))
        base, steps = state.lanes[instance, BASE + row, :count], spec.lane_steps
        for place in range(base.size):
            lengths[place] = base[place] + steps
        for place in range(base.size):
            slots[place] = members[place]
    else:
        write_down(state, instance)
    for place in range(first, size):
        request = state.requests[members[place]]
        if request.status == RESIDENT:
            lengths[count], slots[count] = request.prompt_tokens + request.generated_tokens, members[place]
            count += 1
    return count


@inner
def stretch_gaps(state, instance, gap_ps):
    """A time between two tokens of all urgent members that have made a step on lanes; `lane_gap_ps` is the least of
    what is noted of any."""
    spec = state.instances[instance]
    if gap_ps <= spec.lane_gap_ps:
        return
    spec.lane_gap_ps, gaps = gap_ps, state.gaps[instance, GAP, : spec.seasoned_urgent]
    for place in range(gaps.size):
        gaps[place] = max(gaps[place], gap_ps)


@inner
def write_record(state, instance, row, place):
    """Brings the record of a member with lanes up to date."""
    spec, lanes = state.instances[instance], state.lanes[instance]
    request = state.requests[state.members[row, instance, place]]
    finish = np.int64(lanes[FINISH + row, place])
    request.generated_tokens = request.output_tokens - (finish - spec.lane_steps)
    tokens = lanes[ROOM + row, place] - finish + request.prompt_tokens + request.output_tokens
    request.blocks = tokens // state.counters[BLOCK_TOKENS]
    if place < (spec.seasoned_urgent if row == URGENT else spec.seasoned_offline):
        request.last_token_ps = spec.lane_token_ps
    if request.online:
        request.max_gap_ps = state.gaps[instance, GAP, place]


@inner
def write_slot(state, instance, slot):
    """Brings the record of one member up to date with its instance's books."""
    spec, row = state.instances[instance], URGENT if state.requests[slot].urgent else OFFLINE
    if spec.stale == 0:
        return
    members = state.members[row, instance, : laned(spec, row)]
    for place in range(members.size):
        if members[place] == slot:
            write_record(state, instance, row, place)
            return


@inner
def write_batch(state, instance):
    """Writes the batch row, where it was left out: of a run that is every member that has lanes, of one that is only
    composed every member. Of a run that has ended, those who have left are nobody (-1)."""
    spec, count, batch = state.instances[instance], 0, state.members[BATCH, instance]
    if spec.unwritten == WRITTEN:
        return
    composed = spec.unwritten == COMPOSED and spec.activity != DECODE
    spec.unwritten = WRITTEN
    for row in (URGENT, OFFLINE):
        size = np.int64(laned(spec, row))
        if composed:
            size = spec.urgent_members if row == URGENT else spec.offline_members
        for place in range(size):
            batch[count] = state.members[row, instance, place]
            count += 1
    batch[count : max(count, spec.running)] = -1


@inner
def write_down(state, instance):
    """Brings the records of an instance's members, and its batch row, up to date with its books."""
    spec = state.instances[instance]
    write_batch(state, instance)
    if spec.stale == 0:
        return
    for row in (URGENT, OFFLINE):
        for place in range(laned(spec, row)):
            write_record(state, instance, row, place)
    spec.stale = 0


@inner
def write_all_down(state):
    """Brings the records of all members of all instances up to date with the books."""
    for instance in range(state.instances.size):
        write_down(state, instance)


@inner
def drop_lanes(state, instance):
    """From now on the records of an instance's members are kept up to date one by one."""
    write_down(state, instance)
    state.instances[instance].lanes = 0


@inner
def leave_lanes(state, instance, row, place, request):
    """A member leaves its list: those behind it move up, in the lanes too."""
    spec, lanes = state.instances[instance], state.lanes[instance]
    if spec.lanes == 0 or place >= laned(spec, row):
        return
    last = laned(spec, row) - 1
    if lanes[FINISH + row, place] == spec.lane_first:
        spec.lane_first = UNKNOWN
    for lane in (FINISH, ROOM, BASE):
        close_gap(lanes[lane + row], place, last)
    if row == OFFLINE:
        spec.laned_offline = last
        spec.seasoned_offline -= place < spec.seasoned_offline
        return
    close_gap(state.gaps[instance, GAP], place, last)
    close_gap(state.gaps[instance, LATEST], place, last)
    spec.laned_urgent = last
    if place < spec.seasoned_urgent:
        spec.seasoned_urgent -= 1
        spec.lane_counted -= request.online & request.counted


