"""Sums of latencies (`ooco_gym.perf.latency`), predictions and random draws inside the event loop.

Sums are of integers, so that k decode steps at once cost exactly the same as one by one.
"""

import math

import numpy as np
from numba import types

from ooco_gym.compile import inlined, inner, jit
from ooco_gym.perf.latency import decode_latency, prefill_latency, prompt_rows, prompt_work, steady
from ooco_gym.sim.state import state_at

MAX_STEPS = 65_536  # of one run: keeps closed-form sums far from an int64's limit
NOISE_STREAM, JITTER_STREAM = 101, 102


@inner
def _line_sum(base, slope, batch_size, context, steps):
    return steps * (base + slope * context) + slope * batch_size * (steps * (steps - 1) // 2)


@inlined
def decode_sum(state, table, batch_size, context, steps):
    """Latency of `steps` consecutive decode steps of one batch, in ps, closed form; each step adds
    a token per request.

    The larger of the two lines changes at most once.
    """
    lines = state.decode_lines[table, batch_size]
    base, slope, other_base, other_slope = lines[0], lines[1], lines[2], lines[3]
    lead = base - other_base + (slope - other_slope) * context
    if lead <= 0:
        base, slope, other_base, other_slope, lead = other_base, other_slope, base, slope, -lead
    gain = (other_slope - slope) * batch_size
    if gain <= 0 or lead // gain + 1 >= steps:
        return _line_sum(base, slope, batch_size, context, steps)
    head = lead // gain + 1
    return (_line_sum(base, slope, batch_size, context, head)
            + _line_sum(other_base, other_slope, batch_size, context + head * batch_size, steps - head))


@inlined
def steps_to_reach(state, table, batch_size, context, elapsed_ps, most, past):
    """Smallest number of steps (1 … most) whose sum is at least `elapsed_ps`, or above it if `past`
    is 1.

    No step is shorter than the first or longer than the last, which bounds the search.
    """
    shortest = max(1, decode_latency(state, table, batch_size, context))
    longest = max(1, decode_latency(state, table, batch_size, context + (most - 1) * batch_size))
    low, high = min(most, max(1, elapsed_ps // longest)), min(most, elapsed_ps // shortest + 1)
    while low < high:
        middle = (low + high) // 2
        total = decode_sum(state, table, batch_size, context, middle)
        if total > elapsed_ps or (total == elapsed_ps and past == 0):
            high = middle
        else:
            low = middle + 1
    return low


@inlined
def steps_within(state, table, batch_size, context, bound_ps):
    """Number of consecutive steps of at most `bound_ps` each, at most MAX_STEPS (0: not even the
    first)."""
    most, lines = np.int64(MAX_STEPS), state.decode_lines[table, batch_size]
    for line in (0, 2):
        capacity = bound_ps - lines[line] - lines[line + 1] * context
        if capacity < 0:
            return np.int64(0)
        growth = lines[line + 1] * batch_size
        if growth > 0:
            most = min(most, capacity // growth + 1)
    return most


@inlined
def prefill_one(state, table, tokens):
    """Latency of the prefill of one prompt of `tokens` alone, in ps."""
    if 0 <= tokens < state.alone_ps.shape[1] and state.alone_ps[table, tokens] > 0:
        return state.alone_ps[table, tokens]
    return prefill_latency(state, table, prompt_work(state, table, tokens, tokens), prompt_rows(state, table, tokens),
                           tokens, tokens, 1)


@jit(types.void(types.int64))
def work_out_alone(handle):
    """Fills State.alone_ps for `prefill_one`; `handle` is the episode's address."""
    state = state_at(handle)
    for table in range(state.alone_ps.shape[0]):
        for tokens in range(1, state.alone_ps.shape[1]):  # measured forms need a mean context, which 0 tokens lack
            state.alone_ps[table, tokens] = prefill_one(state, table, tokens)


@inlined
def blocks_for(state, tokens):
    """KV blocks that hold `tokens`."""
    size = state.config.block_tokens
    return (tokens + size - 1) // size


@inlined
def length(state, slot):
    """Context length of a request in tokens: prompt plus generated tokens."""
    return np.int64(state.requests[slot].prompt_tokens) + np.int64(state.requests[slot].generated_tokens)


@inner
def _mix(value):
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@inner
def random_bits(state, stream, instance, step, draw):
    """64 random bits keyed by (seed, stream, instance, step, draw), independent of other draws
    (splitmix64)."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    value = _mix(np.uint64(state.config.seed) + golden)
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
    return steady(radius * math.cos(2.0 * math.pi * random_unit(state, stream, instance, step, 1)))


@inner
def _spread(state, table, stream, instance, step):
    """Factor of a noisy table: 1 without noise, never below a tenth."""
    noise = state.tables[table].noise
    if noise == 0.0:
        return 1.0
    return max(0.1, 1.0 + noise * random_normal(state, stream, instance, step))


@inlined
def predict_decode(state, instance, batch_size, context):
    """Predicted latency of a decode step of this batch on this instance, in ps."""
    if batch_size <= 0:
        return np.int64(0)
    spec = state.instances[instance]
    largest = state.decode_lines.shape[1] - 1
    latency = decode_latency(state, spec.belief, min(batch_size, largest), context)
    if batch_size > largest:  # rules may ask about larger batches: extrapolated by the last slope
        latency += (batch_size - largest) * (latency - decode_latency(state, spec.belief, largest - 1, context))
    if state.tables[spec.belief].noise == 0.0:
        return latency
    return np.int64(latency * _spread(state, spec.belief, NOISE_STREAM, instance, spec.steps_begun))


@inlined
def predict_prefill(state, instance, tokens):
    """Predicted latency of the prefill of one prompt of `tokens` on this instance, in ps."""
    return prefill_one(state, state.instances[instance].belief, tokens)


@inner
def jittered(state, instance, step, latency_ps):
    """The true latency with its seeded jitter, if enabled."""
    table = state.instances[instance].table
    if state.tables[table].noise == 0.0:
        return latency_ps
    return max(np.int64(1), np.int64(latency_ps * _spread(state, table, JITTER_STREAM, instance, step)))
