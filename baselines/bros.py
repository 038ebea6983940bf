"""BROS (arXiv 2504.09590): real-time (online) and best-effort (offline) requests packed by time to deadline.

Every iteration: real-time requests, the one with the least time left first, while batch size, memory and the residual
time of the most urgent one allow (Algorithm 1, lines 3 to 14); then best-effort ones, those with the least to swap in
first, added or put in the place of the least urgent real-time request (lines 15 to 32). Prompts are computed whole.
The batch size doubles until the time runs out, then starts again (4.2). Blocks are bidirectional (5), or plain.

Where the paper is silent or says two things, the choice is ours and a parameter:
- k_i, "tokens left in the current token", is 1 (token groups are not defined in it), so T_avg counts in (6) alone.
- Line 4 subtracts the residual time from the SLO twice; the text (4.2) has the residual of "the one closest to its
  deadline [that] does not fail". `failed` says who has failed: whose deadline has passed, or who would be late even
  if it ran alone. `all_failed` and `no_online` say what bounds the iteration where nobody has a residual time.
- Line 3 puts those first whose deadline has passed. They then take the memory of those who are in time, who fail in
  turn: beyond saturation all are swapped in and out for a token each. `late=last` puts who has failed last.
- `admit_first`: the first real-time request runs even where it takes longer than the residual time, else nobody would.
- Lines 26 to 32 as printed may strip every real-time request. `guard_replace` keeps (6) with x_i = 0 for whom they take
  out: t_i + k_i T_avg + T <= T_SLO. Who is taken out keeps the blocks that it already has.
- The batch size has no cap in the paper (`batch_cap`).
- Drops (5.2, "first BE, then RT, based on the remaining time"): best-effort requests, the last to arrive first, then
  real-time ones with more time left than who needs the memory, the one with most first. With bidirectional blocks the
  former give a real-time request nothing: what is theirs alone it takes anyway, and a block has one online owner.
- Without bidirectional blocks "we simply perform recomputation for requests failing to acquire cache blocks" (7.4.1):
  `without_blocks` says whether others are dropped for whom blocks fail (in the order above), or that one itself.
- Best-effort requests may fill the memory so that none of them can go on, each with slots in host memory or a block
  short; `gridlock` drops the one that arrived last then, one an iteration, and if nobody at all can run, until
  somebody can.
"""

from ooco_gym.compile import inner
from ooco_gym.decisions import COMPOSE, hook
from ooco_gym.policy.bundle import Param, Policy, slots
from ooco_gym.policy.mixed import admit, give, has_seat, lacking, place_of, preempt, take_back
from ooco_gym.policy.rules import length, route_fewest_requests, sort_ascending
from ooco_gym.sim.bidirectional import available, pair_need, paired
from ooco_gym.sim.costs import blocks_for
from ooco_gym.sim.state import (
    BATCH,
    BIDIRECTIONAL,
    DEFAULT_TPOT_PS,
    DEFAULT_TTFT_PS,
    HOST_BYTES_PER_S,
    NEVER,
    NOW,
    OFFLINE,
    PS_PER_S,
    RECOMPUTE,
    RESERVED_BLOCKS,
    RESIDENT,
    SWAP,
    WAITING,
)

PARAMS = (
    Param("batch_base", "B_base: batch size to begin with, and after the time has run out (4.2)", 1, 1_000_000),
    Param("batch_cap", "the batch size doubles no further (the paper states no cap)", 1, 1_000_000),
    Param("guard_replace", "a real-time request is replaced only if it can wait (constraint 6)", 0, 1),
    Param("admit_first", "the first real-time request runs whatever it takes", 0, 1),
    Param("failed", "who has failed and sets no residual time", choices=("passed", "unreachable")),
    Param("late", "line 3: who has failed goes first (as printed), or after all who may still be in time",
          choices=("first", "last")),
    Param("all_failed", "bound of the iteration where all have failed", choices=("slo", "unbounded")),
    Param("no_online", "bound of the iteration without real-time requests", choices=("unbounded", "slo")),
    Param("bidirectional", "5: blocks with two owners; own: best-effort requests join no block of a real-time one",
          choices=("off", "on", "own")),
    Param("without_blocks", "bidirectional=off: who computes again", choices=("others", "itself")),
    Param("gridlock", "best-effort requests fill the memory and none can go on: the last is dropped", 0, 1),
    Param("average_weight", "of the newest iteration in T_avg", 0.0, 1.0),
    Param("product", "L^n L^a: of the batch's sums, or summed over requests", choices=("batch", "requests")),
    Param("context_tokens", "longest sequence that is profiled: the model's", 1, 10_000_000),
    Param("max_num_seqs", "requests that hold memory at a time", 1, 1_000_000),
    Param("swap_overlap", "4.1: swapping goes on beside the iteration", 0, 1),
    Param("prefill_linear", "cost model, ps (0: fitted to profiled batches)", 0.0),
    Param("prefill_product", "cost model, ps", 0.0),
    Param("prefill_base", "cost model, ps", 0.0),
    Param("decode_linear", "cost model, ps", 0.0),
    Param("decode_product", "cost model, ps", 0.0),
    Param("decode_base", "cost model, ps", 0.0),
)
P = slots(PARAMS)
SIZE, AVERAGE_PS, STEPS = 0, 1, 2  # places in State.memory: B_curr, T_avg, iterations that it has seen
PROMPTS, PROMPT_PRODUCT, DECODES, CONTEXT, BACK = 0, 1, 2, 3, 4  # places after them: sums of the batch so far
SUMS = 3


# --- Cost model (4.1) -----------------------------------------------------------------------------------------------
@inner
def load_of(state, slot):
    """(Tokens of a prompt, of a decode: 0 or 1, its context, tokens in host memory) that a request adds to a batch."""
    request = state.requests[slot]
    back = float(request.host_tokens)
    new = float(length(state, slot) - max(request.computed_tokens, request.host_tokens))
    if new == 1.0 and request.generated_tokens > 0:
        return 0.0, 1.0, float(length(state, slot)), back
    return new, 0.0, 0.0, back


@inner
def _add(state, instance, slot, sign):
    """Adds a request to the batch's sums, or (sign -1) takes it out."""
    sums = state.memory[instance]
    prompt, decode, context, back = load_of(state, slot)
    sums[SUMS + PROMPTS] += sign * prompt
    sums[SUMS + PROMPT_PRODUCT] += sign * prompt * prompt
    sums[SUMS + DECODES] += sign * decode
    sums[SUMS + CONTEXT] += sign * context
    sums[SUMS + BACK] += sign * back


@inner
def cost_ps(state, instance, prompts, prompt_product, decodes, context, back):
    """C: the longer of execution and swapping, in ps."""
    params, executed = state.params, 0.0
    by_request = params[P.product] == 1
    if prompts > 0:
        product = prompt_product if by_request else prompts * prompts
        executed += params[P.prefill_linear] * prompts + params[P.prefill_product] * product + params[P.prefill_base]
    if decodes > 0:
        product = context if by_request else decodes * context
        executed += params[P.decode_linear] * decodes + params[P.decode_product] * product + params[P.decode_base]
    link = state.tables[state.instances[instance].belief].kv_bytes_per_token / state.counters[HOST_BYTES_PER_S]
    return max(executed, back * link * PS_PER_S)


@inner
def believed_ps(state, instance):
    """C of the batch, in ps."""
    sums = state.memory[instance]
    return cost_ps(state, instance, sums[SUMS + PROMPTS], sums[SUMS + PROMPT_PRODUCT], sums[SUMS + DECODES],
                   sums[SUMS + CONTEXT], sums[SUMS + BACK])


@inner
def cost_alone(state, instance, slot):
    """C of a request by itself, in ps."""
    prompt, decode, context, back = load_of(state, slot)
    return cost_ps(state, instance, prompt, prompt * prompt, decode, context, back)


@inner
def cost_with(state, instance, slot):
    """C of the batch with one more request, in ps."""
    _add(state, instance, slot, 1.0)
    cost = believed_ps(state, instance)
    _add(state, instance, slot, -1.0)
    return cost


@inner
def _observe(state, instance):
    """T_avg: moving average of the iterations so far, in ps."""
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
    """T_SLO of a request's next token: TTFT of the first, TPOT of the others."""
    request = state.requests[slot]
    return request.ttft_slo_ps if request.generated_tokens == 0 else request.tpot_slo_ps


@inner
def remaining_ps(state, slot):
    """T_SLO - t_i - (k_i - 1) T_avg, with k_i = 1."""
    request = state.requests[slot]
    since = request.arrival_ps if request.generated_tokens == 0 else request.last_token_ps
    return target_ps(state, slot) - (state.counters[NOW] - since)


@inner
def has_failed(state, instance, slot, rest):
    """Whether a request with so much time left misses its next deadline."""
    if state.params[P.failed] == 0:
        return rest <= 0
    return cost_alone(state, instance, slot) > rest


@inner
def order_ps(state, instance, slot):
    """What line 3 sorts by: the remaining time, far behind all others where those who have failed go last."""
    rest = remaining_ps(state, slot)
    if state.params[P.late] == 1 and has_failed(state, instance, slot, rest):
        return rest + NEVER
    return rest


@inner
def _fresh(state, slot):
    """Whether a waiting request has never run: the waiting queue is in the order of arrival for those alone."""
    request = state.requests[slot]
    return request.generated_tokens == 0 and request.evictions == 0


@inner
def _pending(state, instance):
    """Sorts the real-time requests that have run into State.scratch by remaining time; returns how many."""
    spec, keys, slots_, count = state.instances[instance], state.scratch[0], state.scratch[1], 0
    for i in range(spec.running):
        slot = state.members[BATCH, instance, i]
        if state.requests[slot].urgent:
            keys[count], slots_[count] = order_ps(state, instance, slot), slot
            count += 1
    slot = spec.online_head
    while slot >= 0 and count < keys.size:
        if not _fresh(state, slot):
            keys[count], slots_[count] = order_ps(state, instance, slot), slot
            count += 1
        slot = state.requests[slot].next
    sort_ascending(keys, slots_, count)
    return count


@inner
def residual_ps(state, instance, count):
    """T_res: the least time left of a real-time request that has not failed, in ps."""
    least, target, spec = NEVER, NEVER, state.instances[instance]
    for i in range(count):
        slot = state.scratch[1, i]
        rest = remaining_ps(state, slot)
        target = min(target, target_ps(state, slot))
        if rest < least and not has_failed(state, instance, slot, rest):
            least = rest
    slot = spec.online_head
    while slot >= 0:
        if _fresh(state, slot):
            rest = remaining_ps(state, slot)
            target = min(target, target_ps(state, slot))
            if rest < least and not has_failed(state, instance, slot, rest):
                least = rest
        slot = state.requests[slot].next
    if target == NEVER:
        return NEVER if state.params[P.no_online] == 0 else _least_target(state)
    if least == NEVER and state.params[P.all_failed] == 0:
        return target
    return least


@inner
def _least_target(state):
    """The scenario's tighter SLO, in ps."""
    return min(state.counters[DEFAULT_TTFT_PS], state.counters[DEFAULT_TPOT_PS])


# --- Memory: FindBlock, FindPreemptBlock, drops (5.2) ---------------------------------------------------------------
@inner
def needed(state, instance, slot):
    """What a request lacks to compute all that it lacks: blocks, or (best-effort, bidirectional) slots."""
    if paired(state):
        return pair_need(state, instance, slot, length(state, slot))
    return max(0, blocks_for(state, length(state, slot)) - state.requests[slot].blocks)


@inner
def there(state, instance, slot):
    """What is there of it."""
    if paired(state):
        return available(state, instance, state.requests[slot].urgent)
    return state.instances[instance].free_blocks - state.counters[RESERVED_BLOCKS]


@inner
def _has_seat(state, instance, slot):
    return state.requests[slot].status == RESIDENT or has_seat(state, instance)


@inner
def find_preempt_block(state, instance, slot, first, count):
    """Whether a real-time request gets its memory if those are dropped who may be (scratch[1, first:count] for one)."""
    need = needed(state, instance, slot) - there(state, instance, slot)
    if need <= 0:
        return _has_seat(state, instance, slot)
    if not paired(state):
        if state.params[P.without_blocks] == 1:
            return False
        for i in range(state.instances[instance].offline_members):
            need -= state.requests[state.members[OFFLINE, instance, i]].blocks
    for i in range(count - 1, first - 1, -1):
        if need <= 0:
            break
        need -= state.requests[state.scratch[1, i]].blocks
    return need <= 0


@inner
def _how(state):
    return SWAP if state.counters[BIDIRECTIONAL] else RECOMPUTE


@inner
def _drop(state, instance, slot):
    if state.requests[slot].status == RESIDENT:
        preempt(state, instance, place_of(state, instance, slot), _how(state))


@inner
def _last_best_effort(state, instance):
    """The running best-effort request that arrived last, of those without tokens in this iteration; or -1."""
    last = -1
    for i in range(state.instances[instance].offline_members):
        slot = state.members[OFFLINE, instance, i]
        if state.requests[slot].scheduled_tokens == 0:
            last = max(last, slot)
    return last


@inner
def make_room(state, instance, slot, first, count):
    """Drops whom `find_preempt_block` counted on, first best-effort, then real-time requests."""
    last = count - 1
    while needed(state, instance, slot) > there(state, instance, slot) or not _has_seat(state, instance, slot):
        victim = -1 if paired(state) else _last_best_effort(state, instance)
        while victim < 0 and last >= first:
            if state.requests[state.scratch[1, last]].status == RESIDENT:
                victim = state.scratch[1, last]
            last -= 1
        if victim < 0:
            return False
        _drop(state, instance, victim)
    return True


@inner
def run_request(state, instance, slot):
    """Schedules a request with all that it lacks; False where memory lacks after all."""
    if state.requests[slot].status == WAITING:
        admit(state, instance, slot, length(state, slot))
        return True
    return give(state, instance, slot, lacking(state, slot))


# --- Algorithm 1 ----------------------------------------------------------------------------------------------------
ANY, IN_TIME, FAILED = 0, 1, 2  # which of the fresh requests


@inner
def _next_fresh(state, instance, slot, which):
    """The first fresh request of a kind from `slot` on in the waiting queue, or -1."""
    while slot >= 0:
        if _fresh(state, slot):
            if which == ANY or has_failed(state, instance, slot, remaining_ps(state, slot)) == (which == FAILED):
                return slot
        slot = state.requests[slot].next
    return slot


@inner
def schedule_online(state, instance, size, count, residual):
    """Lines 5 to 14. Writes the real-time batch to State.picks; returns (how many, whether the time ran out).

    Who has run is in State.scratch in order; the others are pulled from the waiting queue, which is in order by itself
    (4.2, request pulling).
    """
    spec, ready, i, out_of_time = state.instances[instance], 0, 0, False
    which = IN_TIME if state.params[P.late] == 1 else ANY
    waiting = _next_fresh(state, instance, spec.online_head, which)
    while ready < size and not out_of_time:
        if waiting < 0 and which == IN_TIME:
            which = FAILED
            waiting = _next_fresh(state, instance, spec.online_head, which)
        if i < count and (waiting < 0 or state.scratch[0, i] <= order_ps(state, instance, waiting)):
            slot = state.scratch[1, i]
            i += 1
        elif waiting >= 0:
            slot = waiting
            waiting = _next_fresh(state, instance, state.requests[slot].next, which)
        else:
            break
        if not find_preempt_block(state, instance, slot, i, count):
            if state.params[P.without_blocks] == 1 and not paired(state):
                _drop(state, instance, slot)
            break
        out_of_time = cost_with(state, instance, slot) > residual
        if out_of_time and (ready > 0 or state.params[P.admit_first] == 0):
            break
        if not make_room(state, instance, slot, i, count):
            break
        _add(state, instance, slot, 1.0)
        if not run_request(state, instance, slot):
            _add(state, instance, slot, -1.0)
            break
        state.picks[ready] = slot
        ready += 1
    return ready, out_of_time


@inner
def _sort_best_effort(state, instance):
    """Sorts best-effort requests that have run into State.scratch by M^cpu, then arrival; returns how many.

    Who never ran has nothing in host memory, and waits in the order of arrival behind all who did.
    """
    spec, keys, slots_, count = state.instances[instance], state.scratch[0], state.scratch[1], 0
    for i in range(spec.offline_members):
        slot = state.members[OFFLINE, instance, i]
        keys[count], slots_[count] = state.requests[slot].host_tokens, slot
        count += 1
    slot = spec.offline_head
    while slot >= 0 and not _fresh(state, slot) and count < keys.size:
        keys[count], slots_[count] = state.requests[slot].host_tokens, slot
        count += 1
        slot = state.requests[slot].next
    sort_ascending(keys, slots_, count)
    return count


@inner
def _may_be_replaced(state, instance, slot, cost):
    """Constraint (6) with x_i = 0: t_i + k_i T_avg + T <= T_SLO."""
    if state.params[P.guard_replace] == 0:
        return True
    return state.memory[instance, AVERAGE_PS] + cost <= remaining_ps(state, slot)


@inner
def _replace(state, instance, slot, ready, total, size, residual):
    """Lines 25 to 32: a best-effort request in the place of the least urgent real-time one. Whether it was."""
    if ready == 0:
        return False
    out = state.picks[ready - 1]
    _add_scheduled(state, instance, out, -1.0)
    cost = cost_with(state, instance, slot)
    if total <= size and cost <= residual and _may_be_replaced(state, instance, out, cost):
        take_back(state, out)
        return True
    _add_scheduled(state, instance, out, 1.0)
    return False


@inner
def _add_scheduled(state, instance, slot, sign):
    """As `_add`, for a request whose memory has been taken: nothing of it is in host memory any more."""
    sums, request = state.memory[instance], state.requests[slot]
    new = float(request.scheduled_tokens)
    if new == 1.0 and request.generated_tokens > 0:
        sums[SUMS + DECODES] += sign
        sums[SUMS + CONTEXT] += sign * float(length(state, slot))
    else:
        sums[SUMS + PROMPTS] += sign * new
        sums[SUMS + PROMPT_PRODUCT] += sign * new * new


@inner
def schedule_offline(state, instance, size, ready, residual):
    """Lines 15 to 32. Returns (size of the whole batch, whether all best-effort requests lack memory)."""
    added, lacking_memory = 0, False
    count, i, total = _sort_best_effort(state, instance), 0, ready
    fresh = state.instances[instance].offline_head
    while fresh >= 0 and not _fresh(state, fresh):
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
        if needed(state, instance, slot) > there(state, instance, slot) or not _has_seat(state, instance, slot):
            lacking_memory = True
            break
        if total < size and cost_with(state, instance, slot) <= residual:
            total += 1
        elif _replace(state, instance, slot, ready, total, size, residual):
            ready -= 1
        else:
            break
        _add(state, instance, slot, 1.0)
        run_request(state, instance, slot)
        added += 1
    return total, lacking_memory and added == 0


@inner
def schedule_iteration(state, instance, size):
    """Algorithm 1. Returns (size of the batch, whether the time ran out)."""
    state.memory[instance, SUMS : SUMS + 5] = 0.0
    count = _pending(state, instance)
    residual = residual_ps(state, instance, count)
    ready, late = schedule_online(state, instance, size, count, residual)
    total, stuck = schedule_offline(state, instance, size, ready, residual)
    if stuck and state.params[P.gridlock] == 1:
        victim = _last_best_effort(state, instance)
        if victim >= 0:
            _drop(state, instance, victim)
    return total, late


@inner
def _drop_somebody(state, instance):
    """Drops the best-effort request that arrived last, or, where there is none, the real-time one with most time."""
    victim = _last_best_effort(state, instance)
    for place in range(state.instances[instance].running if victim < 0 else 0):
        slot = state.members[BATCH, instance, place]
        if victim < 0 or remaining_ps(state, slot) > remaining_ps(state, victim):
            victim = slot
    _drop(state, instance, victim)


@hook(COMPOSE)
def compose(view):
    """Algorithm 1, then the batch size of the next iteration (4.2)."""
    state, instance = view.state, view.instance
    spec, mine = state.instances[instance], state.memory[instance]
    _observe(state, instance)
    size = int(mine[SIZE]) if mine[SIZE] > 0 else int(state.params[P.batch_base])
    total, late = schedule_iteration(state, instance, size)
    while total == 0 and spec.running > 0:  # all that hold memory lack some, so that nobody can go on
        _drop_somebody(state, instance)
        total, late = schedule_iteration(state, instance, size)
    if total > 0:
        grown = min(2.0 * size, state.params[P.batch_cap])
        mine[SIZE] = state.params[P.batch_base] if late else grown
    return total


def prepare(policy, facts):
    """Fits the cost model to profiled batches (4.1), where its coefficients are not given."""
    from baselines.bros_cost import coefficients

    if policy.values["decode_base"] or policy.values["prefill_base"]:
        return {}
    return coefficients(facts, int(policy.values["context_tokens"]),
                        by_request=policy.values["product"] == "requests")


policy = Policy("bros", PARAMS, mixed=True, route=route_fewest_requests, compose=compose, prepare=prepare)
