"""Reads YAML and JSON that a person or a command wrote: whatever is wrong with a file is one sentence.

Apart: every package reads such files, and each library raises a dozen kinds of errors for damaged ones.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from stat import S_ISREG
from typing import Any

from ooco_gym.errors import UserError

MOST_OPENED = 1000  # values within values, for the compiled loader: where the stack ends, it ends the process
_OPENING = ("[", "{", "- ", ":", "?")  # one of these begins each value that has others in it
FRESH_S = 2.0  # seconds since a change


def read_yaml(path: str | os.PathLike[str], where: str = "", advice: str = "") -> Any:
    """What a YAML file holds. A sentence about it begins with `where` (its path in quotes by default) and ends with
    `advice`.

    Raises:
        UserError: it cannot be read, or is no YAML.
    """
    return _read(path, "YAML", parse_yaml, where, advice)


def read_json(path: str | os.PathLike[str], where: str = "", advice: str = "") -> Any:
    """What a JSON file holds; arguments and errors are as of `read_yaml`."""
    return _read(path, "JSON", json.loads, where, advice)


def read_mapping(path: str | os.PathLike[str], where: str = "", advice: str = "") -> dict[str, Any]:
    """The mapping that a JSON file (`.json`) or a YAML file holds.

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
    """SHA-256 of a regular file as it is now, by which a cache tells its versions apart; None of anything else.

    It is computed anew where the inode was changed since (its own time, unlike the content's, no program sets back), or
    so lately that a clock may not tell.
    """
    try:
        stat = os.stat(path)
        if not S_ISREG(stat.st_mode):
            return None
        if time.time() - stat.st_ctime < FRESH_S:
            return file_digest(path)
        return _digest_at(os.path.abspath(path), stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    except (OSError, ValueError):  # also of text that is no path
        return None


@lru_cache(maxsize=4096)
def _digest_at(path: str, *inode: int) -> str:
    return file_digest(path)


def parse_yaml(text: str) -> Any:
    """What a text of YAML holds.

    Raises:
        Exception: it is none; of a dozen kinds beside `yaml.YAMLError`.
    """
    import yaml

    return yaml.load(text, Loader=_loader(sum(map(text.count, _OPENING)) <= MOST_OPENED))  # nosec B506


@lru_cache(maxsize=2)
def _loader(simple: bool) -> Any:
    """PyYAML's safe loader, to which `5e+15` is a number, as it is to YAML 1.2 and to Hydra."""
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader) if simple else yaml.SafeLoader):  # type: ignore[misc]
        pass

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"^[-+]?\d+[eE][-+]?\d+$"), [*"-+0123456789"])
    return Loader


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
