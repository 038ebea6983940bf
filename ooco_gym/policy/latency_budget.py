"""Filling an iteration of a mixed instance within latency limits.

`fill` composes one iteration: every online decode, then online prefill, offline decodes and offline
prefill, each up to its own latency limit (`FillLimits`). Latencies are the policy's predictions
(`perf.latency.sums_latency`), updated from sums: one more request costs a few operations, a chunk a
binary search.

Offline decodes that do not fit are parked: they keep their memory and get no token in this
iteration. If memory is short, an online request preempts the offline request admitted last, then
the online one admitted last; an offline request waits. A waiting request is admitted once its whole
context fits.
"""

from typing import NamedTuple

import numpy as np

from ooco_gym.compile import inlined, inner
from ooco_gym.compile.instructions import bits_of, float_of
from ooco_gym.perf.latency import NO_SUMS, add_to_sums, sums_latency
from ooco_gym.policy.mixed import (
    admit,
    allocate_slots,
    begins_ps,
    fits_whole,
    get_computed_tokens,
    has_seat,
    missing,
    next_in_order,
    num_free_blocks,
    num_new_blocks,
    preempt,
    running_index,
    whole_need,
)
from ooco_gym.sim.costs import length
from ooco_gym.sim.state import BATCH, NEVER, RECOMPUTE, RESIDENT

OFFLINE_CLASS, ONLINE_CLASS = 0, 1  # request.urgent
# Stages of a composition: `fill` admits offline requests; must leave their admission open; has left
# it open.
WHOLE, LEAVE_OPEN, LEFT_OPEN = range(3)
GIVEN, MOST_GIVEN = 3, 8  # indices in State.memory: slots of abandoned requests, the oldest overwritten


# --- Requests -------------------------------------------------------------------------------------------------------
@inlined
def decodes(state, slot):
    """Whether a running request decodes, i.e. does not compute its prompt or recompute its context."""
    return state.requests[slot].generated_tokens > 0 and missing(state, slot) == 1


@inlined
def token_slack(state, slot, tpot_share):
    """Returns the time until the next token of a request with a first token is due, in ps; negative
    if late.

    The k-th token after the first is due k times `tpot_share` of the TPOT SLO after it
    (docs/protocol.md; with `slo.tpot_from` first_decode, after the first decode step's start).
    Requests that keep this keep the SLO at any output length.
    """
    request = state.requests[slot]
    start = request.first_token_ps
    if state.config.tpot_from_decode and request.first_decode_ps > 0:
        start = request.first_decode_ps
    due_ps = start + np.int64(tpot_share * request.tpot_slo_ps * request.generated_tokens)
    return due_ps - begins_ps(state, request.instance)


@inner
def first_waiting(state, instance, kind):
    """Returns a class's next waiting request, or -1: by arrival, or for offline requests in the
    policy's order."""
    spec = state.instances[instance]
    if kind == ONLINE_CLASS:
        return np.int64(spec.online_head)
    if state.config.waiting_order > 0:
        return np.int64(next_in_order(state, instance, 0))
    return np.int64(spec.offline_head)


# --- Predicted latencies ---------------------------------------------------------------------------------------------
@inner
def believed_latency(state, instance, sums):
    """Returns the policy's predicted latency of an iteration with these sums, in ps."""
    return sums_latency(state, state.instances[instance].belief, sums)


@inner
def with_tokens(state, instance, sums, slot, computed, tokens):
    """Sums of an iteration plus one request with `tokens` new tokens and `computed` tokens in KV
    memory."""
    reach = np.int64(computed) + tokens
    return add_to_sums(state, state.instances[instance].belief, sums, tokens, reach, reach == length(state, slot))


@inner
def longest_chunk(state, instance, sums, slot, computed, most, until_ps):
    """Returns the most new tokens, up to `most`, that a request can have within `until_ps`."""
    high = min(np.int64(most), length(state, slot) - computed)
    if until_ps >= NEVER or high <= 0:
        return max(np.int64(0), high)
    if believed_latency(state, instance, with_tokens(state, instance, sums, slot, computed, high)) <= until_ps:
        return high
    low, high = np.int64(0), high - 1
    while low < high:
        middle = (low + high + 1) // 2
        more = with_tokens(state, instance, sums, slot, computed, middle)
        if believed_latency(state, instance, more) <= until_ps:
            low = middle
        else:
            high = middle - 1
    return low


# --- Memory ---------------------------------------------------------------------------------------------------------
@inner
def preempt_last(state, instance, kind, after, how):
    """Preempts a class's last admitted request behind index `after` without tokens in the batch.

    Returns whether there was one.
    """
    for place in range(state.instances[instance].running - 1, after, -1):
        request = state.requests[state.members[BATCH, instance, place]]
        if request.num_scheduled_tokens == 0 and request.urgent == kind:
            preempt(state, instance, place, how if kind == OFFLINE_CLASS else RECOMPUTE)
            return True
    return False


@inner
def give_way(state, instance, slot, kind, how):
    """Preempts a request for a running one: an offline one for an online one, else one of its class
    admitted later. Returns whether there was one."""
    if kind == ONLINE_CLASS and preempt_last(state, instance, OFFLINE_CLASS, -1, how):
        return True
    return preempt_last(state, instance, kind, running_index(state, instance, slot), how)


@inner
def schedule_decode(state, instance, slot, kind, how):
    """Schedules a running request's next token, or at last preempts it. Returns whether it is
    scheduled."""
    while not allocate_slots(state, instance, slot, 1):
        if not give_way(state, instance, slot, kind, how):
            preempt(state, instance, running_index(state, instance, slot), how if kind == OFFLINE_CLASS else RECOMPUTE)
            return False
    return True


@inner
def schedule_chunk(state, instance, slot, tokens, kind, how):
    """Schedules up to `tokens` of a running request's prefill, as memory allows; returns their
    number."""
    while kind == ONLINE_CLASS and num_new_blocks(state, slot, tokens) > num_free_blocks(state, instance):
        if not give_way(state, instance, slot, kind, how):
            break
    request = state.requests[slot]
    blocks = request.blocks + num_free_blocks(state, instance)
    tokens = min(tokens, blocks * state.config.block_tokens - request.num_computed_tokens)
    return tokens if tokens > 0 and allocate_slots(state, instance, slot, tokens) else np.int64(0)


@inner
def must_stay_free(state, instance, headroom, grown):
    """Blocks that stay free when an offline request is admitted: none if no offline request holds
    any; with `grown`, none only if nothing runs."""
    spec = state.instances[instance]
    alone = spec.running == 0 if grown > 0 else spec.offline_members == 0
    return np.int64(0) if alone else headroom


@inner
def make_place(state, instance, slot, kind, headroom, grown, how):
    """Whether a waiting request may be admitted with `headroom` blocks left free
    (`must_stay_free`); preempts offline requests for an online one."""
    while True:
        if fits_whole(state, instance, slot):
            left = must_stay_free(state, instance, headroom, grown)
            if left <= 0:
                return True
            return whole_need(state, instance, slot)[1] + left <= num_free_blocks(state, instance)
        if kind == OFFLINE_CLASS or not preempt_last(state, instance, OFFLINE_CLASS, -1, how):
            return False


# --- Passes over a class --------------------------------------------------------------------------------------------
@inner
def running_of(state, instance, kind):
    """Writes a class's running requests to State.scratch[0], in order of admission; returns their
    number."""
    count = 0
    for place in range(state.instances[instance].running):
        slot = state.members[BATCH, instance, place]
        if state.requests[slot].urgent == kind:
            state.scratch[0, count] = slot
            count += 1
    return count


@inner
def schedule_decodes(state, instance, sums, left, kind, until_ps, how):
    """Schedules next tokens of a class's running requests, in order of admission, within
    `until_ps`. Returns (sums, tokens left)."""
    for i in range(running_of(state, instance, kind)):
        slot = state.scratch[0, i]
        if left <= 0 or state.requests[slot].status != RESIDENT or not decodes(state, slot):
            continue
        more = with_tokens(state, instance, sums, slot, state.requests[slot].num_computed_tokens, np.int64(1))
        if until_ps < NEVER and believed_latency(state, instance, more) > until_ps:
            continue
        if schedule_decode(state, instance, slot, kind, how):
            sums, left = more, left - 1
    return sums, left


@inner
def schedule_running_chunks(state, instance, sums, left, kind, until_ps, least, how):
    """Schedules prefill of a class's running requests in order of admission. Returns (sums, tokens
    left)."""
    for i in range(running_of(state, instance, kind)):
        slot = state.scratch[0, i]
        if left <= 0 or state.requests[slot].status != RESIDENT or decodes(state, slot):
            continue
        computed = np.int64(state.requests[slot].num_computed_tokens)
        tokens = longest_chunk(state, instance, sums, slot, computed, left, until_ps)
        if tokens < min(least, left, missing(state, slot)):
            return sums, np.int64(0)  # in order: later requests do not overtake
        tokens = schedule_chunk(state, instance, slot, tokens, kind, how)
        if tokens == 0:
            return sums, np.int64(0)
        sums, left = with_tokens(state, instance, sums, slot, computed, tokens), left - tokens
    return sums, left


@inner
def admit_waiting(state, instance, sums, left, kind, until_ps, least, headroom, grown, how):
    """Admits a class's waiting requests in order until one does not fit; each raises the headroom
    by `grown` blocks. Returns (sums, tokens left)."""
    while left > 0:
        slot = first_waiting(state, instance, kind)
        if slot < 0 or not make_place(state, instance, slot, kind, headroom, grown, how):
            break
        computed = np.int64(get_computed_tokens(state, instance, slot))
        tokens = longest_chunk(state, instance, sums, slot, computed, left, until_ps)
        if tokens < min(least, left, length(state, slot) - computed):
            return sums, np.int64(0)
        tokens = np.int64(admit(state, instance, slot, tokens))
        sums, left = with_tokens(state, instance, sums, slot, computed, tokens), left - tokens
        headroom += grown
    return sums, left


@inner
def schedule_prefill(state, instance, sums, left, kind, until_ps, least, how):
    """Schedules a class's prefill within `until_ps`: running requests, then waiting ones.

    No request gets fewer than `least` tokens, unless it needs fewer or fewer are left. Returns
    (sums, tokens left); no tokens are left if a request was held back.
    """
    sums, rest = schedule_running_chunks(state, instance, sums, left, kind, until_ps, least, how)
    return admit_waiting(state, instance, sums, rest, kind, until_ps, least, np.int64(0), np.int64(0), how)


# --- An iteration ---------------------------------------------------------------------------------------------------
class FillLimits(NamedTuple):
    """Latency and token limits of an iteration. Latencies are predictions for the whole iteration,
    in ps; NEVER: no limit.

    Attributes:
        online_ps: latency limit for adding online prefill.
        decode_ps: latency limit for adding offline decodes.
        offline_ps: latency limit for adding offline prefill.
        tokens: most new tokens (token budget).
        online_chunk: fewest tokens of an online prefill chunk, unless the prompt needs fewer.
        offline_chunk: fewest tokens of an offline prefill chunk, unless the prompt needs fewer.
        headroom: blocks that stay free when an offline request is admitted.
        grown: more blocks that stay free for each offline request admitted before it.
        how: RECOMPUTE or SWAP, for a preempted offline request.
    """

    online_ps: np.int64
    decode_ps: np.int64
    offline_ps: np.int64
    tokens: np.int64
    online_chunk: np.int64
    offline_chunk: np.int64
    headroom: np.int64
    grown: np.int64
    how: np.int64


@inner
def fill(state, instance, limits):
    """Composes the next iteration of a mixed instance within `FillLimits`; returns its new tokens.

    Offline prefill waits while online prefill is held back. The result is 0 if no online request
    decodes and nothing else fits; `fill_least` then continues. If an instance's `stage` is
    LEAVE_OPEN, no offline request is admitted here: State.scratch[0] gets what admission needs
    (`leave_open`), and `stage` becomes LEFT_OPEN.
    """
    how = limits.how
    sums, left = schedule_decodes(state, instance, NO_SUMS, limits.tokens, ONLINE_CLASS, NEVER, how)
    sums, rest = schedule_prefill(state, instance, sums, left, ONLINE_CLASS, limits.online_ps, limits.online_chunk, how)
    sums, left = schedule_decodes(state, instance, sums, limits.tokens - sums[0], OFFLINE_CLASS, limits.decode_ps, how)
    if rest <= 0:
        left = np.int64(0)
    sums, left = schedule_running_chunks(state, instance, sums, left, OFFLINE_CLASS, limits.offline_ps,
                                         limits.offline_chunk, how)
    spec = state.instances[instance]
    if spec.stage == LEAVE_OPEN and state.scratch.shape[1] >= OPEN_FIELDS:
        leave_open(state.scratch[0], sums, left, limits)
        spec.stage = LEFT_OPEN
        return max(sums[0], np.int64(1))  # not composed yet
    sums, _ = admit_waiting(state, instance, sums, left, OFFLINE_CLASS, limits.offline_ps, limits.offline_chunk,
                            limits.headroom, limits.grown, how)
    return sums[0]


# --- Admissions left open: what `fill` writes for another decision maker ----------------------------------
OPEN_FIELDS = 17
(OPEN_WORK, OPEN_LEFT, OPEN_UNTIL_PS, OPEN_CHUNK, OPEN_HEADROOM, OPEN_TOKENS, OPEN_HOW, OPEN_GROWN) = (
    7, *range(10, OPEN_FIELDS))


@inner
def leave_open(row, sums, left, limits):
    """Writes an iteration without offline admissions to int64[OPEN_FIELDS]: sums, tokens left,
    limits."""
    note_sums(row, sums, left)
    row[OPEN_UNTIL_PS], row[OPEN_CHUNK] = limits.offline_ps, limits.offline_chunk
    row[OPEN_HEADROOM], row[OPEN_TOKENS], row[OPEN_HOW] = limits.headroom, limits.tokens, limits.how
    row[OPEN_GROWN] = limits.grown


@inlined
def note_sums(row, sums, left):
    """Writes an iteration's sums, and the tokens left."""
    tokens, sampled, decoding, context, longest, prompts, rows, work, reach, far = sums
    row[0], row[1], row[2], row[3], row[4], row[5], row[6] = tokens, sampled, decoding, context, longest, prompts, rows
    row[OPEN_WORK], row[8], row[9], row[OPEN_LEFT] = bits_of(np.float64(work)), reach, far, left


@inlined
def open_sums(row):
    return (row[0], row[1], row[2], row[3], row[4], row[5], row[6], float_of(row[OPEN_WORK]), row[8], row[9])


@inner
def fewest_tokens(state, instance, row, slot, computed, need):
    """Returns the fewest tokens with which a waiting offline request can enter the open iteration;
    0: it does not fit.

    The request has `computed` tokens in memory, and its whole context needs `need` free blocks.
    """
    headroom = must_stay_free(state, instance, row[OPEN_HEADROOM], row[OPEN_GROWN])
    if row[OPEN_LEFT] <= 0 or not has_seat(state, instance) or need + headroom > num_free_blocks(state, instance):
        return np.int64(0)
    tokens = min(row[OPEN_CHUNK], row[OPEN_LEFT], length(state, slot) - computed)
    if row[OPEN_UNTIL_PS] >= NEVER:
        return tokens
    sums = with_tokens(state, instance, open_sums(row), slot, computed, tokens)
    return tokens if believed_latency(state, instance, sums) <= row[OPEN_UNTIL_PS] else np.int64(0)


@inner
def enter(state, instance, row, slot):
    """Admits a waiting offline request to the open iteration, if it fits the limits."""
    computed, need = whole_need(state, instance, slot)
    least = fewest_tokens(state, instance, row, slot, computed, need)
    if least <= 0:
        return
    sums, left = open_sums(row), row[OPEN_LEFT]
    tokens = longest_chunk(state, instance, sums, slot, computed, left, row[OPEN_UNTIL_PS])
    tokens = np.int64(admit(state, instance, slot, max(tokens, least)))
    note_sums(row, with_tokens(state, instance, sums, slot, computed, tokens), left - tokens)
    row[OPEN_HEADROOM] += row[OPEN_GROWN]


@inner
def admit_rest(state, instance, row):
    """Completes an open iteration as `fill` does: admits offline requests in order until one does
    not fit."""
    sums, left = admit_waiting(state, instance, open_sums(row), row[OPEN_LEFT], OFFLINE_CLASS, row[OPEN_UNTIL_PS],
                               row[OPEN_CHUNK], row[OPEN_HEADROOM], row[OPEN_GROWN], row[OPEN_HOW])
    note_sums(row, sums, left)


@inner
def close(state, instance, row):
    """Ends an open iteration, by `fill_least` if it has no tokens. Returns its tokens."""
    return row[0] if row[0] > 0 else fill_least(state, instance, row[OPEN_TOKENS], row[OPEN_HOW])


@inner
def fill_least(state, instance, tokens, how):
    """Schedules the first available work regardless of limits: online prefill, an offline decode,
    offline prefill.

    Without it, requests that exceed the limits alone would hold their memory forever. Returns its
    tokens.
    """
    one = np.int64(1)
    sums, _ = schedule_prefill(state, instance, NO_SUMS, tokens, ONLINE_CLASS, NEVER, one, how)
    if sums[0] == 0:
        sums, _ = schedule_decodes(state, instance, sums, one, OFFLINE_CLASS, NEVER, how)
    if sums[0] == 0:
        sums, _ = schedule_prefill(state, instance, sums, tokens, OFFLINE_CLASS, NEVER, one, how)
    return sums[0]
