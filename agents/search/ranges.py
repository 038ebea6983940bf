"""Where a search looks for the parameters of a policy: a range or choices for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ooco_gym.errors import UserError, is_number, unknown
from ooco_gym.policy import Param, Policy
from ooco_gym.policy.policy import SETTINGS

LOG_FROM = 100.0  # ranges whose ends are further apart than this factor are searched on a logarithmic scale
_DIGITS = 4  # significant ones of a searched number: what is tuned can be read, and typed


@dataclass(frozen=True)
class Range:
    """Where one parameter is searched: `choices`, or from `low` to `high`.

    Attributes:
        name: the parameter's.
        default: its value before tuning, as in `conf/policy`.
        choices: values to choose from; empty where there is a range.
        whole: whether its values are whole numbers.
        log: whether the scale is logarithmic.
    """

    name: str
    default: Any
    choices: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    whole: bool = False
    log: bool = False

    def suggest(self, trial: Any) -> Any:
        """Draws a value in an Optuna trial, rounded to four significant digits."""
        if self.choices:
            return trial.suggest_categorical(self.name, list(self.choices))
        if self.whole:
            return trial.suggest_int(self.name, int(self.low), int(self.high), log=self.log)
        drawn = trial.suggest_float(self.name, self.low, self.high, log=self.log)
        return min(max(float(f"{drawn:.{_DIGITS}g}"), self.low), self.high)

    def steps(self) -> list[Any]:
        """Values beside the default: the other choices, or half-way (by ratio where logarithmic) to either end."""
        if self.choices:
            return [value for value in self.choices if value != self.default]
        found: list[Any] = []
        for end in (self.low, self.high):
            value = (max(self.default, self.low) * end) ** 0.5 if self.log else (self.default + end) / 2
            value = round(value) if self.whole else float(f"{value:.{_DIGITS}g}")
            if value != self.default and self.holds(value):
                found.append(value)
        return found

    def holds(self, value: Any) -> bool:
        """Whether a value lies within."""
        return value in self.choices if self.choices else self.low <= value <= self.high

    def __str__(self) -> str:
        if self.choices:
            return ", ".join(map(str, self.choices))
        return f"{self.low:g} to {self.high:g}{', logarithmic' if self.log else ''}"


def ranges_of(policy: Policy, spread: float, only: Sequence[str] | None = None, fixed: Sequence[str] = (),
              space: Mapping[str, Any] | None = None, asked: bool = False
              ) -> tuple[list[Range], dict[str, str]]:
    """The parameters of a policy that are searched, and why the others are not.

    Args:
        policy: with the values that it has before tuning.
        spread: a number is searched from its default divided by this to its default times this, within its bounds.
        only: names of the parameters to search; None: all.
        space: by name, `[low, high]` or a list of choices instead.
        asked: the policy only answers the environment's decisions: what the simulator itself reads (token budgets,
            windows of the gate) is the partner's and stays.

    Raises:
        UserError: an unknown name, a range that is none, or nothing to search.
    """
    space, known = dict(space or {}), {param.name: param for param in policy.params}
    if not known:
        raise UserError(f"policy '{policy.name}' has no parameters, so there is nothing to tune")
    for name in (*space, *(only or ())):
        if name not in known:
            raise unknown("parameter", name, known)
    found, left = [], {}
    for name, param in known.items():
        why = None
        if only is not None and name not in only:
            why = "not among those asked for"
        elif name in space:
            found.append(_given(param, policy.values.get(name), space[name]))
            continue
        elif name in fixed:
            why = "kept"
        elif asked and name in SETTINGS:
            why = "read by the simulator, from the partner"
        else:
            one = _around(param, policy.values.get(name), spread)
            if one is not None:
                found.append(one)
                continue
            why = "no range by itself: give one in space"
        left[name] = why
    if not found:
        raise UserError(f"policy '{policy.name}' has nothing to tune here: "
                        f"{'; '.join(f'{name}: {why}' for name, why in left.items())}")
    return found, left


def _around(param: Param, default: Any, spread: float) -> Range | None:
    """Choices, flags, and numbers around their default; None where a number has no scale of its own."""
    if param.choices:
        value = param.choices[int(param.number(default, "policy"))]
        return Range(param.name, value, tuple(param.choices))
    if param.whole and (param.low, param.high) == (0, 1):
        return Range(param.name, int(default), (0, 1))
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
    for one in listed:
        param.number(one, f"space.{param.name}")
    if param.choices and listed:
        return Range(param.name, default, tuple(param.choices[int(param.number(one, "space"))] for one in listed))
    if len(listed) == 2 and all(is_number(one) for one in listed) and listed[0] < listed[1]:
        return _scaled(param, default, listed[0], listed[1])
    expected = f"a list of some of {', '.join(param.choices)}" if param.choices else "[low, high]"
    raise UserError(f"space.{param.name}={value!r} must be {expected}")
