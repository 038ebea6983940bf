"""Instances of an elastic fleet: off, starting, on, draining (`power` of their records).

An instance is paid for from the begin of its start to the end of its drain. One that drains takes
nothing new: its online requests end there, its offline ones leave at the end of the iteration in
progress (with asynchronous scheduling, of the last composed one) and are recomputed elsewhere. A
reclaimed one drains for its notice; then its online requests leave, too.
"""

import math

import numpy as np
from numba import types

from ooco_gym.compile import inlined, inner, jit
from ooco_gym.perf.latency import steady
from ooco_gym.sim import state as s
from ooco_gym.sim.blocks import forget_all
from ooco_gym.sim.costs import random_unit
from ooco_gym.sim.memory import take_blocks
from ooco_gym.sim.mixed import can_be_stopped
from ooco_gym.sim.queues import add_dispatch, add_task, cancel, schedule
from ooco_gym.sim.step_actions import preempt, unschedule

RECLAIM_STREAM = 11
NOTICED, OVER = 1, 2  # values of UNIT.notice


@inlined
def elastic(state):
    """Whether instances start and stop."""
    return state.groups.size > 0


@inlined
def serves(spec):
    """Whether an instance composes iterations."""
    return spec.power <= s.DRAINING


@inner
def note_arrival(state, slot):
    """Counts a request in the present interval."""
    request, fleet = state.requests[slot], state.fleet
    if request.online:
        fleet.online_arrived += 1
        fleet.online_tokens += request.prompt_tokens
    else:
        fleet.offline_arrived += 1
        fleet.offline_tokens += request.prompt_tokens


@inner
def holder(state):
    """Where a request waits that no rule routes: the instance that is on with the fewest requests; with none on, the
    next to start, one that is off, or the one that drains longest."""
    best, best_power, least = 0, np.int64(s.OFF) + 1, s.NEVER
    for instance in range(state.instances.size):
        spec = state.instances[instance]
        power, size = np.int64(spec.power), spec.running + spec.online_waiting + spec.offline_waiting
        if power == s.STARTING:
            size = state.units[instance].due_ps
        elif power == s.DRAINING:
            power, size = np.int64(s.OFF) + 1, -state.units[instance].due_ps
        if power < best_power or (power == best_power and size < least):
            best, best_power, least = instance, power, size
    return best


@inlined
def routed(state, answer):
    """The instance for a new request: the rule's, or if that takes none, another (`holder`)."""
    if elastic(state) and state.instances[answer].power != s.ON:
        return np.int64(holder(state))
    return np.int64(answer)


@inlined
def wake_engine(state, instance, slot):
    """Lets an instance see a request that has joined its queue."""
    spec = state.instances[instance]
    if spec.activity == s.IDLE:  # its next iteration sees all arrivals at this time
        if serves(spec):
            schedule(state, instance, state.clock.now_ps)
    elif state.requests[slot].urgent and can_be_stopped(state, instance):
        add_task(state, s.INTERRUPT_FOR, instance, slot)


@inner
def used_chip_s(state):
    """Chip-seconds that have been paid for so far."""
    total = 0.0
    for instance in range(state.units.size):
        unit = state.units[instance]
        used = unit.used_ps + (state.clock.now_ps - unit.begun_ps if state.instances[instance].power != s.OFF else 0)
        total += state.groups[unit.group].chips * (used / s.PS_PER_S)
    return total


# --- Changes of state -----------------------------------------------------------------------------------------------
@inner
def start(state, instance):
    """Begins to start an instance that is off."""
    unit = state.units[instance]
    group = state.groups[unit.group]
    state.instances[instance].power = s.STARTING
    unit.begun_ps, unit.notice = state.clock.now_ps, 0
    unit.due_ps = state.clock.now_ps + group.start_ps
    group.starts += 1


@inner
def draw_reclaim(state, instance):
    """When a spot instance that is on now is reclaimed, or NEVER: exponential times."""
    rate = state.groups[state.units[instance].group].rate_per_h
    if rate <= 0.0:
        return np.int64(s.NEVER)
    draw = random_unit(state, RECLAIM_STREAM, instance, state.units[instance].begun_ps, 0)
    return state.clock.now_ps + np.int64(min(-steady(math.log(draw)) * 3600.0 / rate, 1e6) * s.PS_PER_S)


@inner
def turn_on(state, instance):
    """A started instance takes requests, and those that wait on others that do not."""
    spec = state.instances[instance]
    spec.power = s.ON
    state.units[instance].due_ps = draw_reclaim(state, instance)
    if spec.online_waiting + spec.offline_waiting > 0:
        schedule(state, instance, state.clock.now_ps)
    for other in range(state.instances.size):
        spec = state.instances[other]
        if spec.power != s.ON and spec.online_waiting + spec.offline_waiting > 0:
            add_task(state, s.REROUTE, other, -1)


@inner
def drain(state, instance):
    """An instance takes nothing new from now on."""
    state.instances[instance].power = s.DRAINING
    add_dispatch(state, instance)


@inner
def turn_off(state, instance):
    """An instance without running requests is off; its prefix cache is lost."""
    spec, unit = state.instances[instance], state.units[instance]
    spec.power = s.OFF
    spec.pull_wake_ps = s.NEVER
    unit.used_ps += state.clock.now_ps - unit.begun_ps
    unit.due_ps, unit.notice = s.NEVER, 0
    cancel(state, instance)
    take_blocks(state, instance, -forget_all(state, instance))


@inner
def change(state, instance):
    """What the clock changes at `due_ps`: a start is over, an instance is reclaimed, its notice is over."""
    spec, unit = state.instances[instance], state.units[instance]
    if spec.power == s.STARTING:
        turn_on(state, instance)
        return
    if unit.notice == NOTICED:
        unit.notice, unit.due_ps = OVER, s.NEVER
    else:
        group = state.groups[unit.group]
        group.reclaims += 1
        unit.notice, unit.due_ps = NOTICED, state.clock.now_ps + group.notice_ps
    drain(state, instance)


@inner
def schedule_clock(state):
    """Schedules the next change or decision."""
    next_ps = state.fleet.next_ps
    for instance in range(state.units.size):
        next_ps = min(next_ps, state.units[instance].due_ps)
    schedule(state, state.instances.size + state.links.size + 1, next_ps)


@jit(types.void(types.int64))
def begin_fleet(handle):
    """Draws when the spot instances that are on at the beginning are reclaimed, and starts the fleet's clock."""
    state = s.state_at(handle)
    for instance in range(state.units.size):
        if state.instances[instance].power == s.ON:
            state.units[instance].due_ps = draw_reclaim(state, instance)
    schedule_clock(state)


# --- The end of a drain ---------------------------------------------------------------------------------------------
@inner
def leaving(state, instance):
    """Whether requests leave a draining instance when its iteration ends."""
    spec = state.instances[instance]
    return state.units[instance].notice == OVER or (spec.offline_members > 0 and holder(state) != instance)


@inner
def leave(state, instance):
    """Sends away what a draining instance may not keep. Returns whether it composes no iteration now."""
    spec, over = state.instances[instance], state.units[instance].notice == OVER
    if spec.power != s.DRAINING:
        return True
    if spec.activity == s.MIXING:
        return leaving(state, instance)
    elsewhere = holder(state) != instance
    if over:
        spec.composed = 0
        for index in range(spec.running):
            unschedule(state, np.int64(state.members[s.BATCH, instance, index]))
    if spec.composed == 0:
        for index in range(spec.running - 1, -1, -1):
            offline = not state.requests[state.members[s.BATCH, instance, index]].urgent
            if over or (offline and elsewhere):
                preempt(state, instance, index, s.RECOMPUTE)
    waiting = spec.online_waiting + spec.offline_waiting
    if over or spec.running + waiting == 0:
        turn_off(state, instance)
    if waiting > 0 and holder(state) != instance:
        add_task(state, s.REROUTE, instance, -1)
        return True
    return spec.power == s.OFF
