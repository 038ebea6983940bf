"""`ooco_gym/Interruption-v1`: an online request arrives while offline work runs: stop it, or let it finish?"""

from __future__ import annotations

from typing import ClassVar

from ooco_gym.envs.base import DecisionEnv
from ooco_gym.envs.buffers import DECLINE_ACTION, FIXED, step_kernel
from ooco_gym.envs.decision import Decision, OpenDecision
from ooco_gym.envs.features import ARRIVAL, MARGIN, PICKS, RELAXED, columns
from ooco_gym.envs.filling import SHORT, TEN_MS, log_scale, share, signed
from ooco_gym.envs.stepping import base_pick
from ooco_gym.envs.vector import register
from ooco_gym.sim.costs import blocks_for, length, predict_prefill
from ooco_gym.sim.decode import flush
from ooco_gym.sim.state import INTERRUPT, KEEP, PS_PER_S, STOP

COLUMN = columns(ARRIVAL)


@step_kernel
def offer_interrupt(state, buffers, i):
    """Offers the arrived request as the only candidate: taking it stops the running work."""
    instance, slot = state.pending.instance, state.pending.request
    flush(state, instance)
    spec, request, out = state.instances[instance], state.requests[slot], buffers.candidates[i, 0]
    now, tokens = state.clock.now_ps, length(state, slot)
    out[COLUMN.tokens] = log_scale(tokens, SHORT)
    out[COLUMN.prefill] = log_scale(predict_prefill(state, instance, tokens) / 1e9, TEN_MS)
    out[COLUMN.memory] = share(blocks_for(state, tokens + 1) / max(1, spec.free_blocks), 1.0)
    out[COLUMN.slack] = signed((request.arrival_ps + request.ttft_slo_ps - now) / PS_PER_S, 5.0)
    ahead_ps = spec.end_ps - now + predict_prefill(state, instance, spec.online_waiting_tokens)
    out[COLUMN.backlog] = log_scale(ahead_ps / 1e9, TEN_MS)
    out[COLUMN.base_policy] = base_pick(state, buffers, i) == STOP
    buffers.chosen[i, 0] = slot
    buffers.mask[i, DECLINE_ACTION] = 1
    buffers.mask[i, FIXED] = 1
    return 2


@step_kernel
def answer_interrupt(state, buffers, i):
    """Returns KEEP, or STOP at the next layer."""
    return STOP if buffers.actions[i, 0] == FIXED else KEEP


def action_of_interrupt(opened: OpenDecision) -> int:
    """Returns the action for a rule's answer."""
    return FIXED if opened.answer == STOP else DECLINE_ACTION


DECISION = Decision(
    "interrupt", INTERRUPT, offer_interrupt, answer_interrupt, action_of_interrupt,
    question="An online request has arrived: interrupt the running offline work?", no="let the iteration finish",
    take="interrupt it at the next layer boundary", candidates="the arrived online request",
    table=ARRIVAL, still=(*MARGIN, *PICKS, *RELAXED, "since_online_arrival"), marks=((300, 214),))


class InterruptionEnv(DecisionEnv):
    """Whether an online arrival stops running offline work; a base policy takes all other
    decisions.

    ## Description
    An online request arrives at a relaxed instance during an offline prefill or decode step. OOCO
    (arXiv 2511.21862, section 3.4.1) always stops at the next layer boundary, and the iteration's
    computed work is lost. If the TTFT SLO leaves slack, the iteration may as well finish.

    ## Action Space
    `Discrete(3)`: 0 lets the iteration finish, 2 stops it at the next layer.

    ## Candidates
    One: the arrived online request, with its slack and `backlog`, the time until its prefill
    would end if nothing stops. Cluster features describe the running work (`busy`, `progress`,
    `online_waiting`, `online_slack`).
    """

    id: ClassVar[str] = "ooco_gym/Interruption-v1"
    decisions: ClassVar[tuple[Decision, ...]] = (DECISION,)
    default_scenario: ClassVar[str] = "interruption"
    most_candidates: ClassVar[int] = 1


register(InterruptionEnv)
