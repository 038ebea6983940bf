"""Reads users' settings: plain data, checks that name the key and the expected value, missing packages."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ooco_gym.errors import UserError, extras_of, is_number, is_whole

LARGEST_SEED = 2**32 - 1  # of NumPy's legacy generator, which Stable-Baselines3 seeds
# Upper limits of counts with which memory grows; other counts have `MOST_OF_ALL`.
MOST = {"n_envs": 4096, "n_steps": 1 << 20, "batch_size": 1 << 20, "hidden": 1 << 13, "population": 1 << 14,
        "windows": 1 << 16, "episodes": 1 << 20, "decisions": 1 << 24, "checks": 1 << 20}
MOST_OF_ALL = 10**12
_PACKAGES = {
    "train": ("torch", "stable_baselines3", "sb3_contrib"),
    "export": ("torch", "stable_baselines3", "sb3_contrib", "onnx", "onnxruntime"),
    "search": ("cmaes",),
    "wandb": ("wandb",),
    "tensorboard": ("tensorboard",),
    "offline": ("minari",),
}


# In what follows `name` is what the user calls `key`, and `null` says what null stands for, if it is allowed.
def whole(place: Mapping[str, Any], key: str, least: int, name: str = "", most: int | None = None, null: str = ""
          ) -> Any:
    """The whole number at `key`, of at least `least` and at most `most`."""
    upper, end = ("", math.inf) if most is None else (f" and at most {most}", most)
    value = _checked(place, key, name, lambda value: is_whole(value) and least <= value <= end,
                     f"a whole number of at least {least}{upper}", null)
    if value is not None and value > (bound := MOST.get(key, MOST_OF_ALL)):
        raise UserError(f"{name or key} must be at most {bound:,}, got {value}")
    return value


def number(place: Mapping[str, Any], key: str, least: float = 0.0, most: float = math.inf, name: str = "",
           null: str = "") -> Any:
    """The number at `key`, from `least` to `most`."""
    upper = "" if most == math.inf else f" and at most {most:g}"
    value = _checked(place, key, name, lambda value: is_number(value) and least <= value <= most,
                     f"a number of at least {least:g}{upper}", null)
    return None if value is None else float(value)


def positive(place: Mapping[str, Any], key: str, name: str = "", null: str = "") -> Any:
    value = _checked(place, key, name, lambda value: is_number(value) and value > 0, "a positive number", null)
    return None if value is None else float(value)


def _checked(place: Mapping[str, Any], key: str, name: str, holds: Callable[[Any], bool], expected: str,
             null: str) -> Any:
    value = place.get(key)
    if not holds(value) and not (null and value is None):
        raise UserError(f"{name or key} must be {expected}{f', or null for {null}' if null else ''}, got {value!r}")
    return value


def check_numbers(place: Mapping[str, Any], where: str, wholes: Mapping[str, int] | None = None,
                  numbers: Sequence[str] = (), positives: Sequence[str] = ()) -> None:
    """Checks several keys of `where`: whole numbers by their least, numbers of at least 0, and positive numbers."""
    for key, least in (wholes or {}).items():
        whole(place, key, least, f"{where}.{key}")
    for check, keys in ((number, numbers), (positive, positives)):
        for key in keys:
            check(place, key, name=f"{where}.{key}")


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
