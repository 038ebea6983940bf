"""Prefill batches on relaxed instances: assembly, completion, interruption at a layer boundary and
resumption."""


from ooco_gym.compile import inlined, inner
from ooco_gym.perf.latency import prefill_latency, prompt_rows, prompt_work
from ooco_gym.sim import state as s
from ooco_gym.sim.batch import itl_bin
from ooco_gym.sim.costs import blocks_for, jittered, length
from ooco_gym.sim.lanes import WRITTEN
from ooco_gym.sim.memory import TPOT_BIT, charge_miss, finish, free, measured, take_blocks
from ooco_gym.sim.pool_caches import caches, keep_prefix, open_table, settle, uncached_tokens
from ooco_gym.sim.queues import add_member, add_task, dequeue, enqueue, has_capacity, schedule, stop_at_layer


@inlined
def prompt_blocks(state, slot):
    """Blocks that a request's prefill takes, including its next token."""
    return blocks_for(state, length(state, slot) + 1)


@inlined
def prefill_fits(state, instance, slot):
    """Whether a waiting request's prefill fits the instance's free memory."""
    return prompt_blocks(state, slot) <= state.instances[instance].free_blocks and has_capacity(state, instance)


@inlined
def new_tokens(state, slot):
    """Tokens that a request's prefill computes: those of its context that it did not find in a prefix cache."""
    return length(state, slot) - state.requests[slot].num_computed_tokens


@inlined
def _admit(state, instance, slot, index):
    request = state.requests[slot]
    dequeue(state, instance, slot)
    request.blocks = prompt_blocks(state, slot)
    take_blocks(state, instance, open_table(state, instance, slot) if caches(state) else request.blocks)
    request.status = s.PREFILLING
    state.members[s.BATCH, instance, index] = slot


@inner
def start_prefill(state, instance, chosen):
    """Starts the prefill of `chosen`, filled up to the token budget with waiting requests of its
    class."""
    spec, urgent = state.instances[instance], state.requests[chosen].urgent
    if caches(state):
        settle(state, instance)
    spec.unwritten = WRITTEN
    _admit(state, instance, chosen, 0)
    tokens, context, size = new_tokens(state, chosen), length(state, chosen), 1
    rows, work = prompt_rows(state, spec.table, tokens), prompt_work(state, spec.table, tokens, context)
    slot = spec.online_head if urgent else spec.offline_head
    while slot >= 0 and tokens < state.config.prefill_tokens:
        following = state.requests[slot].next
        if tokens + uncached_tokens(state, instance, slot) > state.config.prefill_tokens:
            break
        held = spec.urgent_members + spec.offline_members + spec.arriving + spec.suspended
        lists_full = size + held >= state.members.shape[2]
        if lists_full or not prefill_fits(state, instance, slot):
            break
        _admit(state, instance, slot, size)
        more, whole = new_tokens(state, slot), length(state, slot)
        tokens += more
        context += whole
        rows += prompt_rows(state, spec.table, more)
        work += prompt_work(state, spec.table, more, whole)
        size += 1
        slot = following
    spec.activity = s.PREFILL_ONLINE if urgent else s.PREFILL_OFFLINE
    spec.batch_size = size
    spec.running = size
    spec.context = tokens
    spec.steps = 1
    _time_prefill(state, instance, prefill_latency(state, spec.table, work, rows, tokens, context, size))


@inlined
def _time_prefill(state, instance, latency):
    spec = state.instances[instance]
    spec.interrupted = 0
    spec.start_ps = state.clock.now_ps
    spec.end_ps = spec.start_ps + jittered(state, instance, spec.steps_begun, latency)
    spec.steps_begun += 1
    spec.natural_end_ps = spec.end_ps
    schedule(state, instance, spec.end_ps)


@inner
def resume_prefill(state, instance):
    """Resumes the suspended batch at the layer that it had reached (`layer_resume`)."""
    spec = state.instances[instance]
    tokens, context, rows, work, spec.unwritten = 0, 0, 0, 0.0, WRITTEN
    for i in range(spec.suspended):
        slot = state.members[s.SUSPENDED, instance, i]
        state.members[s.BATCH, instance, i] = slot
        more = new_tokens(state, slot)
        tokens += more
        context += length(state, slot)
        rows += prompt_rows(state, spec.table, more)
        work += prompt_work(state, spec.table, more, length(state, slot))
    whole = prefill_latency(state, spec.table, work, rows, tokens, context, spec.suspended)
    layers = state.tables[spec.table].layers
    spec.activity = s.PREFILL_OFFLINE
    spec.batch_size = spec.suspended
    spec.running = spec.suspended
    spec.context = tokens
    spec.suspended = 0
    _time_prefill(state, instance, max(1, whole * (layers - spec.suspended_layers) // layers))


@inner
def interrupt_prefill(state, instance):
    """Stops an offline prefill at its next layer boundary. Returns STOP, or 0 if it ends as early
    anyway."""
    spec = state.instances[instance]
    done = stop_at_layer(state, instance, state.tables[spec.table].layers - spec.suspended_layers)
    if done < 0:
        return 0
    spec.steps = done  # layers done since it was started or resumed
    return s.STOP


@inner
def drop_suspended(state, instance):
    """Gives up a suspended prefill whose memory is needed; its computed layers are lost."""
    spec = state.instances[instance]
    layers = state.tables[spec.table].layers
    if caches(state):
        settle(state, instance)
    spec.context, spec.unwritten = 0, WRITTEN
    for i in range(spec.suspended):
        slot = state.members[s.SUSPENDED, instance, i]
        state.members[s.BATCH, instance, i] = slot
        spec.context += new_tokens(state, slot)
    spec.running = spec.suspended
    spec.suspended = 0
    _waste_time(state, instance, spec.suspended_ps)
    _give_back(state, instance, spec.suspended_layers, layers)
    spec.suspended_layers = 0
    spec.suspended_ps = 0


@inner
def _give_back(state, instance, layers_done, layers):
    """Frees the batch's memory and returns it to the head of the queue, in order."""
    spec = state.instances[instance]
    for i in range(spec.running - 1, -1, -1):
        slot = state.members[s.BATCH, instance, i]
        request = state.requests[slot]
        lost = new_tokens(state, slot) * layers_done // layers
        request.wasted_tokens += lost
        if measured(state):
            state.totals.wasted_tokens += lost
        free(state, slot)
        request.status = s.WAITING
        enqueue(state, instance, slot, True)


@inner
def _end_interrupted(state, instance):
    spec = state.instances[instance]
    elapsed, layers = spec.end_ps - spec.start_ps, state.tables[spec.table].layers
    spec.offline_prefill_ps += elapsed
    if measured(state):
        state.totals.interruptions += 1
    for i in range(spec.running):
        state.requests[state.members[s.BATCH, instance, i]].interruptions += 1
    if state.config.layer_resume:
        for i in range(spec.running):
            state.members[s.SUSPENDED, instance, i] = state.members[s.BATCH, instance, i]
        spec.suspended = spec.running
        spec.suspended_layers += spec.steps
        spec.suspended_ps += elapsed
        return
    _waste_time(state, instance, elapsed)
    _give_back(state, instance, spec.steps, layers)


@inner
def _waste_time(state, instance, elapsed_ps):
    """Charges instance time to the batch's requests, in proportion to their tokens."""
    spec = state.instances[instance]
    spec.wasted_ps += elapsed_ps
    for i in range(spec.running):
        slot = state.members[s.BATCH, instance, i]
        charge_waste(state, slot, 0, int(elapsed_ps * (new_tokens(state, slot) / spec.context)))


@inner
def charge_waste(state, slot, tokens, time_ps):
    """Charges a request wasted tokens, and the instance time that they took."""
    request = state.requests[slot]
    request.wasted_tokens += tokens
    request.wasted_ps += time_ps
    if measured(state):
        state.totals.wasted_tokens += tokens
    if measured(state):
        state.totals.wasted_ps += time_ps


@inlined
def end_prefill(state, instance):
    """Ends a prefill, or a stopped one: sets first tokens, and adds tasks to place the requests."""
    spec = state.instances[instance]
    if caches(state):
        settle(state, instance)
    now, online = state.clock.now_ps, spec.activity == s.PREFILL_ONLINE
    spec.activity = s.IDLE
    if spec.interrupted:
        _end_interrupted(state, instance)
        return
    elapsed = spec.end_ps - spec.start_ps
    if online:
        spec.online_prefill_ps += elapsed
    else:
        spec.offline_prefill_ps += elapsed
    if not online:
        spec.suspended_layers = 0
        spec.suspended_ps = 0
    for i in range(spec.running):
        slot = state.members[s.BATCH, instance, i]
        request = state.requests[slot]
        if request.kv_lost:
            computed = new_tokens(state, slot)
            charge_waste(state, slot, computed, int(elapsed * (computed / spec.context)))
            request.kv_lost = 0
        if caches(state):
            keep_prefix(state, slot, length(state, slot))
        if request.generated_tokens > 0 or state.config.decode_first_token == 0 or request.output_tokens == 1:
            new_token(state, slot, now)
        if request.generated_tokens >= request.output_tokens:
            finish(state, slot)
        else:
            request.status = s.PUSH_WAITING
            request.target = -1
            add_member(state, instance, slot)
            add_task(state, s.PLACE, instance, slot)


@inlined
def new_token(state, slot, now):
    """Adds the token that a prefill generates: the first, or after a recomputation the next."""
    request = state.requests[slot]
    request.generated_tokens += 1
    if request.first_token_ps == 0:
        request.first_token_ps = now
    elif request.online:
        gap = now - request.last_token_ps
        request.max_gap_ps = max(request.max_gap_ps, gap)
        if gap > state.config.inter_token_slo_ps:
            charge_miss(state, slot, TPOT_BIT, now)
        if request.counted:
            state.itl[itl_bin(gap)] += 1
    request.last_token_ps = now
