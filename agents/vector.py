"""Episodes side by side in one process, without the copying that Stable-Baselines3's own vectoriser does.

`DummyVecEnv` deep-copies every info at every step and finds `action_masks` by climbing the wrappers; with an
environment that answers in microseconds that costs more than the environment.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import DummyVecEnv


class LeanVecEnv(DummyVecEnv):
    """`DummyVecEnv` for Dict observations that hold `action_mask`: infos are handed on, masks read from observations.

    The environments must not change an info after they have returned it.
    """

    def step_wait(self) -> Any:
        """Steps every environment; one that ended is reset, as Stable-Baselines3 expects."""
        infos: list[dict[str, Any]] = []
        for i, env in enumerate(self.envs):
            observation, self.buf_rews[i], terminated, truncated, info = env.step(self.actions[i])
            self.buf_dones[i] = terminated or truncated
            info["TimeLimit.truncated"] = truncated and not terminated
            if self.buf_dones[i]:
                info["terminal_observation"] = {key: np.copy(value) for key, value in observation.items()}
                observation, self.reset_infos[i] = env.reset()
            self._save_obs(i, observation)
            infos.append(info)
        return self._obs_from_buf(), self.buf_rews.copy(), self.buf_dones.copy(), infos

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """As in `DummyVecEnv`; `action_masks` of all environments comes from their last observations."""
        if method_name == "action_masks" and indices is None:
            return list(self.buf_obs["action_mask"] > 0)
        return super().env_method(method_name, *args, indices=indices, **kwargs)

    def _obs_from_buf(self) -> Any:
        return {key: buffer.copy() for key, buffer in self.buf_obs.items()}
