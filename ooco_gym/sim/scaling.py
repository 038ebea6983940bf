"""The clock of an elastic fleet: due changes of its instances, and the decision `scale` at fixed intervals."""

import numpy as np

from ooco_gym.compile import inlined, inner
from ooco_gym.sim import state as s
from ooco_gym.sim.bidirectional import change_host
from ooco_gym.sim.costs import length
from ooco_gym.sim.dispatch import TASK_DONE, UNANSWERED, ask
from ooco_gym.sim.fleet import change, drain, holder, schedule_clock, start, turn_off, used_chip_s, wake_engine
from ooco_gym.sim.queues import add_dispatch, add_task, dequeue, enqueue_by_arrival
from ooco_gym.sim.roles import move_boundary, steers_roles


@inner
def run_clock(state):
    """Changes the instances that are due, and schedules the next change or decision."""
    next_ps = state.fleet.next_ps
    for instance in range(state.units.size):
        if state.units[instance].due_ps <= state.clock.now_ps:
            change(state, instance)
    if next_ps <= state.clock.now_ps:
        _close_interval(state)
        next_ps += state.fleet.interval_ps
        state.fleet.next_ps = next_ps
        add_task(state, s.STEER, -1, -1)
    schedule_clock(state)


@inner
def _close_interval(state):
    """Writes down what has arrived since the last decision."""
    fleet = state.fleet
    if fleet.intervals < state.tides.shape[1]:
        tide = state.tides[:, fleet.intervals]
        tide[0], tide[1] = fleet.online_arrived, fleet.online_tokens
        tide[2], tide[3] = fleet.offline_arrived, fleet.offline_tokens
        tide[4] = state.config.relaxed_count if steers_roles(state) else used_chip_s(state)
        fleet.intervals += 1
    fleet.online_arrived, fleet.online_tokens = 0, 0
    fleet.offline_arrived, fleet.offline_tokens = 0, 0
    fleet.asked = 0


@inlined
def steer(state, scale):
    """Asks for each group's target. Returns UNANSWERED if a decision is pending."""
    fleet = state.fleet
    while fleet.asked < state.groups.size:
        first = state.groups[fleet.asked].first
        answer = ask(state, s.SCALE, first, -1, 0, scale)
        if answer == s.ASK:
            return UNANSWERED
        set_target(state, fleet.asked, answer)
        fleet.asked += 1
    schedule_clock(state)
    return TASK_DONE


@inner
def set_target(state, which, answer):
    """Starts or stops instances until as many are on or starting as a group is to have; those that drain are late. In
    pools, begins to move the boundary between both roles."""
    group, have = state.groups[which], 0
    group.target = min(max(np.int64(answer), group.least), group.most)
    if steers_roles(state):
        if group.target != state.config.wanted_relaxed:
            move_boundary(state, np.int64(group.target))
        return
    for instance in range(group.first, group.first + group.engines):
        power = state.instances[instance].power
        have += power == s.ON or power == s.STARTING
    while have > group.target:
        _stop_one(state, group)
        have -= 1
    for instance in range(group.first, group.first + group.engines):
        if have < group.target and state.instances[instance].power == s.OFF:
            start(state, instance)
            if group.start_ps == 0:
                change(state, instance)
            have += 1


@inner
def _stop_one(state, group):
    """Stops the instance that loses least: the one last started, else the one with the fewest online requests."""
    best, least = np.int64(-1), s.NEVER
    for instance in range(group.first, group.first + group.engines):
        spec = state.instances[instance]
        if spec.power == s.STARTING:
            size = -state.units[instance].due_ps - 1
        elif spec.power == s.ON:
            size = spec.urgent_members + spec.online_waiting
        else:
            continue
        if size <= least:
            best, least = np.int64(instance), size
    if state.instances[best].power == s.STARTING:
        turn_off(state, best)
        add_task(state, s.REROUTE, best, -1)
    else:
        drain(state, best)


# --- Requests that wait on an instance which is not on ----------------------------------------------------------------
@inlined
def reroute(state, instance, route):
    """Routes what waits on an instance that is not on, as if it arrived now. Returns UNANSWERED if a decision is
    pending."""
    spec = state.instances[instance]
    while spec.power != s.ON and spec.online_waiting + spec.offline_waiting > 0:
        slot = np.int64(spec.online_head if spec.online_head >= 0 else spec.offline_head)
        to = np.int64(holder(state))
        if state.instances[to].power == s.ON:
            answer = ask(state, s.ROUTE, -1, slot, 0, route)
            if answer == s.ASK:
                return UNANSWERED
            if 0 <= answer < state.instances.size and state.instances[answer].power == s.ON:
                to = np.int64(answer)
        elif spec.power != s.DRAINING or to == instance:
            break
        _move(state, slot, instance, to)
    if spec.power == s.DRAINING:
        add_dispatch(state, instance)
    return TASK_DONE


@inner
def _move(state, slot, instance, to):
    """Moves a waiting request to another instance's queue, by arrival; a copy in host memory stays behind."""
    request = state.requests[slot]
    if request.host_tokens > 0:
        request.kv_lost = min(length(state, slot), request.kv_lost + np.int64(request.host_tokens))
        change_host(state, instance, slot, -request.host_tokens)
    dequeue(state, instance, slot)
    request.instance = to
    request.origin = to
    enqueue_by_arrival(state, to, slot)
    wake_engine(state, to, slot)
