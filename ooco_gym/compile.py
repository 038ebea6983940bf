"""Compilation of the core: numba with a disk cache that knows all the sources a compiled function was built from.

Numba stamps a cached function with the file that defines it alone. Compiled code, however, holds a copy of everything
it calls, so a cached event loop would go stale as soon as another file of the core changes. Here the stamp is a digest
of every file of the compiled core that the function may have been built from, of the function's own file, and of the
files of the compiled functions that it calls; each digest has a folder of its own, so that versions never mix:

    __pycache__/ooco_gym-<file>-<digest>/<function>-<line>.py<version>-<signature>.nbc

Where the package's folder cannot be written the files go to numba's cache folder of the user; `NUMBA_CACHE_DIR` names
another place and `NUMBA_DISABLE_JIT=1` turns compilation off. One file holds one signature and is renamed into place,
so any number of processes may start at once: at worst each compiles for itself.

Not seen: constants that a rule outside ooco_gym imports from another file of its own.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import pickle
import shutil
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba import njit
from numba.core import cgutils, typeinfer, types
from numba.core.caching import FunctionCache
from numba.core.dispatcher import Dispatcher
from numba.core.serialize import dumps
from numba.extending import intrinsic

from ooco_gym.parts import PartCompiler

PACKAGE = Path(__file__).resolve().parent
# A function is built from its own level and those before it, as the imports go.
LEVELS = (("decisions", "sim"), ("policy",), ("envs",))
RULES = 2                   # levels that a rule outside the package builds on: the simulator and the policy helpers
KEPT = 8                    # folders of older digests that stay for one source file


def jit(signature: Any = None, **options: Any) -> Any:
    """Compiles a function with numba and keeps the result on disk until one of its sources changes.

    Args:
        signature: a numba signature (or several in a list): compiled, or loaded, at once. None: at the first call of
            each combination of argument types. Also usable bare, as `@jit`.
        **options: as of `numba.njit`.

    Returns:
        A decorator, or the compiled function where used bare.
    """
    if inspect.isfunction(signature):
        return _compile(signature, None, options)
    return lambda function: _compile(function, signature, options)


def inner(function: Callable[..., Any]) -> Any:
    """Compiles a helper that only compiled code calls, together with what calls it (`parts`).

    It cannot be called from Python (no wrapper is made for it) and counts no references: the arrays that it is given
    live as long as the outermost call. LLVM decides where it is inlined.
    """
    return _part(function, inline=False)


def inlined(function: Callable[..., Any]) -> Any:
    """As `inner`, and always inlined: for what lies on the way from one decision to the next.

    A call passes on where results and errors go, and looks at what came back, which is long beside what these do.
    """
    return _part(function, inline=True)


def _part(function: Callable[..., Any], inline: bool) -> Any:
    # Where forceinline is not set at all, a function takes it from the first one that calls it.
    options: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "_nrt": False,
                               "forceinline": inline, "pipeline_class": PartCompiler}
    return njit(**options)(function)


def address_of(compiled: Any, signature: Any) -> int:
    """Address of a compiled function, for `function_at`: a number crosses from Python in no time, a function value in
    some 70 microseconds. The function must stay alive (a module's global does)."""
    result = compiled.get_compile_result(signature)
    return result.library.get_pointer_to_function(result.fndesc.llvm_func_name)


def function_at(function_type: Any) -> Any:
    """Builds a compiled helper that turns an address (int64) into a first-class function value of the given type."""

    @intrinsic
    def value(typing_context, address):
        def build(context, builder, signature, arguments):
            pointer = builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))
            function = cgutils.create_struct_proxy(function_type)(context, builder)
            function.jit_addr = pointer
            function.c_addr = pointer
            function.py_addr = pointer
            return function._getvalue()

        return function_type(types.int64), build

    return value


def _compile(function: Callable[..., Any], signature: Any, options: dict[str, Any]) -> Any:
    options = {"_nrt": False, **options}            # no reference counts: the core allocates nothing
    compiled = njit(**options)(function)
    if not isinstance(compiled, Dispatcher):        # NUMBA_DISABLE_JIT
        return compiled
    with suppress(OSError, RuntimeError):           # no file behind it (a console), or no folder to write to
        compiled._cache = SourceCache(function)     # pyright: ignore[reportAttributeAccessIssue]
    if signature is not None:
        # What numba.jit does with signatures; it must come after the cache is in place.
        with typeinfer.register_dispatcher(compiled):
            for one in signature if isinstance(signature, list) else [signature]:
                compiled.compile(one)
            compiled.disable_compile()
    return compiled


class SourceCache(FunctionCache):
    """Numba's cache of a function's compiled forms, under the digest of all its sources."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__(function)
        path = Path(inspect.getfile(function))
        prefix = f"ooco_gym-{path.stem}-"
        folder = Path(self._cache_path) / f"{prefix}{source_digest(function)}"
        self._cache_file = KeyedFiles(folder, prefix, self._impl.filename_base)


class KeyedFiles:
    """One file for each key in `folder`; stands in for numba's index file, whose writers can cross each other."""

    def __init__(self, folder: Path, prefix: str, stem: str):
        self.folder, self.prefix, self.stem = folder, prefix, stem

    def load(self, key: Any) -> Any:
        """Returns what was saved under `key`, or None."""
        try:
            stored, data = pickle.loads(self._path(key).read_bytes())
        except (OSError, EOFError, pickle.UnpicklingError, AttributeError, ImportError):
            return None
        return data if stored == key else None

    def save(self, key: Any, data: Any) -> None:
        """Saves `data` under `key`; a cache that cannot be written costs time but stops nobody."""
        try:
            if not self.folder.exists():
                self.folder.mkdir(parents=True, exist_ok=True)
                self._prune()
            path = self._path(key)
            temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")
            try:
                temporary.write_bytes(dumps((key, data)))
                os.replace(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError:
            return

    def flush(self) -> None:
        """Removes every file of this function."""
        for path in self.folder.glob(f"{self.stem}-*.nbc"):
            path.unlink(missing_ok=True)

    def _path(self, key: Any) -> Path:
        return self.folder / f"{self.stem}-{hashlib.blake2b(str(key).encode(), digest_size=8).hexdigest()}.nbc"

    def _prune(self) -> None:
        """Removes the folders of digests gone by, all but the newest few."""
        found = [path for path in self.folder.parent.glob(f"{self.prefix}*") if path != self.folder]
        for path in sorted(found, key=lambda path: path.stat().st_mtime)[:-KEPT]:
            shutil.rmtree(path, ignore_errors=True)


def source_digest(function: Callable[..., Any]) -> str:
    """Digest of all that a compiled form of `function` is built from: core sources, own file, callees' files, numba."""
    files: set[Path] = set()
    _collect(function, files, set())
    digest = hashlib.blake2b(numba.__version__.encode(), digest_size=8)
    digest.update(core_digest(PACKAGE, _levels(Path(inspect.getfile(function)).resolve())))
    for path in sorted(files):
        digest.update(_file_digest(path))
    return digest.hexdigest()


def _levels(path: Path) -> int:
    """How many of the core's levels the functions of a file are built from."""
    for count, folders in enumerate(LEVELS, start=1):
        if any(path.is_relative_to(PACKAGE / folder) for folder in folders):
            return count
    return RULES


@cache
def core_digest(package: Path, levels: int) -> bytes:
    """Digest of the sources in the first `levels` levels of the compiled core; read once in a process."""
    folders = [folder for level in LEVELS[:levels] for folder in level]
    own = [package / "compile.py", package / "parts.py"]
    paths = [*own, *(path for folder in folders for path in (package / folder).rglob("*.py"))]
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(paths):
        digest.update(str(path.relative_to(package)).encode() + b"\0")
        digest.update(_file_digest(path))
    return digest.digest()


@cache
def _file_digest(path: Path) -> bytes:
    return hashlib.blake2b(path.read_bytes(), digest_size=16).digest()


def _collect(function: Callable[..., Any], files: set[Path], seen: set[Any]) -> None:
    """Adds to `files` those of `function` and of the compiled functions that it names, and theirs in turn."""
    if function in seen:
        return
    seen.add(function)
    path = Path(inspect.getfile(function)).resolve()
    if any(path.is_relative_to(PACKAGE / folder) for level in LEVELS for folder in level):
        return                                      # the core's digest has it, and all that it calls
    if path.is_file():
        files.add(path)
    names = function.__code__.co_names              # of attributes, too
    found = [function.__globals__.get(name) for name in names]
    found += [getattr(one, name, None) for one in found if inspect.ismodule(one) for name in names]
    for called in found:
        if isinstance(called, Dispatcher) and called.py_func is not None:
            _collect(called.py_func, files, seen)
