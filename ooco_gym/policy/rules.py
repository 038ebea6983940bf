"""Building blocks of rules: compiled helpers over a `View`, and the plainest rule for each point."""

import numpy as np

from ooco_gym.compile import inlined, inner
from ooco_gym.policy.decisions import COMPOSE, EVICT, GATE, INTERRUPT, PULL, RETAIN, ROUTE, SCALE, hook
from ooco_gym.sim import state as s
from ooco_gym.sim.costs import blocks_for, length, predict_decode, predict_prefill
from ooco_gym.sim.decode import flush, flush_totals, urgent_load
from ooco_gym.sim.lanes import gather_lengths
from ooco_gym.sim.pool_caches import caches, settle, uncached_tokens
from ooco_gym.sim.step_actions import get_computed_tokens

__all__ = ["blocks_for", "flush", "flush_totals", "gather_lengths", "length", "predict_decode", "predict_prefill"]


@inner
def is_weighted(state):
    """Whether any weight of a learned rule is not 0."""
    for place in range(state.weights.size):
        if state.weights[place] != 0.0:
            return True
    return False


# --- What a rule may read of an instance --------------------------------------------------------------------------
@inlined
def decodable(state, instance, row):
    """(Number of a class's decoding requests on a flushed instance, the sum of their context
    lengths in tokens)."""
    spec = state.instances[instance]
    if row == s.URGENT:
        return spec.urgent_decodable, spec.urgent_context
    return spec.decodable - spec.urgent_decodable, spec.offline_context


@inlined
def saturated_batch(state, instance):
    """Compute-saturated decode batch size of an instance (bs_sat, OOCO 3.3.3)."""
    return state.tables[state.instances[instance].belief].bs_sat


@inlined
def tpot_bound(state, instance):
    """The tightest TPOT SLO on an instance, in ps: the scenario's (its tightest class), or a
    tighter one of its online requests."""
    bound = state.config.default_tpot_ps
    if state.config.own_tpot == 0:
        return bound
    for i in range(state.instances[instance].urgent_members):
        request = state.requests[state.members[s.URGENT, instance, i]]
        if request.online:
            bound = min(bound, request.tpot_slo_ps)
    return bound


@inner
def write_urgent(state, instance):
    """Writes the decoding online requests of an instance to State.picks; returns their number."""
    count = 0
    for i in range(state.instances[instance].urgent_members):
        slot = state.members[s.URGENT, instance, i]
        if state.requests[slot].status == s.RESIDENT:
            state.picks[count] = slot
            count += 1
    return count


@inner
def longest(view):
    """Position of the candidate with the longest context; ties: the first."""
    best = 0
    for i in range(view.candidates.size):
        if length(view.state, view.candidates[i]) > length(view.state, view.candidates[best]):
            best = i
    return best


@inner
def shortest(view):
    """Position of the candidate with the shortest context; ties: the first."""
    best = 0
    for i in range(view.candidates.size):
        if length(view.state, view.candidates[i]) < length(view.state, view.candidates[best]):
            best = i
    return best


@inner
def uncached_there(state, instance, slot):
    """Tokens of a request's context that a prefill on an instance would compute."""
    if caches(state):
        flush_totals(state, instance)
        settle(state, instance)
    return uncached_tokens(state, instance, slot)


@inner
def least_backlog(state, slot, online):
    """Relaxed instance with the least predicted prefill backlog of a class (xLLM's SLO-aware routing); with prefix
    caches, of that and the request's own prefill (Mooncake, arXiv 2407.00079, Algorithm 1)."""
    best, least, cached = 0, s.NEVER, caches(state)
    for instance in range(state.config.relaxed_count):
        spec = state.instances[instance]
        tokens = spec.online_waiting_tokens if online else spec.online_waiting_tokens + spec.offline_waiting_tokens
        backlog = predict_prefill(state, instance, tokens) if tokens > 0 else 0
        if online and (spec.activity == s.PREFILL_ONLINE or spec.activity == s.PREFILL_OFFLINE):
            backlog += spec.end_ps - state.clock.now_ps
        if cached:
            backlog += predict_prefill(state, instance, uncached_there(state, instance, slot))
        if backlog < least:
            best, least = instance, backlog
        if least == 0:  # none has less
            break
    return best


@inner
def fewest_requests(state):
    """Instance with the fewest requests, running and waiting; ties: the first."""
    best, least = 0, s.NEVER
    for instance in range(state.config.relaxed_count):
        spec = state.instances[instance]
        requests = spec.running + spec.online_waiting + spec.offline_waiting
        if requests < least and spec.power == s.ON:
            best, least = instance, requests
        if least == 0:
            break
    return best


@inner
def fewest_of_ranks(state):
    """Rank with the fewest requests; waiting ones count up to four times if little memory is free.
    Ties: the first from a start that advances with every request (vLLM:
    `get_core_engine_for_request`)."""
    count, best, least = state.config.relaxed_count, 0, float(s.NEVER)
    start = state.pending.route_step % count
    for step in range(count):
        instance = (start + step) % count
        spec = state.instances[instance]
        waiting = spec.online_waiting + spec.offline_waiting
        used = 1.0 - spec.free_blocks / spec.total_blocks
        score = spec.running + waiting * (1.0 + 6.0 * max(0.0, used - 0.5))
        if score < least:
            best, least = instance, score
    state.pending.route_step = start + 1
    return best


@inner
def lightest_strict(state, slot, bound_ps):
    """First strict instance whose predicted latency with the request is within the bound, else the
    fastest."""
    best, least = state.config.strict_from, s.NEVER
    for instance in range(state.config.strict_from, state.instances.size):
        spec = state.instances[instance]
        if state.tables[spec.belief].noise > 0.0:  # draws are keyed by the step number, which a flush updates
            flush_totals(state, instance)
        online, context = urgent_load(state, instance)
        latency = predict_decode(state, instance, online + spec.arriving + 1,
                                 context + spec.arriving_context + length(state, slot))
        if latency <= bound_ps:
            return instance
        if latency < least:
            best, least = instance, latency
    return best


@inner
def route_by_class(state, slot, bound_ps):
    """Routes arrivals to the least prefill backlog, online requests to the lightest strict
    instance; offline ones stay."""
    request = state.requests[slot]
    if request.status < s.WAITING:
        return least_backlog(state, slot, request.urgent)
    if request.urgent:
        return lightest_strict(state, slot, bound_ps)
    return s.STAY


@inner
def first_token_ps(state, instance, slot):
    """Predicted time until an arriving request has its first token on an instance: for what goes before it, its own
    prompt, and on a mixed instance the tokens of running requests in each iteration."""
    spec, request = state.instances[instance], state.requests[slot]
    tokens = np.int64(spec.online_waiting_tokens if request.urgent else
                      spec.online_waiting_tokens + spec.offline_waiting_tokens)
    if spec.role != s.MIXED:
        wait_ps = predict_prefill(state, instance, tokens + uncached_there(state, instance, slot))
        prefills = spec.activity == s.PREFILL_ONLINE or spec.activity == s.PREFILL_OFFLINE
        return wait_ps + (spec.end_ps - state.clock.now_ps if prefills else 0)
    tokens, context = tokens + length(state, slot) - get_computed_tokens(state, instance, slot), np.int64(0)
    for index in range(spec.running):
        context += length(state, state.members[s.BATCH, instance, index])
    iterations = -(-tokens // state.config.max_num_batched_tokens)
    beside_ps = iterations * predict_decode(state, instance, spec.running, context)
    wait_ps = predict_prefill(state, instance, tokens) + beside_ps
    return wait_ps + (spec.end_ps - state.clock.now_ps if spec.activity == s.MIXING else 0)


@inlined
def all_fit(state, instance, bound_ps):
    """Whether a step of all decodes on a flushed instance keeps the bound; the loop asks again once
    it does not."""
    online, online_context = decodable(state, instance, s.URGENT)
    offline, offline_context = decodable(state, instance, s.OFFLINE)
    fits = predict_decode(state, instance, online + offline, online_context + offline_context) <= bound_ps
    state.instances[instance].bound_ps = bound_ps if fits else 0
    return fits


@inlined
def longest_that_fits(state, instance, batch, context, group, bound, most):
    """Largest l such that the batch plus `group` requests of length l keeps the bound, by binary
    search; -1 if none."""
    low, high = 0, max(0, most)
    while low < high:
        middle = (low + high + 1) // 2
        if predict_decode(state, instance, batch + group, context + group * middle) <= bound:
            low = middle
        else:
            high = middle - 1
    return low if low > 0 else -1


@inner
def sort_ascending(keys, values, count):
    """Sorts the first `count` pairs by key, then by value, in place: Shell sort with Ciura's gaps."""
    for gap in (701, 301, 132, 57, 23, 10, 4, 1):
        for i in range(gap, count):
            key, value, j = keys[i], values[i], i
            while j >= gap and (keys[j - gap] > key or (keys[j - gap] == key and values[j - gap] > value)):
                keys[j], values[j] = keys[j - gap], values[j - gap]
                j -= gap
            keys[j], values[j] = key, value


@inlined
def sum_of_smallest(keys, count, few):
    """Sum of the `few` smallest of the first `count` keys, which are reordered: Hoare's selection."""
    low, high = 0, count - 1
    while low < high and few < count:
        pivot, i, j = keys[(low + high) // 2], low, high
        while i <= j:
            while keys[i] < pivot:
                i += 1
            while keys[j] > pivot:
                j -= 1
            if i <= j:
                keys[i], keys[j] = keys[j], keys[i]
                i += 1
                j -= 1
        if few - 1 <= j:
            high = j
        elif few - 1 >= i:
            low = i
        else:
            break
    total = 0
    for i in range(few):
        total += keys[i]
    return total


# --- The plainest rule for each point -------------------------------------------------------------------------------
@hook(ROUTE, flushes=True)
def route_least_backlog(view):
    """Routes arrivals to the least prefill backlog, online requests to a strict instance; offline
    ones stay."""
    return route_by_class(view.state, view.request, view.state.config.default_tpot_ps)


@hook(ROUTE, flushes=True)
def route_fewest_requests(view):
    """Routes arrivals to the mixed instance with the fewest requests (ties: the first), or to
    data-parallel ranks as vLLM's front end does."""
    if view.state.config.data_parallel > 0:
        return fewest_of_ranks(view.state)
    return fewest_requests(view.state)


@hook(ROUTE, flushes=True)
def soonest_first_token(view):
    """Routes an arrival to the instance that the pools' rule has chosen, or, if its first token is predicted earlier
    there, to a mixed one."""
    state, best = view.state, view.instance
    least = first_token_ps(state, best, view.request)
    for instance in range(state.config.relaxed_count, state.config.strict_from):
        wait_ps = first_token_ps(state, instance, view.request)
        if wait_ps < least:
            best, least = instance, wait_ps
    return best


@hook(INTERRUPT, flushes=True)
def never_interrupt(view):
    """Never interrupts an offline prefill."""
    return s.KEEP


@hook(GATE, flushes=True)
def first_come(view):
    """Always starts the first waiting request."""
    return 0


@hook(COMPOSE, flushes=True)
def every_resident(view):
    """Decodes all residents, at any latency."""
    view.state.instances[view.instance].bound_ps = s.NEVER
    return s.ALL


@hook(EVICT, flushes=True)
def last_joined(view):
    """Evicts the resident that joined last (as vLLM recomputes)."""
    return view.candidates.size - 1


@hook(PULL, flushes=True)
def never_pull(view):
    return s.FULL


@hook(RETAIN, flushes=True)
def as_last_used(view):
    """Keeps blocks in the order of their last use, as vLLM does."""
    return 0


@hook(SCALE, flushes=True)
def as_many(view):
    """As many instances as at the beginning."""
    return view.state.groups[view.state.units[view.instance].group].count
