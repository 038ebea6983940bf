"""Reads the YAML files of the `conf` package (or a user's own) without Hydra."""

from __future__ import annotations

import os
from copy import deepcopy
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from ooco_gym.errors import UserError, unknown

_PATHS = {"chip": ("tables",)}
"""Keys of a group's files that hold paths, relative to the file."""
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@lru_cache(maxsize=1)
def conf_root() -> Path:
    """Returns the folder of our `conf` package.

    Raises:
        UserError: another project's package named `conf` shadows ours.
    """
    root = Path(str(resources.files("conf")))
    if not (root / "protocol" / "default.yaml").is_file():
        raise UserError(f"the package 'conf' found at '{root}' is not ooco-gym's: another package shadows it; "
                        "run from another folder or uninstall that package")
    return root


def names(group: str) -> list[str]:
    """Lists the names of a configuration group, for example `names("chip")`."""
    return sorted(path.stem for path in (conf_root() / group).glob("*.yaml"))


def load_yaml(group: str, name: str | os.PathLike[str]) -> dict[str, Any]:
    """Loads `conf/<group>/<name>.yaml`, or the YAML file that `name` is a path to; paths in it become absolute.

    Raises:
        UserError: no such name or file, or the file is not a YAML mapping.
    """
    text = str(name)
    path = Path(text) if text.endswith((".yaml", ".yml")) else conf_root() / group / f"{text}.yaml"
    if not path.is_file():
        if text.endswith((".yaml", ".yml")):
            raise UserError(f"{group} file '{path}' does not exist")
        raise unknown(group, text, names(group))
    stamp = path.stat()
    value = deepcopy(_parsed(group, path, stamp.st_mtime_ns, stamp.st_size))
    for key in _PATHS.get(group, ()):
        if value.get(key):
            value[key] = os.path.abspath(path.parent / str(value[key]))
    return value


@lru_cache(maxsize=256)
def _parsed(group: str, path: Path, changed_ns: int, size: int) -> dict[str, Any]:
    """What a file holds, read again only when it has changed: an episode begins with seven of them."""
    try:
        value = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except yaml.YAMLError as error:
        raise UserError(f"{group} file '{path}' is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(value, dict):
        raise UserError(f"{group} file '{path}' must hold a mapping of keys to values")
    return value
