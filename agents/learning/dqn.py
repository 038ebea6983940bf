"""Deep Q-learning with masks (Mnih et al. 2015; Stable-Baselines3's DQN): `ooco-gym train agent=dqn`.

Stable-Baselines3's DQN knows no masks. Here the scores of the actor's own network are the values of actions, those of
illegal ones `MASKED`, so neither the greedy action nor the target's maximum is illegal; and a random action is a legal
one, drawn for each episode by itself. As for PPO, the discount over Δt simulated seconds is γ^Δt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import DictReplayBuffer
from stable_baselines3.common.type_aliases import DictReplayBufferSamples
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.dqn.policies import DQNPolicy
from torch import nn

from agents.environments import random_legal
from agents.policies.networks import CandidateScorer, ObservationEncoder
from ooco_gym.errors import UserError


class Values(nn.Module):
    """The value of each action, (batch, A), by the network of the actor; its parts are named as a policy's, so that
    what is saved is read as one."""

    def __init__(self, encoder: ObservationEncoder, hidden: int) -> None:
        super().__init__()
        self.features_extractor = self.pi_features_extractor = encoder
        self.mlp_extractor = CandidateScorer(self.features_extractor.layout, hidden)

    def forward(self, observation: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.mlp_extractor.forward_actor(self.features_extractor(observation))

    def set_training_mode(self, mode: bool) -> None:
        self.train(mode)


class ValuePolicy(DQNPolicy):
    """Two `Values` on one encoder, the second of which follows the first; takes the legal action of the greatest value.

    The encoder has no weights, only the scale of observations, which both must see alike."""

    def __init__(self, *args: Any, hidden: int, **kwargs: Any) -> None:
        self.hidden = hidden
        super().__init__(*args, **kwargs)

    def make_q_net(self: Any) -> Any:
        self.features_extractor = getattr(self, "features_extractor", None) or ObservationEncoder(
            self.observation_space)
        return Values(self.features_extractor, self.hidden).to(self.device)

    def _predict(self, obs: Any, deterministic: bool = True) -> torch.Tensor:
        return self.q_net(obs).argmax(dim=1)


class TimedReplayBuffer(DictReplayBuffer):
    """A replay buffer with a duration of each transition, `elapsed_s` (places, n_envs), which a callback fills before
    `add`; what is drawn from it has the discounts γ^Δt."""

    def __init__(self, *args: Any, discount_per_s: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.discount_per_s = discount_per_s
        self.elapsed_s, self.paid = np.zeros((2, self.buffer_size, self.n_envs))

    def _get_samples(self, batch_inds: np.ndarray, env: Any = None) -> DictReplayBufferSamples:
        at = batch_inds, np.random.randint(self.n_envs, size=len(batch_inds))  # noqa: NPY002 - as the rest of it draws
        ended = self.dones[at] * (1.0 - self.timeouts[at])  # an episode that was cut goes on
        rewards = self._normalize_reward(self.rewards[at].reshape(-1, 1), env)
        return DictReplayBufferSamples(
            observations={key: self.to_torch(values[at]) for key, values in self.observations.items()},
            actions=self.to_torch(self.actions[at]),
            next_observations={key: self.to_torch(values[at]) for key, values in self.next_observations.items()},
            dones=self.to_torch(ended.reshape(-1, 1)), rewards=self.to_torch(rewards),
            discounts=self.to_torch((self.discount_per_s ** self.elapsed_s[at]).astype(np.float32).reshape(-1, 1)))


class MaskedDQN(DQN):
    """DQN that explores by legal actions, which `drawing` draws."""

    drawing: np.random.Generator

    def _sample_action(self: Any, learning_starts: int, action_noise: Any = None, n_envs: int = 1
                       ) -> tuple[np.ndarray, np.ndarray]:
        share = 1.0 if self.num_timesteps < learning_starts else self.exploration_rate
        greedy, _ = self.policy.predict(self._last_obs, deterministic=True)
        legal = random_legal(self._last_obs["action_mask"], self.drawing)
        actions = np.where(self.drawing.random(n_envs) < share, legal, greedy)
        return actions, actions


def build_dqn(env: Any, agent: Mapping[str, Any], seed: int) -> MaskedDQN:
    """Builds the model that learns in `env` (a `VecEnv`).

    Raises:
        UserError: its actions are vectors of levels.
    """
    if not isinstance(env.action_space, spaces.Discrete):
        raise UserError(f"agent dqn values single actions, and this environment has {env.action_space}: train "
                        "agent=maskable_ppo or agent=cma_linear")
    rate = LinearSchedule(float(agent["learning_rate"]), 0.0, 1.0) if agent["anneal"] else agent["learning_rate"]
    model = MaskedDQN(
        ValuePolicy, env, learning_rate=rate, policy_kwargs={"hidden": int(agent["hidden"])}, seed=seed, device="cpu",
        replay_buffer_class=TimedReplayBuffer, replay_buffer_kwargs={"discount_per_s": agent["discount_per_s"]},
        train_freq=int(agent["n_steps"]), learning_starts=int(agent["scale_decisions"]),
        **{key: agent[key] for key in ("buffer_size", "batch_size", "gradient_steps", "exploration_fraction",
                                       "exploration_final_eps", "target_update_interval", "max_grad_norm")})
    model.drawing = np.random.default_rng((seed, 9))
    return model
