"""KV memory in blocks, and what happens to a request that finishes, misses its SLO or loses its memory."""


import numpy as np

from ooco_gym.compile import inlined, inner
from ooco_gym.sim.bidirectional import pair_release, paired
from ooco_gym.sim.blocks import close_table, told_apart, want
from ooco_gym.sim.costs import length
from ooco_gym.sim.queues import (
    LOG_EVICT,
    LOG_FINISH,
    enqueue,
    leave_decodable,
    leave_push_queue,
    log_event,
    remove_member,
)
from ooco_gym.sim.state import (
    EVICTIONS,
    FINISHED,
    LATE_OPEN,
    LATE_TIMES,
    NEVER,
    NOW,
    OFFLINE_EVICTED_SHARE,
    OFFLINE_FINISHED,
    OFFLINE_OUTPUT_MEAN,
    OFFLINE_OUTPUT_TOKENS,
    OFFLINE_PROMPT_TOKENS,
    OFFLINE_SEEN,
    ONLINE_FINISHED,
    ONLINE_OUTPUT_MEAN,
    ONLINE_SEEN,
    OPEN_ONLINE,
    OUTSTANDING_PS,
    OUTSTANDING_SINCE_PS,
    PS_PER_S,
    PUSH_WAITING,
    RESIDENT,
    SERVICE_PS,
    SETTLED_PS,
    TPOT_FROM_DECODE,
    TPOT_MIN_TOKENS,
    TPOT_MISSES,
    TTFT_MISSES,
    VIOLATIONS,
    WAITING,
    WAITING_AREA,
    WINDOW_END,
    WINDOW_START,
)

TTFT_BIT, TPOT_BIT = 1, 2
PS_PER_US = 1_000_000
SHARE_WEIGHT = 0.02  # of the newest request in the moving share of evicted offline requests
MEAN_WEIGHT = 0.01  # of the newest request in the moving means of output lengths


@inlined
def count(state, counter, amount):
    """Adds to a sum that is kept over the measured window only."""
    counters = state.counters
    if counters[WINDOW_START] <= counters[NOW] < counters[WINDOW_END]:
        counters[counter] += amount


@inlined
def change_outstanding(state, service_ps):
    """Adds to the offline work that is in the system, and keeps the integral of it over time."""
    counters = state.counters
    span = (counters[NOW] - counters[OUTSTANDING_SINCE_PS]) / PS_PER_S
    state.stats[WAITING_AREA] += counters[OUTSTANDING_PS] / PS_PER_S * span
    counters[OUTSTANDING_SINCE_PS] = counters[NOW]
    counters[OUTSTANDING_PS] += service_ps


@inner
def change_late(state, requests, time_ps):
    """Adds to the online requests that are late and unfinished since `time_ps`.

    Misses are found when the books are brought up to date. So their times are summed, in whole microseconds, rather
    than their number over time: that sum is exact, and does not hang on when they are found.
    """
    state.counters[LATE_OPEN] += requests
    state.stats[LATE_TIMES] -= requests * (time_ps // PS_PER_US)


@inlined
def late_area(state):
    """Counted online requests past an SLO and unfinished, times seconds, so far."""
    counters = state.counters
    return (state.stats[LATE_TIMES] + counters[LATE_OPEN] * (counters[NOW] // PS_PER_US)) / 1e6


@inlined
def take_blocks(state, instance, blocks):
    """Takes free blocks (negative: gives them back) and keeps the integral of memory in use."""
    spec = state.instances[instance]
    used = spec.total_blocks - spec.free_blocks
    spec.kv_area += used * ((state.counters[NOW] - spec.kv_since_ps) / PS_PER_S)
    spec.kv_since_ps = state.counters[NOW]
    spec.free_blocks -= blocks


@inlined
def release(state, slot):
    """Gives back the blocks that a request holds, for good."""
    let_go(state, slot, False)


@inlined
def let_go(state, slot, wanted):
    """Gives back the blocks that a request holds; `wanted` says that it will come back for what is in them."""
    request = state.requests[slot]
    free = np.int64(request.blocks)
    if paired(state):
        free = np.int64(pair_release(state, request.instance, slot))
    elif told_apart(state) and request.row >= 0:
        free = np.int64(close_table(state, request.instance, slot, wanted))
    take_blocks(state, request.instance, -free)
    request.blocks = 0


@inner
def cancel_reservation(state, slot):
    """Gives back what was reserved where a request was going to."""
    request = state.requests[slot]
    target = state.instances[request.target]
    take_blocks(state, request.target, -request.target_blocks)
    target.arriving -= 1
    target.arriving_context -= request.target_context
    if not request.urgent:
        target.arriving_pulls -= 1
    target.pull_due = 1
    request.target = -1
    request.target_blocks = 0


@inlined
def finish_deadline(state, slot, first_decode):
    """Latest finish that meets the TPOT SLO (PROTOCOL, online quality), in ps; `first_decode` picks its definition."""
    request, counters = state.requests[slot], state.counters
    tokens = request.output_tokens - 1
    if request.output_tokens < counters[TPOT_MIN_TOKENS]:
        return request.arrival_ps + request.ttft_slo_ps + tokens * request.tpot_slo_ps
    if first_decode and request.first_decode_ps > 0:
        return request.first_decode_ps + tokens * request.tpot_slo_ps
    return request.first_token_ps + tokens * request.tpot_slo_ps


@inner
def settle_online(state, time_ps):
    """One counted online request less is open: it has finished in time, or its miss is certain since `time_ps`."""
    counters = state.counters
    counters[OPEN_ONLINE] -= 1
    counters[SETTLED_PS] = max(counters[SETTLED_PS], time_ps)


@inlined
def charge_miss(state, slot, bit, time_ps):
    """Marks an SLO miss that is certain since `time_ps`; counts it where the request counts."""
    request, counters = state.requests[slot], state.counters
    if request.violated & bit:
        return
    clean = request.violated == 0
    request.violated |= bit
    if bit == TPOT_BIT:
        request.latest_ps = NEVER
    if not (request.counted and request.online):
        return
    if bit == TTFT_BIT:
        counters[TTFT_MISSES] += 1
    else:
        counters[TPOT_MISSES] += 1
    if clean:
        counters[VIOLATIONS] += 1
        settle_online(state, time_ps)
        change_late(state, 1, time_ps)


@inlined
def check_token(state, slot, time_ps):
    """Charges a TPOT miss once an online request that is still running is past its latest finish."""
    request = state.requests[slot]
    if request.violated & TPOT_BIT:
        return
    if time_ps > finish_deadline(state, slot, state.counters[TPOT_FROM_DECODE]):
        charge_miss(state, slot, TPOT_BIT, time_ps)


@inlined
def _observe_output(state, request):
    """Running means of what has finished: all that a policy may know of output lengths."""
    stats = state.stats
    place, seen = (ONLINE_OUTPUT_MEAN, ONLINE_SEEN) if request.online else (OFFLINE_OUTPUT_MEAN, OFFLINE_SEEN)
    stats[place] += MEAN_WEIGHT * (request.output_tokens - stats[place])
    stats[seen] += 1.0
    if not request.online:
        stats[OFFLINE_EVICTED_SHARE] *= 1.0 - SHARE_WEIGHT


@inlined
def finish(state, slot):
    """A request has its last token: its memory goes, its service counts. It must be in no member list any more."""
    request, counters = state.requests[slot], state.counters
    now = counters[NOW]
    if not request.online:
        want(state, slot, -1)
    release(state, slot)
    request.status = FINISHED
    request.finish_ps = now
    log_event(state, LOG_FINISH, request.instance, slot, request.generated_tokens)
    _observe_output(state, request)
    if request.online:
        if request.output_tokens > 1:
            check_token(state, slot, now)
        if request.counted:
            counters[ONLINE_FINISHED] += 1
            if request.violated == 0:
                settle_online(state, now)
            else:
                change_late(state, -1, now)
    else:
        change_outstanding(state, -request.service_ps)
        count(state, OFFLINE_FINISHED, 1)
        count(state, SERVICE_PS, request.service_ps)
        count(state, OFFLINE_OUTPUT_TOKENS, request.output_tokens)
        count(state, OFFLINE_PROMPT_TOKENS, request.prompt_tokens)


@inner
def evict(state, slot):
    """Takes the KV memory of a resident request; it is recomputed later, what it generated is kept.

    It goes back to the head of the queue of the instance that it came from (OOCO leaves the place open).
    """
    request = state.requests[slot]
    instance = request.instance
    remove_member(state, instance, slot)
    if request.status == RESIDENT:
        leave_decodable(state, instance, slot)
    elif request.status == PUSH_WAITING:
        leave_push_queue(state, slot)
    log_event(state, LOG_EVICT, instance, slot, length(state, slot))
    release(state, slot)
    request.status = WAITING
    request.kv_lost = 1
    request.evictions += 1
    request.instance = request.origin
    count(state, EVICTIONS, 1)
    if not request.online:
        state.stats[OFFLINE_EVICTED_SHARE] += SHARE_WEIGHT * (1.0 - state.stats[OFFLINE_EVICTED_SHARE])
    enqueue(state, request.origin, slot, True)

