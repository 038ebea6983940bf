"""What users get: a wheel with all its configuration, a quick import, and a clear word where a package is shadowed."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("torch", "stable_baselines3", "hydra", "omegaconf", "wandb", "plotly", "pandas", "scipy", "ray", "onnxruntime")


def run(*words: str, cwd: Path, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in `cwd`, with nothing of this process's Python paths."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(words, cwd=cwd, env={**kept, "COLUMNS": "120", **environment}, capture_output=True,
                          text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def test_import_is_light(tmp_path: Path) -> None:
    script = f"import sys, ooco_gym; print([name for name in {HEAVY} if name in sys.modules])"
    assert run(sys.executable, "-c", script, cwd=tmp_path).stdout == "[]\n"


def test_an_extra_brings_what_it_is_said_to_bring() -> None:
    """One table says it to the command line and to agents; what is needed for a purpose comes with the extras named."""
    import tomllib

    from packaging.requirements import Requirement

    from agents import settings as of_agents
    from ooco_gym.cli import job as command_line
    from ooco_gym.errors import EXTRAS, extras_of

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    brought = {name: {Requirement(line).name for line in lines}
               for name, lines in project["optional-dependencies"].items()}
    called = {"PIL": "pillow"}
    for package, extra in EXTRAS.items():
        assert called.get(package, package.replace("_", "-")) in brought[extra], package
    assert command_line.EXTRAS is EXTRAS and EXTRAS["cmaes"] == "tune" and EXTRAS["PIL"] == "render"
    assert {purpose: extras_of(packages) for purpose, packages in of_agents._PACKAGES.items()} == {
        "train": "train", "export": "train,export", "search": "tune", "wandb": "train",
        "tensorboard": "train", "offline": "offline"}


def test_list_of_commands_needs_no_heavy_import(tmp_path: Path) -> None:
    script = ("import sys; from ooco_gym.cli import main; main(['simulate', '--help']); main([]); "
              f"print([name for name in {HEAVY} if name in sys.modules])")
    assert run(sys.executable, "-c", script, cwd=tmp_path).stdout.endswith("[]\n")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new virtual environment with the wheel in it; what it depends on is borrowed from this one."""
    folder = tmp_path_factory.mktemp("clean")
    run(sys.executable, "-m", "venv", "--without-pip", str(folder / "venv"), cwd=folder)
    python = folder / "venv" / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index",
        str(wheel), cwd=folder)
    site = Path(run(str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))",
                    cwd=folder).stdout.strip())
    # Folders named in a .pth file are searched last, and .pth files in them (an editable install) are not read.
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


@pytest.mark.slow
def test_wheel_is_complete(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("ooco_gym", "baselines", "agents", "experiments", "conf"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".yaml", ".typed"):
                assert str(path.relative_to(ROOT)) in inside
    assert not any(name.startswith(("tests/", "docs/")) for name in inside)
    assert any(name.endswith("licenses/LICENSE") for name in inside)


@pytest.mark.slow
def test_wheel_in_a_clean_environment(clean: Path) -> None:
    empty = clean / "empty"
    empty.mkdir()
    program = str(clean / "venv" / "bin" / "ooco-gym")
    listed = run(program, "--help", cwd=empty).stdout
    for command in ("simulate", "capacity", "compare", "train", "evaluate", "export", "perf"):
        assert f"\n{command} " in listed
    shown = run(program, "simulate", "--cfg", "job", "policy=base_pd", cwd=empty).stdout
    assert "name: base_pd" in shown
    script = """
import conf, ooco_gym
from ooco_gym.perf import list_chips
from ooco_gym.policy import list_policies
print(ooco_gym.__file__, conf.__file__, *list_policies(), *list_chips())
"""
    words = run(str(clean / "venv" / "bin" / "python"), "-c", script, cwd=empty).stdout.split()
    assert all(word.startswith(str(clean / "venv")) for word in words[:2])
    assert {"ooco", "ooco_xllm", "base_pd", "online_priority", "always", "ascend_910c", "h800"} <= set(words)
    assert list(empty.iterdir()) == []


@pytest.mark.slow
def test_every_command_of_the_package_is_there(tmp_path: Path) -> None:
    """Each entry point names a function that exists and has a configuration (what it needs may be an extra)."""
    script = """
from ooco_gym.cli.commands import commands, find
from ooco_gym.cli.job import load
for name in commands():
    command = find(name)
    assert callable(load(command.function)), name
    assert command.description and command.config.is_file(), name
print(*commands())
"""
    words = run(sys.executable, "-c", script, cwd=tmp_path).stdout.split()
    assert {"bench", "capacity", "compare", "demo", "evaluate", "export", "perf", "simulate",
            "train"} <= set(words)


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Function-level imports count; those for type checkers alone do not."""
    graph = grimp.build_graph("ooco_gym", "baselines", "agents", "experiments", exclude_type_checking_imports=True,
                              cache_dir=None)
    TopologicalSorter({module: graph.find_modules_directly_imported_by(module) for module in graph.modules}).prepare()


# --- Importing the package loads nothing heavy, and its environments are there whichever way round both are ----------
FOUND = "\nprint('ooco_gym/PrefillGate-v1' in gymnasium.registry)"


def said(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize("code", [
    "import ooco_gym\nimport gymnasium", "import gymnasium\nimport ooco_gym",
    "from ooco_gym.envs import ENVIRONMENTS\nimport gymnasium", "import ooco_gym.runtime\nimport gymnasium",
    "import ooco_gym\nfrom ooco_gym import Scenario\nimport gymnasium",
])
def test_environments_are_registered_in_any_order_of_imports(code):
    assert said(code + FOUND) == ["True"]


def test_an_engine_needs_no_gymnasium():
    assert said("import sys\nsys.modules['gymnasium'] = None\nimport ooco_gym.runtime\nprint('loaded')") == ["loaded"]


def test_the_runtime_loads_no_simulator():
    heavy = ("numba", "scipy", "pyarrow", "yaml", "plotly", "rich", "hydra", "torch", "onnxruntime")
    assert said(f"import sys, ooco_gym.runtime\nprint([one for one in {heavy} if one in sys.modules])") == ["[]"]


def test_names_of_the_package_are_found_when_they_are_asked_for():
    assert said("import ooco_gym\nprint(ooco_gym.Scenario.__name__, ooco_gym.envs.__name__, ooco_gym.Cluster.__name__)"
                ) == ["Scenario", "ooco_gym.envs", "Cluster"]
    assert said("import ooco_gym\nprint(hasattr(ooco_gym, 'nothing'))") == ["False"]


def test_a_run_of_one_seed_loads_what_it_needs_alone(tmp_path):
    """One seed has no interval to bootstrap, its page no plot of Plotly's, and what was compiled before no compiler."""
    run = f"main(['simulate', 'duration_s=10', 'rate_scale=0.01', {f'out={tmp_path}'!r}])"
    heavy = ("scipy.stats", "scipy.special", "scipy.linalg", "plotly", "pyarrow.compute", "pyarrow.dataset", "pandas",
             "hydra_plugins", "torch", "numba.np.arraymath")
    code = f"import sys\nfrom ooco_gym.cli import main\nprint({run})\n"
    said(code)  # compiles what is not compiled yet
    assert said(f"{code}print([one for one in {heavy} if one in sys.modules])")[-2:] == ["0", "[]"]
