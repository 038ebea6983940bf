"""Sarathi-Serve (arXiv 2403.02310) and Sarathi++ (HyGen, arXiv 2501.14808, section 5.1).

Sarathi: chunked prefills and stall-free batching (its Algorithm 3). Every iteration has all
decodes, then the running prefill, then waiting requests, first come first served, within one token
budget.

Sarathi++ adds the requests and preemption of HyGen's section 4.1, but no latency budget. It has two
queues, the online one first, the offline one with the rest of the budget; online requests take the
memory of offline ones.

Readings where the papers leave it open: decodes count in the token budget, as in Sarathi (HyGen's
Algorithm 1 as printed subtracts only prefills). A request is admitted once its whole context fits,
as Sarathi's engine reserves it. The KV memory of a preempted request is dropped and recomputed
("maintain their execution state", HyGen 4.1). Other readings: docs/readings.md.

Ours: HyGen's memory budget m is the free memory, so decodes are charged as their blocks fill. The
victim is the last admitted request, as in Sarathi's engine.
"""

from ooco_gym.compile import inner
from ooco_gym.policy.decisions import COMPOSE, hook
from ooco_gym.policy.latency_budget import decodes
from ooco_gym.policy.mixed import (
    RECOMPUTE,
    admit,
    allocate_slots,
    fits_whole,
    missing,
    num_free_blocks,
    num_new_blocks,
    preempt,
    running_index,
)
from ooco_gym.policy.policy import Param, Policy, slots
from ooco_gym.policy.rules import route_fewest_requests
from ooco_gym.sim.sessions import arrival_order
from ooco_gym.sim.state import BATCH, NEVER, RESIDENT

OFFLINE_CLASS, ONLINE_CLASS, BOTH = 0, 1, 2  # the requests of a pass: request.urgent, or all

# Parameters that all of the family share, in these places of State.params.
FAMILY = (
    Param("chunk_size", "token budget of an iteration: C", 1, 1_000_000),
    Param("max_num_seqs", "most requests that run at a time", 1, 65_536),
    Param("prefix_caching", "reuse the KV memory of shared prompt prefixes", choices=("off", "on")),
)
PARAMS = (*FAMILY, Param("offline", "whether offline requests are never served (pure online serving, HyGen 5.1) or "
                         "first come first served with the online ones", choices=("never", "fcfs")))
P = slots(PARAMS)


# --- Requests -------------------------------------------------------------------------------------------------------
@inner
def running_of(state, instance, kind):
    """Writes the running requests of a class to State.scratch, in the order of admission; returns
    their number."""
    count = 0
    for place in range(state.instances[instance].running):
        slot = state.members[BATCH, instance, place]
        if kind == BOTH or state.requests[slot].urgent == kind:
            state.scratch[0, count] = slot
            count += 1
    return count


@inner
def runs(state, slot):
    """Whether a request is still running: it may have lost its memory since it was listed."""
    return state.requests[slot].status == RESIDENT


@inner
def first_waiting(state, instance, kind):
    """The waiting request of a class that arrived first, or -1."""
    spec = state.instances[instance]
    online, offline = spec.online_head, spec.offline_head
    if kind != BOTH or online < 0 or offline < 0:
        return online if kind == ONLINE_CLASS or (kind == BOTH and offline < 0) else offline
    return online if arrival_order(state, online) < arrival_order(state, offline) else offline


# --- Memory ---------------------------------------------------------------------------------------------------------
@inner
def preempt_last(state, instance, kind, after):
    """Preempts the last admitted request of a class that is behind place `after` and not in the
    batch yet.

    Returns whether there was one.
    """
    for place in range(state.instances[instance].running - 1, after, -1):
        request = state.requests[state.members[BATCH, instance, place]]
        if request.num_scheduled_tokens == 0 and (kind == BOTH or request.urgent == kind):
            preempt(state, instance, place, RECOMPUTE)
            return True
    return False


@inner
def preempt_offline(state, instance, kind):
    """HyGen's PREEMPT_OFFLINE: preempts an offline request for an online one. Returns whether there
    was one."""
    return kind == ONLINE_CLASS and preempt_last(state, instance, OFFLINE_CLASS, -1)


# --- What a pass does with one request ------------------------------------------------------------------------------
@inner
def decode(state, instance, slot, kind):
    """Gives a running request its next token, preempting the most recently admitted requests for
    it, and at last itself.

    Returns whether it is in the batch.
    """
    while not allocate_slots(state, instance, slot, 1):
        if preempt_offline(state, instance, kind):
            continue
        place = running_index(state, instance, slot)
        if not preempt_last(state, instance, kind, place):
            preempt(state, instance, place, RECOMPUTE)
            return False
    return True


@inner
def prefill(state, instance, slot, most, kind):
    """Gives a running request the longest chunk within `most` and the memory: get_max_prefill and
    Algorithm 1, line 23.

    Returns its tokens.
    """
    request, want = state.requests[slot], min(missing(state, slot), most)
    while want > 0:
        while num_new_blocks(state, slot, want) > num_free_blocks(state, instance):
            if not preempt_offline(state, instance, kind):
                break
        blocks = request.blocks + num_free_blocks(state, instance)
        room = blocks * state.config.block_tokens - request.num_computed_tokens
        tokens = min(want, room)
        if tokens > 0 and allocate_slots(state, instance, slot, tokens):
            return tokens
        if kind == OFFLINE_CLASS or not preempt_last(state, instance, kind, running_index(state, instance, slot)):
            return 0
    return 0


@inner
def begin(state, instance, slot, most, kind):
    """Admits a waiting request with a chunk of at most `most` tokens if memory allows; returns its
    tokens."""
    while not fits_whole(state, instance, slot):
        if not preempt_offline(state, instance, kind):
            return 0
    return admit(state, instance, slot, most)


# --- Stall-free batching (Sarathi-Serve, Algorithm 3) ---------------------------------------------------------------
@inner
def serve(state, instance, kind, chunk, entries):
    """Schedules decodes, then running prefills, then waiting requests of a class, at most `entries`
    new ones.

    Returns the remaining token budget and the number of new requests.
    """
    entered, count = 0, running_of(state, instance, kind)
    for i in range(count):
        slot = state.scratch[0, i]
        if runs(state, slot) and decodes(state, slot) and decode(state, instance, slot, kind):
            chunk -= 1
    for i in range(count):
        slot = state.scratch[0, i]
        if runs(state, slot) and not decodes(state, slot):
            tokens = prefill(state, instance, slot, chunk, kind)
            if tokens == 0:
                return chunk, entered
            chunk -= tokens
    while chunk > 0:
        slot = first_waiting(state, instance, kind)
        if slot < 0:
            break
        new = state.requests[slot].evictions == 0
        if new and entered >= entries:
            break
        tokens = begin(state, instance, slot, chunk, kind)
        if tokens == 0:
            break
        chunk -= tokens
        entered += new
    return chunk, entered


@inner
def scheduled(state, instance):
    """New tokens of the composed batch."""
    tokens = 0
    for place in range(state.instances[instance].running):
        tokens += state.requests[state.members[BATCH, instance, place]].num_scheduled_tokens
    return tokens


@hook(COMPOSE)
def first_come(view):
    """Sarathi: online requests only, or all requests alike."""
    state = view.state
    kind = BOTH if state.params[P.offline] == 1 else ONLINE_CLASS
    serve(state, view.instance, kind, int(state.params[P.chunk_size]), NEVER)
    return scheduled(state, view.instance)


@hook(COMPOSE)
def online_first(view):
    """Sarathi++: online requests first, offline ones with the rest of the token budget."""
    state = view.state
    left, _ = serve(state, view.instance, ONLINE_CLASS, int(state.params[P.chunk_size]), NEVER)
    serve(state, view.instance, OFFLINE_CLASS, left, NEVER)
    return scheduled(state, view.instance)


sarathi = Policy("sarathi", PARAMS, mixed=True, route=route_fewest_requests, compose=first_come)
sarathi_pp = Policy("sarathi_pp", FAMILY, mixed=True, route=route_fewest_requests, compose=online_first)
