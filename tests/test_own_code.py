"""Python is run where the command line names it, and never because a file that is read back does."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import yaml

from agents.policies.runs import load_run
from ooco_gym import own_code
from ooco_gym.cli import main
from ooco_gym.errors import UserError
from ooco_gym.policy import get_policy

RULE = """
from pathlib import Path
from ooco_gym.policy import get_policy
policy = get_policy('ooco')
with Path(__file__).with_suffix(".ran").open("a") as file:
    file.write("x")
def act(observation):
    return 1
"""
ENVIRONMENT = """
from pathlib import Path
Path(__file__).with_suffix(".ran").touch()
from ooco_gym.envs.prefill_gate import PrefillGateEnv
from ooco_gym.envs.vector import register
class Own(PrefillGateEnv):
    id = "{name}/PrefillGate-v1"
register(Own)
"""
SHORT = ("episodes=1", "seeds=1", "window_s=20", "warmup_s=0")


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A rule and an environment of one's own, of names that no other test has, in the folder where commands run."""
    monkeypatch.chdir(tmp_path)
    name = f"own_{hashlib.sha256(str(tmp_path).encode()).hexdigest()[:8]}"
    (tmp_path / "rule.py").write_text(RULE)
    (tmp_path / f"{name}.py").write_text(ENVIRONMENT.format(name=name))
    return tmp_path


def run_folder(mine: Path, **env: object) -> Path:
    """What looks like the folder of a training, whose configuration was written by hand."""
    folder = mine / "RUN"
    folder.mkdir()
    (folder / "policy.zip").touch()
    env = {"name": "prefillgate", "id": "ooco_gym/PrefillGate-v1", **env}
    (folder / "config.yaml").write_text(yaml.safe_dump({"env": env, "agent": {"name": "maskable_ppo"}}))
    return folder


def search_folder(mine: Path, **policy: object) -> Path:
    """What looks like the folder of a search over whole episodes."""
    folder = mine / "CMA"
    folder.mkdir()
    (folder / "generations.csv").touch()
    (folder / "policy.yaml").write_text(yaml.safe_dump(policy))
    return folder


def refused(capsys: pytest.CaptureFixture[str], code: str, *words: str) -> None:
    """Holds that a command ends in the sentence which says what to add."""
    assert main([*words, "out=OUT"]) == 2
    said = capsys.readouterr().err
    assert f"add code={code}" in said and "Traceback" not in said and said.count("error:") == 1, said


@pytest.mark.parametrize("words", [
    ("simulate", "policy=CMA/policy.yaml", "duration_s=5"), ("suite", "run", "policy=CMA/policy.yaml", "windows=1"),
    ("evaluate", "env=prefillgate", "policies=[CMA]", *SHORT), ("export", "policy=CMA/policy.yaml"),
    ("compare", "policies=[CMA/policy.yaml]", "seeds=1", "duration_s=5")])
def test_the_policy_of_a_search_runs_no_python_of_its_own(mine: Path, capsys: pytest.CaptureFixture[str],
                                                          words: tuple[str, ...]) -> None:
    """Also where it goes by a YAML that it extends."""
    (mine / "other.yaml").write_text("file: rule.py\n")
    for told in ({"file": str(mine / "rule.py")}, {"extends": str(mine / "other.yaml")}):
        search_folder(mine, **told)
        refused(capsys, str(mine / "rule.py"), *words)
        assert not (mine / "rule.ran").exists()
        (mine / "CMA" / "policy.yaml").unlink()
        (mine / "CMA" / "generations.csv").unlink()
        (mine / "CMA").rmdir()


def test_it_runs_where_the_command_line_names_it_too(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By `code=`, in this process and in workers, and in Python where it was imported."""
    search_folder(mine, file=str(mine / "rule.py"))
    words = ("compare", "policies=[CMA/policy.yaml,base_pd]", "seeds=2", "duration_s=5", "workers=2", "cache=false")
    assert main([*words, "code=rule.py", "out=OUT"]) == 0, capsys.readouterr().err
    assert get_policy("CMA/policy.yaml").values == get_policy("ooco").values
    other = mine / "other.py"
    other.write_text(RULE)
    (mine / "CMA" / "policy.yaml").write_text(f"file: {other}\n")
    with pytest.raises(UserError, match="names Python to run"):
        get_policy("CMA/policy.yaml")
    assert not other.with_suffix(".ran").exists()


@pytest.mark.parametrize("words", [("evaluate", "env=prefillgate", "policies=[RUN]", *SHORT), ("export", "policy=RUN"),
                                   ("suite", "run", "policy=RUN", "windows=1")])
@pytest.mark.parametrize("place", ["id", "base_policy", "module"])
def test_the_configuration_of_a_run_runs_no_python_of_its_own(mine: Path, capsys: pytest.CaptureFixture[str],
                                                              words: tuple[str, ...], place: str) -> None:
    """Neither an environment's file or module, nor a policy beside it."""
    own = next(mine.glob("own_*.py"))
    env = {"id": {"id": f"{own}:{own.stem}/PrefillGate-v1"}, "base_policy": {"base_policy": f"{mine}/rule.py"},
           "module": {"id": f"{own.stem}:{own.stem}/PrefillGate-v1"}}[place]
    run_folder(mine, **env)
    code = {"id": str(own), "base_policy": str(mine / "rule.py"), "module": own.stem}[place]
    refused(capsys, code, *words)
    assert not [*mine.glob("*.ran")]


def test_nor_from_python(mine: Path) -> None:
    """A run's folder is data there as well."""
    own = next(mine.glob("own_*.py"))
    with pytest.raises(UserError, match="names Python to run"):
        load_run(run_folder(mine, id=f"{own}:{own.stem}/PrefillGate-v1"))
    assert not [*mine.glob("*.ran")]


def test_what_the_user_names_runs(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On the command line, and in configurations that it names: as before, without a further word."""
    Path("rule.yaml").write_text("file: rule.py\nslo_margin: 0.8\n")
    for words in (("policy=rule.py",), ("policy=rule.yaml",)):
        assert main(["simulate", *words, "duration_s=5", "out=OUT"]) == 0, capsys.readouterr().err
    own = next(mine.glob("own_*.py"))
    Path("env.yaml").write_text(f"id: {own.name}:{own.stem}/PrefillGate-v1\nsplits: {{test: [1]}}\n")
    assert main(["evaluate", "env=env.yaml", "policies=[never]", *SHORT, "out=E"]) == 0, capsys.readouterr().err
    assert own.with_suffix(".ran").exists()


def test_only_commands_set_what_is_named(mine: Path) -> None:
    """What a command's words named is forgotten with it: from Python everything runs that a call names."""
    with own_code.named_in(["policy=rule.yaml"]), pytest.raises(UserError, match="names Python to run"):
        get_policy("rule.py")
    assert get_policy("rule.py").file == "rule.py"
