"""Reads YAML and JSON files; an error in a file is one sentence.

Libraries raise a dozen kinds of errors for damaged files.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from stat import S_ISREG
from typing import Any

from ooco_gym.errors import UserError

MOST_BYTES = 32 << 20  # size limit of a file
MOST_VALUES, MOST_DEEP = 20_000, 100  # of a YAML file; overflowing the compiled loader's stack would end the process
FRESH_S = 2.0  # age below which a change may be missed, in seconds


def read_yaml(path: str | os.PathLike[str], where: str = "", advice: str = "") -> Any:
    """Returns the content of a YAML file. Error messages begin with `where` (default: its quoted
    path) and end with `advice`.

    Raises:
        UserError: it cannot be read, or is not YAML.
    """
    return _read(path, "YAML", parse_yaml, where, advice)


def read_json(path: str | os.PathLike[str], where: str = "", advice: str = "") -> Any:
    """Returns the content of a JSON file; arguments and errors as in `read_yaml`."""
    return _read(path, "JSON", json.loads, where, advice)


def read_mapping(path: str | os.PathLike[str], where: str = "", advice: str = "") -> dict[str, Any]:
    """Returns the mapping in a JSON file (`.json`) or a YAML file.

    Raises:
        UserError: it cannot be read, or holds something else.
    """
    file, where = Path(path), where or f"'{path}'"
    value = (read_json if file.suffix == ".json" else read_yaml)(file, where, advice)
    if not isinstance(value, dict):
        raise UserError(f"{where} must hold a mapping of keys to values{advice}")
    return value


def file_digest(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def version_of(path: str | os.PathLike[str]) -> str | None:
    """SHA-256 of a regular file's content, by which caches tell versions apart; None for anything
    else.

    It is recomputed if the inode has changed (its time, unlike the content's, cannot be set back),
    or so recently that the clock may not tell.
    """
    try:
        stat = os.stat(path)
        if not S_ISREG(stat.st_mode):
            return None
        if time.time() - stat.st_ctime < FRESH_S:
            return file_digest(path)
        return _digest_at(os.path.abspath(path), stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    except (OSError, ValueError):  # also for text that is no path
        return None


@lru_cache(maxsize=4096)
def _digest_at(path: str, *inode: int) -> str:
    return file_digest(path)


def parse_yaml(text: str) -> Any:
    """Returns the content of a YAML text of at most `MOST_VALUES` values, aliases expanded.

    Raises:
        Exception: invalid YAML, a key that stands twice, or too many values; a dozen kinds beside
            `yaml.YAMLError`.
    """
    import yaml

    _check_events(text)
    return yaml.load(text, Loader=_loader())  # nosec B506


@dataclass
class _Collection:
    """A collection that is being read: its anchor, the number of values so far, and of a mapping
    the lines of its keys, and whether a key is next."""

    anchor: str | None
    size: int = 1
    keys: dict[str, int] | None = None
    key_next: bool = True

    def add(self, event: Any) -> None:
        """Notes a key or value of a mapping.

        Raises:
            ValueError: a key stands there twice.
        """
        if self.keys is None:
            return
        key, line = getattr(event, "value", None), event.start_mark.line + 1
        if self.key_next and key is not None:
            if key in self.keys and key != "<<":
                raise ValueError(f"key '{key}' stands twice, in lines {self.keys[key]} and {line}")
            self.keys[key] = line
        self.key_next = not self.key_next


def _check_events(text: str) -> None:
    """Checks a YAML text before any value is created: their number, aliases expanded, and keys.

    Raises:
        ValueError: more than `MOST_VALUES` values, nesting beyond `MOST_DEEP`, or a key that stands
            twice in a mapping.
    """
    import yaml

    sizes: dict[str, int] = {}  # of each anchor's value
    open_ = [_Collection(None, 0)]
    for event in yaml.parse(text, Loader=_loader()):
        if isinstance(event, yaml.NodeEvent):
            open_[-1].add(event)
        if isinstance(event, yaml.CollectionStartEvent):
            open_.append(_Collection(event.anchor, keys={} if isinstance(event, yaml.MappingStartEvent) else None))
            size, anchor = 0, None
        elif isinstance(event, yaml.CollectionEndEvent):
            ended = open_.pop()
            anchor, size = ended.anchor, ended.size
        elif isinstance(event, yaml.AliasEvent):
            endless = any(event.anchor == one.anchor for one in open_)  # within its own anchor
            size, anchor = MOST_VALUES if endless else sizes.get(event.anchor, 1), None
        else:
            size, anchor = int(isinstance(event, yaml.ScalarEvent)), getattr(event, "anchor", None)
        open_[-1].size += size
        if anchor is not None:
            sizes[anchor] = size
        if open_[-1].size >= MOST_VALUES or len(open_) > MOST_DEEP:
            raise ValueError(f"it holds more than {MOST_VALUES:,} values, aliases multiplied out, or {MOST_DEEP} in "
                             "one another")


@lru_cache(maxsize=1)
def _loader() -> Any:
    """PyYAML's safe loader, which reads `5e+15` as a number, as YAML 1.2 and Hydra do."""
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        pass

    number = re.compile(r"^[-+]?\d+(\.\d*)?[eE][-+]?\d+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, [*"-+0123456789"])
    return Loader


def _read(path: str | os.PathLike[str], kind: str, parse: Callable[[str], Any], where: str, advice: str) -> Any:
    where = where or f"'{path}'"
    try:
        with open(path, "rb") as file:
            read = file.read(MOST_BYTES + 1)
        text = read.decode("utf-8") if len(read) <= MOST_BYTES else None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no text in UTF-8"
        raise UserError(f"{where} cannot be read: {reason}{advice}") from error
    if text is None:
        raise UserError(f"{where} is no {kind} that is read: it has more than {MOST_BYTES >> 20} MiB{advice}")
    try:
        return parse(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{where} is not valid JSON: line {error.lineno}, {error.msg}{advice}") from error
    except Exception as error:  # a dozen kinds beside YAMLError, for invalid values and depths
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise UserError(f"{where} is not valid {kind}: {reason}{advice}") from error
