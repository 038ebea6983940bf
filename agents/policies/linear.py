"""A linear scorer of actions: what the agent `cma_linear` searches, in its file `linear.npz`.

A candidate's score is a weighted sum of its features, and that of *no* one of the features of the cluster; the legal
action with the highest score is taken. The base policy's action is never taken where another one is legal, so no
heuristic is inside. Where an action sets parameters, each goes to the level nearest to the logistic function of a
weighted sum of the cluster's features. With all weights 0 the first legal candidate, or the middle level, is taken.

Features are scaled by their means and standard deviations under random play.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ooco_gym.envs.features import DECLINE_ACTION, FIXED
from ooco_gym.errors import UserError

LINEAR_FILE = "linear.npz"


@dataclass
class LinearScorer:
    """A linear scorer with `weights` float64[n], or float64[batch, n] for one of each row of a batch.

    Attributes:
        shapes: of the parts of one observation, candidates as (K, F).
        levels: of each parameter that an action sets; () where it is one of the candidates.
        scales: mean and deviation of the features of clusters, float64[2, Fc], and of candidates, float64[2, F].
    """

    shapes: dict[str, tuple[int, ...]]
    levels: tuple[int, ...]
    scales: tuple[np.ndarray, np.ndarray]
    weights: np.ndarray

    @classmethod
    def fitted(cls, shapes: dict[str, tuple[int, ...]], levels: tuple[int, ...], clusters: np.ndarray,
               candidates: np.ndarray) -> LinearScorer:
        """A scorer with weights 0, scaled by clusters float64[m, Fc] and legal candidates float64[l, F]."""
        scales = [np.stack([rows.mean(axis=0), np.maximum(rows.std(axis=0), 1e-6)]) if len(rows) else
                  np.stack([np.zeros(width), np.ones(width)])
                  for rows, width in ((clusters, shapes["cluster"][0]), (candidates, shapes["candidates"][1]))]
        return cls(shapes, levels, (scales[0], scales[1]), np.zeros(size_of(shapes, levels)))

    def decide(self, cluster: np.ndarray, candidates: np.ndarray, action_mask: np.ndarray, decision: np.ndarray
               ) -> np.ndarray:
        """Returns actions int64[batch], or int64[batch, P] of levels, for a batch of observations."""
        state = self._state(cluster, decision)
        weights = np.broadcast_to(self.weights, (len(state), self.weights.shape[-1]))
        if self.levels:
            counts = np.array(self.levels)
            sums = np.einsum("bps,bs->bp", weights.reshape(len(state), len(counts), -1), state)
            return np.rint((counts - 1) / (1.0 + np.exp(-np.clip(sums, -30.0, 30.0)))).astype(np.int64)
        rows = _scaled(candidates.reshape(len(state), *self.shapes["candidates"]), self.scales[1])
        parts = decision.shape[1]
        own = weights[:, : parts * rows.shape[2]].reshape(len(state), parts, -1)  # a candidate's, by decision
        own = np.einsum("bdf,bd->bf", own, decision)
        scores = np.full(action_mask.shape, -1e9)  # of the base policy's action
        scores[:, DECLINE_ACTION] = np.einsum("bs,bs->b", weights[:, -state.shape[1]:], state)
        scores[:, FIXED:] = np.einsum("bkf,bf->bk", rows, own)
        return np.where(action_mask > 0, scores, -np.inf).argmax(axis=1)

    def _state(self, cluster: np.ndarray, decision: np.ndarray) -> np.ndarray:
        """The scaled cluster, and which decision it is: float64[batch, Fc + D]."""
        return np.concatenate([_scaled(np.asarray(cluster, np.float64), self.scales[0]), decision], axis=1)

    def save(self, folder: Path) -> None:
        with open(folder / LINEAR_FILE, "wb") as file:
            np.savez(file, weights=self.weights, cluster=self.scales[0], candidates=self.scales[1])


def size_of(shapes: dict[str, tuple[int, ...]], levels: tuple[int, ...]) -> int:
    state = shapes["cluster"][0] + shapes["decision"][0]
    return len(levels) * state if levels else shapes["decision"][0] * shapes["candidates"][1] + state


def load_linear(path: Path, shapes: dict[str, tuple[int, ...]], levels: tuple[int, ...]) -> LinearScorer:
    """Reads a scorer of an environment with these shapes and levels.

    Raises:
        UserError: the file is damaged, or of another environment.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            found = {key: np.asarray(file[key], np.float64) for key in ("weights", "cluster", "candidates")}
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise UserError(f"'{path}' cannot be read as a linear policy: {error}") from error
    expected: Any = {"weights": (size_of(shapes, levels),), "cluster": (2, *shapes["cluster"]),
                     "candidates": (2, shapes["candidates"][1])}
    for key, array in found.items():
        if array.shape != expected[key] or not np.isfinite(array).all():
            raise UserError(f"'{path}': {key} has shape {array.shape}, expected {expected[key]} and finite; it is of "
                            "another environment, or damaged")
    return LinearScorer(shapes, levels, (found["cluster"], found["candidates"]), found["weights"])


def _scaled(rows: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return np.clip((rows - scale[0]) / scale[1], -8.0, 8.0)
