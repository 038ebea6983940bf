"""Snapshots: copies of an episode in microseconds, which can be pickled and restored in another
environment.

Requests take nearly all of an episode's memory, and requests still to arrive never change. A copy
has the rows of arrived requests, and shares one array of the others with all copies of the same
window.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ooco_gym.envs import buffers as b
from ooco_gym.envs.episodes import Episodes
from ooco_gym.errors import UserError
from ooco_gym.sim import state as s
from ooco_gym.sim.records import bytes_of

_ROW = s.REQUEST.itemsize
_APART = (*s.SHARED, "requests", "log")
_COPIED = tuple(name for name in s.State._fields if name not in _APART)


@dataclass(slots=True)
class Snapshot:
    """State of an episode; can be pickled, and restored in any environment of the same
    configuration.

    Attributes:
        key: configuration that the restoring environment must share.
        window: (seed, number) of the episode.
        arrived: number of request rows in `buffer`.
        buffer: uint8, these rows, then the state's other arrays.
        built: uint8, all rows of requests; those after `arrived` as they were built.
        rows: rows of the step buffers.
    """

    key: tuple[Any, ...]
    window: tuple[int, int]
    arrived: int
    buffer: np.ndarray
    built: np.ndarray
    rows: dict[str, np.ndarray]


class Snapshots:
    """Copies one slot of `Episodes` and restores it."""

    def __init__(self, episodes: Episodes, i: int = 0) -> None:
        self.episodes, self.index = episodes, i
        self.key = _key(episodes)
        self._built: tuple[tuple[int, int], int, np.ndarray] | None = None

    def take(self) -> Snapshot:
        """Copies the episode's state.

        Raises:
            UserError: no episode has begun.
        """
        simulation, window = self.episodes.simulations[self.index], self.episodes.windows[self.index]
        if simulation is None:
            raise UserError("call reset() before snapshot(): there is no episode yet")
        state, buffers = simulation.state, self.episodes.buffers
        arrived = _arrived(state)
        views = [bytes_of(state.requests)[: arrived * _ROW], *_views(state)]
        rows = {name: getattr(buffers, name)[self.index].copy() for name in b.ROWS}
        return Snapshot(self.key, window, arrived, np.concatenate(views), self._as_built(window, state, arrived), rows)

    def _as_built(self, window: tuple[int, int], state: s.State, arrived: int) -> np.ndarray:
        """All rows of requests from a time when no more than now had arrived in this window;
        shared by its copies."""
        known = self._built
        if known is None or known[0] != window or known[1] > arrived:
            known = self._built = (window, arrived, bytes_of(state.requests).copy())
        return known[2]

    def put_back(self, snapshot: Snapshot) -> None:
        """Restores a copy.

        Raises:
            UserError: not a snapshot, or one of another configuration.
        """
        if not isinstance(snapshot, Snapshot):
            raise UserError(f"restore({type(snapshot).__name__}): expected a return value of snapshot()")
        if snapshot.key != self.key:
            raise UserError("restore(): the snapshot comes from another configuration; make this environment with the "
                            "same arguments")
        episodes, i = self.episodes, self.index
        same = episodes.simulations[i] is not None and episodes.windows[i] == snapshot.window
        if not same:
            episodes.build(i, *snapshot.window)
        simulation = episodes.simulations[i]
        assert simulation is not None
        state, first = simulation.state, snapshot.arrived * _ROW
        last = _arrived(state) * _ROW if same else snapshot.built.size
        requests = bytes_of(state.requests)
        if first < last:
            requests[first:last] = snapshot.built[first:last]
        at = 0
        for view in (requests[:first], *_views(state)):
            view[:] = snapshot.buffer[at : at + view.size]
            at += view.size
        for name, row in snapshot.rows.items():
            getattr(episodes.buffers, name)[i] = row
        episodes.buffers.handles[i] = simulation.handle.address


def _arrived(state: s.State) -> int:
    """Number of leading request rows that may differ from how they were built
    (`sim.sessions.rows_arrived`)."""
    return state.requests.size if state.followers.size else int(state.clock.next_arrival)


def _key(episodes: Episodes) -> tuple[Any, ...]:
    """An environment's configuration as plain values, which can be compared across processes."""
    config, base = episodes.config, episodes._base_policy
    rules = tuple((getattr(rule, "__module__", ""), getattr(rule, "__qualname__", "")) for rule in base.hooks())
    numbers = tuple((param.name, param.number(base.values[param.name], base.name))
                    for param in base.params if param.name in base.values)  # not values that only a scenario sets
    shapes = tuple(getattr(episodes.buffers, name).shape[1:] for name in b.ROWS)
    kinds = tuple(decision.name for decision in episodes.decisions)
    return (kinds, base.name, base.class_blind, rules, numbers, shapes,
            tuple(config.weights.tolist()), repr(replace(config, base_policy=None, weights=None)))


def _views(state: s.State) -> list[np.ndarray]:
    return [bytes_of(array) for name in _COPIED if (array := getattr(state, name)).size]
