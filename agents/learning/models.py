"""The rollout buffer and the policy of sb3-contrib's MaskablePPO here.

The buffer discounts by simulated time: the discount over a step of Δt seconds is γ^Δt, that of
advantages λ^Δt. Decisions come at uneven intervals, many a second, and an offline request lives
about a minute. A fixed discount per decision would look only a second ahead.

The policy is an encoder of observations and a scorer of actions (`networks`). The scorer applies
the observation's mask, so algorithms without masks take only legal actions, too.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer
from sb3_contrib.common.maskable.policies import MaskableMultiInputActorCriticPolicy
from stable_baselines3.common.utils import LinearSchedule
from torch import nn

from agents.environments import levels_of
from agents.learning.algorithms import discounts_of
from agents.learning.dqn import build_dqn
from agents.policies.networks import CandidateScorer, ObservationEncoder


def timed_advantages(rewards: np.ndarray, values: np.ndarray, last_values: np.ndarray, starts: np.ndarray,
                     dones: np.ndarray, elapsed_s: np.ndarray, discount_per_s: float,
                     gae_lambda_per_s: float) -> np.ndarray:
    """Generalised advantages (Schulman et al. 2016, arXiv 1506.02438) with γ^Δt and (γλ)^Δt: float64 (steps, places).

    Args:
        rewards, values: of each step, (steps, places); rewards are paid at the end of the step.
        last_values: values after the last step, (places,).
        starts: whether an episode begins at a step, (steps, places); advantages do not reach back across it.
        dones: whether the last step ended an episode, (places,).
        elapsed_s: simulated duration of each step, (steps, places).
    """
    discount = discount_per_s**elapsed_s
    decay = discount * gae_lambda_per_s**elapsed_s
    advantages = np.zeros(rewards.shape)
    next_value, alive = np.asarray(last_values, np.float64), 1.0 - np.asarray(dones, np.float64)
    advantage: Any = 0.0
    for step in reversed(range(len(rewards))):
        delta = rewards[step] + discount[step] * next_value * alive - values[step]
        advantage = delta + decay[step] * alive * advantage
        advantages[step] = advantage
        next_value, alive = values[step], 1.0 - starts[step]
    return advantages


class TimedRolloutBuffer(MaskableDictRolloutBuffer):
    """A rollout buffer with a duration and the environment's reward for each transition, `elapsed_s` and `paid`
    (n_steps, n_envs), which a callback fills before `add`. γ and λ are over one simulated second, in (0, 1]."""

    elapsed_s: np.ndarray
    paid: np.ndarray

    def __init__(self, *args: Any, discount_per_s: float, gae_lambda_per_s: float, **kwargs: Any) -> None:
        self.discounts = (discount_per_s, gae_lambda_per_s)
        super().__init__(*args, **kwargs)

    def reset(self) -> None:
        """Empties the buffer; durations start at zero, which means no discount."""
        super().reset()
        self.elapsed_s, self.paid = np.zeros((2, self.buffer_size, self.n_envs))

    def compute_returns_and_advantage(self, last_values: torch.Tensor, dones: np.ndarray) -> None:
        """Computes generalised advantages in simulated time; returns are advantages plus values.

        Where an episode was cut, Stable-Baselines3 has added the value of its last observation to the
        reward, with the model's gamma of 1; here it gets the discount of its step.
        """
        bootstrapped = self.discounts[0] ** self.elapsed_s * (self.rewards - self.paid)
        self.advantages[:] = timed_advantages(
            self.paid + bootstrapped, self.values, last_values.detach().cpu().numpy().flatten(), self.episode_starts,
            dones, self.elapsed_s, *self.discounts)
        self.returns = self.advantages + self.values


class CandidatePolicy(MaskableMultiInputActorCriticPolicy):
    """An actor-critic policy: an `ObservationEncoder` with a `CandidateScorer` as `mlp_extractor`."""

    def __init__(self, observation_space: spaces.Dict, action_space: spaces.Space, *args: Any, hidden: int = 64,
                 **kwargs: Any) -> None:
        self.hidden = hidden
        kwargs.setdefault("features_extractor_class", ObservationEncoder)
        kwargs.setdefault("features_extractor_kwargs", {"levels": levels_of(action_space)})
        super().__init__(observation_space, action_space, *args, **kwargs)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), "hidden": self.hidden}

    def _build_mlp_extractor(self: Any) -> None:
        self.mlp_extractor = CandidateScorer(self.features_extractor.layout, self.hidden)

    def _build(self, lr_schedule: Any) -> None:
        super()._build(lr_schedule)
        self.action_net = nn.Identity()  # the scorer returns logits already
        self.mlp_extractor.start_uniform()
        optimiser: Any = self.optimizer_class
        self.optimizer = optimiser(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)


# --- The algorithms ---------------------------------------------------------------------------------------------------
_ARGUMENTS = ("learning_rate", "n_steps", "batch_size", "n_epochs", "clip_range", "ent_coef", "vf_coef",
              "max_grad_norm", "target_kl")


def build_model(env: Any, agent: Mapping[str, Any], seed: int) -> Any:
    """Builds the model that learns in `env` (a `VecEnv`). PPO's gamma is 1, since the buffer discounts.

    Raises:
        UserError: the algorithm has no such actions.
    """
    if agent["name"] == "dqn":
        return build_dqn(env, agent, seed)
    arguments: dict[str, Any] = {key: agent.get(key) for key in _ARGUMENTS}
    if agent.get("anneal"):
        arguments["learning_rate"] = LinearSchedule(float(agent["learning_rate"]), 0.0, 1.0)
    with warnings.catch_warnings():  # rollouts follow simulated time: the last minibatch may be smaller
        warnings.filterwarnings("ignore", "You have specified a mini-batch size")
        return MaskablePPO(
            CandidatePolicy, env, policy_kwargs={"hidden": int(agent["hidden"])}, seed=seed, device="cpu", gamma=1.0,
            rollout_buffer_class=TimedRolloutBuffer, rollout_buffer_kwargs=discounts_of(agent), **arguments)
