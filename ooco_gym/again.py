"""The command that makes a run again: what its configuration, as `config.yaml` keeps it, has beside the defaults."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from ooco_gym.documents import read_yaml
from ooco_gym.errors import UserError
from ooco_gym.policy.registry import as_mapping
from ooco_gym.resources import conf_root, load_yaml, merged, names

_BARE = re.compile(r"[A-Za-z_./][\w./+*@%-]*(:\w+)?")  # text that needs no quotes in a value
_SIGN, _ESCAPED = r"([:=,(){}\[\] ])", r"\\\1"  # in a mapping's key, which takes no quotes
TRACE = "trace"  # conf/open/workload/trace.yaml, which workload.path=… chooses by itself
_WORDS = ("null", "true", "false", "nan", "inf")  # which stand for something else without them


def command_line(command: str, config: Mapping[str, Any], out: str = "") -> str:
    """The command line of a run: a word for each setting that is not the command's default.

    Args:
        command: such as `simulate`.
        config: its configuration, composed and resolved, as in the run folder's `config.yaml`.
        out: the folder for the results; empty: left to the command.
    """
    usual = load_yaml("", command)
    groups = {group: str(choice) for entry in usual.pop("defaults", ()) if isinstance(entry, Mapping)
              for group, choice in entry.items()}
    words = [f"ooco-gym {command}"]
    for group, choice in groups.items():
        words += _group_words(group, choice, usual.pop(group, None) or {}, config.get(group, choice))
    usual.pop("out", None)
    plain = {key: config.get(key, value) for key, value in usual.items()}
    found = [[*_differences("", usual, plain)]]
    for preset in names("preset"):
        values = read_yaml(conf_root() / "preset" / f"{preset}.yaml")
        if set(values) <= set(usual):
            found.append([f"+preset={preset}", *_differences("", merged(usual, values), plain)])
    words += min(found, key=_length)
    return " ".join([*words, *([f"out={shlex.quote(out)}"] if out else [])])


def _group_words(group: str, usual: str, over: Mapping[str, Any], value: Any) -> list[str]:
    """The words for a group: the choice that leaves fewest to be set, and these."""
    if not isinstance(value, Mapping):
        return [_word(group, value)]
    own, found = value.get("file") if group == "policy" else None, []
    own = TRACE if group == "workload" and value.get("path") else own
    known = [usual, *names(group), *names(f"open/{group}"), *([str(value.get("name"))] if group == "policy" else [])]
    for choice in [str(own)] if own else known:
        with suppress(UserError):  # a file that is gone, or that sets other keys, too
            held = merged(_held(group, choice), over)
            found.append([*([] if choice in (usual, TRACE) else [_word(group, choice)]),
                          *_differences(f"{group}.", held, value)])
    return min(found, key=_length, default=[_word(group, own)])


def _length(words: list[str]) -> tuple[int, int]:
    return len(words), len("".join(words))


def _held(group: str, choice: str) -> dict[str, Any]:
    """What a choice of a group sets, as the command line composes it."""
    paths = [conf_root() / folder / f"{choice}.yaml" for folder in (group, f"open/{group}")]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        return as_mapping(choice)
    values = read_yaml(path)
    if "extends" in values:
        return load_yaml(group, path)
    for parent in reversed([one for one in values.pop("defaults", ()) if one != "_self_"]):
        values = merged(_held(group, parent), values)
    return values


def _differences(prefix: str, usual: Mapping[str, Any], value: Mapping[str, Any]) -> Iterator[str]:
    """A word for each key that is different, more, or not there."""
    for key, one in value.items():
        before = usual.get(key)
        if key not in usual:
            yield _word(f"+{prefix}{key}", one)
        elif isinstance(one, Mapping) and isinstance(before, Mapping) and before:
            yield from _differences(f"{prefix}{key}.", before, one)
        elif one != before or isinstance(one, bool) != isinstance(before, bool):
            yield _word(f"{prefix}{key}", one)
    yield from (f"~{prefix}{key}" for key in usual if key not in value)


def _word(key: str, value: Any) -> str:
    word = f"{key}={_text(value)}"
    plain = "'" in word and not set(word) & set('"$`\\!')
    return f'"{word}"' if plain else shlex.quote(word)


def _text(value: Any, quoted: bool = False) -> str:
    """A value in Hydra's grammar."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{re.sub(_SIGN, _ESCAPED, str(key))}: {_text(one, ':' in str(one))}"
                               for key, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        quoted = any(isinstance(one, str) and "=" in one for one in value)
        return "[" + ",".join(_text(one, quoted) for one in value) + "]"
    if isinstance(value, str):
        bare = _BARE.fullmatch(value) and value.lower() not in _WORDS and not quoted
        return value if bare else "'" + value.replace("'", "\\'") + "'"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
