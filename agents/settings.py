"""Reads users' settings: plain data, checks that name the key and the expected value, missing
packages."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ooco_gym.errors import UserError, extras_of, is_number, is_whole

LARGEST_SEED = 2**32 - 1  # of NumPy's legacy generator, which Stable-Baselines3 seeds


MOST = {"n_envs": 4096, "n_steps": 1 << 20, "batch_size": 1 << 20, "hidden": 1 << 13, "population": 1 << 14,
        "windows": 1 << 16, "episodes": 1 << 20, "decisions": 1 << 24,
        "checks": 1 << 20}
"""Upper limits of counts with which memory grows; other counts have `MOST_OF_ALL`."""
MOST_OF_ALL = 10**12


def whole(place: Mapping[str, Any], key: str, least: int, name: str | None = None, most: int | None = None) -> int:
    """The whole number at `key`, of at least `least` and at most `most`; `name` is what the user calls the key."""
    value = place.get(key)
    if not is_whole(value) or value < least or (most is not None and value > most):
        upper = "" if most is None else f" and at most {most}"
        raise UserError(f"{name or key} must be a whole number of at least {least}{upper}, got {value!r}")
    if value > (bound := MOST.get(key, MOST_OF_ALL)):
        raise UserError(f"{name or key} must be at most {bound:,}, got {value}")
    return value


def number(place: Mapping[str, Any], key: str, least: float = 0.0, most: float = math.inf,
           name: str | None = None) -> float:
    """The number at `key`, from `least` to `most`; `name` is what the user calls the key."""
    value = place.get(key)
    if not is_number(value) or not least <= value <= most:  # type: ignore[operator]
        upper = "" if most == math.inf else f" and at most {most:g}"
        raise UserError(f"{name or key} must be a number of at least {least:g}{upper}, got {value!r}")
    return float(value)  # type: ignore[arg-type]


def positive(place: Mapping[str, Any], key: str, name: str | None = None) -> float:
    """The positive number at `key`; `name` is what the user calls the key."""
    value = place.get(key)
    if not is_number(value) or value <= 0:  # type: ignore[operator]
        raise UserError(f"{name or key} must be a positive number, got {value!r}")
    return float(value)  # type: ignore[arg-type]


def positive_or_null(place: Mapping[str, Any], key: str, null: str, name: str | None = None) -> None:
    """Checks a positive number or null at `key`; `null` describes null, `name` is what the user
    calls the key."""
    value = place.get(key)
    if value is not None and (not is_number(value) or value <= 0):
        raise UserError(f"{name or key} must be a positive number, or null for {null}, got {value!r}")


def check_numbers(place: Mapping[str, Any], where: str, wholes: Mapping[str, int] | None = None,
                  numbers: Sequence[str] = (), positives: Sequence[str] = ()) -> None:
    """Checks several keys of `where`: whole numbers by their least, numbers of at least 0, and positive numbers."""
    for key, least in (wholes or {}).items():
        whole(place, key, least, name=f"{where}.{key}")
    for key in numbers:
        number(place, key, name=f"{where}.{key}")
    for key in positives:
        positive(place, key, name=f"{where}.{key}")


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
    missing = [name for name in _PACKAGES[purpose] if importlib.util.find_spec(name) is None]
    if not missing:
        return
    verb = "is" if len(missing) == 1 else "are"
    raise UserError(f"{', '.join(missing)} {verb} not installed, which '{purpose}' needs; install with: "
                    f"pip install 'ooco-gym[{extras_of(_PACKAGES[purpose])}]'")


def limit_torch_threads() -> None:
    """Keeps torch, if installed, to one thread: worker processes share the cores."""
    if importlib.util.find_spec("torch") is not None:
        import torch

        torch.set_num_threads(1)


def plain(config: Any) -> dict[str, Any]:
    """Returns a plain dict of an OmegaConf or ordinary mapping, interpolations resolved."""
    if hasattr(config, "_metadata"):
        from omegaconf import OmegaConf

        return OmegaConf.to_container(config, resolve=True)  # type: ignore[return-value]
    return dict(config)


def group(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Returns the part `key` of a command's configuration, which must be a mapping."""
    value = config.get(key)
    if value is None or isinstance(value, str):
        raise UserError(f"{key}={value} is not a configuration; expected a name from conf/{key}/ or a YAML file")
    return plain(value)

