"""`ooco-gym compile`: compiles everything that commands and environments use, once.

Compiled code is kept on disk (`ooco_gym.compile.jit`). Workers take the modules with compiled
functions one by one, the longest first.
"""

from __future__ import annotations

import re
import time
from concurrent.futures import as_completed
from importlib import import_module
from pathlib import Path
from typing import Any

from ooco_gym.compile import compile_later, notice
from ooco_gym.errors import EXTRAS
from ooco_gym.jobs import cores, processes
from ooco_gym.report.terminal import progress
from ooco_gym.schema import whole

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("baselines", "ooco_gym", "agents", "experiments")
# Relative durations of the longest, whose compilation includes most of what the others are built on.
WEIGHTS = {"ooco_gym.sim.loop": 7.0, "ooco_gym.policy.mixed": 3.0, "ooco_gym.envs.stepping": 3.0}
_COMPILES = re.compile(r"^@(jit|hook|step_kernel|reading)\b|= jit\(", re.MULTILINE)


def main(cfg: Any) -> dict[str, Any]:
    """Runs the command; returns the number of compiled functions and of modules with some, and the
    seconds.

    Raises:
        UserError: `workers` is no integer of at least 1.
    """
    workers = None if cfg.get("workers") is None else whole("workers", cfg["workers"], 1)
    begun = time.monotonic()
    functions = compile_all(workers)
    wall_s = time.monotonic() - begun
    print(f"compiled {functions} functions in {wall_s:.0f} s; later starts reuse them" if functions else
          "everything is already compiled")
    return {"functions": functions, "modules": len(modules()), "wall_s": wall_s}


def compile_all(workers: int | None = None) -> int:
    """Compiles what is not on disk yet; returns the number of functions compiled."""
    names, functions = modules(), 0
    weights = {name: WEIGHTS.get(name, 1.0) for name in names}
    with processes(workers or min(2, cores())) as executor, progress("compiling", total=sum(weights.values())) as bar:
        begun = {executor.submit(compile_module, name): name for name in names}
        for one in as_completed(begun):
            functions += one.result()
            bar.advance(weights[begun[one]])
    return functions


def modules() -> list[str]:
    """Returns the names of modules with compiled functions in order of compilation, the longest first."""
    found = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")
             if _COMPILES.search(path.read_text(encoding="utf-8"))]
    found.sort(key=lambda path: (-path.stat().st_size, path))
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in found]
    return [*WEIGHTS, *(name for name in names if name not in WEIGHTS)]


def compile_module(name: str) -> int:
    """Compiles a module's functions; returns how many were not on disk yet."""
    before = notice.compiled()
    try:
        import_module(name)
    except ModuleNotFoundError as error:  # belongs to an extra that is not installed
        if (error.name or "").partition(".")[0] not in EXTRAS:
            raise
    compile_later(name)
    return notice.compiled() - before
