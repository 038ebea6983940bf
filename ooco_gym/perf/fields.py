"""Reads the fields of a dataclass from a mapping, such as a YAML file of `conf` or of a user."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from ooco_gym import resources
from ooco_gym.errors import UserError, nearest

Read = TypeVar("Read")


def read_fields(cls: type[Read], values: Any, where: str, convert: Callable[[str, str, Any], Any]) -> Read:
    """Builds a dataclass from values by field; fields with a default may be missing. `convert`
    takes the prefix of error messages, the field's type as written and the given value, and returns
    the field's value.

    Raises:
        UserError: not a mapping, an unknown or missing field, or a value that `convert` refuses.
    """
    check_fields(cls, values, where)
    known = {item.name: item for item in fields(cls)}  # type: ignore[arg-type]
    for name, item in known.items():
        if name not in values and item.default is MISSING and item.default_factory is MISSING:
            raise UserError(f"{where}: field '{name}' is missing")
    return cls(**{key: convert(f"{where}: field '{key}'", str(known[key].type), value)
                  for key, value in values.items()})


def check_fields(cls: type, values: Any, where: str) -> None:
    """Raises UserError unless `values` is a mapping whose keys are fields.

    Raises:
        UserError: with the nearest field.
    """
    if not isinstance(values, Mapping):
        raise UserError(f"{where} must be a mapping, got '{values}'")
    known = [item.name for item in fields(cls)]
    for key in values:
        if key not in known:
            raise UserError(f"{where}: unknown field '{key}'{nearest(str(key), known)}; expected: {', '.join(known)}")


def number(value: Any) -> float:
    """Converts to a number, also `80e9`, which YAML 1.1 reads as text; NaN if it is none."""
    try:
        return float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError, OverflowError):
        return math.nan


def at_least_0(where: str, _: str, value: Any) -> float:
    """Reads a number of at least 0, or infinity.

    Raises:
        UserError: it is none.
    """
    found = number(value)
    if not found >= 0:
        raise UserError(f"{where} must be a number of at least 0, got '{value}'")
    return found


def sizes(where: str, kind: str, value: Any) -> Any:
    """Reads an integer of at least 1, or None; for a tuple field, a list of these.

    Raises:
        UserError: it is none.
    """
    if kind.startswith("tuple"):
        if isinstance(value, str) or not hasattr(value, "__iter__"):
            raise UserError(f"{where} must be a list of whole numbers, got '{value}'")
        return tuple(sizes(where, "int", one) for one in value)
    found = 1.0 if value is None else number(value)
    if isinstance(value, str) or found % 1 != 0 or found < 1:
        raise UserError(f"{where} must be a whole number of at least 1, got '{value}'")
    return None if value is None else int(found)


def load_values(group: str, source: str | os.PathLike[str] | Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Returns the values of a name in `conf/<group>`, of a YAML file or of a mapping, with `name`;
    and the prefix of error messages."""
    if isinstance(source, Mapping):
        values = {"name": "custom", **source}
    else:
        values = resources.load_yaml(group, source)
        values.setdefault("name", os.path.splitext(os.path.basename(os.fspath(source)))[0])
    return values, f"{group} '{values['name']}'"


def convert(where: str, kind: str, value: Any) -> Any:
    """Reads one field by its type as written.

    Raises:
        UserError: the value is of another type.
    """
    if kind == "str":
        return str(value)
    if kind == "bool":
        if not isinstance(value, bool):
            raise UserError(f"{where} must be true or false, got '{value}'")
        return value
    if kind in ("float", "int"):
        found = number(value)
        if not math.isfinite(found) or (kind == "int" and found % 1 != 0):
            raise UserError(f"{where} must be {'a whole number' if kind == 'int' else 'a number'}, got '{value}'")
        return int(found) if kind == "int" else found
    if not isinstance(value, Mapping):
        raise UserError(f"{where} must be a mapping, got '{value}'")
    return {str(name): str(text) for name, text in value.items()}


def check_numbers(spec: Any, where: str, zero_allowed: set[str]) -> None:
    """Raises UserError for a number of a dataclass that is not positive, or 0 if that is not
    allowed."""
    for item in fields(spec):
        value = getattr(spec, item.name)
        if str(item.type) in ("float", "int") and not (value > 0 or (value == 0 and item.name in zero_allowed)):
            bound = "0 or more" if item.name in zero_allowed else "positive"
            raise UserError(f"{where}: field '{item.name}' must be {bound}, got {value}")
