"""What turning a parameter of `adaptive_deadline` is worth, now: played out on copies of a running episode.

`Probes.play` takes copies of a simulation as it stands, moves one parameter of one instance in each by a step up or
down, keeps that for a moment, lets the policy go on by itself, and compares. All copies meet the same arrivals and the
same lengths, so that a difference is the parameter's doing. Which future that is is the caller's choice: that of the
episode (clairvoyant; in learning, where features alone decide in the end, it is a sample like any other).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numba import types

from baselines.adaptive_deadline import ADJUSTED, figures, turn
from ooco_gym.compile import address_of, jit
from ooco_gym.envs.playing_out import work_done
from ooco_gym.policy.decisions import addresses
from ooco_gym.policy.engine_features import ROW
from ooco_gym.runtime.batching_features import ENGINE
from ooco_gym.sim import state as s
from ooco_gym.sim.loop import RUN_SIGNATURE, flush_all, run, run_at
from ooco_gym.simulation import Simulation

Move = tuple[int, int, float]  # instance, parameter (place in ADJUSTED), steps


@jit(types.void(types.int64, types.int64, types.float64[::1]))
def _figures_of(handle, instance, row):
    figures(s.state_at(handle), instance, row)


@jit(types.void(types.int64, types.int64, types.int64, types.float64, types.float64))
def _turn(handle, instance, parameter, steps, until_s):
    turn(s.state_at(handle), instance, parameter, steps, until_s)


@jit(types.int64(types.int64, types.int64, s.RULES_TYPE, types.int64, types.float64[::1]), nogil=True)
def _played(run_address, handle, rules, until_ps, outcome):
    """Plays to a time; writes service with what is credited for unfinished work, and violations."""
    why = run_at(run_address)(handle, rules, until_ps, s.ASK)
    state = s.state_at(handle)
    flush_all(state)
    outcome[0] = state.totals.service_ps / s.PS_PER_S + work_done(state)
    outcome[1] = state.totals.violations
    return why


class Probes:
    """Room for play-outs of one simulation at a time.

    Args:
        simulation: of the policy `adaptive_deadline`; its copies have its sizes.
        count: play-outs at a time.
        threads: of them that run side by side.
        template: a state of the sizes that the copies have; None: the simulation's.
    """

    def __init__(self, simulation: Simulation, count: int, threads: int = 1, template: s.State | None = None) -> None:
        self.simulation, self.threads = simulation, threads
        like = simulation.state if template is None else template
        self._copies = [s.copy_state(like) for _ in range(count)]
        self._handles = [s.handle_of(copy) for copy in self._copies]
        self._changing = [name for name in s.State._fields
                          if name not in s.SHARED and getattr(simulation.state, name).size]
        self._run, self._rules = address_of(run, RUN_SIGNATURE), addresses(simulation.policy.hooks())
        self.simulated_s = 0.0

    def figures(self, instance: int) -> np.ndarray:
        """What an instance's engine tells now: float64[figures of ENGINE]."""
        row = np.zeros(ROW)
        self._lay(0, self.simulation.state)  # looking takes notes, which are not the episode's
        _figures_of(self._handles[0].address, instance, row)
        return row[: len(ENGINE)]

    def _lay(self, place: int, source: s.State) -> None:
        for name in self._changing:
            np.copyto(getattr(self._copies[place], name), getattr(source, name))

    def play(self, moves: Sequence[Move], hold_s: float, horizon_s: float, state: s.State | None = None) -> np.ndarray:
        """Plays each move out from where the simulation stands.

        Args:
            moves: what is turned in each copy; steps of 0: nothing.
            hold_s: for how long what is set stays in force.
            horizon_s: of the play-out.
            state: another future of the same sizes; None: the simulation's own.

        Returns:
            float64[moves, 2]: service since the beginning, with what is credited for unfinished work, in reference
            GPU-seconds, and violations since the beginning.
        """
        source = self.simulation.state if state is None else state
        now_ps = int(source.clock.now_ps)
        until_ps = now_ps + round(horizon_s * s.PS_PER_S)
        found = np.zeros((len(moves), 2))

        def one(place: int) -> None:
            self._lay(place, source)
            instance, parameter, steps = moves[place]
            address = self._handles[place].address
            _turn(address, instance, parameter, steps, now_ps / s.PS_PER_S + hold_s)
            why = _played(self._run, address, self._rules, until_ps, found[place])
            assert why in (s.HORIZON, s.DONE), why

        self.simulated_s += horizon_s * len(moves)
        if self.threads == 1:
            for place in range(len(moves)):
                one(place)
        else:
            with ThreadPoolExecutor(self.threads) as executor:
                list(executor.map(one, range(len(moves))))
        return found


def turn_now(simulation: Simulation, move: Move, until_s: float) -> None:
    """Moves a parameter in the episode itself, until a time."""
    instance, parameter, steps = move
    _turn(simulation.handle.address, instance, parameter, steps, until_s)


def both_ways(instance: int, parameters: Sequence[int], step: float) -> list[Move]:
    """No move, then each parameter of an instance a step up and a step down."""
    return [(instance, 0, 0.0), *((instance, one, sign * step) for one in parameters for sign in (1.0, -1.0))]


def slopes(played: np.ndarray, worth: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First and second differences of the worth of `both_ways`, and of its violations.

    Args:
        played: float64[1 + 2 parameters, 2], of `Probes.play`.
        worth: (service, violations) to a number, arrays of a size.

    Returns:
        (first, second, of violations): float64[parameters] each, a step's.
    """
    value = worth(played[:, 0], played[:, 1])
    up, down = value[1::2], value[2::2]
    return 0.5 * (up - down), up + down - 2.0 * value[0], 0.5 * (played[1::2, 1] - played[2::2, 1])


PARAMETERS = tuple(one.name for one in ADJUSTED)
