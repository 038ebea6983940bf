"""Plays policies, learned or not, through the same windows of the same environment.

Several windows advance side by side so that a network answers for all of them in one call. A chunk of windows has a
fixed size, whatever the number of worker processes, so that results do not depend on the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import gymnasium as gym
import numpy as np

from agents.environments import OBSERVATION_KEYS, Window, make_env
from agents.history import ClusterStack
from ooco_gym.errors import UserError

Observations = Sequence[Mapping[str, np.ndarray]]


class Player(Protocol):
    """Anything that answers decisions: `name` in tables, `learned` or a rule."""

    name: str
    learned: bool

    def act(self, envs: Sequence[gym.Env], observations: Observations) -> Sequence[Any]:
        """Returns one action for each environment, which stands at the observation of the same place."""
        ...


def history_seen(decide: Callable[..., Any]) -> int:
    """How many cluster vectors a policy's decision sees in one: what it is a method of says so."""
    return getattr(getattr(decide, "__self__", None), "history", 1)


class BatchPlayer:
    """A learned policy: `decide(cluster, candidates, action_mask, decision) -> actions` over a batch.

    `history` is how many of the last cluster vectors it sees in one; None: as the object says whose method `decide` is.
    """

    learned = True

    def __init__(self, name: str, decide: Callable[..., np.ndarray], history: int | None = None) -> None:
        self.name, self._decide = name, decide
        self.history = history_seen(decide) if history is None else history

    def act(self, envs: Sequence[gym.Env], observations: Observations) -> Sequence[Any]:
        """Stacks the observations and decides for all of them at once."""
        parts = (np.stack([observation[key] for observation in observations]) for key in OBSERVATION_KEYS)
        return self._decide(*parts).tolist()


def play(
    config: Mapping[str, Any],
    player: Player,
    windows: Sequence[Window],
    side_by_side: int = 8,
    envs: list[gym.Env] | None = None,
) -> list[dict[str, Any]]:
    """Plays `windows` with `player` and returns one record a window, in the order given.

    Args:
        config: the `env` configuration.
        player: who decides.
        windows: the episodes.
        side_by_side: how many advance together.
        envs: environments to use again; the list is filled up to `side_by_side`.

    Returns:
        Records with `seed`, `window`, `decisions`, `reward` and the environment's own `summary`.
    """
    pool = envs if envs is not None else []
    while len(pool) < min(side_by_side, len(windows)):
        pool.append(make_env(config))
    records: dict[int, dict[str, Any]] = {}
    waiting = list(enumerate(windows))[::-1]
    active: list[_Episode] = []
    free = pool[: min(side_by_side, len(windows))]
    while waiting or active:
        while waiting and free:
            place, window = waiting.pop()
            active.append(_Episode(free.pop(), place, window, getattr(player, "history", 1)))
        actions = player.act([episode.env for episode in active], [episode.observation for episode in active])
        for episode, action in zip(active, actions, strict=True):
            if episode.step(action):
                records[episode.place] = episode.record()
                free.append(episode.env)
        active = [episode for episode in active if not episode.done]
    if envs is None:
        for env in pool:
            env.close()
    return [records[place] for place in range(len(windows))]


class _Episode:
    """One window under way in one environment."""

    def __init__(self, env: gym.Env, place: int, window: Window, history: int = 1) -> None:
        self.env, self.place, self.window = env, place, window
        self.observation, _ = env.reset(seed=window.seed, options={"window": window.number})
        self._stack = ClusterStack(history) if history > 1 else None
        if self._stack is not None:
            self.observation = self._stack.begin(self.observation)
        self.reward, self.decisions, self.done = 0.0, 0, False
        self.summary: Mapping[str, Any] = {}

    def step(self, action: Any) -> bool:
        """Takes one action; returns True at the end of the episode."""
        self.observation, reward, terminated, truncated, info = self.env.step(action)
        if self._stack is not None:
            self.observation = self._stack.push(self.observation)
        self.reward += float(reward)
        self.decisions += 1
        self.done = bool(terminated or truncated)
        if self.done:
            if "summary" not in info:
                raise UserError("the environment gives no 'summary' in its last info, so it cannot be evaluated")
            self.summary = info["summary"]
        return self.done

    def record(self) -> dict[str, Any]:
        """The figures of the finished episode."""
        summary = {key: value for key, value in self.summary.items() if isinstance(value, (int, float, np.number))}
        return {"seed": self.window.seed, "window": self.window.number, "decisions": self.decisions,
                "reward": self.reward, "summary": {key: float(value) for key, value in summary.items()}}
