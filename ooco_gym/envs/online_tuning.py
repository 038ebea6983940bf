"""`ooco_gym/OnlineTuning-v1`: sets all tuned parameters of the base policy every few seconds."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from ooco_gym.envs.base import DecisionEnv
from ooco_gym.envs.buffers import CONTROL, step_kernel
from ooco_gym.envs.config import EpisodeConfig
from ooco_gym.envs.decision import Controls, Decision
from ooco_gym.envs.features import PARAMETER, PICKS
from ooco_gym.envs.stepping import end_runs
from ooco_gym.envs.vector import register
from ooco_gym.errors import UserError, nearest
from ooco_gym.policy.policy import SETTINGS, Param, Policy
from ooco_gym.schema import is_number
from ooco_gym.sim.state import ASK

STEPS = 2  # levels above and below the tuned value
LEVELS = 2 * STEPS + 1


@step_kernel
def offer_controls(state, buffers, i):
    """Offers one candidate per parameter: its position among its levels."""
    last = max(1, buffers.levels.shape[1] - 1)
    for index in range(buffers.params.size):
        for level in range(last + 1):
            if state.params[buffers.params[index]] == buffers.levels[index, level]:
                buffers.candidates[i, index, 0] = level / last
                break
    buffers.mask[i, :] = 1
    return 2


@step_kernel
def answer_controls(state, buffers, i):
    """Sets every parameter to its level for the coming interval."""
    changed = False
    for index in range(buffers.params.size):
        level = buffers.actions[i, index]
        if state.params[buffers.params[index]] != buffers.levels[index, level]:
            state.params[buffers.params[index]] = buffers.levels[index, level]
            changed = True
    if changed:
        end_runs(state)
    return ASK


def control_levels(policy: Policy, config: EpisodeConfig) -> Controls:
    """Reads which parameters an action sets, and their levels.

    A number is the distance between levels; `x2` makes each level twice the one before; `choices`
    takes all choices. A list names the levels, to which the base policy's own value is added.

    Raises:
        UserError: a parameter that the base policy does not have, or an invalid step.
    """
    controls, known = config.controls, {param.name: param for param in policy.params}
    if not controls:
        raise UserError("controls is empty: expected parameters of the base policy, each with the size of a step")
    rows, tuned = [], []
    for name, step in controls.items():
        if name not in known:
            raise UserError(f"controls: base policy '{policy.name}' has no parameter '{name}'{nearest(name, known)}; "
                            f"it has: {', '.join(known)}")
        if name in SETTINGS:
            raise UserError(f"controls: the simulator reads '{name}' once, when an episode begins, so no action can "
                            "change it; set it with base_policy, and control parameters that rules read")
        value = known[name].number(policy.values[name], "controls")
        row = _levels(known[name], policy.values[name], step)
        if isinstance(step, (list, tuple)):
            tuned.append(row.index(value))
        else:
            tuned.append(int(value) if known[name].choices else STEPS)
        rows.append(row)
    most = max(map(len, rows))
    filled = [row + [row[-1]] * (most - len(row)) for row in rows]
    return Controls(list(controls), np.array(filled), np.array([len(row) for row in rows]), np.array(tuned))


def _levels(param: Param, tuned: Any, step: Any) -> list[float]:
    if isinstance(step, (list, tuple)):
        row = [param.number(value, f"controls.{param.name}") for value in step]
        return sorted({*row, param.number(tuned, "controls")})
    if param.choices:
        if len(param.choices) > LEVELS:
            raise UserError(f"controls: {param.name} has more than {LEVELS} choices")
        if step != "choices":
            raise UserError(f"controls.{param.name}={step!r} must be choices: its values ({', '.join(param.choices)}) "
                            "have no step between them")
        return [float(index) for index in range(len(param.choices))]
    centre, offsets = param.number(tuned, "controls"), range(-STEPS, STEPS + 1)
    factor = isinstance(step, str) and step.startswith("x")
    try:
        size = float(step[1:] if factor else step) if isinstance(step, str) or is_number(step) else math.nan
    except ValueError:
        size = math.nan
    if not 0.0 < size < 1e9 or (factor and size == 1.0):
        raise UserError(f"controls.{param.name}={step!r} must be a step, such as 0.05, or a factor, such as x2: a "
                        "positive number, and not the factor 1")
    row = [centre * size**offset if factor else centre + size * offset for offset in offsets]
    return [float(min(max(value, param.low), param.high)) for value in row]


DECISION = Decision(
    "control", CONTROL, offer_controls, answer_controls, controls=control_levels,
    question="Which values do the base policy's parameters have in the next interval?", no="", candidates="parameters",
    table=PARAMETER, still=PICKS, marks=((354, 54),))


class OnlineTuningEnv(DecisionEnv):
    """Parameters of a deployed policy, moved around their tuned values every few seconds.

    ## Description
    A published policy takes every single decision. Once in `interval_s` seconds an agent sets its
    parameters (margins on the SLO, numbers of requests drawn and pulled, the gate's eagerness,
    whether arrivals interrupt), up to two steps from their tuned values.

    ## Action Space
    `MultiDiscrete([L] * P)`: for each of P parameters one of L levels; the tuned value is level
    (L - 1)/2 (`conf/env/onlinetuning.yaml`, `controls`: the size of a step, or `choices`). All
    levels are always legal.

    ## Candidates
    One per parameter: `level` is its present position among its levels.
    """

    id: ClassVar[str] = "ooco_gym/OnlineTuning-v1"
    decisions: ClassVar[tuple[Decision, ...]] = (DECISION,)
    default_scenario: ClassVar[str] = "onlinetuning"


register(OnlineTuningEnv)
