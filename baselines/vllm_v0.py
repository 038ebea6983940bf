"""vLLM's V0 scheduler as of 0.6.3, the baseline of Echo and BROS: prompts first, whole, then
decodes.

An iteration prefills waiting requests, each whole, within tokens, slots and memory (a share of the
blocks, the watermark, stays free). If none can start, it decodes all running requests. A decode
without a free block preempts the last request in order, which is recomputed (V0's default for
single sequences).

`vllm_v0` serves in order of arrival whatever the class. In `vllm_v0_priority` a waiting online
request at the head preempts running offline ones, the last arrived first, until it fits (the
engine's priority-preemption). As in the engine, waiting requests are sorted by priority only in an
iteration that starts no prompt. Later arrivals stand behind, and requests preempted for want of a
block before all others.

Ours: a prompt longer than `max_num_batched_tokens` is prefilled alone, and one that exceeds only
the watermark starts on an empty instance (the engine drops both). Left out, as V0 had them off by
default: chunked prefill, prefix caching, `preemption_mode=swap`.
"""

import numpy as np

from baselines.vllm_v1 import ENGINE_PARAMS
from ooco_gym.compile import inner
from ooco_gym.policy.decisions import COMPOSE, hook
from ooco_gym.policy.mixed import (
    RECOMPUTE,
    admit,
    allocate_slots,
    has_seat,
    num_free_blocks,
    preempt,
    preempt_to_head,
    running_index,
)
from ooco_gym.policy.policy import Param, Policy, slots
from ooco_gym.policy.rules import blocks_for, length, route_fewest_requests, sort_ascending
from ooco_gym.sim.sessions import arrival_order
from ooco_gym.sim.state import BATCH, NEVER, SYNCHRONOUS

PARAMS = (
    *ENGINE_PARAMS,
    Param("watermark", "share of the blocks that must stay free when a request starts", 0.0, 0.5),
)
P = slots(PARAMS)
# Indices in State.memory: the last arrival, from 1, at the last sorting; how many online and
# offline requests stand before all others, preempted since.
SORTED, FRONT_ONLINE, FRONT_OFFLINE = range(3)


# --- The queue ------------------------------------------------------------------------------------------------------
@inner
def head(state, instance):
    """The head of the engine's one waiting queue, or -1; with priorities, as last sorted."""
    spec, memory = state.instances[instance], state.memory[instance]
    online, offline = spec.online_head, spec.offline_head
    if online < 0 or offline < 0:
        return max(online, offline)
    if memory[FRONT_ONLINE] > 0:
        return online
    if memory[FRONT_OFFLINE] > 0:
        return offline
    since = np.int64(memory[SORTED]) - 1  # the last of the sorted ones
    known = arrival_order(state, since) if since >= 0 else np.int64(-1)
    online_order, offline_order = arrival_order(state, online), arrival_order(state, offline)
    if online_order <= known or offline_order > max(known, online_order):
        return online
    return offline


@inner
def may_start(state, instance, slot):
    """Whether a waiting request has a slot and memory for its whole context beyond the watermark."""
    spec = state.instances[instance]
    left = num_free_blocks(state, instance) - blocks_for(state, length(state, slot))
    above = left >= int(state.params[P.watermark] * spec.total_blocks) or spec.running == 0
    return has_seat(state, instance) and left >= 0 and above


@inner
def rank(state, slot):
    """Order of importance, smaller first: by class, then by arrival."""
    return arrival_order(state, slot) + (0 if state.requests[slot].urgent else NEVER)


# --- The engine's steps ---------------------------------------------------------------------------------------------
@inner
def start_prompts(state, instance):
    """Prefills waiting requests whole, in order, until one does not fit; returns their tokens."""
    memory, used = state.memory[instance], 0
    while True:
        slot = head(state, instance)
        if slot < 0 or not may_start(state, instance, slot):
            return used
        tokens = length(state, slot)
        if used > 0 and used + tokens > state.config.max_num_batched_tokens:
            return used
        place = FRONT_ONLINE if state.requests[slot].urgent else FRONT_OFFLINE
        memory[place] = max(0.0, memory[place] - 1)
        used += admit(state, instance, slot, tokens)


@inner
def make_way(state, instance):
    """With priorities: preempts less important requests until the head fits, then sorts the waiting
    ones. Returns the number preempted."""
    slot, lost = head(state, instance), 0
    while slot >= 0 and state.instances[instance].running > 0:
        batch, worst = state.members[BATCH, instance], 0
        for place in range(1, state.instances[instance].running):
            if rank(state, batch[place]) > rank(state, batch[worst]):
                worst = place
        if rank(state, batch[worst]) < rank(state, slot) or may_start(state, instance, slot):
            break
        preempt(state, instance, worst, RECOMPUTE)
        lost += 1
    memory = state.memory[instance]
    memory[SORTED], memory[FRONT_ONLINE], memory[FRONT_OFFLINE] = state.clock.last_arrival + 1, 0, 0
    return lost


@inner
def lose(state, instance, slot):
    """Preempts a running request for a decode that lacks a block."""
    request, memory = state.requests[slot], state.memory[instance]
    place = running_index(state, instance, slot)
    if state.config.class_blind:
        preempt_to_head(state, instance, place, RECOMPUTE)
    else:
        preempt(state, instance, place, RECOMPUTE)
    memory[FRONT_ONLINE if request.urgent else FRONT_OFFLINE] += 1


@inner
def decode_all(state, instance):
    """Decodes each running request, in order, while there are free blocks; else preempts the last
    in order.

    Returns (tokens, number preempted).
    """
    spec, ranks, order = state.instances[instance], state.scratch[0], state.scratch[1]
    count, given, lost = spec.running, 0, 0
    for place in range(count):
        order[place] = state.members[BATCH, instance, place]
        ranks[place] = rank(state, order[place])
    if state.config.class_blind == 0:
        sort_ascending(ranks, order, count)
    place, end = 0, count
    while place < end:
        while place < end and num_free_blocks(state, instance) < 1:
            end -= 1
            lose(state, instance, order[end])
            lost += 1
        if place < end:
            allocate_slots(state, instance, order[place], 1)
            given += 1
        place += 1
    return given, lost


@hook(COMPOSE)
def schedule_v0(view):
    """Schedules prompts, else decodes; again immediately if a pass has only preempted."""
    state, instance = view.state, view.instance
    while True:
        tokens, lost = start_prompts(state, instance), 0
        if tokens == 0:
            if state.config.class_blind == 0:
                lost = make_way(state, instance)
            tokens, without = decode_all(state, instance)
            lost += without
        if tokens > 0 or lost == 0:
            return tokens


vllm_v0 = Policy("vllm_v0", PARAMS, class_blind=True, mixed=True, route=route_fewest_requests, compose=schedule_v0,
                 async_scheduling=SYNCHRONOUS)
vllm_v0_priority = Policy("vllm_v0_priority", PARAMS, mixed=True, route=route_fewest_requests, compose=schedule_v0,
                          async_scheduling=SYNCHRONOUS)
