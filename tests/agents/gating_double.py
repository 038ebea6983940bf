"""A tiny environment with the gate's spaces, whose best rule is known: a test double, no simulator.

Each decision offers up to K candidates with a value and a cost; starting one earns value − cost, holding earns 0, and
a cost above the cluster's patience is a violation. Rule `best` takes the largest gain if it is positive and patient,
`ooco` the first legal candidate that is patient, `always` the first legal candidate, `never` holds. The base policy is
`ooco`: action 1 does what it would do. Decisions are of two kinds in turn, which makes no
difference.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import gymnasium as gym
import numpy as np
import yaml
from gymnasium import spaces

K, FC, F, D = 8, 3, 4, 2
FIXED = 2
A = FIXED + K


class GatingDouble(gym.Env):
    metadata: ClassVar = {"render_modes": []}

    def __init__(self, decisions: int = 40, noise: float = 1.0):
        self.decisions, self.noise = decisions, noise
        self.rules = ("always", "best", "never", "ooco", "random")
        self.config = SimpleNamespace(base_policy="ooco")
        self.action_space = spaces.Discrete(A)
        self.observation_space = spaces.Dict({
            "cluster": spaces.Box(0.0, 100.0, (FC,), np.float32),
            "candidates": spaces.Box(-1.0, 10.0, (K, F), np.float32),
            "action_mask": spaces.Box(0, 1, (A,), np.int8),
            "decision": spaces.Box(0.0, 1.0, (D,), np.float32),
        })

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.key = (0 if seed is None else seed, (options or {}).get("window", 0))
        self.random = np.random.default_rng(self.key)
        self.left, self.total, self.violations, self.started = self.decisions, 0.0, 0, 0
        self._draw()
        return self._observation(), {"action_mask": self.mask.copy(), "elapsed_s": 0.0}

    def _draw(self):
        self.patience = float(self.random.uniform(1.0, 9.0))
        self.value, self.cost = self.random.uniform(0, 10, K), self.random.uniform(0, 10, K)
        self.mask = np.ones(A, np.int8)
        self.mask[FIXED:] = self.random.random(K) < 0.6

    def _observation(self):
        candidates = np.zeros((K, F), np.float32)
        candidates[:, 0], candidates[:, 1], candidates[:, 2] = self.value, self.cost, self.value - self.cost / 2
        candidates[self.mask[FIXED:] == 0] = 0
        cluster = np.array([self.patience, 10 * self.patience, self.left], np.float32)
        return {"cluster": cluster, "candidates": candidates, "action_mask": self.mask.copy(),
                "decision": np.eye(D, dtype=np.float32)[self.left % D]}

    def action_masks(self):
        return self.mask.astype(bool)

    def base_action(self):
        return 1

    def rule_action(self, rule):
        legal = np.flatnonzero(self.mask[FIXED:])
        if rule == "never" or not len(legal):
            return 0
        if rule == "random":
            return int(self.random.choice(np.flatnonzero(self.mask)))
        if rule == "always":
            return FIXED + int(legal[0])
        patient = [k for k in legal if self.cost[k] <= self.patience]
        if rule == "ooco":
            return FIXED + int(patient[0]) if patient else 0
        gains = [self.value[k] - self.cost[k] for k in patient]
        return FIXED + int(patient[int(np.argmax(gains))]) if gains and max(gains) > 0 else 0

    def step(self, action):
        if action == 1:
            action = self.rule_action("ooco")
        served = cost = violation = 0.0
        if action and self.mask[action]:
            served, cost = float(self.value[action - FIXED]), float(self.cost[action - FIXED])
            violation = float(cost > self.patience)
            self.started += 1
        reward = served - cost - 5 * violation
        self.total += reward
        self.violations += int(violation)
        self.left -= 1
        self._draw()
        info = {"action_mask": self.mask.copy(), "elapsed_s": 0.05 if action else 0.2, "reward/service": served,
                "reward/cost": -cost, "reward/violation": -5 * violation, "cost": violation}
        if self.left == 0:
            info["summary"] = {
                "reward_total": self.total, "violation_rate": self.violations / self.decisions,
                "offline_reference_gpu_s_per_s": self.started / self.decisions,
                "output_tokens_per_s": 10.0 * self.started, "wasted_tokens_per_s": float(self.violations),
            }
        return self._observation(), reward, False, self.left == 0, info


gym.register("GatingDouble-v0", entry_point="tests.agents.gating_double:GatingDouble")
CONFIG = {"id": "tests.agents.gating_double:GatingDouble-v0",
          "splits": {"train": [1, 2, 3], "validation": [11, 12], "test": [21, 22, 23]}}


def train_config(out, **changes):
    """A complete configuration of `train` on the double, small enough for a second or two."""
    agent = {
        "name": "maskable_ppo", "hidden": 16, "n_envs": 3, "n_steps": 25,
        "batch_size": 75, "n_epochs": 2, "learning_rate": 3e-3, "clip_range": 0.2, "ent_coef": 0.0, "vf_coef": 0.5,
        "max_grad_norm": 0.5, "target_kl": None, "discount_per_s": 0.9, "gae_lambda_per_s": 0.9, "scale_decisions": 60,
        **changes.pop("agent", {}),
    }
    return {
        "env": CONFIG, "agent": agent, "logger": {"name": "none"}, "seed": 1, "total_timesteps": 300,
        "max_wall_s": None, "threads": 1, "checkpoint_every_steps": 100,
        "validation": {"windows": 2, "every_steps": 100, "violation_limit": 0.03}, "out": str(out), **changes,
    }


GATING = yaml.safe_load((Path(__file__).parents[2] / "conf" / "env" / "prefillgate.yaml").read_text(encoding="utf-8"))
SHORT = {**GATING, "window_s": 60.0, "warmup_s": 30.0}


def real_config(out, **changes):
    """A run on short windows of the gate; two updates."""
    changes = {"total_timesteps": 1600, "window_s": 30.0, **changes}
    return {**train_config(out, agent={"n_envs": 4, "n_steps": 200, "batch_size": 400, "imitate": None}, **changes),
            "env": SHORT, "validation": {"windows": 2, "every_steps": 800, "violation_limit": 0.03}}


def composed(out, *words):
    """The configuration of `ooco-gym train` with these words, without validation and checkpoints."""
    from hydra import compose, initialize_config_module
    from omegaconf import OmegaConf

    with initialize_config_module("conf", version_base=None):
        return OmegaConf.to_container(compose("train", [
            *words, "validation.windows=0", "checkpoint_every_steps=0", f"out={out}"]), resolve=True)
