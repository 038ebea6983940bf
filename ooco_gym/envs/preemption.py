"""`ooco_gym/Preemption-v0`: an online request arrives while offline work runs: stop it, or let it finish?"""

from __future__ import annotations

from typing import ClassVar

from ooco_gym.envs.base import DecisionEnv
from ooco_gym.envs.buffers import DECLINE_ACTION, FIXED, PARTNER_ACTION, step_kernel
from ooco_gym.envs.decision import Decision, OpenDecision
from ooco_gym.envs.features import COLUMN
from ooco_gym.envs.filling import TEN_MS, fast_rate, fill_request, log_scale, stack_logs, take_logs
from ooco_gym.envs.vector import register
from ooco_gym.sim.costs import predict_prefill
from ooco_gym.sim.decode import flush
from ooco_gym.sim.state import INTERRUPT, KEEP, STOP


@step_kernel
def offer_interrupt(state, buffers, i):
    """The request that has arrived is the one candidate: to take it is to stop what runs."""
    instance, slot = state.pending.instance, state.pending.request
    flush(state, instance)
    spec, out = state.instances[instance], buffers.candidates[i, 0]
    logs = stack_logs()
    fill_request(state, instance, slot, spec.free_blocks, fast_rate(state), logs, 0, out)
    take_logs(logs, 1, buffers.candidates[i])
    ahead_ps = spec.end_ps - state.clock.now_ps + predict_prefill(state, instance, spec.online_waiting_tokens)
    out[COLUMN.backlog] = log_scale(ahead_ps / 1e9, TEN_MS)
    buffers.chosen[i, 0] = slot
    buffers.mask[i, DECLINE_ACTION] = 1
    buffers.mask[i, PARTNER_ACTION] = 1
    buffers.mask[i, FIXED] = 1
    return 2


@step_kernel
def answer_interrupt(state, buffers, i):
    """Keep on, or stop at the next layer."""
    return STOP if buffers.actions[i, 0] == FIXED else KEEP


def action_of_interrupt(opened: OpenDecision) -> int:
    """The action for a rule's answer."""
    return FIXED if opened.answer == STOP else DECLINE_ACTION


DECISION = Decision(
    "interrupt", INTERRUPT, offer_interrupt, answer_interrupt, action_of_interrupt,
    question="An online request has arrived: stop the offline work that runs?", no="let the iteration finish",
    take="stop it at the next layer", candidates="the request that has arrived",
    figures=("tokens", "prefill", "slack", "backlog"), marks=((300, 214),))


class PreemptionEnv(DecisionEnv):
    """Whether an online arrival stops the offline work that runs; a partner policy takes all other decisions.

    ## Description
    An online request arrives at a relaxed instance that is in the midst of an offline prefill or decode step. OOCO
    (arXiv 2511.21862, section 3.4.1) always stops at the next layer boundary, and what that iteration has computed is
    lost. Where there is slack in the TTFT SLO, the iteration may as well finish.

    ## Action Space
    `Discrete(3)`: 0 lets the iteration finish, 1 does what the partner would do, 2 stops it at the next layer.

    ## Candidates
    One: the online request that has arrived, with its slack, and `backlog`, the time until its prefill would be over
    if nothing stops. What runs is among the cluster features (`busy`, `progress`, `online_waiting`, `online_slack`).
    """

    id: ClassVar[str] = "ooco_gym/Preemption-v0"
    decisions: ClassVar[tuple[Decision, ...]] = (DECISION,)
    default_scenario: ClassVar[str] = "preemption"
    most_candidates: ClassVar[int] = 1


register(PreemptionEnv)
