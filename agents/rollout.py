"""Acting by looking ahead: each legal action is played out under the partner, and the best one is taken.

*Clairvoyant*: on the true future, arrivals and output lengths, which nobody knows; no bound, but what a policy that
improves on the partner once a decision could have had. *Honest*: on futures drawn from the workload model
(`agents.futures`), the same ones for all actions. Ties go to the partner. Where the horizon is the end of the episode,
the clairvoyant one never gets less reward than the partner: what the partner would get is among what it chooses from.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from agents.clones import Clones
from agents.futures import Futures
from ooco_gym.envs import reward as r
from ooco_gym.envs.job import PARTNER_ACTION
from ooco_gym.sim import state as s

_TIE = 1e-9
PRICED = ("ttft", "tpot", "burst")  # parts of the reward that the weight of costs multiplies


class Rollout:
    """Plays one environment (`ooco_gym.envs.base.DecisionEnv`) by looking ahead.

    Args:
        env: the environment, bare.
        horizon_s: seconds of simulated time that are played out; None: to the end of the drain.
        weight: factor on the reward's parts that are SLO misses, in the rollout's own score.
        every: every k-th decision is looked at; the partner takes the others.
        progress: share of their worth credited for unfinished offline requests at a horizon within the window
            (service is paid at completion, so that a short horizon undervalues long requests).
        samples: futures that are drawn at a decision; 0: the true one.
        seed: keys the futures.
    """

    def __init__(self, env: Any, horizon_s: float | None = None, weight: float = 1.0, every: int = 1,
                 progress: float = 1.0, samples: int = 0, seed: int = 0) -> None:
        self.env, self.horizon_s, self.every, self.progress = env, horizon_s, every, progress
        self.samples, self.seed = samples, seed
        self.weights = env.config.weights * [weight if part in PRICED else 1.0 for part in r.PARTS]
        self._window: tuple[int, int] | None = None
        self._clones: Clones | None = None
        self._futures: Futures | None = None
        self._asked = 0

    def act(self) -> Any:
        """The action at the open decision."""
        self._begin()
        self._asked += 1
        if (self._asked - 1) % self.every:
            return self.env.partner_action()
        actions, values = self.values()
        best = actions[int(np.argmax(values > values.max() - _TIE))]
        return best if self.env.episodes.controls is not None else int(best[0])

    def values(self) -> tuple[np.ndarray, np.ndarray]:
        """The actions, int64[n, parts], the partner's first, and what each is worth: float64[n]."""
        self._begin()
        episodes, actions = self.env.episodes, self.actions()
        simulation = episodes.simulations[0]
        now_ps, end_ps = int(simulation.state.counters[s.NOW]), simulation.end_ps
        until_ps = end_ps if self.horizon_s is None else min(end_ps, now_ps + round(self.horizon_s * s.PS_PER_S))
        assert self._clones is not None
        if self._futures is None:
            return actions, self._clones.play(episodes, 0, simulation.state, actions, until_ps, end_ps, self.progress)
        total = np.zeros(len(actions))
        for state in self._futures.draw(simulation.state, self.samples):
            total += self._clones.play(episodes, 0, state, actions, until_ps, end_ps, self.progress)
        return actions, total / self.samples

    def actions(self) -> np.ndarray:
        """What is played out: the partner's action, then every other legal one; of controls, one turned at a time."""
        controls = self.env.episodes.controls
        if controls is None:
            legal = np.flatnonzero(self.env.episodes.job.mask[0])
            return np.concatenate([[PARTNER_ACTION], legal[legal != PARTNER_ACTION]])[:, None].astype(np.int64)
        moves = [controls.tuned]
        for part, count in enumerate(controls.counts):
            for level in range(int(count)):
                if level != controls.tuned[part]:
                    move = controls.tuned.copy()
                    move[part] = level
                    moves.append(move)
        return np.array(moves, np.int64)

    def _begin(self) -> None:
        """Room for the copies, once an episode."""
        if self._window == self.env.window:
            return
        episodes = self.env.episodes
        simulation = episodes.simulations[0]
        self._window, self._asked = self.env.window, 0
        self._futures = Futures(episodes, self.seed, max(8, self.samples)) if self.samples else None
        template = simulation.state if self._futures is None else self._futures.state
        count = episodes.job.mask.shape[1] + 1
        self._clones = Clones(episodes, template, count, self.weights)
