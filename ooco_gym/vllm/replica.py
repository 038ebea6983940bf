"""The simulator's compiled rules in an engine: a `State` of one mixed instance (`Replica`) is
filled from the engine, and the rule is called as in an episode."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

import numpy as np
from numba import types

from ooco_gym.compile import jit
from ooco_gym.errors import unknown
from ooco_gym.policy.decisions import addresses
from ooco_gym.policy.engine_features import (
    HOUR,
    HOUR_ARRIVED,
    HOUR_S,
    HOUR_VIOLATED,
    NOTES,
    engine_row,
    engine_stack,
)
from ooco_gym.policy.latency_budget import GIVEN, MOST_GIVEN
from ooco_gym.policy.mixed import iteration_latency
from ooco_gym.policy.policy import Param, Policy
from ooco_gym.runtime.features import ENGINE, LOOK_OFFLINE, LOOK_ONLINE, ArrivalRates, Blocks
from ooco_gym.runtime.rules import Engine, Plan, Request, Rule
from ooco_gym.sim import state as s
from ooco_gym.sim.memory import MEAN_WEIGHT
from ooco_gym.sim.queues import add_member, enqueue
from ooco_gym.vllm.beliefs import Belief

FIELDS = 12
ONLINE, PLACE, PROMPT, MADE, COMPUTED, BLOCKS, ARRIVAL_S, TTFT_S, TPOT_S, FIRST_S, CACHED, SHARED = range(FIELDS)
NUMBERS = 9
REQUESTS, NOW_S, FREE, TOTAL, BLOCK, SEATS, TOKENS, TPOT, LOOKED_UP = range(NUMBERS)
DUE_PROMPTS = 16  # waiting online requests that rules always examine
NOTHING = (0, 0, 0)
PRIOR_OUTPUT = 512.0  # tokens: assumed mean output before any has ended, as in conf/protocol
ORDER, PACK = attrgetter("order"), struct.Struct(f"{FIELDS}d").pack_into
_SLOTS = slice(GIVEN, GIVEN + MOST_GIVEN)  # entries of State.memory that hold slots
START_S = 1e5  # start of a replica's clock, so that earlier events have positive times
LONGEST_S = 1e6  # where the clock restarts


@jit(types.void(types.int64, types.Array(types.float64, 2, "C"), types.Array(types.float64, 1, "C")))
def _load(handle, rows, numbers):
    """Fills a state from an engine: its requests as `FIELDS`, in the order of slots, and its other values."""
    state = s.state_at(handle)
    spec, config = state.instances[0], state.config
    state.clock.now_ps = round(numbers[NOW_S] * s.PS_PER_S)
    state.queues.evicted = 0
    config.block_tokens, config.max_num_seqs = np.int64(numbers[BLOCK]), np.int64(numbers[SEATS])
    config.max_num_batched_tokens = np.int64(numbers[TOKENS])
    config.default_tpot_ps = round(numbers[TPOT] * s.PS_PER_S)
    config.prefix_caching = s.LOOKED_UP if numbers[LOOKED_UP] > 0.0 else 0
    spec.free_blocks, spec.total_blocks = np.int64(numbers[FREE]), np.int64(numbers[TOTAL])
    spec.online_head, spec.online_tail, spec.offline_head, spec.offline_tail = -1, -1, -1, -1
    spec.online_waiting, spec.online_waiting_tokens, spec.offline_waiting, spec.offline_waiting_tokens = 0, 0, 0, 0
    spec.running, spec.urgent_members, spec.offline_members = 0, 0, 0
    for slot in range(np.int64(numbers[REQUESTS])):
        row, request = rows[slot], state.requests[slot]
        request.online, request.urgent = np.int8(row[ONLINE]), np.int8(row[ONLINE])
        request.prompt_tokens, request.generated_tokens = np.int32(row[PROMPT]), np.int32(row[MADE])
        request.num_computed_tokens, request.blocks = np.int32(row[COMPUTED]), np.int32(row[BLOCKS])
        request.arrival_ps = round(row[ARRIVAL_S] * s.PS_PER_S)
        request.ttft_slo_ps, request.tpot_slo_ps = round(row[TTFT_S] * s.PS_PER_S), round(row[TPOT_S] * s.PS_PER_S)
        request.first_token_ps = round(row[FIRST_S] * s.PS_PER_S)
        request.num_scheduled_tokens, request.kv_lost, request.evictions = 0, 0, 0
        request.instance, request.cached_tokens = 0, -1
        owned = state.owned[slot]
        owned[0], owned[1], owned[2] = 0, 0, 0
        if row[PLACE] >= 0.0:
            request.status = s.RESIDENT
            state.members[s.BATCH, 0, np.int64(row[PLACE])] = slot
            spec.running += 1
        else:
            owned[0], owned[1], owned[2] = np.int32(row[CACHED]), np.int32(row[SHARED]), np.int32(row[BLOCKS])
            request.blocks = 0
            request.status = s.WAITING
            enqueue(state, 0, slot, False)
    for place in range(spec.running):
        add_member(state, 0, state.members[s.BATCH, 0, place])


@jit(types.int64(types.int64, types.int64, types.Array(types.float64, 1, "C"), types.Array(types.int64, 1, "C")))
def _compose(handle, rule, memory, out):
    """Calls a rule with its `memory`; returns the predicted latency in ps.

    Writes to `out` the numbers of running and preempted requests, then the running slots, their
    tokens, and the preempted slots.
    """
    state = s.state_at(handle)
    for place in range(memory.size):
        state.memory[0, place] = memory[place]
    s.rule_at(rule)(s.View(state, 0, -1, state.picks[:0]))
    running, lost = state.instances[0].running, state.queues.evicted
    for place in range(running):
        slot = np.int64(state.members[s.BATCH, 0, place])
        out[2 + place] = slot
        out[2 + running + place] = state.requests[slot].num_scheduled_tokens
    for place in range(lost):
        out[2 + 2 * running + place] = state.evicted[place]
    out[0], out[1] = running, lost
    return iteration_latency(state, 0)


@jit(types.void(types.int64, types.Array(types.float64, 1, "C"), types.float64, types.float64, types.float64,
                types.Array(types.float64, 1, "C")))
def _observe(handle, notes, budget, arrived, violated, out):
    """Writes the engine's features to `out`."""
    row = engine_stack()
    engine_row(s.state_at(handle), 0, (budget, arrived, violated), notes, row)
    for index in range(out.size):
        out[index] = row[index]


class Replica:
    """Simulator state of one mixed instance, filled from the engine before each decision."""

    def __init__(self, policy: Policy | None = None) -> None:
        self._params = np.zeros(s.RULE_PARAMS)
        self._rule, self._settings, self._tokens = 0, {}, None
        if policy is not None:
            names = [param.name for param in policy.params]
            self._tokens = names.index("max_num_batched_tokens") if "max_num_batched_tokens" in names else None
            self._rule, self._settings = int(addresses([policy.compose])[0]), policy.settings()
        self._growth = names.index("growth") if policy is not None and "growth" in names else None
        self._made: dict[Any, tuple[bool, int]] = {}  # class and outputs of requests that ran last
        self._means = {True: PRIOR_OUTPUT, False: PRIOR_OUTPUT}  # mean outputs of finished requests, by class
        self._memory = np.zeros(s.MEMORY)  # the rule's, between iterations
        self._given: list[Any] = []  # requests in its memory, by entry
        self._size, self._seats, self._numbers = -1, 0, np.zeros(NUMBERS)
        self._origin_s, self._priced = math.nan, None

    def set(self, params: np.ndarray) -> None:
        """Sets the rule's parameters, float64[RULE_PARAMS]."""
        self._params, self._size = params, -1

    @property
    def _grows(self) -> bool:
        """Whether the rule uses the mean outputs of finished requests."""
        return self._growth is not None and self._params[self._growth] > 0.0

    def compose(self, engine: Engine, belief: Belief) -> Plan:
        """Calls the rule for an engine's next iteration.

        Waiting requests are described, and looked up in the prefix cache, a few at a time: while
        all of them are admitted, the rule is called again with more.
        """
        count, heads = {True: DUE_PROMPTS, False: LOOK_OFFLINE}, (engine.online.peek(), engine.offline.peek())
        cached = any(head is not None and head.look_up is not None for head in heads)
        looked = {True: 1, False: 1} if cached else dict(count)
        while True:
            lines = {True: engine.online.first(count[True]), False: engine.offline.first(count[False])}
            plan, entered = self._asked(engine, belief, lines, looked)
            again = [online for online, line in lines.items() if entered[online] >= looked[online]
                     and (len(line) > looked[online] or len(line) == count[online])]
            if not again:
                self._keep()
                if self._grows:  # an admitted request may end before it is seen running
                    self._made.update((one.id, (one.online, one.num_output_tokens)) for one in self._requests
                                      if one.id in plan.tokens)
                return plan
            for online in again:
                looked[online] *= 4
                count[online] = max(count[online], looked[online])

    def _asked(self, engine: Engine, belief: Belief, lines: Mapping[bool, list[Request]], looked: Mapping[bool, int]
               ) -> tuple[Plan, dict[bool, int]]:
        """Returns a plan, and the number of waiting requests of each class that it admits."""
        places = self.load(engine, belief, lines, looked)
        if self._given:
            slots = {request.id: slot + 1 for slot, request in enumerate(self._requests)}
            self._memory[_SLOTS] = [slots.get(name, 0) for name in self._given]
        predicted_ps, out = _compose(self._handle.address, self._rule, self._memory, self._out), self._out
        running, lost = out[:2].tolist()
        found = out[2 : 2 + 2 * running + lost].tolist()
        tokens, admitted, entered = {}, [], {True: 0, False: 0}
        evicted = dict.fromkeys(found[2 * running :])
        for slot, new in zip(found, found[running : 2 * running], strict=False):
            if new:
                request = self._requests[slot]
                tokens[request.id] = new
                if places[slot] < 0 or slot in evicted:
                    admitted.append(request.id)
                    entered[request.online] += places[slot] < 0
        preempted = [self._requests[slot].id for slot in evicted if places[slot] >= 0]
        return Plan(tokens, admitted, preempted, predicted_ps / s.PS_PER_S), entered

    def _keep(self) -> None:
        """Keeps the rule's memory, with request ids in place of slots, which change between iterations."""
        self._memory[:] = self._state.memory[0]
        slots = self._memory[_SLOTS].tolist()
        self._given = [self._requests[int(slot) - 1].id if slot > 0.0 else None for slot in slots] if any(slots) else []

    def observe(self, engine: Engine, belief: Belief, rates: ArrivalRates, blocks: Blocks, budget: float) -> np.ndarray:
        """Returns the engine's features for a learned policy (`features.ENGINE`), float32, scaled.

        Args:
            engine: before its next iteration.
            belief: predicts its latencies.
            rates: of its online arrivals.
            blocks: online arrivals and violations.
            budget: the share of online requests that may violate.
        """
        lines = {True: engine.online.first(LOOK_ONLINE), False: engine.offline.first(LOOK_OFFLINE)}
        self.load(engine, belief, lines, {True: 0, False: LOOK_OFFLINE})
        state, spec, now_s = self._state, self._state.instances[0], engine.now_s - self._origin_s
        (spec["online_waiting"], spec["online_waiting_tokens"], spec["offline_waiting"],
         spec["offline_waiting_tokens"]) = engine.num_waiting
        observed, clock = state.observed, state.clock
        clock.last_online_arrival_ps = round((rates.last_s - self._origin_s) * s.PS_PER_S)
        (observed.online_rate_fast, observed.online_rate_minute, observed.online_rate_slow,
         observed.online_rate_half_hour) = rates.rates.values()
        (arrived, missed), (in_hour, missed_in_hour) = blocks.counts(engine.now_s)
        notes, out = np.zeros(NOTES), np.zeros(len(ENGINE))
        notes[HOUR], notes[HOUR_ARRIVED], notes[HOUR_VIOLATED] = now_s // HOUR_S + 1.0, -in_hour, -missed_in_hour
        _observe(self._handle.address, notes, budget, -float(arrived), -float(missed), out)
        return out.astype(np.float32)

    def load(self, engine: Engine, belief: Belief, lines: Mapping[bool, list[Request]], looked: Mapping[bool, int]
             ) -> list[int]:
        """Fills the state from an engine; returns each slot's index among the running requests, or
        -1.

        Args:
            engine: before its next iteration.
            belief: predicts its latencies.
            lines: the first waiting requests, by class.
            looked: number of these to look up in the prefix cache.
        """
        running = {request.id: place for place, request in enumerate(engine.running)}
        found = {one.id: one.look_up() for online, line in lines.items() for one in line[: looked[online]]
                 if one.look_up is not None}
        self._requests = self._in_order(engine, lines)
        self._fit(len(self._requests), max(engine.max_num_seqs, len(engine.running)), belief)
        if not 0.0 <= engine.now_s - self._origin_s < LONGEST_S:  # NaN at first
            self._origin_s = engine.now_s - START_S
            self._memory[:] = 0.0
        origin_s, places, rows, start = self._origin_s, [], self._rows.data, 0
        cached, shared, idle = NOTHING
        for one in self._requests:
            place, first_s, made = running.get(one.id, -1), one.first_token_s, one.num_output_tokens
            if found:
                cached, shared, idle = found.get(one.id, NOTHING)
            places.append(place)
            if made and first_s is None:  # in flight, arrives as this iteration begins (asynchronous scheduling)
                first_s = engine.now_s
            PACK(rows, start, one.online, place, one.num_tokens - made, made, one.num_computed_tokens,
                 one.blocks if place >= 0 else idle, one.arrival_s - origin_s, one.ttft_slo_s, one.tpot_slo_s,
                 0.0 if first_s is None else first_s - origin_s, cached, shared)
            start += 8 * FIELDS
        self._numbers[:] = (len(places), engine.now_s - origin_s, engine.free_blocks, engine.total_blocks,
                            engine.block_size, engine.max_num_seqs, engine.max_num_batched_tokens, engine.tpot_slo_s,
                            len(found))
        _load(self._handle.address, self._rows, self._numbers)
        if self._grows:
            self._see_outputs(engine)
        if self._tokens is not None:
            self._state.params[self._tokens] = min(self._params[self._tokens], engine.max_num_batched_tokens)
        return places

    def _see_outputs(self, engine: Engine) -> None:
        """Updates the mean outputs of finished requests (the simulator's `observed`): those that
        ran before, and now neither run nor wait."""
        now = {one.id: (one.online, one.num_output_tokens) for one in engine.running}
        there = {request.id for request in self._requests}
        for name, (online, made) in self._made.items():
            if name not in there:  # its last token came in the previous iteration
                self._means[online] += MEAN_WEIGHT * (made + 1 - self._means[online])
        self._made = now
        observed = self._state.observed
        observed.online_output_mean, observed.offline_output_mean = self._means[True], self._means[False]

    def _in_order(self, engine: Engine, lines: Mapping[bool, list[Request]]) -> list[Request]:
        """Returns requests by class in waiting order; under a rule's own order, running offline ones last."""
        online = [*lines[True], *(one for one in engine.running if one.online)]
        offline = [one for one in engine.running if not one.online]
        online.sort(key=ORDER)
        if engine.offline.ranked:
            return [*online, *lines[False], *sorted(offline, key=ORDER)]
        return online + sorted([*lines[False], *offline], key=ORDER)

    def _fit(self, size: int, seats: int, belief: Belief) -> None:
        """Makes room for `size` requests, and takes over the belief's terms."""
        if size > self._size or seats > self._seats or belief.terms.tokens + 1 != self._state.prefill_ps.shape[1]:
            self._size, self._seats = 2 * size, seats
            state = s.empty_state(2 * size, 1, 1, 1, 1, max(seats, s.LEVELS) + 1, belief.terms.tokens + 1, 8 * size,
                                  s.OptionalSizes(owners=2 * size))
            state.requests["row"], state.config.relaxed_count = -1, 1
            state.requests["output_tokens"] = np.iinfo(np.int32).max  # no last token is in flight
            state.params[:] = self._params
            for name, value in self._settings.items():
                setattr(state.config, name, value)
            self._state, self._handle, self._priced = state, s.handle_of(state), None
            self._rows, self._out = np.zeros((2 * size, FIELDS)), np.zeros(2 + 2 * seats + 8 * size, np.int64)
        if self._priced is not belief.terms:
            belief.fill(self._state)
            self._priced = belief.terms


# --- A rule ---------------------------------------------------------------------------------------------------------
class Compiled(Rule):
    """A policy of the simulator in an engine.

    Attributes:
        name: of the rule.
        values: its parameters.
    """

    extra: tuple[Param, ...] = ()  # parameters besides the policy's

    def __init__(self, name: str, policy: Policy) -> None:
        self.name, self._policy = name, policy
        self._known = {param.name: param for param in (*policy.params, *self.extra)
                       if not param.choices or param in self.extra}
        own = {**{param.name: param.default for param in self.extra}, **policy.values}
        self.values: dict[str, Any] = {one: own[one] for one in self._known}
        self._replica = Replica(policy)

    def check(self, values: Mapping[str, Any]) -> None:
        """Checks values of parameters.

        Raises:
            UserError: an unknown parameter, or an impossible value.
        """
        for key, value in values.items():
            if key not in self._known:
                raise unknown(f"parameter of '{self.name}'", key, self._known)
            self._known[key].number(value, f"rule '{self.name}'")

    def adjust(self, values: Mapping[str, float]) -> None:
        """Sets parameters to a learned policy's values; integer parameters are truncated, as in rules."""
        self.set({key: int(value) if key in self._known and self._known[key].whole else value
                  for key, value in values.items()})

    def set(self, values: Mapping[str, Any]) -> None:
        """Sets and checks some of the parameters."""
        self.check(values)
        self.values.update(values)
        extra = {param.name for param in self.extra}
        policy = self._policy.with_values({key: self.values[key] for key in self._known if key not in extra})
        self._replica.set(policy.vector())

    def compose(self, engine: Engine, belief: Belief) -> Plan:
        return self._replica.compose(engine, belief)
