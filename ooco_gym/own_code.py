"""Imports user Python, and guards it: only code that the command line names is run, directly or in a configuration
that it names.

Files written by commands or from elsewhere are data: a run's folder with its `policy.yaml`, or a
result. Python that data names is run only if the command line names it too; `code=mine.py` does
only that.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from ooco_gym.beside import PACKAGES
from ooco_gym.documents import read_yaml
from ooco_gym.errors import UserError, nearest

WORD = "code"  # `code=mine.py` only names Python
NAMED = "OOCO_GYM_CODE"  # environment variable with the named code, for worker processes; unset outside commands
DATA = "policy.yaml"  # file name of policies written by commands
_DATA_KEY = "target"  # key that names a result
_BETWEEN = re.compile(r"[,=:\[\]{}'\"]+")
_LOADED: dict[str, str] = {}  # path of each imported file by its module's name
_READING: ContextVar[bool] = ContextVar("reading", default=False)


@contextmanager
def named_in(words: Iterable[str]) -> Iterator[None]:
    """Within it only user Python is run that the words of a command line name."""
    before, found = os.environ.get(NAMED), set[str]()
    for word in words:
        key, _, value = word.partition("=")
        if key != _DATA_KEY:
            _collect(value or key, Path.cwd(), found)
    tell(json.dumps(sorted(found)))
    try:
        yield
    finally:
        tell(before)


def tell(named: str | None) -> None:
    """Sets the named code for this process and its children."""
    if named is None:
        os.environ.pop(NAMED, None)
    else:
        os.environ[NAMED] = named


@contextmanager
def reading_back() -> Iterator[None]:
    """Within it, names of Python are data even without a command line."""
    before = _READING.set(True)
    try:
        yield
    finally:
        _READING.reset(before)


def check(code: str, where: str, data: bool = False, called: bool = False) -> None:
    """Raises for Python that only data names.

    Args:
        code: the path of a file, or the name of a module.
        where: the source of the name, for the message.
        data: whether that source is data, with or without a command line.
        called: whether code in it is called, so that an earlier import does not permit it.

    Raises:
        UserError: the code is not named.
    """
    code = os.path.realpath(code) if code.endswith(".py") else code
    named = os.environ.get(NAMED)
    free = named is None and not data and not _READING.get()
    if free or code.partition(".")[0] in (*PACKAGES, "ooco_gym") or code in json.loads(named or "[]"):
        return
    if not called and _is_loaded(code):
        return
    raise UserError(f"{where} names Python to run, '{code}', but a file that is read back may not: it runs only if the "
                    f"command line names it, too; if you trust it, add {WORD}={code} (in Python, import it before)")


def _is_loaded(code: str) -> bool:
    """Whether this process has already imported a file or a module."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return code in sys.modules or any(file and os.path.realpath(file) == code for file in files)


def _collect(text: str, folder: Path, found: set[str]) -> None:
    """Adds Python that a text names, also through YAML files, to `found`."""
    for part in {text, *_BETWEEN.split(text)} - {""}:
        path = os.path.realpath(folder / part) if os.path.isfile(folder / part) else part
        new = path not in found
        found.add(path)
        if new and path != part and part.endswith((".yaml", ".yml")) and Path(part).name != DATA:
            with suppress(UserError):  # a later reader reports the error
                for one in _texts(read_yaml(path)):
                    _collect(one, Path(path).parent, found)


def _texts(value: Any) -> Iterator[str]:
    """Yields the texts in a YAML value, `extends` as a file name."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _texts(f"{one}.yaml" if key == "extends" and not str(one).endswith(".yaml") else one)
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)
    elif isinstance(value, str):
        yield value


# --- Files ----------------------------------------------------------------------------------------------------------
def existing(path: str, what: str = "policy") -> str:
    """Returns the path of a file that exists.

    Raises:
        UserError: it does not, with the nearest name that does.
    """
    if not os.path.isfile(path):
        folder = Path(path).parent
        known = sorted(str(folder / one.name) for one in folder.glob(f"*{Path(path).suffix}"))
        raise UserError(f"{what} file '{path}' does not exist{nearest(path, known)}")
    return path


def module_of_file(path: str, what: str = "policy") -> ModuleType:
    """Returns the module of a Python file, which is imported once per process; `what` it has is for messages.

    Raises:
        UserError: there is no such file, it is not named, or it cannot be imported.
    """
    there = existing(path, what)
    check(path, f"{what} '{path}'")
    return _module(os.path.abspath(there), what)


def file_of(module: str) -> str | None:
    """Returns the file that `module_of_file` imported as a module of this name; None if there is none."""
    return _LOADED.get(module)


@lru_cache(maxsize=64)
def _module(path: str, what: str) -> ModuleType:
    """Imports a file as part of its package, if it is in one, else under a unique name."""
    inside = _dotted(Path(path))
    if inside:
        return import_module(inside)
    name = f"policy_file_{Path(path).stem}_{hashlib.sha256(path.encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)  # compiled rules are pickled by the name of their module
    _LOADED[name] = path
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, (SyntaxError, ImportError)):
            raise UserError(f"{what} file '{path}' cannot be imported: {error}") from error
        raise
    return module


def _dotted(path: Path) -> str:
    """Returns the import name of a file of an importable package; empty for any other file."""
    parts, folder = [path.stem], path.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    try:
        spec = find_spec(".".join(parts)) if len(parts) > 1 else None
    except ImportError:
        return ""
    return ".".join(parts) if spec is not None and spec.origin and Path(spec.origin).resolve() == path.resolve() else ""
