"""Acting by looking ahead: actions are played out under base policies, and the best one is taken.

*Clairvoyant*: on the true future, arrivals and output lengths, which nobody knows; no bound, but what a policy that
improves on the bases once a decision could have had. *Honest*: on futures drawn from the workload model
(`agents.futures`), the same ones for all actions.

Bases are the partner and plain heuristics (`lookahead.BASES`). At a decision each legal action is played out with the
base in force playing on, and beside them each other base from here on; the base that won stays in force until the next
look. So the clairvoyant one, played out to the end of the episode, never gets less reward (by its own weights) than any
of its bases: going on as before, and going on as any base would, are among what it chooses from. Ties go to the
partner. (Parallel rollout: Chang, Givan and Chong, Discrete Event Dynamic Systems 14, 2004.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from agents.clones import Clones
from agents.futures import Futures
from ooco_gym.envs import buffers as b
from ooco_gym.envs import reward as r
from ooco_gym.envs.stepping import BASES, DECLINE, HOLD, LONGEST, PARTNER, SHORTEST, TOKENS
from ooco_gym.errors import unknown
from ooco_gym.sim import state as s

_TIE = 1e-9
PRICED = ("ttft", "tpot", "burst")  # parts of the reward that the weight of costs multiplies
SIZED = (s.GATE, s.EVICT, s.PULL)  # decisions whose candidates are requests


class Rollout:
    """Plays one environment (`ooco_gym.envs.base.DecisionEnv`) by looking ahead.

    Args:
        env: the environment, bare.
        horizon_s: seconds of simulated time that are played out; None: to the end of the drain.
        weight: factor on the reward's parts that are SLO misses, in the rollout's own score.
        every: every k-th decision is looked at, from the first; the base that won the last look takes the others.
        progress: share of their worth credited for unfinished offline requests at a horizon within the window
            (service is paid at completion, so that a short horizon undervalues long requests).
        samples: futures that are drawn at a decision; 0: the true one.
        bases: who plays on, names of `lookahead.BASES`; None: all that mean something in this environment.
        seed: keys the futures.

    Raises:
        UserError: no base of that name.
    """

    def __init__(self, env: Any, horizon_s: float | None = None, weight: float = 1.0, every: int = 1,
                 progress: float = 1.0, samples: int = 0, bases: Sequence[str] | None = None, seed: int = 0) -> None:
        self.env, self.horizon_s, self.every, self.progress = env, horizon_s, every, progress
        self.samples, self.seed = samples, seed
        self.weights = env.config.weights * [weight if part in PRICED else 1.0 for part in r.PARTS]
        self.bases = bases_of(env, bases)
        self._window: Any = None
        self._clones: Clones | None = None
        self._futures: Futures | None = None
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
            (actions int64[n, parts], who plays on int64[n], rewards of the episode float64[n]).
        """
        self._begin()
        episodes = self.env.episodes
        simulation = episodes.simulations[0]
        actions, bases = self._options()
        now_ps, end_ps = int(simulation.state.counters[s.NOW]), simulation.end_ps
        until_ps = end_ps if self.horizon_s is None else min(end_ps, now_ps + round(self.horizon_s * s.PS_PER_S))
        assert self._clones is not None
        if self._futures is None:
            return actions, bases, self._clones.play(episodes, 0, simulation.state, actions, bases, until_ps, end_ps,
                                                     self.progress)
        total = np.zeros(len(actions))
        for state in self._futures.draw(simulation.state, self.samples):
            total += self._clones.play(episodes, 0, state, actions, bases, until_ps, end_ps, self.progress)
        return actions, bases, total / self.samples

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
        self._futures = Futures(episodes, self.seed, max(8, self.samples)) if self.samples else None
        template = simulation.state if self._futures is None else self._futures.state
        count = len(BASES) + 2 * max(episodes.buffers.mask.shape[1], 1)
        self._clones = Clones(episodes, template, count, self.weights)


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
    if min(kinds) >= b.PACK:
        return [PARTNER, HOLD]
    return [PARTNER, DECLINE] + [SHORTEST, LONGEST] * bool(kinds & set(SIZED))


def legal_actions(env: Any, held: np.ndarray) -> np.ndarray:
    """What is played out: the partner's action, then every other legal one; of controls, one turned at a time.

    Args:
        env: the environment, bare.
        held: what the controls were last set to, from which they are turned; of size 0: the partner's.
    """
    controls, mask = env.episodes.controls, env.episodes.buffers.mask[0]
    if controls is None:
        legal = np.flatnonzero(mask)
        partner = [b.PARTNER_ACTION] * bool(mask[b.PARTNER_ACTION])
        return np.concatenate([partner, legal[legal != b.PARTNER_ACTION]])[:, None].astype(np.int64)
    held = held if held.size else controls.tuned
    moves = [controls.tuned, held]
    for part, count in enumerate(controls.counts):
        for level in range(int(count)):
            if level != held[part]:
                move = held.copy()
                move[part] = level
                moves.append(move)
    return np.array(moves, np.int64)


def decline(env: Any) -> int:
    """The decision's own *no* where that is legal, else the partner's."""
    return b.DECLINE_ACTION if env.episodes.buffers.mask[0, b.DECLINE_ACTION] else b.PARTNER_ACTION


def by_length(env: Any, longest: bool) -> int:
    """The shortest (or longest) request offered, where requests are; else the partner's."""
    buffers = env.episodes.buffers
    if buffers.turns[0, b.KIND] not in SIZED:
        return b.PARTNER_ACTION
    there = np.flatnonzero(buffers.mask[0, b.FIXED :])
    if not len(there):
        return b.DECLINE_ACTION
    tokens = buffers.candidates[0, there, TOKENS]
    return b.FIXED + int(there[np.argmax(tokens) if longest else np.argmin(tokens)])
