"""What HyGen and Echo, carried to pools of prefill and decode instances, do alike: fixed roles, online work first.

Both are made for one instance that prefills in chunks beside its decodes. Here prompts are prefilled whole, on
instances of their own. What chunks are for, that online work waits no longer than one iteration's budget, is kept by
stopping a longer offline prefill at a layer and going on there later (`layer_resume=1`).
"""

from ooco_gym.compile import inner
from ooco_gym.policy.policy import Param
from ooco_gym.policy.rules import flush, length, route_by_class
from ooco_gym.sim import state as s

PREFILL_TOKENS = Param("prefill_tokens", "token budget of one prefill batch", 1, 1_000_000)
PREFILL_PARAMS = (  # of prefill instances: what the simulator itself reads
    PREFILL_TOKENS,
    Param("layer_resume", "an interrupted prefill goes on at the layer reached", 0, 1),
)


@inner
def route_online(state, slot):
    """Where an arrival is prefilled and an online request decodes; WAIT for offline ones while online ones wait; STAY
    where an offline request may look for an instance."""
    chosen = route_by_class(state, slot, state.config.default_tpot_ps)
    if chosen == s.STAY and state.push_queues[s.URGENT].head >= 0:
        return s.WAIT
    return chosen


@inner
def load_with(state, instance, slot):
    """(Requests, sum of their contexts, in tokens) on a decode instance with what is coming and one more request."""
    flush(state, instance)
    spec = state.instances[instance]
    context = spec.urgent_context + spec.offline_context + spec.arriving_context
    return spec.decodable + spec.arriving + 1, context + length(state, slot)


@inner
def stop_beyond(state, instance, budget_ps):
    """STOP where the offline iteration in progress would keep an online arrival waiting for more than the budget."""
    return s.STOP if state.instances[instance].end_ps - state.clock.now_ps > budget_ps else s.KEEP


@inner
def first_resident(state, instance):
    """The offline request that joined a decode instance first, of those that can decode; -1 where there is none."""
    for i in range(state.instances[instance].offline_members):
        slot = state.members[s.OFFLINE, instance, i]
        if state.requests[slot].status == s.RESIDENT:
            return slot
    return -1


@inner
def decode_instances(state):
    """Indices of the decode (strict) instances."""
    return range(state.config.relaxed_count, state.instances.size)
