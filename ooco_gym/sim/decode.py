"""Decode runs: as many equal steps at once as nothing can change in between.

A run is a batch and a number of steps. It ends by itself where something changes inside (a request finishes, memory
runs short, the composition would change), and an event from outside cuts it at the end of the step in progress. While
a step runs, its requests already hold the memory of the token that it makes.
"""

import math

import numpy as np

from ooco_gym.compile import inner
from ooco_gym.sim.batch import hold_tokens, steps_in_memory
from ooco_gym.sim.carry import GROWING, JOINED, carries, carry_over, forget
from ooco_gym.sim.costs import MAX_STEPS, decode_latency, decode_sum, jittered, steps_to_reach, steps_within
from ooco_gym.sim.memory import (
    TPOT_BIT,
    cancel_reservation,
    charge_miss,
    check_token,
    count,
    finish,
    finish_deadline,
    take_blocks,
)
from ooco_gym.sim.queues import (
    LOG_DECODE_RUN,
    add_dispatch,
    leave_decodable,
    log_event,
    remove_member,
    schedule,
    stop_at_layer,
)
from ooco_gym.sim.state import (
    BATCH,
    BLOCK_TOKENS,
    BULK,
    DECODE,
    GAP_PS,
    HOLD,
    IDLE,
    ITL_BINS,
    NEVER,
    NOW,
    RESIDENT,
    SOURCE,
    STOP,
    TPOT_FROM_DECODE,
    WASTED_PS,
)

ITL_FIRST_PS = 100_000_000  # 0.1 ms: the upper edge of the first bin of inter-token times
ITL_WIDTH = math.log(1.02)


@inner
def itl_bin(gap_ps):
    """Bin of an inter-token time: logarithmic, 2 % wide."""
    if gap_ps <= ITL_FIRST_PS:
        return 0
    return min(ITL_BINS - 1, 1 + int(math.log(gap_ps / ITL_FIRST_PS) / ITL_WIDTH))


@inner
def _past(state, instance):
    """1 where a step that ends exactly now has been dealt with already: events at one time go by source."""
    return 1 if instance < state.counters[SOURCE] else 0


@inner
def first_step(state, slot, time_ps):
    """A request's first decode step began at `time_ps`: from then on it is known by when it must have finished."""
    request, counters = state.requests[slot], state.counters
    request.first_decode_ps = time_ps
    request.latest_ps = NEVER
    if request.online and request.violated & TPOT_BIT == 0:
        request.latest_ps = finish_deadline(state, slot, counters[TPOT_FROM_DECODE])


@inner
def _look_at(state, batch, size):
    """Looks at requests that begin a run, and takes the memory of their next tokens.

    Returns (the sum of their context lengths, how many are urgent, the fewest tokens that one lacks, the first of
    their `latest_ps`, blocks taken).
    """
    context, urgent, left, miss_ps, taken = 0, 0, MAX_STEPS, NEVER, 0
    now, block_tokens = state.counters[NOW], state.counters[BLOCK_TOKENS]
    for i in range(size):
        request = state.requests[np.uint64(batch[i])]  # unsigned: no look at negative places
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


@inner
def _grow(state, instance):
    """Takes the blocks that those who were carried over need for their next tokens; returns how many."""
    taken, block_tokens = 0, state.counters[BLOCK_TOKENS]
    growing = state.carry[GROWING, instance]
    for i in range(state.instances[instance].growing):
        request = state.requests[np.uint64(growing[i])]
        if request.status == RESIDENT:  # and has not finished
            taken += hold_tokens(request, request.prompt_tokens + np.int64(request.generated_tokens) + 1, block_tokens)
    return taken


@inner
def start_run(state, instance):
    """Starts the composed batch, whose first step's growth is known to fit."""
    spec, counters = state.instances[instance], state.counters
    n = spec.running
    if carries(state, instance):
        _, _, steps, miss_ps, taken = _look_at(state, state.carry[JOINED, instance], spec.joined)
        context, urgent = spec.urgent_context + spec.offline_context, spec.urgent_decodable
        steps, miss_ps = min(steps, spec.carried_left), min(miss_ps, spec.carried_miss_ps)
        taken += _grow(state, instance)
    else:
        context, urgent, steps, miss_ps, taken = _look_at(state, state.members[BATCH, instance], n)
    forget(state, instance, steps == MAX_STEPS)
    take_blocks(state, instance, taken)
    spec.left, spec.miss_ps = steps, miss_ps
    if counters[BULK] == 0 or counters[GAP_PS] < NEVER or spec.hold == HOLD or state.tables[spec.table].noise > 0.0:
        steps = 1
    elif spec.bound_ps < NEVER:
        if state.tables[spec.belief].noise > 0.0:
            steps = 1
        else:
            steps = min(steps, max(1, steps_within(state, spec.belief, n, context, spec.bound_ps)))
    if counters[NOW] < spec.pull_wake_ps < NEVER and steps > 1:
        wait = spec.pull_wake_ps - counters[NOW]
        steps = steps_to_reach(state, spec.table, n, context, wait, steps, 0)
    if miss_ps < NEVER and steps > 1:  # ends where a miss becomes certain, so that it is charged at that very step
        steps = steps_to_reach(state, spec.table, n, context, max(1, miss_ps - counters[NOW]), steps, 1)
    if steps > 1:
        steps = steps_in_memory(state, instance, steps)
    spec.activity = DECODE
    spec.start_ps = counters[NOW]
    spec.steps = steps
    spec.batch_size = n
    spec.urgent_running = urgent
    spec.context = context
    spec.interrupted = 0
    spec.end_ps = spec.start_ps + _duration(state, instance, steps)
    spec.natural_end_ps = spec.end_ps
    schedule(state, instance, spec.end_ps)


@inner
def _duration(state, instance, steps):
    spec = state.instances[instance]
    total = decode_sum(state, spec.table, spec.batch_size, spec.context, steps)
    return jittered(state, instance, spec.steps_begun, total) if steps == 1 else total


@inner
def _advance(state, instance, steps, end_ps, ahead):
    """The first `steps` steps of the run are over, at `end_ps`: tokens, inter-token times, certain misses.

    Every request then holds the memory of its tokens and of `ahead` more (1 where the run goes on).
    """
    spec = state.instances[instance]
    first = end_ps - spec.start_ps
    last = first
    if steps > 1:
        first = decode_latency(state, spec.table, spec.batch_size, spec.context)
        last = decode_latency(state, spec.table, spec.batch_size, spec.context + (steps - 1) * spec.batch_size)
    continuing, usual, taken = 0, 0, 0
    batch, block_tokens = state.members[BATCH, instance], state.counters[BLOCK_TOKENS]
    first_ps, worst_ps = spec.start_ps + first, state.counters[GAP_PS]
    grows = steps + ahead > 1  # the memory of the first step's tokens is held since the run began
    growing, more = state.carry[GROWING, instance], 0
    for i in range(spec.running):
        request = state.requests[np.uint64(batch[i])]
        if request.online:
            gap = first_ps - request.last_token_ps
            longest = max(gap, last)
            if longest > request.max_gap_ps:  # noqa: PLR1730 (a store that changes nothing costs time too)
                request.max_gap_ps = longest
            if longest > worst_ps:
                charge_miss(state, batch[i], TPOT_BIT, end_ps)
            if request.counted:
                continuing += 1
                if gap == first:  # it made its last token when this run began
                    usual += 1
                else:
                    state.itl[itl_bin(gap)] += 1
        generated = request.generated_tokens + steps
        request.generated_tokens = generated
        request.last_token_ps = end_ps
        if grows:
            taken += hold_tokens(request, request.prompt_tokens + generated + ahead, block_tokens)
        if ahead == 0:
            growing[more] = batch[i]
            more += request.prompt_tokens + generated >= request.blocks * block_tokens
    spec.growing = more
    take_blocks(state, instance, taken)
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


@inner
def _check_tokens(state, instance, time_ps):
    """Charges the TPOT misses of running requests that still lack tokens (finishing ones are judged as they finish)."""
    for i in range(state.instances[instance].running):
        slot = state.members[BATCH, instance, i]
        request = state.requests[slot]
        if request.online and request.generated_tokens < request.output_tokens:
            check_token(state, slot, time_ps)


@inner
def _count_gaps(state, instance, steps, requests):
    """Inter-token times of all steps of a run but the first."""
    spec = state.instances[instance]
    low = itl_bin(decode_latency(state, spec.table, spec.batch_size, spec.context + spec.batch_size))
    high = itl_bin(decode_latency(state, spec.table, spec.batch_size, spec.context + (steps - 1) * spec.batch_size))
    if low == high:
        state.itl[low] += requests * (steps - 1)
        return
    for step in range(1, steps):
        gap = decode_latency(state, spec.table, spec.batch_size, spec.context + step * spec.batch_size)
        state.itl[itl_bin(gap)] += requests


@inner
def settle(state, instance):
    """Brings a run's books up to now: the steps that are over are written down, the one in progress goes on."""
    spec = state.instances[instance]
    if spec.activity != DECODE or spec.steps <= 1:
        return
    elapsed = state.counters[NOW] - spec.start_ps
    current = steps_to_reach(state, spec.table, spec.batch_size, spec.context, elapsed, spec.steps,
                             _past(state, instance))
    if current > 1:
        over = decode_sum(state, spec.table, spec.batch_size, spec.context, current - 1)
        _advance(state, instance, current - 1, spec.start_ps + over, 1)


@inner
def urgent_load(state, instance):
    """(Urgent requests that decode on an instance, the sum of their context lengths now), in O(1)."""
    spec = state.instances[instance]
    context = spec.urgent_context
    if spec.activity == DECODE and spec.steps > 1:
        elapsed = state.counters[NOW] - spec.start_ps
        context += spec.urgent_running * (steps_to_reach(
            state, spec.table, spec.batch_size, spec.context, elapsed, spec.steps, _past(state, instance)) - 1)
    return spec.urgent_decodable, context


@inner
def cut(state, instance):
    """Lets a run end with the step in progress: something changed that its next step must see. In O(1): not settled."""
    spec = state.instances[instance]
    if spec.activity != DECODE or spec.steps <= 1:
        return
    current = steps_to_reach(state, spec.table, spec.batch_size, spec.context, state.counters[NOW] - spec.start_ps,
                             spec.steps, _past(state, instance))
    if current < spec.steps:
        spec.steps = current
        spec.end_ps = spec.start_ps + _duration(state, instance, current)
        spec.natural_end_ps = spec.end_ps
        schedule(state, instance, spec.end_ps)


@inner
def wake(state, instance):
    """Something changed on an instance: it is dispatched if idle, and its run is cut if it decodes."""
    if state.instances[instance].activity == IDLE:
        add_dispatch(state, instance)
    else:
        cut(state, instance)


@inner
def end_run(state, instance):
    """The run's last step is over. Returns how many requests finished."""
    spec = state.instances[instance]
    if spec.interrupted:
        spec.decode_ps += spec.end_ps - spec.start_ps
        spec.wasted_ps += spec.end_ps - spec.start_ps
        count(state, WASTED_PS, spec.end_ps - spec.start_ps)
        spec.steps_begun += 1
        spec.activity = IDLE
        return 0
    log_event(state, LOG_DECODE_RUN, instance, spec.running, spec.steps)
    certain = spec.end_ps > spec.miss_ps  # somebody's miss: their `latest_ps` changes
    _advance(state, instance, spec.steps, spec.end_ps, 0)
    spec.activity = IDLE
    if spec.left > 0:
        carry_over(state, instance, 0 if certain else spec.running, spec.left, spec.miss_ps)
        return 0
    finished, left, miss_ps, broken = 0, MAX_STEPS, NEVER, spec.broken
    for i in range(spec.running):
        slot = state.members[BATCH, instance, i]
        request = state.requests[slot]
        if request.generated_tokens >= request.output_tokens:
            if request.status == RESIDENT:
                leave_decodable(state, instance, slot)
            else:
                spec.leaving -= 1
                broken = 1
                target = request.target
                cancel_reservation(state, slot)
                wake(state, target)
            remove_member(state, instance, slot)
            finish(state, slot)
            finished += 1
        else:
            left = min(left, request.output_tokens - request.generated_tokens)
            miss_ps = min(miss_ps, request.latest_ps)
    spec.broken = broken
    carry_over(state, instance, spec.running - finished, left, miss_ps)
    return finished


@inner
def interrupt_step(state, instance, layers):
    """Stops the step in progress at its next layer boundary; its tokens are lost. Returns STOP or 0 (too late)."""
    settle(state, instance)
    cut(state, instance)
    return 0 if stop_at_layer(state, instance, layers) < 0 else STOP
