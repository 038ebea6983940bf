"""Compilation of the core: all that touches private parts of numba and llvmlite is here, and nowhere else.

Private are a disk cache that knows all the sources of a compiled function, functions that are compiled only together
with their callers, and references: they hang on versions of numba and llvmlite, which pyproject.toml bounds.

# The disk cache

Numba stamps a cached function with the file that defines it alone. Compiled code, however, holds a copy of everything
it calls, so a cached event loop would go stale as soon as another file of the core changes. Here the stamp is a digest
of every file of the compiled core that the function may have been built from, of the function's own file, and of the
files of the compiled functions that it calls; each digest has a folder of its own, so that versions never mix:

    __pycache__/ooco_gym-<file>-<digest>/<function>-<line>.py<version>-<signature>.nbc

Where the package's folder cannot be written the files go to numba's cache folder of the user; `NUMBA_CACHE_DIR` names
another place. One file holds one signature, with a digest of itself, and is renamed into place, so any number of
processes may start at once: at worst each compiles for itself. A file that was damaged counts as none: LLVM trusts what
it is given. `NUMBA_DISABLE_JIT=1` turns compilation off for a look at a single rule; references need it.

Not seen: constants that a rule outside ooco_gym imports from another file of its own.

# Inner functions

For every compiled function numba links in all that it calls, optimises the whole and makes machine code of it: what is
called at the fifth level five times over. An inner function is typed and lowered, but neither optimised nor made
machine code of by itself. What Python calls holds a copy of it, and is optimised once.

# References

Numba passes a NamedTuple by value, a word for each field of each array: every call would copy some two hundred, and to
unpack one that comes from Python takes microseconds. So the state is laid down once (`Handle`), and only its
address is passed. Attributes of a reference are read where they are used, and never change.
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
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numba
import numpy as np
from llvmlite import ir
from numba import (
    _dynfunc,  # pyright: ignore[reportAttributeAccessIssue]
    njit,
)
from numba.core import cgutils, typeinfer, types
from numba.core.caching import FunctionCache
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder, _LowerResult
from numba.core.compiler_machinery import register_pass
from numba.core.datamodel import models
from numba.core.dispatcher import Dispatcher
from numba.core.imputils import lower_getattr_generic
from numba.core.serialize import dumps
from numba.core.typed_passes import NativeLowering
from numba.core.typing.templates import AttributeTemplate
from numba.cpython.unsafe import numbers
from numba.extending import NativeValue, infer_getattr, intrinsic, register_model, unbox
from numba.np.arrayobj import make_array

PACKAGE = Path(__file__).resolve().parent
# A function is built from its own level and those before it, as the imports go.
LEVELS = (("sim",), ("policy",), ("envs",))
RULES = 2                   # levels that a rule outside the package builds on: the simulator and the policy helpers
KEPT = 8                    # folders of older digests that stay for one source file
DIGEST_BYTES = 16           # at the beginning of each file of the disk cache


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
    """Compiles a helper that only compiled code calls, together with what calls it (see above).

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
    if os.path.isfile(inspect.getfile(function)):   # not where it was typed into a console
        try:
            compiled._cache = SourceCache(function)  # pyright: ignore[reportAttributeAccessIssue]
        except (OSError, RuntimeError) as error:    # no folder to write to
            _note_not_kept(str(error))
    if signature is not None:
        # What numba.jit does with signatures; it must come after the cache is in place.
        with typeinfer.register_dispatcher(compiled):
            for one in signature if isinstance(signature, list) else [signature]:
                compiled.compile(one)
            compiled.disable_compile()
    return compiled


# --- The disk cache -------------------------------------------------------------------------------------------------
class SourceCache(FunctionCache):
    """Numba's cache of a function's compiled forms, under the digest of all its sources."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__(function)
        path = Path(inspect.getfile(function))
        prefix = f"ooco_gym-{path.stem}-"
        folder = Path(self._cache_path) / f"{prefix}{source_digest(function)}"
        self._cache_file = KeyedFiles(folder, prefix, self._impl.filename_base)


class KeyedFiles:
    """One file for each key in `folder`; stands in for numba's index file, whose writers can cross."""

    def __init__(self, folder: Path, prefix: str, stem: str):
        self.folder, self.prefix, self.stem = folder, prefix, stem

    def load(self, key: Any) -> Any:
        """Returns what was saved under `key`, or None."""
        try:
            content = self._path(key).read_bytes()
            if content[:DIGEST_BYTES] != _digest_of(content[DIGEST_BYTES:]):
                return None
            stored, data = pickle.loads(content[DIGEST_BYTES:])
        except (OSError, EOFError, pickle.UnpicklingError, AttributeError, ImportError):
            return None
        return data if stored == key else None

    def save(self, key: Any, data: Any) -> None:
        """Saves `data` under `key`; a cache that cannot be written costs time, nothing else."""
        try:
            if not self.folder.exists():
                self.folder.mkdir(parents=True, exist_ok=True)
                self._prune()
            path = self._path(key)
            temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")
            try:
                content = dumps((key, data))
                temporary.write_bytes(_digest_of(content) + content)
                os.replace(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            _note_not_kept(f"{self.folder}: {error.strerror}")

    def flush(self) -> None:
        """Removes every file of this function."""
        for path in self.folder.glob(f"{self.stem}-*.nbc"):
            path.unlink(missing_ok=True)

    def _path(self, key: Any) -> Path:
        return self.folder / f"{self.stem}-{hashlib.blake2b(str(key).encode(), digest_size=8).hexdigest()}.nbc"

    def _prune(self) -> None:
        """Removes the folders of digests gone by, all but the newest few."""
        found = [path for path in self.folder.parent.glob(f"{self.prefix}*") if path != self.folder]
        for path in sorted(found, key=_changed_s)[:-KEPT]:
            shutil.rmtree(path, ignore_errors=True)


def _changed_s(path: Path) -> float:
    """When a folder was changed; 0 of one that another process has just removed."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _digest_of(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


_NOTED: list[str] = []


def _note_not_kept(reason: str) -> None:
    """Warns once in a process that compiled code is lost at its end."""
    if not _NOTED:
        _NOTED.append(reason)
        warnings.warn(f"compiled code cannot be kept ({reason}): every start compiles anew, for about a minute; set "
                      "NUMBA_CACHE_DIR to a folder that can be written", UserWarning, stacklevel=2)


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
    paths = [package / "compile.py", *(path for folder in folders for path in (package / folder).rglob("*.py"))]
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


# --- Inner functions ------------------------------------------------------------------------------------------------
class Part(JITCodeLibrary):
    """The code of a part and of all that it calls, to be linked into its callers."""

    def _optimize_final_module(self) -> None:
        """Left to the callers."""

    def _finalize_final_module(self) -> None:
        """No machine code is made of it."""
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class PartLowering(NativeLowering):
    """Lowers a function into a `Part`, and tells numba that compiled code may call it."""

    _name = "ooco_gym_part_lowering"

    def run_pass(self, state: Any) -> bool:
        """As numba's own, but for looking up the address of what is no machine code."""
        name = state.func_id.func_qualname
        state.library = Part(state.targetctx.codegen(), name)
        flags, state.flags = state.flags, state.flags.copy()
        state.flags.no_compile = True
        super().run_pass(state)
        state.flags, lowered = flags, state.cr
        key = _dynfunc.make_function(lowered.fndesc.lookup_module(), name, "", 0, lowered.env, (state.library,))
        state.targetctx.insert_user_function(key, lowered.fndesc, [state.library])
        state.cr = _LowerResult(lowered.fndesc, lowered.call_helper, cfunc=key, env=lowered.env)
        return True


class PartCompiler(CompilerBase):
    """Numba's pipeline for compiled functions, but for the lowering."""

    def define_pipelines(self) -> list[Any]:
        """Returns the one pipeline."""
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        place = next(i for i, (one, _) in enumerate(passes.passes) if one is NativeLowering)
        passes.passes[place] = (PartLowering, "lowering of a part")
        passes._finalized = False
        passes.finalize()
        return [passes]


# --- Records and references -----------------------------------------------------------------------------------------
class RecordType(types.Record):
    """Numba's type of a `Record`: a pointer to its numbers."""


register_model(RecordType)(models.RecordModel)


@unbox(RecordType)
def _unbox_record(kind, value, c):
    array = c.context.make_array(types.Array(types.int64, 1, "C"))(c.context, c.builder)
    failed = c.pyapi.numba_array_adaptor(value, c.builder.bitcast(array._getpointer(), c.pyapi.voidptr))
    pointer = c.builder.bitcast(array.data, c.context.get_value_type(kind))
    return NativeValue(pointer, is_error=cgutils.is_not_null(c.builder, failed))


class Reference(types.Type):
    """Address of a compiled NamedTuple that outlives the call."""

    def __init__(self, target: Any) -> None:
        self.target = target
        super().__init__(name=f"Reference({target.instance_class.__name__})")


register_model(Reference)(models.OpaqueModel)


@infer_getattr
class ReferenceAttributes(AttributeTemplate):
    """A reference has the attributes of what it points to."""

    key = Reference

    def generic_resolve(self, value: Reference, attr: str) -> Any:
        """Type of an attribute."""
        if attr in value.target.fields:
            return value.target.types[value.target.fields.index(attr)]
        return None


@lower_getattr_generic(Reference)
def _load(context: Any, builder: Any, kind: Reference, value: Any, attr: str) -> Any:
    place = kind.target.fields.index(attr)
    whole = builder.bitcast(value, context.get_value_type(kind.target).as_pointer())
    return _load_parts(builder, cgutils.gep_inbounds(builder, whole, 0, place))


def _load_parts(builder: Any, pointer: Any) -> Any:
    """Loads word by word: so that only what is used is loaded, and, as it is the same at any time, once."""
    kind = pointer.type.pointee
    if not isinstance(kind, (ir.BaseStructType, ir.ArrayType)):
        loaded = builder.load(pointer)
        loaded.set_metadata("invariant.load", builder.module.add_metadata([]))
        return loaded
    whole = cgutils.get_null_value(kind)
    for part in range(len(getattr(kind, "elements"))):  # noqa: B009 (of structs and arrays, in llvmlite's own words)
        whole = builder.insert_value(whole, _load_parts(builder, cgutils.gep_inbounds(builder, pointer, 0, part)), part)
    return whole


def _refer(typing_context, value):
    """Reference to a NamedTuple that a compiled function was given, for the time of its call."""

    def build(context, builder, signature, arguments):
        place = cgutils.alloca_once_value(builder, arguments[0])
        address = builder.bitcast(place, cgutils.voidptr_t)
        # What is read through it must not be taken for what stood there before: the address comes out of nowhere.
        kind = ir.FunctionType(cgutils.voidptr_t, [cgutils.voidptr_t])
        return builder.asm(kind, "", "=r,0,~{memory}", [address], True)

    return Reference(value)(value), build


refer: Any = intrinsic(_refer)


def _prefetch(typing_context, record, offset):
    """Tells the processor that what is at so many bytes of a record is about to be used: it is on the way by then."""

    def build(context, builder, signature, arguments):
        place, flag = cgutils.voidptr_t, ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [place, flag, flag, flag])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        write, keep, data = flag(1), flag(3), flag(1)
        address = cgutils.pointer_add(builder, arguments[0], arguments[1])
        builder.call(function, [builder.bitcast(address, place), write, keep, data])
        return context.get_dummy_value()

    return types.void(record, offset), build


prefetch: Any = intrinsic(_prefetch)


def _write_at(typing_context, value, address):
    """Writes a NamedTuple to where a `Handle` keeps it."""

    def build(context, builder, signature, arguments):
        kind = context.get_value_type(signature.args[0]).as_pointer()
        builder.store(arguments[0], builder.inttoptr(arguments[1], kind))
        return context.get_dummy_value()

    return types.void(value, types.int64), build


write_at: Any = intrinsic(_write_at)


def layer(target: Any) -> Any:
    """Compiles what lays a NamedTuple of this type down, for `Handle`."""

    @jit(types.void(target, types.int64))
    def lay(value, address):
        write_at(value, address)

    return lay


class Handle:
    """A NamedTuple of arrays laid down for compiled code: `address` stays valid as long as the handle lives."""

    def __init__(self, value: NamedTuple, lay: Any) -> None:
        self.value = value  # its arrays must live as long as the address is used
        words = sum(5 + 2 * array.ndim for array in value)  # more than enough where it is a record: that is a pointer
        self._memory = np.zeros(words, np.int64)
        self.address = int(self._memory.ctypes.data)
        lay(value, self.address)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a handle is an address in this process: copy or pickle what it was made of")


def reference_at(target: Any) -> Any:
    """Builds a compiled helper that turns the address of a `Handle` (int64) into a reference to its NamedTuple."""

    @intrinsic
    def value(typing_context, address):
        def build(context, builder, signature, arguments):
            return builder.inttoptr(arguments[0], cgutils.voidptr_t)

        return Reference(target)(types.int64), build

    return value


# --- Vector arithmetic: each of these is an instruction or two --------------------------------------------------------
LANES = 8  # numbers of a vector register of the widest processors


def _bits_of(typing_context, value):
    """Bits of a float64, as int64."""

    def build(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(64))

    return types.int64(types.float64), build


def _float_of(typing_context, bits):
    """The float64 of these bits."""

    def build(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.int64), build


def _quotient(typing_context, value, divisor):
    """value / divisor, unchecked: with the check for a zero, no loop becomes vector code."""

    def build(context, builder, signature, arguments):
        return builder.fdiv(*arguments)

    return types.float64(types.float64, types.float64), build


bits_of: Any = intrinsic(_bits_of)
float_of: Any = intrinsic(_float_of)
quotient: Any = intrinsic(_quotient)


def stack_floats(size: int) -> Any:
    """Builds a compiled helper without arguments: float64[size] on the stack of its caller, not initialised.

    The caller must inline whatever it hands them to, or keep them alive until it returns.
    """

    def floats(typing_context):
        kind = types.Array(types.float64, 1, "C")

        def build(context, builder, signature, arguments):
            with builder.goto_entry_block():
                memory = builder.alloca(ir.DoubleType(), size=ir.IntType(64)(size))
                memory.align = 64
            array = make_array(kind)(context, builder)
            word = context.get_constant(types.intp, 8)
            context.populate_array(array, data=memory, shape=[context.get_constant(types.intp, size)], strides=[word],
                                   itemsize=word, meminfo=None)
            return getattr(array, "_getvalue")()  # noqa: B009 (llvmlite's own words)

        return kind(), build

    return intrinsic(floats)


def _count_below(typing_context, values, first, limit):
    """How many of the LANES numbers of float64[n] from `first` on are less than a limit."""

    def build(context, builder, signature, arguments):
        lanes = ir.VectorType(ir.DoubleType(), LANES)
        data = builder.gep(make_array(values)(context, builder, arguments[0]).data, [arguments[1]])
        loaded = builder.load(builder.bitcast(data, lanes.as_pointer()), align=8)
        one = builder.insert_element(ir.Constant(lanes, ir.Undefined), arguments[2], ir.IntType(32)(0))
        every = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        limits = builder.shuffle_vector(one, ir.Constant(lanes, ir.Undefined), every)
        bits = builder.bitcast(builder.fcmp_ordered("<", loaded, limits), ir.IntType(LANES))
        return builder.zext(builder.ctpop(bits), ir.IntType(64))

    return types.int64(values, types.int64, types.float64), build


count_below: Any = intrinsic(_count_below)


# --- Bits -------------------------------------------------------------------------------------------------------------
leading_zeros: Any = numbers.leading_zeros
trailing_zeros: Any = numbers.trailing_zeros
