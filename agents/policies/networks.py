"""Networks: the encoder that scales observations, the scorer of actions with a value, and the actor of both.

A decision for a fixed action (no, or the base policy's action) or one of K candidates does not depend on the order of
candidates. `CandidateScorer` (a deep set: Zaheer et al., 2017, sec. 3) keeps that symmetry: permuting the candidates
permutes only their scores.

`ObservationEncoder` scales inside the network, so a saved policy is complete. The scorer takes its flat features, and
scores illegal actions as `MASKED`, so that any algorithm of Stable-Baselines3 takes only legal actions. Actor and
critic share no parameters. `Actor` is evaluated and exported; Stable-Baselines3's policies around it are in
`agents.learning.models`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

from agents.environments import OBSERVATION_KEYS, observed_shapes
from ooco_gym.errors import UserError
from ooco_gym.runtime.networks import Sizes

MASKED = -1e8  # as sb3-contrib masks


class FlatLayout(Sizes):
    """The places of an observation's parts in the flat features: cluster, one-hot decision, candidates, mask."""

    def split(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Splits flat features: context (batch, C), candidates (batch, K, F), their legality
        (batch, K), mask (batch, A)."""
        ends = self.context + self.places * self.features
        candidates, mask = x[:, self.context : ends].reshape(-1, self.places, self.features), x[:, ends:]
        if self.levels:  # candidates are the parameters, all present, each in its own place
            return x[:, : self.context], candidates, torch.ones_like(candidates[:, :, 0]), mask
        return x[:, : self.context], candidates, mask[:, self.fixed :], mask


class _SetEncoder(nn.Module):
    """Embeds each candidate with the context and averages the legal ones: (batch, K, h) and (batch, h).

    Parameters, whose order has a meaning, come with their place, one-hot.
    """

    def __init__(self, layout: FlatLayout, hidden: int) -> None:
        super().__init__()
        self.layout = layout
        self.of_candidate = nn.Linear(layout.features + (layout.places if layout.levels else 0), hidden)
        self.of_context = nn.Linear(layout.context, hidden, bias=False)

    def forward(self, context: torch.Tensor, candidates: torch.Tensor, legal: torch.Tensor
                ) -> tuple[torch.Tensor, torch.Tensor]:
        if self.layout.levels:
            place = torch.eye(self.layout.places, dtype=candidates.dtype).expand(candidates.shape[0], -1, -1)
            candidates = torch.cat([candidates, place], dim=-1)
        embedded = torch.tanh(self.of_candidate(candidates) + self.of_context(context).unsqueeze(1))
        return embedded, _mean_of(embedded, legal)


def _mean_of(rows: torch.Tensor, legal: torch.Tensor) -> torch.Tensor:
    """The mean (batch, n) of the legal rows (batch, K, n); 0 if none is legal."""
    weight = legal / legal.sum(1, keepdim=True).clamp(min=1.0)
    return (weight.unsqueeze(2) * rows).sum(1)


class CandidateScorer(nn.Module):
    """A deep set, from flat features to scores of the actions (actor) and a value latent (critic).

    Score of candidate k = head(embedding of k, mean embedding of the legal ones, context); scores of the fixed actions
    = head(mean embedding, context). The value uses the context and the mean features of the legal candidates, which
    halves an update's time against embeddings. The context names the pending decision.

    Attributes:
        latent_dim_pi, latent_dim_vf: sizes that Stable-Baselines3 reads.
    """

    def __init__(self, layout: FlatLayout, hidden: int) -> None:
        super().__init__()
        self.layout, self.latent_dim_pi, self.latent_dim_vf = layout, layout.actions, hidden
        self.actor = _SetEncoder(layout, hidden)
        self.own, self.own_pool = nn.Linear(hidden, hidden), nn.Linear(hidden + layout.context, hidden, bias=False)
        self.fixed_pool = nn.Linear(hidden + layout.context, hidden)
        self.heads = nn.ModuleDict({"of_candidate": nn.Linear(hidden, max(layout.levels, default=1))})
        if not layout.levels:
            self.heads["of_fixed"] = nn.Linear(hidden, layout.fixed)
        seen = layout.features * (layout.places if layout.levels else 1)
        self.critic = nn.Sequential(nn.Linear(layout.context + seen, 2 * hidden), nn.Tanh(),
                                    nn.Linear(2 * hidden, hidden), nn.Tanh())

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns (scores (batch, A), value latent (batch, hidden))."""
        return self.forward_actor(x), self.forward_critic(x)

    def forward_actor(self, x: torch.Tensor) -> torch.Tensor:
        """Returns scores (batch, A), the fixed actions first; `MASKED` if illegal."""
        context, candidates, legal, mask = self.layout.split(x)
        embedded, pooled = self.actor(context, candidates, legal)
        state = torch.cat([pooled, context], dim=1)
        mine = self.heads["of_candidate"](torch.tanh(self.own(embedded) + self.own_pool(state).unsqueeze(1)))
        if self.layout.levels:  # (batch, P, most levels), cut to each parameter's own levels
            scores = torch.cat([mine[:, place, :count] for place, count in enumerate(self.layout.levels)], dim=1)
        else:
            fixed = self.heads["of_fixed"](torch.tanh(self.fixed_pool(state)))
            scores = torch.cat([fixed, mine.squeeze(-1)], dim=1)
        return torch.where(mask > 0, scores, MASKED)

    def forward_critic(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the value latent (batch, hidden)."""
        context, candidates, legal, _ = self.layout.split(x)
        seen = candidates.flatten(1) if self.layout.levels else _mean_of(candidates, legal)
        return self.critic(torch.cat([context, seen], dim=1))

    def actor_parameters(self) -> list[nn.Parameter]:
        """The parameters of the actor; the critic has none of them."""
        return [parameter for part in (self.actor, self.own, self.own_pool, self.fixed_pool, self.heads)
                for parameter in part.parameters()]

    def start_uniform(self) -> None:
        """Makes all actions nearly equally likely, as Stable-Baselines3 does."""
        for head in self.heads.values():
            nn.init.orthogonal_(head.weight, gain=0.01)  # type: ignore[arg-type]


class FeatureScale(nn.Module):
    """Running mean and standard deviation of `n` features, applied as clip((x - mean) / deviation, -8, 8). The
    deviation is at least a thousandth of the declared range, so that noise is not amplified."""

    mean: torch.Tensor
    deviation: torch.Tensor
    moments: torch.Tensor
    floor: torch.Tensor

    def __init__(self, low: np.ndarray, high: np.ndarray) -> None:
        super().__init__()
        n = low.shape[0]
        width = np.where(np.isfinite(high) & np.isfinite(low), high.astype(np.float64) - low, 1.0)
        self.register_buffer("floor", torch.as_tensor(np.maximum(width * 1e-3, 1e-8), dtype=torch.float32))
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
        return ((x - self.mean) / self.deviation).clamp(-8.0, 8.0)


class ObservationEncoder(BaseFeaturesExtractor):
    """Scales an observation and lays it out flat: cluster (Fc), decision (D), candidates (K·F), mask (A).

    `decision` is one-hot and stays as it is. All K places share the statistics of a candidate's features, which count
    legal candidates only.

    Args:
        observation_space: of cluster, candidates, action_mask and decision.
        levels: number of levels of each part, if the action is a vector of levels; the candidates then are these parts,
            all present.
    """

    def __init__(self, observation_space: spaces.Dict, levels: tuple[int, ...] = ()) -> None:
        check_observation_space(observation_space, levels)
        cluster, candidates = observation_space["cluster"], observation_space["candidates"]
        assert isinstance(cluster, spaces.Box) and isinstance(candidates, spaces.Box)
        shapes = observed_shapes(observation_space, levels)
        places, features = shapes["candidates"]
        layout = FlatLayout(cluster.shape[0], shapes["decision"][0], places, features, shapes["action_mask"][0], levels)
        super().__init__(observation_space, features_dim=layout.context + places * features + layout.actions)
        self.layout = layout
        self.cluster = FeatureScale(cluster.low, cluster.high)
        self.candidates = FeatureScale(candidates.low.reshape(places, features).min(axis=0),
                                       candidates.high.reshape(places, features).max(axis=0))

    def update(self, observations: Mapping[str, np.ndarray]) -> None:
        """Adds a batch of raw observations (leading axes of any shape) to the running statistics."""
        candidates, layout = observations["candidates"], self.layout
        rows = candidates.reshape(-1, layout.places, layout.features)
        mask = observations["action_mask"].reshape(-1, layout.actions)
        legal = np.ones(rows.shape[:2], bool) if layout.levels else mask[:, layout.fixed :] > 0
        self.cluster.update(observations["cluster"].reshape(-1, observations["cluster"].shape[-1]))
        self.candidates.update(rows[legal])

    def forward(self, observations: dict[str, torch.Tensor]) -> torch.Tensor:
        """Returns (batch, Fc + D + K·F + A)."""
        mask = (observations["action_mask"] > 0).to(torch.float32)
        cluster = self.cluster(observations["cluster"].to(torch.float32))
        rows = observations["candidates"].to(torch.float32)
        if rows.dim() == 2:
            rows = rows.reshape(-1, self.layout.places, self.layout.features)
        candidates = self.candidates(rows)
        if not self.layout.levels:
            candidates = candidates * mask[:, self.layout.fixed :].unsqueeze(-1)
        decision = observations["decision"].to(torch.float32)
        return torch.cat([cluster, decision, candidates.flatten(1), mask], dim=1)


class Actor(nn.Module):
    """The decision only: raw observation and mask in, arg-max action and masked logits out.

    Evaluation and `export` both use it, so their arithmetic is the same.
    """

    def __init__(self, encoder: ObservationEncoder, scorer: CandidateScorer) -> None:
        super().__init__()
        self.encoder, self.scorer, self.levels = encoder, scorer, encoder.layout.levels

    @classmethod
    def of(cls, policy: Any) -> Actor:
        """Wraps a trained policy of `agents.learning.models`, and shares its parameters."""
        policy = getattr(policy, "q_net", policy)
        return cls(policy.pi_features_extractor, policy.mlp_extractor)

    @classmethod
    def built(cls, space: spaces.Dict, levels: tuple[int, ...], agent: Mapping[str, Any],
              weights: Mapping[str, torch.Tensor]) -> Actor:
        """Builds an actor from an agent's configuration and a saved policy's arrays.

        Raises:
            KeyError, RuntimeError: the arrays are of another network.
        """
        encoder = ObservationEncoder(space, levels)
        scorer = CandidateScorer(encoder.layout, int(agent["hidden"]))
        for module, name in ((encoder, "features_extractor."), (scorer, "mlp_extractor.")):
            module.load_state_dict({key.removeprefix("q_net.").removeprefix(name): array
                                    for key, array in weights.items() if key.removeprefix("q_net.").startswith(name)})
        return cls(encoder, scorer).eval()

    def actor_parameters(self) -> list[nn.Parameter]:
        """The parameters of the actor; the critic has none of them."""
        return self.scorer.actor_parameters()

    def forward(self, cluster: torch.Tensor, candidates: torch.Tensor, action_mask: torch.Tensor,
                decision: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns action and logits for cluster (batch, Fc), candidates (batch, K, F) or (batch,
        K·F), action_mask (batch, A) and decision (batch, D).

        The action is (batch,) int64, or (batch, P) for a vector of levels. Logits are (batch, A),
        one parameter's levels after another's.
        """
        observation = {"cluster": cluster, "candidates": candidates, "action_mask": action_mask, "decision": decision}
        logits = self.scorer.forward_actor(self.encoder(observation))
        if not self.levels:
            return logits.argmax(dim=1), logits
        return torch.stack([part.argmax(dim=1) for part in logits.split(self.levels, dim=1)], dim=1), logits

    def answer(self, *parts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Runs `forward` on plain arrays without gradients: actions (batch,) or (batch, P), logits (batch, A)."""
        with torch.inference_mode():
            actions, logits = self(*(torch.as_tensor(np.ascontiguousarray(part)) for part in parts))
        return actions.numpy(), logits.numpy()


def check_observation_space(space: spaces.Space, levels: tuple[int, ...] = ()) -> None:
    """Raises UserError unless `space` is the Dict of cluster (Fc,), candidates (K·F,) or (K, F), action_mask (A,),
    decision (D,); `levels` as for `ObservationEncoder`."""
    known = set(space) if isinstance(space, spaces.Dict) else set()
    missing = [key for key in OBSERVATION_KEYS if key not in known]
    if missing:
        raise UserError(f"the environment's observation lacks {', '.join(missing)}; expected a Dict of "
                        f"{', '.join(OBSERVATION_KEYS)}")
    observed_shapes(space, levels)


def check_action_space(space: spaces.Space, env: str) -> None:
    """Raises UserError unless actions are Discrete or MultiDiscrete."""
    if not isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        raise UserError(f"{env} has {type(space).__name__} actions, which this agent cannot learn: expected Discrete "
                        "or MultiDiscrete ones")
