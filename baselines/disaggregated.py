"""The P/D-disaggregated systems that OOCO is compared with (OOCO, arXiv 2511.21862, 5.1.4).

`base_pd`: a standard prefill/decode-disaggregated engine without request classes. Offline requests
are treated as online ones: first come, first served prefill on the prefill (relaxed) pool, and a
push to the decode (strict) pool as soon as its memory allows. All resident requests decode in every
step. If memory is short, the request that joined last is evicted and recomputed (as in vLLM).

`online_priority`: base P/D with request classes, as HyGen and Echo would be if ported to P/D pools.
Offline requests are prefilled only while no online request waits, and the decode batch is capped to
protect the TPOT SLO. Online work replaces offline work, in the batch (offline requests beyond the
cap pause, with their KV memory kept) and in memory (the offline request that joined last is evicted
and recomputed). A prefill instance never decodes. The paper gives no cap; with `batch_cap: 0` it is
the largest batch whose step stays within `cap_share` of the TPOT SLO at the workload's mean
context, and `capacity` tunes it.

The paper does not say that offline requests pause for online ones. It explains Figure 6 by offline
requests that prolong steps, so that more online requests are still present when a peak comes, and
these queue. `at_cap: wait` is that reading: the cap bounds all of a batch, a request that decodes
keeps its place to the end, and online requests wait for one.
"""

from ooco_gym.compile import inner
from ooco_gym.policy.decisions import COMPOSE, INTERRUPT, ROUTE, hook
from ooco_gym.policy.policy import Param, Policy, slots
from ooco_gym.policy.rules import (
    flush,
    least_backlog,
    lightest_strict,
    route_by_class,
    uncached_there,
    write_urgent,
)
from ooco_gym.sim import state as s

PREFILL_TOKENS = Param("prefill_tokens", "token budget of one prefill batch", 1, 1_000_000)
PREFIX_CACHING = Param("prefix_caching", "keep prompt prefixes, and hand over only what the decode instance lacks",
                       choices=("off", "on"), default="off")
LOCAL_PREFILL = Param("local_prefill_tokens", "longest prompt, after its cached part, that is prefilled where it "
                      "decodes (Dynamo's max_local_prefill_length); 0: none", 0, 1_000_000, default=0)

# --- Base P/D -------------------------------------------------------------------------------------------------------


@hook(ROUTE, flushes=True)
def route_class_blind(view):
    """Routes by least predicted backlog for prefill, and for decode to the instance with the
    shortest step, which also prefills what is short."""
    state, longest = view.state, view.state.config.local_prefill_tokens
    if state.requests[view.request].status < s.WAITING:
        decode = lightest_strict(state, view.request, 0) if longest > 0 else 0
        if longest > 0 and uncached_there(state, decode, view.request) <= longest:
            return decode
        return least_backlog(state, view.request, True)
    return lightest_strict(state, view.request, 0)  # no bound: the shortest step of all, not the first within a bound


base_pd = Policy("base_pd", (PREFILL_TOKENS, PREFIX_CACHING, LOCAL_PREFILL), class_blind=True, route=route_class_blind)


# --- Online priority ------------------------------------------------------------------------------------------------
PARAMS = (
    Param("batch_cap", "largest decode batch with offline requests in it; 0: set from cap_share", 0, 65_536),
    Param("cap_share", "batch_cap=0: share of the TPOT SLO that a step at the mean context may fill", 0.01, 2.0),
    Param("interrupt", "stop an offline prefill for an online arrival", choices=("never", "always")),
    PREFILL_TOKENS,
    Param("layer_resume", "an interrupted prefill resumes at the layer reached", 0, 1),
    Param("at_cap", "online requests at a full batch: pause offline ones, or wait for a place",
          choices=("pause", "wait"), default="pause"),
)
P = slots(PARAMS)


@hook(ROUTE, flushes=True)
def route(view):
    """Pushes online requests immediately; offline ones if the batch is below its cap and no online
    request waits."""
    state = view.state
    chosen = route_by_class(state, view.request, state.config.default_tpot_ps)
    if chosen != s.STAY:
        return chosen
    if state.push_queues[s.URGENT].head >= 0:
        return s.WAIT
    best, fewest = s.WAIT, int(state.params[P.batch_cap])
    for instance in range(state.config.strict_from, state.instances.size):
        load = state.instances[instance].decodable + state.instances[instance].arriving
        if load < fewest:
            best, fewest = instance, load
    return best


@hook(INTERRUPT, flushes=True)
def preempt(view):
    """Keeps offline prefill running by default: layer-level interruption is OOCO's own."""
    return s.STOP if view.state.params[P.interrupt] == 1 else s.KEEP


@inner
def with_offline(state, instance, count, cap):
    """Adds offline requests to State.picks in order of joining, up to the cap; returns the number
    of picks."""
    for i in range(state.instances[instance].offline_members):
        slot = state.members[s.OFFLINE, instance, i]
        if count >= cap:
            break
        if state.requests[slot].status == s.RESIDENT:
            state.picks[count] = slot
            count += 1
    return count


@inner
def seated(state, instance, cap):
    """Writes the batch if the cap bounds all: first requests that decode already, then online ones
    in order of joining.

    Offline requests were admitted while the batch was below the cap, so all have a place. An online
    request has begun to decode with its second token; the first is prefill's.
    """
    flush(state, instance)
    count = with_offline(state, instance, 0, cap)
    for begun in (True, False):
        for i in range(state.instances[instance].urgent_members):
            slot = state.members[s.URGENT, instance, i]
            request = state.requests[slot]
            if count < cap and request.status == s.RESIDENT and (request.generated_tokens > 1) == begun:
                state.picks[count] = slot
                count += 1
    return count


@hook(COMPOSE, flushes=True)
def capped(view):
    """Takes all online requests, then offline ones in order of joining up to the cap; with `wait`
    the cap bounds both."""
    state, instance = view.state, view.instance
    spec = state.instances[instance]
    spec.bound_ps = s.NEVER
    cap = int(state.params[P.batch_cap])
    if spec.decodable <= cap:
        return s.ALL
    if state.params[P.at_cap] == 1:
        return seated(state, instance, cap)
    return with_offline(state, instance, write_urgent(state, instance), cap)


def prepare(policy, context):
    """Sets an open `batch_cap` from the SLO: the largest with L <= 0.9 S at mean context
    (docs/protocol.md)."""
    if policy.values["batch_cap"] > 0:
        return {}
    return {"batch_cap": context.largest_batch(policy.values["cap_share"])}


online_priority = Policy("online_priority", PARAMS, route=route, interrupt=preempt, compose=capped, prepare=prepare)
