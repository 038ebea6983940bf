"""DQN and QR-DQN for these environments: legal exploration, and a discount by simulated time."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sb3_contrib import QRDQN
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import DictReplayBuffer
from stable_baselines3.common.type_aliases import DictReplayBufferSamples

from agents.policies import random_legal


class TimedReplayBuffer(DictReplayBuffer):
    """`DictReplayBuffer` whose transitions are discounted by γ^Δt, Δt being `elapsed_s` of their infos.

    Args:
        discount_per_s: γ over one simulated second, in (0, 1].
    """

    def __init__(self, *args: Any, discount_per_s: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.discount_per_s = discount_per_s
        self.discounts = np.ones((self.buffer_size, self.n_envs), np.float32)

    def add(self, obs: Any, next_obs: Any, action: np.ndarray, reward: np.ndarray, done: np.ndarray,
            infos: list[dict[str, Any]]) -> None:
        """Adds a transition of each environment."""
        self.discounts[self.pos] = self.discount_per_s ** np.array([info.get("elapsed_s", 0.0) for info in infos])
        super().add(obs, next_obs, action, reward, done, infos)

    def sample(self, batch_size: int, env: Any = None) -> DictReplayBufferSamples:  # type: ignore[override]
        """Draws transitions, each with its discount."""
        rows = np.random.randint(0, self.size(), size=batch_size)  # noqa: NPY002 - the stream that SB3 seeds
        places = np.random.randint(0, self.n_envs, size=batch_size)  # noqa: NPY002
        rewards = self.rewards[rows, places].reshape(-1, 1)
        done = (self.dones[rows, places] * (1 - self.timeouts[rows, places])).reshape(-1, 1)
        return DictReplayBufferSamples(
            observations={key: self.to_torch(part[rows, places]) for key, part in self.observations.items()},
            actions=self.to_torch(self.actions[rows, places]),
            next_observations={key: self.to_torch(part[rows, places]) for key, part in self.next_observations.items()},
            dones=self.to_torch(done), rewards=self.to_torch(self._normalize_reward(rewards, env)),
            discounts=torch.as_tensor(self.discounts[rows, places]).reshape(-1, 1))


class _Legal:
    """Explores among legal actions alone; the mask is in the observation."""

    def predict(self: Any, observation: Any, state: Any = None, episode_start: Any = None,
                deterministic: bool = False) -> tuple[np.ndarray, Any]:
        """Takes the best action or, each place by itself with the rate of exploration, a random legal one."""
        best, state = self.policy.predict(observation, state, episode_start, True)
        if deterministic:
            return best, state
        masks = np.atleast_2d(observation["action_mask"])
        random = np.random.default_rng(np.random.randint(2**31))  # noqa: NPY002 - the stream that SB3 seeds
        exploring = random.random(len(masks)) < self.exploration_rate
        chosen = np.where(exploring, random_legal(masks, random), best)
        return (chosen if np.ndim(best) else chosen[0]), state

    def _sample_action(self: Any, learning_starts: int, action_noise: Any = None, n_envs: int = 1
                       ) -> tuple[np.ndarray, np.ndarray]:
        """Before learning starts actions are random, after it they are those of `predict`."""
        rate = self.exploration_rate
        if self.num_timesteps < learning_starts:
            self.exploration_rate = 1.0
        actions, _ = self.predict(self._last_obs, deterministic=False)
        self.exploration_rate = rate
        return actions, actions


class MaskedDQN(_Legal, DQN):
    """DQN (Mnih et al., 2015) that takes legal actions alone."""


class MaskedQRDQN(_Legal, QRDQN):
    """Quantile regression DQN (Dabney et al., 2018) that takes legal actions alone."""
