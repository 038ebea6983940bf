"""Prompts as token ids, so that two of them begin alike exactly where their block hashes do."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

_OWN = 1 << 44              # a request's own tokens lie beyond all shared ones
_LONGEST = 1 << 24


class Prompts:
    """Token ids of requests.

    The token at place `p` of a prompt depends on the hash of block `p // size` and on `p % size`; where there is no
    such hash, and beyond the prompt, it is the request's own.

    Args:
        case: `prompt_tokens` int[n], `hash_offsets` int64[n + 1] and `hash_values` int64.
        size: tokens that one hash stands for.
    """

    def __init__(self, case: Mapping[str, np.ndarray], size: int) -> None:
        self._prompt, self._size = case["prompt_tokens"], size
        self._offsets = case["hash_offsets"]
        self._number = np.unique(case["hash_values"], return_inverse=True)[1]

    def tokens(self, slot: int) -> list[int]:
        """The prompt of a request."""
        size, length = self._size, int(self._prompt[slot])
        numbers = self._number[self._offsets[slot]:self._offsets[slot + 1]].astype(np.int64)
        shared = (numbers[:, None] * size + np.arange(size)).ravel()[:length]
        return [*shared.tolist(), *(self.own(slot, place) for place in range(len(shared), length))]

    @staticmethod
    def own(slot: int, place: int) -> int:
        """The token at `place` of the context of request `slot`, which nobody shares."""
        return _OWN + slot * _LONGEST + place
