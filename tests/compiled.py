"""Compiles what the tests need, in two processes: `python -m tests.compiled`.

On a fresh clone each process of pytest-xdist compiles, while it collects, all that any test imports: every one the same
functions at the same time. Here each process compiles a half that the other does not need, and pytest finds both on
disk. It is apart from pytest because all of its processes have to be done before the first of them collects.
"""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest

ROOT = Path(__file__).parents[1]
# By process: what comes first, packages of which every module is imported, and tests with rules of their own. The
# policies are compiled without the event loop; of these, only the one that comes last imports it.
HALVES: dict[str, tuple[list[str], list[str], list[str]]] = {
    "core": (["ooco_gym.sim.loop"], ["ooco_gym.envs"], ["tests/envs"]),
    "policies": (["ooco_gym.policy.mixed"], ["baselines"], ["tests/baselines", "tests/policy", "tests/sim"]),
}
LAST = ("baselines.adaptive_deadline",)


def compile_half(name: str) -> int:
    """Imports the modules of a half, then those of its tests; returns pytest's exit code."""
    first, packages, tests = HALVES[name]
    inside = [f"{package}.{module.name}" for package in packages
              for module in iter_modules(import_module(package).__path__)]
    for module in [*first, *sorted(inside, key=lambda one: one in LAST)]:
        import_module(module)
    return pytest.main(["--collect-only", "-qqq", "-p", "no:cacheprovider", *tests])


def main(words: list[str]) -> int:
    """Compiles the half that is named, or both, each in a process; returns an exit code, 1 where one failed."""
    if words:
        return compile_half(words[0])
    failed, halves = False, [subprocess.Popen([sys.executable, "-m", "tests.compiled", name], cwd=ROOT, text=True,
                                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for name in HALVES]
    for half in halves:
        said = half.communicate()[0]
        if half.returncode:
            failed = True
            print(said, file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
