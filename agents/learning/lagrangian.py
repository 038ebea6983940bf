"""The violation budget as a constraint: a multiplier learned beside the policy (PPO-Lagrangian, PID-Lagrangian).

The problem is: most reward, subject to (violations per online request that arrived) ≤ budget. A multiplier λ follows
the measured rate, and the policy follows (A_r - λ A_c) / (1 + λ).

Reward and cost have a critic each, so that a new λ takes effect immediately (Stooke, Achiam and Abbeel 2020, arXiv
2007.03964, section 4). A single critic of r - λ c would first have to relearn each change of λ. Both advantages are
divided by their running deviation, so that gains need no tuning to the size of the reward (their section 7, with
deviations of advantages in place of norms of gradients).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.utils import obs_as_tensor
from torch import nn
from torch.nn import functional

from agents.environments import OBSERVATION_KEYS
from agents.learning.algorithms import discounts_of
from agents.learning.callbacks import Callback
from agents.learning.models import timed_advantages
from agents.learning.vector import GymnasiumVecEnv
from ooco_gym.envs import reward as r
from ooco_gym.errors import UserError

_CHUNK = 4096  # rows that are encoded at a time
_LEAST_DEVIATION = 1e-3  # of cost advantages, in violations: they are zero before the first violation


class PIDMultiplier:
    """λ ← (K_P Δ + K_I I + K_D ∂)₊ once an update (Stooke et al. 2020, algorithm 2).

    Δ is the excess over the budget, in budgets: rate / budget - 1. I ← (I + Δ)₊ is its sum; Δ below zero lowers it. ∂ =
    (Δ_smooth - Δ_smooth,before)₊ reacts to a rising rate before it is over the budget. With K_P = K_D = 0 this is the
    gradient ascent of PPO-Lagrangian (Ray, Achiam and Amodei 2019) with learning rate K_I.

    Args:
        proportional, integral, derivative: the gains, at least 0.
        initial: λ at first, at least 0; needs an integral gain.
        most: upper limit of λ, and of the integral part (no wind-up).
        smoothing: of Δ for the proportional and the derivative part: share kept from update to update, in [0, 1).
    """

    def __init__(self, proportional: float, integral: float, derivative: float, initial: float, most: float,
                 smoothing: float) -> None:
        self.gains = (proportional, integral, derivative)
        self.most, self.smoothing = most, smoothing
        self.sum = initial / integral if integral > 0.0 else 0.0
        self.smooth: float | None = None
        self.parts = (0.0, initial, 0.0)
        self.value = initial

    def update(self, excess: float) -> float:
        """Returns λ after another measurement of Δ."""
        proportional, integral, derivative = self.gains
        before = excess if self.smooth is None else self.smooth
        self.smooth = self.smoothing * before + (1.0 - self.smoothing) * excess
        highest = self.most / integral if integral > 0.0 else 0.0
        self.sum = min(max(0.0, self.sum + excess), highest)
        self.parts = (proportional * self.smooth, integral * self.sum, derivative * max(0.0, self.smooth - before))
        self.value = min(max(0.0, sum(self.parts)), self.most)
        return self.value


class ViolationRate:
    """Violations per online request that arrived, over about the last `requests` requests of training's episodes.

    Arrived and violated requests decay alike; a single rollout has too few requests, which come in bursts.
    """

    def __init__(self, requests: float) -> None:
        self.requests = requests
        self.arrived, self.violated = 0.0, 0.0
        self._before = self._ended = np.zeros(2)

    def begin(self, env: GymnasiumVecEnv) -> None:
        self._before, self._ended = _counters(env), np.zeros(2)

    def end(self, summary: dict[str, Any]) -> None:
        """Adds an episode that has ended, drain included."""
        self._ended += [summary["online_arrived"], summary["online_violated"]]

    def measure(self, env: GymnasiumVecEnv) -> float:
        """Returns the rate now, and starts counting from here."""
        arrived, violated = _counters(env) - self._before + self._ended
        keep = float(np.exp(-arrived / self.requests))
        self.arrived, self.violated = keep * self.arrived + arrived, keep * self.violated + violated
        self.begin(env)
        return self.rate

    @property
    def rate(self) -> float:
        """The violation rate; 0 before the first arrival."""
        return self.violated / max(self.arrived, 1.0)


def _counters(env: Any) -> np.ndarray:
    """Online requests that arrived and that violated an SLO so far in the running episodes: (2,)."""
    return env.env.episodes.buffers.reward_sums[:, [r.OLD_ARRIVED, r.OLD_VIOLATIONS]].sum(0)


def cost_critic(features: int, hidden: int) -> nn.Module:
    """Predicts discounted future violations, (batch, 1): a small network on the policy's scaled features (batch, n)."""
    last = nn.Linear(hidden, 1)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(nn.Linear(features, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), last)


class Lagrangian(Callback):
    """Makes any on-policy algorithm of Stable-Baselines3 with a timed buffer a Lagrangian one.

    Between a rollout and its update it measures the violation rate, updates λ, and replaces the buffer's advantages by
    (A_r - λ A_c) / (1 + λ). It must come after `callbacks.LogMetrics`, which writes durations.

    Args:
        requests: number of last requests over which the rate is measured.
        discount_per_s, gae_lambda_per_s: of costs, as of rewards.
        features, hidden: sizes of the cost critic: its input (the policy's scaled features) and its layers.

    Logged: `lagrangian/multiplier`, its parts, `violation_rate`, `budget`, `price` (λ in reference GPU-seconds per
    violation, the SLO penalty that would have the same effect), and the cost critic's loss.
    """

    STATE_ATTRIBUTES = ("multiplier", "rate", "deviations", "critic", "optimiser")

    def __init__(self, multiplier: PIDMultiplier, budget: float, requests: float, discount_per_s: float,
                 gae_lambda_per_s: float, features: int, hidden: int, learning_rate: float, epochs: int,
                 batch_size: int) -> None:
        super().__init__()
        self.multiplier, self.budget, self.rate = multiplier, budget, ViolationRate(requests)
        self._discounts = (discount_per_s, gae_lambda_per_s)
        self._epochs, self._batch = epochs, batch_size
        self.critic = cost_critic(features, hidden)
        self.optimiser = torch.optim.Adam(self.critic.parameters(), lr=learning_rate)
        self.deviations: np.ndarray | None = None  # of advantages of reward and cost

    def _on_training_start(self) -> None:
        self.rate.begin(self.env)

    def _on_rollout_start(self) -> None:
        buffer = self.buffer
        self._costs = np.zeros((buffer.buffer_size, buffer.n_envs))
        self._ends: list[tuple[int, int, Mapping[str, np.ndarray]]] = []  # step, place, last observation

    def _on_step(self) -> bool:
        buffer = self.buffer
        self._costs[buffer.pos] = self.env.info_array("cost")
        for i in np.flatnonzero(self.locals["dones"]):
            info = self.locals["infos"][i]
            if "summary" in info:
                self.rate.end(info["summary"])
            if info["TimeLimit.truncated"]:
                self._ends.append((buffer.pos, int(i), info["terminal_observation"]))
        return True

    def _on_rollout_end(self) -> None:
        buffer = self.buffer
        features = self._features(buffer)
        values = self._values(features).reshape(buffer.rewards.shape)
        if self._ends:
            steps, places, last = zip(*self._ends, strict=True)
            observations = {}
            for key in OBSERVATION_KEYS:
                observations[key] = np.stack([one[key] for one in last])
            discount = self._discounts[0] ** buffer.elapsed_s[steps, places]
            self._costs[steps, places] += discount * self._values(self._encode(observations))
        last_values = self._values(self._encode(self.model._last_obs))  # type: ignore[attr-defined]
        advantages = timed_advantages(self._costs, values, last_values, buffer.episode_starts, self.locals["dones"],
                                      buffer.elapsed_s, *self._discounts)
        loss = self._fit(features, (advantages + values).reshape(-1))
        rate = self.rate.measure(self.env)
        multiplier = self.multiplier.update(rate / self.budget - 1.0)
        now = np.array([buffer.advantages.std(), advantages.std()])
        self.deviations = now if self.deviations is None else 0.9 * self.deviations + 0.1 * now
        of_reward, of_cost = np.maximum(self.deviations, [1e-8, _LEAST_DEVIATION])
        buffer.advantages[:] = (buffer.advantages / of_reward - multiplier * advantages / of_cost) / (1.0 + multiplier)
        scale: Any = self.training_env  # `VecNormalize` of rewards
        parts = zip(("proportional", "integral", "derivative"), self.multiplier.parts, strict=True)
        logged = {"multiplier": multiplier, **dict(parts), "violation_rate": rate, "budget": self.budget,
                   "price": multiplier * of_reward * float(np.sqrt(scale.ret_rms.var + scale.epsilon)) / of_cost,
                   "critic_loss": loss}
        for key, value in logged.items():
            self.logger.record(f"lagrangian/{key}", value)

    def _features(self, buffer: Any) -> torch.Tensor:
        """Scaled features of all decisions of the rollout: (steps x places, n)."""
        flat = {key: part.reshape(-1, *part.shape[2:]) for key, part in buffer.observations.items()}
        chunks = []
        for start in range(0, buffer.buffer_size * buffer.n_envs, _CHUNK):
            chunks.append(self._encode({key: part[start : start + _CHUNK] for key, part in flat.items()}))
        return torch.cat(chunks)

    def _encode(self, observations: Any) -> torch.Tensor:
        policy: Any = self.model.policy
        with torch.no_grad():
            return policy.features_extractor(obs_as_tensor(observations, self.model.device)).cpu()

    def _values(self, features: torch.Tensor) -> np.ndarray:
        with torch.no_grad():
            return self.critic(features).squeeze(-1).double().numpy()

    def _fit(self, features: torch.Tensor, returns: np.ndarray) -> float:
        """Fits the critic to the returns; returns the mean loss of the last epoch."""
        targets, losses = torch.as_tensor(returns, dtype=torch.float32), [0.0]
        for _ in range(self._epochs):
            losses = []
            for chunk in torch.randperm(len(targets)).split(self._batch):
                self.optimiser.zero_grad()
                loss = functional.mse_loss(self.critic(features[chunk]).squeeze(-1), targets[chunk])
                loss.backward()
                self.optimiser.step()
                losses.append(float(loss.detach()))
        return float(np.mean(losses))


def lagrangian(config: Mapping[str, Any], agent: Mapping[str, Any], model: Any, env: Any) -> Lagrangian:
    """Builds the callback from `agent.lagrangian` (conf/agent/ppo_lagrangian.yaml).

    Raises:
        UserError: the environment does not count online requests, or there is no budget.
    """
    places, settings = env.unwrapped.env, agent["lagrangian"]
    if not hasattr(places, "episodes"):
        raise UserError(f"agent.lagrangian: {config['env']['id']} does not count the online requests that arrive; "
                        "choose an environment of ooco_gym, or leave out agent.lagrangian")
    budget = settings.get("budget")
    if budget is None:
        budget = places.config.scenario.load_protocol().violation_budget
    if not budget:
        raise UserError("agent.lagrangian.budget is null, and the protocol's violation_budget allows none; expected a "
                        "share between 0 and 1")
    multiplier = PIDMultiplier(*(float(settings[key]) for key in (
        "proportional", "integral", "derivative", "initial", "most", "smoothing")))
    return Lagrangian(multiplier, float(budget), float(settings["requests"]), **discounts_of(agent),
                      features=model.policy.features_extractor.features_dim, hidden=int(agent["hidden"]),
                      learning_rate=float(settings["learning_rate"]), epochs=int(settings["epochs"]),
                      batch_size=int(agent["batch_size"]))

