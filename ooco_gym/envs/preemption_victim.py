"""`ooco_gym/PreemptionVictim-v1`: which running offline request is preempted when an engine's
blocks are short?"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ooco_gym.compile import inner
from ooco_gym.envs import buffers as b
from ooco_gym.envs.base import DecisionEnv
from ooco_gym.envs.batching import feature_of, fill_engine
from ooco_gym.envs.buffers import step_kernel
from ooco_gym.envs.decision import Decision, add_choice, add_quantiles
from ooco_gym.envs.features import columns
from ooco_gym.envs.filling import log_scale, log_scales
from ooco_gym.envs.vector import register
from ooco_gym.perf.latency import NO_SUMS, add_to_sums
from ooco_gym.policy.latency_budget import OPEN_FIELDS, believed_latency, decodes
from ooco_gym.policy.mixed import preempt, running_index
from ooco_gym.policy.reclaiming import fits_host, lacking, private_blocks, relief
from ooco_gym.runtime.features import ENGINE, VICTIM
from ooco_gym.sim import state as s
from ooco_gym.sim.costs import length
from ooco_gym.sim.state import ASK, BATCH, RECOMPUTE, SWAP

# --- What is observed: `ooco_gym.runtime.features` has the table and the meaning of each feature, and computes
# the same from plain descriptions of requests; a test compares both ------------------------------------------------
F = columns(VICTIM)
_PER_LOG = log_scales(VICTIM)
_TOKENS, _GENERATED, _OUTPUT, _WAIT = (_PER_LOG[F.tokens], _PER_LOG[F.generated], _PER_LOG[F.output],
                                       _PER_LOG[F.wait])
_MEMORY, _LACK, _COST = _PER_LOG[F.memory], _PER_LOG[F.lack], _PER_LOG[F.cost]
_EVICTIONS, _FREED = VICTIM[F.evictions].limit, VICTIM[F.freed].limit


@inner
def order_of(state, instance, slot):
    """Share of the other running offline requests that were admitted before this one; 1 if there
    are none."""
    before, others = 0, 0
    for place in range(state.instances[instance].running):
        one = np.int64(state.members[BATCH, instance, place])
        if state.requests[one].urgent == 0 and one != slot:
            others += 1
        elif one == slot:
            before = others
    return before / others if others > 0 else 1.0


@inner
def cost_ps(state, instance, slot, how):
    """Predicted cost of losing a running request's memory, in ps: recomputation, or two
    transfers."""
    spec, computed = state.instances[instance], np.int64(state.requests[slot].num_computed_tokens)
    if how == SWAP:
        moved = 2.0 * computed * state.tables[spec.table].kv_bytes_per_token
        return moved / state.config.host_bytes_per_s * s.PS_PER_S
    if computed == 0:
        return 0.0
    return float(believed_latency(state, instance, add_to_sums(state, spec.belief, NO_SUMS, computed, computed, 1)))


@inner
def fill_victim(state, buffers, i, k, short):
    """Writes the `VICTIM` features of candidate k.

    Args:
        state: the episode.
        buffers: buffers of all episodes.
        i: index of the episode.
        k: the candidate, a running offline request; StepBuffers.iteration has RECOMPUTE or SWAP
            for it.
        short: the result of `policy.reclaiming.lacking`.
    """
    instance, slot, how = state.pending.instance, np.int64(buffers.chosen[i, k]), buffers.iteration[i, OPEN_FIELDS + k]
    (lack, need, online), out, request = short, buffers.candidates[i, k], state.requests[slot]
    tokens = length(state, slot)
    output = max(1.0, state.observed.offline_output_mean - request.generated_tokens)
    out[F.present] = 1.0
    out[F.tokens] = log_scale(tokens, _TOKENS)
    out[F.computed] = request.num_computed_tokens / tokens
    out[F.generated] = log_scale(request.generated_tokens, _GENERATED)
    out[F.output] = log_scale(output, _OUTPUT)
    out[F.wait] = log_scale((state.clock.now_ps - request.arrival_ps) / s.PS_PER_S, _WAIT)
    out[F.evictions] = min(1.0, request.evictions / _EVICTIONS)
    out[F.decodes] = decodes(state, slot)
    out[F.place] = order_of(state, instance, slot)
    out[F.memory] = log_scale(private_blocks(state, instance, slot), _MEMORY)
    out[F.freed] = min(1.0, relief(state, instance, slot) / (lack * _FREED))
    out[F.lack] = log_scale(lack, _LACK)
    out[F.online] = online / need
    out[F.swap] = how == SWAP
    out[F.cost] = log_scale(cost_ps(state, instance, slot, how) / 1e9, _COST)


@step_kernel
def observe_victims(state, buffers, i):
    """Completes the observation of an open decision."""
    fill_engine(state, state.pending.instance, buffers.reward_sums[i], buffers.notes[i], buffers.cluster[i])
    return b.NO_KIND


# --- What is offered, and what an action does ---------------------------------------------------------------------
@inner
def choose(state, instance, chosen):
    """Writes candidates and returns their number: the running offline request last admitted, the
    last to arrive, the one with the fewest computed tokens, then length quantiles. Each must
    reduce the number of lacking blocks."""
    found, last, arrived, least = 0, np.int64(-1), np.int64(-1), np.int64(-1)
    for place in range(state.instances[instance].running - 1, -1, -1):
        slot = np.int64(state.members[BATCH, instance, place])
        request = state.requests[slot]
        if request.urgent or relief(state, instance, slot) <= 0:
            continue
        state.scratch[0, found], state.scratch[1, found] = length(state, slot), slot
        found += 1
        if last < 0:
            last = arrived = least = slot
        if request.arrival_ps >= state.requests[arrived].arrival_ps:  # ties: the first admitted, as in the engine
            arrived = slot
        if request.num_computed_tokens <= state.requests[least].num_computed_tokens:
            least = slot
    offered = add_choice(chosen, add_choice(chosen, add_choice(chosen, 0, last), arrived), least)
    return add_quantiles(state, chosen, offered, found)


@step_kernel
def offer_victims(state, buffers, i):
    """Offers each chosen request with recomputation and, if the host has room, with swapping."""
    instance, chosen, ways = state.pending.instance, buffers.chosen[i], buffers.iteration[i, OPEN_FIELDS:]
    short = lacking(state, instance)
    if short[0] <= 0:
        return 0
    most = np.int64(buffers.settings[b.OFFERED])
    swaps = state.instances[instance].host_free_blocks > 0
    count = choose(state, instance, chosen[: (most + 1) // 2 if swaps else most])
    for j in range(count):
        state.scratch[0, j] = chosen[j]
    offered = 0
    for j in range(count):
        slot = np.int64(state.scratch[0, j])
        for how in (RECOMPUTE, SWAP):
            if offered < most and (how == RECOMPUTE or fits_host(state, instance, slot)):
                chosen[offered], ways[offered] = slot, how
                offered += 1
    for k in range(offered):
        fill_victim(state, buffers, i, k, short)
        buffers.mask[i, b.FIXED + k] = 1
    buffers.mask[i, b.BASE_ACTION] = 1
    return offered


@step_kernel
def answer_victim(state, buffers, i):
    """Preempts the request; the environment asks again while blocks lack."""
    k = buffers.actions[i, 0] - b.FIXED
    index = running_index(state, state.pending.instance, buffers.chosen[i, k])
    preempt(state, state.pending.instance, index, buffers.iteration[i, OPEN_FIELDS + k])
    buffers.status[i, b.PICKED] += 1
    return b.MORE


@step_kernel
def leave_to_base_policy(state, buffers, i):
    """Leaves preemption to the rule that composes the iteration."""
    return ASK


DECISION = Decision(
    "reclaim", b.RECLAIM, offer_victims, answer_victim, base_policy=leave_to_base_policy,
    question="The iteration lacks KV blocks: which offline request is preempted, and how?",
    take="preempt this request in this way; the decision repeats while blocks are missing",
    candidates="running offline requests, to be recomputed or swapped out",
    table=tuple(map(feature_of, VICTIM)), cluster=tuple(map(feature_of, ENGINE)),
    observe=observe_victims, marks=((722, 247),))


class PreemptionVictimEnv(DecisionEnv):
    """Which running offline request is preempted when an engine's KV memory is short, and whether
    its memory is swapped.

    ## Description
    When blocks are short for what must run next, vLLM preempts the running request admitted last,
    or with priorities the one of the lowest priority that arrived last (`_preempt_request`), and
    recomputes its context later. Its users ask for the one with the fewest computed tokens (vLLM
    RFC 54644). Here, before an iteration is composed, the environment asks for a victim if blocks
    lack for what must run: the next token of every decoding request; then, as far as the
    iteration's tokens go, online prompts in progress; then whole contexts of the first 8 waiting
    online requests, while a running slot is free. Requests are preempted one at a time until
    blocks suffice. A victim's memory is lost (*recompute*), or moves to host memory (*swap*) if
    that has room; a transfer lengthens an iteration both ways. The base policy is any policy of
    mixed instances that distinguishes online from offline requests and counts blocks of one
    owner.

    ## Action Space
    `Discrete(2 + K)`: 0 is never legal, 1 leaves preemption to the base policy as it composes
    this iteration, `2 + k` takes candidate k, and the environment asks again while blocks lack.
    No time passes between these actions.

    ## Candidates
    The running offline request admitted last, the one that arrived last, the one with the fewest
    computed tokens, then length quantiles of the others; for each first recompute, then swap. A
    request is left out if preempting it would free no block, for example because others share all
    its blocks. Output lengths are hidden: `output` is the mean of finished requests.
    """

    id: ClassVar[str] = "ooco_gym/PreemptionVictim-v1"
    decisions: ClassVar[tuple[Decision, ...]] = (DECISION,)
    default_scenario: ClassVar[str] = "preemptionvictim"


register(PreemptionVictimEnv)
