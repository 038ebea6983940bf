"""Parts of BROS's Algorithm 1 (`baselines/bros.py`): parameters, cost model, deadlines, memory.

The cost model (4.1) is linear in L^n and L^n L^a for each phase, fitted to profiled batches. All
prompts of an iteration take `t_exec = (a0 L^n + a1 L^n L^a + b)` (L^a = L^n, as nothing of them is
cached), and all its decodes the same form (L^n requests, L^a total context tokens). `t_swap` is
linear in the tokens to load from host memory; the profiled link has a bandwidth and no base. An
iteration takes the longer of both.

The paper samples sequence lengths "at exponential intervals of 2" up to context length times
largest batch. Ours leaves out batches that exceed the KV memory, and fits relative errors (with
absolute ones, only the largest batches would count). L^n L^a of a batch is the product of its sums,
as in (3) and (4). Attention's work is the sum of the requests' own products, which the model misses
(docs/readings.md).

The sums of the batch under composition lie in State.memory behind BROS's values that persist
between iterations.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ooco_gym.compile import inner
from ooco_gym.perf import CostTable, mixed_latency_ps
from ooco_gym.policy.mixed import admit, allocate_slots, has_seat, missing, preempt, running_index
from ooco_gym.policy.policy import Param, slots
from ooco_gym.policy.rules import length, sort_ascending
from ooco_gym.rounding import least_squares
from ooco_gym.sim import state as s
from ooco_gym.sim.bidirectional import available, pair_need, paired
from ooco_gym.sim.costs import blocks_for
from ooco_gym.sim.sessions import arrival_order

PARAMS = (
    Param("batch_base", "B_base: initial batch size, also after the time has run out (4.2)", 1, 1_000_000),
    Param("batch_cap", "largest batch size (the paper states no cap)", 1, 1_000_000),
    Param("late", "line 3: whether failed requests go first (as printed) or last",
          choices=("first", "last")),
    Param("bidirectional", "5: blocks with two owners; own: best-effort requests join no block of a real-time one",
          choices=("off", "on", "own")),
    Param("average_weight", "weight of the newest iteration in T_avg", 0.0, 1.0),
    Param("context_tokens", "longest profiled sequence: the model's", 1, 10_000_000),
    Param("max_num_seqs", "requests that hold memory at a time", 1, 1_000_000),
    Param("swap_overlap", "4.1: swapping overlaps the iteration", 0, 1),
    Param("prefill_linear", "cost model, ps (0: fitted to profiled batches)", 0.0),
    Param("prefill_product", "cost model, ps", 0.0),
    Param("prefill_base", "cost model, ps", 0.0),
    Param("decode_linear", "cost model, ps", 0.0),
    Param("decode_product", "cost model, ps", 0.0),
    Param("decode_base", "cost model, ps", 0.0),
)
P = slots(PARAMS)
SIZE, AVERAGE_PS, STEPS = 0, 1, 2  # indices in State.memory: B_curr, T_avg, iterations that it has seen
PROMPTS, DECODES, CONTEXT, BACK = 0, 1, 2, 3  # indices after them: sums of the batch so far
SUMS = 3


# --- Cost model (4.1) -----------------------------------------------------------------------------------------------
@inner
def load_of(state, slot):
    """Returns what a request adds to a batch: (prompt tokens, decodes: 0 or 1, their context,
    tokens in host memory)."""
    request = state.requests[slot]
    back = float(request.host_tokens)
    new = float(length(state, slot) - max(request.num_computed_tokens, request.host_tokens))
    if new == 1.0 and request.generated_tokens > 0:
        return 0.0, 1.0, float(length(state, slot)), back
    return new, 0.0, 0.0, back


@inner
def add_load(state, instance, slot, sign):
    """Adds a request to the batch's sums, or (sign -1) removes it."""
    sums = state.memory[instance]
    prompt, decode, context, back = load_of(state, slot)
    sums[SUMS + PROMPTS] += sign * prompt
    sums[SUMS + DECODES] += sign * decode
    sums[SUMS + CONTEXT] += sign * context
    sums[SUMS + BACK] += sign * back


@inner
def believed_ps(state, instance):
    """C of the batch, in ps: the longer of execution and swapping."""
    params, sums, executed = state.params, state.memory[instance, SUMS:], 0.0
    prompts, decodes = sums[PROMPTS], sums[DECODES]
    if prompts > 0:
        executed += (params[P.prefill_linear] * prompts + params[P.prefill_product] * prompts * prompts
                     + params[P.prefill_base])
    if decodes > 0:
        executed += (params[P.decode_linear] * decodes + params[P.decode_product] * decodes * sums[CONTEXT]
                     + params[P.decode_base])
    link = state.tables[state.instances[instance].belief].kv_bytes_per_token / state.config.host_bytes_per_s
    return max(executed, sums[BACK] * link * s.PS_PER_S)


@inner
def cost_with(state, instance, slot):
    """C of the batch with one more request, in ps."""
    add_load(state, instance, slot, 1.0)
    cost = believed_ps(state, instance)
    add_load(state, instance, slot, -1.0)
    return cost


@inner
def observe(state, instance):
    """Updates T_avg, the moving average of iteration latencies, in ps."""
    spec, mine = state.instances[instance], state.memory[instance]
    if spec.steps_begun == mine[STEPS]:
        return
    last = float(spec.end_ps - spec.start_ps)
    weight = state.params[P.average_weight] if mine[STEPS] > 0 else 1.0
    mine[AVERAGE_PS] += weight * (last - mine[AVERAGE_PS])
    mine[STEPS] = spec.steps_begun


# --- Time to deadline (lines 3 and 4) -------------------------------------------------------------------------------
@inner
def target_ps(state, slot):
    """T_SLO of a request's next token: TTFT for the first, TPOT for the others."""
    request = state.requests[slot]
    return request.ttft_slo_ps if request.generated_tokens == 0 else request.tpot_slo_ps


@inner
def remaining_ps(state, slot):
    """T_SLO - t_i - (k_i - 1) T_avg, with k_i = 1."""
    request = state.requests[slot]
    since = request.arrival_ps if request.generated_tokens == 0 else request.last_token_ps
    return target_ps(state, slot) - (state.clock.now_ps - since)


@inner
def order_ps(state, slot):
    """Sort key of line 3: the remaining time; with `late=last`, failed requests sort behind all
    others."""
    rest = remaining_ps(state, slot)
    return rest + s.NEVER if state.params[P.late] == 1 and rest <= 0 else rest


@inner
def is_fresh(state, slot):
    """Whether a waiting request has never run. Only such requests are in order of arrival in the
    waiting queue."""
    request = state.requests[slot]
    return request.generated_tokens == 0 and request.evictions == 0


@inner
def sort_pending(state, instance):
    """Sorts the real-time requests that have run into State.scratch by remaining time; returns how
    many."""
    spec, keys, slots_, count = state.instances[instance], state.scratch[0], state.scratch[1], 0
    for i in range(spec.running):
        slot = state.members[s.BATCH, instance, i]
        if state.requests[slot].urgent:
            keys[count], slots_[count] = order_ps(state, slot), slot
            count += 1
    slot = spec.online_head
    while slot >= 0 and count < keys.size:
        if not is_fresh(state, slot):
            keys[count], slots_[count] = order_ps(state, slot), slot
            count += 1
        slot = state.requests[slot].next
    sort_ascending(keys, slots_, count)
    return count


@inner
def residual_ps(state, instance, count):
    """T_res, in ps: the least time left among real-time deadlines ahead; the tightest SLO if all
    have failed; NEVER without real-time requests."""
    least, target = s.NEVER, s.NEVER
    for i in range(count):
        slot = state.scratch[1, i]
        rest, target = remaining_ps(state, slot), min(target, target_ps(state, slot))
        least = min(least, rest) if rest > 0 else least
    slot = state.instances[instance].online_head
    while slot >= 0:
        if is_fresh(state, slot):
            rest, target = remaining_ps(state, slot), min(target, target_ps(state, slot))
            least = min(least, rest) if rest > 0 else least
        slot = state.requests[slot].next
    return target if least == s.NEVER else least


# --- Memory: FindBlock, FindPreemptBlock, drops (5.2) ---------------------------------------------------------------
@inner
def missing_memory(state, instance, slot):
    """Memory that a request lacks for its whole context: blocks, or (best-effort, bidirectional)
    slots."""
    if paired(state):
        return pair_need(state, instance, slot, length(state, slot))
    return max(0, blocks_for(state, length(state, slot)) - state.requests[slot].blocks)


@inner
def available_memory(state, instance, slot):
    """Blocks, or slots, that are free for a request."""
    if paired(state):
        return available(state, instance, state.requests[slot].urgent)
    return state.instances[instance].free_blocks - state.config.reserved_blocks


@inner
def seat_for(state, instance, slot):
    return state.requests[slot].status == s.RESIDENT or has_seat(state, instance)


@inner
def fits(state, instance, slot):
    """Whether a request may run with its whole context: blocks or slots, and a running slot."""
    return missing_memory(state, instance, slot) <= available_memory(state, instance, slot) and seat_for(
        state, instance, slot)


@inner
def find_preempt_block(state, instance, slot, first, count):
    """Whether a real-time request fits once all permitted requests are dropped, including
    scratch[1, first:count]."""
    need = missing_memory(state, instance, slot) - available_memory(state, instance, slot)
    if need <= 0:
        return seat_for(state, instance, slot)
    if not paired(state):
        for i in range(state.instances[instance].offline_members):
            need -= state.requests[state.members[s.OFFLINE, instance, i]].blocks
    for i in range(count - 1, first - 1, -1):
        if need <= 0:
            break
        need -= state.requests[state.scratch[1, i]].blocks
    return need <= 0


@inner
def drop(state, instance, slot):
    if state.requests[slot].status == s.RESIDENT:
        how = s.SWAP if state.config.bidirectional else s.RECOMPUTE
        preempt(state, instance, running_index(state, instance, slot), how)


@inner
def last_best_effort(state, instance):
    """The running best-effort request that arrived last among those without tokens in this
    iteration, or -1."""
    last = -1
    for i in range(state.instances[instance].offline_members):
        slot = state.members[s.OFFLINE, instance, i]
        if state.requests[slot].num_scheduled_tokens == 0:
            last = slot if last < 0 or arrival_order(state, slot) > arrival_order(state, last) else last
    return last


@inner
def make_room(state, instance, slot, first, count):
    """Drops the requests that `find_preempt_block` counted, best-effort ones first. Returns whether
    the request then fits."""
    last = count - 1
    while not fits(state, instance, slot):
        victim = -1 if paired(state) else last_best_effort(state, instance)
        while victim < 0 and last >= first:
            if state.requests[state.scratch[1, last]].status == s.RESIDENT:
                victim = state.scratch[1, last]
            last -= 1
        if victim < 0:
            return False
        drop(state, instance, victim)
    return True


@inner
def run_request(state, instance, slot):
    """Schedules all missing tokens of a request; False if memory is short after all."""
    if state.requests[slot].status == s.WAITING:
        admit(state, instance, slot, length(state, slot))
        return True
    return allocate_slots(state, instance, slot, missing(state, slot))


# --- Profiled batches, and the fit (4.1) ----------------------------------------------------------------------------
NAMES = ("prefill_linear", "prefill_product", "prefill_base", "decode_linear", "decode_product", "decode_base")


def iteration_ps(table: CostTable, prefills: Sequence[int], decodes: Sequence[int]) -> float:
    """True latency in ps of an iteration with prompts of these lengths and decodes at these context
    lengths."""
    return float(mixed_latency_ps(table, [list(prefills)], 0, [len(decodes)], [sum(decodes)])[0])


def _powers_of_two(most: int) -> list[int]:
    return [1 << i for i in range(most.bit_length())]


def fit(table: CostTable, context_tokens: int, max_batch: int, block_tokens: int = 16) -> dict[str, float]:
    """Fits the six coefficients of t_exec (`NAMES`), in ps, to batches of powers of two that fit
    the KV memory.

    Args:
        table: the instance's cost table.
        context_tokens: the model's longest sequence.
        max_batch: most sequences of a batch, capped by the table.
        block_tokens: tokens of a KV block.
    """
    sizes = _powers_of_two(min(max_batch, len(table.decode_lines) - 1))
    lengths = _powers_of_two(context_tokens)
    batches = [(n, tokens) for n in sizes for tokens in lengths if n * tokens <= table.kv_blocks * block_tokens]
    prefill = [(n * tokens, (n * tokens) ** 2, iteration_ps(table, [tokens] * n, [])) for n, tokens in batches]
    decode = [(n, n * tokens * n, iteration_ps(table, [], [tokens] * n)) for n, tokens in batches]
    return dict(zip(NAMES, [*_least_squares(prefill), *_least_squares(decode)], strict=True))


def _least_squares(samples: Sequence[tuple[int, int, float]]) -> list[float]:
    """a0, a1 and b of one phase from (L^n, L^n L^a, ps), none negative."""
    new, product, ps = (np.array(column, np.float64) for column in zip(*samples, strict=True))
    terms = np.stack([new, product, np.ones(len(new))], axis=1) / ps[:, None]
    return least_squares(terms, np.ones(len(ps))).tolist()
