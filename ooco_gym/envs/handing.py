"""What a step of N episodes returns, copied out of their buffers by one compiled call into memory of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from ooco_gym.compile import inner, jit
from ooco_gym.envs.buffers import buffers_at
from ooco_gym.envs.episodes import INFO_KEYS, Episodes
from ooco_gym.envs.reward import ELAPSED, PART, REWARD

_TOLD = tuple(key for key in INFO_KEYS if key != "reward")


class BatchStep:
    """Copies of the observations and figures of all episodes of the buffers.

    The parts of the observations share one block of memory, the figures another one, and rewards have their own: who
    keeps one part keeps no more than its block.

    Args:
        episodes: whose buffers.
    """

    def __init__(self, episodes: Episodes) -> None:
        buffers = episodes.buffers
        self._address, self._count = episodes.address, len(buffers.turns)
        n, actions = buffers.mask.shape
        self._seen = np.dtype([("cluster", np.float32, buffers.cluster.shape),
                               ("candidates", np.float32, (n, buffers.candidates[0].size)),
                               ("decision", np.float32, buffers.decision.shape),
                               ("action_mask", np.int8, (n, actions))])
        self._told = np.dtype([*((key, np.float64, (n,)) for key in _TOLD), ("action_mask", np.int8, (n, actions))])
        self._sizes = -(-self._seen.itemsize // 4), -(-self._told.itemsize // 8)

    def take(self, infos: dict[str, Any]) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Observations and rewards; figures and masks of legality go into `infos`."""
        seen_size, told_size = self._sizes
        seen, told, rewards = np.empty(seen_size, np.float32), np.empty(told_size), np.empty(self._count)
        copy_out(self._address, seen, told, rewards)
        parts: Any = np.ndarray((), self._seen, seen)
        figures: Any = np.ndarray((), self._told, told)
        for key in _TOLD:
            infos[key] = figures[key]
        infos["action_mask"] = figures["action_mask"]
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
def copy_out(buffers_address, seen, told, rewards):
    """Copies what a step returns.

    Args:
        buffers_address: address of the buffers (`buffers.buffers_handle`).
        seen: takes cluster, candidates, decision and, as bytes, the mask.
        told: takes the account's figures of the step but for the reward, each for all episodes, and the mask.
        rewards: takes the reward of each episode.
    """
    buffers = buffers_at(buffers_address)
    episodes = rewards.size
    end = _copied(buffers.cluster.reshape(buffers.cluster.size), seen, 0)
    end = _copied(buffers.candidates.reshape(buffers.candidates.size), seen, end)
    end = _copied(buffers.decision.reshape(buffers.decision.size), seen, end)
    mask = buffers.mask.reshape(buffers.mask.size)
    _copied(mask, seen.view(np.int8), 4 * end)
    _copied(mask, told.view(np.int8), 8 * (ELAPSED - PART) * episodes)
    account, begin = buffers.account, 0
    for column in range(PART, ELAPSED + 1):
        there = rewards
        if column != REWARD:
            there, begin = told[begin : begin + episodes], begin + episodes
        for i in range(episodes):
            there[i] = account[i, column]
