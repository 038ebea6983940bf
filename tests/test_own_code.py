"""Python is run where the command line names it, and never because a file that is read back does."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from agents.evaluation.players import environment_of, start_of
from agents.policies.runs import load_run
from ooco_gym import own_code
from ooco_gym.cli import main
from ooco_gym.errors import UserError
from ooco_gym.policy import get_policy
from ooco_gym.study.runs import in_processes
from ooco_gym.vllm import deciding
from ooco_gym.vllm.deciding import MOST_IN_A_ROW, STALL_S, Decider
from ooco_gym.vllm.settings import Settings
from tests.runtime.test_vllm_parts import engine_of, waits

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


# --- What Python of the user's own may do wrong: it ends the process, or says text or NaN where a number belongs -----
ENVIRONMENT_OWN_PYTHON = """
import gymnasium as gym
import numpy as np
class Own(gym.Env):
    observation_space = gym.spaces.Dict({{
        "cluster": gym.spaces.Box(0, 1, (2,)), "candidates": gym.spaces.Box(0, 1, (2, 3)),
        "action_mask": gym.spaces.MultiBinary(4), "decision": gym.spaces.Box(0, 1, (1,))}})
    action_space = gym.spaces.Discrete(4)
    def observed(self):
        return {{"cluster": np.zeros(2, np.float32), "candidates": np.zeros((2, 3), np.float32),
                "action_mask": np.ones(4, np.int8), "decision": np.ones(1, np.float32)}}
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observed(), {{"elapsed_s": 0.0}}
    def action_masks(self):
        return np.ones(4, bool)
    def step(self, action):
        summary = {{"violation_rate": 0.0, "offline_reference_gpu_s_per_s": 1.0, "output_tokens_per_s": 1.0,
                   "wasted_tokens_per_s": 0.0, {summary}}}
        return self.observed(), {reward}, False, True, {{"summary": summary, "elapsed_s": 1.0}}
gym.register("{name}/Own-v0", Own)
def act(observation):
    return {answer}
"""


def own(folder: Path, reward: str = "0.0", summary: str = "", answer: str = "1") -> tuple[str, str]:
    """A file with an environment and a function, of a name that no other test has; that of the environment."""
    name = f"own_{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"
    text = ENVIRONMENT_OWN_PYTHON.format(name=name, reward=reward, summary=summary, answer=answer)
    (folder / f"{name}.py").write_text(text)
    splits = "{train: [1], validation: [2], test: [3]}"
    (folder / "env.yaml").write_text(f"id: {name}.py:{name}/Own-v0\nsplits: {splits}\n")
    return f"{name}.py", f"{name}.py:{name}/Own-v0"


@pytest.mark.parametrize(("changes", "said"), [
    ({"reward": "float('nan')"}, "the environment's reward=nan must be a number"),
    ({"reward": "'much'"}, "the environment's reward='much' must be a number"),
    ({"summary": "'violation_rate': float('nan')"}, "violation_rate of window 0 of seed 3=nan"),
    ({"summary": "'violation_rate': 'none'"}, "violation_rate of window 0 of seed 3=null"),
    ({"answer": "'no'"}, "='no' must be a number"),
    ({"answer": "float('nan')"}, "=nan must be a number"),
    ({"answer": "[1, 2]"}, "=[1, 2] must be a number"),
    ({"answer": "__import__('sys').exit(0)"}, "Python of your own ended the process (SystemExit: 0)"),
    ({"reward": "__import__('sys').exit('tired')"}, "Python of your own ended the process (SystemExit: tired)")])
def test_what_is_no_number_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
                                   changes: dict[str, str], said: str) -> None:
    """Of a reward, a summary and an answer; an end of the process is no good end of the command."""
    monkeypatch.chdir(tmp_path)
    file, _ = own(tmp_path, **changes)
    assert main(["evaluate", "env=env.yaml", f"policies=[{file}:act]", "episodes=1", "out=OUT"]) == 2
    shown = capsys.readouterr().err
    assert said in shown and "Traceback" not in shown, shown


@pytest.mark.parametrize("reward", ["float('nan')", "'much'"])
def test_nothing_is_learned_from_what_is_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reward: str,
                                                   capsys: pytest.CaptureFixture[str]) -> None:
    """The training ends in a sentence."""
    pytest.importorskip("stable_baselines3")
    monkeypatch.chdir(tmp_path)
    own(tmp_path, reward=reward)
    words = ["train", "env=env.yaml", "agent.imitate.rule=null", "agent.n_envs=2", "agent.n_steps=8",
             "total_timesteps=16", "agent.batch_size=8"]
    assert main([*words, "out=RUN"]) == 2
    assert "the environment's reward=" in capsys.readouterr().err


def exits(code: Any) -> None:
    raise SystemExit(code)


def test_a_worker_that_ends_itself_ends_nobody_else() -> None:
    """The exception would be raised in the process that waits for it, and end it with code 0."""
    with pytest.raises(UserError, match=r"ended the process \(SystemExit: 0\)"):
        list(in_processes(exits, [0, 0], 2))


@pytest.mark.parametrize("text", ["raise SystemExit(0)\n", "import sys\nsys.exit(3)\n"])
def test_a_file_that_ends_the_process_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str,
                                                  capsys: pytest.CaptureFixture[str]) -> None:
    """Where configurations are composed, and where commands run."""
    monkeypatch.chdir(tmp_path)
    Path("ends.py").write_text(text)
    for words in (["simulate", "policy=ends.py"], ["compare", "policies=[ends.py]", "seeds=1"]):
        assert main([*words, "out=OUT"]) == 2
        assert "Python of your own ended the process" in capsys.readouterr().err


def test_no_rule_ends_a_server() -> None:
    class Ends:
        values: ClassVar[dict[str, Any]] = {}

        def compose(self, engine: Any, belief: Any) -> Any:
            raise SystemExit(1)

    made = Decider(Settings())
    made.rule = Ends()
    assert made.decide(engine_of, waits) is None and made.watch.counts["fallbacks:raised"] == 1

def test_a_rule_that_stalls_is_counted_and_rests() -> None:
    """After the first time, when its code may be loaded, what comes late is not followed."""
    now = [0.0]

    class Slow:
        values: ClassVar[dict[str, Any]] = {}

        def compose(self, engine: Any, belief: Any) -> Any:
            now[0] += 2 * STALL_S
            return deciding.make_rule("deadline", {}).compose(engine, belief)

    made = Decider(Settings(), clock=lambda: now[0])
    made.rule = Slow()
    assert made.decide(engine_of, waits) is not None
    for _ in range(MOST_IN_A_ROW + 1):
        assert made.decide(engine_of, waits) is None
    assert made.watch.counts["fallbacks:stalled"] == MOST_IN_A_ROW and made.watch.counts["rests"] == 1


def test_a_result_with_text_in_it_is_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                               capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    kept = json.loads(next((Path(__file__).parents[1] / "results" / "suite" / "v1").glob("*.json")).read_text("utf-8"))
    for change in ({"tasks": "none"}, {"tasks": {"x": {}}}, {"references": {}}, {"by_task": "NaN"}):
        (tmp_path / "mine").mkdir(exist_ok=True)
        (tmp_path / "mine" / "result.json").write_text(json.dumps({**kept, **change}))
        assert main(["suite", "table", "results=mine", "out=OUT"]) == 2
        shown = capsys.readouterr().err
        assert "was edited" in shown and "Traceback" not in shown, shown


@pytest.mark.parametrize("best", ["text", [1], {"timesteps": "many"}])
def test_a_summary_with_text_says_nothing(tmp_path: Path, best: Any) -> None:
    """Of what a policy has learned."""
    (tmp_path / "summary.json").write_text(json.dumps({"best": best}))
    (tmp_path / "config.yaml").write_text("env: text\nagent: [1]\n")
    assert environment_of(tmp_path) == {} and start_of(tmp_path) is None
