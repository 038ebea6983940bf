"""How numba compiles a function that only compiled code calls: typed and lowered, and left to those who call it.

For every compiled function numba links in all that it calls, optimises the whole and makes machine code of it, for
what is called at the fifth level five times over. A part is neither optimised nor made machine code of by itself: what
Python calls holds a copy of it, and is optimised once. The core's first compilation takes half the time.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import _dynfunc  # pyright: ignore[reportAttributeAccessIssue]
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder, _LowerResult
from numba.core.compiler_machinery import register_pass
from numba.core.typed_passes import NativeLowering


class Part(JITCodeLibrary):
    """The code of a part and of all that it calls, to be linked into its callers."""

    def finalize(self) -> None:
        """Links what the part calls; numba would go on to optimise it, and to make it machine code."""
        self._raise_if_finalized()
        for library in dict.fromkeys(self._linking_libraries):
            self._reload_init.update(library._reload_init)
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class PartLowering(NativeLowering):
    """Lowers a function into a `Part`, and tells numba that compiled code may call it."""

    _name = "ooco_gym_part_lowering"
    attributes: tuple[str, ...] = ()

    def run_pass(self, state: Any) -> bool:
        """As numba's own, but for looking up the address of what is no machine code."""
        library = state.library = Part(state.targetctx.codegen(), state.func_id.func_qualname)
        flags, state.flags = state.flags, state.flags.copy()
        state.flags.no_compile = True
        super().run_pass(state)
        state.flags, lowered = flags, state.cr
        for attribute in self.attributes:
            library.get_function(lowered.fndesc.llvm_func_name).add_function_attribute(attribute)
        name = state.func_id.func_qualname
        key = _dynfunc.make_function(lowered.fndesc.lookup_module(), name, "", 0, lowered.env, (library,))
        state.targetctx.insert_user_function(key, lowered.fndesc, [library])
        state.cr = _LowerResult(lowered.fndesc, lowered.call_helper, cfunc=key, env=lowered.env)
        return True


@register_pass(mutates_CFG=True, analysis_only=False)
class OutlinedLowering(PartLowering):
    """Of a part that stays a function of its own wherever it is called."""

    _name = "ooco_gym_outlined_lowering"
    attributes = ("noinline",)


class PartCompiler(CompilerBase):
    """Numba's pipeline for compiled functions, with `PartLowering` in the place of the last but one of its stages."""

    lowering: type[PartLowering] = PartLowering

    def define_pipelines(self) -> list[Any]:
        """Returns the one pipeline."""
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        place = next(i for i, (one, _) in enumerate(passes.passes) if one is NativeLowering)
        passes.passes[place] = (self.lowering, "lowering of a part")
        passes._finalized = False
        passes.finalize()
        return [passes]


class OutlinedCompiler(PartCompiler):
    lowering = OutlinedLowering
