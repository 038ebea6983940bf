"""`ooco-gym compile`: compiles all that commands and environments use, once, so that none of them waits for it.

What is compiled is kept on disk (`ooco_gym.compile.jit`). One process imports every module that has compiled functions,
and lowers what most of these are built on; workers that are copies of it compile them, a module at a time.
"""

from __future__ import annotations

import re
import time
from concurrent.futures import as_completed
from importlib import import_module
from pathlib import Path
from typing import Any

from ooco_gym.compile import compile_later, notice
from ooco_gym.errors import EXTRAS, UserError, is_whole
from ooco_gym.jobs import cores, pool
from ooco_gym.report.terminal import progress

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("baselines", "ooco_gym", "agents", "experiments")
PREPARED = "ooco_gym.commands.compiling"  # prepares a worker as it is imported
FIRST = ("ooco_gym.sim.loop", "ooco_gym.policy.mixed", "ooco_gym.envs.stepping")  # the heaviest
_COMPILES = re.compile(r"^@(jit|hook|step_kernel)\b|= jit\(", re.MULTILINE)


def main(cfg: Any) -> dict[str, Any]:
    """Runs the command; returns how many functions were compiled, how many modules have some, and the seconds.

    Raises:
        UserError: `workers` is no whole number of at least 1.
    """
    workers = cfg.get("workers")
    if workers is not None and (not is_whole(workers) or workers < 1):
        raise UserError(f"workers={workers} must be a whole number of at least 1, or null")
    begun = time.monotonic()
    functions = compile_all(workers)
    wall_s = time.monotonic() - begun
    print(f"compiled {functions} functions in {wall_s:.0f} s; they are kept for later starts" if functions else
          "all is compiled: nothing was left to do")
    return {"functions": functions, "modules": len(modules()), "wall_s": wall_s}


def compile_all(workers: int | None = None) -> int:
    """Compiles what is not on disk yet, and returns how many functions that were."""
    names, functions = modules(), 0
    executor = pool(workers or min(2, cores()), (PREPARED,))
    with executor, progress("compiling", total=len(names)) as bar:
        for one in as_completed([executor.submit(compile_module, name) for name in names]):
            functions += one.result()
            bar.advance()
    return functions


def modules() -> list[str]:
    """Names of the modules that have compiled functions, in the order in which they are compiled: the longest first."""
    found = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")
             if _COMPILES.search(path.read_text(encoding="utf-8"))]
    found.sort(key=lambda path: (-path.stat().st_size, path))
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in found]
    return [*FIRST, *(name for name in names if name not in FIRST)]


def import_all() -> None:
    """Imports all modules that have compiled functions, but for those of extras that are not installed."""
    for name in modules():
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in EXTRAS:  # nothing that is installed uses it
                raise


def compile_module(name: str) -> int:
    """Compiles the functions of a module; returns how many were not on disk yet."""
    import_module(PREPARED)
    before = notice.compiled()
    compile_later(name)
    return notice.compiled() - before
