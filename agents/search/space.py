"""What a search over whole episodes turns: numeric parameters of a policy, weights of its learned rule, or both.

A candidate is a vector of numbers that are alike in size; 0 is the policy as it ships, exactly. A parameter comes to
the end of its range at -1 and at 1, linearly or by ratio as `agents.search.tune` has it; a weight is the one that ships
plus `weight_scale` times its number, or standardised (`agents.search.standardising`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from agents.search.ranges import Range, ranges_of
from ooco_gym.errors import UserError, nearest
from ooco_gym.policy import Policy
from ooco_gym.population import Candidate

_DIGITS = 4  # significant ones of a parameter, as in what `tune` finds
_SEPARATOR = ":"  # between row and column in the name of a weight


@dataclass(frozen=True)
class Space:
    """The numbers of a candidate: those of parameters first.

    Attributes:
        policy: as it ships.
        ranges: of the parameters that are turned.
        places: int64[w], of the weights that are turned in `policy.weights`.
        names: of the n numbers: a parameter's, or `row:column` of a weight.
        left: parameters that are not turned, and why not.
        weight_scale: what one of a weight's numbers adds to it.
        standards: mean and deviation of the figure of each weight that is turned, float64[2, w]; None: as they are.
    """

    policy: Policy
    ranges: tuple[Range, ...]
    places: np.ndarray
    names: tuple[str, ...]
    left: Mapping[str, str]
    weight_scale: float
    standards: np.ndarray | None = None

    @property
    def bounds(self) -> np.ndarray | None:
        """Low and high of each number, float64[n, 2]; None where none has any."""
        if not self.ranges:
            return None
        listed = [(-float(one.default > one.low), float(one.default < one.high)) for one in self.ranges]
        return np.array(listed + [(-np.inf, np.inf)] * len(self.places))

    def candidate(self, numbers: np.ndarray) -> Candidate:
        """The policy and the weights of a vector (n,)."""
        values = {one.name: value_at(one, float(number)) for one, number in zip(self.ranges, numbers, strict=False)}
        changed = {name: value for name, value in values.items() if value != self.policy.values[name]}
        policy = self.policy.with_values(changed) if changed else self.policy
        weights = self.policy.weights
        if weights is not None and len(self.places):
            weights, moved = weights.copy(), self.weight_scale * numbers[len(self.ranges):]
            if self.standards is not None:
                mean, deviation = self.standards
                moved = moved / deviation
                width = len(self.policy.layout.columns)  # type: ignore[union-attr]  # it has weights
                np.subtract.at(weights, self.places // width * width + width - 1, moved * mean)
            weights[self.places] += moved
        return Candidate(policy, weights)

    def standardised(self, mean: np.ndarray, deviation: np.ndarray) -> Space:
        """The same in units of how much figures vary: of each column of the weights, float64[columns] each."""
        columns = self.places % mean.size
        return replace(self, standards=np.array([mean[columns], deviation[columns]]))


def value_at(one: Range, number: float) -> Any:
    """The value of a parameter: its default at 0, the ends of its range at -1 and 1."""
    number = min(max(number, -1.0), 1.0)
    if number == 0.0:
        return one.default
    end = one.high if number > 0 else one.low
    share = abs(number)
    if min(one.default, end) > 0:  # by ratio: half of a value is as far as twice of it
        value = one.default * (end / one.default) ** share
    else:
        value = one.default + share * (end - one.default)
    value = round(value) if one.whole else float(f"{value:.{_DIGITS}g}")
    return min(max(value, one.low), one.high)


def weight_names(policy: Policy) -> list[str]:
    """The names of a policy's weights, `row:column`; none of a policy without."""
    layout = policy.layout
    return [] if layout is None else [f"{row}{_SEPARATOR}{column}" for row in layout.rows for column in layout.columns]


def space_of(policy: Policy, settings: Mapping[str, Any], fixed: Sequence[str] = ()) -> Space:
    """The numbers that `settings` (`agent`) ask for.

    Args:
        policy: as it ships.
        settings: `params`, names of parameters or null; `weights`, patterns of names of weights or null; `space` and
            `spread` as in `ooco-gym tune`; `weight_scale`. Where both are null: the weights of a policy that has some,
            or else the parameters.
        fixed: parameters that keep their values where `params` does not name them.

    Raises:
        UserError: an unknown parameter or weight, or nothing to turn.
    """
    names, patterns, asked = weight_names(policy), settings.get("weights"), settings.get("params")
    if patterns is None:
        patterns = ["*"] if names and asked is None else []
    places = _chosen(policy, names, [patterns] if isinstance(patterns, str) else list(patterns))
    ranges, left = [], {}
    if asked is not None or not places:
        found, left = ranges_of(policy, float(settings["spread"]), asked, fixed, settings.get("space"))
        ranges = [one for one in found if (not one.choices and one.high > one.low) or one.name in (asked or ())]
        for one in found:
            if one not in ranges:
                left[one.name] = "a choice: this search turns numbers alone"
        for one in ranges:
            if one.choices:
                raise UserError(f"agent.params: {one.name} is a choice among {', '.join(map(str, one.choices))}, and "
                                "this search turns numbers alone; give it with the policy "
                                f"(agent.policy={policy.name}:{one.name}={one.choices[0]}), or use 'ooco-gym tune'")
            if not one.holds(one.default):
                raise UserError(f"agent.space.{one.name}: {one} does not hold {one.default}, the value that the policy "
                                "ships with and from which the search starts")
    if not ranges and not places:
        raise UserError(f"policy '{policy.name}' has no number to turn; choose another policy, or name some of its "
                        "parameters in agent.params with a range in agent.space")
    return Space(policy, tuple(ranges), np.array(places, np.int64),
                 (*(one.name for one in ranges), *(names[place] for place in places)), left,
                 float(settings["weight_scale"]))


def _chosen(policy: Policy, names: list[str], patterns: list[str]) -> list[int]:
    """Places of the weights that patterns name."""
    if not patterns:
        return []
    if policy.layout is None:
        raise UserError(f"agent.weights={patterns}: policy '{policy.name}' has no weights; leave it out, or choose a "
                        "policy that has some, such as adaptive_deadline")
    chosen: set[int] = set()
    for pattern in patterns:
        found = {place for place, name in enumerate(names) if fnmatchcase(name, pattern)}
        if not found:
            raise UserError(f"agent.weights: '{pattern}' names no weight of policy '{policy.name}'"
                            f"{nearest(pattern, names)}; expected row{_SEPARATOR}column, where * stands for any text: "
                            f"'*{_SEPARATOR}{policy.layout.columns[-1]}'")
        chosen |= found
    return sorted(chosen)
