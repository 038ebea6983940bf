"""The eight decision points of the event loop; environments split `compose` further
(`envs/stepping.py`).

A rule for a point is a compiled function of a `View` that returns an integer, whose meaning depends
on the point. `compose` and `pull` write their answers to `view.state.picks` and return their
number. Any rule may return `ASK`: the loop then stops, and its caller answers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numba import NumbaError, types

from ooco_gym.compile import address_of, jit
from ooco_gym.errors import UserError
from ooco_gym.sim import state as s
from ooco_gym.sim.decode import flush_all
from ooco_gym.sim.state import View, rule_at, state_at


@dataclass(frozen=True)
class DecisionPoint:
    """A decision point: its name, its index in State.pending.point, when it is reached, and valid
    answers."""

    name: str
    index: int
    when: str
    candidates: str
    answer: str


ROUTE = DecisionPoint("route", s.ROUTE,
              "a request arrives, or has been prefilled and needs an instance to decode on; skipped if only one "
              "instance is possible",
              "none: the request is view.request",
              "the index of an instance; after a prefill also WAIT (queue for memory) or STAY (decode where it is)")
INTERRUPT = DecisionPoint("interrupt", s.INTERRUPT, "an online request arrives at an instance that runs offline work",
                  "none: the online request is view.request", "KEEP, or STOP at the next layer boundary")
GATE = DecisionPoint("gate", s.GATE, "a relaxed instance without online work could start an offline prefill",
             "waiting offline requests that fit into memory, in queue order",
             "the position of the request to start, HOLD (ask again at the next step) or HOLD_UNTIL_CHANGE")
COMPOSE = DecisionPoint("compose", s.COMPOSE,
                "an instance can start its next decode step, or a mixed instance its next iteration. There the policy "
                "acts by step actions (policy/mixed.py) and its return value is ignored",
                "none: the members of view.instance",
                "ALL, or the number of slots written to state.picks. It sets instances[i].bound_ps, the predicted "
                "latency up to which the decision would be the same (0: ask at every step)")
EVICT = DecisionPoint("evict", s.EVICT, "KV memory is short", "residents that may be evicted",
              "the position of the request to evict, or DECLINE if the memory is for an online request that can wait")
PULL = DecisionPoint("pull", s.PULL, "a strict instance has composed its next step and something has changed",
             "none: the residents of the relaxed instances",
             "the number of slots written to state.picks, 0 (none suits), or FULL (no free memory). It may set "
             "instances[i].pull_wake_ps, the time of the next decision")
RETAIN = DecisionPoint("retain", s.RETAIN,
               "a request of a mixed instance with a prefix cache ends (a preempted one's blocks stay as under LRU)",
               "none: the request is view.request",
               "microseconds that its blocks are kept longer than their last use says: the block with the earliest sum "
               "is evicted first (0 for all: LRU)")
SCALE = DecisionPoint("scale", s.SCALE, "an interval of an elastic fleet is over (`scale_interval_s`), for each group",
              "none: view.instance is the group's first instance (policy/scaling.py has what is known of it)",
              "the number of its instances that are to be on or starting, within its `min` and `max`")
POINTS = (ROUTE, INTERRUPT, GATE, COMPOSE, EVICT, PULL, RETAIN, SCALE)


def hook(point: DecisionPoint, *, flushes: bool = False) -> Callable[[Callable[..., int]], Any]:
    """Compiles a rule for a decision point when a simulation first uses it; the result is cached on
    disk.

    Python code calls the compiled rule through `call_rule`.

    Args:
        point: the decision point.
        flushes: whether the rule flushes an instance (`rules.flush`) before it reads its members'
            generated tokens, lengths or memory, or which of them run. `rules.flush_totals` suffices
            for an instance's sums and `rules.gather_lengths`, not for records of requests. If any
            rule of a policy does not flush, every instance is flushed before each of its decisions,
            which takes time.
    """
    if point not in POINTS:
        raise ValueError(f"{point!r} is not one of the decision points")

    def compiled(function: Callable[..., int]) -> Any:
        rule = jit(s.HOOK_SIGNATURE, no_cpython_wrapper=True)(function)
        rule.flushes = flushes
        return rule

    return compiled


def _ask_outside(view):
    """The rule that leaves the decision to the loop's caller."""
    return s.ASK


ask_outside = jit(s.HOOK_SIGNATURE, no_cpython_wrapper=True)(_ask_outside)


@lru_cache(maxsize=1024)
def _address(rule: Any) -> int:
    try:
        return address_of(rule, s.HOOK_SIGNATURE)
    except NumbaError as error:
        code = rule.py_func.__code__
        words = [line for line in str(error).splitlines() if line.strip() and not line.startswith("Failed in ")]
        raise UserError(f"'{code.co_filename}', line {code.co_firstlineno}: the rule '{code.co_name}' cannot be "
                        f"compiled, as it must return a whole number and use what numba knows: {words[0]}") from error


def addresses(rules: Sequence[Any]) -> np.ndarray:
    """Addresses of compiled rules for the event loop: int64, one per decision point, in order."""
    return np.array([_address(rule) for rule in rules], np.int64)


def rules_of(policy: Any, outside: Collection[str] = ()) -> np.ndarray:
    """Addresses of a policy's rules for the event loop, with the points named in `outside` left to its caller:
    int64[8], and three more for mixed instances beside pools (`Policy.beside_hooks`)."""
    points = POINTS + (COMPOSE, INTERRUPT, ROUTE)[: len(policy.beside_hooks)]
    rules = zip(points, policy.hooks() + policy.beside_hooks, strict=True)
    return addresses([ask_outside if point.name in outside else rule for point, rule in rules])


def answer_of(state: s.State, policy: Any) -> int:
    """What a policy's own rules answer to the pending decision."""
    pending, beside = state.pending, policy.beside_hooks
    instance, count = int(pending.instance), int(pending.count)
    rule = policy.hooks()[int(pending.point) - 1]
    if state.config.side:
        rule = beside[int(pending.point == s.INTERRUPT)]
    answer = call_rule(state, rule, instance, int(pending.request), count)
    if beside and pending.point == s.ROUTE and state.requests["status"][pending.request] == s.FUTURE:
        answer = call_rule(state, beside[2], answer, int(pending.request), count)
    return answer


@jit(types.int64(types.int64, types.int64, types.int64, types.int64, types.int64))
def _call(handle, address, instance, request, count):
    state = state_at(handle)
    flush_all(state)
    return rule_at(address)(View(state, instance, request, state.picks[:count]))


def call_rule(state: s.State, rule: Any, instance: int, request: int, count: int) -> int:
    """Calls a compiled rule from Python as the loop does, with State.picks[:count] as candidates."""
    handle = s.handle_of(state)  # must live as long as its address is used
    return int(_call(handle.address, _address(rule), instance, request, count))
