"""Policies of Stable-Baselines3 and sb3-contrib around a scorer of actions: for PPO and its kin, DQN and QR-DQN."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib.common.maskable.policies import MaskableMultiInputActorCriticPolicy
from sb3_contrib.qrdqn.policies import QRDQNPolicy, QuantileNetwork
from stable_baselines3.common.policies import MultiInputActorCriticPolicy
from stable_baselines3.dqn.policies import DQNPolicy, QNetwork
from torch import nn

from agents.networks import ObservationEncoder
from agents.scorers import SCORERS, Scorer


def levels_of(space: spaces.Space) -> tuple[int, ...]:
    """How many levels each part of an action has; none where the action is one of a few."""
    return tuple(int(count) for count in space.nvec) if isinstance(space, spaces.MultiDiscrete) else ()


def policy_arguments(agent: Mapping[str, Any]) -> dict[str, Any]:
    """What the policies of this module take from an agent's configuration."""
    return {"network": agent["network"], "hidden": int(agent["hidden"]), "joint": agent.get("heads") == "joint"}


class _ActorCritic:
    """What the two kinds of actor-critic policies have in common: a `Scorer` as the `mlp_extractor`.

    Args:
        network: a name of `agents.scorers.SCORERS`.
        hidden: width of its layers.
        joint: whether each kind of decision has a last layer of its own.
    """

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space, *args: Any,
                 network: str = "candidate_scorer", hidden: int = 64, joint: bool = False, **kwargs: Any) -> None:
        self.scoring = {"network": network, "hidden": hidden, "joint": joint}
        kwargs.setdefault("features_extractor_class", ObservationEncoder)
        kwargs.setdefault("features_extractor_kwargs", {"levels": levels_of(action_space)})
        super().__init__(observation_space, action_space, *args, **kwargs)  # type: ignore[call-arg]

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), **self.scoring}  # type: ignore[misc]

    def _build_mlp_extractor(self) -> None:
        encoder: Any = self.features_extractor  # type: ignore[attr-defined]
        self.mlp_extractor = _scorer(encoder, **self.scoring)

    def _build(self: Any, lr_schedule: Any) -> None:
        super()._build(lr_schedule)  # type: ignore[misc]
        self.action_net = nn.Identity()  # the scorer's output already is the logits
        self.mlp_extractor.start_uniform()
        self.optimizer = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)

    def deciding_parts(self: Any) -> tuple[ObservationEncoder, Scorer]:
        """The encoder of observations and the scorer of actions."""
        return self.pi_features_extractor, self.mlp_extractor


class CandidatePolicy(_ActorCritic, MaskableMultiInputActorCriticPolicy):
    """For MaskablePPO and what is built on it."""


class UnmaskedCandidatePolicy(_ActorCritic, MultiInputActorCriticPolicy):
    """For PPO, A2C and the like, which know of no masks: the scorer applies the one in the observation."""


def _scorer(encoder: ObservationEncoder, network: str, hidden: int, joint: bool, outputs: int = 1) -> Scorer:
    return SCORERS[network](encoder.layout, hidden, outputs, joint)


class _OfActions:
    """What the networks of DQN and QR-DQN have in common: a scorer's actor instead of plain layers."""

    def __init__(self, *args: Any, scoring: Mapping[str, Any], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.scoring = dict(scoring)
        encoder: Any = self.features_extractor  # type: ignore[attr-defined]
        self.scorer = _scorer(encoder, **self.scoring, outputs=getattr(self, "n_quantiles", 1))
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


def random_legal(masks: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Draws a legal action for each row of masks (N, A), all equally likely: (N,)."""
    return np.where(masks > 0, random.random(masks.shape), -1.0).argmax(axis=1)
