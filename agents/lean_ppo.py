"""MaskablePPO with the same arithmetic and less work around it.

sb3-contrib builds distribution objects for each step and scales every observation anew in each epoch. Here a rollout is
scaled once, actor and critic answer in one pass, and masks come from the observation, where these environments put
them. Tests hold rollout and update to sb3-contrib's own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib import MaskablePPO
from stable_baselines3.common.utils import explained_variance
from torch.nn import functional

from agents.networks import ObservationEncoder
from agents.scorers import MASKED

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
