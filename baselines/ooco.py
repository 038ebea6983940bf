"""OOCO (arXiv 2511.21862): latency-relaxed and latency-strict pools, four scheduling points, a
roofline predictor.

Section 3.4 in order: preemption and eviction (3.4.1), gating (3.4.2), migration (3.4.3, Algorithm
1) and mixed decoding selection (3.4.4, Algorithm 2). Parameters that the paper leaves open: TPOT
margins; K; the number of requests in one pull; the gate's cost model; the requests deferred on
overload; and the test for a compute bottleneck (batch size against `bs_sat`). Algorithm 2 continues
drawing after a request that does not fit, as printed; its text may be read as stopping there.

With several online classes, an instance's steps keep the tightest SLO.
"""

from ooco_gym.compile import inlined, inner
from ooco_gym.policy.decisions import COMPOSE, EVICT, GATE, INTERRUPT, PULL, ROUTE, hook
from ooco_gym.policy.policy import Param, Policy, slots
from ooco_gym.policy.rules import (
    all_fit,
    blocks_for,
    decodable,
    flush,
    flush_totals,
    gather_lengths,
    length,
    longest,
    longest_that_fits,
    predict_decode,
    predict_prefill,
    route_by_class,
    saturated_batch,
    shortest,
    sort_ascending,
    sum_of_smallest,
    tpot_bound,
    write_urgent,
)
from ooco_gym.sim import state as s
from ooco_gym.sim.costs import random_below

MIX_STREAM = 1  # of Algorithm 2's random draws

PARAMS = (
    Param("slo_margin", "share of the TPOT SLO that a strict step may take: S of Algorithms 1 and 2", 0.01, 2.0),
    Param("pull_margin", "pulls stop this share of the SLO below `slo_margin` (3.4.3: 'with some margin')", 0.0, 1.0),
    Param("random_tries", "K of Algorithm 2: random draws of offline requests before the shortest are added", 0, 4096),
    Param("max_pull", "requests in one pull (Algorithm 1 leaves the number open)", 1, 1024),
    Param("interrupt", "3.4.1: when an online arrival stops offline work", choices=("always", "slack", "never")),
    Param("slack_factor", "interrupt=slack: factor on the predicted TTFT", 0.0, 100.0),
    Param("gate", "3.4.2: when an offline prefill starts", choices=("cost", "saturation", "always", "never")),
    Param("gate_gain", "gate=cost: weight of the latency reduction against the recompute overhead", 0.0, 1e6),
    Param("overload", "3.4.4: if online requests alone exceed the SLO", choices=("best_effort", "sacrifice")),
    Param("evict", "3.4.1: which request is evicted", choices=("bottleneck", "longest", "shortest")),
    Param("gate_window", "waiting offline requests that the gate considers", 1, 1024),
    Param("prefill_tokens", "token budget of one prefill batch", 1, 1_000_000),
    Param("layer_resume", "an interrupted prefill resumes at the layer reached (future work in 3.4.1)", 0, 1),
    Param("prefix_caching", "keep prompt prefixes, and hand over only what a strict instance lacks; not in the paper",
          choices=("off", "on"), default="off"),
)
P = slots(PARAMS)


# --- Routing (3.2, and the engine's service layer) ------------------------------------------------------------------
@hook(ROUTE, flushes=True)
def route(view):
    """Arrivals go to the least prefill backlog; online requests are pushed immediately; offline
    ones decode locally."""
    state = view.state
    return route_by_class(state, view.request, int(state.params[P.slo_margin] * state.config.default_tpot_ps))


# --- Online request preemption (3.4.1) ------------------------------------------------------------------------------
@inner
def first_token_at_risk(state, instance, slot, factor):
    """Whether a request violates its TTFT SLO if the current iteration runs to its end."""
    spec, request = state.instances[instance], state.requests[slot]
    now = state.clock.now_ps
    wait = spec.end_ps - now + predict_prefill(state, instance, spec.online_waiting_tokens)
    return now + factor * wait > request.arrival_ps + request.ttft_slo_ps


@hook(INTERRUPT, flushes=True)
def preempt(view):
    """Stops offline work at the next layer boundary for an online arrival: always (the paper), or
    if its TTFT needs it."""
    state, mode = view.state, view.state.params[P.interrupt]
    if mode != 1:
        return s.STOP if mode == 0 else s.KEEP
    return s.STOP if first_token_at_risk(state, view.instance, view.request, state.params[P.slack_factor]) else s.KEEP


@hook(EVICT, flushes=True)
def evict(view):
    """Under a compute bottleneck evicts the longest (the batch stays large), else the shortest
    (less to recompute)."""
    state, spec = view.state, view.state.instances[view.instance]
    mode = state.params[P.evict]
    if mode == 1:
        return longest(view)
    if mode == 2:
        return shortest(view)
    batch = spec.batch_size if spec.activity == s.DECODE else spec.decodable
    return longest(view) if batch >= saturated_batch(state, view.instance) else shortest(view)


# --- Offline request gating (3.4.2) ---------------------------------------------------------------------------------
@inlined
def gate_balance(view, resident):
    """Returns (latency saved, recomputation expected) of prefilling the first candidates as one
    batch, in ps.

    With b residents, n more and o tokens still to come: gain = o (b + n) (L(b) / b - L(b + n) / (b
    + n)), cost = P(evicted) n L_prefill(prompt + o / 2). Ours: the paper gives no formula.
    """
    state = view.state
    added, tokens = 0, 0
    for i in range(view.candidates.size):
        more = length(state, view.candidates[i])
        if added > 0 and tokens + more > state.config.prefill_tokens:
            break
        added += 1
        tokens += more
    output = max(1.0, state.observed.offline_output_mean)
    context = tokens / added + 0.5 * output
    before = predict_decode(state, view.instance, resident, int(resident * context)) / resident
    after = predict_decode(state, view.instance, resident + added, int((resident + added) * context))
    gain = output * ((resident + added) * before - after)
    again = predict_prefill(state, view.instance, int(context))
    return gain, state.observed.offline_evicted_share * added * again


@hook(GATE, flushes=True)
def gate(view):
    """Prefills if the latency that a larger decode batch saves exceeds the recomputation expected
    from evictions."""
    state, mode = view.state, view.state.params[P.gate]
    if mode == 2:
        return 0
    if mode == 3:
        return s.HOLD
    resident, _ = decodable(state, view.instance, s.OFFLINE)
    if resident == 0:
        return 0
    if mode == 1:
        return 0 if resident < saturated_batch(state, view.instance) else s.HOLD
    gain, cost = gate_balance(view, resident)
    return 0 if state.params[P.gate_gain] * gain > cost else s.HOLD


# --- Offline request migration (3.4.3, Algorithm 1) -----------------------------------------------------------------
@inlined
def fullest_relaxed(state):
    """The relaxed instance with the most offline requests to pull, or -1 (ours: the paper has one
    relaxed instance)."""
    best, most, left = -1, 0, state.gauges.relaxed_decodable
    for instance in range(state.config.relaxed_count):
        if left <= most:  # total of the remaining instances
            break
        count = state.instances[instance].decodable
        left -= count
        if count > most:
            best, most = instance, count
    return best


@inlined
def preferred_length(state, instance, source, batch, context, bound):
    """Lines 3 to 12 of Algorithm 1: the length preference in tokens (0: the shortest; -1: none
    fits)."""
    free_tokens = state.instances[instance].free_blocks * state.config.block_tokens
    saturated = saturated_batch(state, instance)
    if batch >= saturated:  # compute is saturated: fill the memory with the longest that fits
        return longest_that_fits(state, instance, batch, context, 1, bound, free_tokens)
    group = saturated - batch
    if group_reaches_saturation(state, instance, source, batch, context, group, bound, free_tokens):
        return longest_that_fits(state, instance, batch, context, group, bound, free_tokens // group)
    return 0


@inner
def gather_pullable(state, source):
    """Writes lengths and slots of an instance's decoding offline requests to State.scratch; returns
    their number."""
    return gather_lengths(state, source, s.OFFLINE, state.scratch[0], state.scratch[1])


@inlined
def group_reaches_saturation(state, instance, source, batch, context, group, bound, free_tokens):
    """Line 7: whether the relaxed instance has enough requests to reach saturation within bound and
    memory."""
    if decodable(state, source, s.OFFLINE)[0] < group:
        return False
    tokens = sum_of_smallest(state.scratch[0], gather_pullable(state, source), group)
    return tokens <= free_tokens and predict_decode(state, instance, batch + group, context + tokens) <= bound


@inlined
def pick_closest(state, instance, source, batch, context, bound, preferred):
    """Line 14: picks the decoding offline requests closest to the preference, while they fit;
    returns their number."""
    # Gathered again: selecting has moved the lengths, and among equals the first member is taken.
    count, chosen, block_tokens = gather_pullable(state, source), 0, state.config.block_tokens
    lengths, slots_ = state.scratch[0], state.scratch[1]
    free = state.instances[instance].free_blocks
    most = min(count, int(state.params[P.max_pull]))
    while chosen < most:
        best, distance, room = -1, s.NEVER, free * block_tokens  # tokens, including the request's next one
        for i in range(count):
            away = abs(lengths[i] - preferred)
            if away < distance and lengths[i] < room and predict_decode(
                    state, instance, batch + 1, context + lengths[i]) <= bound:
                best, distance = i, away
        if best < 0:
            break
        state.picks[chosen] = slots_[best]
        chosen += 1
        batch += 1
        context += lengths[best]
        free -= blocks_for(state, lengths[best] + 1)
        lengths[best] = s.NEVER  # taken: it fits no more
    return chosen


@hook(PULL, flushes=True)
def pull(view):
    """Algorithm 1: pulls decoding offline requests by length, if all residents are in the batch and
    latency allows."""
    state, instance = view.state, view.instance
    spec = state.instances[instance]
    if spec.all_included == 0 or spec.arriving_pulls > 0:
        return s.FULL
    batch = spec.running + spec.arriving
    context = decodable(state, instance, s.URGENT)[1] + decodable(state, instance, s.OFFLINE)[1] + spec.arriving_context
    bound = int((state.params[P.slo_margin] - state.params[P.pull_margin]) * tpot_bound(state, instance))
    if predict_decode(state, instance, batch, context) >= bound or spec.free_blocks <= 0:
        return s.FULL
    source = fullest_relaxed(state)
    if source < 0:
        return 0
    flush_totals(state, source)
    preferred = preferred_length(state, instance, source, batch, context, bound)
    if preferred < 0:
        return s.FULL
    return pick_closest(state, instance, source, batch, context, bound, preferred)


# --- Mix decoding selection (3.4.4, Algorithm 2) --------------------------------------------------------------------
@inner
def overload(state, instance, count, context, bound):
    """3.4.4: `best_effort` decodes all online requests; `sacrifice` defers the longest until the
    rest keeps the SLO."""
    if state.params[P.overload] == 0:
        return count
    while count > 1 and predict_decode(state, instance, count, context) > bound:
        worst = 0
        for i in range(1, count):
            if length(state, state.picks[i]) > length(state, state.picks[worst]):
                worst = i
        context -= length(state, state.picks[worst])
        count -= 1
        for i in range(worst, count):
            state.picks[i] = state.picks[i + 1]
    return count


@inner
def add_offline(state, instance, count, context, bound):
    """Lines 2 to 14 of Algorithm 2: returns the size of the batch in State.picks."""
    spec, left = state.instances[instance], 0
    keys, slots_ = state.scratch[0], state.scratch[1]
    for i in range(spec.offline_members):
        slot = state.members[s.OFFLINE, instance, i]
        if state.requests[slot].status == s.RESIDENT:
            slots_[left] = slot
            left += 1
    for attempt in range(min(int(state.params[P.random_tries]), left)):
        chosen = random_below(state, MIX_STREAM, instance, spec.steps_begun, attempt, left)
        slot = slots_[chosen]
        left -= 1
        slots_[chosen] = slots_[left]
        more = length(state, slot)
        if predict_decode(state, instance, count + 1, context + more) <= bound:
            state.picks[count] = slot
            count += 1
            context += more
    if predict_decode(state, instance, count, context) >= bound:
        return count
    for i in range(left):
        keys[i] = length(state, slots_[i])
    sort_ascending(keys, slots_, left)
    for i in range(left):  # the largest prefix; latency grows with every request, so a scan equals a search
        if predict_decode(state, instance, count + 1, context + keys[i]) > bound:
            break
        state.picks[count] = slots_[i]
        count += 1
        context += keys[i]
    return count


@inner
def mix_within(state, instance, bound):
    """Algorithm 2 with a bound on the step's latency, in ps."""
    if all_fit(state, instance, bound):
        return s.ALL
    flush(state, instance)
    online, online_context = decodable(state, instance, s.URGENT)
    count = write_urgent(state, instance)
    if predict_decode(state, instance, online, online_context) > bound:
        return overload(state, instance, count, online_context, bound)
    return add_offline(state, instance, count, online_context, bound)


@hook(COMPOSE, flushes=True)
def mix(view):
    """Algorithm 2: all online requests, K offline ones at random, then the shortest, while the step keeps the SLO."""
    state, instance = view.state, view.instance
    spec = state.instances[instance]
    if spec.role == s.RELAXED:
        spec.bound_ps = s.NEVER
        return s.ALL
    return mix_within(state, instance, int(state.params[P.slo_margin] * tpot_bound(state, instance)))


policy = Policy("ooco", PARAMS, route=route, interrupt=preempt, gate=gate, compose=mix, evict=evict, pull=pull)
