"""Roles that change: an instance of one pool drains, and then belongs to the other.

Relaxed instances come first, strict ones last. To change roles, the boundary moves: from `relaxed_count` on no request
is routed to an instance for prefill, below `strict_from` none to decode. Those in between drain. One that becomes
strict hands back the requests that wait on it, and keeps its residents; one that becomes relaxed lets its online
requests end, and keeps the offline ones. Each takes its new role between two iterations, the one at the boundary first.
"""

from ooco_gym.compile import inlined, inner
from ooco_gym.sim import state as s
from ooco_gym.sim.decode import cut, wake
from ooco_gym.sim.fleet import wake_engine
from ooco_gym.sim.queues import add_task, cancel, enqueue, retry_waiting, schedule

AT, RELAXED_THEN = range(2)  # columns of State.role_changes


@inlined
def changing(state, instance):
    """Whether an instance of a pool is between two roles (mixed ones beside pools are there, too)."""
    config = state.config
    return config.relaxed_count <= instance < config.strict_from and config.mixed_count == 0


@inlined
def enter(state, slot, instance):
    """Queues a request for prefill on an instance, which may stop offline work for it."""
    request, spec = state.requests[slot], state.instances[instance]
    request.instance = instance
    request.origin = instance
    request.status = s.WAITING
    enqueue(state, instance, slot, False)
    if request.urgent and (spec.activity == s.PREFILL_OFFLINE or spec.activity == s.DECODE) and not spec.interrupted:
        cut(state, instance)
        add_task(state, s.INTERRUPT_FOR, instance, slot)
    elif spec.role == s.MIXED:
        wake_engine(state, instance, slot)
    else:
        wake(state, instance)


@inlined
def steers_roles(state):
    """Whether the decision `scale` says how many instances are relaxed."""
    return state.groups.size > 0 and state.instances[0].role != s.MIXED


@inlined
def roles_change(state):
    """Whether instances may change their roles."""
    return state.role_changes.size + state.groups.size > 0


@inner
def change_roles(state):
    """Begins the change whose time has come (`State.role_changes`)."""
    config, changes = state.config, state.role_changes
    source, index = state.heap.shape[1] - 1, config.next_change
    config.next_change = index + 1
    if index + 1 < changes.shape[0]:
        schedule(state, source, changes[index + 1, AT])
    else:
        cancel(state, source)
    move_boundary(state, changes[index, RELAXED_THEN])


@inner
def move_boundary(state, relaxed):
    """Begins to drain the instances between both roles, until so many are relaxed."""
    config = state.config
    config.wanted_relaxed = relaxed
    config.relaxed_count = min(config.relaxed_count, config.wanted_relaxed)
    config.strict_from = max(config.strict_from, config.wanted_relaxed)
    settle_roles(state)
    for instance in range(config.relaxed_count, config.strict_from):
        add_task(state, s.HAND_BACK, instance, -1)
        wake(state, instance)


@inner
def settle_roles(state):
    """Moves the boundary past the instances next to it that are drained."""
    config, before = state.config, state.config.strict_from - state.config.relaxed_count
    while config.strict_from > config.wanted_relaxed and _drained(state, config.strict_from - 1, s.STRICT):
        config.strict_from -= 1
        _take_role(state, config.strict_from, s.STRICT)
    while config.relaxed_count < config.wanted_relaxed and _drained(state, config.relaxed_count, s.RELAXED):
        _take_role(state, config.relaxed_count, s.RELAXED)
        config.relaxed_count += 1
    if 0 < config.strict_from - config.relaxed_count < before:  # the next one may have waited for these
        wake(state, config.strict_from - 1)
        wake(state, config.relaxed_count)


@inner
def _drained(state, instance, role):
    """Whether an instance may take a role now; one that still has it may at any time."""
    spec = state.instances[instance]
    if spec.role == role:
        return True
    if spec.activity != s.IDLE or spec.online_waiting + spec.offline_waiting + spec.suspended > 0:
        return False
    return role == s.STRICT or spec.urgent_members + spec.arriving == 0


@inner
def _take_role(state, instance, role):
    spec = state.instances[instance]
    if spec.role != role:
        state.gauges.relaxed_decodable += spec.decodable if role == s.RELAXED else -spec.decodable
    spec.role = role
    spec.stage = 0
    spec.hold, spec.pull_due, spec.wants_pull, spec.pull_wake_ps = s.HOLD_UNTIL_CHANGE, 1, 1, s.NEVER
    wake(state, instance)
    retry_waiting(state)
