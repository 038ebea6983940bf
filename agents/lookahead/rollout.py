"""Acting by looking ahead: actions are played out under base policies, and the best one is taken.

It is clairvoyant: it plays on the true future, arrivals and output lengths, which no policy knows; no bound, but what a
policy that improves on the bases once a decision could have had. Play-outs run in copies of the episode's state
(`Clones`), laid down once, so that one costs no more than copying arrays.

Bases are the partner and plain heuristics (`BASES`). At a decision each legal action is played out with the base in
force playing on, and beside them each other base from here on; the base that won stays in force until the next look. So
the rollout, played out to the end of the episode, never gets less reward than any of
its bases: going on as before, and going on as any base would, are among what it chooses from. Ties go to the partner.
(Parallel rollout: Chang, Givan and Chong, Discrete Event Dynamic Systems 14, 2004.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from agents.evaluation.heuristics import SIZED, by_length, decline
from ooco_gym.compile import address_of
from ooco_gym.envs import buffers as b
from ooco_gym.envs.episodes import Episodes
from ooco_gym.envs.playing_out import BASES, DECLINE, HOLD, LONGEST, PARTNER, SCORE, SHORTEST, play_out
from ooco_gym.errors import UserError, unknown
from ooco_gym.sim import state as s
from ooco_gym.sim.loop import RUN_SIGNATURE, run

_TIE = 1e-9


class Rollout:
    """Plays one environment (`ooco_gym.envs.base.DecisionEnv`) by looking ahead.

    Args:
        horizon_s: seconds of simulated time that are played out; None: to the end of the drain.
        every: every k-th decision is looked at, from the first; the base that won the last look takes the others.
        progress: share of their worth credited for unfinished offline requests at a horizon within the window
            (service is paid at completion, so that a short horizon undervalues long requests).
        bases: rules that decide after an action, names of `BASES`; None: all that mean something here.

    Raises:
        UserError: no base of that name.
    """

    def __init__(self, env: Any, horizon_s: float | None = None, every: int = 1,
                 progress: float = 1.0, bases: Sequence[str] | None = None) -> None:
        if env.config.box:
            raise UserError("action=box: looking ahead plays single candidates out; leave action=discrete")
        self.env, self.horizon_s, self.every, self.progress = env, horizon_s, every, progress
        self.bases = bases_of(env, bases)
        self._window: Any = None
        self._clones: Clones | None = None
        self._asked, self._base, self._held = 0, PARTNER, np.zeros(0, np.int64)

    def act(self) -> Any:
        """The action at the open decision."""
        self._begin()
        self._asked += 1
        if (self._asked - 1) % self.every:
            best = self._own(self._base)
        else:
            actions, bases, values = self.values()
            winner = int(np.argmax(values > values.max() - _TIE))
            best, self._base, self._held = actions[winner], int(bases[winner]), actions[winner]
        return best if self.env.episodes.controls is not None else int(best[0])

    def values(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What is played out, the partner first, and what it is worth.

        Returns:
            (actions int64[n, parts], base after each int64[n], rewards of the episode float64[n]).
        """
        self._begin()
        episodes = self.env.episodes
        simulation = episodes.simulations[0]
        actions, bases = self._options()
        now_ps, end_ps = int(simulation.state.clock.now_ps), simulation.end_ps
        until_ps = end_ps if self.horizon_s is None else min(end_ps, now_ps + round(self.horizon_s * s.PS_PER_S))
        assert self._clones is not None
        return actions, bases, self._clones.play(episodes, 0, actions, bases, until_ps, end_ps, self.progress)

    def _options(self) -> tuple[np.ndarray, np.ndarray]:
        """Every base from here on, and every action with the base in force after it."""
        listed = [(tuple(self._own(base).tolist()), base) for base in self.bases if base != HOLD]
        after = (PARTNER, HOLD) if HOLD in self.bases else (self._base,)
        listed += [(tuple(action.tolist()), base) for action in legal_actions(self.env, self._held) for base in after]
        unique = list(dict.fromkeys(listed))
        return np.array([action for action, _ in unique], np.int64), np.array([base for _, base in unique], np.int64)

    def _own(self, base: int) -> np.ndarray:
        """What a base does at the open decision: int64[parts]."""
        if base == HOLD:
            return self._held
        if base == PARTNER:
            return np.atleast_1d(np.asarray(self.env.partner_action(), np.int64))
        return np.array([decline(self.env) if base == DECLINE else by_length(self.env, base == LONGEST)], np.int64)

    def _begin(self) -> None:
        """Room for the copies, once an episode."""
        episodes = self.env.episodes
        simulation = episodes.simulations[0]
        if self._clones is not None and self._window is simulation:
            return
        self._window, self._asked, self._base, self._held = simulation, 0, PARTNER, np.zeros(0, np.int64)
        count = len(BASES) + 2 * max(episodes.buffers.mask.shape[1], 1)
        self._clones = Clones(episodes, simulation.state, count)


def bases_of(env: Any, names: Sequence[str] | None) -> list[int]:
    """Bases by name, the partner first; None: all that mean something.

    Raises:
        UserError: no base of that name.
    """
    kinds = {decision.kind for decision in env.decisions}
    if names is not None:
        for name in names:
            if name not in BASES:
                raise unknown("base", name, BASES)
        return [PARTNER, *(base for base, name in enumerate(BASES) if name in names and base != PARTNER)]
    if kinds <= {s.COMPOSE, b.CLOCK, b.CONTROL}:
        return [PARTNER, HOLD]
    return [PARTNER, DECLINE] + [SHORTEST, LONGEST] * bool(kinds & set(SIZED))


def legal_actions(env: Any, held: np.ndarray) -> np.ndarray:
    """What is played out: the partner's action, then every other legal one; of controls, one turned at a time.

    Args:
        held: what the controls were last set to, from which they are turned; of size 0: the partner's.
    """
    controls, mask = env.episodes.controls, env.episodes.buffers.mask[0]
    if controls is None:
        legal = np.flatnonzero(mask)
        return np.concatenate([[b.PARTNER_ACTION], legal[legal != b.PARTNER_ACTION]])[:, None].astype(np.int64)
    held = held if held.size else controls.tuned
    moves = [controls.tuned, held]
    for part, count in enumerate(controls.counts):
        for level in range(int(count)):
            if level != held[part]:
                move = held.copy()
                move[part] = level
                moves.append(move)
    return np.array(moves, np.int64)


_OWN = (*b.ROWS, "handles")  # of the buffers: all else is the episodes' own


class Clones:
    """Room for play-outs of an episode of `episodes`, one an action.

    Args:
        episodes: whose partner plays on.
        state: an episode of the configuration; its copies have its sizes.
        count: at most so many actions.
    """

    def __init__(self, episodes: Episodes, state: s.State, count: int) -> None:
        self.count, self._bases = count, np.zeros((2, count), np.int64)
        shared = episodes.buffers
        rows = {name: np.zeros((count, *getattr(shared, name).shape[1:]), getattr(shared, name).dtype)
                for name in _OWN}
        self.buffers = episodes.buffers._replace(**rows)
        self._changing = [name for name in s.State._fields if name not in s.SHARED and getattr(state, name).size]
        self._states = [s.copy_state(state) for _ in range(count)]
        self._handles = [s.handle_of(copy) for copy in self._states]
        self.buffers.handles[:] = [handle.address for handle in self._handles]
        self._handle, self._run = b.buffers_handle(self.buffers), address_of(run, RUN_SIGNATURE)
        self._pairs = [(name, [getattr(copy, name) for copy in self._states]) for name in self._changing]

    def play(self, episodes: Episodes, i: int, actions: np.ndarray, bases: np.ndarray, until_ps: int, end_ps: int,
             progress: float = 0.0) -> np.ndarray:
        """Plays each of `actions` out from where episode i stands. Returns their scores: float64[actions].

        Args:
            episodes: where the decision is open.
            i: which of them.
            actions: int64[n, parts]; the first is the partner's.
            bases: int64[n], what decides after each (`ooco_gym.envs.playing_out.BASES`).
        """
        count, simulation = len(actions), episodes.simulations[i]
        assert simulation is not None
        for name, copies in self._pairs:
            source = getattr(simulation.state, name)
            for copy in copies[:count]:
                np.copyto(copy, source)
        for name in b.ROWS:
            getattr(self.buffers, name)[:count] = getattr(episodes.buffers, name)[i]
        self.buffers.actions[:count] = actions
        self._bases[0, :count] = bases
        play_out(self._handle.address, self._run, self._bases[:, :count].copy(), int(until_ps), int(end_ps), progress)
        return self.buffers.account[:count, SCORE].copy()
