"""A rollout buffer that discounts by simulated time, not by decision.

Decisions come at uneven intervals, many a second, while an offline request lives about a minute: a fixed discount for
each decision would look a second ahead. The discount over a step of Δt seconds is γ^Δt, the trace decay λ^Δt.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer


class TimedRolloutBuffer(MaskableDictRolloutBuffer):
    """`MaskableDictRolloutBuffer` with a duration for each transition.

    Args:
        discount_per_s: γ over one simulated second, in (0, 1].
        trace_per_s: λ of generalised advantage estimation over one simulated second, in [0, 1].

    `elapsed_s` (n_steps, n_envs) is filled by whoever steps the environment, before `add`.
    """

    elapsed_s: np.ndarray

    def __init__(self, *args: Any, discount_per_s: float, trace_per_s: float, **kwargs: Any) -> None:
        self.discount_per_s, self.trace_per_s = discount_per_s, trace_per_s
        super().__init__(*args, **kwargs)

    def reset(self) -> None:
        """Empties the buffer; durations start at zero, which means no discount."""
        super().reset()
        self.elapsed_s = np.zeros((self.buffer_size, self.n_envs), dtype=np.float64)

    def compute_returns_and_advantage(self, last_values: torch.Tensor, dones: np.ndarray) -> None:
        """Generalised advantages with γ^Δt and (γλ)^Δt; returns are advantages plus values."""
        discount = self.discount_per_s**self.elapsed_s
        decay = discount * self.trace_per_s**self.elapsed_s
        next_value, alive = last_values.clone().cpu().numpy().flatten(), 1.0 - dones.astype(np.float64)
        advantage: Any = 0.0
        for step in reversed(range(self.buffer_size)):
            delta = self.rewards[step] + discount[step] * next_value * alive - self.values[step]
            advantage = delta + decay[step] * alive * advantage
            self.advantages[step] = advantage
            next_value, alive = self.values[step], 1.0 - self.episode_starts[step]
        self.returns = self.advantages + self.values
