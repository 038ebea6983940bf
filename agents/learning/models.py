"""PPO, DQN and QR-DQN of Stable-Baselines3 and sb3-contrib for these environments: buffers, policies, algorithms.

Buffers discount by simulated time, not by decision. Decisions come at uneven intervals, many a second, while an offline
request lives about a minute: a fixed discount for each decision would look a second ahead. The discount over a step of
Δt seconds is γ^Δt, that of advantages λ^Δt.

Policies are what these projects want around an encoder of observations and a scorer of actions (`networks`). Actions
are legal ones, for the mask is in the observation.

`LeanMaskablePPO` is MaskablePPO with the same arithmetic and less work around it. sb3-contrib builds distribution
objects for each step and scales every observation anew in each epoch. Here a rollout is scaled once, actor and critic
answer in one pass, and masks come from the observation. Tests hold rollout and update to sb3-contrib's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib import QRDQN, MaskablePPO
from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer
from sb3_contrib.common.maskable.policies import MaskableMultiInputActorCriticPolicy
from sb3_contrib.qrdqn.policies import QRDQNPolicy, QuantileNetwork
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import DictReplayBuffer, DictRolloutBuffer
from stable_baselines3.common.policies import MultiInputActorCriticPolicy
from stable_baselines3.common.type_aliases import DictReplayBufferSamples
from stable_baselines3.common.utils import explained_variance
from stable_baselines3.dqn.policies import DQNPolicy, QNetwork
from torch import nn
from torch.nn import functional

from agents.environments import random_legal
from agents.learning.networks import MASKED, ObservationEncoder, Scorer, build_scorer, levels_of


# --- Buffers ----------------------------------------------------------------------------------------------------------
def timed_advantages(rewards: np.ndarray, values: np.ndarray, last_values: np.ndarray, starts: np.ndarray,
                     dones: np.ndarray, elapsed_s: np.ndarray, discount_per_s: float,
                     gae_lambda_per_s: float) -> np.ndarray:
    """Generalised advantages (Schulman et al. 2016, arXiv 1506.02438) with γ^Δt and (γλ)^Δt: float64 (steps, places).

    Args:
        rewards, values: of each step, (steps, places); rewards are paid at the end of the step.
        last_values: of what comes after the last step, (places,).
        starts: whether an episode begins at a step, (steps, places); what came before it does not see past it.
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


class _Timed:
    """A rollout buffer with a duration for each transition.

    Args:
        discount_per_s: γ over one simulated second, in (0, 1].
        gae_lambda_per_s: λ of generalised advantage estimation over one simulated second, in [0, 1]; in policies that
            were saved before: trace_per_s.

    `elapsed_s` (n_steps, n_envs) is filled by whoever steps the environment, before `add`.
    """

    elapsed_s: np.ndarray

    def __init__(self, *args: Any, discount_per_s: float, gae_lambda_per_s: float | None = None,
                 trace_per_s: float | None = None, **kwargs: Any) -> None:
        self.discount_per_s = discount_per_s
        self.gae_lambda_per_s = trace_per_s if gae_lambda_per_s is None else gae_lambda_per_s
        super().__init__(*args, **kwargs)

    def reset(self: Any) -> None:
        """Empties the buffer; durations start at zero, which means no discount."""
        super().reset()  # type: ignore[misc]
        self.elapsed_s = np.zeros((self.buffer_size, self.n_envs), dtype=np.float64)

    def compute_returns_and_advantage(self: Any, last_values: torch.Tensor, dones: np.ndarray) -> None:
        """Generalised advantages in simulated time; returns are advantages plus values."""
        self.advantages[:] = timed_advantages(
            self.rewards, self.values, last_values.detach().cpu().numpy().flatten(), self.episode_starts, dones,
            self.elapsed_s, self.discount_per_s, self.gae_lambda_per_s)
        self.returns = self.advantages + self.values


class TimedRolloutBuffer(_Timed, MaskableDictRolloutBuffer):
    """`MaskableDictRolloutBuffer` with a duration for each transition."""


class UnmaskedTimedRolloutBuffer(_Timed, DictRolloutBuffer):
    """`DictRolloutBuffer` with a duration for each transition."""


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


# --- Policies ---------------------------------------------------------------------------------------------------------
class _Scored:
    """What all these policies have in common: an `ObservationEncoder`, and a `Scorer` of actions behind it.

    Args:
        network: a name of `networks.SCORERS`.
        joint: whether each kind of decision has a last layer of its own.
    """

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space, *args: Any,
                 network: str = "candidate_scorer", hidden: int = 64, joint: bool = False, **kwargs: Any) -> None:
        self.scoring = {"network": network, "hidden": hidden, "joint": joint}
        kwargs.setdefault("features_extractor_class", ObservationEncoder)
        super().__init__(observation_space, action_space, *args, **kwargs)  # type: ignore[call-arg]

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), **self.scoring}  # type: ignore[misc]


class _ActorCritic(_Scored):
    """An actor-critic policy, with the scorer as its `mlp_extractor`."""

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("features_extractor_kwargs", {"levels": levels_of(action_space)})
        super().__init__(observation_space, action_space, *args, **kwargs)

    def _build_mlp_extractor(self) -> None:
        encoder: Any = self.features_extractor  # type: ignore[attr-defined]
        self.mlp_extractor = build_scorer(encoder, **self.scoring)

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


class _Valued(_Scored):
    """A policy of DQN or QR-DQN.

    Attributes:
        network_name: what Stable-Baselines3 calls the network that decides.
    """

    network_name: ClassVar[str]

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


# --- Algorithms -------------------------------------------------------------------------------------------------------
Tensors = dict[str, torch.Tensor]


class LeanMaskablePPO(MaskablePPO):
    """`MaskablePPO` for observations that hold their `action_mask`, behind an `ObservationEncoder`."""

    # --- Playing -----------------------------------------------------------------------------------------------------
    def collect_rollouts(self, env: Any, callback: Any, rollout_buffer: Any, n_rollout_steps: int,
                         use_masking: bool = True) -> bool:
        """Plays `n_rollout_steps` steps into the buffer; False if a callback ended it before."""
        assert isinstance(self._last_obs, dict) and self._last_episode_starts is not None
        self.policy.set_training_mode(False)
        rollout_buffer.reset()
        callback.on_rollout_start()
        dones = np.zeros(env.num_envs, bool)
        for _ in range(n_rollout_steps):
            masks = self._last_obs["action_mask"] > 0  # type: ignore[index]
            actions, values, log_probs = self._decide(self._last_obs, masks)
            new_obs, rewards, dones, infos = env.step(actions)
            self.num_timesteps += env.num_envs
            callback.update_locals(locals())
            if not callback.on_step():
                return False
            self._update_info_buffer(infos, dones)
            self._judge_ends(rewards, dones, infos)
            rollout_buffer.add(self._last_obs, actions.reshape(env.num_envs, -1), rewards, self._last_episode_starts,
                               values, log_probs, action_masks=masks)
            self._last_obs, self._last_episode_starts = new_obs, dones
        with torch.inference_mode():
            last_values = self._values(self._last_obs)
        rollout_buffer.compute_returns_and_advantage(last_values=last_values, dones=dones)
        callback.on_rollout_end()
        return True

    def _decide(self, observation: Any, masks: np.ndarray) -> tuple[np.ndarray, torch.Tensor, torch.Tensor]:
        """Draws actions (N,) or (N, P); also their values and log-probabilities (N,)."""
        with torch.inference_mode():
            logits, values = self._evaluate(self._features(observation))
            parts = self._parts(logits, torch.as_tensor(masks))
            drawn = [torch.multinomial(part.exp(), 1, replacement=True) for part in parts]
            log_prob = torch.stack([part.gather(1, one) for part, one in zip(parts, drawn, strict=True)]).sum(0)
            actions = torch.cat(drawn, dim=1).numpy()
        return actions if self._multiple else actions[:, 0], values, log_prob.flatten()

    def _judge_ends(self, rewards: np.ndarray, dones: np.ndarray, infos: list[dict[str, Any]]) -> None:
        """Adds to the last reward of a truncated episode what would have come after it."""
        ended = [i for i in np.flatnonzero(dones) if infos[i].get("TimeLimit.truncated")
                 and infos[i].get("terminal_observation") is not None]
        if not ended:
            return
        last = [infos[i]["terminal_observation"] for i in ended]
        with torch.inference_mode():
            values = self._values({key: np.stack([one[key] for one in last]) for key in last[0]})
        rewards[ended] += self.gamma * values.numpy()

    # --- The network -------------------------------------------------------------------------------------------------
    @property
    def _multiple(self) -> bool:
        return isinstance(self.action_space, spaces.MultiDiscrete)

    def _features(self, observation: Any) -> torch.Tensor:
        encoder = self.policy.features_extractor
        assert isinstance(encoder, ObservationEncoder)
        return encoder({key: torch.as_tensor(part) for key, part in observation.items()})

    def _values(self, observation: Any) -> torch.Tensor:
        policy = self.policy
        return policy.value_net(policy.mlp_extractor.forward_critic(self._features(observation))).flatten()

    def _evaluate(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits (batch, A) and values (batch,)."""
        latent_pi, latent_vf = self.policy.mlp_extractor(features)
        return self.policy.action_net(latent_pi), self.policy.value_net(latent_vf).flatten()

    def _parts(self, logits: torch.Tensor, masks: torch.Tensor) -> list[torch.Tensor]:
        """Log-probabilities of each of the actions that are taken at once: one, or P of them."""
        masked = torch.where(masks, logits, MASKED)
        sizes = self.action_space.nvec.tolist() if self._multiple else [logits.shape[1]]  # type: ignore[attr-defined]
        return [functional.log_softmax(part, dim=1) for part in masked.split(sizes, dim=1)]

    def _log_prob_and_entropy(self, logits: torch.Tensor, masks: torch.Tensor, actions: torch.Tensor
                              ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of `actions` (batch, P), and of the distribution: (batch,) each."""
        log_prob, entropy = torch.zeros(()), torch.zeros(())
        for place, part in enumerate(self._parts(logits, masks)):
            log_prob = log_prob + part.gather(1, actions[:, place : place + 1]).squeeze(1)
            entropy = entropy - (part.exp() * part).sum(1)  # where masked, exp(part) is 0 and part finite
        return log_prob, entropy

    # --- Learning ----------------------------------------------------------------------------------------------------
    def train(self) -> None:
        """One PPO update on the rollout: `n_epochs` passes in minibatches, ended early by `target_kl`."""
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        rollout, logged = self._rollout(), {}
        size = len(rollout["actions"])
        going = True
        for _ in range(self.n_epochs):
            order, kls = torch.as_tensor(np.random.permutation(size)), []  # noqa: NPY002 - the stream that SB3 seeds
            for chosen in order.split(self.batch_size):
                loss, figures = self._loss({key: part.index_select(0, chosen) for key, part in rollout.items()})
                kls.append(figures.pop("approx_kl"))
                for key, value in figures.items():
                    logged.setdefault(key, []).append(value)
                if self.target_kl is not None and kls[-1] > 1.5 * self.target_kl:
                    going = False
                    break
                self.policy.optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
                self.policy.optimizer.step()
            self._n_updates += 1
            logged["approx_kl"] = kls
            if not going:
                break
        self._log({key: float(np.mean(values)) for key, values in logged.items()})

    def _log(self, figures: dict[str, float]) -> None:
        values, returns = self.rollout_buffer.values.flatten(), self.rollout_buffer.returns.flatten()
        for key, value in figures.items():
            self.logger.record(f"train/{key}", value)
        self.logger.record("train/explained_variance", explained_variance(values, returns))
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/clip_range", self._clip())

    def _clip(self) -> float:
        return self.clip_range(self._current_progress_remaining)  # type: ignore[operator]

    def _rollout(self) -> Tensors:
        """What an update learns from, one row a decision, in the order in which sb3-contrib's buffer lays it out."""
        buffer: Any = self.rollout_buffer

        def rows(array: np.ndarray) -> torch.Tensor:
            return torch.as_tensor(array.swapaxes(0, 1).reshape(-1, *array.shape[2:]))

        with torch.inference_mode():
            observation = {key: rows(part).numpy() for key, part in buffer.observations.items()}
            features = self._features(observation)
        return {"features": features.clone(), "masks": torch.as_tensor(observation["action_mask"] > 0),
                "actions": rows(buffer.actions).long(), "returns": rows(buffer.returns),
                "advantages": rows(buffer.advantages), "old_log_prob": rows(buffer.log_probs)}

    def _loss(self, batch: Tensors) -> tuple[torch.Tensor, dict[str, float]]:
        """The loss of a minibatch (Schulman et al., 2017, eq. 9), and figures of it."""
        logits, values = self._evaluate(batch["features"])
        log_prob, entropy = self._log_prob_and_entropy(logits, batch["masks"], batch["actions"])
        advantages = batch["advantages"]
        if self.normalize_advantage:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        log_ratio = log_prob - batch["old_log_prob"]
        ratio, clip = log_ratio.exp(), self._clip()
        policy_loss = -torch.min(advantages * ratio, advantages * ratio.clamp(1 - clip, 1 + clip)).mean()
        value_loss = functional.mse_loss(values, batch["returns"])
        entropy_loss = -entropy.mean()
        loss = policy_loss + self.ent_coef * entropy_loss + self.vf_coef * value_loss
        with torch.no_grad():
            figures = torch.stack([
                policy_loss, value_loss, entropy_loss, loss, ((ratio - 1).abs() > clip).float().mean(),
                (ratio - 1 - log_ratio).mean()]).tolist()
        names = ("policy_gradient_loss", "value_loss", "entropy_loss", "loss", "clip_fraction", "approx_kl")
        return loss, dict(zip(names, figures, strict=True))


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
