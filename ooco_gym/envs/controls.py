"""What the clock's decisions turn: the margin that packs steps, or several parameters of the partner."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ooco_gym.envs.config import EpisodeConfig
from ooco_gym.errors import UserError, is_number, nearest
from ooco_gym.policy.bundle import Param, Policy

STEPS = 2  # levels above and below the tuned value
LEVELS = 2 * STEPS + 1
PACK_SETTINGS = ("slo_margin", "latency_budget_s")  # what policies call how full steps are packed


def pack_parameter(policy: Policy, config: EpisodeConfig) -> tuple[int, float]:
    """(Place in State.params of the setting that says how full steps are packed, its factor to a share of the SLO).

    Place -1: the policy has none.
    """
    names = [param.name for param in policy.params]
    if "slo_margin" in names:
        return names.index("slo_margin"), 1.0
    if "latency_budget_s" in names:
        return names.index("latency_budget_s"), 1.0 / config.scenario.load_slo().tpot_s
    return -1, 0.0


def pack_levels(policy: Policy, config: EpisodeConfig) -> np.ndarray:
    """Values that the packing setting may have: float64[1, levels], ascending.

    Raises:
        UserError: the policy has no such setting, or a level is not one of its values.
    """
    place, scale = pack_parameter(policy, config)
    if place < 0:
        raise UserError(f"partner '{policy.name}' has neither 'slo_margin' nor 'latency_budget_s': there is no packing "
                        "to decide; take ooco or hygen")
    levels = sorted(float(level) / scale for level in config.levels)
    if not levels:
        raise UserError("levels is empty: expected shares of the TPOT SLO")
    for level in levels:
        policy.params[place].number(level, "levels")
    return np.array([levels])


class Controls(NamedTuple):
    """P parameters and their levels."""

    names: list[str]
    levels: np.ndarray  # float64[P, LEVELS]
    counts: np.ndarray  # int64[P], how many levels each has
    tuned: np.ndarray  # int64[P], which of them the policy was tuned to

    def legal(self, actions: np.ndarray) -> np.ndarray:
        """Actions (..., P) with the tuned level in place of each that there is not."""
        return np.where((actions >= 0) & (actions < self.counts), actions, self.tuned)


def control_levels(policy: Policy, controls: Mapping[str, Any]) -> Controls:
    """Reads which parameters are turned, and how far.

    A number says how far apart the levels are; `x2` that each is twice the one before; `choices` takes all choices.

    Raises:
        UserError: a parameter that the partner has not, or a step that is none.
    """
    known = {param.name: param for param in policy.params}
    if not controls:
        raise UserError("controls is empty: expected parameters of the partner, each with the size of a step")
    rows, counts, tuned = [], [], []
    for name, step in controls.items():
        if name not in known:
            raise UserError(f"controls: partner '{policy.name}' has no parameter '{name}'{nearest(name, known)}; it "
                            f"has: {', '.join(known)}")
        row = _levels(known[name], policy.values[name], step)
        counts.append(len(row))
        value = known[name].number(policy.values[name], "controls")
        tuned.append(int(value) if known[name].choices else STEPS)
        rows.append(row + [row[-1]] * (LEVELS - len(row)))
    return Controls(list(controls), np.array(rows), np.array(counts), np.array(tuned))


def _levels(param: Param, tuned: Any, step: Any) -> list[float]:
    if param.choices:
        if len(param.choices) > LEVELS:
            raise UserError(f"controls: {param.name} has more than {LEVELS} choices")
        if step != "choices":
            raise UserError(f"controls.{param.name}={step!r} must be choices: its values are "
                            f"{', '.join(param.choices)}, with no step between them")
        return [float(place) for place in range(len(param.choices))]
    centre, offsets = param.number(tuned, "controls"), range(-STEPS, STEPS + 1)
    factor = isinstance(step, str) and step.startswith("x")
    try:
        size = float(step[1:] if factor else step) if isinstance(step, str) or is_number(step) else math.nan
    except ValueError:
        size = math.nan
    if not 0.0 < size < 1e9 or (factor and size == 1.0):
        raise UserError(f"controls.{param.name}={step!r} must be the size of a step, such as 0.05, or a factor, such "
                        "as x2: a positive number, and no factor of 1")
    row = [centre * size**offset if factor else centre + size * offset for offset in offsets]
    return [float(min(max(value, param.low), param.high)) for value in row]
