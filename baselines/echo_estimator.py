"""Echo's estimator (arXiv 2504.03651, section 5): how long a batch takes, how soon it must end, what bursts may need.

A prompt's prefill takes T_p = max(a l^2 + b l, c); decodes take T_d = g max(l) + d mean(l), "a pooling operation"; a
batch of both T = lam max(T_p, T_d) + (1 - lam) (T_p + T_d), prompts being summed "one by one" (5.2). The paper's
formulae did not survive in our copy of it; these are read from its prose. Ours: a chunk from token s to s + q costs
a ((s + q)^2 - s^2) + b q, so that a cached prefix is paid for once. The coefficients come from micro-benchmarks
(`echo_fit`).

The i-th token of a request is due D(i) = TTFT + (i - 1) TPOT after its arrival (5.1), so that early tokens leave slack.
Online requests' KV memory is expected to stay within mean + 2 standard deviations of the past hour (5.3).
"""

from typing import NamedTuple

import numpy as np

from baselines.echo_fit import COEFFICIENTS
from ooco_gym.compile import inner
from ooco_gym.policy.bundle import Param, slots
from ooco_gym.sim.costs import (
    attention_latency,
    decode_latency,
    dense_latency,
    prefill_attention,
    prompt_rows,
    prompt_work,
)
from ooco_gym.sim.state import BATCH, NEVER, PS_PER_S

BUCKETS = 4  # the history is kept as sums over quarters of it
NEWEST, SINCE, USED = 3 * BUCKETS, 3 * BUCKETS + 1, 3 * BUCKETS + 2  # places in State.memory after the quarters' sums

PARAMS = (
    Param("max_num_batched_tokens", "new tokens of one iteration (the engine's option of this name)", 1, 1_000_000),
    Param("max_num_seqs", "requests that run at a time (the engine's option of this name)", 1, 1_000_000),
    Param("reserved_blocks", "KV blocks that the engine keeps for itself", 0, 1_000_000),
    Param("prefix_caching", "blocks of prompts that begin alike are kept and shared", choices=("off", "on")),
    Param("kv_priority", "4.2: whose blocks are taken first", choices=("lru", "task")),
    Param("waiting_order", "6: how waiting offline requests can be found", choices=("arrival", "prefix",
                                                                                    "bucket_prefix")),
    Param("estimator", "5.2: what iterations are held to the SLO by; exact: the simulator's own tables",
          choices=("off", "fitted", "exact")),
    Param("selection", "4.1: how offline requests are chosen", choices=("fcfs", "kv_aware")),
    Param("reserve", "4.2: memory left free for bursts; total: what online requests lack of mean + sigmas, above: all "
          "of mean + sigmas beyond what they hold (the paper leaves it open)", choices=("off", "total", "above")),
    Param("reserve_sigmas", "5.3: standard deviations above the mean (footnote 2: tunable)", 0.0, 100.0),
    Param("history_s", "5.3: how far back online memory is looked at (7.4 has 15 minutes for arrivals)", 1.0, 1e6),
    Param("prefill_form", "5.2: how the minimum time c enters", choices=("max", "additive")),
    Param("decode_form", "5.2: pooled: as described; floored: at least c; counted: constant, requests and tokens, too",
          choices=("pooled", "floored", "counted")),
    Param("due_from", "5.1: D(i) runs from the arrival, as printed, or the first token's own time starts the TPOT",
          choices=("arrival", "first_token")),
    Param("late", "5.1: an online request past its deadline stops offline work, or no longer counts (open)",
          choices=("hold", "forget")),
    Param("online_slo", "6: online prefills, too, wait until the batch's SLO has room for them", 0, 1),
    Param("slo_yields", "4.1: an offline request that a tight SLO takes out of the batch keeps its memory, or not "
          "(open)", choices=("skip", "preempt")),
    Param("stop", "4.1: offline requests join while the ratio grows, or while they fit (open)",
          choices=("improving", "feasible")),
    Param("candidates", "6: waiting offline requests that are looked at for one place", 1, 256),
    Param("benefit_counts", "3.1: a prefill is worth its prompt's tokens, cached ones among them, or those computed "
          "(open)", choices=("logical", "computed")),
    Param("prefill_benefit", "3.1: b_p, the worth of a prefilled token", 0.0, 1e6),
    Param("decode_benefit", "3.1: b_d, the worth of a decoded token", 0.0, 1e6),
    *COEFFICIENTS,
    Param("overlap", "lam of T: 1: the shorter phase hides behind the longer one", 0.0, 1.0),
)
P = slots(PARAMS)


class Load(NamedTuple):
    """A batch to be, as far as its time and its benefit depend on it."""

    decodes: int | np.int64
    context: int | np.int64  # of the decodes, in all
    longest: int | np.int64
    second: int | np.int64  # the next to longest, for taking the longest out
    prefill_ps: float  # sum of T_p
    prompts: int | np.int64
    tokens: int | np.int64  # new tokens of the prompts
    rows: float  # what `exact` needs of the prompts
    work: float
    reach: float
    benefit: float


# --- Execution time (5.2) -------------------------------------------------------------------------------------------
@inner
def nothing():
    """The empty batch."""
    zero = np.int64(0)
    return Load(zero, zero, zero, zero, 0.0, zero, zero, 0.0, 0.0, 0.0, 0.0)


@inner
def chunk_time(a, b, c, additive, done, tokens):
    """T_p of `tokens` new tokens behind `done` others, in ps."""
    reach = float(done + tokens)
    whole = a * (reach * reach - float(done) * float(done)) + b * tokens
    return whole + c if additive else max(whole, c)


@inner
def decode_time(coefficients, floor, decodes, context, longest):
    """T_d in ps; `coefficients`: g, d, and of decode_form=counted the constant, for a request, for a token."""
    if decodes == 0:
        return 0.0
    g, d, base, request, token = coefficients
    return max(floor, g * longest + d * context / decodes + base + request * decodes + token * context)


@inner
def mixed_time(overlap, prefill_ps, decode_ps):
    """T of prefills and decodes in one batch, in ps."""
    return overlap * max(prefill_ps, decode_ps) + (1.0 - overlap) * (prefill_ps + decode_ps)


@inner
def with_decode(state, load, context):
    """The batch with one more decode that reaches `context` tokens."""
    longest, second = load.longest, load.second
    if context > longest:
        longest, second = context, longest
    elif context > second:
        second = context
    return Load(load.decodes + 1, load.context + context, longest, second, load.prefill_ps, load.prompts, load.tokens,
                load.rows, load.work, load.reach, load.benefit + state.params[P.decode_benefit])


@inner
def without_decode(state, load, context):
    """The batch without one of its decodes; to take out another one after it, `ranked` must come between."""
    longest = load.second if context == load.longest else load.longest
    return Load(load.decodes - 1, load.context - context, longest, longest, load.prefill_ps, load.prompts, load.tokens,
                load.rows, load.work, load.reach, load.benefit - state.params[P.decode_benefit])


@inner
def ranked(state, instance, load):
    """The batch with its two longest contexts looked up again among what is scheduled to decode."""
    longest, second = np.int64(0), np.int64(0)
    for i in range(state.instances[instance].running):
        request = state.requests[state.members[BATCH, instance, i]]
        context = np.int64(request.computed_tokens) + 1
        if request.scheduled_tokens == 1 and request.generated_tokens > 0 and context > second and (
                context == np.int64(request.prompt_tokens) + request.generated_tokens):
            if context > longest:
                longest, second = context, longest
            else:
                second = context
    return Load(load.decodes, load.context, longest, second, load.prefill_ps, load.prompts, load.tokens, load.rows,
                load.work, load.reach, load.benefit)


@inner
def with_chunk(state, instance, load, done, tokens, worth, sign):
    """The batch with (`sign` 1) or without (-1) a chunk of `tokens` behind `done` others that counts `worth` tokens."""
    params, table = state.params, state.instances[instance].table
    time_ps = chunk_time(params[P.square_ps], params[P.token_ps], params[P.least_ps], params[P.prefill_form] == 1, done,
                         tokens)
    return Load(load.decodes, load.context, load.longest, load.second, load.prefill_ps + sign * time_ps,
                load.prompts + sign, load.tokens + sign * tokens,
                load.rows + sign * prompt_rows(state, table, tokens),
                load.work + sign * prompt_work(state, table, tokens, done + tokens),
                load.reach + float(sign * (done + tokens)),
                load.benefit + sign * params[P.prefill_benefit] * worth)


@inner
def batch_time(state, instance, load):
    """T of a batch, in ps: fitted, or the simulator's own tables where the estimator is `exact`."""
    params = state.params
    if params[P.estimator] == 2:
        return exact_time(state, instance, load)
    coefficients = (params[P.longest_ps], params[P.mean_ps], params[P.base_ps], params[P.request_ps],
                    params[P.context_ps])
    floor = params[P.least_ps] if params[P.decode_form] == 1 else 0.0
    return mixed_time(params[P.overlap], load.prefill_ps,
                      decode_time(coefficients, floor, load.decodes, load.context, load.longest))


@inner
def exact_time(state, instance, load):
    """What the simulator's tables say of a batch, in ps; each prompt is taken to end its prefill."""
    table = state.instances[instance].belief
    if load.prompts == 0:
        return float(decode_latency(state, table, load.decodes, load.context)) if load.decodes > 0 else 0.0
    latency = (dense_latency(state, table, load.tokens + load.decodes)
               + state.head_ps[table, load.prompts + load.decodes]
               + prefill_attention(state, table, load.work, load.rows, load.reach, float(load.prompts)))
    if load.decodes > 0:
        latency += attention_latency(state, table, load.decodes, load.context)
    return max(float(latency), float(state.tables[table].prefill_floor_ps))


# --- Service level (5.1) --------------------------------------------------------------------------------------------
@inner
def slack(state, slot):
    """Ps from now until a request's next token is due: D(i) less what it has waited; NEVER for offline ones."""
    request, now = state.requests[slot], state.clock.now_ps
    if not request.urgent:
        return np.int64(NEVER)
    due = request.arrival_ps + request.ttft_slo_ps
    if request.generated_tokens > 0:
        if state.params[P.due_from] == 1:
            due = request.first_token_ps
        due += np.int64(request.generated_tokens) * request.tpot_slo_ps
    if due <= now and state.params[P.late] == 1:
        return np.int64(NEVER)
    return due - now


# --- Memory of bursts to come (5.3) ---------------------------------------------------------------------------------
@inner
def online_blocks(state, instance):
    """KV blocks that running online requests hold, shared ones counted for each holder."""
    blocks = np.int64(0)
    for i in range(state.instances[instance].running):
        request = state.requests[state.members[BATCH, instance, i]]
        if request.urgent:
            blocks += request.blocks
    return blocks


@inner
def remember(state, instance, blocks):
    """Adds the time since the last call, during which online requests held what they held then, to the history.

    State.memory of an instance: for each quarter of the history the sums of seconds, of block-seconds and of squared
    blocks times seconds; then the number of the newest quarter, the time of the last call and the blocks held then.
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
    """Mean plus `reserve_sigmas` standard deviations of the blocks that online requests held in the history."""
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
    """Blocks to leave free for online requests to come, which hold `held` now (4.2's threshold)."""
    mode = state.params[P.reserve]
    if mode == 0:
        return np.int64(0)
    expected = expected_blocks(state, instance)
    return np.int64(np.ceil(expected if mode == 2 else max(0.0, expected - held)))
