"""The actor and critic of a gate: a scorer shared by all candidates, with observation scaling inside.

The decision "hold, or start one of K waiting candidates" does not depend on the order in which candidates are
listed. `CandidateScorer` keeps that symmetry: permuting the candidates permutes their logits and changes neither the
hold logit nor the value. Scaling lives in the network (`ObservationEncoder`), so a saved policy is whole by itself.
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

from ooco_gym.errors import UserError

OBSERVATION_KEYS = ("cluster", "candidates", "action_mask")
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
    """Scales an observation and lays it out flat: cluster (Fc), candidates (K·F), legality of the candidates (K).

    The statistics of a candidate's features are shared by all K places and come from legal candidates only, so that
    padding does not move them.
    """

    def __init__(self, observation_space: spaces.Dict) -> None:
        check_observation_space(observation_space)
        cluster, candidates = observation_space["cluster"], observation_space["candidates"]
        assert isinstance(cluster, spaces.Box) and isinstance(candidates, spaces.Box)
        self_dim = cluster.shape[0] + int(np.prod(candidates.shape)) + candidates.shape[0]
        super().__init__(observation_space, features_dim=self_dim)
        self.cluster = FeatureScale(cluster.low, cluster.high)
        self.candidates = FeatureScale(candidates.low.min(axis=0), candidates.high.max(axis=0))

    def update(self, observations: Mapping[str, np.ndarray]) -> None:
        """Adds a batch of raw observations (leading axes of any shape) to the running statistics."""
        candidates = observations["candidates"]
        places, features = candidates.shape[-2:]
        legal = observations["action_mask"].reshape(-1, places + 1)[:, 1:] > 0
        self.cluster.update(observations["cluster"].reshape(-1, observations["cluster"].shape[-1]))
        self.candidates.update(candidates.reshape(-1, places, features)[legal])

    def forward(self, observations: dict[str, torch.Tensor]) -> torch.Tensor:
        """Returns (batch, Fc + K·F + K)."""
        legal = observations["action_mask"][:, 1:].to(torch.float32)
        cluster = self.cluster(observations["cluster"].to(torch.float32))
        candidates = self.candidates(observations["candidates"].to(torch.float32)) * legal.unsqueeze(-1)
        return torch.cat([cluster, candidates.flatten(1), legal], dim=1)


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
    """From the flat features of `ObservationEncoder` to K + 1 logits (actor) and a value latent (critic).

    Actor: logit of candidate k = head(embedding of k, mean embedding of the legal ones, cluster); logit of hold =
    head(mean embedding, cluster). Actor and critic have embeddings of their own.
    """

    def __init__(self, cluster: int, places: int, features: int, hidden: int) -> None:
        super().__init__()
        self.sizes = (cluster, places, features)
        self.latent_dim_pi, self.latent_dim_vf = places + 1, hidden
        self.actor = _SetEncoder(cluster, features, hidden)
        self.score_own, self.score_pool = nn.Linear(hidden, hidden), nn.Linear(hidden + cluster, hidden, bias=False)
        self.hold_pool = nn.Linear(hidden + cluster, hidden)
        self.score, self.hold = nn.Linear(hidden, 1), nn.Linear(hidden, 1)
        self.critic = _SetEncoder(cluster, features, hidden)
        self.value = nn.Linear(hidden + cluster, hidden)

    def _split(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        cluster, places, features = self.sizes
        candidates = x[:, cluster : cluster + places * features].reshape(-1, places, features)
        return x[:, :cluster], candidates, x[:, cluster + places * features :]

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns (logits (batch, K + 1), value latent (batch, hidden))."""
        return self.forward_actor(x), self.forward_critic(x)

    def forward_actor(self, x: torch.Tensor) -> torch.Tensor:
        """Returns logits (batch, K + 1), hold first."""
        cluster, candidates, legal = self._split(x)
        embedded, pooled = self.actor(cluster, candidates, legal)
        context = torch.cat([pooled, cluster], dim=1)
        own = torch.tanh(self.score_own(embedded) + self.score_pool(context).unsqueeze(1))
        hold = self.hold(torch.tanh(self.hold_pool(context)))
        return torch.cat([hold, self.score(own).squeeze(-1)], dim=1)

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
        space = self.observation_space
        assert isinstance(space, spaces.Dict)
        cluster, candidates = space["cluster"].shape, space["candidates"].shape
        assert cluster is not None and candidates is not None
        self.mlp_extractor = CandidateScorer(cluster[0], candidates[0], candidates[1], self.hidden)  # type: ignore[assignment]

    def _build(self, lr_schedule: Any) -> None:
        super()._build(lr_schedule)
        self.action_net = nn.Identity()  # type: ignore[assignment]  # the scorer's output already is the logits
        scorer = self.mlp_extractor
        assert isinstance(scorer, CandidateScorer)
        for head in (scorer.score, scorer.hold):  # a nearly uniform policy at first, as SB3 does for its action_net
            nn.init.orthogonal_(head.weight, gain=0.01)
        self.optimizer = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)  # type: ignore[call-arg]


class Gate(nn.Module):
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
        self, cluster: torch.Tensor, candidates: torch.Tensor, action_mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns action (batch,) int64 and logits (batch, K + 1) for cluster (batch, Fc), candidates (batch, K, F)
        and action_mask (batch, K + 1)."""
        legal = action_mask > 0
        observation = {"cluster": cluster, "candidates": candidates, "action_mask": legal}
        logits = self.head(self.scorer.forward_actor(self.encoder(observation)))
        logits = torch.where(legal, logits, torch.full_like(logits, self.MASKED_LOGIT))
        return logits.argmax(dim=1), logits


def check_observation_space(space: spaces.Space) -> None:
    """Raises UserError unless `space` is the Dict of cluster (Fc,), candidates (K, F), action_mask (K + 1,)."""
    shapes = {key: space[key].shape for key in space} if isinstance(space, spaces.Dict) else {}
    missing = [key for key in OBSERVATION_KEYS if key not in shapes]
    if missing:
        raise UserError(
            f"the environment's observation lacks {', '.join(missing)}; a gate is trained on a Dict of "
            f"{', '.join(OBSERVATION_KEYS)}"
        )
