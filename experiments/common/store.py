"""Results on disk, found again by what they depend on: the question, and the code and configuration that answer it.

What code answers is computed: the modules that a module imports, and they in turn, as the sources say.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

from ooco_gym import resources
from ooco_gym.documents import read_json, read_yaml
from ooco_gym.errors import UserError
from ooco_gym.files import as_json, cache_path, write_json
from ooco_gym.peak import FILE_NAME

PACKAGES = ("ooco_gym", "baselines", "agents", "experiments")
# Of conf: what a scenario is made of; and what environments are, besides.
GROUPS = ("chip", "cluster", "model", "offline", "policy", "protocol", "slo", "timing", "workload")
PLAYED_GROUPS = (*GROUPS, "env", "reward")
ROOT = Path(resources.__file__).parents[1]
_PARSING = Lock()  # Python 3.11 parses in one thread at a time, or fails now and then (CPython's issue 106905)


# --- Results --------------------------------------------------------------------------------------------------------
class Store:
    """A folder of small JSON files, each with a digest of its answer. Switched off, it remembers nothing.

    Attributes:
        folder: where the files are, or None where it is off, or would be in a cache folder that is not used.
    """

    def __init__(self, folder: Path | None = None, on: bool = True):
        self.folder = (folder or cache_path("runs")) if on else None
        self._writable = True

    def get(self, key: str) -> dict[str, Any] | None:
        """The stored answer, or None; a file that cannot be read, or holds another answer than was written, is none."""
        if self.folder is None:
            return None
        try:
            entry = read_json(self.folder / key[:2] / f"{key}.json")
        except UserError:
            return None
        if not isinstance(entry, dict) or entry.get("digest") != key_of([key, entry.get("answer")]):
            return None
        return entry["answer"]

    def put(self, key: str, answer: dict[str, Any]) -> None:
        """Stores an answer, atomically. A folder that cannot be written costs time, nothing else: it warns once."""
        if self.folder is None or not self._writable:
            return
        kept = as_json(answer)
        try:
            write_json(self.folder / key[:2] / f"{key}.json", {"digest": key_of([key, kept]), "answer": kept})
        except (OSError, UserError) as error:
            self._writable = False
            warnings.warn(f"results are not kept for another time: folder '{self.folder}' cannot be written ({error}); "
                          "set OOCO_GYM_CACHE to a folder that can", UserWarning, stacklevel=2)


def key_of(question: Any) -> str:
    """Digest of a question: all that its answer depends on, the digest of the code among it."""
    return hashlib.sha256(json.dumps(question, sort_keys=True, default=str).encode()).hexdigest()


# --- Code -----------------------------------------------------------------------------------------------------------
def code_digest(modules: Sequence[str], groups: Sequence[str] = PLAYED_GROUPS, peaks: bool = True) -> str:
    """Digest of what the code does that modules import, directly or not, without comments and docstrings.

    Args:
        modules: names, such as `ooco_gym.simulation`, or `baselines.*` for all of a package; of one that is not of our
            packages its own file counts.
        groups: of the configuration, whose values count, too.
        peaks: whether the stored peak factors count: not for what has its load in numbers.
    """
    with _PARSING:
        return _digest(tuple(sorted(modules)), tuple(groups), peaks)


@lru_cache(maxsize=64)
def _digest(modules: tuple[str, ...], groups: tuple[str, ...], peaks: bool) -> str:
    ours = closure([name for name in modules if name.partition(".")[0] in PACKAGES])
    others = [str(getattr(sys.modules[name], "__file__", name)) for name in modules
              if name.partition(".")[0] not in PACKAGES]
    digest = hashlib.sha256()
    for name in ours:
        digest.update(f"{name}\0{_parsed(name)[0]}\0".encode())
    for file in others:
        digest.update(Path(file).read_bytes() if Path(file).is_file() else file.encode())
    conf = resources.conf_root()
    configured = sorted(path for group in groups for path in (conf / group).glob("*.yaml"))
    for path in [*configured, *(conf.glob(FILE_NAME) if peaks else ())]:
        values = read_yaml(path)
        digest.update(f"{path.name}\0{values}\0".encode())
    return digest.hexdigest()


def closure(modules: Sequence[str]) -> list[str]:
    """Names of the modules of our packages that modules import, directly or not, and their own, sorted.

    Imports within functions count, except of packages that are only on the way to a module; those for type checkers do
    not. A package that looks for its modules in its folder has them all.
    """
    found: dict[str, bool] = {}  # whether imports within functions count
    ahead = [(one, True) for name in modules for one in _spelled_out(name)]
    while ahead:
        name, whole = ahead.pop()
        if found.get(name) in (True, whole) or _file_of(name) is None:
            continue
        found[name] = whole
        _, at_once, later = _parsed(name)
        ahead += [(one, whole) for one in (*at_once, *(later if whole else ()))]
        ahead.append((name.rpartition(".")[0], False))
    return sorted(found)


def _spelled_out(name: str) -> list[str]:
    """A module, or all modules of a package for `package.*`."""
    package = name.removesuffix(".*")
    folder = ROOT.joinpath(*package.split("."))
    return [name] if package == name else [f"{package}.{path.stem}" for path in sorted(folder.glob("*.py"))]


def code_of(text: str) -> str:
    """What a source file does: its syntax tree without docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and isinstance(body, list) and body:
            first = body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(
                    first.value.value, str):
                node.body = body[1:]
    return ast.dump(tree)


@lru_cache(maxsize=1024)
def _parsed(name: str) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """What a module does, and the modules that it imports: at once, and within functions."""
    path = _file_of(name)
    assert path is not None
    text = path.read_text(encoding="utf-8")
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    imported = list(_imported(ast.parse(text), package, False))
    if "iter_modules(__path__)" in text:
        imported += [(one, False) for one in _spelled_out(f"{package}.*")]
    at_once, later = (tuple(one for one, inside in imported if inside == which) for which in (False, True))
    return code_of(text), at_once, later


def _imported(node: ast.AST, package: str, inside: bool) -> Iterator[tuple[str, bool]]:
    """Modules imported below a node, each with whether it is within a function."""
    if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
        return
    if isinstance(node, ast.Import):
        yield from ((alias.name, inside) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        origin = ".".join([*above, *([node.module] if node.module else [])])
        names = [f"{origin}.{alias.name}" for alias in node.names]
        yield from ((name if _file_of(name) else origin, inside) for name in names)
    inside = inside or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
    for child in ast.iter_child_nodes(node):
        yield from _imported(child, package, inside)


@lru_cache(maxsize=4096)
def _file_of(name: str) -> Path | None:
    """The source file of a module of our packages, or None."""
    if name.partition(".")[0] not in PACKAGES:
        return None
    base = ROOT.joinpath(*name.split("."))
    return next((path for path in (base / "__init__.py", base.with_suffix(".py")) if path.is_file()), None)
