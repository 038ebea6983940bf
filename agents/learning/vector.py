"""Adapts any Gymnasium `VectorEnv` to a Stable-Baselines3 `VecEnv`, which neither project does.

The interfaces differ in what a reset returns, in the layout of infos (arrays with masks in Gymnasium, a list of dicts
here), and in when an ended episode is reset: Stable-Baselines3 needs it in the same step.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from ooco_gym.errors import UserError

# Methods of one environment, and a native vector environment's methods for all places at once.
BATCHED = {"action_masks": "action_masks", "rule_action": "rule_actions", "base_action": "base_actions"}
_FINAL = ("final_obs", "final_info")


class GymnasiumVecEnv(VecEnv):
    """A Gymnasium `VectorEnv` that resets in the same step, for Stable-Baselines3 and sb3-contrib.

    The infos of a step have `TimeLimit.truncated`. At an episode's end they also have `terminal_observation`, `episode`
    (return `r`, length `l`, seconds `t`, as `Monitor` writes them), and the environment's own final info.

    Args:
        info_keys: infos that are copied into the dicts at every step; None: all. The others cost nothing; `info_array`
            returns them as arrays.

    Raises:
        UserError: `env` resets at another time, or never.
    """

    def __init__(self, env: VectorEnv, info_keys: Collection[str] | None = None) -> None:
        mode = (env.metadata or {}).get("autoreset_mode")
        if mode != AutoresetMode.SAME_STEP:
            name = mode.value if isinstance(mode, AutoresetMode) else mode
            raise UserError(f"the vector environment has autoreset_mode={name}; Stable-Baselines3 needs SameStep: make "
                            "it with autoreset_mode='SameStep'")
        self.env, self._info_keys = env, None if info_keys is None else frozenset(info_keys)
        self._infos: Mapping[str, Any] = {}
        self._observations: Any = None
        self._actions: Any = None
        self._begin()
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)

    def _begin(self) -> None:
        n = self.env.num_envs
        self._started = np.full(n, time.perf_counter())
        self._returns, self._lengths = np.zeros(n), np.zeros(n, np.int64)

    def reset(self) -> Any:
        """Resets all places with the values of `seed` and `set_options`; returns observations, and
        sets `reset_infos`."""
        options = self._options[0]
        if any(other != options for other in self._options):
            raise UserError("set_options: a Gymnasium VectorEnv takes one mapping of options for all of its places")
        seeds = None if all(seed is None for seed in self._seeds) else list(self._seeds)
        self._observations, self._infos = self.env.reset(seed=seeds, options=options or None)  # type: ignore[arg-type]
        self.reset_infos = [_of_place(self._infos, i) for i in range(self.num_envs)]
        self._reset_seeds()
        self._reset_options()
        self._begin()
        return self._observations

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = actions

    def step_wait(self) -> Any:
        """Steps all places; returns observations, float32 rewards, dones and a list of infos."""
        self._observations, rewards, terminated, truncated, infos = self.env.step(self._actions)
        if not np.isfinite(rewards).all():
            raise UserError("the environment gives rewards that are not finite; expected numbers to learn from")
        self._infos, dones = infos, terminated | truncated
        self._returns += rewards
        self._lengths += 1
        listed: list[dict[str, Any]] = [{"TimeLimit.truncated": False} for _ in range(self.num_envs)]
        if self._info_keys is None or self._info_keys:
            for i, info in enumerate(listed):
                info.update(_of_place(infos, i, self._info_keys))
        now = time.perf_counter()
        for i in np.flatnonzero(dones).tolist():
            self.reset_infos[i] = _of_place(infos, i)
            listed[i] = {**_of_place(infos.get("final_info", {}), i), "terminal_observation": infos["final_obs"][i],
                         "TimeLimit.truncated": bool(truncated[i] and not terminated[i])}
            listed[i].setdefault("episode", {"r": round(float(self._returns[i]), 6), "l": int(self._lengths[i]),
                                             "t": round(now - self._started[i], 6)})
            self._returns[i], self._lengths[i], self._started[i] = 0.0, 0, now
        return self._observations, np.asarray(rewards, np.float32), dones, listed

    @property
    def latest(self) -> Any:
        return self._observations

    def info_keys(self, prefix: str = "") -> list[str]:
        """Keys of the last step's infos that begin with `prefix`."""
        keys = dict.fromkeys((*self._infos, *self._infos.get("final_info", {})))
        return [key for key in keys if key.startswith(prefix) and not key.startswith("_")]

    def info_array(self, key: str) -> np.ndarray:
        """The last step's info `key` for all places, (N,); of an ended episode, its final one; 0 if absent."""
        values, final = self._infos.get(key), self._infos.get("final_info", {})
        if key not in final:
            return np.zeros(self.num_envs) if values is None else np.asarray(values)
        rest = np.zeros(self.num_envs) if values is None else values
        return np.where(final[f"_{key}"], final[key], rest)

    def close(self) -> None:
        self.env.close()

    def get_images(self) -> Sequence[np.ndarray | None]:
        frames: Any = self.env.render()
        return [None] * self.num_envs if frames is None else list(frames)

    def has_attr(self, attr_name: str) -> bool:
        """Whether `get_attr` or, for `action_masks`, `env_method` has a result."""
        if attr_name == "action_masks" and self._observed_masks() is not None:
            return True
        return hasattr(self.env, BATCHED.get(attr_name, attr_name)) or super().has_attr(attr_name)

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """An attribute of each place; the vector environment's own if it has no single environments."""
        places = list(self._get_indices(indices))
        if attr_name == "render_mode":
            return [self.env.render_mode for _ in places]
        of_places: Any = getattr(self.env, "get_attr", None)
        if of_places is None:
            return [getattr(self.env, attr_name) for _ in places]
        values = of_places(attr_name)
        return [values[i] for i in places]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Sets an attribute of all single environments."""
        of_places: Any = getattr(self.env, "set_attr", None)
        if of_places is None or len(list(self._get_indices(indices))) < self.num_envs:
            raise UserError(f"cannot set '{attr_name}' in single places of {type(self.env).__name__}")
        of_places(attr_name, [value] * self.num_envs)

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        """Calls a method of every place, in one call if the vector environment has a batched method."""
        places = list(self._get_indices(indices))
        batched: Any = getattr(self.env, BATCHED.get(method_name, ""), None)
        of_places: Any = getattr(self.env, "call", None)
        values: Any
        if batched is not None:
            values = batched(*method_args, **method_kwargs)
        elif method_name == "action_masks" and self._observed_masks() is not None:
            values = self._observed_masks()
        elif of_places is not None:
            values = of_places(method_name, *method_args, **method_kwargs)
        else:
            raise AttributeError(f"{type(self.env).__name__} has no method '{method_name}' of its places")
        return list(values) if len(places) == self.num_envs else [values[i] for i in places]

    def _observed_masks(self) -> np.ndarray | None:
        """Action masks in the info (Gymnasium's convention) or the observation, bool (N, A); None without."""
        masks = self._infos.get("action_mask")
        if masks is None and isinstance(self._observations, Mapping):
            masks = self._observations.get("action_mask")
        return None if masks is None else np.asarray(masks) > 0

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: Any = None) -> list[bool]:
        """Whether places are wrapped; always True for `Monitor`, since ends of episodes are reported as it does."""
        envs = getattr(self.env, "envs", None)
        return [wrapper_class is Monitor or (envs is not None and is_wrapped(envs[i], wrapper_class))
                for i in self._get_indices(indices)]


class RewardScale(VecNormalize):
    """`VecNormalize` of rewards only. Observations are scaled inside the network, which export
    includes, and pass without a copy."""

    def __init__(self, venv: VecEnv, gamma: float = 0.999) -> None:
        super().__init__(venv, norm_obs=False, norm_reward=True, gamma=gamma, clip_reward=np.inf)

    def normalize_obs(self, obs: Any) -> Any:
        return obs

    def unnormalize_obs(self, obs: Any) -> Any:
        return obs


def _of_place(infos: Mapping[str, Any], i: int, keys: Collection[str] | None = None) -> dict[str, Any]:
    """The infos of place i as plain values, from Gymnasium's layout of arrays with masks `_<key>`."""
    found: dict[str, Any] = {}
    for key, values in infos.items():
        mask = infos.get(f"_{key}")
        if key in _FINAL or (keys is not None and key not in keys):
            continue
        if (mask is None and key.startswith("_")) or (mask is not None and not mask[i]):
            continue
        if isinstance(values, Mapping):
            found[key] = _of_place(values, i)
        else:
            value = values[i]
            found[key] = value.item() if isinstance(value, np.generic) else value
    return found
