"""Mixed instances: iterations with prefill chunks and decodes, from start to end.

An idle mixed instance asks its policy to compose the next iteration by the step actions of
`sim/step_actions.py`; the rule's return value only tells whether it has answered.
"""

import numpy as np

from ooco_gym.compile import inlined, inner
from ooco_gym.perf.latency import NO_SUMS, add_to_sums, sums_latency
from ooco_gym.sim import state as s
from ooco_gym.sim.batch import first_step, itl_bin
from ooco_gym.sim.blocks import cache_full_blocks, tracked
from ooco_gym.sim.costs import jittered, length
from ooco_gym.sim.memory import TPOT_BIT, charge_miss, check_token, finish, measured
from ooco_gym.sim.prefill import charge_waste, new_token
from ooco_gym.sim.queues import cancel, dequeue, remove_member, schedule, stop_at_layer
from ooco_gym.sim.step_actions import is_loading, leave_batch, link_ps, running_index, unschedule, wake_at


@inner
def iteration_sums(state, instance, table):
    """The sums that set an iteration's latency: tokens, requests that generate one, decodes, their
    contexts and the longest of these (0 if it has no effect); prompts, their rows, work and
    contexts, and the longest of these."""
    sums, batch = NO_SUMS, state.members[s.BATCH, instance]
    decodes, samples, decode_context = 0, 0, 0  # separate, as most requests are decodes and plain sums are faster
    for i in range(state.instances[instance].running):
        request = state.requests[np.uint64(batch[i])]
        new = np.int64(request.num_scheduled_tokens)
        if new == 0:
            continue
        reach = request.num_computed_tokens + new
        whole = reach == np.int64(request.prompt_tokens) + request.generated_tokens
        if new == 1:
            decodes += 1
            samples += whole
            decode_context += reach
        else:
            sums = add_to_sums(state, table, sums, new, reach, whole)
    tokens, sampled, _, _, _, prompts, rows, work, context, far = sums
    one = state.tables[table]
    longest = longest_decode(state, instance) if one.together or one.decode_skew > 0 else np.int64(0)
    return (tokens + decodes, sampled + samples, decodes, decode_context, longest, prompts, rows, work, context, far)


@inner
def longest_decode(state, instance):
    """Longest context of the decodes in the composed iteration, in tokens."""
    longest = np.int64(0)
    for i in range(state.instances[instance].running):
        request = state.requests[state.members[s.BATCH, instance, i]]
        if request.num_scheduled_tokens == 1:
            longest = max(longest, np.int64(request.num_computed_tokens) + 1)
    return longest


@inner
def iteration_latency(state, instance):
    """Predicted latency of the iteration composed so far, in ps, without transfers to the host."""
    sums = iteration_sums(state, instance, state.instances[instance].belief)
    return sums_latency(state, state.instances[instance].belief, sums)


@inlined
def rest(state, instance):
    """Puts an instance to sleep until something arrives, or its wake-up timer expires."""
    if state.config.offloading:
        _wake_when_loaded(state, instance)
    wake_ps = state.instances[instance].pull_wake_ps
    if state.clock.now_ps < wake_ps < s.NEVER:
        schedule(state, instance, wake_ps)
    else:
        cancel(state, instance)


@inner
def start_mixed(state, instance):
    """Starts the composed iteration, or rests until something arrives or the wake-up timer expires."""
    spec = state.instances[instance]
    sums = iteration_sums(state, instance, spec.table)
    if sums[0] == 0:
        rest(state, instance)
        return
    spec.new_tokens = sums[0]
    begin(state, instance, whole_latency(state, instance, sums_latency(state, spec.table, sums)))


@inlined
def whole_latency(state, instance, latency):
    """Latency of the composed iteration, in ps, with host transfers and jitter."""
    spec = state.instances[instance]
    if spec.swap_tokens > 0:
        latency = _with_transfers(state, instance, latency)
    return jittered(state, instance, spec.steps_begun, latency)


@inlined
def begin(state, instance, latency):
    """Starts the composed iteration, which takes `latency` ps."""
    spec = state.instances[instance]
    spec.activity = s.MIXING
    spec.interrupted = 0
    spec.start_ps = state.clock.now_ps
    spec.end_ps = spec.start_ps + latency
    spec.natural_end_ps = spec.end_ps
    spec.steps_begun += 1
    if state.config.async_scheduling:
        _advance_ahead(state, instance)
    schedule(state, instance, spec.end_ps)


@inner
def _wake_when_loaded(state, instance):
    """Wakes a resting instance when the first load from host memory has arrived."""
    for i in range(state.instances[instance].running):
        slot = state.members[s.BATCH, instance, i]
        if is_loading(state, slot):
            wake_at(state, instance, state.loaded_ps[slot])


@inner
def _advance_ahead(state, instance):
    """Advances contexts as the iteration begins; it lasts at least until the next one is composed."""
    spec = state.instances[instance]
    spec.end_ps = max(spec.end_ps, spec.start_ps + state.config.schedule_ps)
    spec.natural_end_ps = spec.end_ps
    advance(state, instance)


@inner
def _with_transfers(state, instance, latency):
    """Latency of an iteration with swaps to and from the host: before it, or in parallel."""
    spec = state.instances[instance]
    swap_ps = link_ps(state, instance, spec.swap_tokens)
    spec.swapped_tokens += spec.swap_tokens
    spec.swap_tokens = 0
    if state.config.swap_overlap:
        return max(latency, swap_ps)
    return latency + swap_ps


# --- Stopping an iteration ------------------------------------------------------------------------------------------
@inner
def can_be_stopped(state, instance):
    """Whether the present iteration can end early for an online request: it has only offline ones,
    and safepoints."""
    spec = state.instances[instance]
    if state.config.safepoint_layers == 0 or spec.activity != s.MIXING or spec.interrupted or spec.ranks > 0:
        return False  # data-parallel ranks end together
    for i in range(spec.running):
        request = state.requests[state.members[s.BATCH, instance, i]]
        if request.urgent and request.num_scheduled_tokens > 0:
            return False
    return True


@inner
def stop_mixed(state, instance):
    """Ends the present iteration at its next safepoint, if one comes before its end."""
    layers = state.tables[state.instances[instance].table].layers
    stop_at_layer(state, instance, max(1, layers // state.config.safepoint_layers))


@inner
def _end_stopped(state, instance):
    """Ends a stopped iteration: its requests continue from where they were before it."""
    spec = state.instances[instance]
    elapsed, prefilled = spec.end_ps - spec.start_ps, 0
    for i in range(spec.running):
        slot = state.members[s.BATCH, instance, i]
        tokens = unschedule(state, slot)
        if tokens > 0:
            prefilled += tokens if tokens > 1 or state.requests[slot].generated_tokens == 0 else 0
            state.requests[slot].interruptions += 1
            charge_waste(state, slot, 0, share_of(elapsed, tokens, spec.new_tokens))
    prefill_ps = share_of(elapsed, prefilled, spec.new_tokens)
    spec.wasted_ps += elapsed
    spec.offline_prefill_ps += prefill_ps
    spec.decode_ps += elapsed - prefill_ps
    if measured(state):
        state.totals.interruptions += 1


# --- Tokens, and the end of an iteration -----------------------------------------------------------------------------
@inlined
def advance(state, instance):
    """Grows contexts and generates the tokens of the iteration's end; collects requests that have
    all their tokens.

    This ends an iteration, except with asynchronous scheduling: there the iteration has just begun,
    and the next one is composed from the contexts after it. Certain violations are charged at once,
    as of the iteration's end.
    """
    spec, batch = state.instances[instance], state.members[s.BATCH, instance]
    begun, now = spec.start_ps, spec.end_ps
    gap_ps = now - begun
    spec.online_tokens, spec.offline_tokens = 0, 0
    usual, index = 0, 0
    while index < spec.running:
        slot = batch[np.uint64(index)]
        request = state.requests[np.uint64(slot)]
        new = request.num_scheduled_tokens
        generated = request.generated_tokens + 1
        in_turn = new == 1 and request.last_token_ps == begun and request.first_decode_ps > 0
        if in_turn and request.kv_lost == 0 and generated < request.output_tokens and now <= request.latest_ps:
            # a plain decode changes only its own record
            request.num_scheduled_tokens = 0
            request.num_computed_tokens += 1
            request.generated_tokens = generated
            request.last_token_ps = now
            if request.online:
                usual += request.counted
                if gap_ps > request.max_gap_ps:  # noqa: PLR1730 (a store that changes nothing costs time too)
                    request.max_gap_ps = gap_ps
        elif new > 0 and _computed(state, instance, slot):
            state.members[s.FINISHING, instance, spec.suspended] = slot
            spec.suspended += 1
            if state.config.async_scheduling != s.SEES_FINISHING:
                leave_batch(state, instance, index)
                continue
        index += 1
    if usual > 0:
        state.itl[itl_bin(gap_ps)] += usual
    if gap_ps > state.config.inter_token_slo_ps:
        _charge_gaps(state, instance)


@inner
def end_mixed(state, instance):
    """Ends an iteration: requests finish."""
    spec = state.instances[instance]
    spec.activity = s.IDLE
    if spec.interrupted:
        _end_stopped(state, instance)
        return
    if state.config.async_scheduling == s.SYNCHRONOUS:
        advance(state, instance)
    elif state.config.prefix_caching and tracked(state):
        for i in range(spec.running):
            _cache_last_block(state, instance, state.members[s.BATCH, instance, i])
    if spec.suspended > 0:
        _finish_all(state, instance)
    _share_time(state, instance)


@inner
def _finish_all(state, instance):
    """Finishes the requests with all their tokens, in batch order."""
    spec = state.instances[instance]
    for i in range(spec.suspended):
        _finish(state, instance, state.members[s.FINISHING, instance, i])
    spec.suspended = 0


@inlined
def _finish(state, instance, slot):
    """Finishes a request with its last token."""
    if state.requests[slot].status == s.WAITING:  # it was preempted while that token was in progress
        dequeue(state, instance, slot)
    else:
        if state.config.async_scheduling:
            index = running_index(state, instance, slot)
            if index >= 0:
                leave_batch(state, instance, index)
            if state.config.prefix_caching and tracked(state):
                _cache_last_block(state, instance, slot)
        remove_member(state, instance, slot)
    finish(state, slot)


@inner
def _cache_last_block(state, instance, slot):
    """Makes a block findable that the iteration filled with a token unknown at composition, unless
    the next iteration, which has the request too, has done so."""
    request, size = state.requests[slot], state.config.block_tokens
    blocks = np.int64(request.num_computed_tokens) // size
    if request.num_scheduled_tokens == 0 and request.last_token_ps == state.clock.now_ps and \
            request.num_computed_tokens == blocks * size:
        cache_full_blocks(state, instance, slot, blocks - 1, blocks)


@inner
def _charge_gaps(state, instance):
    """Charges online requests whose inter-token time exceeds the limit."""
    for i in range(state.instances[instance].running):
        slot = state.members[s.BATCH, instance, i]
        if state.requests[slot].online and state.requests[slot].max_gap_ps > state.config.inter_token_slo_ps:
            charge_miss(state, slot, TPOT_BIT, state.instances[instance].end_ps)


@inner
def share_of(elapsed_ps, part, whole):
    """Returns `elapsed_ps * part // whole`, even if the product exceeds 64 bits."""
    return elapsed_ps // whole * part + elapsed_ps % whole * part // whole


@inner
def _share_time(state, instance):
    """Books an iteration's time by kind of work, in proportion to tokens."""
    spec = state.instances[instance]
    elapsed, tokens = spec.end_ps - spec.start_ps, spec.new_tokens
    decodes, online, offline = tokens - spec.online_tokens - spec.offline_tokens, np.int64(0), np.int64(0)
    if decodes < tokens:
        online, offline = share_of(elapsed, spec.online_tokens, tokens), share_of(elapsed, spec.offline_tokens, tokens)
    spec.online_prefill_ps += online
    spec.offline_prefill_ps += offline
    if tokens > 0:  # a data-parallel rank without tokens did no work
        spec.decode_ps += elapsed - online - offline
    spec.decode_steps += decodes > 0
    spec.decoded_tokens += decodes


@inner
def _computed(state, instance, slot):
    """Completes one request's part of an iteration. Returns whether it has all its tokens."""
    spec, request = state.instances[instance], state.requests[slot]
    now = spec.end_ps
    new, elapsed, tokens = np.int64(request.num_scheduled_tokens), now - spec.start_ps, spec.new_tokens
    request.num_scheduled_tokens = 0
    request.num_computed_tokens += new
    if request.generated_tokens == 0 or new > 1:
        if request.urgent:
            spec.online_tokens += new
        else:
            spec.offline_tokens += new
    again = min(new, np.int64(request.kv_lost))
    if again > 0:
        request.kv_lost -= again
        wasted_ps = share_of(elapsed, again, tokens)
        charge_waste(state, slot, again, wasted_ps)
        spec.wasted_ps += wasted_ps
    if request.num_computed_tokens < length(state, slot):
        return False
    if request.generated_tokens > 0 and request.first_decode_ps == 0:
        first_step(state, slot, spec.start_ps)
    new_token(state, slot, now)
    if request.generated_tokens >= request.output_tokens:
        return True
    if request.online and request.first_decode_ps > 0 and now > request.latest_ps:
        check_token(state, slot, now)
    return False
