"""A router's view of mixed instances: metrics up to `lag_s` old, and what it has sent since.

A router in front of engines reads their metrics from time to time. Here it reads all of them at the
first online arrival `lag_s` after the last reading, so metrics are up to `lag_s` old (0: never).
Its own knowledge is never late: requests sent since, their prompt tokens, the time, and which
prefixes are in which cache (engines publish these as events, apart from metrics).

`compare` has the features of an instance from which a score is learned, by `baselines/router.py`
and in `ooco_gym/Routing-v2`.

The last columns of State.memory hold the metrics, and estimates for the present request
(`estimate`), in a row per instance.
"""

import math

import numpy as np

from ooco_gym.compile import inlined, inner
from ooco_gym.policy.latency_budget import decodes
from ooco_gym.sim import state as s
from ooco_gym.sim.costs import length, predict_decode, predict_prefill
from ooco_gym.sim.step_actions import get_computed_tokens, missing

# Read: online requests, waiting ones, uncomputed online prompt tokens, online decodes and their
# context, running offline requests, share of blocks free, rest of the iteration in seconds. Since
# then: requests sent, and their uncached prompt tokens. For the present request: predicted seconds
# to its first token and of a decode step with it, its cached tokens, seconds per prompt token, the
# score.
_PLACES = ("ONLINE", "WAITING", "QUEUE", "DECODES", "CONTEXT", "OFFLINE", "FREE", "BUSY_S", "SENT", "SENT_TOKENS",
           "LATENCY_S", "STEP_S", "CACHED", "PACE_S", "SCORE", "LOOKED")
FIRST = s.MEMORY - len(_PLACES)
(ONLINE, WAITING, QUEUE, DECODES, CONTEXT, OFFLINE, FREE, BUSY_S, SENT, SENT_TOKENS, LATENCY_S, STEP_S, CACHED, PACE_S,
 SCORE, LOOKED) = range(FIRST, s.MEMORY)
PACE_TOKENS = 2048  # length of the prompt that measures an instance's pace
LOOK_WAITING = 64  # first waiting online requests whose cached tokens are looked up
# Features of an instance, in the order of `compare`; most are logarithms of ratios to the mean.
COLUMNS = ("latency", "step", "queue", "online", "waiting", "sent", "offline", "pace", "free", "cached", "rank",
           "ttft_use", "tpot_use", "age_queue", "age_online", "long_pace", "long_online", "load_pace")
TTFT_FROM, TPOT_FROM, MOST_USE = 0.5, 0.7, 2.0  # shares of the SLO from which its use counts, and the cap
SOME_TOKENS = 1000.0  # added to tokens before comparing; length scale of a long request


@inner
def look(state, instance):
    """Reads an instance's metrics."""
    spec, metrics = state.instances[instance], state.memory[instance]
    queue, count, context = np.int64(0), np.int64(0), np.int64(0)
    for place in range(spec.running):
        slot = np.int64(state.members[s.BATCH, instance, place])
        if not state.requests[slot].urgent:
            continue
        if decodes(state, slot):
            count += 1
            context += length(state, slot)
        else:  # BUSY_S covers the tokens of the iteration in progress
            queue += max(np.int64(0), missing(state, slot) - state.requests[slot].num_scheduled_tokens)
    slot, looked = np.int64(spec.online_head), 0
    while slot >= 0:
        queue += length(state, slot)
        if looked < LOOK_WAITING and state.config.prefix_caching:
            queue -= get_computed_tokens(state, instance, slot)
        slot, looked = np.int64(state.requests[slot].next), looked + 1
    metrics[ONLINE] = spec.urgent_members + spec.online_waiting
    metrics[WAITING], metrics[QUEUE] = spec.online_waiting, queue
    metrics[DECODES], metrics[CONTEXT] = count, context
    metrics[OFFLINE] = spec.offline_members
    metrics[FREE] = spec.free_blocks / max(spec.total_blocks, 1)
    metrics[BUSY_S] = 0.0
    if spec.activity == s.MIXING:
        metrics[BUSY_S] = (spec.end_ps - state.clock.now_ps) / s.PS_PER_S
    metrics[SENT], metrics[SENT_TOKENS] = 0.0, 0.0


@inner
def age_of(state):
    """Age of the metrics, in seconds."""
    return (state.clock.now_ps - (state.memory[0, LOOKED] - 1.0)) / s.PS_PER_S


@inner
def refresh(state, lag_s):
    """Reads every instance if the last reading is at least `lag_s` old, or there was none."""
    if state.memory[0, LOOKED] > 0.0 and age_of(state) < lag_s:
        return
    for instance in range(state.config.relaxed_count):
        look(state, instance)
    state.memory[0, LOOKED] = state.clock.now_ps + 1.0


@inner
def estimate(state, instance, slot, age_s, sent_weight, drain):
    """Estimates a request's latencies on an instance.

    Args:
        age_s: age of the metrics.
        sent_weight: weight of requests sent since the reading.
        drain: share of the time since then that the instance is assumed to have computed prompts.
    """
    metrics = state.memory[instance]
    cached = get_computed_tokens(state, instance, slot)
    tokens = length(state, slot) - cached
    pace_s = predict_prefill(state, instance, PACE_TOKENS) / s.PS_PER_S / PACE_TOKENS
    ahead = max(0.0, metrics[QUEUE] - drain * age_s / pace_s) + sent_weight * metrics[SENT_TOKENS]
    own_s = predict_prefill(state, instance, tokens) / s.PS_PER_S
    metrics[LATENCY_S] = max(0.0, metrics[BUSY_S] - age_s) + ahead * pace_s + own_s
    batch = metrics[DECODES] + sent_weight * metrics[SENT] + 1.0
    context = metrics[CONTEXT] + sent_weight * metrics[SENT_TOKENS] + length(state, slot)
    metrics[STEP_S] = predict_decode(state, instance, np.int64(batch), np.int64(context)) / s.PS_PER_S
    metrics[CACHED], metrics[PACE_S] = cached, pace_s


@inlined
def note_sent(state, instance, slot, count=1.0):
    """Counts a request as sent to an instance; with `count` -1 no longer."""
    metrics = state.memory[instance]
    metrics[SENT] += count
    metrics[SENT_TOKENS] += count * (length(state, slot) - metrics[CACHED])


@inner
def mean_of(state, place):
    """Mean of a column over the instances."""
    total = 0.0
    for instance in range(state.config.relaxed_count):
        total += state.memory[instance, place]
    return total / state.config.relaxed_count


# --- Features of a learned score --------------------------------------------------------------------------------------
@inlined
def relative(value, mean, some):
    """Logarithm of a value over the mean, with `some` added to both."""
    return math.log((value + some) / (mean + some))


@inner
def rank_of(state, instance):
    """Rank of an instance by predicted latency, from -0.5 to 0.5."""
    count, before = state.config.relaxed_count, 0
    mine = state.memory[instance, LATENCY_S]
    for other in range(count):
        theirs = state.memory[other, LATENCY_S]
        before += theirs < mine or (theirs == mine and other < instance)
    return before / max(count - 1, 1) - 0.5


@inner
def means_of(state):
    """Means over the instances, for `compare`."""
    sent, tokens = mean_of(state, SENT), mean_of(state, SENT_TOKENS)
    return (mean_of(state, LATENCY_S), mean_of(state, STEP_S), mean_of(state, QUEUE) + tokens,
            mean_of(state, ONLINE) + sent, mean_of(state, WAITING), sent, mean_of(state, OFFLINE),
            mean_of(state, PACE_S), mean_of(state, FREE), mean_of(state, CACHED))


@inner
def compare(state, instance, slot, age_s, means, out):
    """Writes the features `COLUMNS` of an instance after `estimate`, compared with the `means_of` all."""
    one, request, tokens = state.memory[instance], state.requests[slot], max(length(state, slot), 1)
    latency_s, step_s, queue, online, waiting, sent, offline, pace_s, free, cached = means
    ttft_s, tpot_s = request.ttft_slo_ps / s.PS_PER_S, request.tpot_slo_ps / s.PS_PER_S
    long = math.log(tokens / SOME_TOKENS)
    out[0], out[1] = relative(one[LATENCY_S], latency_s, 0.0), relative(one[STEP_S], step_s, 0.0)
    out[2] = relative(one[QUEUE] + one[SENT_TOKENS], queue, SOME_TOKENS)
    out[3] = relative(one[ONLINE] + one[SENT], online, 1.0)
    out[4], out[5] = relative(one[WAITING], waiting, 1.0), relative(one[SENT], sent, 1.0)
    out[6], out[7] = relative(one[OFFLINE], offline, 1.0), relative(one[PACE_S], pace_s, 0.0)
    out[8], out[9], out[10] = one[FREE] - free, (one[CACHED] - cached) / tokens, rank_of(state, instance)
    out[11] = min(MOST_USE, max(0.0, one[LATENCY_S] / ttft_s - TTFT_FROM))
    out[12] = min(MOST_USE, max(0.0, one[STEP_S] / tpot_s - TPOT_FROM))
    out[13], out[14], out[15], out[16] = age_s * out[2], age_s * out[3], long * out[7], long * out[3]
    out[17] = min(MOST_USE, latency_s / ttft_s) * out[7]
