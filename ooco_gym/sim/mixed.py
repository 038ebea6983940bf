"""Mixed instances: prefill chunks and decodes in one iteration, scheduled as vLLM's V1 scheduler does it.

Every iteration, under one budget of new tokens: first what runs, in the order of admission, each with all the tokens
that it lacks (one for a decode, the rest of its context for a prefill); then what waits, in order, until the head does
not fit. A waiting request is admitted only if its whole context fits the free memory. A running one that lacks a block
takes it from the request that was admitted last, or, where classes count, from the one that counts least; what
loses its memory computes its context again, and nobody is admitted in that iteration.

The running requests of a mixed instance are State.members[BATCH], in the order of admission, also between iterations.
"""

import numpy as np

from ooco_gym.compile import inner
from ooco_gym.sim.costs import (
    attention_latency,
    blocks_for,
    decode_latency,
    dense_latency,
    jittered,
    length,
    prefill_attention,
    prompt_rows,
    prompt_work,
)
from ooco_gym.sim.decode import first_step
from ooco_gym.sim.memory import check_token, count, finish, release, take_blocks
from ooco_gym.sim.prefill import charge_waste, new_token
from ooco_gym.sim.queues import (
    LOG_EVICT,
    LOG_MIXED,
    add_member,
    cancel,
    dequeue,
    enqueue,
    enqueue_by_arrival,
    log_event,
    remove_member,
    schedule,
)
from ooco_gym.sim.state import (
    BATCH,
    CLASS_BLIND,
    EVICTIONS,
    IDLE,
    MIXED_SEQUENCES,
    MIXED_TOKENS,
    MIXING,
    NOW,
    RESERVED_BLOCKS,
    RESIDENT,
    WAITING,
)


@inner
def start_mixed(state, instance):
    """Schedules the next iteration of an idle mixed instance, or lets it rest until something arrives."""
    spec, counters = state.instances[instance], state.counters
    budget, preempted = _continue_running(state, instance, counters[MIXED_TOKENS])
    if preempted == 0 or budget == counters[MIXED_TOKENS]:  # where all it did was to take memory, it is asked again
        budget = _admit_waiting(state, instance, budget)
    if budget == counters[MIXED_TOKENS]:
        cancel(state, instance)
        return
    spec.activity = MIXING
    spec.start_ps = counters[NOW]
    spec.end_ps = spec.start_ps + jittered(state, instance, spec.steps_begun, _latency(state, instance))
    spec.natural_end_ps = spec.end_ps
    spec.steps_begun += 1
    log_event(state, LOG_MIXED, instance, spec.running, counters[MIXED_TOKENS] - budget)
    schedule(state, instance, spec.end_ps)


@inner
def _continue_running(state, instance, budget):
    """Gives running requests their tokens. Returns (budget left, how many requests lost their memory)."""
    spec, batch, place, preempted = state.instances[instance], state.members[BATCH, instance], 0, 0
    for i in range(spec.running):
        state.requests[batch[i]].scheduled_tokens = 0
    while place < spec.running and budget > 0:
        slot = batch[place]
        request = state.requests[slot]
        tokens = min(length(state, slot) - request.computed_tokens, budget)
        while not _grow(state, instance, slot, tokens):
            victim = _victim(state, instance)
            last = batch[victim] == slot
            budget += state.requests[batch[victim]].scheduled_tokens
            _preempt(state, instance, victim)
            preempted += 1
            if last:
                return budget, preempted
            if victim < place:
                place -= 1
        request.scheduled_tokens = tokens
        budget -= tokens
        place += 1
    return budget, preempted


@inner
def _admit_waiting(state, instance, budget):
    """Admits waiting requests, online ones first, until the head does not fit. Returns the budget left."""
    spec, counters = state.instances[instance], state.counters
    while budget > 0 and spec.running < counters[MIXED_SEQUENCES]:
        slot = spec.online_head if spec.online_head >= 0 else spec.offline_head
        if slot < 0 or blocks_for(state, length(state, slot)) > spec.free_blocks - counters[RESERVED_BLOCKS]:
            break
        request = state.requests[slot]
        dequeue(state, instance, slot)
        request.status = RESIDENT
        request.computed_tokens = 0
        request.scheduled_tokens = min(length(state, slot), budget)
        _grow(state, instance, slot, request.scheduled_tokens)
        add_member(state, instance, slot)
        state.members[BATCH, instance, spec.running] = slot
        spec.running += 1
        budget -= request.scheduled_tokens
    return budget


@inner
def _grow(state, instance, slot, tokens):
    """Takes the blocks that `tokens` more computed tokens need; False where they are not free."""
    request, spec = state.requests[slot], state.instances[instance]
    more = blocks_for(state, request.computed_tokens + tokens) - request.blocks
    if more <= 0:
        return True
    if more > spec.free_blocks - state.counters[RESERVED_BLOCKS]:
        return False
    request.blocks += more
    take_blocks(state, instance, more)
    return True


@inner
def _victim(state, instance):
    """Place of the running request that gives way: the last admitted, or by class the one that counts least."""
    spec, batch = state.instances[instance], state.members[BATCH, instance]
    if state.counters[CLASS_BLIND]:
        return spec.running - 1
    worst = 0
    for place in range(1, spec.running):
        a, b = state.requests[batch[place]], state.requests[batch[worst]]
        if a.urgent < b.urgent or (a.urgent == b.urgent and a.arrival_ps > b.arrival_ps):
            worst = place
    return worst


@inner
def _preempt(state, instance, place):
    """Takes the memory of the running request at `place`: it waits again and computes its context anew."""
    slot = state.members[BATCH, instance, place]
    request = state.requests[slot]
    log_event(state, LOG_EVICT, instance, slot, request.computed_tokens)
    _leave(state, instance, place)
    release(state, slot)
    request.kv_lost = request.computed_tokens
    request.computed_tokens = 0
    request.scheduled_tokens = 0
    request.status = WAITING
    request.evictions += 1
    count(state, EVICTIONS, 1)
    if state.counters[CLASS_BLIND]:
        enqueue(state, instance, slot, True)
    else:
        enqueue_by_arrival(state, instance, slot)


@inner
def _leave(state, instance, place):
    """Takes a request out of the running ones, keeping the order of the others."""
    spec, batch = state.instances[instance], state.members[BATCH, instance]
    remove_member(state, instance, batch[place])
    for i in range(place, spec.running - 1):
        batch[i] = batch[i + 1]
    spec.running -= 1


@inner
def _latency(state, instance):
    """Latency of the scheduled iteration, in ps: its linear layers together, its attentions one after the other."""
    spec = state.instances[instance]
    table = spec.table
    tokens, sampled, decodes, decode_context = 0, 0, 0, 0
    prompts, rows, work, context = 0, 0, 0.0, 0
    for i in range(spec.running):
        slot = state.members[BATCH, instance, i]
        request = state.requests[slot]
        new = np.int64(request.scheduled_tokens)
        if new == 0:
            continue
        reach = request.computed_tokens + new
        tokens += new
        sampled += reach == length(state, slot)
        if new == 1:
            decodes += 1
            decode_context += reach
        else:
            prompts += 1
            rows += prompt_rows(state, table, new)
            work += prompt_work(state, table, new, reach)
            context += reach
        if request.generated_tokens > 0 and request.first_decode_ps == 0:
            first_step(state, slot)
    if prompts == 0:
        return decode_latency(state, table, decodes, decode_context)
    attention = prefill_attention(state, table, work, float(rows), float(context), float(prompts))
    latency = (dense_latency(state, table, tokens) + state.head_ps[table, sampled] + np.int64(round(attention))
               + attention_latency(state, table, decodes, decode_context))
    return max(latency, state.tables[table].prefill_floor_ps)


@inner
def end_mixed(state, instance):
    """An iteration is over: contexts have grown, tokens are made, requests finish."""
    spec = state.instances[instance]
    spec.activity = IDLE
    elapsed, batch = spec.end_ps - spec.start_ps, state.members[BATCH, instance]
    tokens, online, offline, decodes = 0, 0, 0, 0
    for i in range(spec.running):
        request = state.requests[batch[i]]
        new = np.int64(request.scheduled_tokens)
        tokens += new
        if request.generated_tokens > 0 and new == 1:
            decodes += 1
        elif request.urgent:
            online += new
        else:
            offline += new
    spec.online_prefill_ps += elapsed * online // tokens
    spec.offline_prefill_ps += elapsed * offline // tokens
    spec.decode_ps += elapsed - elapsed * online // tokens - elapsed * offline // tokens
    spec.decode_steps += decodes > 0
    spec.decoded_tokens += decodes
    place = 0
    while place < spec.running:
        slot = batch[place]
        if _computed(state, instance, slot, elapsed, tokens):
            _leave(state, instance, place)
            finish(state, slot)
        else:
            place += 1


@inner
def _computed(state, instance, slot, elapsed, tokens):
    """One request's part of an iteration of `elapsed` ps and `tokens` tokens is over. Whether it has finished."""
    request, now = state.requests[slot], state.counters[NOW]
    new = np.int64(request.scheduled_tokens)
    request.computed_tokens += new
    again = min(new, request.kv_lost)
    if again > 0:
        request.kv_lost -= again
        charge_waste(state, slot, again, elapsed * again // tokens)
        state.instances[instance].wasted_ps += elapsed * again // tokens
    if new == 0 or request.computed_tokens < length(state, slot):
        return False
    new_token(state, slot, now)
    if request.generated_tokens >= request.output_tokens:
        return True
    if request.online and request.first_decode_ps > 0 and now > request.latest_ps:
        check_token(state, slot, now)
    return False
