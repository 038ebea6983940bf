"""Functions compiled only together with their callers (`ooco_gym.compile.inner`, `inlined`).

For every compiled function numba links all of its callees, optimises the whole and emits machine
code: a callee at the fifth level is compiled five times over. A part is typed and lowered, but not
linked, optimised as a whole, or emitted by itself. A function called from Python links each part
that it needs once, and is optimised once.
"""

from __future__ import annotations

from contextlib import nullcontext
from copy import copy
from typing import Any

from llvmlite import binding
from numba import _dynfunc  # pyright: ignore[reportAttributeAccessIssue]
from numba.core import errors, event, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder, _LowerResult
from numba.core.compiler_machinery import register_pass
from numba.core.dispatcher import _FunctionCompiler  # pyright: ignore[reportAttributeAccessIssue]
from numba.core.targetconfig import ConfigStack
from numba.core.typed_passes import NativeLowering

# Names overridden or called below: a missing one raises at once.
for _owner, _names in ((JITCodeLibrary, ("_optimize_final_module", "_get_module_for_linking", "enable_object_caching")),
                       (DefaultPassBuilder, ("define_nopython_pipeline",)), (_dynfunc, ("make_function",)),
                       (_FunctionCompiler, ("fold_argument_types",)), (event, ("install_timer",))):
    for _name in _names:
        getattr(_owner, _name)

# Compiling raises tens of thousands of errors that are never shown, and numba colours each.
errors.termcolor()._markup = lambda words, *_: words  # pyright: ignore[reportAttributeAccessIssue]
# Numba times each of its locks for all waiting functions, which call each other ten deep.
event.install_timer = lambda *_: nullcontext()


def _once(resolve: Any) -> Any:
    """Caches the return types of numba's own functions, by argument types and compile options."""
    known: dict[Any, Any] = {}
    seen: list[Any] = []  # options, which have no hash

    def call_type(function: Any, context: Any, args: Any, kws: Any) -> Any:
        flags = getattr(ConfigStack.top_or_none(), "_values", None)
        if flags not in seen:
            seen.append(copy(flags))
        key = function, context, args, tuple(kws.items()), seen.index(flags)
        if key not in known:
            known[key] = resolve(function, context, args, kws)
        return known[key]

    return call_type


types.Function.get_call_type = _once(types.Function.get_call_type)


def take_whole_numbers(part: Any) -> None:
    """Makes one form of a part for integers of all widths, not one per constant argument; inlining
    knows the constants anyway."""
    fold = part._compiler.fold_argument_types

    def folded(args: Any, kws: Any) -> Any:
        signature, kinds = fold(args, kws)
        return signature, tuple(types.int64 if kind in types.signed_domain else kind
                                for kind in map(types.unliteral, kinds))

    part._compiler.fold_argument_types = folded


def _relink(module: Any, old: Any, new: Any) -> None:
    """Changes the linkage of functions; with *once* the linker would drop callees of code linked
    later."""
    for function in module.functions:
        if not function.is_declaration and function.linkage == old:
            function.linkage = new


class Part(JITCodeLibrary):
    """The code of a part, to be linked into its callers together with its callees (`needs`)."""

    def finalize(self) -> None:
        """Skips linking, optimising and emitting, which callers do."""
        _relink(self._final_module, binding.Linkage.external, binding.Linkage.weak_odr)
        self._finalized = True

    def needs(self) -> list[Any]:
        """This library and those of all its callees, each once."""
        return list(dict.fromkeys([self, *self._linking_libraries]))

    def _get_module_for_linking(self) -> Any:
        return self._final_module


class Whole(JITCodeLibrary):
    """The code of a function called from Python, with all of its parts."""

    def _optimize_final_module(self) -> None:
        """Skips numba's reference-count passes, as there are no counts."""
        _relink(self._final_module, binding.Linkage.weak_odr, binding.Linkage.linkonce_odr)
        passes, builder = self._codegen._module_pass_manager()
        passes.run(self._final_module, builder)


@register_pass(mutates_CFG=True, analysis_only=False)
class WholeLowering(NativeLowering):
    """Lowers a function into a `Whole`."""

    _name = "ooco_gym_lowering"

    def run_pass(self, state: Any) -> bool:
        """As numba's own, with a `Whole`."""
        state.library = Whole(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return super().run_pass(state)


@register_pass(mutates_CFG=True, analysis_only=False)
class PartLowering(NativeLowering):
    """Lowers a function into a `Part`, and tells numba that compiled code may call it."""

    _name = "ooco_gym_part_lowering"

    def run_pass(self, state: Any) -> bool:
        """As numba's own, without looking up an address, as there is no machine code."""
        name = state.func_id.func_qualname
        state.library = Part(state.targetctx.codegen(), name)
        flags, state.flags = state.flags, state.flags.copy()
        state.flags.no_compile = True
        super().run_pass(state)
        state.library.finalize()
        state.flags, lowered = flags, state.cr
        key = _dynfunc.make_function(lowered.fndesc.lookup_module(), name, "", 0, lowered.env, (state.library,))
        state.targetctx.insert_user_function(key, lowered.fndesc, state.library.needs())
        state.cr = _LowerResult(lowered.fndesc, lowered.call_helper, cfunc=key, env=lowered.env)
        return True


class WholeCompiler(CompilerBase):
    """Numba's pipeline for compiled functions with another lowering."""

    lowering = WholeLowering

    def define_pipelines(self) -> list[Any]:
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        place = next(i for i, (one, _) in enumerate(passes.passes) if one is NativeLowering)
        passes.passes[place] = (self.lowering, "lowering")
        passes._finalized = False
        passes.finalize()
        return [passes]


class PartCompiler(WholeCompiler):
    """Numba's pipeline for parts."""

    lowering = PartLowering
