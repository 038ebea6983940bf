"""`ooco-gym compile`: compiles all that commands and environments use, once, so that none of them waits for it.

A function is compiled as its module is imported, and kept on disk (`ooco_gym.compile.jit`). Here every module that has
such functions is imported, in two processes.
"""

from __future__ import annotations

import re
import time
from concurrent.futures import as_completed
from importlib import import_module
from pathlib import Path
from typing import Any

from ooco_gym.compile import notice
from ooco_gym.errors import EXTRAS, UserError, is_whole
from ooco_gym.jobs import cores, processes
from ooco_gym.report.terminal import progress

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("baselines", "ooco_gym", "agents", "experiments")
FIRST = ("ooco_gym.envs.stepping", "ooco_gym.policy.mixed")  # what all others are built on: one for each process
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
    with processes(workers or min(len(FIRST), cores())) as pool, progress("compiling", total=len(names)) as bar:
        for one in as_completed([pool.submit(compile_module, name) for name in names]):
            functions += one.result()
            bar.advance()
    return functions


def modules() -> list[str]:
    """Names of the modules that have compiled functions, in the order in which they are compiled.

    Of the policies, whose files are reversed, only the last imports the event loop: another process is at it meanwhile.
    """
    found = [path for package in PACKAGES
             for path in sorted((ROOT / package).rglob("*.py"), reverse=package == "baselines")
             if _COMPILES.search(path.read_text(encoding="utf-8"))]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in found]
    return [*FIRST, *(name for name in names if name not in FIRST)]


def compile_module(name: str) -> int:
    """Compiles the functions of a module; returns how many of it, and of what it imports, were not on disk yet."""
    before = notice.compiled()
    try:
        import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in EXTRAS:  # nothing that is installed uses it
            raise
    return notice.compiled() - before
