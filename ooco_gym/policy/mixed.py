"""Step actions for schedulers of mixed instances, and the two halves of vLLM's V1 schedule.

A rule for `compose` on a mixed instance is the scheduler itself. It gives tokens to running
requests (`allocate_slots`), admits waiting ones (`admit`) and preempts (`preempt`); its return
value is ignored, except ASK. Running requests are State.members[BATCH] in order of admission;
waiting ones are the instance's linked queues, online and offline.
"""

import numpy as np

from ooco_gym.compile import inlined, inner
from ooco_gym.policy.decisions import COMPOSE, hook
from ooco_gym.policy.policy import Param
from ooco_gym.sim.blocks import worthless
from ooco_gym.sim.costs import length
from ooco_gym.sim.engine_versions import CHUNK_MUST_FIT, SELF_PREEMPTION_ENDS_PASS
from ooco_gym.sim.memory import count_up_to, past_outputs
from ooco_gym.sim.mixed import iteration_latency
from ooco_gym.sim.state import BATCH, CHECKPOINT, IDLE, NEVER, RECOMPUTE, SWAP
from ooco_gym.sim.step_actions import (
    admit,
    allocate_slots,
    begins_ps,
    checkpoint,
    fits_chunk,
    fits_whole,
    get_computed_blocks,
    get_computed_tokens,
    has_seat,
    missing,
    num_free_blocks,
    num_new_blocks,
    preempt,
    preempt_to_head,
    preempt_to_tail,
    running_index,
    unschedule,
    wake_at,
    whole_need,
)
from ooco_gym.sim.waiting import bucket_of, bucket_start, next_in_order, previous_in_order, rank_of

__all__ = ["AGING", "CHECKPOINT", "RECOMPUTE", "SWAP", "admit", "allocate_slots", "begins_ps", "bucket_of",
           "bucket_start", "checkpoint", "count_up_to", "fits_chunk", "fits_whole", "get_computed_blocks",
           "get_computed_tokens", "has_seat", "iteration_latency", "missing", "next_in_order", "num_free_blocks",
           "num_new_blocks", "past_outputs", "preempt", "preempt_to_head", "preempt_to_tail", "previous_in_order",
           "rank_of", "running_index", "unschedule", "wake_at", "whole_need", "worthless"]

AGING = Param("aging_s", "wait after which an offline request is served as an online one, seconds; 0: never", 0,
              1_000_000, default=0)
VICTIMS = ("last", "least_computed", "least_computed_of_class")  # choices of the parameter `preempt`
LEAST_COMPUTED_OF_CLASS = VICTIMS.index("least_computed_of_class")


@inner
def first_waiting(state, instance):
    """Returns the request to admit next, online ones first; or -1."""
    spec = state.instances[instance]
    return spec.online_head if spec.online_head >= 0 else spec.offline_head


@inner
def least_computed(state, instance, of_class):
    """Index of the running request with the fewest computed tokens (ties: first admitted); with
    `of_class` an offline one, if any runs."""
    spec, batch = state.instances[instance], state.members[BATCH, instance]
    best = 0
    for index in range(1, spec.running):
        a, b = state.requests[batch[index]], state.requests[batch[best]]
        fewer = a.num_computed_tokens < b.num_computed_tokens
        if fewer if a.urgent == b.urgent or not of_class else a.urgent < b.urgent:
            best = index
    return best


@inner
def least_important(state, instance):
    """Index of the running request to preempt: the last admitted, or with classes the last arrived,
    or as the parameter `preempt` chooses."""
    spec, batch = state.instances[instance], state.members[BATCH, instance]
    if state.config.preempt > 0:
        return least_computed(state, instance, state.config.preempt == LEAST_COMPUTED_OF_CLASS)
    if state.config.class_blind:
        return spec.running - 1
    worst = 0
    for index in range(1, spec.running):
        a, b = state.requests[batch[index]], state.requests[batch[worst]]
        if a.urgent < b.urgent or (a.urgent == b.urgent and a.arrival_ps > b.arrival_ps):
            worst = index
    return worst


@inner
def preempt_least(state, instance):
    """Preempts the least important running request by recomputation. Returns (its index, its
    scheduled tokens).

    Blocks that these tokens would have filled stay findable, as in the engine.
    """
    index = least_important(state, instance)
    tokens = np.int64(state.requests[state.members[BATCH, instance, index]].num_scheduled_tokens)
    if state.config.class_blind:
        preempt_to_head(state, instance, index, RECOMPUTE)
    else:
        preempt(state, instance, index, RECOMPUTE)
    return index, tokens


@inner
def _allocate_by_preempting(state, instance, index, tokens):
    """Preempts until the running request at `index` has memory for `tokens`, or is itself the least important.

    Returns (still running, its index or, if preempted, the next request's, tokens freed, number
    preempted).
    """
    slot, alive, freed, victims = state.members[BATCH, instance, index], True, 0, 0
    while alive and not allocate_slots(state, instance, slot, tokens):
        victim, had = preempt_least(state, instance)
        freed += had
        victims += 1
        alive = victim != index
        if victim < index:
            index -= 1
    return alive, index, freed, victims


@inlined
def chunk_limit(state, instance):
    """Most new tokens of a request in an iteration: vLLM's `long_prefill_token_threshold`, unless it is alone."""
    spec, limit = state.instances[instance], state.config.long_prefill_token_threshold
    alone = spec.running + spec.online_waiting + spec.offline_waiting <= 1
    return limit if limit > 0 and not alone else NEVER


@inner
def continue_running(state, instance, budget):
    """vLLM V1's first half: gives running requests, in order, all missing tokens within the budget.

    A request without a free block preempts the least important one. If that is itself, later
    requests go on (before vLLM 0.33 they did not). A request whose last token is in progress
    (asynchronous scheduling) gets none. Returns (budget left, number preempted).
    """
    if state.instances[instance].suspended > 0:
        return _continue(state, instance, budget, True)
    return _continue(state, instance, budget, False)


@inlined
def _continue(state, instance, budget, finishing):
    """`continue_running` with or without `finishing` requests; two loops, as a test costs time."""
    spec, batch, index, preempted = state.instances[instance], state.members[BATCH, instance], 0, 0
    limit = chunk_limit(state, instance)
    while index < spec.running and budget > 0:
        slot = batch[index]
        tokens = min(missing(state, slot), budget, limit)
        if finishing and state.requests[slot].generated_tokens == state.requests[slot].output_tokens:
            tokens = 0
        if not allocate_slots(state, instance, slot, tokens):
            alive, index, freed, victims = _allocate_by_preempting(state, instance, index, tokens)
            budget += freed
            preempted += victims
            if not alive:
                if state.config.engine_version >= SELF_PREEMPTION_ENDS_PASS:
                    break
                continue
        budget -= tokens
        index += 1
    return budget, preempted


@inner
def admit_waiting(state, instance, budget, watermark):
    """vLLM V1's second half: admits waiting requests in order until the head's whole context does
    not fit.

    Up to vLLM 0.18.1 only the first chunk had to fit. If requests run, the share `watermark` of
    blocks stays free (vLLM's option of this name). Returns the budget left.
    """
    whole, spec = state.config.engine_version < CHUNK_MUST_FIT, state.instances[instance]
    kept, limit = np.int64(watermark * spec.total_blocks), chunk_limit(state, instance)
    while budget > 0:
        slot = first_waiting(state, instance)
        if slot < 0:
            break
        most = min(budget, limit)
        tokens = length(state, slot) if whole else most
        if not fits_chunk(state, instance, slot, tokens, kept if spec.running > 0 else 0):
            break
        budget -= admit(state, instance, slot, most)
    return budget


@hook(COMPOSE)
def schedule_v1(view):
    """vLLM's V1 schedule, without a watermark."""
    return schedule_with(view, 0.0)


@inner
def schedule_with(view, watermark):
    """vLLM's V1 schedule: running requests first, then, unless one was preempted, waiting requests.

    If an iteration did nothing but preempt, the engine schedules again at once, unless another
    iteration runs (asynchronous scheduling).
    """
    state, instance = view.state, view.instance
    whole = state.config.max_num_batched_tokens
    while True:
        budget, preempted = continue_running(state, instance, whole)
        if preempted == 0:
            budget = admit_waiting(state, instance, budget, watermark)
        if preempted == 0 or budget < whole or state.instances[instance].activity != IDLE:
            return whole - budget
