"""The event loop: takes the next event, runs the tasks that it leaves, and stops at decisions asked
outside.

`run` is the entry point. Events are arrivals of requests, ends of iterations (or runs of decode
steps), and ends of transfers and hand-overs. At equal times arrivals come first, then instances and
links by index.
"""

import math

import numpy as np
from numba import types

from ooco_gym.compile import function_at, inlined, inner, jit
from ooco_gym.compile.instructions import prefetch
from ooco_gym.perf.latency import steady
from ooco_gym.sim import state as s
from ooco_gym.sim.blocks import keep_for, note_demand
from ooco_gym.sim.costs import blocks_for
from ooco_gym.sim.decode import end_run, flush_all, interrupt_step
from ooco_gym.sim.dispatch import (
    TASK_DONE,
    UNANSWERED,
    ask,
    ask_beside,
    choose_entry,
    dispatch,
    hand_back,
    place_new,
    retry_pushes,
)
from ooco_gym.sim.fleet import elastic, note_arrival, routed
from ooco_gym.sim.leaving import begin_patience, leave_due, leave_next
from ooco_gym.sim.memory import TTFT_BIT, change_late, change_outstanding, charge_miss, measured
from ooco_gym.sim.mixed import end_mixed, stop_mixed
from ooco_gym.sim.prefill import end_prefill, interrupt_prefill
from ooco_gym.sim.queues import add_dispatch, add_task, next_event, retry_waiting, take_event
from ooco_gym.sim.records import CACHE_LINE
from ooco_gym.sim.roles import change_roles, enter
from ooco_gym.sim.scaling import reroute, run_clock, steer
from ooco_gym.sim.sessions import (
    ARRIVAL,
    QUIT,
    UNKNOWN,
    closed,
    next_due,
    note_call,
    pass_due,
    release,
    skip_turns,
    take_arrival,
)
from ooco_gym.sim.state import rule_at
from ooco_gym.sim.transfers import end_handover, end_transfer, send_leaving

FAST_S, MINUTE_S, SLOW_S, HALF_HOUR_S = 10.0, 60.0, 300.0, 1800.0  # horizons of the moving online arrival rates


@inlined
def end_of_episode(state):
    """When the window is over and everything that `Config.ends` waits for has happened; NEVER if
    still open."""
    gauges, ends = state.gauges, state.config.ends
    if gauges.open_online > 0 or (ends >= s.LAST_TOKENS and gauges.late_online > 0):
        return s.NEVER
    if ends == s.ALL_TOKENS:
        return s.NEVER if gauges.open_offline > 0 else gauges.last_closed_ps
    return max(state.clock.window_end_ps, gauges.last_closed_ps)


@inlined
def sweep_deadlines(state, time_ps):
    """Charges the TTFT violations of all deadlines before `time_ps`, or before the end of the
    episode."""
    clock = state.clock
    while clock.next_deadline_ps < time_ps:
        slot = next_due(state)
        if slot < 0:
            return
        request = state.requests[slot]
        deadline_ps = request.arrival_ps + request.ttft_slo_ps
        clock.next_deadline_ps = deadline_ps
        if deadline_ps >= min(time_ps, end_of_episode(state)):
            return
        late = request.first_token_ps == 0 or request.first_token_ps > deadline_ps
        if late and request.status != s.ABORTED:
            charge_miss(state, slot, TTFT_BIT, deadline_ps + 1)
        pass_due(state, slot)


@inlined
def _observe_arrival(state):
    """Updates moving averages of the online arrival rate, in requests/s."""
    clock, observed = state.clock, state.observed
    elapsed = (clock.now_ps - clock.last_online_arrival_ps) / s.PS_PER_S
    clock.last_online_arrival_ps = clock.now_ps
    observed.online_rate_fast = _fade(observed.online_rate_fast, elapsed, FAST_S)
    observed.online_rate_minute = _fade(observed.online_rate_minute, elapsed, MINUTE_S)
    observed.online_rate_slow = _fade(observed.online_rate_slow, elapsed, SLOW_S)
    observed.online_rate_half_hour = _fade(observed.online_rate_half_hour, elapsed, HALF_HOUR_S)


@inlined
def _fade(rate, elapsed, horizon_s):
    return rate * steady(math.exp(-elapsed / horizon_s)) + 1.0 / horizon_s


@inlined
def _arrive(state, slot, route):
    """Routes an arriving request to a relaxed (or mixed) instance, where it queues for prefill; with
    `local_prefill_tokens` also to the strict instance where it will decode."""
    request, clock, reached = state.requests[slot], state.clock, state.config.relaxed_count + state.config.mixed_count
    if state.config.local_prefill_tokens > 0 and request.urgent:
        reached = state.instances.size
    instance = choose_entry(state, slot, reached, route)
    if instance == s.ASK:
        return UNANSWERED
    if elastic(state):
        note_arrival(state, slot)
        instance = routed(state, instance)
    request.target = -1
    if state.job.size > 0:
        note_call(state, slot)
    if request.online:
        _observe_arrival(state)
        if request.counted:
            state.totals.online_arrived += 1
    elif measured(state):
        state.totals.offline_arrived += 1
    if _too_large(state, request):
        request.instance = request.origin = instance
        request.status = s.REJECTED
        if state.config.clients:
            release(state, slot)
        if request.online:
            charge_miss(state, slot, TTFT_BIT, clock.now_ps)
            if request.counted:
                change_late(state, -1, clock.now_ps)  # it stays a violation
        else:
            state.gauges.open_offline -= request.counted
        return TASK_DONE
    if not request.online:
        change_outstanding(state, request.service_ps)
        note_demand(state, slot, 1)
    if state.quit_ps.size > 0:
        begin_patience(state, slot)
    enter(state, slot, instance)
    return TASK_DONE


@inlined
def _too_large(state, request):
    """Whether a request exceeds the model's window, or could not run alone on some instance that it
    may reach. A mixed instance computes nothing of the last token, as in vLLM; pools reserve room
    to move it."""
    tokens = request.prompt_tokens + request.output_tokens
    if state.config.max_position > 0 and tokens > state.config.max_position:
        return True
    tokens += -1 if state.instances[0].role == s.MIXED else 1
    return blocks_for(state, tokens) + state.config.reserved_blocks > state.config.least_blocks


@inlined
def _interrupt(state, instance, slot, hook):
    """Decides whether an online request interrupts an instance's offline work."""
    spec = state.instances[instance]
    busy_offline = spec.activity == s.PREFILL_OFFLINE or (spec.activity == s.DECODE and spec.role == s.RELAXED)
    if not (busy_offline or spec.activity == s.MIXING) or spec.interrupted:
        return TASK_DONE
    if state.config.mixed_count > 0 and spec.activity == s.MIXING:
        answer = ask_beside(state, s.INTERRUPT, instance, slot, state.config.mixed_interrupt)
    else:
        answer = ask(state, s.INTERRUPT, instance, slot, 0, hook)
    if answer == s.ASK:
        return UNANSWERED
    if answer == s.STOP:
        if spec.activity == s.MIXING:
            stop_mixed(state, instance)
        elif spec.activity == s.PREFILL_OFFLINE:
            interrupt_prefill(state, instance)
        else:
            interrupt_step(state, instance, state.tables[spec.table].layers)
    return TASK_DONE


@inlined
def _end_iteration(state, instance):
    """Ends an instance's iteration or run, or its wake-up timer (`pull_wake_ps`)."""
    spec = state.instances[instance]
    if spec.activity == s.DECODE:
        finished = end_run(state, instance)
        send_leaving(state, instance)
        if finished > 0:
            spec.pull_due = 1
            retry_waiting(state)  # also on a relaxed instance: reservations of leaving requests may be free again
    elif spec.activity == s.PREFILL_ONLINE or spec.activity == s.PREFILL_OFFLINE:
        end_prefill(state, instance)
    elif spec.activity == s.MIXING:
        end_mixed(state, instance)
        if state.quit_ps.size > 0:
            leave_due(state, instance)
    if spec.role == s.MIXED:
        spec.pull_wake_ps = s.NEVER
    add_dispatch(state, instance)


@inlined
def _retain(state, instance, slot, hook):
    """Asks outside how long a request's blocks stay in the prefix cache; its rule did not say."""
    answer = ask(state, s.RETAIN, instance, slot, 0, hook)
    if answer == s.ASK:
        return UNANSWERED
    keep_for(state, instance, slot, answer)
    return TASK_DONE


@inlined
def _work(state, route, interrupt, gate, compose, evict, pull, retain, scale):
    """Runs the open tasks. Returns UNANSWERED if one waits for an answer."""
    queues = state.queues
    while queues.task_head < queues.task_tail:
        entry = queues.task_head % s.TASKS
        kind, instance, slot = state.tasks[entry, 0], state.tasks[entry, 1], state.tasks[entry, 2]
        if kind == s.ARRIVE:
            done = _arrive(state, slot, route)
        elif kind == s.INTERRUPT_FOR:
            done = _interrupt(state, instance, slot, interrupt)
        elif kind == s.PLACE:
            done = place_new(state, slot, route, evict)
        elif kind == s.RETRY_PUSHES:
            done = retry_pushes(state, instance, route, evict)
        elif kind > s.DISPATCH:
            done = _work_seldom(state, kind, instance, slot, route, retain, scale)
        else:
            done = dispatch(state, instance, route, gate, compose, evict, pull)
            if done != UNANSWERED:
                state.instances[instance].queued = 0
        if done == UNANSWERED:
            return UNANSWERED
        queues.task_head += 1
    queues.task_head, queues.task_tail = 0, 0  # stays in the same few cache lines
    return TASK_DONE


@inner
def _work_seldom(state, kind, instance, slot, route, retain, scale):
    """Runs a task of a kind that few runs have."""
    if kind == s.RETAIN_FOR:
        return _retain(state, instance, slot, retain)
    if kind == s.STEER:
        return steer(state, scale)
    if kind == s.HAND_BACK:
        return hand_back(state, instance, route)
    return reroute(state, instance, route)


@inner
def run_loop(state, route, interrupt, gate, compose, evict, pull, retain, scale, until_ps, answer):
    """Advances the episode; see `run`."""
    pending, clock = state.pending, state.clock
    if pending.point != s.NO_POINT and answer != s.ASK:
        pending.answered = 1
        pending.answer = answer
    while True:
        if _work(state, route, interrupt, gate, compose, evict, pull, retain, scale) == UNANSWERED:
            return s.ASKED
        if clock.next_arrival_ps == UNKNOWN:
            clock.next_arrival_ps = _next_arrival(state)
        arrival_ps = clock.next_arrival_ps
        event_ps = next_event(state)
        time_ps = min(arrival_ps, event_ps)
        sweep_deadlines(state, min(time_ps, until_ps))
        stop_ps = min(until_ps, end_of_episode(state))
        if time_ps > stop_ps or time_ps >= s.NEVER:
            clock.now_ps = max(clock.now_ps, stop_ps)
            clock.source = state.heap.shape[1]  # all events up to now are processed
            flush_all(state)
            return s.HORIZON if stop_ps < end_of_episode(state) else s.DONE
        clock.now_ps = time_ps
        state.totals.events += 1
        if arrival_ps <= event_ps:
            clock.source = -1
            if state.quit_ps.size > 0 and leave_next(state):
                continue
            add_task(state, s.ARRIVE, -1, take_arrival(state))
            continue
        source = take_event(state)
        clock.source = source
        if source < state.instances.size:
            _end_iteration(state, source)
        elif source < state.instances.size + state.links.size:
            end_transfer(state, source - state.instances.size)
        elif source == state.instances.size + state.links.size:
            end_handover(state)
        elif elastic(state):
            run_clock(state)
        else:
            change_roles(state)


@inner
def _next_arrival(state):
    """When the next request arrives or leaves, or NEVER. Prefetches the record of the former and the next one."""
    turn_ps = s.NEVER
    if state.turns[QUIT, 0] > 0:
        turn_ps = state.quit_ps[state.turns[QUIT, 1]]
    if closed(state):
        skip_turns(state)
        if state.turns[ARRIVAL, 0] > 0:
            turn_ps = min(turn_ps, state.requests[state.turns[ARRIVAL, 1]].arrival_ps)
    following = state.clock.next_arrival
    if following >= state.requests.size:
        return np.int64(turn_ps)
    prefetch(state.requests[following], 0)
    if following + 1 < state.requests.size:
        prefetch(state.requests[following + 1], CACHE_LINE)  # its arrival time is read soon
    return min(turn_ps, state.requests[following].arrival_ps)


RUN_SIGNATURE = types.int64(types.int64, s.RULES_TYPE, types.int64, types.int64)
RUN_TYPE = types.FunctionType(RUN_SIGNATURE)
run_at = function_at(RUN_TYPE)


@jit(RUN_SIGNATURE)
def run(handle, rules, until_ps, answer):
    """Advances the episode until a decision is asked outside, `until_ps`, or its end.

    Args:
        handle: address of the episode (`state.handle_of`).
        rules: int64[8], addresses of the compiled rules for route, interrupt, gate, compose, evict, pull, retain and
            scale; for mixed instances beside pools int64[11] (`decisions.rules_of`).
        until_ps: the horizon; events at that time still happen.
        answer: the answer to the decision that the last call stopped at, or ASK.

    Returns:
        ASKED: a decision is pending (State.pending). HORIZON: nothing more happens until
            `until_ps`. DONE: the window is over, and everything that `Config.ends` waits for has
            happened.
    """
    state = s.state_at(handle)
    config = state.config
    outer, config.retain_rule = config.retain_rule, rules[6]
    if config.mixed_count > 0:
        config.mixed_compose, config.mixed_interrupt, config.between_rule = rules[8], rules[9], rules[10]
    why = run_loop(state, rule_at(rules[0]), rule_at(rules[1]), rule_at(rules[2]), rule_at(rules[3]),
                   rule_at(rules[4]), rule_at(rules[5]), rule_at(rules[6]), rule_at(rules[7]), until_ps, answer)
    config.retain_rule = outer
    config.mixed_compose = config.mixed_interrupt = config.between_rule = 0
    return why


@jit(types.void(types.int64))
def flush_handle(handle):
    """Flushes every instance of an episode."""
    flush_all(s.state_at(handle))


def look(state: s.State) -> s.State:
    """Returns a flushed copy of an episode, for reading from Python; the episode itself does not
    change."""
    copy = s.copy_state(state)
    handle = s.handle_of(copy)  # must live as long as its address is used
    flush_handle(handle.address)
    return copy
