"""Finding policies by name, through the entry-point group `ooco_gym.policies`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import yaml

from ooco_gym.errors import UserError, unknown
from ooco_gym.policy.bundle import Policy
from ooco_gym.resources import conf_root, load_yaml

GROUP = "ooco_gym.policies"


@lru_cache(maxsize=1)
def _entries() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def list_policies() -> list[str]:
    """Names of all installed policies, ours and third parties'."""
    return sorted(_entries())


@lru_cache(maxsize=64)
def _load(name: str) -> Policy:
    entries = _entries()
    if name not in entries:
        raise unknown("policy", name, entries)
    policy = entries[name].load()
    if (conf_root() / "policy" / f"{name}.yaml").is_file():
        values = {key: value for key, value in load_yaml("policy", name).items() if key not in ("name", "source")}
        policy = policy.with_values(values, f"conf/policy/{name}.yaml")
    return policy


def get_policy(name: str, values: Mapping[str, Any] | None = None) -> Policy:
    """Finds a policy and sets some of its parameters.

    Args:
        name: a registered name, or `name:param=value,param=value`.
        values: parameters to set besides.

    Raises:
        UserError: unknown policy or parameter, or a value that the parameter cannot have.
    """
    base, _, text = name.partition(":")
    policy = _load(base)
    if text:
        policy = policy.with_values(_parse_values(text, name), "policy")
    return policy.with_values(values or {}, "policy")


def _parse_values(text: str, whole: str) -> dict[str, Any]:
    values = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if not equals:
            raise UserError(f"policy '{whole}': '{part}' must read parameter=value")
        values[key.strip()] = yaml.safe_load(value)
    return values


def spelled(name: str, values: Mapping[str, Any]) -> str:
    """A policy's name, `name` or `name:param=value,…`, with more parameters set; a value here replaces one there."""
    if not values:
        return name
    base, _, text = name.partition(":")
    pairs = dict(pair.split("=", 1) for pair in text.split(",")) if text else {}
    pairs |= {key: _written(value) for key, value in values.items()}
    return f"{base}:" + ",".join(f"{key}={value}" for key, value in pairs.items())


def _written(value: Any) -> str:
    """A value as YAML reads it back: to it 1e-05 is text (1.0e-05 is a number), and on, off, null are not."""
    if isinstance(value, float):
        return yaml.safe_dump(float(value)).split()[0]
    return f"'{value}'" if isinstance(value, str) and yaml.safe_load(value) != value else str(value)


def spelling_of(value: str | Mapping[str, Any] | Policy) -> str:
    """What `policy_of` accepts, as a name: `name` or `name:param=value,…`.

    Raises:
        UserError: a mapping without a name.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, Policy):
        return spelled(value.name, value.values)
    return spelled(*_named(value))


def policy_of(value: str | Mapping[str, Any] | Policy) -> Policy:
    """Accepts what users write for a policy: a name, a mapping with `name` and parameters, or a `Policy`."""
    if isinstance(value, Policy):
        return value
    if isinstance(value, str):
        return get_policy(value)
    return get_policy(*_named(value))


def _named(value: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name in a mapping, and the parameters in it."""
    values = dict(value)
    name = values.pop("name", None)
    if name is None:
        raise UserError("policy: a mapping needs the key 'name'")
    values.pop("source", None)
    return name, values
