"""A random rule for each decision point, keyed so that it answers alike however the loop is driven."""

from ooco_gym.policy.decisions import COMPOSE, EVICT, GATE, INTERRUPT, PULL, ROUTE, SCALE, hook
from ooco_gym.policy.policy import Policy
from ooco_gym.sim import state as s
from ooco_gym.sim.costs import random_below
from ooco_gym.sim.decode import flush

STREAM = 900


@hook(ROUTE)
def route(view):
    """Any instance; offline requests also stay or, where a request decodes on a strict instance, wait."""
    state, request = view.state, view.state.requests[view.request]
    relaxed = state.config.relaxed_count
    if request.status < s.WAITING:
        return random_below(state, STREAM, view.request, 0, 0, relaxed)
    first = state.config.strict_from
    strict = first + random_below(state, STREAM, view.request, request.evictions, 1, state.instances.size - first)
    if request.urgent:
        return strict
    answer = random_below(state, STREAM, view.request, request.evictions, 2, 3)
    if answer == 0:
        return s.STAY
    if answer == 1 and state.instances[strict].decodable > 0:
        return s.WAIT
    return strict


@hook(INTERRUPT)
def interrupt(view):
    return s.STOP if random_below(view.state, STREAM + 1, view.instance, view.request, 0, 2) == 0 else s.KEEP


@hook(GATE)
def gate(view):
    step = view.state.instances[view.instance].steps_begun
    answer = random_below(view.state, STREAM + 2, view.instance, step, view.candidates.size, view.candidates.size + 1)
    return answer if answer < view.candidates.size else s.HOLD


@hook(COMPOSE)
def compose(view):
    """On even instances all residents, on odd ones a random half, at least one."""
    state, instance = view.state, view.instance
    spec, count = state.instances[instance], 0
    if instance % 2 == 0:
        spec.bound_ps = s.NEVER
        return s.ALL
    spec.bound_ps = 0
    for row in (s.URGENT, s.OFFLINE):
        members = spec.urgent_members if row == s.URGENT else spec.offline_members
        for i in range(members):
            slot = state.members[row, instance, i]
            if state.requests[slot].status != s.RESIDENT:
                continue
            if count == 0 or random_below(state, STREAM + 3, instance, spec.steps_begun, slot, 2) == 0:
                state.picks[count] = slot
                count += 1
    return count


@hook(EVICT)
def evict(view):
    step = view.state.instances[view.instance].steps_begun
    return random_below(view.state, STREAM + 4, view.instance, step, view.candidates.size, view.candidates.size)


@hook(PULL)
def pull(view):
    """Up to three of the requests that decode on a random relaxed instance; now and then none."""
    state = view.state
    step = state.instances[view.instance].steps_begun
    if random_below(state, STREAM + 5, view.instance, step, 0, 4) == 0:
        return s.FULL
    source, count = random_below(state, STREAM + 5, view.instance, step, 1, state.config.relaxed_count), 0
    flush(state, source)
    for i in range(state.instances[source].offline_members):
        slot = state.members[s.OFFLINE, source, i]
        if count < 3 and random_below(state, STREAM + 5, view.instance, step, slot + 2, 2) == 0:
            state.picks[count] = slot
            count += 1
    return count


@hook(SCALE)
def scale(view):
    """From one less than none to one more than all."""
    state, most = view.state, view.state.groups[view.state.units[view.instance].group].engines
    answer = random_below(state, STREAM + 6, view.instance, state.fleet.intervals, 0, most + 3) - 2
    return answer if answer != s.ASK else 0


assert s.STRICT == 1
policy = Policy("random_rules", route=route, interrupt=interrupt, gate=gate, compose=compose, evict=evict, pull=pull,
                scale=scale)
