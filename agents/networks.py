"""The actor and critic of decisions among candidates: a scorer shared by all of them, with observation scaling inside.

A decision "one of the fixed actions (no, or what the partner would do), or one of K candidates" does not depend on the
order in which candidates are listed. `CandidateScorer` keeps that symmetry: permuting the candidates permutes their
logits and changes neither those of the fixed actions nor the value. Scaling lives in the network
(`ObservationEncoder`), so a saved policy is whole by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib.common.maskable.policies import MaskableMultiInputActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

from agents.environments import OBSERVATION_KEYS
from ooco_gym.errors import UserError

_CLIP = 8.0
_RELATIVE_FLOOR = 1e-3


class FeatureScale(nn.Module):
    """Running mean and standard deviation of `n` features, applied as clip((x - mean) / deviation, -8, 8).

    A feature that hardly varies is divided by a thousandth of its declared range instead of by noise.
    """

    mean: torch.Tensor
    deviation: torch.Tensor
    moments: torch.Tensor
    floor: torch.Tensor

    def __init__(self, low: np.ndarray, high: np.ndarray) -> None:
        super().__init__()
        n = low.shape[0]
        width = np.where(np.isfinite(high) & np.isfinite(low), high.astype(np.float64) - low, 1.0)
        self.register_buffer("floor", torch.as_tensor(np.maximum(width * _RELATIVE_FLOOR, 1e-8), dtype=torch.float32))
        self.register_buffer("mean", torch.zeros(n))
        self.register_buffer("deviation", torch.ones(n))
        self.register_buffer("moments", torch.zeros(3, n, dtype=torch.float64))  # count, mean, sum of squares

    def update(self, values: np.ndarray) -> None:
        """Adds rows `values` (m, n) to the running moments (Chan's parallel formula)."""
        if not len(values):
            return
        rows = torch.as_tensor(np.asarray(values, dtype=np.float64))
        count, mean, squares = self.moments
        m, delta = rows.shape[0], rows.mean(0) - mean
        total = count + m
        squares = squares + ((rows - rows.mean(0)) ** 2).sum(0) + delta**2 * count * m / total
        self.moments.copy_(torch.stack([total, mean + delta * m / total, squares]))
        self.mean.copy_(self.moments[1])
        self.deviation.copy_(torch.maximum((self.moments[2] / total).sqrt().float(), self.floor))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scales `x` (..., n)."""
        return ((x - self.mean) / self.deviation).clamp(-_CLIP, _CLIP)

    def describe(self) -> dict[str, list[float]]:
        """Returns the applied mean and deviation, for people and for `normalisation.json`."""
        return {"mean": self.mean.tolist(), "deviation": self.deviation.tolist()}


class ObservationEncoder(BaseFeaturesExtractor):
    """Scales an observation and lays it out flat: cluster (Fc), decision (D), candidates (K·F), their legality (K).

    `decision` is one-hot and stays as it is. The statistics of a candidate's features are shared by all K places and
    come from legal candidates only, so that padding does not move them.
    """

    def __init__(self, observation_space: spaces.Dict) -> None:
        check_observation_space(observation_space)
        cluster, candidates = observation_space["cluster"], observation_space["candidates"]
        assert isinstance(cluster, spaces.Box) and isinstance(candidates, spaces.Box)
        self.places, features = candidates.shape
        flat = cluster.shape[0] + _size(observation_space, "decision") + self.places * (features + 1)
        super().__init__(observation_space, features_dim=flat)
        self.fixed = _size(observation_space, "action_mask") - self.places
        self.cluster = FeatureScale(cluster.low, cluster.high)
        self.candidates = FeatureScale(candidates.low.min(axis=0), candidates.high.max(axis=0))

    def update(self, observations: Mapping[str, np.ndarray]) -> None:
        """Adds a batch of raw observations (leading axes of any shape) to the running statistics."""
        candidates = observations["candidates"]
        places, features = candidates.shape[-2:]
        legal = observations["action_mask"].reshape(-1, self.fixed + places)[:, self.fixed :] > 0
        self.cluster.update(observations["cluster"].reshape(-1, observations["cluster"].shape[-1]))
        self.candidates.update(candidates.reshape(-1, places, features)[legal])

    def forward(self, observations: dict[str, torch.Tensor]) -> torch.Tensor:
        """Returns (batch, Fc + D + K·F + K)."""
        legal = observations["action_mask"][:, self.fixed :].to(torch.float32)
        cluster = self.cluster(observations["cluster"].to(torch.float32))
        candidates = self.candidates(observations["candidates"].to(torch.float32)) * legal.unsqueeze(-1)
        decision = observations["decision"].to(torch.float32)
        return torch.cat([cluster, decision, candidates.flatten(1), legal], dim=1)


def _size(space: spaces.Dict, key: str) -> int:
    shape = space[key].shape
    assert shape is not None
    return int(shape[0])


class _SetEncoder(nn.Module):
    """Embeds each candidate beside the cluster and averages the legal ones: (batch, K, h) and (batch, h)."""

    def __init__(self, cluster: int, features: int, hidden: int) -> None:
        super().__init__()
        self.of_candidate = nn.Linear(features, hidden)
        self.of_cluster = nn.Linear(cluster, hidden, bias=False)
        self.second = nn.Linear(hidden, hidden)

    def forward(
        self, cluster: torch.Tensor, candidates: torch.Tensor, legal: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        first = torch.tanh(self.of_candidate(candidates) + self.of_cluster(cluster).unsqueeze(1))
        embedded = torch.tanh(self.second(first))
        weight = legal / legal.sum(1, keepdim=True).clamp(min=1.0)
        return embedded, (embedded * weight.unsqueeze(-1)).sum(1)


class CandidateScorer(nn.Module):
    """From the flat features of `ObservationEncoder` to A logits (actor) and a value latent (critic).

    Actor: logit of candidate k = head(embedding of k, mean embedding of the legal ones, cluster); logits of the fixed
    actions = head(mean embedding, cluster). The cluster's features include which decision is due. Actor and critic have
    embeddings of their own.

    Args:
        cluster: features of the cluster and the decision.
        places, features: candidates (K), and features of each.
        fixed: actions before those of the candidates (A - K).
        hidden: width of every layer.
    """

    def __init__(self, cluster: int, places: int, features: int, fixed: int, hidden: int) -> None:
        super().__init__()
        self.sizes = (cluster, places, features)
        self.latent_dim_pi, self.latent_dim_vf = fixed + places, hidden
        self.actor = _SetEncoder(cluster, features, hidden)
        self.score_own, self.score_pool = nn.Linear(hidden, hidden), nn.Linear(hidden + cluster, hidden, bias=False)
        self.fixed_pool = nn.Linear(hidden + cluster, hidden)
        self.score, self.fixed = nn.Linear(hidden, 1), nn.Linear(hidden, fixed)
        self.critic = _SetEncoder(cluster, features, hidden)
        self.value = nn.Linear(hidden + cluster, hidden)

    def _split(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        cluster, places, features = self.sizes
        candidates = x[:, cluster : cluster + places * features].reshape(-1, places, features)
        return x[:, :cluster], candidates, x[:, cluster + places * features :]

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns (logits (batch, A), value latent (batch, hidden))."""
        return self.forward_actor(x), self.forward_critic(x)

    def forward_actor(self, x: torch.Tensor) -> torch.Tensor:
        """Returns logits (batch, A), the fixed actions first."""
        cluster, candidates, legal = self._split(x)
        embedded, pooled = self.actor(cluster, candidates, legal)
        context = torch.cat([pooled, cluster], dim=1)
        own = torch.tanh(self.score_own(embedded) + self.score_pool(context).unsqueeze(1))
        fixed = self.fixed(torch.tanh(self.fixed_pool(context)))
        return torch.cat([fixed, self.score(own).squeeze(-1)], dim=1)

    def forward_critic(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the value latent (batch, hidden)."""
        cluster, candidates, legal = self._split(x)
        _, pooled = self.critic(cluster, candidates, legal)
        return torch.tanh(self.value(torch.cat([pooled, cluster], dim=1)))


class CandidatePolicy(MaskableMultiInputActorCriticPolicy):
    """A Stable-Baselines3 policy whose actor is a `CandidateScorer` of width `hidden`."""

    def __init__(self, *args: Any, hidden: int = 64, **kwargs: Any) -> None:
        self.hidden = hidden
        kwargs.setdefault("features_extractor_class", ObservationEncoder)
        super().__init__(*args, **kwargs)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), "hidden": self.hidden}

    def _build_mlp_extractor(self) -> None:
        space, encoder = self.observation_space, self.features_extractor
        assert isinstance(space, spaces.Dict) and isinstance(encoder, ObservationEncoder)
        cluster, features = _size(space, "cluster") + _size(space, "decision"), space["candidates"].shape[-1]  # type: ignore[index]
        self.mlp_extractor = CandidateScorer(  # type: ignore[assignment]
            cluster, encoder.places, features, encoder.fixed, self.hidden)

    def _build(self, lr_schedule: Any) -> None:
        super()._build(lr_schedule)
        self.action_net = nn.Identity()  # type: ignore[assignment]  # the scorer's output already is the logits
        scorer = self.mlp_extractor
        assert isinstance(scorer, CandidateScorer)
        for head in (scorer.score, scorer.fixed):  # a nearly uniform policy at first, as SB3 does for its action_net
            nn.init.orthogonal_(head.weight, gain=0.01)
        self.optimizer = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)  # type: ignore[call-arg]


class Actor(nn.Module):
    """The decision alone: raw observation and mask in, arg-max action and masked logits out.

    It is what evaluation runs and what `export` writes, so both are the same arithmetic.
    """

    MASKED_LOGIT = -1e8  # as sb3-contrib masks

    def __init__(self, policy: MaskableMultiInputActorCriticPolicy) -> None:
        super().__init__()
        self.encoder = policy.pi_features_extractor
        self.scorer = policy.mlp_extractor
        self.head = policy.action_net

    def actor_parameters(self) -> list[nn.Parameter]:
        """The parameters that decide; actor and critic share none."""
        value = ("critic.", "value.", "value_net.")  # of CandidateScorer, and of SB3's MlpExtractor
        named = [*self.scorer.named_parameters(), *self.head.named_parameters()]
        return [parameter for name, parameter in named if not name.startswith(value)]

    def forward(
        self, cluster: torch.Tensor, candidates: torch.Tensor, action_mask: torch.Tensor, decision: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns action (batch,) int64 and logits (batch, A) for cluster (batch, Fc), candidates (batch, K, F),
        action_mask (batch, A) and decision (batch, D)."""
        legal = action_mask > 0
        observation = {"cluster": cluster, "candidates": candidates, "action_mask": legal, "decision": decision}
        logits = self.head(self.scorer.forward_actor(self.encoder(observation)))
        logits = torch.where(legal, logits, torch.full_like(logits, self.MASKED_LOGIT))
        return logits.argmax(dim=1), logits


def check_observation_space(space: spaces.Space) -> None:
    """Raises UserError unless `space` is the Dict of cluster (Fc,), candidates (K, F), action_mask (A,), decision (D,).
    """
    shapes = {key: space[key].shape for key in space} if isinstance(space, spaces.Dict) else {}
    missing = [key for key in OBSERVATION_KEYS if key not in shapes]
    if missing:
        raise UserError(
            f"the environment's observation lacks {', '.join(missing)}; a policy is trained on a Dict of "
            f"{', '.join(OBSERVATION_KEYS)}"
        )


def check_action_space(space: spaces.Space, env: str) -> None:
    """Raises UserError unless actions are Discrete."""
    if not isinstance(space, spaces.Discrete):
        raise UserError(f"{env} has {type(space).__name__} actions, which 'ooco-gym train' does not support: learn on "
                        "it with agents.vector.GymnasiumVecEnv and sb3-contrib's MaskablePPO('MultiInputPolicy') "
                        "(docs/training.md)")
