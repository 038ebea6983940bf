"""Latency and random draws inside the event loop: O(1) from the cost tables (`ooco_gym.perf.CostTable`).

All sums are of integers, so that k decode steps at once cost exactly what they cost one by one.
"""

import math

import numpy as np

from ooco_gym.compile import inner
from ooco_gym.sim.state import BLOCK_TOKENS, SEED

MAX_STEPS = 65_536  # in one run: keeps the closed-form sums far from an int64's limit
NOISE_STREAM, JITTER_STREAM = 101, 102


@inner
def line_ps(state, table, line, batch_size, context):
    """One roof (0 compute, 1 memory) of decode attention, in ps."""
    row = state.tables[table]
    return row.decode_request_ps[line] * batch_size + row.decode_token_ps[line] * context


@inner
def decode_latency(state, table, batch_size, context):
    """Latency of one decode step of `batch_size` requests with `context` tokens in all, in ps (OOCO 3.3.2)."""
    attention = max(line_ps(state, table, 0, batch_size, context), line_ps(state, table, 1, batch_size, context))
    return state.decode_ps[table, batch_size] + attention


@inner
def _line_sum(state, table, line, batch_size, context, steps):
    slope = state.tables[table].decode_token_ps[line]
    return steps * line_ps(state, table, line, batch_size, context) + slope * batch_size * (steps * (steps - 1) // 2)


@inner
def decode_sum(state, table, batch_size, context, steps):
    """Latency of `steps` consecutive decode steps of one batch, each a token longer a request, in ps: closed form.

    The two roofs are lines in the context, so at most one of them takes over from the other, once.
    """
    first, other = 0, 1
    if line_ps(state, table, 1, batch_size, context) >= line_ps(state, table, 0, batch_size, context):
        first, other = 1, 0
    row = state.tables[table]
    gain = (row.decode_token_ps[other] - row.decode_token_ps[first]) * batch_size
    head = steps
    if gain > 0:
        lead = line_ps(state, table, first, batch_size, context) - line_ps(state, table, other, batch_size, context)
        head = min(steps, lead // gain + 1)
    total = steps * state.decode_ps[table, batch_size] + _line_sum(state, table, first, batch_size, context, head)
    if head < steps:
        total += _line_sum(state, table, other, batch_size, context + head * batch_size, steps - head)
    return total


@inner
def steps_to_reach(state, table, batch_size, context, elapsed_ps, most, past):
    """Smallest number of steps (1 … most) whose sum is at least `elapsed_ps`, or beyond it where `past` is 1."""
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        total = decode_sum(state, table, batch_size, context, middle)
        if total > elapsed_ps or (total == elapsed_ps and past == 0):
            high = middle
        else:
            low = middle + 1
    return low


@inner
def steps_within(state, table, batch_size, context, bound_ps):
    """How many steps in a row stay within `bound_ps` each, at most MAX_STEPS (0: not even the first)."""
    row = state.tables[table]
    most = np.int64(MAX_STEPS)
    for line in range(2):
        room = bound_ps - state.decode_ps[table, batch_size] - line_ps(state, table, line, batch_size, context)
        if room < 0:
            return np.int64(0)
        growth = row.decode_token_ps[line] * batch_size
        if growth > 0:
            most = min(most, room // growth + 1)
    return most


@inner
def prefill_latency(state, table, pair_sum, tokens, context, sequences):
    """Latency of a prefill batch, in ps.

    `pair_sum` is the sum of new tokens times context over its prompts, `tokens` the sum of new tokens, `context` the
    sum of contexts, `sequences` the number of prompts.
    """
    row = state.tables[table]
    last = state.prefill_ps.shape[1] - 1
    linear = state.prefill_ps[table, min(tokens, last)] + max(0, tokens - last) * row.prefill_slope_ps
    attention = 0.0
    for line in range(2):
        roof = (row.prefill_attention[line, 0] * pair_sum + row.prefill_attention[line, 1] * tokens
                + row.prefill_attention[line, 2] * context)
        attention = max(attention, roof)
    return linear + state.head_ps[table, sequences] + np.int64(round(attention))


@inner
def prefill_one(state, table, tokens):
    """Latency of prefilling one prompt of `tokens` alone, in ps."""
    return prefill_latency(state, table, float(tokens) * float(tokens), tokens, tokens, 1)


@inner
def blocks_for(state, tokens):
    """KV blocks that hold `tokens`."""
    size = state.counters[BLOCK_TOKENS]
    return (tokens + size - 1) // size


@inner
def length(state, slot):
    """Context length of a request in tokens: prompt plus what it has generated."""
    return np.int64(state.requests[slot].prompt_tokens) + np.int64(state.requests[slot].generated_tokens)


@inner
def _mix(value):
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@inner
def random_bits(state, stream, instance, step, draw):
    """64 random bits keyed by (seed, stream, instance, step, draw): independent of every other draw (splitmix64)."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    value = _mix(np.uint64(state.counters[SEED]) + golden)
    value = _mix(value ^ (np.uint64(stream) * golden))
    value = _mix(value ^ (np.uint64(instance + 1) * golden))
    value = _mix(value ^ (np.uint64(step + 1) * golden))
    return _mix(value ^ (np.uint64(draw + 1) * golden))


@inner
def random_unit(state, stream, instance, step, draw):
    """A keyed uniform number in (0, 1)."""
    return (float(random_bits(state, stream, instance, step, draw) >> np.uint64(11)) + 0.5) / 9007199254740992.0


@inner
def random_below(state, stream, instance, step, draw, n):
    """A keyed uniform integer in 0 … n - 1."""
    return np.int64(random_unit(state, stream, instance, step, draw) * n)


@inner
def random_normal(state, stream, instance, step):
    """A keyed standard normal number (Box-Muller)."""
    radius = math.sqrt(-2.0 * math.log(random_unit(state, stream, instance, step, 0)))
    return radius * math.cos(2.0 * math.pi * random_unit(state, stream, instance, step, 1))


@inner
def _spread(state, table, stream, instance, step):
    """Factor of a noisy table: 1 where it has no noise, never below a tenth."""
    noise = state.tables[table].noise
    if noise == 0.0:
        return 1.0
    return max(0.1, 1.0 + noise * random_normal(state, stream, instance, step))


@inner
def predict_decode(state, instance, batch_size, context):
    """What a policy believes a decode step of this batch on this instance would take, in ps."""
    if batch_size <= 0:
        return np.int64(0)
    spec = state.instances[instance]
    largest = state.decode_ps.shape[1] - 1
    latency = decode_latency(state, spec.belief, min(batch_size, largest), context)
    if batch_size > largest:  # rules may ask about batches that no list could hold: on along the last step's slope
        slope = state.decode_ps[spec.belief, largest] - state.decode_ps[spec.belief, largest - 1]
        latency += (batch_size - largest) * slope
    if state.tables[spec.belief].noise == 0.0:
        return latency
    return np.int64(latency * _spread(state, spec.belief, NOISE_STREAM, instance, spec.steps_begun))


@inner
def predict_prefill(state, instance, tokens):
    """What a policy believes a prefill of one prompt of `tokens` on this instance would take, in ps."""
    return prefill_one(state, state.instances[instance].belief, tokens)


@inner
def jittered(state, instance, step, latency_ps):
    """The truth with its seeded jitter, where it is switched on."""
    table = state.instances[instance].table
    if state.tables[table].noise == 0.0:
        return latency_ps
    return max(np.int64(1), np.int64(latency_ps * _spread(state, table, JITTER_STREAM, instance, step)))
