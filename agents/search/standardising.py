"""How much the figures of engines vary while a policy plays, for a search in units of that.

A weight on a figure that hardly moves must be large to matter, and one on a figure that is always large moves its
parameter by a constant. With a figure's mean m and deviation d, a number n adds n / d to the weight and takes n m / d
off the constant of its row (`Space.standardised`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import types

from ooco_gym.compile import jit
from ooco_gym.errors import UserError
from ooco_gym.policy import Policy
from ooco_gym.policy.engine_features import NOTES, ROW, engine_row
from ooco_gym.policy.weights import SetsParameters
from ooco_gym.runtime.features import ENGINE
from ooco_gym.scenario import ResolvedScenario, Scenario
from ooco_gym.sim.state import state_at
from ooco_gym.simulation import Simulation

EVERY_S = 10.0  # between two samples
STILL = 0.01  # a figure that varies less than that is taken as it is


@jit(types.void(types.int64, types.int64, types.float64, types.float64[::1], types.float64[::1]))
def _row_of(handle, instance, budget, notes, row):
    engine_row(state_at(handle), instance, (budget, 0.0, 0.0), notes, row)


def standards(scenarios: Sequence[Scenario | ResolvedScenario], policy: Policy) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of each column of a policy's weights over all engines, every `EVERY_S` while it plays windows;
    0 and 1 of the constant and of figures that stand still: float64[columns] each.

    Raises:
        UserError: its columns are no figures of an engine.
    """
    if not isinstance(policy.linear, SetsParameters) or policy.linear.features != ENGINE:
        raise UserError(f"agent.standardise=true: the weights of '{policy.name}' are on no figures of an engine; leave "
                        "it out, or choose a policy whose are, such as adaptive_deadline")
    rows = []
    for scenario in scenarios:
        simulation = Simulation(scenario, policy)
        until_s, notes = EVERY_S, np.zeros((len(simulation.state.instances), NOTES))
        budget = float(simulation.scenario.protocol.violation_budget)
        while until_s < simulation.window_s[1]:
            simulation.advance(until_s)
            for instance in range(len(notes)):
                row = np.zeros(ROW)
                _row_of(simulation.handle.address, instance, budget, notes[instance], row)
                rows.append(row[: len(ENGINE)])
            until_s += EVERY_S
    sampled = np.array(rows)
    deviation = sampled.std(0)
    moves = deviation >= STILL
    return np.append(np.where(moves, sampled.mean(0), 0.0), 0.0), np.append(np.where(moves, deviation, 1.0), 1.0)
