"""What lies between scaled observations and decisions: networks that score the actions, and one value.

A decision "one of the fixed actions (no, or what the partner would do), or one of K candidates" does not depend on the
order in which candidates are listed. `CandidateScorer` (a deep set: Zaheer et al., 2017, sec. 3) and `AttentionScorer`
(a transformer's block without positions: Lee et al., 2019) keep that symmetry: permuting the candidates permutes their
scores and changes neither those of the fixed actions nor the value. `FlatScorer` does not.

All take the flat features of `agents.networks.ObservationEncoder`; the scores of illegal actions are `MASKED`, so that
any algorithm of Stable-Baselines3 takes legal actions alone. Actor and critic share no parameters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from agents.algorithms import ATTENTION_HEADS

MASKED = -1e8  # as sb3-contrib masks


class Layout(NamedTuple):
    """How an observation lies in the flat features, and what is answered.

    Attributes:
        cluster, decisions: features of the cluster, and of the one-hot decision after it.
        places, features: candidates (K), and features of each.
        actions: length of the mask (A).
        levels: number of levels of each parameter, where a vector of them is the action; else none.
    """

    cluster: int
    decisions: int
    places: int
    features: int
    actions: int
    levels: tuple[int, ...] = ()

    @property
    def context(self) -> int:
        """Features that are not of a candidate."""
        return self.cluster + self.decisions

    @property
    def fixed(self) -> int:
        """Actions before those of the candidates."""
        return self.actions - self.places

    def split(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Context (batch, C), candidates (batch, K, F), their legality (batch, K), mask (batch, A) of flat features."""
        ends = self.context + self.places * self.features
        candidates, mask = x[:, self.context : ends].reshape(-1, self.places, self.features), x[:, ends:]
        if self.levels:  # candidates are the parameters, each with a place of its own, and all there
            return x[:, : self.context], candidates, torch.ones_like(candidates[:, :, 0]), mask
        return x[:, : self.context], candidates, mask[:, self.fixed :], mask


class Scorer(nn.Module, ABC):
    """From flat features to scores of the actions (actor) and a value latent (critic).

    Args:
        layout: of the features.
        hidden: width of every layer.
        outputs: numbers for each action: 1 (logits, action values), or as many quantiles.

    Those of `SCORERS` take `joint`, too: whether each kind of decision has a last layer of its own, by the one-hot
    decision.

    Attributes:
        latent_dim_pi, latent_dim_vf: what Stable-Baselines3 wants to know.
        of_actor, of_critic: the submodules of each.
    """

    of_actor: Sequence[str] = ()
    of_critic: Sequence[str] = ("critic",)

    def __init__(self, layout: Layout, hidden: int, outputs: int = 1) -> None:
        super().__init__()
        self.layout, self.outputs = layout, outputs
        self.latent_dim_pi, self.latent_dim_vf = layout.actions, hidden

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns (scores (batch, A), value latent (batch, hidden))."""
        return self.forward_actor(x), self.forward_critic(x)

    def forward_actor(self, x: torch.Tensor) -> torch.Tensor:
        """Returns scores (batch, A), the fixed actions first, or (batch, A, outputs) of several; `MASKED` if illegal.
        """
        mask = self.layout.split(x)[3] > 0
        scores = self._scores(x)
        if self.outputs == 1:
            return torch.where(mask, scores.squeeze(-1), MASKED)
        return torch.where(mask.unsqueeze(-1), scores, MASKED)

    @abstractmethod
    def _scores(self, x: torch.Tensor) -> torch.Tensor:
        """Returns (batch, A, outputs)."""

    @abstractmethod
    def forward_critic(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the value latent (batch, hidden)."""

    def actor_parameters(self) -> list[nn.Parameter]:
        """The parameters that decide."""
        return [parameter for name in self.of_actor for parameter in self.get_submodule(name).parameters()]

    def forget_critic(self) -> None:
        """Leaves the actor alone, for algorithms without a critic."""
        for name in self.of_critic:
            delattr(self, name)

    @abstractmethod
    def start_uniform(self) -> None:
        """Makes all actions nearly as likely as each other, as Stable-Baselines3 does."""


class _Heads(nn.Module):
    """The last layers of an actor: scores of fixed actions from a pooled state, of candidates from their own."""

    def __init__(self, layout: Layout, hidden: int, outputs: int, joint: bool) -> None:
        super().__init__()
        self.layout, self.outputs, self.kinds = layout, outputs, layout.decisions if joint else 1
        own = max(layout.levels) if layout.levels else 1
        self.of_candidate = nn.Linear(hidden, own * outputs * self.kinds)
        self.of_fixed = None if layout.levels else nn.Linear(hidden, layout.fixed * outputs * self.kinds)

    def forward(self, pooled: torch.Tensor, own: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        """Returns (batch, A, outputs) for pooled (batch, h), own (batch, K, h) and context (batch, C)."""
        due = context[:, self.layout.cluster :]
        mine = self._chosen(self.of_candidate(own), due.unsqueeze(1))
        if self.of_fixed is None:  # (batch, P, most levels · outputs): those that each parameter has
            mine = mine.unflatten(-1, (-1, self.outputs))
            return torch.cat([mine[:, place, :count] for place, count in enumerate(self.layout.levels)], dim=1)
        fixed = self._chosen(self.of_fixed(pooled), due).unflatten(-1, (-1, self.outputs))
        return torch.cat([fixed, mine], dim=1)

    def _chosen(self, scores: torch.Tensor, due: torch.Tensor) -> torch.Tensor:
        """Of the scores for every kind of decision, those for the one that is due."""
        if self.kinds == 1:
            return scores
        return (scores.unflatten(-1, (-1, self.kinds)) * due.unsqueeze(-2)).sum(-1)

    def start_uniform(self) -> None:
        for layer in (self.of_candidate, self.of_fixed):
            if layer is not None:
                nn.init.orthogonal_(layer.weight, gain=0.01)


def _with_places(layout: Layout, candidates: torch.Tensor) -> torch.Tensor:
    """Candidates whose order has no meaning, as they are; parameters, which are not alike, with their place."""
    if not layout.levels:
        return candidates
    place = torch.eye(layout.places, dtype=candidates.dtype).expand(candidates.shape[0], -1, -1)
    return torch.cat([candidates, place], dim=-1)


class _SetEncoder(nn.Module):
    """Embeds each candidate beside the context and averages the legal ones: (batch, K, h) and (batch, h)."""

    def __init__(self, layout: Layout, hidden: int) -> None:
        super().__init__()
        self.layout = layout
        self.of_candidate = nn.Linear(layout.features + (layout.places if layout.levels else 0), hidden)
        self.of_context = nn.Linear(layout.context, hidden, bias=False)

    def forward(self, context: torch.Tensor, candidates: torch.Tensor, legal: torch.Tensor
                ) -> tuple[torch.Tensor, torch.Tensor]:
        own = self.of_candidate(_with_places(self.layout, candidates))
        embedded = torch.tanh(own + self.of_context(context).unsqueeze(1))
        weight = legal / legal.sum(1, keepdim=True).clamp(min=1.0)
        return embedded, torch.bmm(weight.unsqueeze(1), embedded).squeeze(1)


class CandidateScorer(Scorer):
    """A deep set. Score of candidate k = head(embedding of k, mean embedding of the legal ones, context); scores of the
    fixed actions = head(mean embedding, context). The context says which decision is due."""

    of_actor = ("actor", "own", "own_pool", "fixed_pool", "heads")
    of_critic = ("critic", "value")

    def __init__(self, layout: Layout, hidden: int, outputs: int = 1, joint: bool = False) -> None:
        super().__init__(layout, hidden, outputs)
        self.actor, self.critic = _SetEncoder(layout, hidden), _SetEncoder(layout, hidden)
        self.own, self.own_pool = nn.Linear(hidden, hidden), nn.Linear(hidden + layout.context, hidden, bias=False)
        self.fixed_pool = nn.Linear(hidden + layout.context, hidden)
        self.heads = _Heads(layout, hidden, outputs, joint)
        self.value = nn.Linear(hidden + layout.context, hidden)

    def _scores(self, x: torch.Tensor) -> torch.Tensor:
        context, candidates, legal, _ = self.layout.split(x)
        embedded, pooled = self.actor(context, candidates, legal)
        state = torch.cat([pooled, context], dim=1)
        own = torch.tanh(self.own(embedded) + self.own_pool(state).unsqueeze(1))
        return self.heads(torch.tanh(self.fixed_pool(state)), own, context)

    def forward_critic(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the value latent (batch, hidden)."""
        context, candidates, legal, _ = self.layout.split(x)
        _, pooled = self.critic(context, candidates, legal)
        return torch.tanh(self.value(torch.cat([pooled, context], dim=1)))

    def start_uniform(self) -> None:
        """See `Scorer`."""
        self.heads.start_uniform()


class _AttentionBlock(nn.Module):
    """Tokens (the context first, then the candidates) look at each other once: (batch, 1 + K, h)."""

    def __init__(self, layout: Layout, hidden: int) -> None:
        super().__init__()
        self.layout = layout
        self.of_candidate = nn.Linear(layout.features + (layout.places if layout.levels else 0), hidden)
        self.of_context = nn.Linear(layout.context, 2 * hidden)
        self.normal, self.after = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.look, self.mix = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.think = nn.Linear(hidden, hidden)

    def forward(self, context: torch.Tensor, candidates: torch.Tensor, legal: torch.Tensor) -> torch.Tensor:
        first, beside = self.of_context(context).unsqueeze(1).chunk(2, dim=-1)
        own = self.of_candidate(_with_places(self.layout, candidates)) + beside
        tokens = torch.cat([first, own], dim=1)
        there = torch.cat([torch.ones_like(legal[:, :1]), legal], dim=1) > 0
        parts = self.look(self.normal(tokens)).unflatten(-1, (3, ATTENTION_HEADS, -1)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2],
                                                       attn_mask=there[:, None, None, :])
        tokens = tokens + self.mix(seen.transpose(1, 2).flatten(2))
        return tokens + functional.relu(self.think(self.after(tokens)))


class AttentionScorer(Scorer):
    """A block of self-attention over the candidates and one token for the context, which scores the fixed actions."""

    of_actor = ("actor", "heads")

    def __init__(self, layout: Layout, hidden: int, outputs: int = 1, joint: bool = False) -> None:
        super().__init__(layout, hidden, outputs)
        self.actor, self.critic = _AttentionBlock(layout, hidden), _AttentionBlock(layout, hidden)
        self.heads = _Heads(layout, hidden, outputs, joint)

    def _scores(self, x: torch.Tensor) -> torch.Tensor:
        context, candidates, legal, _ = self.layout.split(x)
        tokens = torch.tanh(self.actor(context, candidates, legal))
        return self.heads(tokens[:, 0], tokens[:, 1:], context)

    def forward_critic(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the value latent (batch, hidden)."""
        context, candidates, legal, _ = self.layout.split(x)
        return torch.tanh(self.critic(context, candidates, legal)[:, 0])

    def start_uniform(self) -> None:
        """See `Scorer`."""
        self.heads.start_uniform()


class FlatScorer(Scorer):
    """Two plain layers over the flat features each for actor and critic: the order of candidates does matter."""

    of_actor = ("actor", "last")

    def __init__(self, layout: Layout, hidden: int, outputs: int = 1, joint: bool = False) -> None:
        super().__init__(layout, hidden, outputs)
        self.kinds = layout.decisions if joint else 1
        self.actor, self.critic = (_layers(layout, hidden) for _ in range(2))
        self.last = nn.Linear(hidden, layout.actions * outputs * self.kinds)

    def _scores(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.last(self.actor(x)).unflatten(-1, (self.layout.actions, self.outputs, self.kinds))
        if self.kinds == 1:
            return scores.squeeze(-1)
        due = x[:, self.layout.cluster : self.layout.context]
        return (scores * due[:, None, None, :]).sum(-1)

    def forward_critic(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the value latent (batch, hidden)."""
        return self.critic(x)

    def start_uniform(self) -> None:
        """See `Scorer`."""
        nn.init.orthogonal_(self.last.weight, gain=0.01)


def _layers(layout: Layout, hidden: int) -> nn.Sequential:
    inputs = layout.context + layout.places * layout.features + layout.actions
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())


SCORERS: dict[str, Any] = {"candidate_scorer": CandidateScorer, "attention": AttentionScorer, "mlp": FlatScorer}
