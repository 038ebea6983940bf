"""A user's folders with the names of ours (`agents`, `baselines`, `experiments`, `conf`) and ours both work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

NAMES = ("agents", "baselines", "experiments", "conf")
THEIRS_FIRST = "import agents.mine, baselines.mine\n"
SCRIPT = """
import gymnasium as gym
import ooco_gym
env = gym.make("ooco_gym/PrefillGate-v1", window_s=20.0, warmup_s=10.0)
agent = ooco_gym.make_agent("ooco", env)
print(agent.predict(env.reset(seed=1)[0])[0] >= 0, ooco_gym.evaluate.__module__)
from agents.learning.vector import GymnasiumVecEnv
from agents import mine
from agents.policies.own import y
print(GymnasiumVecEnv.__module__, mine.x, y)
"""


@pytest.fixture(params=["with __init__.py", "without"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with packages of the user; one has a package of the same name as ours in it."""
    for name in (*NAMES, "agents/policies"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").write_text("x = 'theirs'\n")
        if request.param.startswith("with "):
            (tmp_path / name / "__init__.py").touch()
    (tmp_path / "agents" / "policies" / "own.py").write_text("y = 'nested'\n")
    return tmp_path


def run(*words: str, cwd: Path, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in `cwd`, with nothing of this process's Python paths."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(words, cwd=cwd, env={**kept, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.mark.parametrize("before", ["", THEIRS_FIRST])
def test_a_script_beside_folders_with_our_names_has_both(folder: Path, before: str) -> None:
    (folder / "script.py").write_text(before + SCRIPT)
    words = run(sys.executable, "script.py", cwd=folder).stdout.split()
    assert words == ["True", "agents.evaluation.evaluate", "agents.learning.vector", "theirs", "nested"]


@pytest.mark.parametrize("start", [[sys.executable, "-m", "ooco_gym"],
                                   [str(Path(sys.executable).with_name("ooco-gym"))]])
def test_commands_run_beside_folders_with_our_names(folder: Path, start: list[str]) -> None:
    """Also with the folder on Python's path."""
    run(*start, "evaluate", "env=prefillgate", "policies=[ooco]", "env.window_s=20", "episodes=1", "out=E", cwd=folder,
        PYTHONPATH=".")
    assert (folder / "E" / "summary.json").is_file()


@pytest.mark.parametrize(("file", "code"), [
    ("agents/settings.py", "ooco_gym.evaluate"), ("agents/policies.py", "ooco_gym.evaluate"),
    ("baselines/ooco.py", "ooco_gym.get_policy('ooco')")])
def test_a_module_that_hides_one_of_ours_is_named_with_the_cure(tmp_path: Path, file: str, code: str) -> None:
    package = tmp_path / Path(file).parent
    package.mkdir()
    (package / "__init__.py").touch()
    (tmp_path / file).write_text("z = 1\n")
    (tmp_path / "script.py").write_text(f"import ooco_gym\n{code}\n")
    said = run(sys.executable, "script.py", cwd=tmp_path, code=1).stderr.splitlines()[-1]
    assert f"UserError: '{tmp_path / file}' hides ooco-gym's module '{file[:-3].replace('/', '.')}'" in said
    assert "rename it" in said and "PYTHONSAFEPATH=1" in said


def test_a_command_names_a_module_that_hides_one_of_ours(tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()
    for file in ("__init__.py", "settings.py"):
        (tmp_path / "agents" / file).touch()
    said = run(sys.executable, "-m", "ooco_gym", "evaluate", "policies=[ooco]", "out=E", cwd=tmp_path, code=2).stderr
    assert f"'{tmp_path}/agents/settings.py' hides ooco-gym's module" in said and said.count("\n") == 1
    run(str(Path(sys.executable).with_name("ooco-gym")), "evaluate", "env=prefillgate", "policies=[ooco]",
        "env.window_s=20", "episodes=1", "out=E", cwd=tmp_path)
