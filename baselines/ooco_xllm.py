"""OOCO as in the open-source engine xLLM (`pd_ooc_scheduler`, 2026-07): the paper's rules,
simplified.

Differences from `ooco`: offline prefill is admitted while running plus waiting offline requests are
below saturation. Only offline prefill is interrupted, never decode. The strict batch is filled in
queue order up to 0.98 of the TPOT SLO, online requests included. The back of the offline queue is
evicted. A pull takes one request at a time, at least 100 ms apart, by one length formula for
Algorithm 1's three branches, round-robin over the relaxed instances. One bug is left out: the
engine passes the SLO in milliseconds where seconds are meant, so that only memory limits its pulls.
With several online classes, the tightest TPOT SLO counts.
"""

from ooco_gym.compile import inner
from ooco_gym.policy.decisions import COMPOSE, EVICT, GATE, INTERRUPT, PULL, ROUTE, hook
from ooco_gym.policy.policy import Param, Policy, slots
from ooco_gym.policy.rules import (
    all_fit,
    blocks_for,
    decodable,
    flush,
    length,
    longest_that_fits,
    predict_decode,
    route_by_class,
    saturated_batch,
    tpot_bound,
    write_urgent,
)
from ooco_gym.sim import state as s

PARAMS = (
    Param("stop_share", "share of the TPOT SLO up to which the strict batch is filled", 0.01, 2.0),
    Param("estimate_every", "requests added between two latency estimates while filling", 1, 1024),
    Param("pull_memory_share", "pull while less than this share of the KV memory is in use", 0.0, 1.0),
    Param("pull_latency_share", "pull while the last step took less than this share of the TPOT SLO", 0.0, 2.0),
    Param("pull_interval_s", "shortest time between two pull signals of one instance", 0.0, 3600.0),
    Param("gate_window", "waiting offline requests that the gate considers", 1, 1024),
    Param("prefill_tokens", "token budget of one prefill batch", 1, 1_000_000),
    Param("layer_resume", "an interrupted prefill resumes at the layer reached; the engine restarts it", 0, 1),
)
P = slots(PARAMS)


@hook(ROUTE)
def route(view):
    """The service layer: least predicted prefill backlog, first strict instance that keeps the TPOT."""
    return route_by_class(view.state, view.request, view.state.config.default_tpot_ps)


@hook(INTERRUPT)
def preempt(view):
    """Stops only offline prefill; offline decode runs to the end of its step."""
    return s.STOP if view.state.instances[view.instance].activity == s.PREFILL_OFFLINE else s.KEEP


@hook(GATE)
def gate(view):
    """Admits offline prefill only while running plus waiting offline requests are below saturation."""
    state, spec = view.state, view.state.instances[view.instance]
    resident, _ = decodable(state, view.instance, s.OFFLINE)
    if resident == 0 or resident + spec.offline_waiting < saturated_batch(state, view.instance):
        return 0
    return s.HOLD_UNTIL_CHANGE


@hook(EVICT)
def evict(view):
    """Evicts the back of the offline queue."""
    return view.candidates.size - 1


@inner
def largest_prefix(state, instance, waiting, bound):
    """How many of the queued requests in State.picks fit before the estimate passes the bound; at
    least one."""
    every, context = int(state.params[P.estimate_every]), 0
    for taken in range(waiting):
        context += length(state, state.picks[taken])
        estimated = taken % every == every - 1 or taken == waiting - 1
        if estimated and predict_decode(state, instance, taken + 1, context) > bound:
            return max(1, taken)
    return waiting


@hook(COMPOSE)
def fill_in_order(view):
    """Takes the online queue, then the offline queue, in order, up to a share of the SLO; the rest
    waits."""
    state, instance = view.state, view.instance
    spec = state.instances[instance]
    if spec.role == s.RELAXED:
        spec.bound_ps = s.NEVER
        return s.ALL
    bound = int(state.params[P.stop_share] * tpot_bound(state, instance))
    if all_fit(state, instance, bound):
        return s.ALL
    waiting = write_urgent(state, instance)
    for i in range(spec.offline_members):
        slot = state.members[s.OFFLINE, instance, i]
        if state.requests[slot].status == s.RESIDENT:
            state.picks[waiting] = slot
            waiting += 1
    return largest_prefix(state, instance, waiting, bound)


@inner
def next_source(state):
    """The next relaxed instance with a request to pull, round robin, or -1."""
    relaxed = state.config.relaxed_count
    for step in range(relaxed):
        source = (state.pending.route_step + step) % relaxed
        if state.instances[source].decodable > 0:
            state.pending.route_step = (source + 1) % relaxed
            return source
    return -1


@inner
def pick_one(state, source, free_blocks, preferred):
    """Picks the fitting offline request closest to the preferred length; returns 1, or 0 if none
    fits."""
    spec, best, distance = state.instances[source], -1, s.NEVER
    for i in range(spec.offline_members):
        slot = state.members[s.OFFLINE, source, i]
        if state.requests[slot].status != s.RESIDENT:
            continue
        away = abs(length(state, slot) - preferred)
        if away < distance and blocks_for(state, length(state, slot) + 1) <= free_blocks:
            best, distance = slot, away
    if best < 0:
        return 0
    state.picks[0] = best
    return 1


@hook(PULL)
def pull(view):
    """Pulls one request at a time, at least 100 ms apart, with its length by one formula (section
    6)."""
    state, instance = view.state, view.instance
    spec, now = state.instances[instance], state.clock.now_ps
    interval = int(state.params[P.pull_interval_s] * s.PS_PER_S)
    if spec.arriving_pulls > 0:
        return s.FULL
    if spec.last_pull_ps > 0 and now < spec.last_pull_ps + interval:
        spec.pull_wake_ps = spec.last_pull_ps + interval
        return s.FULL
    slo = tpot_bound(state, instance)
    batch = spec.running + spec.arriving
    context = decodable(state, instance, s.URGENT)[1] + decodable(state, instance, s.OFFLINE)[1] + spec.arriving_context
    used = 1.0 - spec.free_blocks / spec.total_blocks
    if used >= state.params[P.pull_memory_share]:
        return s.FULL
    if predict_decode(state, instance, spec.running, context - spec.arriving_context) >= \
            state.params[P.pull_latency_share] * slo:
        return s.FULL
    source = next_source(state)
    if source < 0:
        return 0
    flush(state, source)
    group = max(saturated_batch(state, instance) - batch, 1)
    free_tokens = spec.free_blocks * state.config.block_tokens
    preferred = max(0, longest_that_fits(state, instance, batch, context, group, slo, free_tokens // group))
    return pick_one(state, source, spec.free_blocks, preferred)


policy = Policy("ooco_xllm", PARAMS, route=route, interrupt=preempt, gate=gate, compose=fill_in_order, evict=evict,
                pull=pull)
