"""Schedulers of a serving engine in plain Python, for use inside one: no numba, no simulator.

`RULES` names them. A rule's `compose(engine, belief)` answers with a `Plan`: new tokens of each request, who is
admitted, who loses its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ooco_gym.errors import UserError, unknown
from ooco_gym.runtime.rules import admitter
from ooco_gym.runtime.rules.admitter import Admitter
from ooco_gym.runtime.rules.beliefs import Fitted, Learned
from ooco_gym.runtime.rules.deadline import BOUNDS as OF_DEADLINE
from ooco_gym.runtime.rules.deadline import DEFAULTS, Deadline
from ooco_gym.runtime.rules.iteration import Belief, Engine, Iteration, Line, Plan, Request
from ooco_gym.runtime.rules.others import V1, Gate, HyGen

__all__ = ["BOUNDS", "RULES", "V1", "Admitter", "Belief", "Deadline", "Engine", "Fitted", "Gate", "HyGen", "Iteration",
           "Learned", "Line", "Plan", "Request", "Rule", "check_bounds", "make_rule"]


class Rule(Protocol):
    """A scheduler."""

    def compose(self, engine: Engine, belief: Belief) -> Plan:
        """The next iteration of an engine."""
        ...


RULES: dict[str, tuple[Callable[[Mapping[str, Any]], Rule], Mapping[str, Any]]] = {
    "admitter": (Admitter, admitter.DEFAULTS),
    "deadline": (Deadline, DEFAULTS),
    "hygen": (HyGen, HyGen.DEFAULTS),
    "gate": (Gate, Gate.DEFAULTS),
    "least_computed": (lambda values: V1({"victim": "least_computed", **values}), {}),
    "v1": (V1, V1.DEFAULTS),
}
"""Each rule by name: how it is made, and its parameters with their values."""
BOUNDS: dict[str, Mapping[str, tuple[float, float]]] = {
    "admitter": {**OF_DEADLINE, "refresh_s": (0.0, 3600.0)}, "deadline": OF_DEADLINE, "gate": OF_DEADLINE,
    "hygen": {"latency_budget_s": (0.0, 60.0), "chunk_size": (1, 1_000_000)},
}
"""By rule: least and largest value of each parameter that is a number."""


def check_bounds(rule: str, values: Mapping[str, Any]) -> None:
    """Refuses values of a rule's parameters beyond the rule's own bounds.

    Raises:
        UserError: there is one.
    """
    for name, (low, high) in BOUNDS.get(rule, {}).items():
        if name in values and not low <= values[name] <= high:
            raise UserError(f"parameter '{name}' of '{rule}' is {values[name]!r}; expected a number from "
                            f"{low:g} to {high:g}")


def make_rule(name: str, values: Mapping[str, Any] | None = None) -> Rule:
    """A rule by its name, with parameters that differ from its own.

    Raises:
        UserError: there is no such rule, no such parameter, or a value is of another kind or beyond its bounds.
    """
    if name not in RULES:
        raise unknown("rule", name, RULES)
    make, known = RULES[name]
    for key, value in (values or {}).items():
        if key not in known:
            raise unknown(f"parameter of '{name}'", key, known)
        if isinstance(known[key], str) != isinstance(value, str) or isinstance(value, bool):
            raise UserError(f"parameter '{key}' of '{name}' is {value!r}; expected a value such as {known[key]!r}")
    check_bounds(name, values or {})
    return make(dict(values or {}))
