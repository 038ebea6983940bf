"""Predicted output lengths for rules and observations, compiled and in constant time.

A length predictor (`ooco_gym.workload.LengthPredictor`) gives a median m and a spread of the
logarithm of each request's output length T. The prediction for a request with g generated tokens is
the distribution of T given T > g, so a request that outlives its prediction is predicted to
continue. T is assumed log-logistic, the closed-form law nearest to the log-normal: P(T > t) = 1 /
(1 + (t / m)^b) with b = pi / (sqrt(3) spread). Thus P(T > t | T > g) = p at t = m ((1 + (g / m)^b)
/ p - 1)^(1 / b). Without a predictor, T - g is assumed exponential with the mean of outputs
finished so far.

The predictor `client` learns during the run: median and spread of a client's requests are those of
the outputs that have ended, with as much weight on its class's as `PRIOR` requests of its own have.

Instances must be flushed before (`policy.rules.flush`).
"""

import math

import numpy as np

from ooco_gym.compile import inlined, inner
from ooco_gym.perf.latency import decode_latency, steady
from ooco_gym.policy.rules import sort_ascending
from ooco_gym.sim import state as s
from ooco_gym.sim.costs import length, prefill_one

SHAPE = math.pi / math.sqrt(3.0)
PRIOR = 2.0
LOW, HIGH = 0.84, 0.16  # one normal standard deviation below and above the median
REFERENCE_BATCH = 64  # batch of the decode step that prices an output token, as in `sim.build`


@inner
def learned_output(state, slot):
    """Median and spread of a request's output by what its client has had; 0 for both if nothing has ended."""
    online = state.requests[slot].online
    every, own = state.ended[state.ended.shape[0] - 2 + online], state.ended[state.client[slot]]
    if every[0] < 1.0:
        return 0.0, 0.0
    count = own[0] + PRIOR
    mean = (own[0] * own[1] + PRIOR * every[1]) / count
    spread = math.sqrt(max(0.0, (own[2] + PRIOR * every[2] / every[0]) / count))
    return steady(math.exp(mean)), spread


@inner
def believed_output(state, slot, survival):
    """Output tokens that an unfinished request exceeds with probability `survival`, given its
    generated tokens."""
    request = state.requests[slot]
    generated = float(request.generated_tokens)
    median, spread = learned_output(state, slot) if state.config.learns_lengths else (0.0, 0.0)
    if median == 0.0 and state.predicted.shape[0] == 0:
        mean = state.observed.online_output_mean if request.online else state.observed.offline_output_mean
        return max(generated + 1.0, generated - steady(math.log(survival)) * max(1.0, mean))
    if median == 0.0:
        median, spread = state.predicted[slot, 0], state.predicted[slot, 1]
    if spread <= 1e-6:
        return max(generated + 1.0, median)
    shape = SHAPE / spread
    odds = (1.0 + (generated / median) ** shape) / survival - 1.0
    return max(generated + 1.0, median * steady(odds ** (1.0 / shape)))


@inlined
def believed_remaining(state, slot):
    """Predicted remaining output tokens of a request (median), at least 1."""
    return believed_output(state, slot, 0.5) - state.requests[slot].generated_tokens


@inlined
def believed_spread(state, slot):
    """Half the distance between the 16th and 84th percentile of the predicted output, in tokens."""
    return 0.5 * (believed_output(state, slot, HIGH) - believed_output(state, slot, LOW))


@inner
def reference_worth(state, slot, output):
    """Reference GPU time of a request with `output` tokens (docs/protocol.md), in ps, as in
    `sim.build`."""
    prompt = state.requests[slot].prompt_tokens
    strict = min(state.config.strict_from, state.instances.size - 1)
    table = state.instances[strict].table
    size = min(REFERENCE_BATCH, state.decode_lines.shape[1] - 1)
    step = decode_latency(state, table, size, size * (prompt + 0.5 * output))
    return prefill_one(state, state.instances[0].table, prompt) + output * step / size


@inner
def density(state, slot):
    """Value of a request per memory still needed: value / (remaining (context + remaining / 2))."""
    output = believed_output(state, slot, 0.5)
    left = output - state.requests[slot].generated_tokens
    return reference_worth(state, slot, output) / (left * (length(state, slot) + 0.5 * left))


@inner
def least_dense(view):
    """Position of the candidate with the lowest `density`; ties: the first."""
    best, least = 0, math.inf
    for i in range(view.candidates.size):
        worth = density(view.state, view.candidates[i])
        if worth < least:
            best, least = i, worth
    return best


@inner
def longest_output(view):
    """Position of the candidate with the longest predicted output; ties: the first."""
    best, most = 0, -1.0
    for i in range(view.candidates.size):
        output = believed_output(view.state, view.candidates[i], 0.5)
        if output > most:
            best, most = i, output
    return best


# --- The future peak of memory (Past-Future, arXiv 2507.10150, 3.3) ---------------------------------------------------
@inner
def gather_future(state, instance):
    """Writes (remaining, context) of all requests that decode on or move to an instance to
    State.scratch.

    Arriving requests count as equal ones with their class's mean. The pairs are sorted by remaining
    tokens. Returns their number, at most the size of State.scratch.
    """
    spec, count, most = state.instances[instance], 0, state.scratch.shape[1]
    for row in (s.URGENT, s.OFFLINE):
        for i in range(spec.urgent_members if row == s.URGENT else spec.offline_members):
            slot = state.members[row, instance, i]
            if state.requests[slot].status == s.RESIDENT and count < most:
                state.scratch[0, count] = np.int64(math.ceil(believed_remaining(state, slot)))
                state.scratch[1, count] = length(state, slot)
                count += 1
    for i in range(min(spec.arriving, most - count)):
        pulled = i < spec.arriving_pulls
        mean = state.observed.offline_output_mean if pulled else state.observed.online_output_mean
        state.scratch[0, count] = np.int64(math.ceil(mean))
        state.scratch[1, count] = spec.arriving_context // spec.arriving
        count += 1
    sort_ascending(state.scratch[0], state.scratch[1], count)
    return count


@inner
def add_future(state, count, remaining, context):
    """Inserts a pair into the `count` sorted ones of State.scratch, which must have room."""
    keys, values, j = state.scratch[0], state.scratch[1], count
    while j > 0 and keys[j - 1] > remaining:
        keys[j], values[j] = keys[j - 1], values[j - 1]
        j -= 1
    keys[j], values[j] = remaining, context


@inner
def peak_tokens(state, count):
    """Most tokens that the `count` sorted pairs of State.scratch hold at one time.

    The peak is where a request ends: with remaining r_1 >= r_2 >= … and contexts c, the maximum of
    c_1 + … + c_i + i r_i.
    """
    held, most = np.int64(0), np.int64(0)
    for i in range(count - 1, -1, -1):
        held += state.scratch[1, i]
        most = max(most, held + (count - i) * state.scratch[0, i])
    return most
