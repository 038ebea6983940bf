"""The disk cache of compiled functions: found again by another process, dropped when any of its sources changes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numba
import pytest
from numba import njit

import ooco_gym
from ooco_gym.compile import inlined, inner
from ooco_gym.compile.parts import Part
from ooco_gym.compile.source_cache import KEPT, KeyedFiles

SOURCES = Path(ooco_gym.__file__).parent

GONE = """
from numba.core import {module}
del {module}.{name}
import ooco_gym.compile
"""

HELPER = """
from numba import njit

@njit
def step(x):
    return x + {add}
"""

LOOP = """
from typing import NamedTuple

import numpy as np
from numba import typeof, types

from ooco_gym.compile import jit
from ooco_gym.sim.helper import step


class State(NamedTuple):
    clock: np.ndarray
    weights: np.ndarray


STATE = typeof(State(np.zeros(1, np.int64), np.zeros(3)))
RULE = types.int64(STATE, types.int64)


@jit(RULE)
def rule(state, x):
    return step(x) + state.clock[0]


@jit(types.int64(STATE, types.FunctionType(RULE)))
def loop(state, rule):
    return rule(state, step(10))


@jit
def lazy(x):
    return step(x)
"""

BY_MODULE = """
from numba import types

import others
from ooco_gym.compile import jit


@jit(types.int64(types.int64))
def rule(x):
    return others.step(x)
"""

MAIN = """
import numpy as np
from ooco_gym.sim import loop as m
state = m.State(np.array([100]), np.zeros(3))
answers = m.loop(state, m.rule), m.lazy(1)
functions = (m.rule, m.loop, m.lazy)
if hasattr(m.rule, "stats"):
    print(*answers, *(sum(f.stats.cache_hits.values()) for f in functions))
else:
    print(*answers, "python")
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A small copy of the package: what compiles, and a simulator of two files."""
    root = tmp_path / "ooco_gym"
    for folder in ("decisions", "sim", "policy", "envs"):
        (root / folder).mkdir(parents=True)
        (root / folder / "__init__.py").write_text("")
    (root / "__init__.py").write_text("")
    shutil.copy(SOURCES / "private.py", root)
    shutil.copytree(SOURCES / "compile", root / "compile", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "sim" / "helper.py").write_text(HELPER.format(add=1))
    (root / "sim" / "loop.py").write_text(LOOP)
    return root


def run(package: Path, code: str = MAIN, **environment: str) -> list[str]:
    """Runs `code` in a fresh process that imports the copy, and returns the words it prints."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("NUMBA_", "PYTHON"))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False,
                          cwd=package.parent, env={**kept, "PYTHONPATH": str(package.parent), **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_second_process_loads_and_any_changed_file_recompiles(package: Path) -> None:
    assert run(package) == ["112", "2", "0", "0", "0"]
    assert run(package) == ["112", "2", "1", "1", "1"]
    before = os.stat(package / "sim" / "helper.py")
    (package / "sim" / "helper.py").write_text(HELPER.format(add=200))
    os.utime(package / "sim" / "helper.py", (before.st_atime, before.st_mtime))    # a wheel's files share one time
    assert run(package) == ["510", "201", "0", "0", "0"]
    (package / "envs" / "new.py").write_text("x = 1\n")     # the simulator is not built from the environments
    assert run(package) == ["510", "201", "1", "1", "1"]


LATER = """
import sys

import numpy as np
from numba import njit

from ooco_gym.sim import loop as m

heavy = [name for name in ("scipy.linalg", "numba.np.arraymath") if name in sys.modules]
answer = njit(lambda state: m.rule(state, 1) + 1)(m.State(np.array([100]), np.zeros(3)))
print(answer, sum(m.rule.stats.cache_hits.values()), heavy)
"""


def test_what_was_kept_loads_without_the_compiler_and_is_linked_into_what_is_compiled_later(package: Path) -> None:
    run(package)
    assert run(package, LATER) == ["103", "1", "[]"]


def test_compiled_code_that_another_may_have_written_is_not_run(package: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    run(package, NUMBA_CACHE_DIR=str(cache))
    folders = {path.parent for path in cache.rglob("*.nbc")}
    assert {folder.stat().st_mode & 0o777 for folder in folders} == {0o700}
    for folder in folders:
        folder.chmod(0o777)
    assert run(package, NUMBA_CACHE_DIR=str(cache)) == ["112", "2", "0", "0", "0"]
    done = subprocess.run([sys.executable, "-c", MAIN], capture_output=True, text=True, check=True, cwd=package.parent,
                          env={**os.environ, "PYTHONPATH": str(package.parent), "NUMBA_CACHE_DIR": str(cache)})
    assert done.stderr.count("can be written by others") == 1, done.stderr


def test_a_cache_file_with_flipped_bits_is_compiled_again(package: Path) -> None:
    """In the middle is LLVM's bitcode, which LLVM does not check: it would say so at every start from then on."""
    run(package)
    for path in package.rglob("*.nbc"):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 0b100
        path.write_bytes(content)
    assert run(package) == ["112", "2", "0", "0", "0"]
    assert run(package) == ["112", "2", "1", "1", "1"]


def test_a_start_that_cannot_keep_what_it_compiled_says_so_once(package: Path) -> None:
    (package / "sim" / "__pycache__").write_text("a file where the folder would be: not even root writes here")
    done = subprocess.run([sys.executable, "-c", MAIN], capture_output=True, text=True, cwd=package.parent, check=True,
                          env={**os.environ, "PYTHONPATH": str(package.parent), "NUMBA_CACHE_DIR": "/dev/null/a",
                               "HOME": "/dev/null/b", "XDG_CACHE_HOME": "/dev/null/c"})
    assert done.stdout.split() == ["112", "2", "0", "0", "0"]
    assert done.stderr.count("compiled code cannot be cached") == 1 and "NUMBA_CACHE_DIR" in done.stderr


def test_without_compilation_the_simulator_says_what_is_wrong() -> None:
    code = "from ooco_gym import Scenario, simulate; simulate(Scenario(duration_s=5.0, rate_scale=0.01), 'ooco')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": str(SOURCES.parent), "NUMBA_DISABLE_JIT": "1"})
    assert "UserError: NUMBA_DISABLE_JIT is set" in done.stderr


@pytest.mark.parametrize(("module", "name"), [("typed_passes", "NativeLowering"), ("event", "install_timer")])
def test_a_numba_without_its_private_parts_is_told_which_one_has_them(package: Path, module: str, name: str) -> None:
    done = subprocess.run([sys.executable, "-c", GONE.format(module=module, name=name)], capture_output=True, text=True,
                          check=False, cwd=package.parent, env={**os.environ, "PYTHONPATH": str(package.parent)})
    assert done.returncode == 1
    assert f"numba {numba.__version__} lacks something" in done.stderr.splitlines()[-1]
    project = tomllib.loads((SOURCES.parent / "pyproject.toml").read_text())["project"]
    bounds = next(one for one in project["dependencies"] if one.startswith("numba"))
    assert name in done.stderr and done.stderr.rstrip().endswith(f"install {bounds}")


def test_several_processes_at_once(package: Path) -> None:
    starts = [subprocess.Popen([sys.executable, "-c", MAIN], stdout=subprocess.PIPE, text=True, cwd=package.parent,
                               env={**os.environ, "PYTHONPATH": str(package.parent)}) for _ in range(3)]
    assert [start.communicate()[0].split()[:2] for start in starts] == [["112", "2"]] * 3
    assert run(package) == ["112", "2", "1", "1", "1"]


def test_rule_outside_follows_its_helpers(tmp_path: Path) -> None:
    (tmp_path / "outside_helper.py").write_text(HELPER.format(add=1))
    (tmp_path / "outside_rule.py").write_text(
        "from ooco_gym.compile import jit\nfrom outside_helper import step\n\n"
        "@jit('int64(int64)')\ndef rule(x):\n    return step(x)\n")
    code = "import outside_rule as o; print(o.rule(1), sum(o.rule.stats.cache_hits.values()))"
    def once() -> list[str]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(SOURCES.parent)])}
        return subprocess.check_output([sys.executable, "-c", code], text=True, cwd=tmp_path, env=environment).split()
    assert [once(), once()] == [["2", "0"], ["2", "1"]]
    (tmp_path / "outside_helper.py").write_text(HELPER.format(add=5))
    assert once() == ["6", "0"]


def test_old_digests_are_removed(tmp_path: Path) -> None:
    for i in range(KEPT + 5):
        KeyedFiles(tmp_path / f"ooco_gym-x-{i}", "ooco_gym-x-", "f-1").save(("key",), i)
        os.utime(tmp_path / f"ooco_gym-x-{i}", (i, i))
    left = {path.name for path in tmp_path.iterdir()}
    newest = {f"ooco_gym-x-{i}" for i in range(4, KEPT + 5)}
    assert left == newest
    assert KeyedFiles(tmp_path / "ooco_gym-x-12", "ooco_gym-x-", "f-1").load(("key",)) == 12


@inner
def _halved(x):
    return x // 2


@inlined
def _collatz(x):
    return _halved(x) if x % 2 == 0 else 3 * x + 1


def test_parts_are_compiled_with_what_python_calls() -> None:
    @njit
    def steps(x):
        count = 0
        while x != 1:
            x = _collatz(x)
            count += 1
        return count

    assert steps(27) == 111
    parts = [next(iter(part.overloads.values())).library for part in (_halved, _collatz)]
    assert all(isinstance(part, Part) for part in parts)
    # numba by itself hands forced inlining down: all that an inlined function calls would be inlined by force
    forced = [one.name for one in parts[1]._get_module_for_linking().functions if b"alwaysinline" in one.attributes]
    assert len(forced) == 1
    assert "_collatz" in forced[0]


SAYS = """
from numba.core import event

from ooco_gym.compile import notice
from ooco_gym.sim import helper

said, again = [], []
with (event.install_listener("numba:compile", notice.Notice(1e-6, 1e6, said.append)),
      event.install_listener("numba:compile", notice.Notice(1e-6, 1e-6, again.append))):
    import numba

    other = numba.njit(lambda x: x + 1)
    other(1)
    before = len(said)
    from ooco_gym.compile import compile_later
    from ooco_gym.sim import loop
    compile_later("ooco_gym.sim.loop")
print(before, len(said), notice.compiled(), len(again) > 1)
"""


def test_compiling_is_said_now_and_then_and_not_where_it_is_kept(package: Path) -> None:
    assert run(package, SAYS) == ["0", "1", "2", "True"]
    assert run(package, SAYS) == ["0", "0", "0", "False"]
