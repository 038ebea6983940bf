"""Stable-Baselines3, CleanRL's loop and our own learner learn the same of a rollout, also where episodes are cut."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3.common.callbacks import CallbackList

from agents.learning.callbacks import LogMetrics
from agents.learning.models import build_model
from agents.learning.vector import GymnasiumVecEnv
from ooco_gym.resources import load_yaml

ID, ENVS, STEPS, INTERVAL_S = "ooco_gym/Gating-v2", 3, 15, 5.0
GAMMA_PER_S, LAMBDA_PER_S = 0.99, 0.95
ACTION = 3  # a level of the gate


def places(**changes: Any) -> Any:
    """Windows of six decisions: STEPS has two cuts in each place, and ends within a third."""
    return gym.make_vec(ID, num_envs=ENVS, vectorization_mode="vector_entry_point", autoreset_mode="SameStep",
                        window_s=6 * INTERVAL_S, warmup_s=30.0, train_seeds=[1000, 1001], **changes)


def value_of(cluster: Any) -> torch.Tensor:
    """A value function that all learners share, (n,)."""
    cluster = torch.as_tensor(cluster).float()
    return 4.0 * cluster.mean(-1) + torch.sin(20.0 * cluster.sum(-1))


def fixed(model: Any) -> Any:
    """The model with one action and the shared value function."""
    def forward(observation: Any, *_: Any, **__: Any) -> Any:
        values = value_of(observation["cluster"])
        return torch.full((len(values), 1), ACTION), values[:, None], torch.zeros(len(values))

    model.policy.forward = forward
    model.policy.predict_values = lambda observation: value_of(observation["cluster"])[:, None]
    return model


def rollout_of(model: Any, *callbacks: Any) -> tuple[np.ndarray, np.ndarray]:
    """Advantages and returns of one rollout, (steps, places)."""
    _, callback = model._setup_learn(STEPS * ENVS, CallbackList(list(callbacks)))
    model.collect_rollouts(model.env, callback, model.rollout_buffer, STEPS)
    return model.rollout_buffer.advantages, model.rollout_buffer.returns


def of_stable_baselines() -> tuple[np.ndarray, np.ndarray]:
    return rollout_of(fixed(MaskablePPO(
        "MultiInputPolicy", GymnasiumVecEnv(places(), info_keys=()), n_steps=STEPS, batch_size=STEPS * ENVS,
        gamma=GAMMA_PER_S**INTERVAL_S, gae_lambda=LAMBDA_PER_S**INTERVAL_S, device="cpu")))


def of_ours() -> tuple[np.ndarray, np.ndarray]:
    agent = {**load_yaml("agent", "maskable_ppo"), "n_steps": STEPS, "discount_per_s": GAMMA_PER_S,
             "gae_lambda_per_s": LAMBDA_PER_S}
    return rollout_of(fixed(build_model(GymnasiumVecEnv(places(), info_keys=()), agent, seed=0)), LogMetrics(False))


def of_cleanrl() -> tuple[np.ndarray, np.ndarray]:
    path = Path(__file__).resolve().parents[2] / "examples" / "cleanrl_ppo.py"
    spec: Any = importlib.util.spec_from_file_location("cleanrl_ppo", path)
    loop: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loop)
    loop.ENVS, loop.STEPS, loop.GAMMA_PER_S, loop.LAMBDA_PER_S = ENVS, STEPS, GAMMA_PER_S, LAMBDA_PER_S
    envs = places(flat=True)
    sizes = [space.shape[0] for space in envs.unwrapped.parts_space.values()]
    at = list(envs.unwrapped.parts_space).index("cluster")
    first = sum(sizes[:at])

    def agent(observation: torch.Tensor) -> Any:
        values = value_of(observation[:, first : first + sizes[at]])
        return torch.full((len(values), 1), ACTION), torch.zeros(len(values)), None, values

    observation = torch.as_tensor(envs.reset()[0])
    columns, observation, over = loop.rollout(envs, agent, observation, torch.zeros(ENVS))
    _, _, _, values, rewards, overs, elapsed, beyond = columns
    assert int(overs.sum()) == 2 * ENVS and int((beyond != 0).sum()) == 2 * ENVS
    advantages = loop.advantages_of(rewards, values, overs, elapsed, beyond, agent(observation)[3], over)
    return advantages.numpy(), (advantages + values).numpy()


@pytest.mark.parametrize("learner", [of_ours, of_cleanrl])
def test_learners_agree_on_advantages_and_returns_at_a_cut(learner: Any) -> None:
    """With intervals of one length γ^Δt is one discount, as Stable-Baselines3 has it."""
    for one, other in zip(of_stable_baselines(), learner(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
