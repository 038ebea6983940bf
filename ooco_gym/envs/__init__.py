"""Gymnasium environments on the simulator. Importing `ooco_gym` registers them; ids are `ooco_gym/<Name>-v<N>`."""

from __future__ import annotations

import gymnasium as gym

ENVIRONMENTS = {"ooco_gym/Gating-v0": "ooco_gym.envs.gating:GatingEnv"}


def register_all() -> None:
    """Registers every environment of this package, once."""
    for name, entry_point in ENVIRONMENTS.items():
        if name not in gym.registry:
            gym.register(id=name, entry_point=entry_point)
