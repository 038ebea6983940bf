"""Reads YAML and JSON that a person or a command wrote: whatever is wrong with a file is one sentence.

Apart: every package reads such files, and each library raises a dozen kinds of errors for damaged ones.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ooco_gym.errors import UserError

DEEPEST = 200
"""Values within values of a YAML file, at most."""
_OPENING = ("[", "{", "- ", "-\t", "-\n", ":", "?")  # one of these begins each value that has others in it
SEAL = "content_sha256"
"""Key of a sealed document that holds the digest of all others."""


def read_yaml(path: str | os.PathLike[str], where: str = "", advice: str = "") -> Any:
    """What a YAML file holds.

    Args:
        path: the file.
        where: what the sentence calls it; the path in quotes by default.
        advice: is added to the sentence, such as `; simulate it again`.

    Raises:
        UserError: it cannot be read, or is no YAML.
    """
    return _read(path, "YAML", _of_yaml, where, advice)


def read_json(path: str | os.PathLike[str], where: str = "", advice: str = "") -> Any:
    """What a JSON file holds; arguments and errors are as of `read_yaml`."""
    return _read(path, "JSON", json.loads, where, advice)


def read_mapping(path: str | os.PathLike[str], where: str = "", advice: str = "") -> dict[str, Any]:
    """The mapping that a JSON file (`.json`) or a YAML file holds.

    Raises:
        UserError: it cannot be read, holds something else, or was changed after it had been sealed.
    """
    file, where = Path(path), where or f"'{path}'"
    value = (read_json if file.suffix == ".json" else read_yaml)(file, where, advice)
    if not isinstance(value, dict):
        raise UserError(f"{where} must hold a mapping of keys to values{advice}")
    if SEAL in value and value[SEAL] != seal_of(value):
        raise UserError(f"{where} was changed after it was written (its SHA-256 differs){advice}")
    return value


def seal_of(value: Mapping[str, Any]) -> str:
    """SHA-256 of what JSON gives back of a mapping, its seal left out; in hexadecimal."""
    rest = {key: item for key, item in value.items() if key != SEAL}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode("ascii")).hexdigest()


def file_digest(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _of_yaml(text: str) -> Any:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    if sum(map(text.count, _OPENING)) > DEEPEST:  # else it cannot be as deep as that
        _check_depth(yaml.parse(text, Loader=loader))
    return yaml.load(text, Loader=loader)  # nosec B506


def _check_depth(events: Iterable[Any]) -> None:
    """Refuses what is deeper than `DEEPEST`: the compiled loader goes down by recursion, and ends the process where the
    stack does."""
    depth = 0
    for event in events:
        name = type(event).__name__
        depth += name.endswith("StartEvent") - name.endswith("EndEvent")
        if depth > DEEPEST:
            raise ValueError(f"values within values, more than {DEEPEST} deep")


def _read(path: str | os.PathLike[str], kind: str, parse: Callable[[str], Any], where: str, advice: str) -> Any:
    where = where or f"'{path}'"
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no text in UTF-8"
        raise UserError(f"{where} cannot be read: {reason}{advice}") from error
    try:
        return parse(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{where} is not valid JSON: line {error.lineno}, {error.msg}{advice}") from error
    except Exception as error:  # beside YAMLError, of values and depths that cannot be: a dozen kinds
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise UserError(f"{where} is not valid {kind}: {reason}{advice}") from error
