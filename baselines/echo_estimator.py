"""Echo's estimator (arXiv 2504.03651, section 5): a batch's latency, its deadline, and the memory
for bursts.

A prompt's prefill takes T_p = max(a l^2 + b l, c); decodes take T_d = g max(l) + d mean(l), "a
pooling operation". A batch of both takes T = lam max(T_p, T_d) + (1 - lam) (T_p + T_d), with
prompts summed "one by one" (5.2). The formulae are read from the paper's prose. Ours: a chunk from
token s to s + q costs a ((s + q)^2 - s^2) + b q, so that a cached prefix is paid for once. The
coefficients come from micro-benchmarks (`echo_benchmarks`).

The i-th token of a request is due D(i) = TTFT + (i - 1) TPOT after its arrival (5.1), so early
tokens leave slack; a request past its deadline stops offline work. Online requests' KV memory is
predicted to stay within mean + 2 standard deviations of the past hour (5.3); what they do not hold
of that is left free. Other readings: docs/readings.md.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ooco_gym.compile import inner
from ooco_gym.policy.mixed import begins_ps
from ooco_gym.policy.policy import Param, slots
from ooco_gym.sim.state import BATCH, NEVER, PS_PER_S

BUCKETS = 4  # the history is kept as sums over quarters
NEWEST, SINCE, USED = 3 * BUCKETS, 3 * BUCKETS + 1, 3 * BUCKETS + 2  # places in State.memory after the quarters' sums

PARAMS = (
    Param("max_num_batched_tokens", "new tokens of one iteration (the engine's option of this name)", 1, 1_000_000),
    Param("max_num_seqs", "requests that run at a time (the engine's option of this name)", 1, 1_000_000),
    Param("reserved_blocks", "KV blocks that the engine keeps for itself", 0, 1_000_000),
    Param("prefix_caching", "keep and share the blocks of common prompt prefixes", choices=("off", "on")),
    Param("kv_priority", "4.2: order in which cached blocks are evicted", choices=("lru", "task")),
    Param("waiting_order", "6: order in which waiting offline requests are indexed", choices=("arrival", "prefix",
                                                                                    "bucket_prefix")),
    Param("estimator", "5.2: whether iterations keep the SLO, by the fitted times", choices=("off", "fitted")),
    Param("selection", "4.1: how offline requests are chosen", choices=("fcfs", "kv_aware")),
    Param("reserve", "4.2: memory left free for bursts: mean + sigmas, less what online requests hold",
          choices=("off", "total")),
    Param("reserve_sigmas", "5.3: standard deviations above the mean (footnote 2: tunable)", 0.0, 100.0),
    Param("history_s", "5.3: length of the history of online memory (7.4 has 15 minutes for arrivals)", 1.0, 1e6),
    Param("due_from", "5.1: D(i) counts from the arrival (as printed), or from the first token",
          choices=("arrival", "first_token")),
    Param("stop", "4.1: offline requests join while the ratio grows, or while they fit (open)",
          choices=("improving", "feasible")),
    Param("candidates", "6: candidates for one place among waiting offline requests", 1, 256),
    Param("prefill_benefit", "3.1: b_p, the value of a prefilled token", 0.0, 1e6),
    Param("decode_benefit", "3.1: b_d, the value of a decoded token", 0.0, 1e6),
    Param("square_ps", "a of T_p, ps per token squared; this and the next ones are fitted to micro-benchmarks", 0.0),
    Param("token_ps", "b of T_p, ps per token", 0.0),
    Param("least_ps", "c of T_p, ps", 0.0),
    Param("longest_ps", "g of T_d, ps per token of the longest context", 0.0),
    Param("mean_ps", "d of T_d, ps per token of the mean context", 0.0),
    Param("overlap", "lam of T; 1: the shorter phase hides behind the longer one", 0.0, 1.0),
)
P = slots(PARAMS)


class BatchLoad(NamedTuple):
    """The properties of a batch that determine its time and benefit."""

    decodes: int | np.int64
    context: int | np.int64  # total of the decodes
    longest: int | np.int64
    second: int | np.int64  # the second longest, for when the longest is removed
    prefill_ps: float  # sum of T_p
    prompts: int | np.int64
    benefit: float


# --- Execution time (5.2) -------------------------------------------------------------------------------------------
@inner
def nothing():
    zero = np.int64(0)
    return BatchLoad(zero, zero, zero, zero, 0.0, zero, 0.0)


@inner
def with_decode(state, load, context):
    """Adds a decode that reaches `context` tokens to the batch."""
    longest, second = load.longest, load.second
    if context > longest:
        longest, second = context, longest
    elif context > second:
        second = context
    return BatchLoad(load.decodes + 1, load.context + context, longest, second, load.prefill_ps, load.prompts,
                load.benefit + state.params[P.decode_benefit])


@inner
def without_decode(state, load, context):
    """Removes a decode from the batch; before another removal, `ranked` must be called."""
    longest = load.second if context == load.longest else load.longest
    return BatchLoad(load.decodes - 1, load.context - context, longest, longest, load.prefill_ps, load.prompts,
                load.benefit - state.params[P.decode_benefit])


@inner
def ranked(state, instance, load):
    """Recomputes the batch's two longest contexts from the scheduled decodes."""
    longest, second = np.int64(0), np.int64(0)
    for i in range(state.instances[instance].running):
        request = state.requests[state.members[BATCH, instance, i]]
        context = np.int64(request.num_computed_tokens) + 1
        if request.num_scheduled_tokens == 1 and request.generated_tokens > 0 and context > second and (
                context == np.int64(request.prompt_tokens) + request.generated_tokens):
            if context > longest:
                longest, second = context, longest
            else:
                second = context
    return BatchLoad(load.decodes, load.context, longest, second, load.prefill_ps, load.prompts, load.benefit)


@inner
def with_chunk(state, load, done, tokens, worth, sign):
    """Adds (`sign` 1) or removes (-1) a chunk of `tokens` after `done` others, with the benefit of
    `worth` tokens."""
    p, reach = state.params, float(done + tokens)
    time_ps = max(p[P.square_ps] * (reach * reach - float(done) * float(done)) + p[P.token_ps] * tokens, p[P.least_ps])
    return BatchLoad(load.decodes, load.context, load.longest, load.second, load.prefill_ps + sign * time_ps,
                load.prompts + sign, load.benefit + sign * p[P.prefill_benefit] * worth)


@inner
def batch_time(state, load):
    """T of a batch, in ps."""
    p, prefill_ps, decode_ps = state.params, load.prefill_ps, 0.0
    if load.decodes > 0:
        decode_ps = p[P.longest_ps] * load.longest + p[P.mean_ps] * load.context / load.decodes
    return p[P.overlap] * max(prefill_ps, decode_ps) + (1.0 - p[P.overlap]) * (prefill_ps + decode_ps)


# --- Service level (5.1) --------------------------------------------------------------------------------------------
@inner
def slack(state, slot):
    """Ps until a request's next token is due: D(i) less the time waited; NEVER for offline requests."""
    request = state.requests[slot]
    if not request.urgent:
        return np.int64(NEVER)
    due = request.arrival_ps + request.ttft_slo_ps
    if request.generated_tokens > 0:
        if state.params[P.due_from] == 1:
            due = request.first_token_ps
        due += np.int64(request.generated_tokens) * request.tpot_slo_ps
    return due - begins_ps(state, request.instance)


# --- Memory of bursts to come (5.3) ---------------------------------------------------------------------------------
@inner
def online_blocks(state, instance):
    """KV blocks that running online requests hold; shared ones count for each holder."""
    blocks = np.int64(0)
    for i in range(state.instances[instance].running):
        request = state.requests[state.members[BATCH, instance, i]]
        if request.urgent:
            blocks += request.blocks
    return blocks


@inner
def remember(state, instance, blocks):
    """Adds the time since the last call, with the blocks that online requests held then, to the
    history.

    State.memory of an instance has, for each quarter of the history, the sums of seconds, of
    block-seconds and of squared blocks times seconds; then the number of the newest quarter, the
    time of the last call and the blocks held then.
    """
    memory, quarter_s = state.memory[instance], state.params[P.history_s] / BUCKETS
    now_s = state.clock.now_ps / PS_PER_S
    at_s = memory[SINCE]
    while at_s < now_s:
        number = np.floor(at_s / quarter_s)
        if now_s - at_s > 2.0 * state.params[P.history_s]:  # an idle day: no need to walk through it
            number = np.floor(now_s / quarter_s) - BUCKETS
            at_s = number * quarter_s
        if number != memory[NEWEST]:
            place = 3 * (int(number) % BUCKETS)
            memory[place : place + 3] = 0.0
            memory[NEWEST] = number
        place = 3 * (int(number) % BUCKETS)
        until_s = min(now_s, (number + 1.0) * quarter_s)
        if until_s <= at_s:  # the quarter's end rounds to here
            until_s = min(now_s, (number + 2.0) * quarter_s)
        memory[place] += until_s - at_s
        memory[place + 1] += (until_s - at_s) * memory[USED]
        memory[place + 2] += (until_s - at_s) * memory[USED] * memory[USED]
        at_s = until_s
    memory[SINCE], memory[USED] = now_s, float(blocks)


@inner
def expected_blocks(state, instance):
    """Mean plus `reserve_sigmas` standard deviations of the blocks that online requests held in the
    history."""
    memory = state.memory[instance]
    seconds, first, square = 0.0, 0.0, 0.0
    for quarter in range(BUCKETS):
        seconds += memory[3 * quarter]
        first += memory[3 * quarter + 1]
        square += memory[3 * quarter + 2]
    if seconds <= 0.0:
        return 0.0
    mean = first / seconds
    return mean + state.params[P.reserve_sigmas] * np.sqrt(max(0.0, square / seconds - mean * mean))


@inner
def reserved_for_bursts(state, instance, held):
    """Blocks to leave free for future online requests (4.2's threshold); they hold `held` now."""
    if state.params[P.reserve] == 0:
        return np.int64(0)
    return np.int64(np.ceil(max(0.0, expected_blocks(state, instance) - held)))
