"""The search space: a policy's parameters (numbers within ranges, and choices), or the weights of its learned rule.

A candidate of `train agent=cma` is a vector of numbers of similar scale; 0 is exactly the default policy. A parameter
reaches the ends of its range at -1 and 1, linearly or by ratio. The values of a choice have equal parts of -1 to 1. A
weight is the default plus `weight_scale` times its number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from ooco_gym.errors import UserError, nearest, unknown
from ooco_gym.policy import Param, Policy
from ooco_gym.schema import is_number
from ooco_gym.study.population import Candidate

# Parameters that no search changes: the machine's and its clients', and what policies fit or profile by themselves.
FIXED = ("hint_error", "layer_resume", "prefix_caching", "swap_overlap", "bidirectional", "reserved_blocks",
         "engine_version", "profile_seed", "profile_windows", "profile_duration_s", "profile_steps")
_FROM_ONE = 100.0  # ranges of whole numbers whose ends are further apart than this factor begin at 1
_DIGITS = 4  # significant digits of a searched number, so that results can be read and typed


@dataclass(frozen=True)
class Interval:
    """A number that is searched from `low` to `high`; `whole`: an integer; `default`: its value before the search."""

    name: str
    default: Any
    low: float
    high: float
    whole: bool

    def at(self, number: float) -> Any:
        """Maps a candidate's number to a value: the default at 0, the ends of the range at -1 and 1."""
        share, end = min(abs(number), 1.0), self.high if number > 0 else self.low
        if share == 0.0:
            return self.default
        if min(self.default, end) > 0:  # by ratio: half of a value is as far as twice of it
            value = self.default * (end / self.default) ** share
        else:
            value = self.default + share * (end - self.default)
        rounded = round(value) if self.whole else float(f"{value:.{_DIGITS}g}")
        return min(max(rounded, self.low), self.high)

    @property
    def ends(self) -> tuple[float, float]:
        """The lowest and the highest number that changes the value."""
        return -float(self.default > self.low), float(self.default < self.high)


@dataclass(frozen=True)
class Choice:
    """A parameter that takes one of a few values; `default` is its value before the search."""

    name: str
    default: Any
    values: tuple[Any, ...]
    ends: tuple[float, float] = (-1.0, 1.0)

    def at(self, number: float) -> Any:
        """Maps a candidate's number to a value: all have equal parts of -1 to 1, the default's around 0."""
        parts = [value for value in self.values if value != self.default]
        parts.insert(len(self.values) // 2, self.default)
        return parts[min(max(int((number + 1) / 2 * len(parts)), 0), len(parts) - 1)]


def ranges_of(policy: Policy, settings: Mapping[str, Any]) -> tuple[list[Interval | Choice], dict[str, str]]:
    """Returns the parameters of a policy that are searched by `params`, `space` and `spread` of conf/agent/cma.yaml,
    and why the others are not.

    Raises:
        UserError: an unknown name, or an invalid range.
    """
    known = {param.name: param for param in policy.params}
    for name in (*(settings["space"] or {}), *(settings["params"] or ())):
        if name not in known:
            raise unknown("parameter", name, known)
    each = {name: _range_of(policy, param, settings) for name, param in known.items()}
    return ([one for one in each.values() if not isinstance(one, str)],
            {name: why for name, why in each.items() if isinstance(why, str)})


def _range_of(policy: Policy, param: Param, settings: Mapping[str, Any]) -> Interval | Choice | str:
    """How a parameter is searched, or the reason why it is not."""
    name, asked, given = param.name, settings["params"], settings["space"] or {}
    if asked is not None and name not in asked:
        return "not requested"
    if name in FIXED and name not in given:
        return "kept"
    choices = param.choices or ((0, 1) if param.whole and (param.low, param.high) == (0, 1) else ())
    if choices:
        if name in given:
            raise UserError(f"agent.space.{name}: {name} is a choice among {', '.join(map(str, choices))} and has no "
                            "range; name it in agent.params alone")
        if asked is None:
            return "a choice, searched only if agent.params names it"
        return Choice(name, choices[int(param.number(policy.values[name], policy.name))], choices)
    default: Any = policy.values.get(name)
    if not is_number(default):
        return "no initial value"
    one = _given(param, default, given[name]) if name in given else _around(param, default, float(settings["spread"]))
    if one is None or (one.high <= one.low and asked is None):
        return "no range: give one in agent.space"
    if default != 0 and not one.low <= default <= one.high:  # 0: found by itself
        raise UserError(f"agent.space.{name}: {one.low:g} to {one.high:g} does not hold {default}, the default at "
                        "which the search starts")
    return one


def _around(param: Param, default: Any, spread: float) -> Interval | None:
    """A range around the default; None if the number has no scale."""
    if param.usual is not None and (default == 0 or param.low < 0):
        return _scaled(param, default, *param.usual)
    if default < 0 or (default == 0 and param.high > spread):
        return None  # such as -1 or 0 for "found by itself"
    low, high = (param.low, param.high) if default == 0 else (default / spread, default * spread)
    return _scaled(param, default, max(low, param.low), min(high, param.high))


def _scaled(param: Param, default: Any, low: float, high: float) -> Interval:
    if param.whole:
        low, high = int(low), int(high)
        low = max(low, 1) if high > _FROM_ONE * low else low
    return Interval(param.name, default, low, high, param.whole)


def _given(param: Param, default: Any, value: Any) -> Interval:
    ends = list(value) if isinstance(value, (list, tuple)) else []
    if len(ends) != 2 or not all(map(is_number, ends)) or ends[0] >= ends[1]:
        raise UserError(f"agent.space.{param.name}={value!r} must be [low, high]")
    for end in ends:
        param.number(end, f"agent.space.{param.name}")
    return _scaled(param, default, *ends)


@dataclass(frozen=True)
class Space:
    """A candidate's n numbers: parameters (`ranges`) first, then weights (`places` in `policy.weights`).

    They are those of `policy.searched`. `names` are the parameters' and `row:column` of weights; `left` says why other
    parameters are not searched.
    """

    policy: Policy
    ranges: tuple[Interval | Choice, ...]
    places: np.ndarray
    names: tuple[str, ...]
    left: Mapping[str, str]
    weight_scale: float

    @property
    def bounds(self) -> np.ndarray | None:
        """Low and high of each number, float64[n, 2]; None if there are no bounds."""
        unbounded = [(-np.inf, np.inf)] * len(self.places)
        return np.array([one.ends for one in self.ranges] + unbounded) if self.ranges else None

    def candidate(self, numbers: np.ndarray) -> Candidate:
        """Returns the policy and weights of a vector float64[n]."""
        searched = self.policy.searched
        values = {one.name: one.at(float(number)) for one, number in zip(self.ranges, numbers, strict=False)}
        changed = {one.name: values[one.name] for one in self.ranges if values[one.name] != one.default}
        mine = searched.with_values(changed) if changed else searched
        policy, weights = mine if searched is self.policy else replace(self.policy, kept_by=mine), searched.weights
        if weights is not None and len(self.places):
            weights = weights.copy()
            weights[self.places] += self.weight_scale * numbers[len(self.ranges):]
        return Candidate(policy, weights)


def space_of(policy: Policy, settings: Mapping[str, Any]) -> Space:
    """Returns the search space for `settings` (as in conf/agent/cma.yaml); if `params` and `weights` are null, it has
    the weights of a policy with weights, or else its parameters.

    Raises:
        UserError: an unknown parameter or weight, or nothing to search.
    """
    searched = policy.searched
    names, places = _weights_of(searched, settings)
    ranges, left = ranges_of(searched, settings) if settings["params"] is not None or not places else ([], {})
    if not ranges and not places:
        raise UserError(f"policy '{searched.name}' has no parameter to search; choose another policy, or name "
                        "parameters in agent.params with a range in agent.space")
    return Space(policy, tuple(ranges), np.array(places, np.int64),
                 (*(one.name for one in ranges), *(names[place] for place in places)), left,
                 float(settings["weight_scale"]))


def _weights_of(policy: Policy, settings: Mapping[str, Any]) -> tuple[list[str], list[int]]:
    """The names of a policy's weights, and the indices of those that `weights` searches.

    Raises:
        UserError: the policy has no weights, or a pattern matches none.
    """
    layout, patterns = policy.layout, settings["weights"]
    names = [] if layout is None else [f"{row}:{column}" for row in layout.rows for column in layout.columns]
    if patterns is None:
        patterns = ["*"] if names and settings["params"] is None else []
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    if patterns and layout is None:
        raise UserError(f"agent.weights={patterns}: policy '{policy.name}' has no weights; leave it out, or choose a "
                        "policy with weights, such as adaptive_deadline")
    places: set[int] = set()
    for pattern in patterns:
        mine = [place for place, name in enumerate(names) if fnmatchcase(name, pattern)]
        if not mine:
            raise UserError(f"agent.weights: '{pattern}' names no weight of policy "
                            f"'{policy.name}'{nearest(pattern, names)}; expected row:column, where * matches any text: "
                            f"'*:{layout.columns[-1]}'")  # type: ignore[union-attr]
        places.update(mine)
    return names, sorted(places)
