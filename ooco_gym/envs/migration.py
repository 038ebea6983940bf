"""`ooco_gym/Migration-v1` and `MigrationPredicted-v1`: which offline requests does a strict instance pull?"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from ooco_gym.compile import inner
from ooco_gym.envs import buffers as b
from ooco_gym.envs.base import DecisionEnv
from ooco_gym.envs.buffers import step_kernel
from ooco_gym.envs.decision import Decision, OpenDecision, add_choice, add_quantiles
from ooco_gym.envs.features import BELIEVED, IDLE, MARGIN, RESIDENT, columns
from ooco_gym.envs.filling import (
    fill_believed,
    fill_request,
    rank_requests,
    running,
    stack_logs,
    step_share,
    take_logs,
)
from ooco_gym.envs.stepping import base_pick
from ooco_gym.envs.vector import register
from ooco_gym.policy.lengths import believed_output
from ooco_gym.sim import state as s
from ooco_gym.sim.costs import blocks_for, length
from ooco_gym.sim.decode import flush

COLUMN = columns(RESIDENT)


@inner
def _plan(state, buffers, i):
    """Stores the base policy's pulls."""
    planned = base_pick(state, buffers, i)
    for j in range(min(planned, b.MOST_PICKS)):
        buffers.planned[i, j] = state.picks[j]


@inner
def _among(values, count, value):
    for j in range(count):
        if values[j] == value:
            return True
    return False


@inner
def _gather(state, buffers, i, free):
    """Writes (length, request) pairs that the instance could still pull to State.scratch. Returns
    their number."""
    available, picked = 0, buffers.status[i, b.PICKED]
    for source in range(state.config.relaxed_count):
        flush(state, source)
        for j in range(state.instances[source].offline_members):
            slot = state.members[s.OFFLINE, source, j]
            request = state.requests[slot]
            if request.status != s.RESIDENT or request.urgent or available >= state.scratch.shape[1]:
                continue
            if blocks_for(state, length(state, slot) + 1) > free or _among(buffers.picked[i], picked, slot):
                continue
            state.scratch[0, available] = length(state, slot)
            state.scratch[1, available] = slot
            available += 1
    return available


@inner
def _first_by_lengths(state, available):
    """Returns the request in State.scratch predicted to finish soonest, and the one with the
    shortest predicted output; -1 if none."""
    soonest, least, shortest, fewest = -1, float(s.NEVER), -1, float(s.NEVER)
    for j in range(available):
        slot = state.scratch[1, j]
        output = believed_output(state, slot, 0.5)
        left = output - state.requests[slot].generated_tokens
        if left < least:
            soonest, least = slot, left
        if output < fewest:
            shortest, fewest = slot, output
    return soonest, shortest


@inner
def _offer(state, buffers, i, believed):
    """Offers candidates; with `believed` also those that rules choose by predicted lengths, with
    these predictions as features."""
    turn, chosen, picked = buffers.status[i], buffers.chosen[i], buffers.picked[i]
    instance = state.pending.instance
    if turn[b.PICKED] == 0:
        _plan(state, buffers, i)
    flush(state, instance)
    spec, more = state.instances[instance], turn[b.PICKED]
    free, context = spec.free_blocks, spec.urgent_context + spec.offline_context + spec.arriving_context
    for j in range(more):
        free -= blocks_for(state, length(state, picked[j]) + 1)
        context += length(state, picked[j])
    available = _gather(state, buffers, i, free)
    wanted = buffers.planned[i, more] if more < min(turn[b.PLANNED], b.MOST_PICKS) else -1
    offered = 0
    if wanted >= 0 and _among(state.scratch[1], available, wanted):
        offered = add_choice(chosen, offered, wanted)
    if believed:
        soonest, shortest = _first_by_lengths(state, available)
        offered = add_choice(chosen, offered, soonest)
        offered = add_choice(chosen, offered, shortest)
    offered = add_quantiles(state, chosen, offered, available)
    logs = stack_logs()
    for k in range(offered):
        slot, out = chosen[k], buffers.candidates[i, k]
        source = state.requests[slot].instance
        fill_request(state, source, slot, max(1, free), logs, k, out)
        out[COLUMN.running] = running(state, source, slot)
        requests = spec.decodable + spec.arriving + more + 1
        out[COLUMN.step] = step_share(state, instance, requests, context + length(state, slot))
        out[COLUMN.base_policy] = slot == wanted
        if believed:
            fill_believed(state, slot, out)
        buffers.mask[i, b.FIXED + k] = 1
    take_logs(logs, offered, buffers.candidates[i])
    rank_requests(buffers.candidates[i], offered)
    buffers.mask[i, b.DECLINE_ACTION] = 1
    return 1 + offered


@step_kernel
def offer_pulls(state, buffers, i):
    """Offers the request that the base policy would pull next, then length quantiles of those
    that fit."""
    return _offer(state, buffers, i, False)


@step_kernel
def offer_pulls_believed(state, buffers, i):
    """As `offer_pulls`, with rules' choices by predicted lengths after the base policy's, and
    with these predictions."""
    return _offer(state, buffers, i, True)


@step_kernel
def answer_pull(state, buffers, i):
    """Adds a pick and returns MORE, or ends the picks and returns their number (FULL: none)."""
    turn, k = buffers.status[i], buffers.actions[i, 0] - b.FIXED
    if k >= 0:
        buffers.picked[i, turn[b.PICKED]] = buffers.chosen[i, k]
        turn[b.PICKED] += 1
        if turn[b.PICKED] < b.MOST_PICKS:
            return b.MORE
    for j in range(turn[b.PICKED]):
        state.picks[j] = buffers.picked[i, j]
    return turn[b.PICKED] if turn[b.PICKED] > 0 else s.FULL


def action_of_pull(opened: OpenDecision) -> int:
    """Returns the action for a rule's answer: its next pick, or the end of the picks."""
    if opened.answer <= opened.picked:
        return b.DECLINE_ACTION
    return opened.closest(opened.offered(), int(opened.picks[opened.picked]))


DECISION = Decision(
    "pull", s.PULL, offer_pulls, answer_pull, action_of_pull,
    question="Which request does the strict instance pull?", no="pull none, or no more",
    take="pull this request; the decision repeats", candidates="offline requests decoding on relaxed instances",
    table=RESIDENT, still=IDLE + MARGIN, marks=((504, 256),))
BY_LENGTHS = replace(DECISION, name="pull by lengths", offer=offer_pulls_believed, table=BELIEVED)


class MigrationEnv(DecisionEnv):
    """Which requests a strict instance pulls from the relaxed ones; a base policy takes all other
    decisions.

    ## Description
    Offline requests are prefilled on relaxed instances and decode there. A strict instance whose
    steps leave time within the TPOT SLO may pull some of them (OOCO, arXiv 2511.21862, section
    3.4.3, Algorithm 1). A pulled request takes KV memory, and an online burst may evict it: then
    its whole context is recomputed. Algorithm 1 pulls only if latency and memory allow. The
    environment asks without this guard (the feature `pull_guard` has its value), one request at a
    time.

    ## Action Space
    `Discrete(2 + K)`: 0 stops pulling, `2 + k` pulls candidate k, and the environment asks again,
    up to 16 times.

    ## Candidates
    First the base policy's next pick, then length quantiles of the relaxed instances' decoding
    offline requests that fit the free memory. No time passes between the picks of one decision.
    """

    id: ClassVar[str] = "ooco_gym/Migration-v1"
    decisions: ClassVar[tuple[Decision, ...]] = (DECISION,)
    default_scenario: ClassVar[str] = "migration"


class MigrationPredictedEnv(MigrationEnv):
    """Migration with a length predictor; all else is as in Migration-v1.

    ## Description
    The scenario has a length predictor (`lengths`, with log-normal error 0.3). Each candidate's
    features include the predicted remaining tokens and the spread of the prediction. The rules of
    `ooco_lengths` use the same predictions. A request that outlives its prediction is predicted
    to continue.

    ## Candidates
    The base policy's next pick, the request predicted to finish soonest, the one with the
    shortest predicted output, then as in Migration-v1.
    """

    id: ClassVar[str] = "ooco_gym/MigrationPredicted-v1"
    decisions: ClassVar[tuple[Decision, ...]] = (BY_LENGTHS,)
    default_scenario: ClassVar[str] = "migrationpredicted"


register(MigrationEnv)
register(MigrationPredictedEnv)
