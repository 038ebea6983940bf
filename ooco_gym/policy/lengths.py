"""Predicted output lengths for rules and observations, compiled: each figure takes a constant time.

A length predictor (`ooco_gym.workload.LengthPredictor`) has said a median m and a spread of the logarithm of each
request's output length T. What is believed of a request that has generated g tokens is the distribution of T, given
that T > g: a request that outlives its prediction is believed to go on. T is taken to be log-logistic, the law with a
closed form that is next to the log-normal one: P(T > t) = 1 / (1 + (t / m)^b) with b = pi / (sqrt(3) spread), and thus
P(T > t | T > g) = p where t = m ((1 + (g / m)^b) / p - 1)^(1 / b). Without a predictor, T - g is taken to be
exponential with the mean of the outputs that have finished so far.

Instances that are asked about must be flushed (`policy.rules.flush`).
"""

import math

import numpy as np

from ooco_gym.compile import inlined, inner
from ooco_gym.policy.rules import sort_ascending
from ooco_gym.sim import state as s
from ooco_gym.sim.costs import decode_latency, length, prefill_one, steady

SHAPE = math.pi / math.sqrt(3.0)
LOW, HIGH = 0.84, 0.16  # of a normal law, one standard deviation below and above the median
REFERENCE_BATCH = 64  # as `sim.build`: the decode step that prices an output token


@inner
def believed_output(state, slot, survival):
    """Output tokens that an unfinished request exceeds with probability `survival`, given those that it has."""
    request = state.requests[slot]
    generated = float(request.generated_tokens)
    if state.predicted.shape[0] == 0:
        mean = state.observed.online_output_mean if request.online else state.observed.offline_output_mean
        return max(generated + 1.0, generated - steady(math.log(survival)) * max(1.0, mean))
    median, spread = state.predicted[slot, 0], state.predicted[slot, 1]
    if spread <= 1e-6:
        return max(generated + 1.0, median)
    shape = SHAPE / spread
    odds = (1.0 + (generated / median) ** shape) / survival - 1.0
    return max(generated + 1.0, median * steady(odds ** (1.0 / shape)))


@inlined
def believed_remaining(state, slot):
    """Output tokens that a request is believed to generate yet (median), at least 1."""
    return believed_output(state, slot, 0.5) - state.requests[slot].generated_tokens


@inlined
def believed_spread(state, slot):
    """How far that may be off, in tokens: half of the way from the 16th to the 84th percentile."""
    return 0.5 * (believed_output(state, slot, HIGH) - believed_output(state, slot, LOW))


@inner
def reference_worth(state, slot, output):
    """Reference GPU time in ps of a request with so many output tokens (docs/protocol.md), as `sim.build` prices it."""
    prompt = state.requests[slot].prompt_tokens
    strict = min(state.config.relaxed_count, state.instances.size - 1)
    table = state.instances[strict].table
    size = min(REFERENCE_BATCH, state.decode_lines.shape[1] - 1)
    step = decode_latency(state, table, size, size * (prompt + 0.5 * output))
    return prefill_one(state, state.instances[0].table, prompt) + output * step / size


@inner
def density(state, slot):
    """Worth of a request for the memory that it still takes: worth / (remaining (context + remaining / 2))."""
    output = believed_output(state, slot, 0.5)
    left = output - state.requests[slot].generated_tokens
    return reference_worth(state, slot, output) / (left * (length(state, slot) + 0.5 * left))


@inner
def least_dense(view):
    """Position of the candidate that is worth least for what it still needs; the first of equals."""
    best, least = 0, math.inf
    for i in range(view.candidates.size):
        worth = density(view.state, view.candidates[i])
        if worth < least:
            best, least = i, worth
    return best


@inner
def longest_output(view):
    """Position of the candidate with the most output tokens believed in all; the first of equals."""
    best, most = 0, -1.0
    for i in range(view.candidates.size):
        output = believed_output(view.state, view.candidates[i], 0.5)
        if output > most:
            best, most = i, output
    return best


# --- The future peak of memory (Past-Future, arXiv 2507.10150, 3.3) ---------------------------------------------------
@inner
def gather_future(state, instance):
    """Writes (remaining, context) of all that decodes on an instance, or is on its way there, to State.scratch.

    What is on its way counts as so many equal requests of its class's mean. The pairs are sorted, the one that ends
    first at the front. Returns how many; State.scratch holds no more than a batch, the others are left out.
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
    """Inserts a pair into the `count` sorted ones of State.scratch, which must have room for it."""
    keys, values, j = state.scratch[0], state.scratch[1], count
    while j > 0 and keys[j - 1] > remaining:
        keys[j], values[j] = keys[j - 1], values[j - 1]
        j -= 1
    keys[j], values[j] = remaining, context


@inner
def peak_tokens(state, count):
    """Most tokens that the `count` sorted pairs of State.scratch hold at one time.

    It is where a request ends: of r_1 >= r_2 >= … remaining and c contexts the greatest of c_1 + … + c_i + i r_i.
    """
    held, most = np.int64(0), np.int64(0)
    for i in range(count - 1, -1, -1):
        held += state.scratch[1, i]
        most = max(most, held + (count - i) * state.scratch[0, i])
    return most
