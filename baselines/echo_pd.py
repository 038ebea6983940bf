"""Echo (arXiv 2504.03651) carried to P/D pools: what OOCO's online priority stands for, with Echo's own rules.

Carried: the estimator (5.2, each pool running one phase), the slack of an online batch (5.1), plans as edits of the
last batch, chosen by benefit less punishment per time (4.1), length buckets of the offline pool (6), the victim whose
loss leaves the best ratio, preemption by recompute, and memory kept free for bursts of online work (4.2, 5.3).

Not carried, as prompts are prefilled whole on instances of their own: mixed batches (T = lam max + (1 - lam) sum of 5.2
never comes up), chunks (`baselines/pools.py` says what stands for them); the prefix cache, its priorities and the
radix tree (no cache is shared between pools), so that nothing but a victim's context is punished.

Ours, as the paper leaves it open or a decode instance cannot know it: T_d has a constant, the number of requests and
their contexts besides (by the longest and the mean context alone it is blind to the size of the batch); a request
behind its D(i), which counts from the arrival, is owed one TPOT from now; the memory of bursts from the online arrival
rate, with as many requests at a time as arrive while one decodes, Poisson distributed, instead of an hour's record of
memory in use.

In a decode step every token is worth the same, so the best ratio is the shortest time: among offline requests that
could join, the shortest; among those that must go, the longest. Sorting once finds what trying all of them would.
Of several classes of online requests, what `slo_share` and `prefill_share` are of is the tightest.
"""

import math

from baselines.echo_benchmarks import COUNTED, fit_decode, fit_prefill
from baselines.echo_estimator import LONGEST, PREFILL_COEFFICIENTS
from baselines.pools import PREFILL_PARAMS, decode_instances, first_resident, load_with, route_online, stop_beyond
from ooco_gym.compile import inner
from ooco_gym.policy.decisions import COMPOSE, EVICT, GATE, INTERRUPT, ROUTE, hook
from ooco_gym.policy.policy import Param, Policy, slots
from ooco_gym.policy.rules import blocks_for, length, sort_ascending, tpot_bound, write_urgent
from ooco_gym.sim import state as s
from ooco_gym.sim.queues import number_members

PARAMS = (
    Param("slo_share", "share of the SLOs that plans are held to", 0.01, 2.0),
    Param("prefill_share", "an offline prefill may take this share of the TTFT SLO", 0.0, 2.0),
    Param("reserve", "4.2: memory left free for bursts", choices=("off", "on")),
    Param("reserve_sigmas", "5.3: standard deviations above the mean (footnote 2: tunable)", 0.0, 100.0),
    Param("reserve_tokens", "mean context of online requests; 0: the workload's", 0.0, 1e7),
    Param("prefill_benefit", "3.1: b_p, the worth of a prefilled token", 0.0, 1e6),
    Param("decode_benefit", "3.1: b_d, the worth of a decoded token", 0.0, 1e6),
    Param("gate_window", "6: waiting offline requests that are tried", 1, 1024),
    *PREFILL_PARAMS,
    *PREFILL_COEFFICIENTS,  # all 0: from micro-benchmarks, as those of T_d
    LONGEST,
    Param("base_ps", "T_d, ps a step", 0.0),
    Param("request_ps", "T_d, ps a request", 0.0),
    Param("context_ps", "T_d, ps a token of all contexts", 0.0),
)
P = slots(PARAMS)


# --- Estimator (5) --------------------------------------------------------------------------------------------------
@inner
def decode_ps(state, batch, context, most):
    """T_d of `batch` decodes with `context` tokens in all, `most` in the longest, in ps."""
    if batch == 0:
        return 0.0
    p = state.params
    return p[P.base_ps] + p[P.request_ps] * batch + p[P.context_ps] * context + p[P.longest_ps] * most


@inner
def slack_ps(state, instance):
    """What the next step of an instance's online requests may take: the least of D(i) less what they waited (5.1)."""
    p, least = state.params, float(s.NEVER)
    for i in range(state.instances[instance].urgent_members):
        request = state.requests[state.members[s.URGENT, instance, i]]
        if request.status != s.RESIDENT:
            continue
        tpot = p[P.slo_share] * request.tpot_slo_ps
        due = request.arrival_ps + request.ttft_slo_ps + request.generated_tokens * tpot
        least = min(least, max(tpot, due - state.clock.now_ps))
    return least


@inner
def burst_blocks(state, instance):
    """Blocks to leave free on a decode instance: mean and sigmas of what online requests will hold, less what they do.

    As many decode at a time as arrive while one does (Little), each step taken to last the TPOT SLO.
    """
    p, spec = state.params, state.instances[instance]
    if p[P.reserve] == 0:
        return 0
    spread = state.instances.size - state.config.relaxed_count
    seconds = state.observed.online_output_mean * p[P.slo_share] * state.config.default_tpot_ps / s.PS_PER_S
    at_a_time = state.observed.online_rate_slow * seconds / spread
    expected = (at_a_time + p[P.reserve_sigmas] * math.sqrt(at_a_time)) * blocks_for(state, int(p[P.reserve_tokens]))
    return max(0, int(expected) - blocks_for(state, spec.urgent_context) - spec.urgent_decodable)


# --- Admission ------------------------------------------------------------------------------------------------------
@inner
def decode_instance_for(state, slot):
    """The decode instance whose estimated step with one more offline request is shortest, within the SLO and the memory
    that bursts leave; WAIT if none. An empty instance takes any request."""
    best, least = s.WAIT, float(s.NEVER)
    for instance in decode_instances(state):
        batch, context = load_with(state, instance, slot)
        latency = decode_ps(state, batch, context, length(state, slot))
        limit = state.params[P.slo_share] * tpot_bound(state, instance)
        free = state.instances[instance].free_blocks
        need = blocks_for(state, length(state, slot) + 1)
        if batch > 1 and (latency > limit or need > free - burst_blocks(state, instance)):
            continue
        if need <= free and latency < least:
            best, least = instance, latency
    return best


@hook(ROUTE)
def route(view):
    """Online requests at once; offline ones where the estimator and the threshold on memory let them."""
    chosen = route_online(view.state, view.request)
    return decode_instance_for(view.state, view.request) if chosen == s.STAY else chosen


@inner
def bucket(tokens):
    """Bucket of a length: powers of two (6; the edges are ours)."""
    return int(math.log2(max(1, tokens)))


@hook(GATE)
def choose(view):
    """Of the candidates that could go on decoding, in the bucket nearest the batch's, the best benefit per time."""
    state, p = view.state, view.state.params
    if state.push_queues[s.OFFLINE].head >= 0:
        return s.HOLD
    batch, context = 0, 0  # of what decodes, as far as flushed
    for instance in decode_instances(state):
        spec = state.instances[instance]
        batch += spec.decodable
        context += spec.urgent_context + spec.offline_context
    mean = context // batch if batch > 0 else 0
    best, nearest, most = s.HOLD, 64, -1.0
    for i in range(view.candidates.size):
        slot = view.candidates[i]
        tokens = length(state, slot)
        away = abs(bucket(tokens) - bucket(mean)) if mean > 0 else 0
        time_ps = max(p[P.square_ps] * tokens * tokens + p[P.token_ps] * tokens, p[P.least_ps])
        ratio = p[P.prefill_benefit] * tokens / time_ps
        if away > nearest or (away == nearest and ratio <= most):
            continue
        if decode_instance_for(state, slot) != s.WAIT:
            best, nearest, most = i, away, ratio
    return best


@hook(INTERRUPT)
def end_chunk(view):
    """An online arrival waits for offline prefill no longer than its share of the TTFT SLO; nothing is lost."""
    state = view.state
    return stop_beyond(state, view.instance, state.params[P.prefill_share] * state.config.default_ttft_ps)


# --- Plans from the last batch (4.1) --------------------------------------------------------------------------------
@inner
def sort_offline(state, instance):
    """Writes the offline requests that can decode to State.scratch, those of the last batch first, each part by length;
    returns (how many were in the last batch, how many there are)."""
    spec, keys, slots_ = state.instances[instance], state.scratch[0], state.scratch[1]
    number_members(state, instance)
    for i in range(spec.offline_members):
        state.picks[i] = 0
    stayed = 0
    for i in range(spec.running):
        slot = state.members[s.BATCH, instance, i]
        request = state.requests[slot]
        if request.status == s.RESIDENT and request.instance == instance and not request.urgent:
            state.picks[request.position] = 1
            keys[stayed], slots_[stayed] = length(state, slot), slot
            stayed += 1
    count = stayed
    for i in range(spec.offline_members):
        slot = state.members[s.OFFLINE, instance, i]
        if state.picks[i] == 0 and state.requests[slot].status == s.RESIDENT:
            keys[count], slots_[count] = length(state, slot), slot
            count += 1
    sort_ascending(keys, slots_, stayed)
    sort_ascending(keys[stayed:], slots_[stayed:], count - stayed)
    return stayed, count


@inner
def shrink(state, batch, context, most, kept, limit):
    """Takes offline requests out of the last batch, the longest first, until the rest keeps the limit; returns (how
    many stay, their tokens)."""
    keys, tokens = state.scratch[0], 0
    for i in range(kept):
        tokens += keys[i]
    while kept > 0:
        longest = max(most, keys[kept - 1])
        if decode_ps(state, batch + kept, context + tokens, longest) <= limit:
            break
        kept -= 1
        tokens -= keys[kept]
    return kept, tokens


@hook(COMPOSE)
def plan(view):
    """All online decodes; of offline ones the last batch as far as the slack allows, then what raises the ratio."""
    state, instance = view.state, view.instance
    spec = state.instances[instance]
    spec.bound_ps = s.NEVER if spec.role == s.RELAXED else 0
    if spec.role == s.RELAXED:
        return s.ALL
    limit = slack_ps(state, instance)
    stayed, total = sort_offline(state, instance)
    keys, slots_ = state.scratch[0], state.scratch[1]
    count, context, most = write_urgent(state, instance), spec.urgent_context, 0
    for i in range(count):
        most = max(most, length(state, state.picks[i]))
    kept, tokens = shrink(state, count, context, most, stayed, limit)
    for i in range(kept):
        state.picks[count] = slots_[i]
        count += 1
    context += tokens
    most = max(most, keys[kept - 1]) if kept > 0 else most
    for i in range(stayed if kept == stayed else total, total):  # no request joins where one had to go
        now, then = decode_ps(state, count, context, most), decode_ps(
            state, count + 1, context + keys[i], max(most, keys[i]))
        if then > limit or (count > 0 and (count + 1) * now < count * then):
            break
        state.picks[count] = slots_[i]
        count += 1
        context += keys[i]
        most = max(most, keys[i])
    if count == 0:  # nothing keeps the limit: one at a time
        state.picks[0] = first_resident(state, instance)
        return 1
    return count


@hook(EVICT)
def victim(view):
    """The candidate whose loss leaves the best (benefit - punishment) / time: the rest decodes, its context is computed
    again."""
    state, p = view.state, view.state.params
    best, most, count, context, longest, second = 0, -1e300, view.candidates.size, 0, 0, 0
    for i in range(count):
        tokens = length(state, view.candidates[i])
        context += tokens
        longest, second = max(longest, tokens), max(second, min(longest, tokens))
    for i in range(count):
        tokens = length(state, view.candidates[i])
        left = second if tokens == longest else longest  # the longest context of the rest
        time_ps = max(1.0, decode_ps(state, count - 1, context - tokens, left))
        ratio = (p[P.decode_benefit] * (count - 1) - p[P.prefill_benefit] * tokens) / time_ps
        if ratio > most:
            best, most = i, ratio
    return best


def prepare(policy, facts):
    """Fits the estimator by micro-benchmarks (5.2), each phase unless coefficients of it are given."""
    values = policy.values
    found = {} if values["reserve_tokens"] > 0 else {"reserve_tokens": facts.mean_context_tokens}
    if not any(values[param.name] for param in PREFILL_COEFFICIENTS):
        found |= fit_prefill(facts.relaxed, facts.block_tokens)
    if not any(values[name] for name in COUNTED):
        found |= fit_decode(facts.strict, facts.max_batch - 1, facts.block_tokens, COUNTED)
    return found


policy = Policy("echo_pd", PARAMS, route=route, interrupt=end_chunk, gate=choose, compose=plan, evict=victim,
                prepare=prepare)
