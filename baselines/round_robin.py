"""Round robin, BROS's second baseline (arXiv 2504.09590, 2.2 and 7.1): two queues in turn, an
iteration each.

Real-time (online) and best-effort (offline) requests wait in a queue each, first come first served.
Iterations serve the queues in turn; a queue without a runnable request passes. A batch continues
until its requests leave it; prompts are computed whole; blocks have one owner.

Ours, as the paper says no more: `batch_size` requests of a class run at a time. An iteration
computes at most `max_num_batched_tokens` prompt tokens (a longer prompt runs alone). For a request
that lacks a block, the last admitted request of either class is preempted and recomputed.
"""

from ooco_gym.compile import inner
from ooco_gym.policy.decisions import COMPOSE, hook
from ooco_gym.policy.mixed import RECOMPUTE, admit, allocate_slots, fits_whole, missing, preempt
from ooco_gym.policy.policy import Param, Policy, slots
from ooco_gym.policy.rules import length, route_fewest_requests
from ooco_gym.sim.state import BATCH

PARAMS = (
    Param("batch_size", "requests of a class that run at a time", 1, 1_000_000),
    Param("max_num_batched_tokens", "tokens of prompts in one iteration", 1, 1_000_000),
    Param("max_num_seqs", "requests that hold memory at a time", 1, 1_000_000),
)
P = slots(PARAMS)
TURN = 0  # index in State.memory: whether the last iteration served online requests


@inner
def _continue(state, instance, online):
    """Schedules all missing tokens of a class's running requests. Returns (tokens, whether one was
    preempted)."""
    spec, batch, place, given, lost = state.instances[instance], state.members[BATCH, instance], 0, 0, False
    while place < spec.running:
        slot = batch[place]
        if state.requests[slot].urgent != online:
            place += 1
            continue
        tokens = missing(state, slot)
        while place < spec.running and batch[place] == slot and not allocate_slots(state, instance, slot, tokens):
            given -= state.requests[batch[spec.running - 1]].num_scheduled_tokens
            preempt(state, instance, spec.running - 1, RECOMPUTE)
            lost = True
        if place < spec.running and batch[place] == slot:
            given += tokens
            place += 1
    return given, lost


@inner
def _admit(state, instance, online):
    """Admits waiting requests of a class in order, while batch, memory and the iteration's tokens
    allow."""
    spec, given = state.instances[instance], 0
    members = spec.urgent_members if online else spec.offline_members
    while members < state.params[P.batch_size]:
        slot = spec.online_head if online else spec.offline_head
        if slot < 0 or not fits_whole(state, instance, slot):
            break
        if given > 0 and given + length(state, slot) > state.config.max_num_batched_tokens:
            break
        given += admit(state, instance, slot, length(state, slot))
        members += 1
    return given


@inner
def serve(state, instance, online):
    """An iteration of one class. Returns its tokens."""
    given, lost = _continue(state, instance, online)
    return given if lost else given + _admit(state, instance, online)


@hook(COMPOSE)
def compose(view):
    """Serves the other class than the last iteration did, or the same again if the other has no
    runnable request."""
    state, instance = view.state, view.instance
    turn = 0 if state.memory[instance, TURN] == 1.0 else 1
    for _ in range(2):
        for _again in range(2):  # tried again if it has only preempted
            given = serve(state, instance, turn)
            if given > 0:
                state.memory[instance, TURN] = float(turn)
                return given
        turn = 1 - turn
    return 0


policy = Policy("round_robin", PARAMS, mixed=True, route=route_fewest_requests, compose=compose)
