"""The disk cache of compiled code, keyed by all sources of a compiled function.

Numba stamps a cached function only with the file that defines it. But compiled code contains its
callees, so a cached event loop would be stale when another file of the core changes. Here the stamp
is a digest of every file of the compiled core that the function may be built from, of its own file,
and of the files of its compiled callees. Each digest has its own folder, so that versions never
mix:

    __pycache__/ooco_gym-<file>-<digest>/<function>-<line>.py<version>-<signature>.nbc

If the package's folder is not writable, files go to the user's numba cache folder;
`NUMBA_CACHE_DIR` names another place. A file holds one signature with its own digest, and is
renamed into place, so any number of processes may start at once; at worst each compiles for itself.
Damaged files are ignored, as LLVM does not check them.

Constants that a rule outside ooco_gym imports from another file are not tracked.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import pickle
import shutil
import uuid
import warnings
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numba
from llvmlite import binding
from numba.core.caching import FunctionCache
from numba.core.codegen import JITCodeLibrary
from numba.core.dispatcher import Dispatcher
from numba.core.serialize import dumps

from ooco_gym.private import not_private

PACKAGE = Path(__file__).resolve().parents[1]
# A function is built from its own level and earlier ones, following imports.
LEVELS = ("perf/latency.py", "sim", "policy", "envs")
RULES = 3                   # levels that a rule outside the package uses: latencies, simulator and policy helpers
KEPT = 8                    # folders of older digests kept per source file
DIGEST_BYTES = 16           # at the start of each cache file


class SourceCache(FunctionCache):
    """Numba's cache of a function's compiled forms, keyed by the digest of all its sources."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__(function)
        path = Path(inspect.getfile(function))
        prefix = f"ooco_gym-{path.stem}-"
        folder = Path(self._cache_path) / f"{prefix}{source_digest(function)}"
        beside = folder.parent == path.parent / "__pycache__"  # its writers can also write the source
        self._cache_file = KeyedFiles(folder, prefix, self._impl.filename_base, beside)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Loads compiled code without importing numba's compilable functions (and scipy), which
        only compiling needs."""
        codegen = target_context.codegen()
        codegen.unserialize_library = partial(KeptLibrary.load, codegen)
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)


class KeptLibrary(JITCodeLibrary):
    """Machine code from disk. Its bitcode, whose parsing takes as long as all else, is parsed only
    when linked."""

    _bitcode = b""

    @classmethod
    def load(cls, codegen: Any, state: tuple[str, str, tuple[bytes, bytes]]) -> KeptLibrary:
        """Loads the library that `serialize_using_object_code` wrote."""
        library = cls(codegen, state[0])
        code, library._bitcode = state[2]
        library.enable_object_caching()
        library._set_compiled_object(code)
        library._finalize_final_module()
        return library

    def get_pointer_to_function(self, name: str) -> int:
        """Address of a function by name, or 0."""
        return self._codegen._engine.get_function_address(name)

    def _get_module_for_linking(self) -> Any:
        self._shared_module = self._shared_module or binding.parse_bitcode(self._bitcode)
        return self._shared_module


class KeyedFiles:
    """One file per key in `folder`, instead of numba's index file, whose writers can conflict."""

    def __init__(self, folder: Path, prefix: str, stem: str, beside: bool = True):
        self.folder, self.prefix, self.stem, self._beside = folder, prefix, stem, beside

    def load(self, key: Any) -> Any:
        """Returns what was saved under `key`, or None."""
        if not self._ours():
            return None
        try:
            content = self._path(key).read_bytes()
            if content[:DIGEST_BYTES] != _digest_of(content[DIGEST_BYTES:]):
                return None
            stored, data = pickle.loads(content[DIGEST_BYTES:])
        except (OSError, EOFError, pickle.UnpicklingError, AttributeError, ImportError):
            return None
        return data if stored == key else None

    def save(self, key: Any, data: Any) -> None:
        """Saves `data` under `key`; an unwritable cache only costs time."""
        try:
            if not self.folder.exists():
                self.folder.mkdir(0o777 if self._beside else 0o700, parents=True, exist_ok=True)
                self._prune()
            if not self._ours():
                return
            path = self._path(key)
            temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")
            try:
                content = dumps((key, data))
                temporary.write_bytes(_digest_of(content) + content)
                os.replace(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            note_not_kept(f"{self.folder}: {error.strerror}")

    def flush(self) -> None:
        """Removes every file of this function."""
        for path in self.folder.glob(f"{self.stem}-*.nbc"):
            path.unlink(missing_ok=True)

    def _path(self, key: Any) -> Path:
        return self.folder / f"{self.stem}-{hashlib.blake2b(str(key).encode(), digest_size=8).hexdigest()}.nbc"

    def _ours(self) -> bool:
        """Whether no other user can have written the files; next to the source, its owner may."""
        why = "" if self._beside else not_private(self.folder)
        if why:
            note_not_kept(f"{self.folder} {why}")
        return not why

    def _prune(self) -> None:
        """Removes the folders of older digests, except the newest few."""
        found = [path for path in self.folder.parent.glob(f"{self.prefix}*") if path != self.folder]
        for path in sorted(found, key=_changed_s)[:-KEPT]:
            shutil.rmtree(path, ignore_errors=True)


def _changed_s(path: Path) -> float:
    """When a folder was changed; 0 if another process has just removed it."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _digest_of(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


_NOTED: list[str] = []


def note_not_kept(reason: str) -> None:
    """Warns once per process that compiled code is lost at its end."""
    if not _NOTED:
        _NOTED.append(reason)
        warnings.warn(f"compiled code cannot be cached ({reason}): every start compiles again, for a minute or more; "
                      "set NUMBA_CACHE_DIR to a folder of your own", UserWarning, stacklevel=2)


def source_digest(function: Callable[..., Any]) -> str:
    """Digest of all inputs of compiling `function`: core sources, own file, callees' files, numba."""
    files: set[Path] = set()
    _collect(function, files, set())
    digest = hashlib.blake2b(numba.__version__.encode(), digest_size=8)
    digest.update(core_digest(PACKAGE, _levels(Path(inspect.getfile(function)).resolve())))
    for path in sorted(files):
        digest.update(_file_digest(path))
    return digest.hexdigest()


def _levels(path: Path) -> int:
    """Number of the core's levels that a file's functions are built from."""
    for count, folder in enumerate(LEVELS, start=1):
        if path.is_relative_to(PACKAGE / folder):
            return count
    return RULES


@cache
def core_digest(package: Path, levels: int) -> bytes:
    """Digest of the sources in the first `levels` levels of the compiled core, read once per
    process."""
    places = [package / one for one in ("compile", *LEVELS[:levels])]
    paths = [path for place in places for path in ([place] if place.is_file() else place.rglob("*"))
             if path.suffix in (".py", ".json")]
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(paths):
        digest.update(str(path.relative_to(package)).encode() + b"\0")
        digest.update(_file_digest(path))
    return digest.digest()


@cache
def _file_digest(path: Path) -> bytes:
    return hashlib.blake2b(path.read_bytes(), digest_size=16).digest()


def _collect(function: Callable[..., Any], files: set[Path], seen: set[Any]) -> None:
    """Adds the files of `function` and, recursively, of its compiled callees to `files`."""
    if function in seen:
        return
    seen.add(function)
    path = Path(inspect.getfile(function)).resolve()
    if any(path.is_relative_to(PACKAGE / folder) for folder in LEVELS):
        return                                      # the core's digest has it and its callees
    if path.is_file():
        files.add(path)
    names = function.__code__.co_names              # includes attributes
    found = [function.__globals__.get(name) for name in names]
    found += [getattr(one, name, None) for one in found if inspect.ismodule(one) for name in names]
    for called in found:
        if isinstance(called, Dispatcher) and called.py_func is not None:
            _collect(called.py_func, files, seen)
