"""Environments as RLlib takes them, for `ray.tune.register_env`: apart, for nothing else here knows of RLlib.

RLlib's own networks take one vector, and its `ActionMaskingTorchRLModule` a mask beside it. Nothing of Ray is imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from agents.environments import SplitEpisodes, make_env, split_seeds
from ooco_gym.envs import is_ours
from ooco_gym.resources import load_yaml


class Windows(SplitEpisodes):
    """Every reset plays a random window of a split's seeds.

    RLlib makes all environments of a runner from one and the same configuration, so that only the seed of the first
    reset tells them apart (`AlgorithmConfig.debugging(seed=…)`). Without it no two of them draw alike, nor do two runs.
    """

    def __init__(self, env: gym.Env, seeds: Sequence[int], runner: int) -> None:
        super().__init__(env, seeds, [int(word) for word in np.random.SeedSequence().generate_state(4)])
        self._runner = runner

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts a random window of the split; `seed` begins another order of them, `options` is not used."""
        if seed is not None:
            self._random = np.random.default_rng([seed, self._runner])
        return super().reset(options=options)


class Masked(gym.ObservationWrapper):
    """`observations`, float32 (size,), and `action_mask`, float32 (A,), of an environment that gives one vector."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        space: Any = env.action_space
        self.observation_space = spaces.Dict({"action_mask": spaces.Box(0.0, 1.0, (int(space.n),), np.float32),
                                              "observations": env.observation_space})

    def observation(self, observation: np.ndarray) -> dict[str, np.ndarray]:
        """The two parts of an observation."""
        masks = self.env.get_wrapper_attr("action_masks")()
        return {"action_mask": np.asarray(masks, np.float32), "observations": observation}


def rllib_env(config: Mapping[str, Any]) -> gym.Env:
    """An environment over the windows of a split, for the seeds of RLlib.

    Args:
        config: `env_config` of RLlib: `env` (a name of `conf/env`, or the path of a YAML file; `gating`), `split`
            (`train`), and arguments of the environment.

    Returns:
        Observations are `Masked` where one of several actions is chosen, and plain vectors where all are always legal.

    Raises:
        UserError: no such environment, split or argument.
    """
    given = dict(config)
    base = load_yaml("env", given.pop("env", "gating"))
    split = given.pop("split", "train")
    whole = {**base, **given}
    made = make_env(whole, flat=True) if is_ours(whole.get("id")) else gym.wrappers.FlattenObservation(make_env(whole))
    env = Windows(made, split_seeds(whole, split), getattr(config, "worker_index", 0))
    return Masked(env) if isinstance(env.action_space, spaces.Discrete) else env
