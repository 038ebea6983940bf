"""KV transfers: pushes after prefill and pulls by strict instances, over links of finite bandwidth.

A transfer first reserves its blocks at the destination, and holds its source until it is done. Each
pair of instances has its own link, which serves pushes before pulls, first come first served, one
at a time.
"""


from ooco_gym.compile import inlined, inner
from ooco_gym.sim import state as s
from ooco_gym.sim.batch import fits_for_sure
from ooco_gym.sim.costs import blocks_for, length
from ooco_gym.sim.decode import cut, flush_totals, wake
from ooco_gym.sim.lanes import write_batch, write_slot
from ooco_gym.sim.memory import free, measured, take_blocks
from ooco_gym.sim.pool_caches import arrive, caches, moved_tokens, open_there, settle
from ooco_gym.sim.queues import (
    NONE,
    add_member,
    append,
    cancel,
    has_capacity,
    join_decodable,
    leave_decodable,
    remove_member,
    schedule,
    unlink,
)


@inlined
def link_of(state, source, target):
    """Index of the link from an instance that may be relaxed to one that may be strict."""
    first = state.config.first_target
    return source * (state.instances.size - first) + (target - first)


@inlined
def reserve(state, slot, target):
    """Reserves a request's memory at its destination; a run there that needs that memory ends with
    its step."""
    request, spec = state.requests[slot], state.instances[target]
    request.target = target
    request.target_blocks = blocks_there(state, slot)
    if caches(state):
        flush_totals(state, target)
        settle(state, target)
    take_blocks(state, target, open_there(state, slot, target) if caches(state) else request.target_blocks)
    if not fits_for_sure(state, target, spec.steps):
        flush_totals(state, target)
        cut(state, target)  # the run may lack the memory that it was planned with
    request.target_context = length(state, slot)
    spec.arriving += 1
    spec.arriving_context += request.target_context
    if not request.urgent:
        spec.arriving_pulls += 1


@inlined
def can_reserve(state, slot, target):
    """Whether a request fits the free memory of an instance."""
    return blocks_there(state, slot) <= state.instances[target].free_blocks and has_capacity(state, target)


@inlined
def surely_reservable(state, slot, target):
    """Whether a request fits an instance, whatever its run has taken since the last flush."""
    spec = state.instances[target]
    if spec.activity != s.DECODE or spec.steps <= 1:
        return False
    growth = spec.running * (spec.steps // state.config.block_tokens + 1)
    return blocks_there(state, slot) + growth <= spec.free_blocks and has_capacity(state, target)


@inlined
def blocks_there(state, slot):
    """Blocks to reserve at a destination, including the token that the present step may add."""
    return blocks_for(state, length(state, slot) + 1)


@inlined
def send(state, slot, pushed):
    """Queues a request with a reserved destination on its link."""
    request = state.requests[slot]
    index = link_of(state, request.instance, request.target)
    link = state.links[index]
    request.status = s.MOVING
    if pushed:
        link.push_head, link.push_tail = append(state.requests, link.push_head, link.push_tail, slot)
    else:
        link.pull_head, link.pull_tail = append(state.requests, link.pull_head, link.pull_tail, slot)
    if link.current == NONE:
        _next_transfer(state, index)


@inner
def _next_transfer(state, index):
    link = state.links[index]
    source = state.instances.size + index
    if link.push_head != NONE:
        slot = link.push_head
        link.push_head, link.push_tail = unlink(state.requests, link.push_head, link.push_tail, slot)
    elif link.pull_head != NONE:
        slot = link.pull_head
        link.pull_head, link.pull_tail = unlink(state.requests, link.pull_head, link.pull_tail, slot)
    else:
        link.current = NONE
        cancel(state, source)
        return
    link.current = slot
    table = state.tables[state.instances[link.source].table]
    kv_bytes = moved_tokens(state, slot) * table.kv_bytes_per_token
    duration = max(1, int(kv_bytes / link.bytes_per_s * s.PS_PER_S))
    link.busy_ps += duration
    schedule(state, source, state.clock.now_ps + duration)


@inlined
def end_transfer(state, index):
    """Ends a transfer: frees the source, and lets the request decode at its destination, after a
    hand-over if there is one."""
    link = state.links[index]
    slot = link.current
    request = state.requests[slot]
    if caches(state):
        flush_totals(state, link.source)
        settle(state, link.source)
    remove_member(state, link.source, slot)
    free(state, slot)
    request.instance = link.target
    request.blocks = request.target_blocks
    request.target = -1
    request.target_blocks = 0
    if caches(state):
        arrive(state, slot)
    if request.generated_tokens > 0 or state.config.handover_ps == 0:
        _land(state, slot)
    else:
        _hand_over(state, slot)
    source = state.instances[link.source]
    if source.online_waiting + source.offline_waiting > 0 or source.decodable > 0:
        wake(state, link.source)
    _next_transfer(state, index)


@inlined
def _land(state, slot):
    """Lets a moved request decode."""
    request = state.requests[slot]
    target = state.instances[request.instance]
    request.status = s.RESIDENT
    target.arriving -= 1
    target.arriving_context -= request.target_context
    if not request.urgent:
        target.arriving_pulls -= 1
        request.migrations += 1
        if measured(state):
            state.totals.migrations += 1
    add_member(state, request.instance, slot)
    join_decodable(state, request.instance, slot)
    target.all_included = 0
    target.pull_due = 1
    wake(state, request.instance)


@inner
def _hand_over(state, slot):
    """Delays a moved request until engines and router agree that its memory has come. All
    hand-overs take equally long, so they end in order."""
    queue, source = state.push_queues[s.LANDING], state.instances.size + state.links.size
    due_ps = state.clock.now_ps + state.config.handover_ps
    state.requests[slot].latest_ps = due_ps
    state.requests[slot].status = s.HANDED_OVER
    queue.head, queue.tail = append(state.requests, queue.head, queue.tail, slot)
    if queue.head == slot:
        schedule(state, source, due_ps)


@inner
def end_handover(state):
    """Lets the first request in hand-over decode."""
    queue, source = state.push_queues[s.LANDING], state.instances.size + state.links.size
    slot = queue.head
    queue.head, queue.tail = unlink(state.requests, queue.head, queue.tail, slot)
    _land(state, slot)
    if queue.head == NONE:
        cancel(state, source)
    else:
        schedule(state, source, state.requests[queue.head].latest_ps)


@inlined
def accept_pull(state, slot, target):
    """Starts the migration of a decoding offline request to `target`, at once or when its present
    step ends.

    Returns 1 if it goes ahead, 0 if the request may not move or does not fit.
    """
    if slot < 0 or slot >= state.requests.size:
        return 0
    request = state.requests[slot]
    source = state.instances[request.instance]
    if request.status != s.RESIDENT or request.urgent or source.role == s.STRICT:
        return 0
    flush_totals(state, request.instance)
    write_slot(state, request.instance, slot)
    if not can_reserve(state, slot, target):
        return 0
    reserve(state, slot, target)
    leave_decodable(state, request.instance, slot)
    if source.activity == s.DECODE and _runs(state, request.instance, slot):
        cut(state, request.instance)
        request.status = s.LEAVING
        source.leaving += 1
    else:
        send(state, slot, False)
    return 1


@inner
def _runs(state, instance, slot):
    write_batch(state, instance)
    for i in range(state.instances[instance].running):
        if state.members[s.BATCH, instance, i] == slot:
            return True
    return False


@inlined
def send_leaving(state, instance):
    """Sends the pulled requests whose step here has ended."""
    spec = state.instances[instance]
    if spec.leaving == 0:
        return
    for i in range(spec.offline_members):
        slot = state.members[1, instance, i]
        if state.requests[slot].status == s.LEAVING:
            write_slot(state, instance, slot)
            spec.leaving -= 1
            send(state, slot, False)
