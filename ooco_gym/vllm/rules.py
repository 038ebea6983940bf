"""Our rules for an engine: policies of conf/policy, and a few for a real engine only.

Actions that an engine lacks (swapping, routing, the order by prefix) have no parameters here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ooco_gym.compile import inner
from ooco_gym.errors import unknown
from ooco_gym.perf.latency import NO_SUMS, add_to_sums, sums_latency
from ooco_gym.policy.decisions import COMPOSE, hook
from ooco_gym.policy.latency_budget import FillLimits, decodes, fill, fill_least
from ooco_gym.policy.mixed import VICTIMS, admit_waiting, continue_running
from ooco_gym.policy.policy import Param, Policy, slots
from ooco_gym.policy.registry import get_policy
from ooco_gym.sim import state as s
from ooco_gym.sim.costs import length
from ooco_gym.sim.engine_versions import ENGINE_VERSIONS, engine_version_of
from ooco_gym.vllm.admitter import Admitter
from ooco_gym.vllm.replica import Compiled

HYGEN = (Param("latency_budget_s", "predicted latency up to which an iteration is filled", 0.0, 60.0, default=0.05),
         Param("chunk_size", "new tokens of an iteration", 1, 1_000_000, default=512))
GATE = (Param("tpot_share", "share of the TPOT SLO that a decode step may take", 0.1, 2.0, default=0.9),
        Param("headroom_share", "share of the KV blocks left free when an offline request is admitted", 0.0, 1.0,
              default=0.05))
H, G = slots(HYGEN), slots(GATE)


@inner
def _filled(state, instance, decode_ps, offline_ps, tokens, headroom):
    """Fills an iteration, online work without a latency limit; returns its tokens."""
    one = np.int64(1)
    tokens = min(np.int64(tokens), state.config.max_num_batched_tokens)
    limits = FillLimits(np.int64(s.NEVER), np.int64(decode_ps), np.int64(offline_ps), tokens, one, one,
                        np.int64(headroom), np.int64(0), np.int64(s.RECOMPUTE))
    found = fill(state, instance, limits)
    return found if found > 0 else fill_least(state, instance, limits.tokens, limits.how)


@hook(COMPOSE)
def within_budget(view):
    """HyGen's two phases (arXiv 2501.14808, algorithms 1 and 2), with the engine's belief as
    predictor.

    Online requests have the whole token budget, then offline ones fill a latency budget. A running
    prompt never overtakes another, and prefix sharing is left to the engine.
    """
    p = view.state.params
    budget_ps = np.int64(p[H.latency_budget_s] * s.PS_PER_S)
    return _filled(view.state, view.instance, budget_ps, budget_ps, p[H.chunk_size], 0)


@hook(COMPOSE)
def gated(view):
    """Admits offline prompts as OOCO's relaxed instances do: while no online prompt is pending, and
    a decode step of all running requests keeps the TPOT SLO."""
    state, instance, p = view.state, view.instance, view.state.params
    spec, sums = state.instances[instance], NO_SUMS
    pending = spec.online_head >= 0
    for place in range(spec.running):
        slot = np.int64(state.members[s.BATCH, instance, place])
        pending |= state.requests[slot].urgent and not decodes(state, slot)
        sums = add_to_sums(state, spec.belief, sums, np.int64(1), length(state, slot), True)
    shut = pending or (sums[0] > 0 and
                       sums_latency(state, spec.belief, sums) > p[G.tpot_share] * state.config.default_tpot_ps)
    return _filled(state, instance, s.NEVER, 0 if shut else s.NEVER, s.NEVER,
                   p[G.headroom_share] * spec.total_blocks)


@hook(COMPOSE)
def schedule_once(view):
    """vLLM's V1 schedule, as `policy.mixed.schedule_v1`, but an iteration that only preempts counts as one."""
    budget, preempted = continue_running(view.state, view.instance, view.state.config.max_num_batched_tokens)
    if preempted == 0:
        budget = admit_waiting(view.state, view.instance, budget, 0.0)
    return view.state.config.max_num_batched_tokens - budget


def _by_priority(preempt: str) -> Policy:
    """Returns vLLM's priority schedule, of the release that runs here."""
    engine, version = sys.modules.get("vllm"), ENGINE_VERSIONS[0]
    if engine is not None:
        version = engine_version_of(engine.__version__)
    params = (Param("preempt", "which running request is preempted", choices=VICTIMS, default=preempt),
              Param("engine_version", "engine whose schedule is used", choices=ENGINE_VERSIONS, default=version))
    return Policy("v1", params, mixed=True, compose=schedule_once)


def _deadline() -> Policy:
    """Returns `deadline` without its last parameter, `aging_s`: the simulator's loop changes a request's class."""
    whole = get_policy("deadline")
    *others, last = whole.params
    if last.name != "aging_s":
        raise AssertionError("deadline's aging_s must come last: the plug-in's parameters are those before it")
    return replace(whole, params=tuple(others))


RULES: dict[str, Callable[[], Policy]] = {
    "admitter": _deadline, "deadline": _deadline,
    "hygen": lambda: Policy("hygen", HYGEN, mixed=True, compose=within_budget),
    "gate": lambda: Policy("gate", GATE, mixed=True, compose=gated),
    "least_computed": lambda: _by_priority("least_computed_of_class"), "v1": lambda: _by_priority("last")}


def make_rule(name: str, values: Mapping[str, Any] | None = None) -> Compiled:
    """Returns a rule by name, with some parameters changed.

    Raises:
        UserError: an unknown rule or parameter, or a value of the wrong type or out of bounds.
    """
    if name not in RULES:
        raise unknown("rule", name, RULES)
    rule = (Admitter if name == "admitter" else Compiled)(name, RULES[name]())
    rule.set(values or {})
    return rule
