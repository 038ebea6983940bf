"""Mixed instances: prefill chunks and decodes in one iteration, and the verbs that a scheduler composes it with.

An idle mixed instance asks its policy to compose the next iteration. The rule is the scheduler: it gives tokens to
requests that run, admits waiting ones and takes memory away, by the verbs here, which keep the books; what it then
returns only says whether it has answered. Every request that runs holds its memory, with or without tokens.

The running requests of a mixed instance are State.members[BATCH], in the order of admission, also between iterations.
"""

import numpy as np

from ooco_gym.compile import inlined, inner
from ooco_gym.sim.bidirectional import change_host, pair_fits, pair_grow, paired
from ooco_gym.sim.blocks import append_blocks, hits, name_full, open_table, share, told_apart
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
from ooco_gym.sim.decode import first_step, itl_bin
from ooco_gym.sim.memory import TPOT_BIT, charge_miss, check_token, count, finish, let_go, take_blocks
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
    BIDIRECTIONAL,
    BLOCK_TOKENS,
    EVICTIONS,
    GAP_PS,
    HOST_BYTES_PER_S,
    IDLE,
    MIXED_SEQUENCES,
    MIXING,
    NEVER,
    NOW,
    PREFIX_CACHING,
    PS_PER_S,
    RESERVED_BLOCKS,
    RESIDENT,
    SWAP,
    SWAP_OVERLAP,
    WAITING,
)


# --- What a rule may ask --------------------------------------------------------------------------------------------
@inlined
def lacking(state, slot):
    """Tokens that a request still has to compute until it makes its next one."""
    return length(state, slot) - state.requests[slot].computed_tokens


@inner
def free_blocks(state, instance):
    """Free blocks that may be taken."""
    return state.instances[instance].free_blocks - state.counters[RESERVED_BLOCKS]


@inner
def blocks_for_more(state, slot, tokens):
    """Blocks beyond those held that a running request needs to compute `tokens` more."""
    request = state.requests[slot]
    reach = request.computed_tokens + request.scheduled_tokens + tokens
    if reach <= request.blocks * state.counters[BLOCK_TOKENS]:
        return np.int64(0)
    return blocks_for(state, reach) - request.blocks


@inner
def found(state, instance, slot):
    """(Tokens that a waiting request need not compute, blocks that they are in, how many of these nobody reads)."""
    request = state.requests[slot]
    if request.host_tokens > 0:
        return np.int64(request.host_tokens), np.int64(0), np.int64(0)
    if state.counters[PREFIX_CACHING] == 0:
        return np.int64(0), np.int64(0), np.int64(0)
    size = state.counters[BLOCK_TOKENS]
    shared, idle = hits(state, instance, slot, (length(state, slot) - 1) // size)
    return np.int64(shared * size), np.int64(shared), np.int64(idle)


@inner
def cached(state, instance, slot):
    """Tokens of a waiting request's context that it would find: in the prefix cache, or in host memory."""
    return found(state, instance, slot)[0]


@inner
def has_seat(state, instance):
    """Whether one more request may run."""
    return state.instances[instance].running < state.counters[MIXED_SEQUENCES]


@inner
def fits_whole(state, instance, slot):
    """Whether a waiting request may start: a seat, and memory for its whole context."""
    return fits_chunk(state, instance, slot, length(state, slot))


@inner
def fits_chunk(state, instance, slot, tokens):
    """Whether a waiting request may start with `tokens` tokens beyond those it need not compute."""
    if not has_seat(state, instance):
        return False
    start, shared, idle = found(state, instance, slot)
    reach = min(start + tokens, length(state, slot))
    if paired(state):
        return pair_fits(state, instance, slot, reach)
    return blocks_for(state, reach) - shared + idle <= free_blocks(state, instance)


@inner
def place_of(state, instance, slot):
    """Place of a request among those that run on an instance, or -1."""
    for place in range(state.instances[instance].running):
        if state.members[BATCH, instance, place] == slot:
            return place
    return -1


@inner
def iteration_latency(state, instance):
    """What a policy believes that the iteration composed so far would take, in ps; transfers to the host left out."""
    sums = _sums(state, instance, state.instances[instance].belief)
    return _latency(state, state.instances[instance].belief, sums)


# --- What a rule may do ---------------------------------------------------------------------------------------------
@inlined
def give(state, instance, slot, tokens):
    """Gives a running request `tokens` tokens in the next iteration; False, and nothing else, where memory lacks."""
    request, size = state.requests[np.uint64(slot)], state.counters[BLOCK_TOKENS]
    reach = np.int64(request.computed_tokens) + request.scheduled_tokens + tokens
    if reach <= request.blocks * size and state.counters[BIDIRECTIONAL] == 0 and (
            state.counters[PREFIX_CACHING] == 0 or (tokens == 1 and reach % size > 0)):
        request.scheduled_tokens += tokens
        return True
    return _give_blocks(state, instance, slot, tokens)


@inner
def _give_blocks(state, instance, slot, tokens):
    """`give` where it takes blocks, or fills one that others may find, or where blocks have two owners."""
    if paired(state):
        return _give_slots(state, instance, slot, tokens)
    more = blocks_for_more(state, slot, tokens)
    if more > 0:
        if more > free_blocks(state, instance):
            return False
        if told_apart(state):
            append_blocks(state, instance, slot, more)
        state.requests[slot].blocks += more
        take_blocks(state, instance, more)
    request = state.requests[slot]
    request.scheduled_tokens += tokens
    if state.counters[PREFIX_CACHING]:
        size, reach = state.counters[BLOCK_TOKENS], request.computed_tokens + request.scheduled_tokens
        name_full(state, instance, slot, (reach - tokens) // size, reach // size)
    return True


@inner
def _give_slots(state, instance, slot, tokens):
    """`give` where blocks have two owners: slots that went to the host come back first."""
    request = state.requests[slot]
    reach = np.int64(request.computed_tokens) + request.scheduled_tokens + tokens
    if not pair_fits(state, instance, slot, reach):
        return False
    take_blocks(state, instance, pair_grow(state, instance, slot, reach))
    request.scheduled_tokens += tokens
    return True


@inner
def take_back(state, slot):
    """Takes a request's tokens in the next iteration back, not its memory; returns how many."""
    request = state.requests[slot]
    tokens = np.int64(request.scheduled_tokens)
    request.scheduled_tokens = 0
    return tokens


@inner
def admit(state, instance, slot, tokens):
    """Lets a waiting request run, last in order, with what it need not compute and up to `tokens` tokens.

    Returns its tokens in the next iteration. The rule has asked before whether they fit.
    """
    spec, request = state.instances[instance], state.requests[slot]
    start, shared, idle = found(state, instance, slot)
    dequeue(state, instance, slot)
    request.status = RESIDENT
    request.scheduled_tokens = 0
    request.computed_tokens = start
    if told_apart(state):
        open_table(state, instance, slot)
    if shared > 0:
        share(state, instance, slot, shared)
        request.blocks = shared
        take_blocks(state, instance, idle)
    _note_start(state, instance, slot, start)
    add_member(state, instance, slot)
    state.members[BATCH, instance, spec.running] = slot
    spec.running += 1
    tokens = min(tokens, length(state, slot) - start)
    give(state, instance, slot, tokens)
    return tokens


@inner
def preempt(state, instance, place, how):
    """Takes the memory of the running request at `place` (RECOMPUTE, or SWAP to the host); it waits by arrival."""
    slot = state.members[BATCH, instance, place]
    _lose(state, instance, place, how)
    enqueue_by_arrival(state, instance, slot)


@inner
def preempt_front(state, instance, place, how):
    """As `preempt`, but it is the next of its class to be admitted."""
    slot = state.members[BATCH, instance, place]
    _lose(state, instance, place, how)
    enqueue(state, instance, slot, True)


@inner
def wake_at(state, instance, time_ps):
    """Has the policy asked again at `time_ps`, though nothing may have happened."""
    spec = state.instances[instance]
    spec.pull_wake_ps = min(spec.pull_wake_ps, max(time_ps, state.counters[NOW] + 1))


# --- The books ------------------------------------------------------------------------------------------------------
@inner
def _note_start(state, instance, slot, start):
    """Hits count at the first admission: what comes back after a preemption is no gain (PROTOCOL)."""
    spec, request = state.instances[instance], state.requests[slot]
    if request.host_tokens > 0:
        spec.swap_tokens += start
        change_host(state, instance, slot, -start)
    else:
        request.kv_lost = max(0, request.kv_lost - start)
    if request.cached_tokens < 0:
        request.cached_tokens = start
        spec.looked_tokens += length(state, slot)
        spec.cached_tokens += start


@inner
def _lose(state, instance, place, how):
    slot = state.members[BATCH, instance, place]
    spec, request = state.instances[instance], state.requests[slot]
    log_event(state, LOG_EVICT, instance, slot, request.computed_tokens)
    blocks = blocks_for(state, request.computed_tokens) - blocks_for(state, request.host_tokens)
    if how == SWAP and request.computed_tokens > 0 and blocks <= spec.host_free_blocks:
        spec.swap_tokens += request.computed_tokens - request.host_tokens
        change_host(state, instance, slot, request.computed_tokens - request.host_tokens)
    else:  # what an earlier loss left to recompute beyond this point is still to be recomputed
        request.kv_lost = min(length(state, slot), request.computed_tokens + request.kv_lost)
        change_host(state, instance, slot, -request.host_tokens)
    _leave(state, instance, place)
    let_go(state, slot, True)
    request.computed_tokens = 0
    request.scheduled_tokens = 0
    request.status = WAITING
    request.evictions += 1
    count(state, EVICTIONS, 1)


@inner
def _leave(state, instance, place):
    """Takes a request out of the running ones, keeping the order of the others."""
    spec, batch = state.instances[instance], state.members[BATCH, instance]
    remove_member(state, instance, batch[place])
    for i in range(place, spec.running - 1):
        batch[i] = batch[i + 1]
    spec.running -= 1


# --- The iteration --------------------------------------------------------------------------------------------------
@inner
def start_mixed(state, instance):
    """Starts the composed iteration, or lets the instance rest until something arrives or its alarm rings."""
    spec, counters = state.instances[instance], state.counters
    sums = _sums(state, instance, spec.table)
    if sums[0] == 0:
        if counters[NOW] < spec.pull_wake_ps < NEVER:
            schedule(state, instance, spec.pull_wake_ps)
        else:
            cancel(state, instance)
        return
    spec.activity = MIXING
    spec.start_ps = counters[NOW]
    latency = _latency(state, spec.table, sums)
    if spec.swap_tokens > 0:
        latency = _with_swap(state, instance, latency)
    spec.end_ps = spec.start_ps + jittered(state, instance, spec.steps_begun, latency)
    spec.natural_end_ps = spec.end_ps
    spec.steps_begun += 1
    spec.new_tokens = sums[0]
    log_event(state, LOG_MIXED, instance, spec.running, sums[0])
    schedule(state, instance, spec.end_ps)


@inner
def _with_swap(state, instance, latency):
    """Latency of an iteration that also moves memory to and from the host: before it, or beside it."""
    spec = state.instances[instance]
    moved = spec.swap_tokens * state.tables[spec.table].kv_bytes_per_token
    swap_ps = np.int64(moved / state.counters[HOST_BYTES_PER_S] * PS_PER_S)
    spec.swapped_tokens += spec.swap_tokens
    spec.swap_tokens = 0
    return max(latency, swap_ps) if state.counters[SWAP_OVERLAP] else latency + swap_ps


@inner
def _sums(state, instance, table):
    """What sets an iteration's latency: tokens, requests that make one, decodes, their contexts; prompts, their rows,
    work and contexts."""
    tokens, sampled, decodes, decode_context = 0, 0, 0, 0
    prompts, rows, work, context = 0, 0, 0.0, 0
    batch = state.members[BATCH, instance]
    for i in range(state.instances[instance].running):
        request = state.requests[np.uint64(batch[i])]
        new = np.int64(request.scheduled_tokens)
        if new == 0:
            continue
        reach = request.computed_tokens + new
        tokens += new
        sampled += reach == np.int64(request.prompt_tokens) + request.generated_tokens
        if new == 1:
            decodes += 1
            decode_context += reach
        else:
            prompts += 1
            rows += prompt_rows(state, table, new)
            work += prompt_work(state, table, new, reach)
            context += reach
    return tokens, sampled, decodes, decode_context, prompts, rows, work, context


@inner
def _latency(state, table, sums):
    """Latency of an iteration, in ps: its linear layers together, its attentions one after the other."""
    tokens, sampled, decodes, decode_context, prompts, rows, work, context = sums
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
    begun, now, batch = spec.start_ps, state.counters[NOW], state.members[BATCH, instance]
    gap_ps = now - begun
    spec.online_tokens, spec.offline_tokens = 0, 0
    usual, place = 0, 0
    while place < spec.running:
        slot = batch[np.uint64(place)]
        request = state.requests[np.uint64(slot)]
        new = request.scheduled_tokens
        generated = request.generated_tokens + 1
        in_turn = new == 1 and request.last_token_ps == begun and request.first_decode_ps > 0
        if in_turn and request.kv_lost == 0 and generated < request.output_tokens and now <= request.latest_ps:
            # a decode among decodes: nothing but its books
            request.scheduled_tokens = 0
            request.computed_tokens += 1
            request.generated_tokens = generated
            request.last_token_ps = now
            if request.online:
                usual += request.counted
                if gap_ps > request.max_gap_ps:  # noqa: PLR1730 (a store that changes nothing costs time too)
                    request.max_gap_ps = gap_ps
        elif new > 0 and _computed(state, instance, slot):
            _leave(state, instance, place)
            finish(state, slot)
            continue
        place += 1
    if usual > 0:
        state.itl[itl_bin(gap_ps)] += usual
    if gap_ps > state.counters[GAP_PS]:
        _charge_gaps(state, instance)
    _share_time(state, instance)


@inner
def _charge_gaps(state, instance):
    """Charges the online requests that this iteration, longer than any gap may be, kept waiting."""
    for i in range(state.instances[instance].running):
        slot = state.members[BATCH, instance, i]
        if state.requests[slot].online and state.requests[slot].max_gap_ps > state.counters[GAP_PS]:
            charge_miss(state, slot, TPOT_BIT, state.counters[NOW])


@inner
def _share_time(state, instance):
    """Books an iteration's time by what it did, in proportion to the tokens."""
    spec = state.instances[instance]
    elapsed, tokens = spec.end_ps - spec.start_ps, spec.new_tokens
    online, offline = elapsed * spec.online_tokens // tokens, elapsed * spec.offline_tokens // tokens
    decodes = tokens - spec.online_tokens - spec.offline_tokens
    spec.online_prefill_ps += online
    spec.offline_prefill_ps += offline
    spec.decode_ps += elapsed - online - offline
    spec.decode_steps += decodes > 0
    spec.decoded_tokens += decodes


@inner
def _computed(state, instance, slot):
    """One request's part of an iteration is over. Whether it has finished."""
    spec, request, now = state.instances[instance], state.requests[slot], state.counters[NOW]
    new, elapsed, tokens = np.int64(request.scheduled_tokens), spec.end_ps - spec.start_ps, spec.new_tokens
    request.scheduled_tokens = 0
    request.computed_tokens += new
    if request.generated_tokens == 0 or new > 1:
        if request.urgent:
            spec.online_tokens += new
        else:
            spec.offline_tokens += new
    again = min(new, np.int64(request.kv_lost))
    if again > 0:
        request.kv_lost -= again
        charge_waste(state, slot, again, elapsed * again // tokens)
        spec.wasted_ps += elapsed * again // tokens
    if request.computed_tokens < length(state, slot):
        return False
    if request.generated_tokens > 0 and request.first_decode_ps == 0:
        first_step(state, slot, spec.start_ps)
    new_token(state, slot, now)
    if request.generated_tokens >= request.output_tokens:
        return True
    if request.online and request.first_decode_ps > 0 and now > request.latest_ps:
        check_token(state, slot, now)
    return False
