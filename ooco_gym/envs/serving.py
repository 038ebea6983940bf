"""`ooco_gym/Serving-v1`: one agent takes all decisions of one or many mixed instances."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ooco_gym.compile import inlined, inner
from ooco_gym.envs import batching, entering, preemption_victim
from ooco_gym.envs import buffers as b
from ooco_gym.envs.base import DecisionEnv
from ooco_gym.envs.batching import feature_of, fill_engine
from ooco_gym.envs.buffers import step_kernel
from ooco_gym.envs.decision import Decision, add_choice
from ooco_gym.envs.features import columns
from ooco_gym.envs.filling import log_scale, log_scales
from ooco_gym.envs.stepping import base_pick
from ooco_gym.envs.vector import register
from ooco_gym.perf.latency import NO_SUMS, add_to_sums
from ooco_gym.policy.engine_features import NONE_MS, believed
from ooco_gym.policy.latency_budget import believed_latency, decodes
from ooco_gym.policy.rules import sort_ascending
from ooco_gym.runtime.features import ENGINE, TARGET
from ooco_gym.sim import state as s
from ooco_gym.sim.costs import blocks_for, length
from ooco_gym.sim.state import ROUTE
from ooco_gym.sim.step_actions import get_computed_blocks, missing, num_free_blocks

# --- What is observed: `ooco_gym.runtime.features` has the table and the meaning of each feature, and computes
# the same from plain descriptions of requests; a test compares both ------------------------------------------------
F = columns(TARGET)
_PER_LOG = log_scales(TARGET)
_TOKENS, _DEADLINE, _PREFILL = _PER_LOG[F.tokens], _PER_LOG[F.deadline], _PER_LOG[F.prefill]
_ONLINE, _ONLINE_MISSING = _PER_LOG[F.online_requests], _PER_LOG[F.online_missing]
_OFFLINE, _OFFLINE_MISSING = _PER_LOG[F.offline_requests], _PER_LOG[F.offline_missing]
_TIMES = TARGET[F.decodes].limit


@inlined
def _running(state, instance):
    """Counts running requests: (decodes, their context, prompts, missing tokens of these) of the
    online ones, then of the offline ones."""
    spec, batch = state.instances[instance], state.members[s.BATCH, instance]
    online = offline = (np.int64(0), np.int64(0), np.int64(0), np.int64(0))
    for place in range(spec.running):
        slot = np.int64(batch[np.uint64(place)])
        count, context, prompts, lack = online if state.requests[slot].online else offline
        if decodes(state, slot):
            count, context = count + 1, context + length(state, slot)
        else:
            prompts, lack = prompts + 1, lack + missing(state, slot)
        if state.requests[slot].online:
            online = (count, context, prompts, lack)
        else:
            offline = (count, context, prompts, lack)
    return online, offline


@inner
def fill_target(state, instance, slot, default, out):
    """Writes the `TARGET` features of an engine for an arrival; `default`: the base policy would
    choose it."""
    spec, request, tokens = state.instances[instance], state.requests[slot], length(state, slot)
    table, tpot_ps = spec.belief, state.config.default_tpot_ps
    computed, shared, idle = get_computed_blocks(state, instance, slot)
    online, offline = _running(state, instance)
    due_ms = NONE_MS
    if request.online:
        due_ms = (request.arrival_ps + request.ttft_slo_ps - state.clock.now_ps) / 1e9
    alone = believed_latency(state, instance, add_to_sums(state, table, NO_SUMS, tokens - computed, tokens, 1))
    per_tpot = 1.0 / (tpot_ps * _TIMES)
    out[F.present] = 1.0
    out[F.tokens] = log_scale(tokens, _TOKENS)
    out[F.online] = request.online
    out[F.deadline] = log_scale(due_ms, _DEADLINE)
    out[F.cached] = computed / tokens
    out[F.prefill] = log_scale(alone / 1e9, _PREFILL)
    need = blocks_for(state, tokens) - shared + idle
    out[F.memory] = min(1.0, need / max(1, num_free_blocks(state, instance)))
    out[F.free] = spec.free_blocks / spec.total_blocks
    out[F.seats] = 1.0 - spec.running / state.config.max_num_seqs
    out[F.online_requests] = log_scale(online[0] + online[2] + spec.online_waiting, _ONLINE)
    out[F.online_missing] = log_scale(online[3] + spec.online_waiting_tokens, _ONLINE_MISSING)
    out[F.offline_requests] = log_scale(offline[0] + offline[2] + spec.offline_waiting, _OFFLINE)
    out[F.offline_missing] = log_scale(offline[3] + spec.offline_waiting_tokens, _OFFLINE_MISSING)
    some, context = online[0], online[1]
    out[F.online_decodes] = min(1.0, believed(state, table, some, context, 0) * per_tpot)
    every, whole = some + offline[0], context + offline[1]
    out[F.decodes] = min(1.0, believed(state, table, every, whole, 0) * per_tpot)
    out[F.default] = default


@step_kernel
def observe_targets(state, buffers, i):
    """Completes the observation of a pending `target` decision; `cluster` describes the base
    policy's engine."""
    wanted = min(max(np.int64(0), np.int64(buffers.status[i, b.PLANNED])), np.int64(state.config.relaxed_count - 1))
    fill_engine(state, wanted, buffers.reward_sums[i], buffers.notes[i], buffers.cluster[i])
    return b.NO_KIND


# --- What is offered, and what an action does ---------------------------------------------------------------------
@inlined
def requests_of_class(state, instance, online):
    """Number of requests of a class on an instance, running and waiting."""
    spec = state.instances[instance]
    return spec.urgent_members + spec.online_waiting if online else spec.offline_members + spec.offline_waiting


@step_kernel
def offer_targets(state, buffers, i):
    """Offers the base policy's choice, then the engines with the fewest requests of the arrival's
    class."""
    slot, chosen, count = state.pending.request, buffers.chosen[i], state.config.relaxed_count
    wanted, listed = base_pick(state, buffers, i), min(count, state.scratch.shape[1])
    offered = add_choice(chosen, 0, wanted if wanted < count else -1)
    for instance in range(listed):
        state.scratch[0, instance] = requests_of_class(state, instance, state.requests[slot].urgent)
        state.scratch[1, instance] = instance
    sort_ascending(state.scratch[0], state.scratch[1], listed)
    for j in range(listed):
        offered = add_choice(chosen, offered, state.scratch[1, j])
    for k in range(offered):
        fill_target(state, chosen[k], slot, chosen[k] == wanted, buffers.candidates[i, k])
        buffers.mask[i, b.FIXED + k] = 1
    return offered


@step_kernel
def answer_target(state, buffers, i):
    return buffers.chosen[i, buffers.actions[i, 0] - b.FIXED]


DECISION = Decision(
    "target", ROUTE, offer_targets, answer_target,
    question="To which engine is the arrived request sent?",
    take="send the request to this engine", candidates="engines",
    table=tuple(map(feature_of, TARGET)), cluster=tuple(map(feature_of, ENGINE)),
    observe=observe_targets, marks=((158, 147),))


class ServingEnv(DecisionEnv):
    """One agent serves on one or many engines: where requests go, how iterations are filled,
    which requests enter them.

    ## Description
    The decisions of [PreemptionVictim-v1](#preemptionvictim-v1) and [Batching-v1](#batching-v1),
    which waiting offline requests enter and, with several engines, which of them takes an
    arrival; `decision` names the present one. If blocks lack for what must run, the
    environment first asks which request is preempted; then how to fill the iteration; then, if
    time, tokens, a running slot and memory are left, which waiting offline requests enter. The
    base policy routes arrivals that have only one engine, and composes iterations without a
    choice.

    ## Action Space
    `Discrete(2 + K)`: 0 is the decision's own *no* (online decodes only; no more requests enter),
    1 does what the base policy would do, `2 + k` takes candidate k. If the base policy fills the
    iteration, the environment still asks which offline requests enter, provided that the base
    policy leaves this open, as `deadline` does; other policies admit within their rule. K is the
    number of combinations of `levels` and `shares`; there are fewer engines, and at most
    `candidates` requests.

    ## Candidates
    The candidates of the present decision. For `target` they are the base policy's choice, then
    the engines with the fewest requests of the arrival's class. For `admit` they are the request
    that the base policy would try next, the one of the first 8 with the most tokens in the prefix
    cache, and length quantiles of those of the first 32 that fit. `cluster` describes the engine
    that composes; at an arrival, the base policy's engine after its last scheduling step.
    """

    id: ClassVar[str] = "ooco_gym/Serving-v1"
    decisions: ClassVar[tuple[Decision, ...]] = (
        DECISION, preemption_victim.DECISION, batching.DECISION, entering.DECISION)
    default_scenario: ClassVar[str] = "serving"


register(ServingEnv)
