"""What a search turns: numeric parameters of a policy within ranges, and weights of its learned rule.

`ooco-gym tune` draws parameters from their `Range`s. A candidate of `train agent=cma` is a vector of numbers that are
alike in size: 0 is the policy as it ships, exactly; a parameter comes to the ends of its range at -1 and 1, linearly or
by ratio; a weight is the one that ships plus `weight_scale` times its number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from ooco_gym.errors import UserError, is_number, nearest, unknown
from ooco_gym.policy import Param, Policy
from ooco_gym.policy.policy import SETTINGS
from ooco_gym.population import Candidate

LOG_FROM = 100.0  # ranges whose ends are further apart than this factor are searched on a logarithmic scale
_DIGITS = 4  # significant ones of a searched number: what is found can be read, and typed


@dataclass(frozen=True)
class Range:
    """Where one parameter is searched: `choices`, or from `low` to `high`, `whole` numbers or not, on a `log` scale or
    not; `default` is its value before."""

    name: str
    default: Any
    choices: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    whole: bool = False
    log: bool = False

    def _rounded(self, value: float) -> Any:
        return round(value) if self.whole else float(f"{value:.{_DIGITS}g}")

    def suggest(self, trial: Any) -> Any:
        """Draws a value in an Optuna trial."""
        if self.choices:
            return trial.suggest_categorical(self.name, list(self.choices))
        if self.whole:
            return trial.suggest_int(self.name, int(self.low), int(self.high), log=self.log)
        return min(max(self._rounded(trial.suggest_float(self.name, self.low, self.high, log=self.log)), self.low),
                   self.high)

    def steps(self) -> list[Any]:
        """Values beside the default: the other choices, or half-way (by ratio where logarithmic) to either end."""
        if self.choices:
            return [value for value in self.choices if value != self.default]
        ends = [self._rounded((max(self.default, self.low) * end) ** 0.5 if self.log else (self.default + end) / 2)
                for end in (self.low, self.high)]
        return [value for value in ends if value != self.default and self.holds(value)]

    def at(self, number: float) -> Any:
        """The value of a candidate's number: the default at 0, the ends of the range at -1 and 1."""
        share, end = min(abs(number), 1.0), self.high if number > 0 else self.low
        if share == 0.0:
            return self.default
        if min(self.default, end) > 0:  # by ratio: half of a value is as far as twice of it
            value = self.default * (end / self.default) ** share
        else:
            value = self.default + share * (end - self.default)
        return min(max(self._rounded(value), self.low), self.high)

    def holds(self, value: Any) -> bool:
        """Whether a value lies within."""
        return value in self.choices if self.choices else self.low <= value <= self.high

    def __str__(self) -> str:
        if self.choices:
            return ", ".join(map(str, self.choices))
        return f"{self.low:g} to {self.high:g}{', logarithmic' if self.log else ''}"


def ranges_of(policy: Policy, spread: float, only: Sequence[str] | None = None, fixed: Sequence[str] = (),
              space: Mapping[str, Any] | None = None, asked: bool = False) -> tuple[list[Range], dict[str, str]]:
    """The parameters of a policy that are searched, and why the others are not.

    Args:
        policy: with the values that it has before the search.
        spread: a number is searched from its default divided by this to its default times this, within its bounds.
        only: names of the parameters to search; None: all.
        fixed: names that are not searched unless `only` or `space` has them.
        space: by name, `[low, high]` or a list of choices instead.
        asked: the policy only answers the environment's decisions: what the simulator itself reads stays.

    Raises:
        UserError: an unknown name, a range that is none, or nothing to search.
    """
    space, known = dict(space or {}), {param.name: param for param in policy.params}
    if not known:
        raise UserError(f"policy '{policy.name}' has no parameters, so there is nothing to tune")
    for name in (*space, *(only or ())):
        if name not in known:
            raise unknown("parameter", name, known)
    found: list[Range] = []
    left: dict[str, str] = {}
    for name, param in known.items():
        default = policy.values.get(name)
        if only is not None and name not in only:
            left[name] = "not among those asked for"
        elif name in space:
            found.append(_given(param, default, space[name]))
        elif name in fixed:
            left[name] = "kept"
        elif asked and name in SETTINGS:
            left[name] = "read by the simulator, from the partner"
        elif (one := _around(param, default, spread)) is not None:
            found.append(one)
        else:
            left[name] = "no range by itself: give one in space"
    if not found:
        raise UserError(f"policy '{policy.name}' has nothing to tune here: "
                        f"{'; '.join(f'{name}: {why}' for name, why in left.items())}")
    return found, left


def _around(param: Param, default: Any, spread: float) -> Range | None:
    """Choices, flags, and numbers around their default; None where a number has no scale of its own."""
    if param.choices:
        return Range(param.name, param.choices[int(param.number(default, "policy"))], tuple(param.choices))
    if param.whole and (param.low, param.high) == (0, 1):
        return Range(param.name, int(default), (0, 1))
    if default == 0 and param.usual is not None:
        return _scaled(param, default, *param.usual)
    if default is None or isinstance(default, str) or default < 0 or (default == 0 and param.high > spread):
        return None  # such as -1 or 0 for "found by itself"
    low, high = (param.low, param.high) if default == 0 else (default / spread, default * spread)
    return _scaled(param, default, max(low, param.low), min(high, param.high))


def _scaled(param: Param, default: Any, low: float, high: float) -> Range:
    if param.whole:
        low, high = int(low), int(high)
    log = high > LOG_FROM * low and (low > 0 or param.whole)
    if log and param.whole:
        low = max(low, 1)
    return Range(param.name, default, low=low, high=high, whole=param.whole, log=log and high > low)


def _given(param: Param, default: Any, value: Any) -> Range:
    listed = list(value) if isinstance(value, (list, tuple)) else []
    places = [param.number(one, f"space.{param.name}") for one in listed]
    if param.choices and listed:
        return Range(param.name, default, tuple(param.choices[int(place)] for place in places))
    if len(listed) == 2 and all(is_number(one) for one in listed) and listed[0] < listed[1]:
        return _scaled(param, default, listed[0], listed[1])
    expected = f"a list of some of {', '.join(param.choices)}" if param.choices else "[low, high]"
    raise UserError(f"space.{param.name}={value!r} must be {expected}")


@dataclass(frozen=True)
class Space:
    """The n numbers of a candidate: those of parameters (`ranges`) first, then weights (`places` in `policy.weights`).

    `names` are the parameters' and `row:column` of weights; `left` says of other parameters why they are not turned.
    """

    policy: Policy
    ranges: tuple[Range, ...]
    places: np.ndarray
    names: tuple[str, ...]
    left: Mapping[str, str]
    weight_scale: float

    @property
    def bounds(self) -> np.ndarray | None:
        """Low and high of each number, float64[n, 2]; None where none has any."""
        if not self.ranges:
            return None
        listed = [(-float(one.default > one.low), float(one.default < one.high)) for one in self.ranges]
        return np.array(listed + [(-np.inf, np.inf)] * len(self.places))

    def candidate(self, numbers: np.ndarray) -> Candidate:
        """The policy and the weights of a vector float64[n]."""
        values = {one.name: one.at(float(number)) for one, number in zip(self.ranges, numbers, strict=False)}
        changed = {name: value for name, value in values.items() if value != self.policy.values[name]}
        policy = self.policy.with_values(changed) if changed else self.policy
        weights = self.policy.weights
        if weights is not None and len(self.places):
            weights = weights.copy()
            weights[self.places] += self.weight_scale * numbers[len(self.ranges):]
        return Candidate(policy, weights)


def space_of(policy: Policy, settings: Mapping[str, Any], fixed: Sequence[str] = ()) -> Space:
    """The numbers that `settings` (those of conf/agent/cma.yaml) ask for.

    Where `params` and `weights` are null these are the weights of a policy that has some, or else the parameters.

    Raises:
        UserError: an unknown parameter or weight, or nothing to turn.
    """
    layout, patterns, asked = policy.layout, settings["weights"], settings["params"]
    names = [] if layout is None else [f"{row}:{column}" for row in layout.rows for column in layout.columns]
    if patterns is None:
        patterns = ["*"] if names and asked is None else []
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    if patterns and layout is None:
        raise UserError(f"agent.weights={patterns}: policy '{policy.name}' has no weights; leave it out, or choose a "
                        "policy that has some, such as adaptive_deadline")
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UserError(f"agent.weights: '{pattern}' names no weight of policy '{policy.name}'"
                            f"{nearest(pattern, names)}; expected row:column, where * stands for any text: "
                            f"'*:{layout.columns[-1]}'")  # type: ignore[union-attr]
    places = [place for place, name in enumerate(names) if any(fnmatchcase(name, one) for one in patterns)]
    ranges, left = [], {}
    if asked is not None or not places:
        found, left = ranges_of(policy, float(settings["spread"]), asked, fixed, settings["space"])
        ranges = [one for one in found if (not one.choices and one.high > one.low) or one.name in (asked or ())]
        left |= {one.name: "a choice: this search turns numbers alone" for one in found if one not in ranges}
        for one in ranges:
            if one.choices:
                raise UserError(f"agent.params: {one.name} is a choice among {', '.join(map(str, one.choices))}, and "
                                "this search turns numbers alone; give it with the policy "
                                f"(agent.policy={policy.name}:{one.name}={one.choices[0]}), or use 'ooco-gym tune'")
            if one.default != 0 and not one.holds(one.default):  # 0: found by itself
                raise UserError(f"agent.space.{one.name}: {one} does not hold {one.default}, the value that the policy "
                                "ships with and from which the search starts")
    if not ranges and not places:
        raise UserError(f"policy '{policy.name}' has no number to turn; choose another policy, or name some of its "
                        "parameters in agent.params with a range in agent.space")
    return Space(policy, tuple(ranges), np.array(places, np.int64),
                 (*(one.name for one in ranges), *(names[place] for place in places)), left,
                 float(settings["weight_scale"]))
