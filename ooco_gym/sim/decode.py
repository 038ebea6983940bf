"""Decode runs: as many equal steps at once as nothing can change in between.

A run is a batch and a number of steps. It ends by itself at a change inside (a request finishes,
memory runs short, the composition would change); an outside event cuts it at the end of the present
step. During a step, its requests already hold the memory of the token that it generates.
"""

from ooco_gym.compile import inlined, inner
from ooco_gym.sim import state as s
from ooco_gym.sim.batch import advance, begin_lanes, begin_records, steps_in_memory
from ooco_gym.sim.costs import decode_sum, jittered, steps_to_reach, steps_within
from ooco_gym.sim.lanes import ENDED, FINISH, WRITTEN, drop_lanes, laned, may_run_on_lanes, write_down, write_record
from ooco_gym.sim.memory import cancel_reservation, finish, measured, take_blocks
from ooco_gym.sim.pool_caches import caches, settle
from ooco_gym.sim.queues import add_dispatch, leave_decodable, remove_member, schedule, stop_at_layer


@inlined
def _past(state, instance):
    """1 if a step that ends exactly now has been processed already: events at one time are ordered
    by source."""
    return 1 if instance < state.clock.source else 0


@inlined
def start_run(state, instance):
    """Starts the composed batch, whose first step's growth fits."""
    spec, clock = state.instances[instance], state.clock
    n = spec.running
    if may_run_on_lanes(state, instance):
        steps, miss_ps, taken = begin_lanes(state, instance)
        context, urgent = spec.urgent_context + spec.offline_context, spec.urgent_decodable
    else:
        drop_lanes(state, instance)
        context, urgent, steps, miss_ps, taken = begin_records(state, state.members[s.BATCH, instance], n)
    if taken > 0:
        take_blocks(state, instance, taken)
    spec.left, spec.miss_ps = steps, miss_ps
    config = state.config
    if (config.bulk == 0 or config.inter_token_slo_ps < s.NEVER or spec.hold == s.HOLD
            or state.tables[spec.table].noise > 0.0):
        steps = 1
    elif spec.bound_ps < s.NEVER:
        if state.tables[spec.belief].noise > 0.0:
            steps = 1
        else:
            steps = min(steps, max(1, steps_within(state, spec.belief, n, context, spec.bound_ps)))
    if clock.now_ps < spec.pull_wake_ps < s.NEVER and steps > 1:
        wait = spec.pull_wake_ps - clock.now_ps
        steps = steps_to_reach(state, spec.table, n, context, wait, steps, 0)
    if miss_ps < s.NEVER and steps > 1:  # ends where a violation becomes certain, to charge it at that step
        steps = steps_to_reach(state, spec.table, n, context, max(1, miss_ps - clock.now_ps), steps, 1)
    if steps > 1:
        steps = steps_in_memory(state, instance, steps)
    spec.activity = s.DECODE
    spec.start_ps = clock.now_ps
    spec.steps = steps
    spec.batch_size = n
    spec.urgent_running = urgent
    spec.context = context
    spec.interrupted = 0
    spec.end_ps = spec.start_ps + _duration(state, instance, steps)
    spec.natural_end_ps = spec.end_ps
    schedule(state, instance, spec.end_ps)


@inner
def _duration(state, instance, steps):
    spec = state.instances[instance]
    total = decode_sum(state, spec.table, spec.batch_size, spec.context, steps)
    return jittered(state, instance, spec.steps_begun, total) if steps == 1 else total


@inner
def flush(state, instance):
    """Writes an instance's totals and its members' records as of now; the present step goes on."""
    flush_totals(state, instance)
    write_down(state, instance)


@inner
def flush_all(state):
    for instance in range(state.instances.size):
        flush(state, instance)


@inlined
def flush_totals(state, instance):
    """Writes a run's totals as of now (the instance's sums and memory, violations), not its
    members' records."""
    spec = state.instances[instance]
    if spec.activity == s.DECODE and spec.steps > 1:
        _flush_run(state, instance)


@inner
def _flush_run(state, instance):
    spec = state.instances[instance]
    elapsed = state.clock.now_ps - spec.start_ps
    current = steps_to_reach(state, spec.table, spec.batch_size, spec.context, elapsed, spec.steps,
                             _past(state, instance))
    if current > 1:
        over = decode_sum(state, spec.table, spec.batch_size, spec.context, current - 1)
        advance(state, instance, current - 1, spec.start_ps + over, 1)


@inner
def urgent_load(state, instance):
    """(Number of urgent requests that decode on an instance, sum of their context lengths now), in
    O(1)."""
    spec = state.instances[instance]
    context = spec.urgent_context
    if spec.activity == s.DECODE and spec.steps > 1:
        elapsed = state.clock.now_ps - spec.start_ps
        context += spec.urgent_running * (steps_to_reach(
            state, spec.table, spec.batch_size, spec.context, elapsed, spec.steps, _past(state, instance)) - 1)
    return spec.urgent_decodable, context


@inlined
def cut(state, instance):
    """Ends a run with the present step, so that its next step sees a change. In O(1), without a
    flush."""
    spec = state.instances[instance]
    if spec.activity == s.DECODE and spec.steps > 1:
        _cut_run(state, instance)


@inner
def _cut_run(state, instance):
    spec = state.instances[instance]
    current = steps_to_reach(state, spec.table, spec.batch_size, spec.context, state.clock.now_ps - spec.start_ps,
                             spec.steps, _past(state, instance))
    if current < spec.steps:
        spec.steps = current
        spec.end_ps = spec.start_ps + _duration(state, instance, current)
        spec.natural_end_ps = spec.end_ps
        schedule(state, instance, spec.end_ps)


@inlined
def wake(state, instance):
    """Reacts to a change on an instance: dispatches it if idle, cuts its run if it decodes."""
    if state.instances[instance].activity == s.IDLE:
        add_dispatch(state, instance)
    else:
        cut(state, instance)


@inlined
def end_run(state, instance):
    """Ends a run's last step. Returns the number of finished requests."""
    spec = state.instances[instance]
    if spec.interrupted:
        spec.decode_ps += spec.end_ps - spec.start_ps
        spec.wasted_ps += spec.end_ps - spec.start_ps
        if measured(state):
            state.totals.wasted_ps += spec.end_ps - spec.start_ps
        spec.steps_begun += 1
        _rest_batch(spec)
        return 0
    advance(state, instance, spec.steps, spec.end_ps, 0)
    _rest_batch(spec)
    if spec.left > 0:
        return 0
    finished = _finished_on_lanes(state, instance) if spec.lanes else _finished(state, instance)
    if finished > 0 and caches(state):
        settle(state, instance)
    for i in range(finished):
        slot = state.picks[i]
        request = state.requests[slot]
        if request.status == s.RESIDENT:
            leave_decodable(state, instance, slot)
        else:
            spec.leaving -= 1
            target = request.target
            if caches(state):
                flush_totals(state, target)
                settle(state, target)
            cancel_reservation(state, slot)
            wake(state, target)
        remove_member(state, instance, slot)
        finish(state, slot)
    return finished


@inlined
def _rest_batch(spec):
    spec.activity = s.IDLE
    spec.unwritten = WRITTEN if spec.unwritten == WRITTEN else ENDED


@inner
def _finished(state, instance):
    """Writes the batch's requests with all their tokens to State.picks; returns their number."""
    found = 0
    for i in range(state.instances[instance].running):
        slot = state.members[s.BATCH, instance, i]
        if state.requests[slot].generated_tokens >= state.requests[slot].output_tokens:
            state.picks[found] = slot
            found += 1
    return found


@inlined
def _finished_on_lanes(state, instance):
    """As `_finished`, for members with lanes; updates their records."""
    spec, found = state.instances[instance], 0
    for row in (s.URGENT, s.OFFLINE):
        finish_at = state.lanes[instance, FINISH + row]
        for index in range(laned(spec, row)):
            if finish_at[index] <= spec.lane_steps:
                write_record(state, instance, row, index)
                state.picks[found] = state.members[row, instance, index]
                found += 1
    return found


@inner
def interrupt_step(state, instance, layers):
    """Stops the present step at its next layer boundary; its tokens are lost. Returns STOP or 0
    (too late)."""
    flush_totals(state, instance)
    cut(state, instance)
    return 0 if stop_at_layer(state, instance, layers) < 0 else s.STOP
