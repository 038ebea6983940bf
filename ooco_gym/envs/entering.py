"""The decision `admit` of `Serving-v1`: which waiting offline request enters the next iteration of a mixed instance?

A request is left out if it does not fit as a whole, or only with a shorter chunk than the base policy would start with.
Output lengths are hidden: `output` is the mean of finished requests.
"""

from __future__ import annotations

import math

import numpy as np

from ooco_gym.compile import inlined, inner
from ooco_gym.envs import buffers as b
from ooco_gym.envs.batching import feature_of, fill_engine
from ooco_gym.envs.buffers import step_kernel
from ooco_gym.envs.decision import Decision, add_choice, add_spread
from ooco_gym.envs.features import columns
from ooco_gym.envs.filling import log_scale, log_scales
from ooco_gym.perf.latency import NO_SUMS, add_to_sums
from ooco_gym.policy.engine_features import SLACKS, count_late
from ooco_gym.policy.latency_budget import (
    OFFLINE_CLASS,
    OPEN_FIELDS,
    OPEN_HEADROOM,
    OPEN_LEFT,
    OPEN_UNTIL_PS,
    admit_rest,
    believed_latency,
    close,
    enter,
    fewest_tokens,
    first_waiting,
    open_sums,
)
from ooco_gym.runtime.features import ENGINE, ENTRY
from ooco_gym.sim import state as s
from ooco_gym.sim.costs import blocks_for, length
from ooco_gym.sim.step_actions import get_computed_tokens, has_seat, num_free_blocks, whole_need
from ooco_gym.sim.waiting import FIRST, SHORTEST, SHORTEST_LENGTH

# --- What is observed: `ooco_gym.runtime.features` has the table and the meaning of each feature, and computes
# the same from plain descriptions of requests; a test compares both ------------------------------------------------
F = columns(ENTRY)
_PER_LOG = log_scales(ENTRY)
_TOKENS, _GENERATED, _OUTPUT = _PER_LOG[F.tokens], _PER_LOG[F.generated], _PER_LOG[F.output]
_WAIT, _PREFILL = _PER_LOG[F.wait], _PER_LOG[F.prefill]
_EVICTIONS, _GROWTH, _TIMES = ENTRY[F.evictions].limit, ENTRY[F.growth].limit, ENTRY[F.step].limit


@inlined
def as_priced(state, instance, row):
    """Returns the sums of the open iteration if each request generates a token, and its predicted
    latency. An engine that knows only token counts predicts the same."""
    tokens, _, decoding, context, longest, prompts, rows, work, reach, far = open_sums(row)
    sums = (tokens, decoding + prompts, decoding, context, longest, prompts, rows, work, reach, far)
    return sums, (believed_latency(state, instance, sums) if tokens > 0 else np.int64(0))


@inner
def fill_entry(state, buffers, i, k, computed, need, so_far):
    """Writes the `ENTRY` features of candidate k except `late`, which needs the engine's slacks.

    Args:
        computed: its tokens in KV memory.
        need: free blocks that its context takes.
        so_far: the result of `as_priced`.
    """
    instance, row, slot = state.pending.instance, buffers.iteration[i], np.int64(buffers.chosen[i, k])
    (sums, before), table = so_far, state.instances[instance].belief
    out, request, tokens = buffers.candidates[i, k], state.requests[slot], length(state, slot)
    missing, per_tpot = tokens - computed, 1.0 / (state.config.default_tpot_ps * _TIMES)
    chunk = min(missing, row[OPEN_LEFT])
    whole = believed_latency(state, instance, add_to_sums(state, table, sums, chunk, computed + chunk, 1))
    step = max(before, min(row[OPEN_UNTIL_PS], whole))
    alone = believed_latency(state, instance, add_to_sums(state, table, NO_SUMS, missing, tokens, 1))
    output = max(1.0, state.observed.offline_output_mean - request.generated_tokens)
    grown = need + blocks_for(state, np.int64(math.ceil(tokens + output))) - blocks_for(state, tokens)
    free = max(1, num_free_blocks(state, instance))
    out[F.present] = 1.0
    out[F.tokens] = log_scale(tokens, _TOKENS)
    out[F.cached] = computed / tokens
    out[F.generated] = log_scale(request.generated_tokens, _GENERATED)
    out[F.output] = log_scale(output, _OUTPUT)
    out[F.wait] = log_scale((state.clock.now_ps - request.arrival_ps) / s.PS_PER_S, _WAIT)
    out[F.evictions] = min(1.0, request.evictions / _EVICTIONS)
    out[F.prefill] = log_scale(alone / 1e9, _PREFILL)
    out[F.memory] = min(1.0, need / free)
    out[F.growth] = min(1.0, grown / (free * _GROWTH))
    out[F.before] = min(1.0, before * per_tpot)
    out[F.limit] = min(1.0, row[OPEN_UNTIL_PS] * per_tpot)
    out[F.step] = min(1.0, step * per_tpot)
    out[F.first] = slot == first_waiting(state, instance, OFFLINE_CLASS)
    row[OPEN_FIELDS + k] = step


@step_kernel
def observe_entries(state, buffers, i):
    """Completes the observation of an open decision."""
    fill_engine(state, state.pending.instance, buffers.reward_sums[i], buffers.notes[i], buffers.cluster[i])
    chosen, count = buffers.chosen[i], np.int64(buffers.notes[i, SLACKS])
    for k in range(chosen.size):
        if chosen[k] >= 0:
            late = count_late(state, count, buffers.iteration[i, OPEN_FIELDS + k])
            buffers.candidates[i, k, F.late] = late / max(1, count)
    return b.NO_KIND


# --- What is offered, and what an action does ---------------------------------------------------------------------
WINDOW = 32  # number of waiting requests from which candidates are chosen
LOOK_CACHED = 8  # number of requests, from the head of the queue, whose prefixes are looked up


@inner
def most_cached(state, instance):
    """Returns the request with most tokens in the prefix cache among the first waiting offline
    requests; -1 if none has any."""
    best, most = -1, 0
    if state.config.prefix_caching == 0:
        return best
    for index in range(min(LOOK_CACHED, state.instances[instance].window_size)):
        slot = state.waiting_window[instance, FIRST, index]
        tokens = get_computed_tokens(state, instance, slot)
        if tokens > most:
            best, most = slot, tokens
    return best


@inner
def choose(state, instance, headroom, chosen):
    """Writes candidates and returns their number: the scheduler's next request, the one with most
    tokens in the prefix cache, then length quantiles of those that fit KV memory (as if they
    shared no prefix)."""
    first, cached = first_waiting(state, instance, OFFLINE_CLASS), most_cached(state, instance)
    free = num_free_blocks(state, instance)
    if state.instances[instance].offline_members > 0:
        free -= headroom
    window, fits = state.waiting_window[instance], 0
    while fits < state.instances[instance].window_size and (
            window[SHORTEST_LENGTH, fits] <= free * state.config.block_tokens):
        fits += 1
    offered = add_choice(chosen, add_choice(chosen, 0, first), cached)
    low = high = fits
    for index in range(fits):
        if window[SHORTEST, index] == first or window[SHORTEST, index] == cached:
            low, high = min(low, index), index if low < fits else fits
    return add_spread(window[SHORTEST], chosen, offered, fits - (low < fits) - (high < fits), low, high)


@step_kernel
def offer_entries(state, buffers, i):
    """Offers the chosen requests that fit: memory, a running slot, and a chunk within the
    iteration's limits."""
    instance, row = state.pending.instance, buffers.iteration[i]
    chosen = buffers.chosen[i, : np.int64(buffers.settings[b.OFFERED])]
    if row[OPEN_LEFT] <= 0 or state.instances[instance].offline_head < 0 or not has_seat(state, instance):
        return 0
    offered, kept = choose(state, instance, row[OPEN_HEADROOM], chosen), 0
    so_far = as_priced(state, instance, row)
    for k in range(offered):
        slot = np.int64(chosen[k])
        computed, need = whole_need(state, instance, slot)
        if fewest_tokens(state, instance, row, slot, computed, need) > 0:
            chosen[kept] = slot
            fill_entry(state, buffers, i, kept, computed, need, so_far)
            buffers.mask[i, b.FIXED + kept] = 1
            kept += 1
    for k in range(kept, offered):
        chosen[k] = -1
    buffers.mask[i, b.DECLINE_ACTION] = row[0] > 0  # an iteration without tokens would leave the engine idle
    return kept + (kept > 0 and row[0] > 0)


@step_kernel
def answer_entry(state, buffers, i):
    """Admits one request, after which the environment asks again; or closes the iteration."""
    instance, row, k = state.pending.instance, buffers.iteration[i], buffers.actions[i, 0] - b.FIXED
    if k < 0:
        return close(state, instance, row)
    enter(state, instance, row, buffers.chosen[i, k])
    buffers.status[i, b.PICKED] += 1
    return b.MORE


@step_kernel
def enter_as_base_policy(state, buffers, i):
    """Admits what the base policy would admit to the rest of this iteration."""
    admit_rest(state, state.pending.instance, buffers.iteration[i])
    return close(state, state.pending.instance, buffers.iteration[i])


DECISION = Decision(
    "admit", b.ADMIT, offer_entries, answer_entry, window=WINDOW, base_policy=enter_as_base_policy,
    question="Which offline request is admitted to the iteration?",
    no="admit none, or no more (legal if the iteration has other work)",
    take="admit this request; the decision repeats",
    candidates="waiting offline requests", table=tuple(map(feature_of, ENTRY)), cluster=tuple(map(feature_of, ENGINE)),
    observe=observe_entries, marks=((353, 174),))
