"""Compiles what the tests need: `python -m tests.compiled`. That is what `ooco-gym compile` does, and the tests' rules.

On a fresh clone each process of pytest-xdist would compile, while it collects, all that any test imports: every one of
them the same functions at the same time. It is apart from pytest because that has to be done before they collect.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ooco_gym.commands.compile import compile_all

ROOT = Path(__file__).parents[1]
TESTS = (["tests/envs", "tests/policy"], ["tests/baselines", "tests/sim"])  # with rules of their own: two processes


def main() -> int:
    """Compiles all of it; returns an exit code, 1 where tests cannot be imported."""
    compile_all()
    words = [sys.executable, "-m", "pytest", "--collect-only", "-qqq", "-p", "no:cacheprovider"]
    failed, collecting = False, [subprocess.Popen([*words, *tests], cwd=ROOT, text=True, stdout=subprocess.PIPE,
                                                  stderr=subprocess.STDOUT) for tests in TESTS]
    for process in collecting:
        said = process.communicate()[0]
        if process.returncode:
            failed = True
            print(said, file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
