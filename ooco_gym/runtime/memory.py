"""What a policy that looks back keeps between decisions: the last cluster vectors."""

from __future__ import annotations

from typing import Any

import numpy as np

from ooco_gym.errors import UserError


class Memory:
    """Keeps the last `length` cluster vectors of one episode, the newest first, as the policy was trained on them.

    Args:
        length: vectors that the policy sees in one (`Policy.history`).
        size: features of one vector (Fc).
    """

    def __init__(self, length: int, size: int) -> None:
        self._kept: np.ndarray | None = None  # (length, Fc)
        self._shape = (length, size)

    def see(self, cluster: Any) -> np.ndarray:
        """The `cluster` for the policy, (length · Fc,), when this vector (Fc,) has come; the first fills every place.

        Raises:
            UserError: it has another shape.
        """
        length, size = self._shape
        vector = np.asarray(cluster, dtype=np.float32)
        if vector.shape != (size,):
            raise UserError(f"cluster has shape {vector.shape}; expected ({size},): one vector at a time")
        if self._kept is None:
            self._kept = np.repeat(vector[None], length, axis=0)
        else:
            self._kept = np.concatenate([vector[None], self._kept[:-1]])
        return self._kept.reshape(-1)

    def forget(self) -> None:
        """Begins anew."""
        self._kept = None
