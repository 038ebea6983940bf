"""Further rules in plain Python: vLLM's own order with another choice of victims, HyGen's budget, a gate.

`V1` restates vLLM's schedule as `ooco_gym.policy.mixed` does, so that who loses memory can be chosen. `HyGen` keeps the
two phases and the latency budget of its paper (arXiv 2501.14808, algorithms 1 and 2); its predictor is the engine's
belief instead of Equation 1, a running prompt never overtakes another, and prefix sharing is left to the engine.
`Gate` admits offline prompts as OOCO's relaxed instances do: while no online prompt waits and a decode step of all that
runs stays within the TPOT SLO.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ooco_gym.runtime.rules import deadline
from ooco_gym.runtime.rules.iteration import NEVER, Belief, Engine, Iteration, Limits, Plan, Request, Rule


class V1(Rule):
    """vLLM's V1 schedule by class: what runs first, then, unless a request was preempted, what waits.

    Parameters: `victim`, whose memory a running request takes that lacks a block: `last`, the offline request that
    arrived last (vLLM by priority), or `least_computed`, the one with the fewest computed tokens, offline ones first.
    """

    DEFAULTS: ClassVar = {"victim": "last"}

    def compose(self, engine: Engine, belief: Belief) -> Plan:
        """The next iteration."""
        it, sums = Iteration(engine, belief), belief.none
        left = self._continue_running(it, engine.max_num_batched_tokens)
        while left > 0 and not it.preempted:
            request = engine.online.peek() or engine.offline.peek()
            if request is None or not it.fits_whole(request):
                break
            left -= it.admit(request, left)
        for request in it.running:
            if request.num_scheduled_tokens:
                reach = request.num_computed_tokens + request.num_scheduled_tokens
                sums = belief.add(sums, request.num_scheduled_tokens, reach, reach == request.num_tokens)
        return it.plan(belief.latency(sums))

    def _continue_running(self, it: Iteration, left: int) -> int:
        index = 0
        while index < len(it.running) and left > 0:
            request = it.running[index]
            tokens = min(request.missing, left)
            while not it.allocate_slots(request, tokens):
                victim = self._victim(it.running)
                left += it.running[victim].num_scheduled_tokens
                mine = it.running[victim] is request
                it.preempt(victim)
                if mine:
                    return left
                index -= victim < index
            left, index = left - tokens, index + 1
        return left

    def _victim(self, running: list[Request]) -> int:
        """Place of the request that gives way."""
        places = range(len(running))
        if self.values["victim"] == "least_computed":
            return min(places, key=lambda i: (running[i].online, running[i].num_computed_tokens))
        return max(places, key=lambda i: (not running[i].online, running[i].arrival_s))


class LeastComputed(V1):
    """`V1` with the victim `least_computed`."""

    DEFAULTS: ClassVar = {}

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        super().__init__({"victim": "least_computed"})


class HyGen(Rule):
    """HyGen: online requests with the whole token budget, then offline ones within a latency budget.

    Parameters: `latency_budget_s`, predicted latency up to which an iteration is filled; `chunk_size`, its new tokens.
    """

    DEFAULTS: ClassVar = {"latency_budget_s": 0.05, "chunk_size": 512}
    BOUNDS: ClassVar = {"latency_budget_s": (0.0, 60.0), "chunk_size": (1, 1_000_000)}

    def compose(self, engine: Engine, belief: Belief) -> Plan:
        """The next iteration."""
        budget = self.values["latency_budget_s"]
        tokens = min(int(self.values["chunk_size"]), engine.max_num_batched_tokens)
        return Iteration(engine, belief).fill(Limits(NEVER, budget, budget, tokens, 1, 1, 0, budget))


class Gate(Rule):
    """Offline prompts enter while no online prompt is pending and all decodes together keep the TPOT SLO.

    Parameters: `tpot_share`, up to which share of the TPOT SLO the decode step may grow; `headroom_share`, share of the
    KV blocks that stays free when an offline request enters.
    """

    DEFAULTS: ClassVar = {"tpot_share": 0.9, "headroom_share": 0.05}
    BOUNDS: ClassVar = {name: deadline.BOUNDS[name] for name in DEFAULTS}

    def compose(self, engine: Engine, belief: Belief) -> Plan:
        """The next iteration."""
        pending = any(request.online and not request.decodes for request in engine.running)
        pending = pending or engine.online.peek() is not None
        sums = belief.none
        for request in engine.running:
            sums = belief.add(sums, 1, request.num_tokens, True)
        shut = pending or (sums[0] > 0 and belief.latency(sums) > self.values["tpot_share"] * engine.tpot_slo_s)
        headroom = int(self.values["headroom_share"] * engine.total_blocks)
        return Iteration(engine, belief).fill(Limits(
            NEVER, NEVER, 0.0 if shut else NEVER, engine.max_num_batched_tokens, 1, 1, headroom))
