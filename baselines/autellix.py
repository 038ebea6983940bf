"""Autellix (arXiv 2502.13965): an engine whose calls' priority is the service that their program has had.

A program is a job (`Trace.job`, in closed sessions a session). A call arrives with the service that its program has
had: of its calls that have ended, the longest chain (ATLAS, Algorithm 1; where calls follow each other it is their sum,
PLAS). It joins the queue of `levels` that covers this, runs for the queue's quantum, and then drops to the next one.
Queues of more service come later; within a queue calls run by arrival. All classes are served alike.

Every `steps` iterations, and when a request has left, a waiting call takes the place of a running one of a later queue,
which is swapped to host memory, or recomputed. Otherwise the iteration is that of vLLM with chunked prefill: each
running call's next tokens, and the rest of the token budget for those that enter.

`rule`: `atlas`; `mlfq`, the paper's second baseline, where each call begins in the first queue (after FastServe, arXiv
2305.05920); `srpt`, the paper's bound, without queues: the program with the least service left, which no engine knows.

The unit of service is a decode step, as in the paper's Figure 2 and its simulator (Figure 18): tokens generated. Not
published, so ours: quantum of the first queue, its growth and the number of queues. Left out: promotion of programs
that have waited long (its threshold is not published), and the balancer of several engines.
"""

import numpy as np

from baselines.vllm_v1 import SCHEDULE_PARAMS
from ooco_gym.compile import inlined, inner
from ooco_gym.policy.decisions import COMPOSE, hook
from ooco_gym.policy.mixed import (
    RECOMPUTE,
    SWAP,
    admit,
    allocate_slots,
    fits_whole,
    missing,
    num_free_blocks,
    num_new_blocks,
    preempt,
)
from ooco_gym.policy.policy import Param, Policy, slots
from ooco_gym.policy.rules import route_fewest_requests
from ooco_gym.sim.sessions import LEFT, arrival_order
from ooco_gym.sim.state import BATCH, NEVER, SYNCHRONOUS

RULES = ("atlas", "mlfq", "srpt")
ATLAS, MLFQ, SRPT = range(len(RULES))
PARAMS = (
    *SCHEDULE_PARAMS,
    Param("rule", "what a call's queue depends on", choices=RULES),
    Param("levels", "number of queues", 1, 16),
    Param("quantum", "decode steps that a call has in the first queue", 1, 1_000_000),
    Param("growth", "a queue's quantum over that of the one before", 1.0, 16.0),
    Param("steps", "iterations between two choices of who runs (the engine's multi-step scheduling)", 1, 1000),
    Param("preempted", "how a preempted call's KV memory is handled", choices=("recompute", "swap")),
)
P = slots(PARAMS)
SINCE, RAN = 0, 1  # places of State.memory: iterations since the last choice, and how many ran in the last one
ARRIVALS = 1 << 57  # more than any arrival in picoseconds


# --- Priorities -----------------------------------------------------------------------------------------------------
@inlined
def level_of(state, slot):
    """The queue of a call, from 0: that which its program's service is in, and one more for each quantum used up."""
    params = state.params
    most, quantum, level = np.int64(params[P.levels]) - 1, params[P.quantum], np.int64(0)
    had = float(state.chain[slot]) if state.chain.size > 0 and params[P.rule] == ATLAS else 0.0
    while level < most and had >= quantum:
        had -= quantum
        quantum *= params[P.growth]
        level += 1
    run = float(state.requests[slot].generated_tokens)
    while level < most and run >= quantum:
        run -= quantum
        quantum *= params[P.growth]
        level += 1
    return level


@inlined
def service_left(state, slot):
    """Reference GPU time that a call's program needs yet, in ps; tokens generated count in proportion."""
    request = state.requests[slot]
    left, known = float(request.service_ps), state.job.size > 0 and state.job[slot] >= 0
    done = left * request.generated_tokens / request.output_tokens
    return np.int64((state.jobs[state.job[slot], LEFT] if known else left) - done)


@inlined
def rank_of(state, slot):
    """A number that orders calls, the next to run first."""
    if state.params[P.rule] == SRPT:
        return service_left(state, slot)
    return level_of(state, slot) * ARRIVALS + arrival_order(state, slot)


@inlined
def goes_before(state, rank, other):
    """Whether a call of a rank takes the place of a running one: of a later queue, or with more left."""
    return rank // ARRIVALS < other // ARRIVALS if state.params[P.rule] != SRPT else rank < other


@inner
def best_waiting(state, instance):
    """The waiting call that runs next, and its rank; or -1."""
    best, least, slot = np.int64(-1), np.int64(NEVER), np.int64(state.instances[instance].online_head)
    while slot >= 0:
        rank = rank_of(state, slot)
        if best < 0 or rank < least:
            best, least = slot, rank
        slot = np.int64(state.requests[slot].next)
    return best, least


@inner
def worst_running(state, instance):
    """Index of the running call without tokens in the next iteration that ran last in order, and its rank; or -1."""
    worst, most = np.int64(-1), np.int64(0)
    for index in range(state.instances[instance].running):
        slot = np.int64(state.members[BATCH, instance, index])
        if state.requests[slot].num_scheduled_tokens == 0:
            rank = rank_of(state, slot)
            if worst < 0 or rank > most:
                worst, most = index, rank
    return worst, most


# --- The iteration --------------------------------------------------------------------------------------------------
@inlined
def how_of(state):
    return SWAP if state.params[P.preempted] else RECOMPUTE


@inner
def enter(state, instance, budget):
    """Admits waiting calls, the next in order first, in place of running ones of later queues; returns their tokens.

    Each call that keeps running has a token left of the budget.
    """
    used, running = np.int64(0), np.int64(state.instances[instance].running)
    while used + running < budget:
        slot, rank = best_waiting(state, instance)
        if slot < 0:
            break
        while not fits_whole(state, instance, slot):
            index, other = worst_running(state, instance)
            if index < 0 or not goes_before(state, rank, other):
                return used
            preempt(state, instance, index, how_of(state))
            running -= 1
        used += admit(state, instance, slot, budget - running - used)
    return used


@inner
def go_on(state, instance, budget):
    """Gives running calls their next tokens; without free blocks the last in order is preempted. Returns the tokens."""
    used, index = np.int64(0), 0
    while index < state.instances[instance].running:
        slot = np.int64(state.members[BATCH, instance, index])
        tokens = min(missing(state, slot), budget - used)
        if state.requests[slot].num_scheduled_tokens > 0 or tokens <= 0:
            index += 1
        elif num_new_blocks(state, slot, tokens) <= num_free_blocks(state, instance):
            used += allocate_slots(state, instance, slot, tokens)
            index += 1
        else:
            worst, _ = worst_running(state, instance)
            preempt(state, instance, worst, how_of(state))
            index -= worst < index
    return used


@hook(COMPOSE)
def schedule(view):
    """Chooses who runs, if it is time, and fills the iteration."""
    state, instance = view.state, view.instance
    spec, memory, budget = state.instances[instance], state.memory[instance], state.config.max_num_batched_tokens
    memory[SINCE] += 1.0
    used = np.int64(0)
    if memory[SINCE] >= state.params[P.steps] or spec.running < memory[RAN]:
        memory[SINCE] = 0.0
        used = enter(state, instance, budget)
    used += go_on(state, instance, budget - used)
    if used == 0:
        used = enter(state, instance, budget)
    memory[RAN] = spec.running
    return used


autellix = Policy("autellix", PARAMS, class_blind=True, mixed=True, route=route_fewest_requests, compose=schedule,
                  async_scheduling=SYNCHRONOUS)
