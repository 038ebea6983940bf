"""`ooco_gym/Routing-v2`: which of several unequal engines serves an arriving online request?"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ooco_gym.compile import inlined
from ooco_gym.compile.instructions import stack_floats
from ooco_gym.envs import buffers as b
from ooco_gym.envs.base import DecisionEnv
from ooco_gym.envs.buffers import step_kernel
from ooco_gym.envs.custom import OwnFeature, Term, reading, scaled, scales_of
from ooco_gym.envs.decision import Decision, OpenDecision, add_choice
from ooco_gym.envs.features import ROUTED, ROUTER, columns
from ooco_gym.envs.filling import fast_rate, share
from ooco_gym.envs.stepping import base_pick
from ooco_gym.envs.vector import register
from ooco_gym.policy import router_view as v
from ooco_gym.policy.rules import sort_ascending
from ooco_gym.sim import state as s
from ooco_gym.sim.costs import length, predict_prefill
from ooco_gym.sim.step_actions import get_computed_tokens, missing

FIRST = columns(ROUTED).latency  # of the features of `router_view.compare`; after them `base_policy`
_SCALES, _CLUSTER_SCALES = (scales_of(list(map(OwnFeature, table, table))) for table in (ROUTED, ROUTER))
_row = stack_floats(len(v.COLUMNS))


@step_kernel
def offer_engines(state, buffers, i):
    """Offers the base policy's choice, then the engines by predicted TTFT; none for an offline request."""
    slot, chosen, count = state.pending.request, buffers.chosen[i], state.config.relaxed_count
    if not state.requests[slot].urgent:
        return 0
    v.refresh(state, buffers.settings[b.CONTROL_INTERVAL_PS] / s.PS_PER_S)
    wanted = base_pick(state, buffers, i)
    v.note_sent(state, wanted, slot, -1.0)  # the router has counted its choice, but the agent's counts
    offered, age_s, listed = add_choice(chosen, 0, wanted), v.age_of(state), min(count, state.scratch.shape[1])
    for instance in range(count):
        v.estimate(state, instance, slot, age_s, 1.0, 1.0)
    for instance in range(listed):
        state.scratch[0, instance], state.scratch[1, instance] = 1e9 * state.memory[instance, v.LATENCY_S], instance
    sort_ascending(state.scratch[0], state.scratch[1], listed)
    for j in range(listed):
        offered = add_choice(chosen, offered, state.scratch[1, j])
    means, row = v.means_of(state), _row()
    for k in range(offered):
        v.compare(state, chosen[k], slot, age_s, means, row)
        fill_routed(state, chosen[k], slot, row, chosen[k] == wanted, buffers.candidates[i, k])
        buffers.mask[i, b.FIXED + k] = 1
    return offered


@inlined
def fill_routed(state, instance, slot, row, default, out):
    """Writes the `ROUTED` features of an engine; `row` is from `router_view.compare`."""
    one, request = state.memory[instance], state.requests[slot]
    ttft, tpot = one[v.LATENCY_S] * s.PS_PER_S / request.ttft_slo_ps, one[v.STEP_S] * s.PS_PER_S / request.tpot_slo_ps
    values = (1.0, ttft, tpot, one[v.QUEUE] + one[v.SENT_TOKENS], one[v.ONLINE], one[v.WAITING], one[v.SENT],
              one[v.FREE], one[v.CACHED] / length(state, slot))
    for index in range(FIRST):
        out[index] = scaled(values[index], _SCALES[index])
    for index in range(len(v.COLUMNS)):
        out[FIRST + index] = scaled(row[index], _SCALES[FIRST + index])
    out[FIRST + len(v.COLUMNS)] = default


@step_kernel
def observe_router(state, buffers, i):
    """Completes the observation of an open decision."""
    values = (v.age_of(state), float(length(state, state.pending.request)), fast_rate(state))
    for index in range(len(values)):
        buffers.cluster[i, index] = scaled(values[index], _CLUSTER_SCALES[index])
    return b.NO_KIND


@step_kernel
def answer_engine(state, buffers, i):
    """Returns the engine, and counts the request as sent to it."""
    instance = buffers.chosen[i, buffers.actions[i, 0] - b.FIXED]
    v.note_sent(state, instance, state.pending.request)
    return instance


def action_of_engine(opened: OpenDecision) -> int:
    """Returns the action for a rule's answer; the base policy's if its engine is not offered."""
    same = np.flatnonzero(opened.chosen == opened.answer)
    return b.FIXED + int(same[0]) if len(same) else b.BASE_ACTION


# --- The reward -------------------------------------------------------------------------------------------------------
LATE_FROM, LATE_OVER = 0.5, 1.0  # a predicted TTFT of half the SLO is not late, one of one and a half as good as late


@inlined
def _late(state, slot, at_ps):
    """How surely a request violates an SLO if its first token comes at a time; 0 if that is decided, or not counted."""
    request = state.requests[slot]
    if not (request.online and request.counted) or request.violated or request.generated_tokens > 0:
        return 0.0
    return share((at_ps - request.arrival_ps) / request.ttft_slo_ps - LATE_FROM, LATE_OVER)


@reading
def expected(state, instance):
    """Minus the online requests that have violated an SLO, and those predicted to: each waiting one counts as surely
    as its predicted TTFT is late, with prompts computed in order of arrival."""
    total = float(state.totals.violations)
    for each in range(state.config.relaxed_count):
        spec, at_ps = state.instances[each], float(state.clock.now_ps)
        pace_ps = predict_prefill(state, each, v.PACE_TOKENS) / v.PACE_TOKENS
        at_ps = float(spec.end_ps) if spec.activity == s.MIXING else at_ps
        for place in range(spec.running):
            slot = np.int64(state.members[s.BATCH, each, place])
            request = state.requests[slot]
            if request.urgent and request.generated_tokens == 0:
                at_ps += pace_ps * max(np.int64(0), missing(state, slot) - request.num_scheduled_tokens)
                total += _late(state, slot, at_ps)
        slot, looked = np.int64(spec.online_head), 0
        while slot >= 0:
            tokens = length(state, slot)
            if looked < v.LOOK_WAITING and state.config.prefix_caching:
                tokens -= get_computed_tokens(state, each, slot)
            at_ps += pace_ps * tokens
            total += _late(state, slot, at_ps)
            slot, looked = np.int64(state.requests[slot].next), looked + 1
    return -total


DECISION = Decision(
    "send", s.ROUTE, offer_engines, answer_engine, action_of_engine,
    question="To which engine is the online request sent?", take="send the request to this engine",
    candidates="engines", table=ROUTED, cluster=ROUTER, observe=observe_router, marks=((158, 147),))


class RoutingEnv(DecisionEnv):
    """Which of several unequal engines serves an online request, by metrics that are seconds old.

    ## Description
    A router stands before engines on different chips. It knows at once what it sends and which
    prefixes are cached, but reads the engines' metrics only once in `interval_s` seconds, so they
    are up to that old. Each episode draws questions about shared documents or chat. Published
    routers compare counts of requests, predicted latencies or prefixes (`baselines/router.py`);
    they and `learned_router` can be played as rules here, with metrics as old as the agent's. The
    base policy fills the iterations and sends offline requests. Routing among pools of prefill
    and decode is a decision of [Colocation-v1](pools.md#colocation-v1).

    The reward `expected` charges a decision for its own outcome, at once: its request counts as
    violated as surely as its predicted TTFT (by present metrics) is late, and so do those that it
    delays. What proves wrong is paid back: an episode's sum is minus its violations.

    ## Action Space
    `Discrete(2 + K)`: 0 is never legal, 1 is the base policy's engine, `2 + k` takes candidate k.

    ## Candidates
    The base policy's choice, then the engines by predicted TTFT. From `latency` to `load_pace`
    they have the features of `learned_router`.
    """

    id: ClassVar[str] = "ooco_gym/Routing-v2"
    decisions: ClassVar[tuple[Decision, ...]] = (DECISION,)
    terms: ClassVar[tuple[Term, ...]] = (Term("expected", expected),)
    default_scenario: ClassVar[str] = "routing"


register(RoutingEnv)
