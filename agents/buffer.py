"""A rollout buffer that discounts by simulated time, not by decision.

Decisions come at uneven intervals, many a second, while an offline request lives about a minute: a fixed discount for
each decision would look a second ahead. The discount over a step of Δt seconds is γ^Δt, the trace decay λ^Δt.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer
from stable_baselines3.common.buffers import DictRolloutBuffer


def timed_advantages(rewards: np.ndarray, values: np.ndarray, last_values: np.ndarray, starts: np.ndarray,
                     dones: np.ndarray, elapsed_s: np.ndarray, discount_per_s: float,
                     trace_per_s: float) -> np.ndarray:
    """Generalised advantages (Schulman et al. 2016, arXiv 1506.02438) with γ^Δt and (γλ)^Δt: float64 (steps, places).

    Args:
        rewards, values: of each step, (steps, places); rewards are paid at the end of the step.
        last_values: of what comes after the last step, (places,).
        starts: whether an episode begins at a step, (steps, places); what came before it does not see past it.
        dones: whether the last step ended an episode, (places,).
        elapsed_s: simulated duration of each step, (steps, places).
        discount_per_s: γ over one simulated second.
        trace_per_s: λ over one simulated second.
    """
    discount = discount_per_s**elapsed_s
    decay = discount * trace_per_s**elapsed_s
    advantages = np.zeros(rewards.shape)
    next_value, alive = np.asarray(last_values, np.float64), 1.0 - np.asarray(dones, np.float64)
    advantage: Any = 0.0
    for step in reversed(range(len(rewards))):
        delta = rewards[step] + discount[step] * next_value * alive - values[step]
        advantage = delta + decay[step] * alive * advantage
        advantages[step] = advantage
        next_value, alive = values[step], 1.0 - starts[step]
    return advantages


class _Timed:
    """A rollout buffer with a duration for each transition.

    Args:
        discount_per_s: γ over one simulated second, in (0, 1].
        trace_per_s: λ of generalised advantage estimation over one simulated second, in [0, 1].

    `elapsed_s` (n_steps, n_envs) is filled by whoever steps the environment, before `add`.
    """

    elapsed_s: np.ndarray

    def __init__(self, *args: Any, discount_per_s: float, trace_per_s: float, **kwargs: Any) -> None:
        self.discount_per_s, self.trace_per_s = discount_per_s, trace_per_s
        super().__init__(*args, **kwargs)

    def reset(self: Any) -> None:
        """Empties the buffer; durations start at zero, which means no discount."""
        super().reset()  # type: ignore[misc]
        self.elapsed_s = np.zeros((self.buffer_size, self.n_envs), dtype=np.float64)

    def compute_returns_and_advantage(self: Any, last_values: torch.Tensor, dones: np.ndarray) -> None:
        """Generalised advantages in simulated time; returns are advantages plus values."""
        self.advantages[:] = timed_advantages(
            self.rewards, self.values, last_values.detach().cpu().numpy().flatten(), self.episode_starts, dones,
            self.elapsed_s, self.discount_per_s, self.trace_per_s)
        self.returns = self.advantages + self.values


class TimedRolloutBuffer(_Timed, MaskableDictRolloutBuffer):
    """`MaskableDictRolloutBuffer` with a duration for each transition; takes `discount_per_s`, `trace_per_s` too."""


class UnmaskedTimedRolloutBuffer(_Timed, DictRolloutBuffer):
    """`DictRolloutBuffer` with a duration for each transition; takes `discount_per_s`, `trace_per_s` too."""
