"""Gymnasium environments on the simulator. Importing `ooco_gym` registers them; ids are
`ooco_gym/<Name>-v<N>`.

An environment is one file of this package (its class names its `id`), one YAML file in `conf/env`
and an entry in `_CLASSES`. Its module needs the compiled simulator, and is imported when an
environment is made. An environment outside this package registers itself when its file is
imported (`vector.register`).
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator

from ooco_gym.errors import UserError, former
from ooco_gym.own_code import check

_CLASSES = {
    "Admission-v2": "admission:AdmissionEnv", "Batching-v1": "batching:BatchingEnv",
    "Colocation-v1": "colocation:ColocationEnv", "Eviction-v1": "eviction:EvictionEnv",
    "EvictionPredicted-v1": "eviction:EvictionPredictedEnv", "Gating-v2": "gating:GatingEnv",
    "Interruption-v1": "interruption:InterruptionEnv", "Jobs-v1": "jobs:JobsEnv",
    "Migration-v1": "migration:MigrationEnv",
    "MigrationPredicted-v1": "migration:MigrationPredictedEnv", "OnlineTuning-v1": "online_tuning:OnlineTuningEnv",
    "Packing-v1": "packing:PackingEnv", "PreemptionVictim-v1": "preemption_victim:PreemptionVictimEnv",
    "PrefillGate-v1": "prefill_gate:PrefillGateEnv", "Retention-v1": "retention:RetentionEnv",
    "Routing-v2": "routing:RoutingEnv", "RuleChoice-v1": "rule_choice:RuleChoiceEnv",
    "Scaling-v1": "scaling:ScalingEnv",
    "ScalingPools-v1": "scaling_pools:ScalingPoolsEnv",
    "Serving-v1": "serving:ServingEnv"}
ENVIRONMENTS = {f"ooco_gym/{name}": f"{__name__}.{place}" for name, place in _CLASSES.items()}
"""Maps ids of this package's environments to `module:class`."""


class _Name(str):
    """Gating's: `gym.make` compares it with the name it looks for, and a former one, which no listing has, raises."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) or _refuse_former(f"ooco_gym/{other}-v0")


class _Version(int):
    """Gating's, compared with an older one in the same way."""

    def __gt__(self, other: int) -> bool:
        return _refuse_former(f"ooco_gym/Gating-v{other}") or int.__gt__(self, other)


def register_all() -> None:
    """Registers every environment of this package, once, as single and as native vector
    environment."""
    for env_id, entry_point in ENVIRONMENTS.items():
        add(env_id, entry_point)
    gating = gym.registry["ooco_gym/Gating-v2"]
    gating.name, gating.version = _Name(gating.name), _Version(gating.version or 0)


def _refuse_former(env_id: str) -> bool:
    """Returns False; raises UserError with the present name of an environment of an earlier version."""
    if now := former("environment", env_id):
        raise UserError(f"{now}: each decision has its own candidate table and no action occurs twice; retrain "
                        "policies of earlier versions")
    return False


def add(env_id: str, entry_point: str) -> None:
    """Registers an environment by its class as `module:class`, which is text so that specs can be
    saved."""
    if env_id not in gym.registry:
        gym.register(id=env_id, entry_point=entry_point, vector_entry_point=vector_name(entry_point))


def short_name(env_id: str) -> str:
    """Name of an environment's page and configuration: `gating` for `ooco_gym/Gating-v2`."""
    return env_id.rpartition("/")[2].partition("-v")[0].lower()


def vector_name(name: str) -> str:
    """Name of the vector class of an environment class: `PrefillGateVectorEnv` for
    `PrefillGateEnv`."""
    return f"{name.removesuffix('Env')}VectorEnv"


def imported(name: str) -> str:
    """Imports the file or module that `name` begins with, if any, and returns the environment's
    id.

    Args:
        name: an id, or `FILE.py:ID` or `MODULE:ID`, such as `mine.py:mine/Throttle-v0`.

    Raises:
        UserError: no such file or module, or another module has the file's name.
    """
    register_all()
    _refuse_former(name)
    module, _, env_id = name.rpartition(":")
    if module and module not in sys.modules:  # a loaded one runs nothing again
        check(module, f"environment '{name}'")
    if module.endswith(".py"):
        path = Path(module).resolve()
        if not path.is_file():
            raise UserError(f"environment '{name}': the file '{path}' does not exist")
        if str(path.parent) not in sys.path:
            sys.path.append(str(path.parent))  # entry points are looked up again by the module's name
        module = path.stem
        if Path(str(import_module(module).__file__)).resolve() != path:
            raise UserError(f"environment '{name}': another module '{module}' is already imported; rename the file")
    elif module:
        try:
            import_module(module)
        except ModuleNotFoundError as error:
            here = error.name == module and Path(f"{module}.py").is_file()
            raise UserError(f"the environment '{name}' cannot be made: no package named '{error.name}'"
                            + (f"; for the local file write '{module}.py:{env_id}'" if here else "")) from error
    return env_id


def is_ours(name: Any) -> bool:
    """Whether an environment, named as for `imported`, is a `DecisionEnv`.

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
