"""Compilation of the core. Only this package uses private parts of numba and llvmlite.

These are a disk cache keyed by all sources of a compiled function (`source_cache`), functions
compiled only with their callers (`parts`), references (`references`) and single instructions
(`instructions`). They depend on versions of numba and llvmlite, which pyproject.toml bounds.

`NUMBA_DISABLE_JIT=1` turns compilation off to debug a single rule; references need it.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any

import numba
from llvmlite.binding import ffi
from numba import extending, njit
from numba.core import cgutils, typeinfer, types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher

SUPPORTED = ">=0.61,<0.69"  # versions of numba, as in pyproject.toml
try:
    from ooco_gym.compile.notice import watch
    from ooco_gym.compile.parts import PartCompiler, WholeCompiler, take_whole_numbers
    from ooco_gym.compile.source_cache import SourceCache, note_not_kept
except (ImportError, AttributeError) as error:
    raise ImportError(f"numba {numba.__version__} lacks something that ooco_gym compiles with ({error}): install "
                      f"numba{SUPPORTED}") from error

watch()
# vLLM's CPU worker looks for `kernel` in the `__dict__` of all objects in modules (0.32's
# `_rebind_kernels`), and llvmlite's library takes any name for a function of its own; so it gets an
# empty `__dict__`.
ffi.lib._fntab.setdefault("__dict__", {})


def jit(signature: Any = None, **options: Any) -> Any:
    """Compiles a function with numba, and caches it on disk until one of its sources changes.

    Args:
        signature: a numba signature, compiled or loaded when the function is first called or its
            address is needed. None: one per combination of argument types. Also usable bare, as
            `@jit`.
        **options: as for `numba.njit`.

    Returns:
        A decorator, or the compiled function if used bare.
    """
    if inspect.isfunction(signature):
        return _kept(signature, None, options)
    return lambda function: _kept(function, signature, options)


def inner(function: Callable[..., Any]) -> Any:
    """Compiles a helper that only compiled code calls, together with its callers (`parts`).

    It cannot be called from Python and counts no references: its array arguments live as long as
    the outermost call. Signed integers arrive as int64. LLVM decides where it is inlined.
    """
    return _part(function, inline=False)


def inlined(function: Callable[..., Any]) -> Any:
    """As `inner`, but always inlined, for functions that run at every decision.

    For such short functions, passing arguments and checking results would take long.
    """
    return _part(function, inline=True)


def _part(function: Callable[..., Any], inline: bool) -> Any:
    # Without forceinline, a function would take it from its first caller.
    options: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "_nrt": False,
                               "forceinline": inline, "pipeline_class": PartCompiler}
    part = njit(**options)(function)
    if isinstance(part, Dispatcher):                # not NUMBA_DISABLE_JIT
        take_whole_numbers(part)
    return part


def intrinsic(build: Callable[..., Any]) -> Any:
    """Numba's decorator of functions that write LLVM code; callers of the result omit the typing
    context."""
    return extending.intrinsic(build)


def address_of(compiled: Any, signature: Any) -> int:
    """Returns the address of a compiled function, for `function_at`. Passing an integer from Python
    is free; a function value takes some 70 microseconds. The function must stay alive (a module's
    global does)."""
    result = compiled.get_compile_result(signature)
    return result.library.get_pointer_to_function(result.fndesc.llvm_func_name)


def function_at(function_type: Any) -> Any:
    """Builds a compiled helper that converts an address (int64) to a first-class function of a
    type."""

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


def _kept(function: Callable[..., Any], signature: Any, options: dict[str, Any]) -> Any:
    options = {"_nrt": False, "pipeline_class": WholeCompiler, **options}  # no reference counts
    compiled: Any = njit(**options)(function)
    if not isinstance(compiled, Dispatcher):        # NUMBA_DISABLE_JIT
        return compiled
    if os.path.isfile(inspect.getfile(function)):   # not if typed into a console
        try:
            compiled._cache = SourceCache(function)  # pyright: ignore[reportAttributeAccessIssue]
        except (OSError, RuntimeError) as error:    # no folder to write to
            note_not_kept(str(error))
    if signature is not None:
        _LATER.setdefault(function.__module__, []).append((compiled, signature))
        _compile_at_first_use(compiled, signature)
    return compiled


_LATER: dict[str, list[tuple[Any, Any]]] = {}  # by module: functions and signatures


def compile_later(module: str) -> None:
    """Compiles a module's functions that have not been used yet."""
    for compiled, signature in _LATER.pop(module, ()):
        _compile_now(compiled, signature)


def _compile_at_first_use(compiled: Any, signature: Any) -> None:
    """Compiles a function by its signature at its first call; Python calls the result of
    `_compile_for_args`."""
    template = compiled.get_call_template
    compiled._compile_for_args = lambda *_: _compile_now(compiled, signature)
    compiled.get_call_template = lambda args, kws: _compile_now(compiled, signature) and template(args, kws)


def _compile_now(compiled: Any, signature: Any) -> Any:
    """Compiles a function for a signature, as numba.jit does, with the cache in place. Threads
    wait."""
    with global_compiler_lock:
        if compiled._can_compile:
            with typeinfer.register_dispatcher(compiled):
                compiled.compile(signature)
                compiled.disable_compile()
    return compiled
