"""`ooco_gym/Control-v0`: all tuned parameters of the partner at once, every few seconds."""

from __future__ import annotations

from typing import ClassVar

from ooco_gym.envs.base import DecisionEnv
from ooco_gym.envs.buffers import CONTROL, step_kernel
from ooco_gym.envs.decision import Decision
from ooco_gym.envs.stepping import end_runs
from ooco_gym.sim.state import ASK


@step_kernel
def offer_controls(state, buffers, i):
    """One candidate a parameter: where it stands among its levels."""
    last = buffers.levels.shape[1] - 1
    for part in range(buffers.params.size):
        out = buffers.candidates[i, part]
        out[0] = 1.0
        for level in range(last + 1):
            if state.params[buffers.params[part]] == buffers.levels[part, level]:
                out[14] = level / last
                break
    buffers.mask[i, :] = 1
    return 2


@step_kernel
def answer_controls(state, buffers, i):
    """Sets every parameter to its level for the interval that begins."""
    changed = False
    for part in range(buffers.params.size):
        level = buffers.actions[i, part]
        if state.params[buffers.params[part]] != buffers.levels[part, level]:
            state.params[buffers.params[part]] = buffers.levels[part, level]
            changed = True
    if changed:
        end_runs(state)
    return ASK


DECISION = Decision("control", CONTROL, offer_controls, answer_controls)


class ControlEnv(DecisionEnv):
    """The parameters of a deployed policy, turned up and down around their tuned values every few seconds.

    ## Description
    What an engineer would dare to deploy first: a published policy takes every single decision, and an agent turns its
    knobs (margins on the SLO, how many are drawn and pulled, how eager the gate is, whether arrivals interrupt), a step
    or two away from where they were tuned, once in `interval_s` seconds. Nothing that it does can leave the bounds that
    the policy itself has.

    ## Action Space
    `MultiDiscrete([L] * P)`: for each of P parameters one of L levels around its tuned value, which is level (L - 1)/2
    (`conf/env/control.yaml`, `controls`: the size of a step, or `choices`). All levels are always legal.

    ## Candidates
    One a parameter: `level` is where it stands now among its levels.
    """

    decisions: ClassVar[tuple[Decision, ...]] = (DECISION,)
    default_scenario: ClassVar[str] = "control"
