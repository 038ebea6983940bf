"""From raw observations to decisions: the scaling of observations, and the actor that is evaluated and exported.

Scaling lives in the network (`ObservationEncoder`), so a saved policy is whole by itself. What comes after it is in
`agents.scorers`; the policies of Stable-Baselines3 around both are in `agents.policies`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

from agents.environments import OBSERVATION_KEYS, candidate_shape
from agents.scorers import Layout
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
    """Scales an observation and lays it out flat: cluster (Fc), decision (D), candidates (K·F), mask (A).

    `decision` is one-hot and stays as it is. The statistics of a candidate's features are shared by all K places and
    come from legal candidates only, so that padding does not move them.

    Args:
        observation_space: of cluster, candidates (`environments.candidate_shape`), action_mask and decision.
        levels: where the action is a vector of levels, how many each of its parts has: the candidates then are these
            parts, all of them there.
    """

    def __init__(self, observation_space: spaces.Dict, levels: tuple[int, ...] = ()) -> None:
        check_observation_space(observation_space)
        cluster, candidates = observation_space["cluster"], observation_space["candidates"]
        assert isinstance(cluster, spaces.Box) and isinstance(candidates, spaces.Box)
        places, features = candidate_shape(candidates)
        layout = Layout(cluster.shape[0], _size(observation_space, "decision"), places, features,
                        _size(observation_space, "action_mask"), tuple(int(count) for count in levels))
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


def _size(space: spaces.Dict, key: str) -> int:
    shape = space[key].shape
    assert shape is not None
    return int(shape[0])


class Actor(nn.Module):
    """The decision alone: raw observation and mask in, arg-max action and masked logits out.

    It is what evaluation runs and what `export` writes, so both are the same arithmetic. Logits are what the algorithm
    learns of each action: logits of its probability, its value, or the mean of its value's quantiles.

    Args:
        policy: one of `agents.policies`.
    """

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.encoder, self.scorer = policy.deciding_parts()
        self.levels: tuple[int, ...] = self.encoder.layout.levels

    def actor_parameters(self) -> list[nn.Parameter]:
        """The parameters that decide; actor and critic share none."""
        return self.scorer.actor_parameters()

    def forward(
        self, cluster: torch.Tensor, candidates: torch.Tensor, action_mask: torch.Tensor, decision: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns action and logits for cluster (batch, Fc), candidates (batch, K, F) or (batch, K·F),
        action_mask (batch, A) and decision (batch, D).

        The action is (batch,) int64, or (batch, P) where it is a vector of levels; logits are (batch, A), those of the
        levels of one parameter after those of another.
        """
        observation = {"cluster": cluster, "candidates": candidates, "action_mask": action_mask, "decision": decision}
        logits = self.scorer.forward_actor(self.encoder(observation))
        if logits.dim() == 3:
            logits = logits.mean(-1)
        if not self.levels:
            return logits.argmax(dim=1), logits
        return torch.stack([part.argmax(dim=1) for part in logits.split(self.levels, dim=1)], dim=1), logits


    def answer(self, *parts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As `forward`, of plain arrays and without gradients: actions (batch,) or (batch, P), logits (batch, A)."""
        with torch.inference_mode():
            actions, logits = self(*(torch.as_tensor(np.ascontiguousarray(part)) for part in parts))
        return actions.numpy(), logits.numpy()


def check_observation_space(space: spaces.Space) -> None:
    """Raises UserError unless `space` is the Dict of cluster (Fc,), candidates (K·F,) or (K, F), action_mask (A,),
    decision (D,)."""
    shapes = {key: space[key].shape for key in space} if isinstance(space, spaces.Dict) else {}
    missing = [key for key in OBSERVATION_KEYS if key not in shapes]
    if missing:
        raise UserError(
            f"the environment's observation lacks {', '.join(missing)}; a policy is trained on a Dict of "
            f"{', '.join(OBSERVATION_KEYS)}"
        )
    candidate_shape(space["candidates"])  # type: ignore[index]


def check_action_space(space: spaces.Space, env: str, vectors: bool = True) -> None:
    """Raises UserError unless actions are Discrete or, where `vectors` of them can be learned, MultiDiscrete."""
    if isinstance(space, spaces.Discrete) or (vectors and isinstance(space, spaces.MultiDiscrete)):
        return
    can = "Discrete or MultiDiscrete" if vectors else "Discrete"
    raise UserError(f"{env} has {type(space).__name__} actions, which this agent cannot learn: expected {can} ones"
                    + ("" if vectors else "; choose agent=maskable_ppo or agent=ppo"))
