"""Completion at the Tab key: names of commands, their keys, and what keys take. argcomplete speaks with the shells.

`eval "$(ooco-gym completion bash)"` (or zsh; fish: `ooco-gym completion fish | source`) sets it up. Nothing is
composed for an answer: keys and names are read from the files of `conf`, so that it comes at once.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from ooco_gym.cli.commands import OPEN, PRESET, Command, commands, find, names, presets
from ooco_gym.documents import read_yaml
from ooco_gym.errors import UserError, unknown

SHELLS = ("bash", "zsh", "fish")
OPTIONS = ("--cfg", "--config-dir", "--help", "--multirun")
GROUP_OF = {"partner": "policy", "rules": "policy", "heuristics": "policy"}  # keys that are not called as their group
POLICIES = "ooco_gym.policies"  # entry points


def script(shell: str) -> str:
    """What a shell must evaluate, once or at each start.

    Raises:
        UserError: another shell, or argcomplete is not installed.
    """
    if shell not in SHELLS:
        raise unknown("shell", shell, SHELLS)
    try:
        from argcomplete.shell_integration import shellcode
    except ModuleNotFoundError:
        raise UserError("completion needs the package 'argcomplete', which is not installed: pip install argcomplete"
                        ) from None
    return shellcode(["ooco-gym"], shell=shell)


def answer() -> None:
    """Answers the shell's function, by argcomplete's protocol, and ends the process."""
    import argcomplete

    parser = argparse.ArgumentParser(add_help=False)
    words: Any = parser.add_argument("words", nargs="*")
    words.completer = lambda prefix, **_: completions(_typed(argcomplete), prefix)
    argcomplete.autocomplete(parser, always_complete_options=False, default_completer=None)  # pyright: ignore[reportArgumentType]  # none: no names of files


def _typed(argcomplete: Any) -> list[str]:
    """The words before the one that is completed, without the program's own."""
    return argcomplete.split_line(os.environ["COMP_LINE"], int(os.environ["COMP_POINT"]))[3][1:]


def completions(before: list[str], prefix: str) -> list[str]:
    """What a word may become.

    Args:
        before: the words of the command line before it, the command first.
        prefix: what of it has been typed.
    """
    if not before:
        return _beginning(prefix, [*commands(), "completion"])
    if before[0] == "completion":
        return _beginning(prefix, SHELLS)
    try:
        command = find(before[0])
        key, equals, value = prefix.partition("=")
        if equals:
            return [f"{key}={one}" for one in _values(command, key, value)]
        if prefix.startswith("-"):
            return _beginning(prefix, OPTIONS)
        return _keys(command, before[1:], prefix) or (_files(prefix) if command.positional else [])
    except (UserError, OSError):
        return []  # a sentence has no place in the midst of a command line


def _beginning(prefix: str, known: Iterable[str]) -> list[str]:
    return sorted(one for one in known if one.startswith(prefix))


# --- Keys -----------------------------------------------------------------------------------------------------------
def _keys(command: Command, before: list[str], prefix: str) -> list[str]:
    """Keys of the command, those of what its groups are given only after `GROUP.`; presets after a plus."""
    if prefix.startswith("+"):
        return _beginning(prefix, [f"+{PRESET}={name}" for name in presets(command.roots, command.name)])
    own = _read(command.config)
    groups = _groups(own)
    found = [f"{key}=" for key in groups]
    given = {word.partition("=")[0]: word.partition("=")[2] for word in before if "=" in word}
    for group, default in groups.items():
        if prefix.startswith(f"{group}."):
            found += [f"{group}.{key}=" for key in _dotted(_choice(command, group, given.get(group, default)))]
    found += [f"{key}=" for key in _dotted(own) if key not in ("defaults", "positional")]
    taken = {f"{key}=" for key in given}
    return _beginning(prefix, dict.fromkeys(one for one in found if one not in taken))


def _read(path: Path) -> dict[str, Any]:
    try:
        found = read_yaml(path)
    except UserError:
        return {}
    return found if isinstance(found, dict) else {}


def _groups(own: Mapping[str, Any]) -> dict[str, str]:
    """The groups of a command, each with its default choice."""
    return {str(key): str(value) for entry in own.get("defaults") or () if isinstance(entry, Mapping)
            for key, value in entry.items()}


def _choice(command: Command, group: str, name: str) -> dict[str, Any]:
    """The keys of one choice of a group, with those of the files that it builds on."""
    paths = [root / folder / f"{name}.yaml" for root in command.roots for folder in (group, f"{OPEN}/{group}")]
    path = next((path for path in paths if path.is_file()), Path(name))
    found = _read(path) if path.is_file() else {}
    parents = [str(entry).partition("@")[0] for entry in found.get("defaults") or () if not isinstance(entry, Mapping)]
    parents += [str(found["extends"])] if "extends" in found else []
    below = {key: value for parent in parents if parent not in ("_self_", name)
             for key, value in _choice(command, group, parent).items()}
    return {key: value for key, value in {**below, **found, **_mapping(found.get(group))}.items()
            if key not in ("defaults", "extends", "sources")}


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def _dotted(values: Mapping[str, Any]) -> Iterator[str]:
    """The keys of a mapping, those of mappings in it with a dot."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from (f"{key}.{below}" for below in _dotted(value))
        else:
            yield str(key)


# --- Values ---------------------------------------------------------------------------------------------------------
def _values(command: Command, key: str, value: str) -> list[str]:
    """What a key may be given: names of a group, true or false, files; of a list or a sweep, its last entry."""
    cut = max(value.rfind(","), value.rfind("[")) + 1
    head, last = value[:cut], value[cut:]
    if key == f"+{PRESET}":
        return _beginning(value, presets(command.roots, command.name))
    group = _group_of(command, key)
    known = names(command.roots, group) if group else []
    if group == "policy":
        known = [*known, *(point.name for point in metadata.entry_points(group=POLICIES))]
    default: Any = _read(command.config)
    for part in key.split("."):
        default = default.get(part) if isinstance(default, Mapping) else None
    if isinstance(default, bool):
        known = ["true", "false"]
    return [head + one for one in _beginning(last, known) or _files(last)]


def _group_of(command: Command, key: str) -> str | None:
    """The group whose names a key takes: its own, or that of which it is the plural; by its last part."""
    last = key.rpartition(".")[2]
    for one in (GROUP_OF.get(last, last), last.removesuffix("s"), last.removesuffix("ies") + "y"):
        if any((root / one).is_dir() for root in command.roots):
            return one
    return None


def _files(prefix: str) -> list[str]:
    """Files and folders, these with a slash."""
    folder, _, begun = prefix.rpartition("/")
    above = folder + "/" if "/" in prefix else ""
    here = Path(above or ".").expanduser()
    if not here.is_dir():
        return []
    found = [f"{above}{path.name}" + ("/" if path.is_dir() else "") for path in here.iterdir()
             if path.name.startswith(begun) and (begun or not path.name.startswith("."))]
    return sorted(found)
