"""`ooco-gym compile`: compiles all that commands and environments use, once, so that none of them waits for it.

What is compiled is kept on disk (`ooco_gym.compile.jit`). Workers take the modules that have compiled functions one by
one, the longest first.
"""

from __future__ import annotations

import re
import time
from concurrent.futures import as_completed
from importlib import import_module
from pathlib import Path
from typing import Any

from ooco_gym.compile import compile_later, notice
from ooco_gym.errors import EXTRAS, whole_number
from ooco_gym.jobs import cores, processes
from ooco_gym.report.terminal import progress

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("baselines", "ooco_gym", "agents", "experiments")
# How long the longest take beside the others: whoever compiles them lowers what most of the others are built on.
WEIGHTS = {"ooco_gym.sim.loop": 7.0, "ooco_gym.policy.mixed": 3.0, "ooco_gym.envs.stepping": 3.0}
_COMPILES = re.compile(r"^@(jit|hook|step_kernel|reading)\b|= jit\(", re.MULTILINE)


def main(cfg: Any) -> dict[str, Any]:
    """Runs the command; returns how many functions were compiled, how many modules have some, and the seconds.

    Raises:
        UserError: `workers` is no whole number of at least 1.
    """
    workers = None if cfg.get("workers") is None else whole_number("workers", cfg["workers"], 1)
    begun = time.monotonic()
    functions = compile_all(workers)
    wall_s = time.monotonic() - begun
    print(f"compiled {functions} functions in {wall_s:.0f} s; they are kept for later starts" if functions else
          "all is compiled: nothing was left to do")
    return {"functions": functions, "modules": len(modules()), "wall_s": wall_s}


def compile_all(workers: int | None = None) -> int:
    """Compiles what is not on disk yet, and returns how many functions that were."""
    names, functions = modules(), 0
    weights = {name: WEIGHTS.get(name, 1.0) for name in names}
    with processes(workers or min(2, cores())) as executor, progress("compiling", total=sum(weights.values())) as bar:
        begun = {executor.submit(compile_module, name): name for name in names}
        for one in as_completed(begun):
            functions += one.result()
            bar.advance(weights[begun[one]])
    return functions


def modules() -> list[str]:
    """Names of the modules that have compiled functions, in the order in which they are compiled: the longest first."""
    found = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")
             if _COMPILES.search(path.read_text(encoding="utf-8"))]
    found.sort(key=lambda path: (-path.stat().st_size, path))
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in found]
    return [*WEIGHTS, *(name for name in names if name not in WEIGHTS)]


def compile_module(name: str) -> int:
    """Compiles the functions of a module; returns how many were not on disk yet."""
    before = notice.compiled()
    try:
        import_module(name)
    except ModuleNotFoundError as error:  # of an extra that is not installed, nothing uses it
        if (error.name or "").partition(".")[0] not in EXTRAS:
            raise
    compile_later(name)
    return notice.compiled() - before
