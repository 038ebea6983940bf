"""DQN and QR-DQN for these environments: legal exploration, and a discount by simulated time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from sb3_contrib import QRDQN
from sb3_contrib.qrdqn.policies import QRDQNPolicy, QuantileNetwork
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import DictReplayBuffer
from stable_baselines3.common.type_aliases import DictReplayBufferSamples
from stable_baselines3.dqn.policies import DQNPolicy, QNetwork
from torch import nn

from agents.environments import random_legal
from agents.learning.networks import ObservationEncoder, Scorer, build_scorer


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


class _OfActions:
    """What the networks of DQN and QR-DQN have in common: a scorer's actor instead of plain layers."""

    def __init__(self, *args: Any, scoring: Mapping[str, Any], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.scoring = dict(scoring)
        encoder: Any = self.features_extractor  # type: ignore[attr-defined]
        self.scorer = build_scorer(encoder, **self.scoring, outputs=getattr(self, "n_quantiles", 1))
        self.scorer.forget_critic()
        self.q_net = self.quantile_net = nn.Identity()  # Stable-Baselines3's plain layers are not used

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), "scoring": self.scoring}  # type: ignore[misc]


class CandidateQNetwork(_OfActions, QNetwork):
    """Values of the actions, (batch, A); illegal ones have a value that is never the largest."""

    def forward(self, obs: Any) -> torch.Tensor:
        """Returns (batch, A)."""
        return self.scorer.forward_actor(self.extract_features(obs, self.features_extractor))


class CandidateQuantileNetwork(_OfActions, QuantileNetwork):
    """Quantiles of the values of the actions, (batch, n_quantiles, A)."""

    def forward(self, obs: Any) -> torch.Tensor:
        """Returns (batch, n_quantiles, A)."""
        return self.scorer.forward_actor(self.extract_features(obs, self.features_extractor)).transpose(1, 2)


class _Valued:
    """What the policies of DQN and QR-DQN have in common.

    Attributes:
        network_name: what Stable-Baselines3 calls the network that decides.
    """

    network_name: ClassVar[str]

    def __init__(self, *args: Any, network: str = "candidate_scorer", hidden: int = 64, joint: bool = False,
                 **kwargs: Any) -> None:
        self.scoring = {"network": network, "hidden": hidden, "joint": joint}
        kwargs.setdefault("features_extractor_class", ObservationEncoder)
        super().__init__(*args, **kwargs)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), **self.scoring}  # type: ignore[misc]

    def _network(self: Any, kind: Any) -> Any:
        if not isinstance(self.features_extractor, ObservationEncoder):
            self.features_extractor = self.make_features_extractor()
        # Network and target share the scaling, which nothing is learned by.
        arguments = self._update_features_extractor(self.net_args, features_extractor=self.features_extractor)
        return kind(**arguments, scoring=self.scoring).to(self.device)

    def deciding_parts(self) -> tuple[ObservationEncoder, Scorer]:
        """The encoder of observations and the scorer of actions."""
        network: Any = getattr(self, self.network_name)
        return network.features_extractor, network.scorer


class CandidateDQNPolicy(_Valued, DQNPolicy):
    """For DQN."""

    network_name = "q_net"

    def make_q_net(self) -> CandidateQNetwork:
        """A network of the actions' values."""
        return self._network(CandidateQNetwork)


class CandidateQRDQNPolicy(_Valued, QRDQNPolicy):
    """For QR-DQN."""

    network_name = "quantile_net"

    def make_quantile_net(self) -> CandidateQuantileNetwork:
        """A network of the quantiles of the actions' values."""
        return self._network(CandidateQuantileNetwork)

