"""Copies the observations, step information and rewards of N episodes in one compiled call."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from ooco_gym.compile import inner, jit
from ooco_gym.envs import reward as r
from ooco_gym.envs.buffers import buffers_at
from ooco_gym.envs.episodes import INFO_KEYS, Episodes

_INFOS = tuple(key for key in INFO_KEYS if key != "reward")


class BatchStep:
    """Copies the observations and step information of all episodes of the buffers.

    Observations share one block of memory, step information another one; rewards have their own.
    Keeping one part keeps only its block.

    Args:
        episodes: the episodes whose buffers are read.
    """

    def __init__(self, episodes: Episodes) -> None:
        buffers = episodes.buffers
        self._address, self._count = episodes.address, len(buffers.status)
        n, actions = buffers.mask.shape
        masks = ("action_mask", np.int8, (n, actions))
        self._observed = np.dtype([("cluster", np.float32, buffers.cluster.shape),
                                   ("candidates", np.float32, (n, buffers.candidates[0].size)),
                                   ("decision", np.float32, buffers.decision.shape), masks])
        self._infos = np.dtype([*((key, np.float64, (n,)) for key in _INFOS), masks])
        self._sizes = -(-self._observed.itemsize // 4), -(-self._infos.itemsize // 8)

    def take(self, infos: dict[str, Any]) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Returns the parts of the observations, and the rewards; writes step information and
        masks into `infos`."""
        observed_size, columns_size = self._sizes
        observed, columns, rewards = np.empty(observed_size, np.float32), np.empty(columns_size), np.empty(self._count)
        copy_out(self._address, observed, columns, rewards)
        named: Any = np.ndarray((), self._infos, columns)
        for key in _INFOS:
            infos[key] = named[key]
        infos["action_mask"] = named["action_mask"]
        parts: Any = np.ndarray((), self._observed, observed)
        return {"cluster": parts["cluster"], "candidates": parts["candidates"], "action_mask": parts["action_mask"],
                "decision": parts["decision"]}, rewards


@inner
def _copied(source, out, begin):
    """Copies `source` (one axis) into `out[begin:]`. Returns the end index."""
    end = begin + source.size
    there = out[begin:end]  # indices from 0 on, which cannot be negative, are copied in bulk
    for k in range(source.size):
        there[k] = source[k]
    return end


@jit(types.void(types.int64, types.float32[::1], types.float64[::1], types.float64[::1]))
def copy_out(buffers_address, observed, infos, rewards):
    """Copies what a step returns.

    Args:
        buffers_address: address of the buffers (`buffers.buffers_handle`).
        observed: receives cluster, candidates, decision and, as bytes, the mask.
        infos: receives the columns of step information except the reward, each for all
            episodes, then the mask.
        rewards: receives the reward of each episode.
    """
    buffers = buffers_at(buffers_address)
    episodes = rewards.size
    mask = buffers.mask.reshape(buffers.mask.size)
    end = _copied(buffers.cluster.reshape(buffers.cluster.size), observed, 0)
    end = _copied(buffers.candidates.reshape(buffers.candidates.size), observed, end)
    end = _copied(buffers.decision.reshape(buffers.decision.size), observed, end)
    _copied(mask, observed.view(np.int8), 4 * end)
    _copied(mask, infos.view(np.int8), 8 * (r.ELAPSED - r.TERM) * episodes)
    reward_sums, begin = buffers.reward_sums, 0
    for column in range(r.TERM, r.ELAPSED + 1):
        there = rewards
        if column != r.REWARD:
            there, begin = infos[begin : begin + episodes], begin + episodes
        for i in range(episodes):
            there[i] = reward_sums[i, column]
