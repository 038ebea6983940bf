"""Functions that are compiled only together with their callers (`ooco_gym.compile.inner`, `inlined`).

For every compiled function numba links in all that it calls, optimises the whole and makes machine code of it: what is
called at the fifth level five times over. A part is typed and lowered, but neither optimised nor made machine code of
by itself. What Python calls holds a copy of it, and is optimised once.
"""

from __future__ import annotations

from typing import Any

from numba import _dynfunc  # pyright: ignore[reportAttributeAccessIssue]
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder, _LowerResult
from numba.core.compiler_machinery import register_pass
from numba.core.typed_passes import NativeLowering


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
