"""The last few cluster vectors as one: what lets a network without memory see which way things go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces


class ClusterStack:
    """Keeps the last `length` cluster vectors of N episodes side by side, or of one (arrays without an axis N)."""

    def __init__(self, length: int) -> None:
        self.length = length
        self._kept: np.ndarray | None = None  # (N, length, Fc), the newest first

    def begin(self, observation: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The observation at the beginning of all episodes."""
        self._kept = self._first(np.asarray(observation["cluster"]))
        return self._stacked(observation)

    def push(self, observation: Mapping[str, np.ndarray], begun: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """The observation after a step; of the episodes `begun` (N,) it is the first."""
        assert self._kept is not None
        cluster = np.asarray(observation["cluster"])
        self._kept = np.concatenate([cluster[..., None, :], self._kept[..., :-1, :]], axis=-2)
        if begun is not None and begun.any():
            self._kept[begun] = self._first(cluster[begun])
        return self._stacked(observation)

    def after(self, cluster: np.ndarray, place: int) -> np.ndarray:
        """What would be the stack of episode `place` if `cluster` (Fc,) came next: (length · Fc,)."""
        assert self._kept is not None
        return np.concatenate([cluster, self._kept[place, :-1].reshape(-1)])

    def _first(self, cluster: np.ndarray) -> np.ndarray:
        return np.repeat(cluster[..., None, :], self.length, axis=-2)

    def _stacked(self, observation: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        assert self._kept is not None
        return {**observation, "cluster": self._kept.reshape(*self._kept.shape[:-2], -1)}


def stacked_space(space: Any, length: int) -> spaces.Dict:
    """The space of observations whose `cluster` holds `length` vectors."""
    cluster = space["cluster"]
    low, high = np.tile(cluster.low, length), np.tile(cluster.high, length)
    return spaces.Dict({**space.spaces, "cluster": spaces.Box(low, high, dtype=cluster.dtype.type)})
