"""Per-member figures that every decode step changes, side by side instead of in the members' records.

A step gives each request of its batch a token. Written to the records, that is a line of memory for each of them; here
it is one number for the whole instance (`lane_steps`), and what depends on the request stands in lanes, an array each,
in the order of the member lists: at which step it has all its tokens, how long it was at step 0, the longest time
between two of its tokens, when its TPOT miss becomes certain. A processor takes many entries of a lane at once, where
the loop over them changes nothing else. How many need a block at a step depends on where in its last block each one
stands: they are counted by that.

Lanes hold while every member takes part in every run. The first `laned` members of a list have them, the first
`seasoned` of these have made a step on them: members join at the end of their list and keep their order. A record is
brought up to date where it is about to be read (`write_down`: a flush).
"""

import numpy as np

from ooco_gym.compile import inlined, inner
from ooco_gym.compile.instructions import prefetch
from ooco_gym.sim import state as s
from ooco_gym.sim.costs import blocks_for
from ooco_gym.sim.records import CACHE_LINE
from ooco_gym.sim.waiting import close_gap

FINISH, BASE = 0, 2  # rows of State.lanes[instance]: each two, for URGENT and OFFLINE members
GAP, LATEST = range(2)  # rows of State.gaps[instance], of urgent members
WRITTEN, COMPOSED, ENDED = range(3)  # what is left out of an instance's batch row: nothing, the batch, the last one
UNKNOWN = -1  # when the first of them has all its tokens, or misses, must be looked for anew


@inlined
def laned(spec, row):
    """How many members of a list have lanes."""
    return spec.laned_urgent if row == s.URGENT else spec.laned_offline


@inlined
def seasoned(spec, row):
    """How many of them have made a step on their lanes."""
    return spec.seasoned_urgent if row == s.URGENT else spec.seasoned_offline


@inlined
def member_count(spec, row):
    """Length of a member list: URGENT or OFFLINE."""
    return spec.urgent_members if row == s.URGENT else spec.offline_members


@inlined
def may_run_on_lanes(state, instance):
    """Whether the batch just composed is every member, in the order of the lists."""
    spec = state.instances[instance]
    return spec.whole == 1 and spec.running == spec.urgent_members + spec.offline_members and (
        state.config.inter_token_slo_ps >= s.NEVER)


@inner
def open_lanes(state, instance):
    """Lanes begin anew, empty."""
    spec = state.instances[instance]
    spec.lanes, spec.stale, spec.lane_steps, spec.lane_held, spec.lane_counted = 1, 0, 0, 0, 0
    spec.laned_urgent, spec.laned_offline, spec.seasoned_urgent, spec.seasoned_offline = 0, 0, 0, 0
    spec.lane_gap_ps, spec.lane_first, spec.lane_miss_ps = s.NEVER, s.NEVER, s.NEVER
    state.ends[instance] = 0


@inlined
def lay(state, instance, row, index, slot):
    """Lays the lanes of a member whose record is up to date and has the blocks that its next token needs, no more."""
    spec, request, lanes = state.instances[instance], state.requests[slot], state.lanes[instance]
    generated = np.int64(request.generated_tokens)
    finish = spec.lane_steps + request.output_tokens - generated
    lanes[FINISH + row, index] = finish
    base = request.prompt_tokens + generated - spec.lane_steps
    lanes[BASE + row, index] = base
    state.ends[instance, base % state.config.block_tokens] += 1
    spec.lane_first = min(spec.lane_first, finish)
    if row == s.URGENT:
        state.gaps[instance, GAP, index] = request.max_gap_ps
        state.gaps[instance, LATEST, index] = request.latest_ps
        spec.lane_gap_ps = min(spec.lane_gap_ps, request.max_gap_ps)
        spec.lane_miss_ps = min(spec.lane_miss_ps, request.latest_ps)


@inlined
def hold_until(state, instance, step):
    """Lets every member with lanes hold the memory of its tokens up to a step. Returns the blocks that it takes."""
    spec, taken, size = state.instances[instance], 0, state.config.block_tokens
    steps, ends = step - spec.lane_held, state.ends[instance]
    if steps <= 0:
        return taken
    if steps >= size:  # each of them as many more as there are whole blocks in it
        taken = steps // size * (spec.laned_urgent + spec.laned_offline)
        steps %= size
    index = -spec.lane_held % size  # of the members with full blocks so far
    for _ in range(steps):
        taken += ends[index]
        index = index - 1 if index > 0 else size - 1
    spec.lane_held, spec.stale = step, 1
    return taken


@inlined
def fewest_left(state, instance):
    """Steps after which the first member with lanes has all its tokens."""
    spec = state.instances[instance]
    if spec.lane_first == UNKNOWN:
        spec.lane_first = s.NEVER
        for row in (s.URGENT, s.OFFLINE):
            if laned(spec, row) == 0:
                continue
            first = _first_of(state.lanes[instance, FINISH + row, : laned(spec, row)])
            if first >> 32 < spec.lane_first:
                spec.lane_first = first >> 32
                request = state.requests[state.members[row, instance, first & 0xFFFFFFFF]]
                for line in range(3):  # it will be flushed when it is no longer in the cache
                    prefetch(request, line * CACHE_LINE)
    return spec.lane_first - spec.lane_steps


@inlined
def _first_of(values):
    """The least of some numbers, times 2**32, plus the index of the first that has it."""
    least = np.int64(values[0]) << 32
    for index in range(values.size):
        least = min(least, (np.int64(values[index]) << 32) | index)
    return least


@inlined
def first_miss(state, instance):
    """When the first TPOT miss of a member with lanes becomes certain; NEVER where none does."""
    spec = state.instances[instance]
    if spec.lane_miss_ps == UNKNOWN:
        first, latest = np.int64(s.NEVER), state.gaps[instance, LATEST, : spec.laned_urgent]
        for index in range(latest.size):
            first = min(first, latest[index])
        spec.lane_miss_ps = first
    return spec.lane_miss_ps


@inlined
def gather_lengths(state, instance, row, lengths, slots):
    """Writes lengths (context, in tokens) and slots of those members of a class that decode, in the order of their
    list, as far as the instance's totals are flushed (`decode.flush_totals`).

    Args:
        state: the episode.
        instance: that has the members.
        row: URGENT or OFFLINE.
        lengths, slots: int64[members], written.

    Returns:
        How many they are.
    """
    spec, members = state.instances[instance], state.members[row, instance]
    size, first, count = member_count(spec, row), 0, 0
    if spec.lanes and spec.decodable == spec.urgent_members + spec.offline_members:
        first = count = np.int64(laned(spec, row))
        base, steps = state.lanes[instance, BASE + row, :count], spec.lane_steps
        for index in range(base.size):
            lengths[index] = base[index] + steps
        for index in range(base.size):
            slots[index] = members[index]
    else:
        write_down(state, instance)
    for index in range(first, size):
        request = state.requests[members[index]]
        if request.status == s.RESIDENT:
            lengths[count], slots[count] = request.prompt_tokens + request.generated_tokens, members[index]
            count += 1
    return count


@inlined
def stretch_gaps(state, instance, gap_ps):
    """A time between two tokens of all urgent members that have made a step on lanes; `lane_gap_ps` is the least of
    what is noted of any."""
    spec = state.instances[instance]
    if gap_ps <= spec.lane_gap_ps:
        return
    spec.lane_gap_ps, gaps = gap_ps, state.gaps[instance, GAP, : spec.seasoned_urgent]
    for index in range(gaps.size):
        gaps[index] = max(gaps[index], gap_ps)


@inlined
def write_record(state, instance, row, index):
    """Brings the record of a member with lanes up to date."""
    spec, lanes = state.instances[instance], state.lanes[instance]
    request = state.requests[state.members[row, instance, index]]
    finish = np.int64(lanes[FINISH + row, index])
    request.generated_tokens = request.output_tokens - (finish - spec.lane_steps)
    request.blocks = blocks_for(state, lanes[BASE + row, index] + spec.lane_held)
    if index < seasoned(spec, row):
        request.last_token_ps = spec.lane_token_ps
    if request.online:
        request.max_gap_ps = state.gaps[instance, GAP, index]


@inlined
def write_slot(state, instance, slot):
    """Brings the record of one member up to date."""
    spec, row = state.instances[instance], s.URGENT if state.requests[slot].urgent else s.OFFLINE
    if spec.stale == 0:
        return
    members = state.members[row, instance, : laned(spec, row)]
    for index in range(members.size):
        if members[index] == slot:
            write_record(state, instance, row, index)
            return


@inner
def write_batch(state, instance):
    """Writes the batch row, where it was left out: of a run that is every member that has lanes, of one that is only
    composed every member. Of a run that has ended, members that have left are -1."""
    spec, count, batch = state.instances[instance], 0, state.members[s.BATCH, instance]
    if spec.unwritten == WRITTEN:
        return
    composed = spec.unwritten == COMPOSED and spec.activity != s.DECODE
    spec.unwritten = WRITTEN
    for row in (s.URGENT, s.OFFLINE):
        size = np.int64(laned(spec, row))
        if composed:
            size = member_count(spec, row)
        for index in range(size):
            batch[count] = state.members[row, instance, index]
            count += 1
    batch[count : max(count, spec.running)] = -1


@inner
def write_down(state, instance):
    """Brings the records of an instance's members, and its batch row, up to date."""
    spec = state.instances[instance]
    write_batch(state, instance)
    if spec.stale == 0:
        return
    for row in (s.URGENT, s.OFFLINE):
        for index in range(laned(spec, row)):
            write_record(state, instance, row, index)
    spec.stale = 0


@inner
def drop_lanes(state, instance):
    """From now on the records of an instance's members are kept up to date one by one."""
    write_down(state, instance)
    state.instances[instance].lanes = 0


@inlined
def leave_lanes(state, instance, row, index, request):
    """A member leaves its list: those behind it move up, in the lanes too."""
    spec, lanes = state.instances[instance], state.lanes[instance]
    if spec.lanes == 0 or index >= laned(spec, row):
        return
    last = laned(spec, row) - 1
    if lanes[FINISH + row, index] == spec.lane_first:
        spec.lane_first = UNKNOWN
    state.ends[instance, lanes[BASE + row, index] % state.config.block_tokens] -= 1
    close_gap(lanes[FINISH + row], index, last)
    close_gap(lanes[BASE + row], index, last)
    if row == s.OFFLINE:
        spec.laned_offline = last
        spec.seasoned_offline -= index < spec.seasoned_offline
        return
    if state.gaps[instance, LATEST, index] == spec.lane_miss_ps:
        spec.lane_miss_ps = UNKNOWN
    close_gap(state.gaps[instance, GAP], index, last)
    close_gap(state.gaps[instance, LATEST], index, last)
    spec.laned_urgent = last
    if index < spec.seasoned_urgent:
        spec.seasoned_urgent -= 1
        spec.lane_counted -= request.online & request.counted


