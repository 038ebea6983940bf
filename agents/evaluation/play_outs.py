"""Rolls out each legal action at an open decision, then the base policy, on the window's own future.

Roll-outs run in copies of the episode's state (`Clones`), allocated once per episode, so each costs only a copy of
arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ooco_gym.compile import address_of
from ooco_gym.envs import buffers as b
from ooco_gym.envs.episodes import Episodes
from ooco_gym.envs.playing_out import SCORE, play_out
from ooco_gym.errors import UserError
from ooco_gym.sim import state as s
from ooco_gym.sim.loop import RUN_SIGNATURE, run


class PlayOuts:
    """Rolls out the decisions of one environment (`ooco_gym.envs.base.DecisionEnv`), without changing its episode.

    `horizon_s` are the simulated seconds of a roll-out; None: to the end of the episode. At a horizon within the
    window, unfinished offline requests are paid by their progress.

    Raises:
        UserError: the environment's actions are vectors of numbers.
    """

    def __init__(self, env: Any, horizon_s: float | None = None) -> None:
        if env.config.box:
            raise UserError("action=box: outcomes are simulated for single candidates; leave action=discrete")
        self.env, self.horizon_s = env, horizon_s
        self._window: Any = None
        self._clones: Clones | None = None

    def values(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the legal actions at the open decision, the base policy's first, int64[n, parts], and the rewards of
        the episode after each, float64[n]."""
        episodes = self.env.episodes
        simulation = episodes.simulations[0]
        if self._clones is None or self._window is not simulation:
            self._window = simulation
            self._clones = Clones(episodes, simulation.state, 1 + max(episodes.buffers.mask.shape[1], 1))
        actions, until_ps = legal_actions(self.env), simulation.end_ps
        if self.horizon_s is not None:
            until_ps = min(until_ps, int(simulation.state.clock.now_ps) + round(self.horizon_s * s.PS_PER_S))
        return actions, self._clones.play(episodes, actions, until_ps, simulation.end_ps)


def legal_actions(env: Any) -> np.ndarray:
    """Returns the base policy's action, then every other legal one, int64[n, parts]; controls change one at a time."""
    controls, mask = env.episodes.controls, env.episodes.buffers.mask[0]
    if controls is None:
        legal = np.flatnonzero(mask)
        return np.concatenate([[b.BASE_ACTION], legal[legal != b.BASE_ACTION]])[:, None].astype(np.int64)
    moves = [controls.tuned]
    for part, count in enumerate(controls.counts):
        for level in range(int(count)):
            if level != controls.tuned[part]:
                move = controls.tuned.copy()
                move[part] = level
                moves.append(move)
    return np.array(moves, np.int64)


class Clones:
    """Memory for an episode's roll-outs: copies of `state`, an episode of this configuration, for each of `count`
    actions at most; the base policy of `episodes` goes on after an action."""

    def __init__(self, episodes: Episodes, state: s.State, count: int) -> None:
        shared = episodes.buffers  # all but what follows
        rows = {name: np.zeros((count, *getattr(shared, name).shape[1:]), getattr(shared, name).dtype)
                for name in (*b.ROWS, "handles")}
        self.buffers = shared._replace(**rows)
        self._states = [s.copy_state(state) for _ in range(count)]
        self._handles = [s.handle_of(copy) for copy in self._states]
        self.buffers.handles[:] = [handle.address for handle in self._handles]
        self._handle, self._run = b.buffers_handle(self.buffers), address_of(run, RUN_SIGNATURE)
        self._changing = [name for name in s.State._fields if name not in s.SHARED and getattr(state, name).size]

    def play(self, episodes: Episodes, actions: np.ndarray, until_ps: int, end_ps: int) -> np.ndarray:
        """Rolls out each of `actions` (int64[n, parts], the base policy's first) from the first episode's state;
        returns their scores, float64[n]."""
        count, simulation = len(actions), episodes.simulations[0]
        assert simulation is not None
        for name in self._changing:
            source = getattr(simulation.state, name)
            for copy in self._states[:count]:
                np.copyto(getattr(copy, name), source)
        for name in b.ROWS:
            getattr(self.buffers, name)[:count] = getattr(episodes.buffers, name)[0]
        self.buffers.actions[:count] = actions
        play_out(self._handle.address, self._run, np.zeros(count, np.int64), int(until_ps), int(end_ps))
        return self.buffers.reward_sums[:count, SCORE].copy()
