"""Schedulers of a serving engine in plain Python, for use inside one: no numba, no simulator.

`RULES` names them. A rule's `compose(engine, belief)` answers with a `Plan`: new tokens of each request, who is
admitted, who loses its memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ooco_gym.errors import UserError, unknown
from ooco_gym.runtime.rules.admitter import Admitter
from ooco_gym.runtime.rules.beliefs import Fitted, Learned
from ooco_gym.runtime.rules.deadline import Deadline
from ooco_gym.runtime.rules.iteration import Belief, Engine, Iteration, Line, Plan, Request, Rule
from ooco_gym.runtime.rules.others import V1, Gate, HyGen, LeastComputed

__all__ = ["RULES", "V1", "Admitter", "Belief", "Deadline", "Engine", "Fitted", "Gate", "HyGen", "Iteration", "Learned",
           "Line", "Plan", "Request", "Rule", "check_bounds", "make_rule"]

RULES: dict[str, type[Rule]] = {"admitter": Admitter, "deadline": Deadline, "hygen": HyGen, "gate": Gate,
                                "least_computed": LeastComputed, "v1": V1}


def check_bounds(rule: str, values: Mapping[str, Any]) -> None:
    """Refuses values of a rule's parameters beyond the rule's own bounds.

    Raises:
        UserError: there is one.
    """
    for name, (low, high) in RULES[rule].BOUNDS.items() if rule in RULES else ():
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
    known = RULES[name].DEFAULTS
    for key, value in (values or {}).items():
        if key not in known:
            raise unknown(f"parameter of '{name}'", key, known)
        if isinstance(known[key], str) != isinstance(value, str) or isinstance(value, bool):
            raise UserError(f"parameter '{key}' of '{name}' is {value!r}; expected a value such as {known[key]!r}")
    check_bounds(name, values or {})
    return RULES[name](values)
