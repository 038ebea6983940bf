"""BROS (arXiv 2504.09590): real-time (online) and best-effort (offline) requests packed by time to
deadline.

Every iteration takes real-time requests first, by least time left, while batch size, memory and the
residual time of the most urgent one allow (Algorithm 1, lines 3 to 14). Then it takes best-effort
requests, by least tokens to swap in; each is added, or replaces the least urgent real-time request
(lines 15 to 32). Prompts are computed whole. The batch size doubles until the time runs out, then
starts again (4.2). Blocks are bidirectional (5), or plain.

Choices of ours where the paper is silent or contradicts itself, with parameters:
- k_i, "tokens left in the current token", is 1 (the paper does not define token groups), so T_avg
  counts only in (6).
- Line 4 subtracts the residual time from the SLO twice. The text (4.2) has the residual of "the one
  closest to its deadline [that] does not fail": the least time left among deadlines ahead. If all
  have failed, their tightest SLO bounds the iteration; without real-time requests nothing does.
- Line 3 puts failed requests first. These take the memory of requests that are in time, which fail
  in turn: beyond saturation all are swapped in and out for a token each. `late=last` puts failed
  requests last.
- The first real-time request runs even if it exceeds the residual time: else none would.
- Lines 26 to 32 as printed may replace every real-time request. We keep (6) with x_i = 0 for each
  replaced one: t_i + k_i T_avg + T <= T_SLO. A replaced request keeps its blocks.
- The batch size has no cap in the paper (`batch_cap`).
- Drops (5.2, "first BE, then RT, based on the remaining time"): best-effort requests go first, the
  last to arrive first. Real-time ones with more time left than the request in need follow, by most
  time left. With bidirectional blocks, dropping a best-effort request frees nothing for a real-time
  one: it may take blocks with only a best-effort owner anyway, and a block has one online owner.
- Without bidirectional blocks "we simply perform recomputation for requests failing to acquire
  cache blocks" (7.4.1): a request that lacks blocks drops others, in the order above.
- Line 20 stops at the first best-effort request without a block. Requests with slots in host memory
  come after all that wait for their first prompt, and wait with them.
- Best-effort requests may fill the memory so that none can go on, each in host memory or a block
  short. The last to arrive is then dropped, one an iteration; if no request can run, until one can.

docs/readings.md has the results of other readings.
"""

from baselines.bros_model import (
    AVERAGE_PS,
    CONTEXT,
    DECODES,
    PARAMS,
    PROMPTS,
    SIZE,
    SUMS,
    P,
    add_load,
    cost_with,
    drop,
    find_preempt_block,
    fit,
    fits,
    is_fresh,
    last_best_effort,
    make_room,
    observe,
    order_ps,
    remaining_ps,
    residual_ps,
    run_request,
    sort_pending,
)
from ooco_gym.compile import inner
from ooco_gym.policy.decisions import COMPOSE, hook
from ooco_gym.policy.mixed import unschedule
from ooco_gym.policy.policy import Policy
from ooco_gym.policy.rules import length, route_fewest_requests, sort_ascending
from ooco_gym.sim.state import BATCH, OFFLINE

# --- Algorithm 1 ----------------------------------------------------------------------------------------------------
ANY, IN_TIME, FAILED = 0, 1, 2  # which of the fresh requests


@inner
def _next_fresh(state, slot, which):
    """The first fresh request of a kind from `slot` on in the waiting queue, or -1."""
    while slot >= 0:
        if is_fresh(state, slot):
            if which == ANY or (remaining_ps(state, slot) <= 0) == (which == FAILED):
                return slot
        slot = state.requests[slot].next
    return slot


@inner
def schedule_online(state, instance, size, count, residual):
    """Lines 5 to 14. Writes the real-time batch to State.picks; returns (its size, whether the time
    ran out).

    Requests that have run are sorted in State.scratch; fresh ones come from the waiting queue,
    which is sorted already (4.2, request pulling).
    """
    spec, ready, i, out_of_time = state.instances[instance], 0, 0, False
    which = IN_TIME if state.params[P.late] == 1 else ANY
    waiting = _next_fresh(state, spec.online_head, which)
    while ready < size and not out_of_time:
        if waiting < 0 and which == IN_TIME:
            which = FAILED
            waiting = _next_fresh(state, spec.online_head, which)
        if i < count and (waiting < 0 or state.scratch[0, i] <= order_ps(state, waiting)):
            slot = state.scratch[1, i]
            i += 1
        elif waiting >= 0:
            slot = waiting
            waiting = _next_fresh(state, state.requests[slot].next, which)
        else:
            break
        if not find_preempt_block(state, instance, slot, i, count):
            break
        out_of_time = cost_with(state, instance, slot) > residual
        if out_of_time and ready > 0:
            break
        if not make_room(state, instance, slot, i, count):
            break
        add_load(state, instance, slot, 1.0)
        if not run_request(state, instance, slot):
            add_load(state, instance, slot, -1.0)
            break
        state.picks[ready] = slot
        ready += 1
    return ready, out_of_time


@inner
def _sort_best_effort(state, instance):
    """Sorts best-effort requests that have run into State.scratch by M^cpu, then arrival; returns
    how many.

    Fresh requests have nothing in host memory, and wait behind these in the order of arrival.
    """
    spec, keys, slots_, count = state.instances[instance], state.scratch[0], state.scratch[1], 0
    for i in range(spec.offline_members):
        slot = state.members[OFFLINE, instance, i]
        keys[count], slots_[count] = state.requests[slot].host_tokens, slot
        count += 1
    slot = spec.offline_head
    while slot >= 0 and not is_fresh(state, slot) and count < keys.size:
        keys[count], slots_[count] = state.requests[slot].host_tokens, slot
        count += 1
        slot = state.requests[slot].next
    sort_ascending(keys, slots_, count)
    return count


@inner
def _may_be_replaced(state, instance, slot, cost):
    """Constraint (6) with x_i = 0: t_i + k_i T_avg + T <= T_SLO."""
    return state.memory[instance, AVERAGE_PS] + cost <= remaining_ps(state, slot)


@inner
def _replace(state, instance, slot, ready, total, size, residual):
    """Lines 25 to 32: replaces the least urgent real-time request by a best-effort one. Returns
    whether it did."""
    if ready == 0:
        return False
    out = state.picks[ready - 1]
    _add_scheduled(state, instance, out, -1.0)
    cost = cost_with(state, instance, slot)
    if total <= size and cost <= residual and _may_be_replaced(state, instance, out, cost):
        unschedule(state, out)
        return True
    _add_scheduled(state, instance, out, 1.0)
    return False


@inner
def _add_scheduled(state, instance, slot, sign):
    """As `add_load`, for a scheduled request, which has nothing in host memory any more."""
    sums, request = state.memory[instance], state.requests[slot]
    new = float(request.num_scheduled_tokens)
    if new == 1.0 and request.generated_tokens > 0:
        sums[SUMS + DECODES] += sign
        sums[SUMS + CONTEXT] += sign * float(length(state, slot))
    else:
        sums[SUMS + PROMPTS] += sign * new


@inner
def schedule_offline(state, instance, size, ready, residual):
    """Lines 15 to 32. Returns (size of the whole batch, whether all best-effort requests lack
    memory)."""
    added, short_of_memory = 0, False
    count, i, total = _sort_best_effort(state, instance), 0, ready
    fresh = state.instances[instance].offline_head
    while fresh >= 0 and not is_fresh(state, fresh):
        fresh = state.requests[fresh].next
    while True:
        if i < count and (fresh < 0 or state.scratch[0, i] == 0):
            slot = state.scratch[1, i]
            i += 1
        elif fresh >= 0:
            slot = fresh
            fresh = state.requests[fresh].next
        else:
            break
        if not fits(state, instance, slot):
            short_of_memory = True
            break
        if total == 0 or (total < size and cost_with(state, instance, slot) <= residual):
            total += 1  # the first request runs, however long it takes
        elif _replace(state, instance, slot, ready, total, size, residual):
            ready -= 1
        else:
            break
        add_load(state, instance, slot, 1.0)
        run_request(state, instance, slot)
        added += 1
    return total, short_of_memory and added == 0


@inner
def schedule_iteration(state, instance, size):
    """Algorithm 1. Returns (size of the batch, whether the time ran out)."""
    state.memory[instance, SUMS : SUMS + 4] = 0.0
    count = sort_pending(state, instance)
    residual = residual_ps(state, instance, count)
    ready, late = schedule_online(state, instance, size, count, residual)
    total, stuck = schedule_offline(state, instance, size, ready, residual)
    if stuck:
        victim = last_best_effort(state, instance)
        if victim >= 0:
            drop(state, instance, victim)
    return total, late


@inner
def _drop_one(state, instance):
    """Drops the best-effort request that arrived last or, without one, the real-time request with
    most time left."""
    victim = last_best_effort(state, instance)
    for place in range(state.instances[instance].running if victim < 0 else 0):
        slot = state.members[BATCH, instance, place]
        if victim < 0 or remaining_ps(state, slot) > remaining_ps(state, victim):
            victim = slot
    drop(state, instance, victim)


@hook(COMPOSE)
def compose(view):
    """Algorithm 1, then the batch size of the next iteration (4.2)."""
    state, instance = view.state, view.instance
    spec, mine = state.instances[instance], state.memory[instance]
    observe(state, instance)
    size = int(mine[SIZE]) if mine[SIZE] > 0 else int(state.params[P.batch_base])
    total, late = schedule_iteration(state, instance, size)
    while total == 0 and spec.running > 0:  # every request that holds memory lacks some, so none can go on
        _drop_one(state, instance)
        total, late = schedule_iteration(state, instance, size)
    if total > 0:
        grown = min(2.0 * size, state.params[P.batch_cap])
        mine[SIZE] = state.params[P.batch_base] if late else grown
    return total


def prepare(policy, context):
    """Fits the cost model to profiled batches (4.1), unless its coefficients are given."""
    if policy.values["decode_base"] or policy.values["prefill_base"]:
        return {}
    return fit(context.strict, int(policy.values["context_tokens"]), context.max_batch)


policy = Policy("bros", PARAMS, mixed=True, route=route_fewest_requests, compose=compose, prepare=prepare)
