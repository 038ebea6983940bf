"""The commands, found as entry points and imported only when run, and the choices of their groups."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata, util
from os.path import exists  # returns False for an invalid name, where Path raises
from pathlib import Path
from typing import Any

from ooco_gym.documents import read_yaml
from ooco_gym.errors import UserError, former, unknown
from ooco_gym.resources import conf_root, load_yaml

PRESETS = "preset"  # group of files that set many keys of a command, `+preset=NAME`
OPEN = "open"  # folder of default choices, and of a trace file's keys
EXAMPLE = "#$ "  # marks example lines in a command's configuration
PLAIN = "_plain_"  # key of a group's node for a string that the library reads


@dataclass(frozen=True)
class Command:
    """A subcommand: its name, its function as `module:function`, and its configuration folders by precedence."""

    name: str
    function: str
    roots: tuple[Path, ...]

    @cached_property
    def config(self) -> Path:
        """The YAML file of its keys and defaults.

        Raises:
            UserError: the file is missing.
        """
        for path in (root / f"{self.name}.yaml" for root in self.roots):
            if path.is_file():
                return path
        raise UserError(f"command '{self.name}' has no configuration: expected '{self.roots[0] / self.name}.yaml'")

    @cached_property
    def keys(self) -> dict[str, Any]:
        """The content of its YAML file."""
        return read_yaml(self.config) or {}

    @property
    def groups(self) -> list[str]:
        """The groups in its defaults."""
        return [str(key) for entry in self.keys.get("defaults") or () if isinstance(entry, Mapping) for key in entry]

    @property
    def positional(self) -> list[str]:
        """The keys that are set by words without `=`, in order."""
        return [str(key) for key in self.keys.get("positional") or ()]

    @property
    def description(self) -> str:
        """The first comment of its configuration."""
        with self.config.open(encoding="utf-8", errors="replace") as lines:
            first = next(lines, "").strip()
        return re.sub(rf"^# *(ooco-gym +{re.escape(self.name)} *: *)?", "", first).rstrip(".")

    @property
    def examples(self) -> list[str]:
        """Its example lines: those after `#$` in its configuration."""
        lines = self.config.read_text(encoding="utf-8").splitlines()
        return [line.removeprefix(EXAMPLE) for line in lines if line.startswith(EXAMPLE)]

    def presets(self) -> dict[str, str]:
        """Returns its presets with their descriptions: files whose comment begins with its name."""
        found: dict[str, str] = {}
        for path in (path for root in self.roots for path in sorted((root / PRESETS).glob("*.yaml"))):
            about = rf"^# *ooco-gym +{re.escape(self.name)} +\+preset={re.escape(path.stem)} *: *(.*)$"
            match = re.search(about, path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
            if match:
                found.setdefault(path.stem, match[1].rstrip("."))
        return found


def commands() -> dict[str, str]:
    """Returns all known commands by name, each with its function as `module:function`."""
    points = sorted(metadata.entry_points(group="ooco_gym.commands"))
    return {one.name: one.value for one in points if not former("command", one.name)}  # older installations have them


def find(name: str) -> Command:
    """Finds a command by name; another package's configuration is in its folder `conf`.

    Raises:
        UserError: no such command.
    """
    known = commands()
    if name not in known:
        raise unknown("command", name, known)
    spec = util.find_spec(known[name].partition(":")[0].partition(".")[0])
    places = [Path(place) / "conf" for place in (spec and spec.submodule_search_locations) or ()]
    return Command(name, known[name], (*(place for place in places[:1] if place.is_dir()), conf_root()))


def names(roots: Iterable[Path], group: str) -> list[str]:
    """Returns the names in a group's folders."""
    return sorted({path.stem for root in roots for path in (root / group).glob("*.yaml")})


def read_choice(roots: Iterable[Path], group: str, value: str) -> dict[str, Any] | None:
    """Reads a choice of `group` that is not one of its names: a node for Hydra to merge, or None
    for a name.

    Returns:
        The content of a YAML file, or `{PLAIN: value}` for a mix, a folder, another file,
        `FILE.py:NAME`, or a name with parameters.

    Raises:
        UserError: the choice is none of these; the message has the nearest name.
    """
    known, head = names(roots, group), value.partition(":")[0]
    if value in known:
        return None
    if (conf_root() / OPEN / group / f"{value}.yaml").is_file():
        return load_yaml(f"{OPEN}/{group}", value)
    if group == "policy" and head == "learned":  # a folder of learned policies
        return {PLAIN: value}
    if group == "policy" and head not in known:
        from ooco_gym.policy.registry import as_mapping  # slow to import

        if head.endswith((".py", ".yaml", ".yml")) or not ("/" in head or exists(head)):
            return as_mapping(value)  # knows current and removed names
    if value.endswith((".yaml", ".yml")) and (group != "workload" or exists(value) or not re.search("[+*]", value)):
        return {**({"name": value} if group == "cluster" else {}), **load_yaml(group, value)}
    if exists(value) or (head.endswith(".py") and exists(head)):
        return {PLAIN: value}

    if group == "workload":
        from ooco_gym.workload.mix import parse_workload, split_workload

        parse_workload(str(split_workload(value)[0]))
    else:
        _check_parts(group, value, known)
    return {PLAIN: value}


def _check_parts(group: str, value: str, known: list[str]) -> None:
    """Raises UserError for a mix or name whose part is neither a name of the group nor a file."""
    is_mix = "+" in value or "*" in value
    parts = [part.rpartition("*")[2].strip() for part in value.split("+")] if is_mix else [value.partition(":")[0]]
    for part in parts:
        if part in known or exists(part):
            continue
        if "/" in part or Path(part).suffix:
            raise UserError(f"{group}: file '{part}' does not exist; expected a path, or one of: {', '.join(known)}")
        raise unknown(group, part, known)
