"""Copies of one episode's state, laid down once, so that a play-out costs no more than copying arrays."""

from __future__ import annotations

import numpy as np

from ooco_gym.compile import address_of
from ooco_gym.envs import buffers as b
from ooco_gym.envs.episodes import Episodes
from ooco_gym.envs.stepping import SCORE, play_out
from ooco_gym.sim import state as s
from ooco_gym.sim.loop import RUN_SIGNATURE, run

_OWN = (*b.ROWS, "handles", "weights")  # of the buffers: all else is the episodes' own


class Clones:
    """Room for play-outs of an episode of `episodes`, one an action, with weights of their own.

    Args:
        episodes: whose partner plays on.
        state: an episode of the configuration; its copies have its sizes.
        count: at most so many actions.
        weights: float64[parts], of the reward's parts.
    """

    def __init__(self, episodes: Episodes, state: s.State, count: int, weights: np.ndarray) -> None:
        self.count, self._bases = count, np.zeros((2, count), np.int64)
        shared = episodes.buffers
        rows = {name: np.zeros((count, *getattr(shared, name).shape[1:]), getattr(shared, name).dtype)
                for name in _OWN if name != "weights"}
        self.buffers = episodes.buffers._replace(**rows, weights=np.array(weights, float))
        self._changing = [name for name in s.State._fields if name not in s.SHARED and getattr(state, name).size]
        self._states = [s.copy_state(state) for _ in range(count)]
        self._handles = [s.handle_of(copy) for copy in self._states]
        self.buffers.handles[:] = [handle.address for handle in self._handles]
        self._handle, self._run = b.buffers_handle(self.buffers), address_of(run, RUN_SIGNATURE)
        self._pairs = [(name, [getattr(copy, name) for copy in self._states]) for name in self._changing]

    def play(self, episodes: Episodes, i: int, state: s.State, actions: np.ndarray, bases: np.ndarray, until_ps: int,
             end_ps: int, progress: float = 0.0) -> np.ndarray:
        """Plays each of `actions` out from where episode i stands. Returns their scores: float64[actions].

        Args:
            episodes: where the decision is open.
            i: which of them.
            state: its state, or another future of the same sizes as the copies.
            actions: int64[n, parts]; the first is the partner's.
            bases: int64[n], who plays on after each (`lookahead.BASES`).
            until_ps: the horizon.
            end_ps: the end of the drain.
            progress: `lookahead.play_out`.
        """
        count = len(actions)
        for name, copies in self._pairs:
            source = getattr(state, name)
            for copy in copies[:count]:
                np.copyto(copy, source)
        for name in b.ROWS:
            getattr(self.buffers, name)[:count] = getattr(episodes.buffers, name)[i]
        self.buffers.actions[:count] = actions
        self._bases[0, :count] = bases
        play_out(self._handle.address, self._run, self._bases[:, :count].copy(), int(until_ps), int(end_ps), progress)
        return self.buffers.account[:count, SCORE].copy()
