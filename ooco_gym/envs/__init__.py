"""Gymnasium environments on the simulator. Importing `ooco_gym` registers them; ids are `ooco_gym/<Name>-v<N>`.

An environment is one file of this package, whose class names its `id`, one YAML file in `conf/env` and its name in
`_CLASSES`: its code, which needs the compiled simulator, is imported when one is made. An environment elsewhere
registers itself when its file is imported (`vector.register`).
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator

from ooco_gym.errors import UserError
from ooco_gym.own_code import check

_CLASSES = {
    "Admission-v0": "admission:AdmissionEnv", "Batching-v0": "batching:BatchingEnv",
    "Colocation-v0": "colocation:ColocationEnv", "Control-v0": "control:ControlEnv",
    "Eviction-v0": "eviction:EvictionEnv", "EvictionPredicted-v0": "eviction:EvictionPredictedEnv",
    "Gating-v0": "gating:GatingEnv", "Gating-v1": "gating_v1:GatingV1Env", "Migration-v0": "migration:MigrationEnv",
    "MigrationPredicted-v0": "migration:MigrationPredictedEnv", "Packing-v0": "packing:PackingEnv",
    "Preemption-v0": "preemption:PreemptionEnv", "Reclaiming-v0": "reclaiming:ReclaimingEnv",
    "Routing-v0": "routing:RoutingEnv", "Serving-v0": "serving:ServingEnv"}
ENVIRONMENTS = {f"ooco_gym/{name}": f"{__name__}.{place}" for name, place in _CLASSES.items()}
"""Ids of this package's environments, each with its class as `module:class`."""


def register_all() -> None:
    """Registers every environment of this package, once; each also as a native vector environment."""
    for env_id, entry_point in ENVIRONMENTS.items():
        add(env_id, entry_point)


def add(env_id: str, entry_point: str) -> None:
    """Registers an environment by its class as `module:class`: entry points are text, so that specs can be saved."""
    if env_id not in gym.registry:
        gym.register(id=env_id, entry_point=entry_point, vector_entry_point=vector_name(entry_point))


def short_name(env_id: str) -> str:
    """Name of an environment's page and configuration: `gating` of the newest `ooco_gym/Gating-v1`, `gating_v0` of an
    older version."""
    name, _, version = env_id.rpartition("-v")
    newest = max((int(other.rpartition("-v")[2]) for other in ENVIRONMENTS if other.startswith(f"{name}-v")), default=0)
    short = name.rpartition("/")[2].lower()
    return short if int(version) >= newest else f"{short}_v{version}"


def vector_name(name: str) -> str:
    """Name of the class of N episodes of an environment's class: `GatingVectorEnv` of `GatingEnv`."""
    return f"{name.removesuffix('Env')}VectorEnv"


def imported(name: str) -> str:
    """The id of an environment, after the file or module that registers it has been imported where `name` says which.

    Args:
        name: an id; after a module or the path of a Python file and a colon: `mine.py:mine/Throttle-v0`.

    Raises:
        UserError: no such file or module, or the file's name is that of another module.
    """
    register_all()
    module, _, env_id = name.rpartition(":")
    if module and module not in sys.modules:  # one that is loaded runs nothing anew
        check(module, f"environment '{name}'")
    if module.endswith(".py"):
        path = Path(module).resolve()
        if not path.is_file():
            raise UserError(f"environment '{name}': the file '{path}' does not exist")
        if str(path.parent) not in sys.path:
            sys.path.append(str(path.parent))  # entry points are looked up again by the module's name
        module = path.stem
        if Path(str(import_module(module).__file__)).resolve() != path:
            raise UserError(f"environment '{name}': there is another module '{module}'; give the file another name")
    elif module:
        try:
            import_module(module)
        except ModuleNotFoundError as error:
            here = error.name == module and Path(f"{module}.py").is_file()
            raise UserError(f"the environment '{name}' cannot be made: no package named '{error.name}'"
                            + (f"; for the file here say '{module}.py:{env_id}'" if here else "")) from error
    return env_id


def is_ours(name: Any) -> bool:
    """Whether an environment, named as for `imported`, is simulated by this package: a `DecisionEnv`.

    Raises:
        UserError: as `imported`.
    """
    spec = gym.registry.get(imported(str(name)))
    if spec is None or spec.id in ENVIRONMENTS:
        return spec is not None
    entry: Any = spec.entry_point
    if isinstance(entry, str):
        entry = load_env_creator(entry)
    bases = entry.__mro__ if isinstance(entry, type) else ()
    return any((base.__module__, base.__name__) == ("ooco_gym.envs.base", "DecisionEnv") for base in bases)


register_all()
