"""`ooco_gym/Colocation-v1`: one agent takes all decisions of relaxed and strict pools."""

from __future__ import annotations

from typing import ClassVar

from ooco_gym.envs import eviction, interruption, migration, packing, prefill_gate
from ooco_gym.envs.base import DecisionEnv
from ooco_gym.envs.buffers import BASE_ACTION, DECLINE_ACTION, FIXED, step_kernel
from ooco_gym.envs.decision import Decision, OpenDecision, add_choice
from ooco_gym.envs.features import INSTANCE, MARGIN, PICKS, RELAXED, columns
from ooco_gym.envs.filling import fill_instance
from ooco_gym.envs.stepping import base_pick
from ooco_gym.envs.vector import register
from ooco_gym.policy.rules import sort_ascending
from ooco_gym.sim import state as s
from ooco_gym.sim.decode import urgent_load

COLUMN = columns(INSTANCE)


@step_kernel
def offer_instances(state, buffers, i):
    """Offers the base policy's choice, then the least loaded instances."""
    slot, config = state.pending.request, state.config
    request, chosen = state.requests[slot], buffers.chosen[i]
    arrives = request.status < s.WAITING
    first, last = (0, config.relaxed_count) if arrives else (config.strict_from, state.instances.size)
    wanted = base_pick(state, buffers, i)
    offered = add_choice(chosen, 0, wanted if first <= wanted < last else -1)
    available = 0
    for instance in range(first, min(last, first + state.scratch.shape[1])):
        spec = state.instances[instance]
        if arrives:
            load = spec.online_waiting_tokens + (0 if request.urgent else spec.offline_waiting_tokens)
            if spec.activity == s.PREFILL_ONLINE or spec.activity == s.PREFILL_OFFLINE:
                load += spec.context
        else:
            load = urgent_load(state, instance)[1] + spec.arriving_context
        state.scratch[0, available] = load
        state.scratch[1, available] = instance
        available += 1
    sort_ascending(state.scratch[0], state.scratch[1], available)
    for j in range(available):
        offered = add_choice(chosen, offered, state.scratch[1, j])
    for k in range(offered):
        fill_instance(state, chosen[k], slot, 0 if arrives else 1, buffers.candidates[i, k])
        buffers.candidates[i, k, COLUMN.base_policy] = chosen[k] == wanted
        buffers.mask[i, FIXED + k] = 1
    buffers.mask[i, DECLINE_ACTION] = not arrives
    return offered + (not arrives)


@step_kernel
def answer_instance(state, buffers, i):
    """Returns the instance, or WAIT (online) or STAY (offline) where the prefill ran."""
    k = buffers.actions[i, 0] - FIXED
    if k >= 0:
        return buffers.chosen[i, k]
    return s.WAIT if state.requests[state.pending.request].urgent else s.STAY


def action_of_instance(opened: OpenDecision) -> int:
    """Returns the action for a rule's answer: its instance, waiting or staying; the base policy's
    if the answer is not offered."""
    same = [k for k, instance in enumerate(opened.chosen) if 0 <= opened.answer == instance]
    if same:
        return FIXED + same[0]
    arrives = opened.state.requests["status"][opened.state.pending.request] < s.WAITING
    return BASE_ACTION if arrives or opened.answer >= 0 else DECLINE_ACTION


ROUTE = Decision(
    "route", s.ROUTE, offer_instances, answer_instance, action_of_instance,
    question="To which instance is the request sent?",
    no="wait, or decode where the prefill ran (illegal at an arrival)",
    take="send the request to this instance", candidates="instances",
    table=INSTANCE, still=(*MARGIN, *PICKS, *RELAXED), marks=((154, 102), (512, 136)))


class ColocationEnv(DecisionEnv):
    """One agent takes all decisions of a co-located cluster; a base policy only composes the
    batches.

    ## Description
    The decisions are prefill starts, eviction, interruption, migration, packing and, if there is
    a choice, routing; `decision` names the present one. They interact: pulls fill the memory that
    pushes need, gates start what arrivals stop. The base policy composes strict batches within
    the margin that packing sets.

    ## Action Space
    `Discrete(2 + K)`: 0 is the decision's own *no* (hold, let the newcomer wait, keep on, no more
    picks, stay), 1 does what the base policy would do, `2 + k` takes candidate k, as in the
    decision's own environment.

    ## Candidates
    The candidates of the present decision. For `route` they are the base policy's choice, then the
    instances in order of load: tokens waiting for prefill, or the online context that decodes there.
    """

    id: ClassVar[str] = "ooco_gym/Colocation-v1"
    decisions: ClassVar[tuple[Decision, ...]] = (
        prefill_gate.DECISION, eviction.DECISION, interruption.DECISION, migration.DECISION, packing.DECISION,
        ROUTE)
    default_scenario: ClassVar[str] = "colocation"


register(ColocationEnv)
