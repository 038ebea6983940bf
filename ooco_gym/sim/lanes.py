"""Per-member values that every decode step changes, in arrays outside the members' records.

A step gives each request of its batch a token. In the records that would touch a cache line per
request. Here one number per instance changes (`lane_steps`), and per-request values are lanes,
arrays in the order of the member lists: the step at which a request has all its tokens, its length
at step 0, its longest inter-token time, and when its TPOT violation becomes certain. Loops over a
lane that change nothing else become vector code. Requests that need a block at a step are counted
by how full their last blocks are.

Lanes hold while every member takes part in every run. The first `laned` members of a list have
lanes; the first `seasoned` of these have made a step on them, as members join at the end and keep
their order. A record is updated before it is read (`write_down`: a flush).
"""

import numpy as np

from ooco_gym.compile import inlined, inner
from ooco_gym.compile.instructions import prefetch
from ooco_gym.sim import state as s
from ooco_gym.sim.costs import blocks_for
from ooco_gym.sim.records import CACHE_LINE
from ooco_gym.sim.waiting import close_gap

FINISH, BASE = 0, 2  # rows of State.lanes[instance], two each: URGENT and OFFLINE members
GAP, LATEST = range(2)  # rows of State.gaps[instance], of urgent members
WRITTEN, COMPOSED, ENDED = range(3)  # what is unwritten in an instance's batch row: nothing, the batch, the last batch
UNKNOWN = -1  # the first to have all its tokens, or to violate, must be searched again


@inlined
def laned(spec, row):
    """Number of a list's members with lanes."""
    return spec.laned_urgent if row == s.URGENT else spec.laned_offline


@inlined
def seasoned(spec, row):
    """Number of these that have made a step on their lanes."""
    return spec.seasoned_urgent if row == s.URGENT else spec.seasoned_offline


@inlined
def member_count(spec, row):
    """Length of a member list, URGENT or OFFLINE."""
    return spec.urgent_members if row == s.URGENT else spec.offline_members


@inlined
def may_run_on_lanes(state, instance):
    """Whether the composed batch is all members, in the order of the lists."""
    spec = state.instances[instance]
    return spec.whole == 1 and spec.running == spec.urgent_members + spec.offline_members and (
        state.config.inter_token_slo_ps >= s.NEVER)


@inner
def open_lanes(state, instance):
    """Resets the instance's lanes to empty."""
    spec = state.instances[instance]
    spec.lanes, spec.stale, spec.lane_steps, spec.lane_held, spec.lane_counted = 1, 0, 0, 0, 0
    spec.laned_urgent, spec.laned_offline, spec.seasoned_urgent, spec.seasoned_offline = 0, 0, 0, 0
    spec.lane_gap_ps, spec.lane_first, spec.lane_miss_ps = s.NEVER, s.NEVER, s.NEVER
    state.ends[instance] = 0


@inlined
def lay(state, instance, row, index, slot):
    """Adds lanes of a member whose record is current and holds exactly the blocks that its next
    token needs."""
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
    """Makes every member with lanes hold the memory of its tokens up to a step. Returns the blocks
    taken."""
    spec, taken, size = state.instances[instance], 0, state.config.block_tokens
    steps, ends = step - spec.lane_held, state.ends[instance]
    if steps <= 0:
        return taken
    if steps >= size:  # each takes as many blocks as `steps` has whole ones
        taken = steps // size * (spec.laned_urgent + spec.laned_offline)
        steps %= size
    index = -spec.lane_held % size  # members with full blocks so far
    for _ in range(steps):
        taken += ends[index]
        index = index - 1 if index > 0 else size - 1
    spec.lane_held, spec.stale = step, 1
    return taken


@inlined
def fewest_left(state, instance):
    """Number of steps until the first member with lanes has all its tokens."""
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
                for line in range(3):  # it will be flushed after it has left the cache
                    prefetch(request, line * CACHE_LINE)
    return spec.lane_first - spec.lane_steps


@inlined
def _first_of(values):
    """The minimum of `values`, times 2**32, plus its first index."""
    least = np.int64(values[0]) << 32
    for index in range(values.size):
        least = min(least, (np.int64(values[index]) << 32) | index)
    return least


@inlined
def first_miss(state, instance):
    """When the first TPOT violation of a member with lanes becomes certain; NEVER if none does."""
    spec = state.instances[instance]
    if spec.lane_miss_ps == UNKNOWN:
        first, latest = np.int64(s.NEVER), state.gaps[instance, LATEST, : spec.laned_urgent]
        for index in range(latest.size):
            first = min(first, latest[index])
        spec.lane_miss_ps = first
    return spec.lane_miss_ps


@inlined
def gather_lengths(state, instance, row, lengths, slots):
    """Writes context lengths and slots of a class's decoding members, in list order, as of the last
    flush of totals (`decode.flush_totals`).

    Args:
        state: the episode.
        instance: the members' instance.
        row: URGENT or OFFLINE.
        lengths, slots: int64[members], written.

    Returns:
        Their number.
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
    """Records an inter-token time for all urgent members that have made a step on lanes;
    `lane_gap_ps` is the least recorded maximum."""
    spec = state.instances[instance]
    if gap_ps <= spec.lane_gap_ps:
        return
    spec.lane_gap_ps, gaps = gap_ps, state.gaps[instance, GAP, : spec.seasoned_urgent]
    for index in range(gaps.size):
        gaps[index] = max(gaps[index], gap_ps)


@inlined
def write_record(state, instance, row, index):
    """Updates a member's record from its lanes."""
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
    """Updates the record of one member."""
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
    """Writes the batch row if it was left out: for a run all members with lanes, for a composed
    batch all members. After a run, members that have left are -1."""
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
    """Updates the records of an instance's members, and its batch row."""
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
    """Ends the lanes: members' records are kept current one by one from now on."""
    write_down(state, instance)
    state.instances[instance].lanes = 0


@inlined
def leave_lanes(state, instance, row, index, request):
    """Removes a leaving member's lanes; later ones move up."""
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


