"""Other processors, as far as one machine can play them: what they compute in other bits is switched on or off.

Each setting is of a process of its own, since libraries choose their code once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.golden.digests import ROOT

_LIBM = {"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4"}  # exp, log, power, sine of the C library
_BLAS = {"OPENBLAS_CORETYPE": "Nehalem"}  # least squares, matrix products
_COMPILED = {"NUMBA_CPU_NAME": "x86-64-v2", "NUMBA_CPU_FEATURES": ""}  # the simulator's core
_LEVELS = {"X86_V4": "avx512f", "X86_V3": "avx2"}  # numpy's vector loops, and what Linux calls them


def _numpy() -> dict[str, str]:
    """Switches off numpy's best vector loops that this machine has."""
    info = Path("/proc/cpuinfo")
    flags = set(info.read_text(encoding="utf-8").split()) if info.is_file() else set()
    import numpy as np

    known = getattr(np._core._multiarray_umath, "__cpu_dispatch__", [])  # those that it can do without
    levels = [level for level, flag in _LEVELS.items() if flag in flags and level in known]
    more = [name for name in ("AVX512_ICL", "AVX512_SPR") if "avx512f" in flags and name in known]
    return {"NPY_DISABLE_CPU_FEATURES": " ".join([*levels, *more])} if levels else {}


def settings() -> dict[str, dict[str, str]]:
    """Environment variables of each, by what it does without."""
    vectors = _numpy()
    return {"this processor": {}, "libm without FMA": _LIBM, "BLAS of 2008": _BLAS, "compiled for x86-64-v2": _COMPILED,
            **({"numpy without its vector loops": vectors} if vectors else {}),
            "all at once": {**_LIBM, **_BLAS, **_COMPILED, **vectors}}


def check(chosen: dict[str, str], words: list[str], cache: str = "") -> subprocess.CompletedProcess[str]:
    """Compares digests in a process with these variables; its last line is `golden: N digests, D differ`. `cache` is a
    folder for code that is compiled for another processor."""
    apart = {"NUMBA_CACHE_DIR": cache} if "NUMBA_CPU_NAME" in chosen else {}
    return subprocess.run([sys.executable, "-m", "tests.golden", *words], cwd=ROOT, text=True, check=False,
                          env={**os.environ, **chosen, **apart}, capture_output=True)
