"""Gymnasium environments on the simulator. Importing `ooco_gym` registers them; ids are `ooco_gym/<Name>-v<N>`."""

from __future__ import annotations

import gymnasium as gym

# Entry points are strings, so that a spec survives `EnvSpec.to_json`.
ENVIRONMENTS = {
    "ooco_gym/Eviction-v0": "ooco_gym.envs.eviction:EvictionEnv",
    "ooco_gym/Gating-v0": "ooco_gym.envs.gating:GatingEnv",
    "ooco_gym/Preemption-v0": "ooco_gym.envs.preemption:PreemptionEnv",
    "ooco_gym/Migration-v0": "ooco_gym.envs.migration:MigrationEnv",
    "ooco_gym/Packing-v0": "ooco_gym.envs.packing:PackingEnv",
    "ooco_gym/Control-v0": "ooco_gym.envs.control:ControlEnv",
    "ooco_gym/Colocation-v0": "ooco_gym.envs.colocation:ColocationEnv",
    "ooco_gym/Routing-v0": "ooco_gym.envs.routing:RoutingEnv",
}


def register_all() -> None:
    """Registers every environment of this package, once; each also as a native vector environment."""
    for name, entry_point in ENVIRONMENTS.items():
        if name not in gym.registry:
            vector = entry_point.split(":")[1].replace("Env", "VectorEnv")
            gym.register(id=name, entry_point=entry_point, vector_entry_point=f"ooco_gym.envs.vector:{vector}")
