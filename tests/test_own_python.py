"""What Python of the user's own may do wrong: it ends the process, or says text or NaN where a number belongs."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

from agents.evaluation.players import environment_of, start_of
from ooco_gym.cli import main
from ooco_gym.errors import UserError
from ooco_gym.study.runs import in_processes
from ooco_gym.vllm import deciding
from ooco_gym.vllm.deciding import MOST_IN_A_ROW, STALL_S, Decider
from ooco_gym.vllm.settings import Settings
from tests.runtime.test_vllm_parts import engine_of, waits

ENVIRONMENT = """
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
    text = ENVIRONMENT.format(name=name, reward=reward, summary=summary, answer=answer)
    (folder / f"{name}.py").write_text(text)
    splits = "{train: [1], validation: [2], test: [3]}"
    (folder / "env.yaml").write_text(f"id: {name}.py:{name}/Own-v0\nsplits: {splits}\n")
    return f"{name}.py", f"{name}.py:{name}/Own-v0"


@pytest.mark.parametrize(("changes", "said"), [
    ({"reward": "float('nan')"}, "the environment's reward is 'nan'; expected a finite number"),
    ({"reward": "'much'"}, "the environment's reward is 'much'; expected a finite number"),
    ({"summary": "'violation_rate': float('nan')"}, "violation_rate of window 0 of seed 3 is 'nan'"),
    ({"summary": "'violation_rate': 'none'"}, "violation_rate of window 0 of seed 3 is 'None'"),
    ({"answer": "'no'"}, "is 'no'; expected a finite number"),
    ({"answer": "float('nan')"}, "is 'nan'; expected a finite"),
    ({"answer": "[1, 2]"}, "is '[1, 2]'; expected a finite number"),
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
    assert "the environment's reward is" in capsys.readouterr().err


def exits(code: Any) -> None:
    """Ends the process."""
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
    kept = json.loads(next((Path(__file__).parents[1] / "results" / "suite").glob("*.json")).read_text("utf-8"))
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
