"""KV memory in blocks, and requests that finish, violate their SLO or lose their memory."""


import math

import numpy as np

from ooco_gym.compile import inlined, inner
from ooco_gym.perf.latency import steady
from ooco_gym.sim import state as s
from ooco_gym.sim.bidirectional import change_host, pair_release, paired
from ooco_gym.sim.blocks import free_table, note_demand, tracked
from ooco_gym.sim.costs import length
from ooco_gym.sim.pool_caches import caches, close_there, keep_prefix
from ooco_gym.sim.queues import enqueue, leave_decodable, leave_push_queue, note_eviction, remove_member
from ooco_gym.sim.sessions import closed, end_call, release

TTFT_BIT, TPOT_BIT = 1, 2
PS_PER_US = 1_000_000
SHARE_WEIGHT = 0.02  # weight of the newest request in the moving share of evicted offline requests
CLIENT_WEIGHT = 0.1  # weight of the newest request in the moving mean of a client's output lengths
MEAN_WEIGHT = 0.01  # weight of the newest request in the moving means of output lengths

# --- Output lengths of the last finished requests of an instance (`output_window`): a ring, and sorted -----------
RING, SORTED = range(2)


@inner
def past_outputs(state, instance, online):
    """(Sorted output lengths of a class's last finished requests on an instance, number finished so
    far).

    Only the first min(finished, window) lengths are set. Without `outputs_by_class` they cover both
    classes.
    """
    spec = state.instances[instance]
    if state.config.outputs_by_class == 0:
        return state.outputs[instance, 0, SORTED], spec.online_finished + spec.offline_finished
    return state.outputs[instance, online, SORTED], spec.online_finished if online else spec.offline_finished


@inner
def count_up_to(ordered, size, value):
    """Number of the first `size` sorted numbers that are at most `value`."""
    low, high = 0, size
    while low < high:
        middle = (low + high) // 2
        if ordered[middle] <= value:
            low = middle + 1
        else:
            high = middle
    return low


@inner
def remember_output(state, slot):
    """Adds a finished request's output length, and drops the oldest if the window is full."""
    request = state.requests[slot]
    spec, row = state.instances[request.instance], request.online if state.config.outputs_by_class else 0
    ordered, finished = past_outputs(state, request.instance, request.online)
    ring, tokens = state.outputs[request.instance, row, RING], request.generated_tokens
    place, size = finished % ring.size, min(finished, ring.size)
    if finished >= ring.size:
        size -= 1
        index = count_up_to(ordered, size + 1, ring[place]) - 1
        for i in range(index, size):
            ordered[i] = ordered[i + 1]
    ring[place] = tokens
    index = count_up_to(ordered, size, tokens)
    for i in range(size, index, -1):
        ordered[i] = ordered[i - 1]
    ordered[index] = tokens
    if request.online:
        spec.online_finished += 1
    else:
        spec.offline_finished += 1


@inlined
def measured(state):
    """Whether the time is in the measured window, to which some sums are limited."""
    clock = state.clock
    return clock.window_start_ps <= clock.now_ps < clock.window_end_ps


@inlined
def change_outstanding(state, service_ps):
    """Changes the amount of offline work in the system, and updates its integral over time."""
    gauges = state.gauges
    span = (state.clock.now_ps - gauges.outstanding_since_ps) / s.PS_PER_S
    state.integrals.waiting_area += gauges.outstanding_ps / s.PS_PER_S * span
    gauges.outstanding_since_ps = state.clock.now_ps
    gauges.outstanding_ps += service_ps


@inner
def change_late(state, requests, time_ps):
    """Changes the number of online requests with a violation that are unfinished, since `time_ps`.

    Violations are found at a flush, later than they happen. So their times are summed in whole
    microseconds, which is exact and does not depend on when they are found.
    """
    state.gauges.late_online += requests
    state.integrals.late_times_us -= requests * (time_ps // PS_PER_US)


@inlined
def late_area(state):
    """Counted online requests past an SLO and unfinished, times seconds, so far."""
    return (state.integrals.late_times_us + state.gauges.late_online * (state.clock.now_ps // PS_PER_US)) / 1e6


@inlined
def take_blocks(state, instance, blocks):
    """Takes free blocks now (negative: returns them)."""
    take_blocks_since(state, instance, blocks, blocks * (state.clock.now_ps // PS_PER_US))


@inlined
def take_blocks_since(state, instance, blocks, times_us):
    """Takes blocks, each since its own time; `times_us` is the sum of these times.

    Blocks in use at a time T, times T, minus the sum of these times is the integral of memory in
    use up to T: an integer that does not depend on how a run is cut.
    """
    spec = state.instances[instance]
    spec.kv_times_us += times_us
    spec.free_blocks -= blocks


@inlined
def free(state, slot):
    """Returns a request's blocks for good."""
    free_blocks(state, slot, False)


@inlined
def free_blocks(state, slot, wanted):
    """Returns a request's blocks; `wanted`: the request will come back for their content."""
    request = state.requests[slot]
    free = np.int64(request.blocks)
    if paired(state):
        free = np.int64(pair_release(state, request.instance, slot))
    elif tracked(state) and request.row >= 0:
        if caches(state) and request.status != s.PREFILLING and state.instances[request.instance].role != s.MIXED:
            keep_prefix(state, slot, length(state, slot) - 1)
        free = np.int64(free_table(state, request.instance, slot, wanted))
    take_blocks(state, request.instance, -free)
    request.blocks = 0


@inner
def cancel_reservation(state, slot):
    """Returns the blocks reserved at a request's destination."""
    request = state.requests[slot]
    target = state.instances[request.target]
    take_blocks(state, request.target, -(close_there(state, slot) if caches(state) else request.target_blocks))
    target.arriving -= 1
    target.arriving_context -= request.target_context
    if not request.urgent:
        target.arriving_pulls -= 1
    target.pull_due = 1
    request.target = -1
    request.target_blocks = 0


@inlined
def finish_deadline(state, slot, first_decode):
    """Latest finish that meets the TPOT SLO (docs/protocol.md), in ps; `first_decode` selects its
    definition."""
    request = state.requests[slot]
    tokens = request.output_tokens - 1
    if request.output_tokens < state.config.tpot_min_tokens:
        return request.arrival_ps + request.ttft_slo_ps + tokens * request.tpot_slo_ps
    if first_decode and request.first_decode_ps > 0:
        return request.first_decode_ps + tokens * request.tpot_slo_ps
    return request.first_token_ps + tokens * request.tpot_slo_ps


@inner
def close_online(state, time_ps):
    """Closes a counted online request: it finished in time, or its violation is certain since
    `time_ps`."""
    gauges = state.gauges
    gauges.open_online -= 1
    gauges.last_closed_ps = max(gauges.last_closed_ps, time_ps)


@inlined
def charge_miss(state, slot, bit, time_ps):
    """Marks an SLO violation that is certain since `time_ps`; counts it if the request counts."""
    request, totals = state.requests[slot], state.totals
    if request.violated & bit:
        return
    clean = request.violated == 0
    request.violated |= bit
    if bit == TPOT_BIT:
        request.latest_ps = s.NEVER
    if not (request.counted and request.online):
        return
    if bit == TTFT_BIT:
        totals.ttft_misses += 1
    else:
        totals.tpot_misses += 1
    if clean:
        totals.violations += 1
        close_online(state, time_ps)
        change_late(state, 1, time_ps)


@inlined
def check_token(state, slot, time_ps):
    """Charges a TPOT violation once a running online request is past its latest finish."""
    request = state.requests[slot]
    if request.violated & TPOT_BIT:
        return
    if time_ps > finish_deadline(state, slot, state.config.tpot_from_decode):
        charge_miss(state, slot, TPOT_BIT, time_ps)


@inner
def _observe_client(state, row, tokens):
    """Counts a finished output among a client's (Welford's running mean and sum of squares)."""
    ended, log = state.ended[row], steady(math.log(tokens))
    ended[0] += 1.0
    change = log - ended[1]
    ended[1] += change / ended[0]
    ended[2] += change * (log - ended[1])
    ended[3] += (tokens - ended[3]) * (CLIENT_WEIGHT if ended[0] > 1.0 else 1.0)


@inlined
def _observe_output(state, slot):
    """Updates what policies may read of finished outputs: moving means, and what is known of the request's client."""
    observed, request = state.observed, state.requests[slot]
    if state.ended.shape[0] > 0:
        own, every = np.int64(state.client[slot]), state.ended.shape[0] - 2 + request.online
        _observe_client(state, every, request.output_tokens)
        if own != every:  # a request of no client counts once
            _observe_client(state, own, request.output_tokens)
    if request.online:
        observed.online_output_mean += MEAN_WEIGHT * (request.output_tokens - observed.online_output_mean)
        observed.online_seen += 1.0
    else:
        observed.offline_output_mean += MEAN_WEIGHT * (request.output_tokens - observed.offline_output_mean)
        observed.offline_seen += 1.0
        state.observed.offline_evicted_share *= 1.0 - SHARE_WEIGHT


@inlined
def finish(state, slot):
    """Finishes a request with its last token: frees its memory and counts its service. It must be
    in no member list."""
    request = state.requests[slot]
    now = state.clock.now_ps
    if not request.online:
        note_demand(state, slot, -1)
    free(state, slot)
    if request.host_tokens > 0:
        change_host(state, request.instance, slot, -request.host_tokens)
    request.status = s.FINISHED
    request.finish_ps = now
    if state.job.size > 0:
        end_call(state, slot, 1)
    if closed(state):
        release(state, slot)
    _observe_output(state, slot)
    if state.config.output_window > 0:
        remember_output(state, slot)
    if request.online:
        if request.output_tokens > 1:
            check_token(state, slot, now)
        if request.counted:
            state.totals.online_finished += 1
            if request.violated == 0:
                close_online(state, now)
            else:
                change_late(state, -1, now)
    else:
        change_outstanding(state, -request.service_ps)
        state.gauges.open_offline -= request.counted
        if measured(state):
            totals = state.totals
            totals.offline_finished += 1
            totals.service_ps += request.service_ps
            totals.offline_output_tokens += request.output_tokens
            totals.offline_prompt_tokens += request.prompt_tokens


@inner
def evict(state, slot):
    """Takes the KV memory of a resident request, which is recomputed later; generated tokens are
    kept.

    The request returns to the head of its origin's queue (OOCO leaves the position open).
    """
    request = state.requests[slot]
    instance = request.instance
    remove_member(state, instance, slot)
    if request.status == s.RESIDENT:
        leave_decodable(state, instance, slot)
    elif request.status == s.PUSH_WAITING:
        leave_push_queue(state, slot)
    note_eviction(state, slot)
    free(state, slot)
    request.status = s.WAITING
    request.kv_lost = 1
    request.evictions += 1
    request.instance = request.origin
    if measured(state):
        state.totals.evictions += 1
    if not request.online:
        state.observed.offline_evicted_share += SHARE_WEIGHT * (1.0 - state.observed.offline_evicted_share)
    enqueue(state, request.origin, slot, True)
