"""What users' settings may be; missing packages."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Annotated, Any

from ooco_gym.errors import UserError, extras_of
from ooco_gym.schema import Range, plain

LARGEST_SEED = 2**32 - 1  # of NumPy's legacy generator, which Stable-Baselines3 seeds
# Counts with which memory grows have their upper limits here.
Seed = Annotated[int, Range(0, LARGEST_SEED)]
Decisions = Annotated[int, Range(1, 1 << 24)]
Windows = Annotated[int, Range(1, 1 << 16)]
Episodes = Annotated[int, Range(1, 1 << 20)]
Population = Annotated[int, Range(4, 1 << 14, null="4 + 3 ln n")]
NoLimit = Annotated[float, Range(0, unit="seconds", above=True, null="no limit")]
ItsOwn = Annotated[float, Range(0, unit="seconds", above=True, null="the environment's own")]
_PACKAGES = {
    "train": ("torch", "stable_baselines3", "sb3_contrib"),
    "export": ("torch", "stable_baselines3", "sb3_contrib", "onnx", "onnxruntime"),
    "search": ("cmaes",),
    "wandb": ("wandb",),
    "tensorboard": ("tensorboard",),
    "offline": ("minari",),
}


def require(purpose: str) -> None:
    """Checks that the packages for `purpose` (a key of `_PACKAGES`) can be imported."""
    if missing := [name for name in _PACKAGES[purpose] if importlib.util.find_spec(name) is None]:
        raise UserError(f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed, which '{purpose}' "
                        f"needs; install with: pip install 'ooco-gym[{extras_of(_PACKAGES[purpose])}]'")


def limit_torch_threads() -> None:
    """Keeps torch, if installed, to one thread: worker processes share the cores."""
    if importlib.util.find_spec("torch") is not None:
        import torch

        torch.set_num_threads(1)


def group(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Returns the part `key` of a command's configuration, which must be a mapping."""
    value = config.get(key)
    if value is None or isinstance(value, str):
        raise UserError(f"{key}={value} is not a configuration; expected a name from conf/{key}/ or a YAML file")
    return plain(value)
