"""What a step of N episodes returns: copies of their observations, figures and rewards, made in one compiled call."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from ooco_gym.compile import inner, jit
from ooco_gym.envs import reward as r
from ooco_gym.envs.buffers import buffers_at
from ooco_gym.envs.episodes import INFO_KEYS, Episodes

_FIGURES = tuple(key for key in INFO_KEYS if key != "reward")


class BatchStep:
    """Copies of the observations and figures of all episodes of the buffers.

    The parts of the observations share one block of memory, the figures another one, and rewards have their own:
    keeping one part keeps no more than its block.

    Args:
        episodes: the buffers are theirs.
    """

    def __init__(self, episodes: Episodes) -> None:
        buffers = episodes.buffers
        self._address, self._count = episodes.address, len(buffers.status)
        n, actions = buffers.mask.shape
        masks = ("action_mask", np.int8, (n, actions))
        self._observed = np.dtype([("cluster", np.float32, buffers.cluster.shape),
                                   ("candidates", np.float32, (n, buffers.candidates[0].size)),
                                   ("decision", np.float32, buffers.decision.shape), masks])
        self._figures = np.dtype([*((key, np.float64, (n,)) for key in _FIGURES), masks])
        self._sizes = -(-self._observed.itemsize // 4), -(-self._figures.itemsize // 8)

    def take(self, infos: dict[str, Any]) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Parts of the observations, and rewards; figures and masks of legality go into `infos`."""
        observed_size, figures_size = self._sizes
        observed, figures, rewards = np.empty(observed_size, np.float32), np.empty(figures_size), np.empty(self._count)
        copy_out(self._address, observed, figures, rewards)
        named: Any = np.ndarray((), self._figures, figures)
        for key in _FIGURES:
            infos[key] = named[key]
        infos["action_mask"] = named["action_mask"]
        parts: Any = np.ndarray((), self._observed, observed)
        return {"cluster": parts["cluster"], "candidates": parts["candidates"], "action_mask": parts["action_mask"],
                "decision": parts["decision"]}, rewards


@inner
def _copied(source, out, begin):
    """Copies `source` (one axis) into `out` from `begin` on. Returns where it ends."""
    end = begin + source.size
    there = out[begin:end]  # indices from 0 on, which cannot be negative, are copied in bulk
    for k in range(source.size):
        there[k] = source[k]
    return end


@jit(types.void(types.int64, types.float32[::1], types.float64[::1], types.float64[::1]))
def copy_out(buffers_address, observed, figures, rewards):
    """Copies what a step returns.

    Args:
        buffers_address: address of the buffers (`buffers.buffers_handle`).
        observed: takes cluster, candidates, decision and, as bytes, the mask.
        figures: takes the figures of the step but for the reward, each for all episodes, and the mask.
        rewards: takes the reward of each episode.
    """
    buffers = buffers_at(buffers_address)
    episodes = rewards.size
    mask = buffers.mask.reshape(buffers.mask.size)
    end = _copied(buffers.cluster.reshape(buffers.cluster.size), observed, 0)
    end = _copied(buffers.candidates.reshape(buffers.candidates.size), observed, end)
    end = _copied(buffers.decision.reshape(buffers.decision.size), observed, end)
    _copied(mask, observed.view(np.int8), 4 * end)
    _copied(mask, figures.view(np.int8), 8 * (r.ELAPSED - r.TERM) * episodes)
    reward_sums, begin = buffers.reward_sums, 0
    for column in range(r.TERM, r.ELAPSED + 1):
        there = rewards
        if column != r.REWARD:
            there, begin = figures[begin : begin + episodes], begin + episodes
        for i in range(episodes):
            there[i] = reward_sums[i, column]
