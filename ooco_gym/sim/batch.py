"""The batch of a decode run: its requests, and the effects of its steps on them.

Steps take memory for next tokens, generate tokens, record inter-token times, and make SLO
violations certain.
"""

import math

import numpy as np

from ooco_gym.compile import inlined, inner
from ooco_gym.compile.instructions import prefetch
from ooco_gym.perf.latency import decode_latency
from ooco_gym.sim import state as s
from ooco_gym.sim.costs import MAX_STEPS, blocks_for, decode_sum, length
from ooco_gym.sim.lanes import (
    COMPOSED,
    GAP,
    LATEST,
    UNKNOWN,
    WRITTEN,
    drop_lanes,
    fewest_left,
    first_miss,
    hold_until,
    laned,
    lay,
    member_count,
    open_lanes,
    stretch_gaps,
    write_down,
)
from ooco_gym.sim.memory import (
    PS_PER_US,
    TPOT_BIT,
    charge_miss,
    check_token,
    finish_deadline,
    take_blocks_since,
)
from ooco_gym.sim.queues import number_members


@inner
def _fill_picked(state, instance, picks):
    """Writes the picked slots that are residents of the instance to the batch row, each once;
    returns their number."""
    spec, count = state.instances[instance], 0
    seen = state.scratch  # indexed as the member lists
    seen[s.URGENT, : spec.urgent_members] = 0
    seen[s.OFFLINE, : spec.offline_members] = 0
    number_members(state, instance)
    for i in range(picks):
        slot = state.picks[i]
        if slot < 0 or slot >= state.requests.size:
            continue
        request = state.requests[slot]
        row, index = s.URGENT if request.urgent else s.OFFLINE, request.position
        if not 0 <= index < member_count(spec, row) or state.members[row, instance, index] != slot:
            continue  # checked here: the request's `instance` is on another cache line of its record
        if request.status == s.RESIDENT and seen[row, index] == 0:
            seen[row, index] = 1
            state.members[s.BATCH, instance, count] = slot
            count += 1
    return count


@inlined
def _fill_all(state, instance):
    """Writes all decodable requests to the batch row, urgent ones first; returns their number.

    If these are all members, and rules flush the instances that they read, the next flush writes
    them.
    """
    spec, count, batch = state.instances[instance], 0, state.members[s.BATCH, instance]
    if state.config.rules_flush and spec.decodable == spec.urgent_members + spec.offline_members:
        spec.unwritten = COMPOSED
        return spec.decodable
    for row in (s.URGENT, s.OFFLINE):
        members = state.members[row, instance]
        for i in range(member_count(spec, row)):
            if state.requests[members[i]].status == s.RESIDENT:
                batch[count] = members[i]
                count += 1
    return count


@inlined
def fill_batch(state, instance, picks):
    """Writes the batch row: all decodable requests (`picks` < 0), or the valid ones of
    State.picks[:picks]."""
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
    """Blocks that the batch needs beyond those held, for `steps` more tokens each."""
    total = 0
    write_down(state, instance)
    for i in range(state.instances[instance].running):
        slot = state.members[s.BATCH, instance, i]
        total += max(0, blocks_for(state, length(state, slot) + steps) - state.requests[slot].blocks)
    return total


@inner
def fits_for_sure(state, instance, steps):
    """Whether the batch can generate `steps` more tokens each, however full its requests' last
    blocks are."""
    spec = state.instances[instance]
    return spec.running * (steps // state.config.block_tokens + 1) <= spec.free_blocks


@inner
def steps_in_memory(state, instance, most):
    """Largest number of steps, up to `most`, whose growth fits the free blocks; at least 1 (checked
    before)."""
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
    """Makes a request hold the blocks of `tokens`; returns the number of new blocks."""
    missing = tokens - request.blocks * block_tokens
    more = np.int64(missing > 0)  # no branch: which request needs one more is unpredictable
    if missing > block_tokens:
        more = (missing + block_tokens - 1) // block_tokens
    request.blocks += more
    return more


@inner
def leave_batch(state, instance, slot):
    """Removes a request that loses its memory from the running batch, if it is in it."""
    spec = state.instances[instance]
    if spec.activity != s.DECODE:
        return
    for i in range(spec.running):
        if state.members[s.BATCH, instance, i] == slot:
            for j in range(i, spec.running - 1):
                state.members[s.BATCH, instance, j] = state.members[s.BATCH, instance, j + 1]
            spec.running -= 1
            spec.urgent_running -= state.requests[slot].urgent
            return


@inner
def first_step_fits(state, instance):
    """Whether the batch's next token fits the free memory."""
    spec = state.instances[instance]
    return spec.running <= spec.free_blocks or growth(state, instance, 1) <= spec.free_blocks


ITL_FIRST_PS = 100_000_000  # 0.1 ms: upper edge of the first bin of inter-token times
ITL_WIDTH = math.log(1.02)
US = np.uint64(PS_PER_US)
AHEAD = 16  # records prefetched ahead of the one being read
MOST_LANE_STEPS = 2**30  # lanes are int32: they restart before they overflow


@inlined
def itl_bin(gap_ps):
    """Bin of an inter-token time: logarithmic, 2 % wide."""
    if gap_ps <= ITL_FIRST_PS:
        return 0
    return min(s.ITL_BINS - 1, 1 + int(math.log(gap_ps / ITL_FIRST_PS) / ITL_WIDTH))


@inlined
def first_step(state, slot, time_ps):
    """Notes that a request's first decode step began at `time_ps`, and sets when its TPOT violation
    becomes certain; if that step generates its first token, its end sets it again."""
    request = state.requests[slot]
    request.first_decode_ps = time_ps
    request.latest_ps = time_ps if request.last_token_ps == 0 else first_latest(state, slot)


@inlined
def first_latest(state, slot):
    """Returns when the TPOT violation of a request with a first token becomes certain; NEVER if it
    cannot or already is."""
    request = state.requests[slot]
    if request.online and request.violated & TPOT_BIT == 0:
        return finish_deadline(state, slot, state.config.tpot_from_decode)
    return np.int64(s.NEVER)


@inner
def begin_records(state, batch, size):
    """Reads the requests of a starting run, and takes the memory of their next tokens.

    Returns (sum of context lengths, number of urgent requests, fewest tokens left of one request,
    earliest `latest_ps`, blocks taken).
    """
    context, urgent, left, miss_ps, taken = 0, 0, MAX_STEPS, s.NEVER, 0
    now, block_tokens = state.clock.now_ps, state.config.block_tokens
    for i in range(size):
        request = state.requests[np.uint64(batch[i])]  # unsigned: no check for negative indices
        generated = np.int64(request.generated_tokens)
        tokens = request.prompt_tokens + generated
        context += tokens
        urgent += request.urgent
        left = min(left, request.output_tokens - generated)
        if request.first_decode_ps == 0:
            first_step(state, batch[i], now)
        miss_ps = min(miss_ps, request.latest_ps)
        taken += hold_tokens(request, tokens + 1, block_tokens)
    return context, urgent, left, miss_ps, taken


@inlined
def begin_lanes(state, instance):
    """Gives every member lanes, and the memory of its next token. Returns the last three values of
    `begin_records`."""
    spec, now, first_ps = state.instances[instance], state.clock.now_ps, np.int64(s.NEVER)
    if spec.lanes and spec.lane_steps > MOST_LANE_STEPS:
        drop_lanes(state, instance)
    if spec.lanes == 0:
        open_lanes(state, instance)
    taken = hold_until(state, instance, spec.lane_steps + 1)
    for row in (s.URGENT, s.OFFLINE):
        for index in range(laned(spec, row), member_count(spec, row)):
            slot = state.members[row, instance, index]
            request = state.requests[slot]
            if request.first_decode_ps == 0:
                first_step(state, slot, now)
            if request.last_token_ps == 0:
                first_ps = now  # its first token ends the run, as a violation would
            taken += hold_tokens(request, request.prompt_tokens + np.int64(request.generated_tokens) + 1,
                                 state.config.block_tokens)
            lay(state, instance, row, index, slot)
    spec.laned_urgent, spec.laned_offline = spec.urgent_members, spec.offline_members
    return min(MAX_STEPS, fewest_left(state, instance)), min(first_ps, first_miss(state, instance)), taken


@inlined
def advance(state, instance, steps, end_ps, ahead):
    """Ends the first `steps` steps of a run, at `end_ps`: tokens, inter-token times, certain
    violations.

    Every request then holds the memory of its tokens and of `ahead` more (1 if the run goes on).
    """
    spec = state.instances[instance]
    first = end_ps - spec.start_ps
    last = first
    if steps > 1:
        first = decode_latency(state, spec.table, spec.batch_size, spec.context)
        last = decode_latency(state, spec.table, spec.batch_size, spec.context + (steps - 1) * spec.batch_size)
    if spec.lanes:
        continuing, usual, taken, times_us = _advance_lanes(state, instance, steps, end_ps, ahead, first, last)
    else:
        continuing, usual, taken, times_us = _advance_records(state, instance, steps, end_ps, ahead, first, last)
    if taken > 0:
        take_blocks_since(state, instance, taken, times_us)
    if usual > 0:
        state.itl[itl_bin(first)] += usual
    if end_ps > spec.miss_ps:
        _check_tokens(state, instance, end_ps)
    if steps > 1 and continuing > 0:
        _count_gaps(state, instance, steps, continuing)
    spec.urgent_context += steps * spec.urgent_running
    spec.offline_context += steps * (spec.running - spec.leaving - spec.urgent_running)
    spec.decoded_tokens += steps * spec.running
    spec.decode_steps += steps
    spec.decode_ps += end_ps - spec.start_ps
    spec.steps_begun += steps
    spec.context += steps * spec.batch_size
    spec.steps -= steps
    spec.left -= steps
    spec.start_ps = end_ps


@inlined
def _advance_lanes(state, instance, steps, end_ps, ahead, first, last):
    """Advances members with lanes by the first `steps` steps of a run: tokens, inter-token times
    and memory.

    Returns (counted online requests, those whose last token came when the run began, blocks taken,
    sum of the times of taking them in us).
    """
    spec, gaps = state.instances[instance], state.gaps[instance, GAP]
    first_ps = spec.start_ps + first
    gap = first_ps - spec.lane_token_ps
    stretch_gaps(state, instance, max(gap, last))
    continuing = np.int64(spec.lane_counted)
    usual = continuing if gap == first else 0
    if 0 < continuing != usual:
        state.itl[itl_bin(gap)] += continuing
    for index in range(spec.seasoned_urgent, spec.laned_urgent):  # members with their own last-token time
        request = state.requests[state.members[s.URGENT, instance, index]]
        if not request.online:
            continue
        if request.last_token_ps == 0:
            spec.lane_gap_ps = 0
            continuing += request.counted
            continue
        gap = first_ps - request.last_token_ps
        gaps[index] = max(gaps[index], gap, last)
        spec.lane_gap_ps = min(spec.lane_gap_ps, gaps[index])
        if request.counted:
            continuing += 1
            if gap == first:
                usual += 1
            else:
                state.itl[itl_bin(gap)] += 1
    spec.lane_counted = continuing
    spec.seasoned_urgent, spec.seasoned_offline = spec.laned_urgent, spec.laned_offline
    times_us = _growth_times_us(state, instance, spec.lane_steps + steps + ahead)
    spec.lane_steps += steps
    spec.lane_token_ps = end_ps
    spec.stale = 1
    return continuing, usual, hold_until(state, instance, spec.lane_steps + ahead), times_us


@inlined
def _growth_times_us(state, instance, last):
    """Sum over blocks of the times at which members with lanes take them, up to lane step `last`,
    in us. A block is taken when the step that generates its first token begins."""
    spec, ends, size = state.instances[instance], state.ends[instance], state.config.block_tokens
    steps = last - spec.lane_held
    if steps <= 0:
        return np.int64(0)
    lines, n = state.decode_lines[spec.table, spec.batch_size], spec.batch_size
    one, other = lines[0] + lines[1] * spec.context, lines[2] + lines[3] * spec.context
    more, other_more = lines[1] * n, lines[3] * n
    total, time_ps, index = np.uint64(0), np.uint64(spec.start_ps), -spec.lane_held % size
    for _ in range(steps):
        time_ps += np.uint64(max(one, other))
        one += more
        other += other_more
        total += np.uint64(ends[index]) * (time_ps // US)  # unsigned: a multiplication replaces the division
        index = index - 1 if index > 0 else size - 1
    return np.int64(total)


@inner
def _advance_records(state, instance, steps, end_ps, ahead, first, last):
    """As `_advance_lanes`, for requests without lanes."""
    spec = state.instances[instance]
    continuing, usual, taken, times_us = 0, 0, 0, np.int64(0)
    batch, block_tokens = state.members[s.BATCH, instance], state.config.block_tokens
    first_ps, worst_ps = spec.start_ps + first, state.config.inter_token_slo_ps
    grows = steps + ahead > 1  # the first step's memory was taken as the run began
    for i in range(min(AHEAD, spec.running)):
        prefetch(state.requests[np.uint64(batch[i])], 0)
    for i in range(spec.running):
        prefetch(state.requests[np.uint64(batch[min(i + AHEAD, spec.running - 1)])], 0)
        request = state.requests[np.uint64(batch[i])]
        if request.online and request.last_token_ps > 0:
            gap = first_ps - request.last_token_ps
            longest = max(gap, last)
            if longest > request.max_gap_ps:  # noqa: PLR1730 (a store that changes nothing costs time too)
                request.max_gap_ps = longest
            if longest > worst_ps:
                charge_miss(state, batch[i], TPOT_BIT, end_ps)
            if request.counted:
                continuing += 1
                if gap == first:  # its last token came when this run began
                    usual += 1
                else:
                    state.itl[itl_bin(gap)] += 1
        generated = request.generated_tokens + steps
        request.generated_tokens = generated
        request.last_token_ps = end_ps
        if grows:
            full = request.blocks * block_tokens - (request.prompt_tokens + generated - steps)  # steps until full
            more = hold_tokens(request, request.prompt_tokens + generated + ahead, block_tokens)
            taken += more
            for block in range(more):
                since_ps = decode_sum(state, spec.table, spec.batch_size, spec.context, full + block * block_tokens)
                times_us += (spec.start_ps + since_ps) // PS_PER_US
    return continuing, usual, taken, times_us


@inner
def _check_tokens(state, instance, time_ps):
    """Records first tokens, and charges TPOT violations of running requests with tokens to come
    (`finish` checks the others)."""
    spec = state.instances[instance]
    write_down(state, instance)
    for i in range(spec.running):
        slot = state.members[s.BATCH, instance, i]
        request = state.requests[slot]
        if request.first_token_ps == 0:
            request.first_token_ps = request.first_decode_ps = time_ps  # decodes count from the next step
            request.latest_ps = first_latest(state, slot)
        if request.online and request.generated_tokens < request.output_tokens:
            check_token(state, slot, time_ps)
    if spec.lanes:
        for index in range(spec.laned_urgent):
            state.gaps[instance, LATEST, index] = state.requests[state.members[s.URGENT, instance, index]].latest_ps
        spec.lane_miss_ps = UNKNOWN


@inlined
def _count_gaps(state, instance, steps, requests):
    """Counts the inter-token times of all but the first step of a run."""
    spec = state.instances[instance]
    low = itl_bin(decode_latency(state, spec.table, spec.batch_size, spec.context + spec.batch_size))
    high = itl_bin(decode_latency(state, spec.table, spec.batch_size, spec.context + (steps - 1) * spec.batch_size))
    if low == high:
        state.itl[low] += requests * (steps - 1)
        return
    for step in range(1, steps):
        gap = decode_latency(state, spec.table, spec.batch_size, spec.context + step * spec.batch_size)
        state.itl[itl_bin(gap)] += requests
