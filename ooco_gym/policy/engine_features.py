"""Compiled features of an engine, shared by observations and learned rules of mixed instances.

`ooco_gym.runtime.features` has their table (`ENGINE`) and their meaning.

An observation has some forty logarithms. `log1p` has no calls, branches or tables, so loops over it
become vector code. Its relative error is below 1e-15, which vanishes in float32.
"""

import math
from collections import namedtuple

import numpy as np

from ooco_gym.compile import inlined, inner
from ooco_gym.compile.instructions import LANES, bits_of, float_of, quotient, stack_floats
from ooco_gym.perf.latency import NO_SUMS, add_to_sums, steady, sums_latency
from ooco_gym.policy.latency_budget import decodes, token_slack
from ooco_gym.runtime.features import BLOCKS_S, ENGINE, LOOK_OFFLINE, LOOK_ONLINE, NONE_MS
from ooco_gym.sim import state as s
from ooco_gym.sim.costs import length
from ooco_gym.sim.loop import FAST_S, HALF_HOUR_S, MINUTE_S, SLOW_S
from ooco_gym.sim.step_actions import begins_ps, get_computed_tokens, missing

C = namedtuple("EngineColumns", [one.name for one in ENGINE])(*range(len(ENGINE)))
ROW = len(ENGINE) + -len(ENGINE) % LANES
# Indices of the notes that `engine_row` keeps between calls, or writes for its caller.
HOUR, HOUR_ARRIVED, HOUR_VIOLATED, ALONE_PS, ONLINE_PS, OFFLINE_PS, SLACKS, NOTES = range(8)  # NOTES: their number
HOUR_S = float(BLOCKS_S[1])

LN_2 = math.log(2.0)
_FIRST = np.int64(0x3FE6A09E667F3BCD)  # bits of sqrt(1/2): significands range from there to sqrt(2)
_ONE = np.int64(1023)
_WHOLE = np.int64(0x4330000000000000)  # bits of 2**52; adding a small integer n gives those of 2**52 + n
_2_52 = 2.0**52


@inlined
def log1p(x):
    """Returns log(1 + x) of a finite, non-negative x.

    1 + x is (1 + f) 2**k, and log(1 + f) = 2 artanh(s) with s = f / (2 + f), summed as a series; f
    includes the rounding error of 1 + x.
    """
    u = 1.0 + x
    k = (bits_of(u) - _FIRST) >> 52
    f = (float_of(bits_of(u) - (k << 52)) - 1.0) + (x - (u - 1.0)) * float_of((_ONE - k) << 52)
    s = quotient(f, 2.0 + f)
    z = s * s
    tail = z * (2.0 / 3.0 + z * (2.0 / 5.0 + z * (2.0 / 7.0 + z * (2.0 / 9.0 + z * (2.0 / 11.0 + z * (
        2.0 / 13.0 + z * (2.0 / 15.0 + z * (2.0 / 17.0 + z * (2.0 / 19.0)))))))))
    return (float_of(k + _WHOLE) - _2_52) * LN_2 + (f - s * (f - tail))


@inlined
def online_rate(state, rate, horizon_s):
    """Returns a moving online arrival rate, decayed to now, in requests/s."""
    elapsed = (state.clock.now_ps - state.clock.last_online_arrival_ps) / s.PS_PER_S
    return rate * steady(math.exp(-elapsed / horizon_s))


# --- The engine -----------------------------------------------------------------------------------------------------
def _row(values, beyond):
    return np.array([*values, *[beyond] * (ROW - len(ENGINE))])


engine_stack = stack_floats(ROW)
_LINEAR = _row([1.0 / one.limit if one.scale == "linear" else 0.0 for one in ENGINE], 0.0)
_LOG = _row([0.0 if one.scale == "linear" else 1.0 / math.log1p(one.limit) for one in ENGINE], 0.0)
_LOW = _row([one.low for one in ENGINE], 0.0)


@inlined
def even_sums(count, context):
    """Sums (`sim.mixed.iteration_sums`) of `count` equally long decodes with `context` tokens in
    total."""
    longest = (context + count - 1) // max(count, 1)
    return (count, count, count, context, longest, 0, 0, 0.0, 0, 0)


@inlined
def believed(state, table, count, context, tokens):
    """Predicted latency of `count` decodes and a prompt of `tokens`, in ps."""
    sums = even_sums(count, context)
    if tokens > 0:
        sums = add_to_sums(state, table, sums, tokens, tokens, 1)
    return np.int64(0) if sums[0] == 0 else np.int64(sums_latency(state, table, sums))


@inlined
def _slack_ps(state, slot):
    """Time until an online request's next token is due, by its TTFT or mean TPOT SLO, in ps."""
    request = state.requests[np.uint64(slot)]
    if request.first_token_ps == 0:
        return request.arrival_ps + request.ttft_slo_ps - begins_ps(state, request.instance)
    return token_slack(state, slot, 1.0)


@inlined
def _sort(values, count):
    """Sorts integers; fast if nearly in order, as slacks of requests admitted in turn are."""
    for gap in (57, 10, 1):
        for i in range(gap, count):
            value, j = values[i], i
            while j >= gap and values[j - gap] > value:
                values[j] = values[j - gap]
                j -= gap
            values[j] = value


@inner
def engine_row(state, instance, spent, notes, row):
    """Writes the `ENGINE` features of a mixed instance that is about to compose an iteration.

    Also writes values for the caller to `notes`, and the sorted slacks of online requests to
    State.scratch[0].

    Args:
        spent: (the violation budget, total online arrivals and violations before the present block
            of 10 minutes).
        notes: float64[7 or more], kept between calls.
        row: float64[ROW] from `engine_stack`.
    """
    for index in range(ROW):
        row[index] = 0.0
    before_ps = _running(state, instance, notes, row)
    _prompts(state, instance, before_ps, row)
    _works(state, instance, notes, row)
    _offline(state, instance, row)
    _kept(state, spent, notes, row)
    for index in range(ROW):  # in whole registers; linear features have a logarithm factor of 0
        value = row[index]
        scaled = math.copysign(log1p(abs(value)), value) * _LOG[index] + value * _LINEAR[index]
        row[index] = min(1.0, max(_LOW[index], scaled))


@inner
def _running(state, instance, notes, row):
    """Writes features of the running requests by class; returns the number of online prefills in
    progress."""
    spec, batch = state.instances[instance], state.members[s.BATCH, instance]
    slacks, count, behind, lost, held = state.scratch[0], 0, 0, 0, np.int64(0)
    for place in range(spec.running - 1, -1, -1):  # the last admitted usually has the least slack
        slot = np.int64(batch[np.uint64(place)])
        request = state.requests[np.uint64(slot)]
        tokens = np.int64(request.prompt_tokens) + request.generated_tokens
        lack = tokens - request.num_computed_tokens
        decoding = lack == 1 and request.generated_tokens > 0
        if request.online:
            if decoding:
                row[C.online_decodes] += 1.0
                row[C.online_context] += tokens
            else:
                row[C.online_prompts] += 1.0
                row[C.online_prompt_tokens] += lack
            if request.first_token_ps > 0:
                if request.first_token_ps > request.arrival_ps + request.ttft_slo_ps:
                    lost += 1
                else:
                    slacks[count] = _slack_ps(state, slot)
                    behind += slacks[count] < 0
                    count += 1
        else:
            held += request.blocks
            if decoding:
                row[C.offline_decodes] += 1.0
                row[C.offline_context] += tokens
            else:
                row[C.offline_prompts] += 1.0
                row[C.offline_prompt_tokens] += lack
    _sort(slacks, count)
    notes[SLACKS] = count
    row[C.slack_least] = slacks[0] / 1e9 if count else NONE_MS
    row[C.slack_10] = slacks[np.int64(0.1 * (count - 1))] / 1e9 if count else NONE_MS
    row[C.slack_25] = slacks[np.int64(0.25 * (count - 1))] / 1e9 if count else NONE_MS
    row[C.slack_50] = slacks[np.int64(0.5 * (count - 1))] / 1e9 if count else NONE_MS
    row[C.slack_90] = slacks[np.int64(0.9 * (count - 1))] / 1e9 if count else NONE_MS
    row[C.behind] = behind / max(1, count)
    row[C.lost] = lost
    row[C.kv_free] = spec.free_blocks / spec.total_blocks
    row[C.kv_offline] = held / spec.total_blocks
    row[C.seats_free] = 1.0 - spec.running / state.config.max_num_seqs
    return np.int64(row[C.online_prompts])


@inner
def _prompts(state, instance, under_way, row):
    """Writes features of the online prompts to be computed, in order."""
    spec, batch = state.instances[instance], state.members[s.BATCH, instance]
    queue = (0, 0, np.int64(0), 0, 0, NONE_MS, NONE_MS)  # seen, lost, before, in time, late, least, margin
    place, seen = 0, 0
    while under_way > 0 and place < spec.running:
        slot = batch[place]
        if state.requests[slot].online and not decodes(state, slot):
            queue = _look(state, spec.belief, slot, missing(state, slot), queue, row)
            under_way -= 1
        place += 1
    slot = spec.online_head
    while slot >= 0 and seen < LOOK_ONLINE:
        queue = _look(state, spec.belief, slot, length(state, slot), queue, row)
        slot = state.requests[slot].next
        seen += 1
    looked, lost, _, in_time, late, least, margin = queue
    row[C.lost] += lost
    row[C.ttft_slack], row[C.ttft_margin] = least, margin
    row[C.prompts_late] = late / max(1, in_time)
    if looked < 1:
        row[C.next_slack] = NONE_MS
    if looked < 2:
        row[C.second_slack] = NONE_MS
    row[C.online_waiting], row[C.online_waiting_tokens] = spec.online_waiting, spec.online_waiting_tokens
    row[C.offline_waiting], row[C.offline_waiting_tokens] = spec.offline_waiting, spec.offline_waiting_tokens


@inner
def _look(state, table, slot, lack, queue, row):
    """Adds one online prompt, which comes after those seen so far."""
    looked, lost, before_ps, in_time, late, least, margin = queue
    before_ps += np.int64(sums_latency(state, table, add_to_sums(state, table, NO_SUMS, lack, length(state, slot), 1)))
    slack_ps = _slack_ps(state, slot)
    if looked == 0:
        row[C.next_tokens], row[C.next_slack] = lack, slack_ps / 1e9
    elif looked == 1:
        row[C.second_tokens], row[C.second_slack] = lack, slack_ps / 1e9
    if state.requests[slot].first_token_ps == 0 and slack_ps < 0:
        return looked + 1, lost + 1, before_ps, in_time, late, least, margin
    return (looked + 1, lost, before_ps, in_time + 1, late + (slack_ps < before_ps), min(least, slack_ps / 1e9),
            min(margin, (slack_ps - before_ps) / 1e9))


@inner
def _works(state, instance, notes, row):
    """Writes predicted latencies of parts of an iteration."""
    table, config = state.instances[instance].belief, state.config
    tpot_ps, budget = config.default_tpot_ps, config.max_num_batched_tokens
    online, context = np.int64(row[C.online_decodes]), np.int64(row[C.online_context])
    every, whole = online + np.int64(row[C.offline_decodes]), context + np.int64(row[C.offline_context])
    alone = believed(state, table, online, context, 0)
    row[C.online_step] = alone / tpot_ps
    row[C.decode_step] = believed(state, table, every, whole, 0) / tpot_ps
    tokens = min(budget, np.int64(row[C.online_prompt_tokens] + row[C.online_waiting_tokens]))
    notes[ONLINE_PS] = max(0, believed(state, table, online, context, tokens) - alone)
    tokens = min(budget, np.int64(row[C.offline_prompt_tokens] + row[C.offline_waiting_tokens]))
    notes[OFFLINE_PS] = max(0, believed(state, table, every, whole, tokens) - alone)
    notes[ALONE_PS] = alone
    row[C.online_work], row[C.offline_work] = notes[ONLINE_PS] / 1e9, notes[OFFLINE_PS] / 1e9


@inner
def _offline(state, instance, row):
    """Writes features of the first waiting offline requests, and their tokens in the prefix cache."""
    slot, seen, tokens, cached = state.instances[instance].offline_head, 0, 0, 0
    if slot < 0:
        return
    row[C.offline_wait] = (state.clock.now_ps - state.requests[slot].arrival_ps) / s.PS_PER_S
    row[C.offline_next_tokens] = length(state, slot)
    while slot >= 0 and seen < LOOK_OFFLINE:
        cached += get_computed_tokens(state, instance, slot)
        tokens += length(state, slot)
        if seen == 0:
            row[C.offline_next_cached] = cached / tokens
        slot = state.requests[slot].next
        seen += 1
    row[C.offline_cached] = cached / max(1, tokens)


@inlined
def _kept(state, spent, notes, row):
    """Writes features of the violation budget and arrival rates."""
    totals, observed = state.totals, state.observed
    budget, block_arrived, block_violated = spent
    now = state.clock.now_ps / s.PS_PER_S
    if math.floor(now / HOUR_S) != notes[HOUR] - 1.0:  # number of the hour, from 1 on; 0: none
        notes[HOUR] = math.floor(now / HOUR_S) + 1.0
        notes[HOUR_ARRIVED], notes[HOUR_VIOLATED] = totals.online_arrived, totals.violations
    arrived, violated = totals.online_arrived - block_arrived, totals.violations - block_violated
    row[C.spent_600s] = violated / (max(1e-9, budget) * max(1.0, arrived))
    arrived, violated = totals.online_arrived - notes[HOUR_ARRIVED], totals.violations - notes[HOUR_VIOLATED]
    row[C.spent_3600s] = violated / (max(1e-9, budget) * max(1.0, arrived))
    row[C.online_rate_10s] = online_rate(state, observed.online_rate_fast, FAST_S)
    row[C.online_rate_60s] = online_rate(state, observed.online_rate_minute, MINUTE_S)
    row[C.online_rate_300s] = online_rate(state, observed.online_rate_slow, SLOW_S)
    row[C.online_rate_1800s] = online_rate(state, observed.online_rate_half_hour, HALF_HOUR_S)
    row[C.since_online_arrival] = (state.clock.now_ps - state.clock.last_online_arrival_ps) / s.PS_PER_S


@inlined
def count_late(state, count, step_ps):
    """Returns how many of the `count` slacks that `fill_engine` wrote are below `step_ps`."""
    slacks, low, high = state.scratch[0], 0, count
    while low < high:
        middle = (low + high) // 2
        if slacks[middle] < step_ps:
            low = middle + 1
        else:
            high = middle
    return low
