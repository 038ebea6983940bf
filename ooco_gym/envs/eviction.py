"""`ooco_gym/Eviction-v1` and `EvictionPredicted-v1`: which resident request is evicted when KV
memory is short?"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from ooco_gym.compile import inner
from ooco_gym.envs.base import DecisionEnv
from ooco_gym.envs.buffers import BASE_ACTION, DECLINE_ACTION, FIXED, step_kernel
from ooco_gym.envs.decision import Decision, OpenDecision, add_choice, add_quantiles
from ooco_gym.envs.features import BELIEVED, MARGIN, PICKS, RESIDENT, columns
from ooco_gym.envs.filling import (
    fill_believed,
    fill_request,
    rank_requests,
    running,
    stack_logs,
    step_share,
    take_logs,
)
from ooco_gym.envs.stepping import base_pick, pending_view
from ooco_gym.envs.vector import register
from ooco_gym.policy.lengths import least_dense, longest_output
from ooco_gym.policy.rules import longest, shortest
from ooco_gym.sim.costs import length
from ooco_gym.sim.decode import flush
from ooco_gym.sim.state import DECLINE, EVICT

COLUMN = columns(RESIDENT)


@inner
def _offer(state, buffers, i, believed):
    """Offers candidates; with `believed` also those that rules choose by predicted lengths, with
    these predictions as features."""
    view = pending_view(state)
    instance, count = view.instance, view.candidates.size
    flush(state, instance)
    chosen = buffers.chosen[i]
    wanted = base_pick(state, buffers, i)
    offered = add_choice(chosen, 0, wanted if 0 <= wanted < count else 0)
    if believed:
        offered = add_choice(chosen, offered, least_dense(view))
        offered = add_choice(chosen, offered, longest_output(view))
    offered = add_choice(chosen, offered, longest(view))
    offered = add_choice(chosen, offered, shortest(view))
    offered = add_choice(chosen, offered, count - 1)
    for position in range(count):
        state.scratch[0, position] = length(state, view.candidates[position])
        state.scratch[1, position] = position
    offered = add_quantiles(state, chosen, offered, count)
    spec = state.instances[instance]
    context = spec.urgent_context + spec.offline_context
    logs = stack_logs()
    for k in range(offered):
        slot, out = view.candidates[chosen[k]], buffers.candidates[i, k]
        fill_request(state, instance, slot, spec.total_blocks, logs, k, out)
        out[COLUMN.running] = running(state, instance, slot)
        out[COLUMN.step] = step_share(state, instance, spec.decodable - 1, context - length(state, slot))
        out[COLUMN.base_policy] = chosen[k] == wanted
        if believed:
            fill_believed(state, slot, out)
        buffers.mask[i, FIXED + k] = 1
    take_logs(logs, offered, buffers.candidates[i])
    rank_requests(buffers.candidates[i], offered)
    may_wait = view.request >= 0
    buffers.mask[i, DECLINE_ACTION] = may_wait
    return offered + may_wait


@step_kernel
def offer_victims(state, buffers, i):
    """Offers the base policy's choice, the longest, the shortest, the last to join, then
    quantiles of length."""
    return _offer(state, buffers, i, False)


@step_kernel
def offer_victims_believed(state, buffers, i):
    """As `offer_victims`, with rules' choices by predicted lengths after the base policy's, and
    with these predictions."""
    return _offer(state, buffers, i, True)


@step_kernel
def answer_victim(state, buffers, i):
    """Returns the position of the evicted request, or DECLINE."""
    k = buffers.actions[i, 0] - FIXED
    return buffers.chosen[i, k] if k >= 0 else DECLINE


def action_of_victim(opened: OpenDecision) -> int:
    """Returns the action for a rule's answer: its candidate, or the offered one closest in
    length."""
    if opened.answer < 0:
        return DECLINE_ACTION if opened.state.pending.request >= 0 else BASE_ACTION
    picks = opened.state.picks
    return opened.closest(picks[opened.offered()], picks[opened.answer])


DECISION = Decision(
    "evict", EVICT, offer_victims, answer_victim, action_of_victim,
    question="Which resident request is evicted?",
    no="let the newcomer wait (illegal if a running batch needs the memory)", take="evict this request",
    candidates="resident offline requests",
    table=RESIDENT, still=MARGIN + PICKS, marks=((430, 272), (800, 272)))
BY_LENGTHS = replace(DECISION, name="evict by lengths", offer=offer_victims_believed, table=BELIEVED)


class EvictionEnv(DecisionEnv):
    """Which request loses its KV memory when memory is short; a base policy takes all other
    decisions.

    ## Description
    Online requests need KV memory to be prefilled on a relaxed instance, to move to a strict one,
    and to grow while they decode. Resident offline requests are evicted for them (OOCO, arXiv
    2511.21862, section 3.4.1), and their prompt and generated tokens are recomputed. The
    environment asks for one victim at a time until memory suffices. If the newcomer can wait, no
    eviction is required yet; the environment asks again when the instance's state has changed.

    ## Action Space
    `Discrete(2 + K)`: 0 lets the newcomer wait (illegal if a running batch needs the memory), `2
    + k` evicts candidate k.

    ## Candidates
    The base policy's choice, the longest, the shortest, the last to join (vLLM's victim), then
    length quantiles of the residents; each once.
    """

    id: ClassVar[str] = "ooco_gym/Eviction-v1"
    decisions: ClassVar[tuple[Decision, ...]] = (DECISION,)
    default_scenario: ClassVar[str] = "eviction"


class EvictionPredictedEnv(EvictionEnv):
    """Eviction with a length predictor; all else is as in Eviction-v1.

    ## Description
    The scenario has a length predictor (`lengths`, with log-normal error 0.3). Each candidate's
    features include the predicted remaining tokens and the spread of the prediction. The rules of
    `ooco_lengths` use the same predictions. A request that outlives its prediction is predicted
    to continue.

    ## Candidates
    The base policy's choice, the request with the lowest value per unit of memory-time still
    needed (`ooco_lengths:evict=density`), the one with the longest predicted output, then as in
    Eviction-v1.
    """

    id: ClassVar[str] = "ooco_gym/EvictionPredicted-v1"
    decisions: ClassVar[tuple[Decision, ...]] = (BY_LENGTHS,)
    default_scenario: ClassVar[str] = "evictionpredicted"


register(EvictionEnv)
register(EvictionPredictedEnv)
