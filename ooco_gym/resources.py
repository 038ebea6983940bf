"""Reads the YAML files of the `conf` package (or a user's own) without Hydra."""

from __future__ import annotations

import os
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from ooco_gym.beside import ROOT
from ooco_gym.documents import read_yaml, version_of
from ooco_gym.errors import UserError, printable, unknown

_PATHS = {"chip": ("tables",), "env": ("id",), "policy": ("file", "weights")}
"""Keys of a group's files with paths relative to the file; an `id` may begin with one: `mine.py:…`."""
_SUFFIXES = (".yaml", ".yml", ".json")
_KEPT: dict[tuple[str, Path], tuple[dict[Path, str | None], dict[str, Any]]] = {}
"""By group and file: (files read with their versions, content)."""


def conf_root() -> Path:
    """Returns the folder of our `conf` package."""
    return ROOT / "conf"


def names(group: str) -> list[str]:
    """Lists the names of a configuration group, for example `names("chip")`."""
    return sorted(path.stem for path in (conf_root() / group).glob("*.yaml"))


def load_yaml(group: str, name: str | os.PathLike[str] | Mapping[str, Any]) -> dict[str, Any]:
    """Loads `conf/<group>/<name>.yaml`, or the YAML file at the path `name`, in which paths become
    absolute; a mapping is returned as it is.

    A file with `extends: NAME` has only differences from another file of its group. NAME is looked
    up beside it, then in `conf/<group>`; `NAME.yaml` is a path relative to it. Mappings are merged
    key by key; other values replace the parent's.

    Raises:
        UserError: no such name or file, the file is not a YAML mapping, or it extends an unknown file or itself.
    """
    if isinstance(name, Mapping):
        return dict(name)
    path = _path(group, name)
    key = (group, path.absolute())
    files, value = _KEPT.get(key, ({}, {}))
    if not files or any(version_of(file) != version for file, version in files.items()):
        files = {}
        value = _extended(group, path, files)
        _KEPT[key] = (files, value)
    return deepcopy(value)  # callers may change it


def named_values(group: str, source: str | os.PathLike[str] | Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of a name in `conf/<group>`, of a YAML file or of a mapping, with their `name`."""
    if isinstance(source, Mapping):
        return {"name": "custom", **source}
    return {"name": Path(source).stem, **load_yaml(group, source)}


def _path(group: str, name: str | os.PathLike[str]) -> Path:
    """The file of a name in a group, or of a path."""
    text = str(name)
    path = Path(text) if text.endswith(_SUFFIXES) else conf_root() / group / f"{text}.yaml"
    if os.path.isfile(path):  # Path raises for a name that is too long
        return path
    if text.endswith(_SUFFIXES):
        raise UserError(f"{group} file '{path}' does not exist")
    raise unknown(group, text, names(group))


def _extended(group: str, path: Path, files: dict[Path, str | None]) -> dict[str, Any]:
    """Content of a file merged over its parents'; adds these files to `files`, the chain so far."""
    if path in files:
        chain = [*files]
        raise UserError(f"{group} files extend each other: "
                        + " extends ".join(f"'{one}'" for one in (*chain[chain.index(path):], path)))
    files[path] = version_of(path)
    value = read_yaml(path, f"{group} file '{path}'")
    if not isinstance(value, dict):
        raise UserError(f"{group} file '{path}' must hold a mapping of keys to values")
    if group != "preset" and conf_root() not in path.absolute().parents:
        _check_plain(value, f"{group} file '{path}'")
    for key in _PATHS.get(group, ()):
        if value.get(key) and (key != "id" or ".py:" in str(value[key])):
            value[key] = os.path.abspath(path.parent / str(value[key]))
    if "extends" not in value:
        return value
    return merged(_extended(group, _parent(group, path, value.pop("extends")), files), value)


def _check_plain(value: Any, where: str) -> None:
    """Raises UserError for a control character in a file of data, and for an interpolation: what it
    names (an environment variable, say) would stand in the results."""
    if isinstance(value, str) and printable(value) != value:
        raise UserError(f"{where}: '{value[:80]}' has a control character in it; expected text without any")
    if isinstance(value, str) and "${" in value:
        raise UserError(f"{where}: '{value[:80]}' is not resolved, as such a file is data; write the value itself, or "
                        "give it on the command line")
    for one in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        _check_plain(one, where)


def _parent(group: str, path: Path, name: Any) -> Path:
    """The file that another one extends.

    Raises:
        UserError: no such file.
    """
    if not isinstance(name, str):
        raise UserError(f"{group} file '{path}': extends={name!r} must be the name of one {group}")
    file = name if name.endswith(_SUFFIXES) else f"{name}.yaml"
    beside, shipped = path.parent / file, conf_root() / group / file
    found = beside if beside.is_file() and (beside != path or not shipped.is_file()) else shipped
    if not found.is_file():
        known = {one.stem for folder in (path.parent, shipped.parent) for one in folder.glob("*.yaml")}
        raise UserError(f"{group} file '{path}' extends an {unknown(group, name, known)}")
    return found


def merged(parent: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Merges a file's own values over its parent's, key by key in mappings."""
    both = {key: merged(parent[key], value) if isinstance(value, Mapping) and isinstance(parent.get(key), Mapping)
            else value for key, value in own.items()}
    return {**parent, **both}
