"""Kinds of values: what a key's default says about what it may be given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from ooco_gym.errors import UserError, nearest

COUNT_OR_LIST = ("seeds",)      # 3 means 1, 2, 3


def default_of(config: Any, key: str) -> Any:
    """The value at a dotted key as it stands; None for null, for what is required, and for what is not there."""
    node = config
    for part in key.split("."):
        if not isinstance(node, DictConfig) or part not in node or OmegaConf.is_missing(node, part):
            return None
        if OmegaConf.is_interpolation(node, part):
            return None         # of whatever kind
        node = node[part]
    return node


def known_keys(config: DictConfig, below: str = "") -> list[str]:
    """Every dotted key of a configuration, Hydra's own left out unless `below` names them."""
    found: list[str] = []

    def walk(node: Any, prefix: str) -> None:
        for key in node:
            name = f"{prefix}{key}"
            if name == "hydra" and not below:
                continue
            found.append(name)
            child = default_of(node, str(key))
            if isinstance(child, DictConfig):
                walk(child, f"{name}.")

    walk(config[below] if below else config, f"{below}." if below else "")
    return found


def check_value(key: str, value: Any, default: Any) -> None:
    """Checks that a value is of the kind of the key's default; null is always allowed, and null allows all.

    Raises:
        UserError: it is of another kind, or a mapping has a key that the default has not.
    """
    if value is None or default is None or (isinstance(value, str) and "${" in value):
        return
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise _wrong(key, value, "true or false", default)
    elif isinstance(default, int | float):
        listed = key.rpartition(".")[2] in COUNT_OR_LIST and isinstance(value, list)
        if not listed and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise _wrong(key, value, "a number", default)
    elif isinstance(default, str):
        if isinstance(value, list):
            raise _wrong(key, value, "one value, not a list", default)
        if isinstance(value, bool | int | float):
            raise _wrong(key, value, "text", default)
    elif isinstance(default, ListConfig):
        counted = key.rpartition(".")[2] in COUNT_OR_LIST and isinstance(value, int)
        if not isinstance(value, list) and not counted:
            raise UserError(f"{key}={_text(value)}: expected a list, such as {key}=[{_text(value)}]")
    elif isinstance(default, DictConfig):
        _check_mapping(key, value, default)


def _check_mapping(key: str, value: Any, default: DictConfig) -> None:
    if not isinstance(value, Mapping):
        first = next(iter(default), "key")
        raise UserError(f"{key}={_text(value)}: {key} is a group of keys; expected such as {key}.{first}=…")
    for name, item in value.items():
        if name not in default:
            raise UserError(f"{key} has no key '{name}'{nearest(str(name), [str(known) for known in default])}")
        check_value(f"{key}.{name}", item, default_of(default, str(name)))


def _wrong(key: str, value: Any, expected: str, default: Any) -> UserError:
    return UserError(f"{key}={_text(value)}: expected {expected}, such as {key}={_text(default)}")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ",".join(_text(item) for item in value) + "]"
    return str(value)
