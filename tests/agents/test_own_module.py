"""An environment of a module of one's own, without our simulator: `id: module:mine/Env-v0` in every command."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from tests.agents.gating_double import CONFIG

pytest.importorskip("sb3_contrib")


import ooco_gym
from agents.environments import windows, with_length
from agents.evaluation import evaluate
from agents.evaluation.heuristics import RANDOM, by_name, play_heuristic
from ooco_gym.cli import main
from ooco_gym.envs import imported
from ooco_gym.errors import UserError
from ooco_gym.policy import Param, Policy, registry
from tests.agents.gating_double import SHORT

MODULE = '''
import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Offers(gym.Env):
    """Of some offers, the one of the largest value is the right one; 0 takes none, 1 the first."""

    def __init__(self, offers=3, steps=12):
        self.offers, self.steps = offers, steps
        self.action_space = spaces.Discrete(2 + offers)
        self.observation_space = spaces.Dict({
            "cluster": spaces.Box(0.0, 1.0, (2,), np.float32),
            "candidates": spaces.Box(0.0, 1.0, (offers, 2), np.float32),
            "action_mask": spaces.MultiBinary(2 + offers),
            "decision": spaces.Box(0.0, 1.0, (1,), np.float32)})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.random = np.random.default_rng([seed or 0, (options or {}).get("window", 0)])
        self.left, self.earned = self.steps, 0.0
        return self._drawn(), {"elapsed_s": 0.0}

    def _drawn(self):
        self.values = self.random.random(self.offers)
        return {"cluster": np.array([self.left / self.steps, 0.5], np.float32),
                "candidates": np.stack([self.values, np.ones(self.offers)], 1).astype(np.float32),
                "action_mask": np.ones(2 + self.offers, np.int8), "decision": np.ones(1, np.float32)}

    def action_masks(self):
        return np.ones(2 + self.offers, bool)

    def step(self, action):
        reward = float(self.values[max(0, action - 2)]) if action else 0.0
        self.left, self.earned = self.left - 1, self.earned + reward
        info = {"elapsed_s": 1.0, "cost": 0.0}
        if not self.left:
            info["summary"] = {SUMMARY}
        return self._drawn(), reward, False, not self.left, info


gym.register("mine/Offers-v0", entry_point="own_module_of_a_test:Offers")
'''
WHOLE = ('"violation_rate": 0.0, "offline_reference_gpu_s_per_s": self.earned, "output_tokens_per_s": 0.0, '
         '"wasted_tokens_per_s": 0.0')
TRAIN = ["agent.imitate.rule=null", "agent.scale_decisions=64", "agent.n_envs=2", "agent.n_steps=16",
         "agent.batch_size=16", "total_timesteps=64", "validation.windows=1", "validation.every_steps=64"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the module, on Python's path, and the environment's YAML."""
    (tmp_path / "own_module_of_a_test.py").write_text(MODULE.replace("SUMMARY", WHOLE))
    (tmp_path / "mine.yaml").write_text("id: own_module_of_a_test:mine/Offers-v0\noffers: 4\n"
                                        "splits: {train: [1, 2], validation: [3], test: [4, 5]}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.delitem(sys.modules, "own_module_of_a_test", raising=False)
    return tmp_path


def test_it_is_trained_on_and_evaluated(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "env=mine.yaml", *TRAIN, "out=run"]) == 0
    capsys.readouterr()
    (here / "my.py").write_text("def best(observation):\n"
                                "    return 2 + int(observation['candidates'][:, 0].argmax())\n")
    assert main(["evaluate", "env=mine.yaml", "policies=[run,random actions,my.py:best]", "episodes=2", "workers=2",
                 "out=e"]) == 0
    assert "own_module_of_a_test" not in capsys.readouterr().out  # the title names the environment alone
    rows = json.loads((here / "e" / "summary.json").read_text())["results"]
    reward = {row["policy"]: row["mean"] for row in rows if row["metric"] == "episode_reward"}
    assert reward["my.py:best"] > reward["random actions"] and reward["my.py:best"] >= reward["run"]


def test_random_play_depends_on_the_window_alone() -> None:
    games = windows(CONFIG["splits"]["test"], 3)
    alone = [play_heuristic(CONFIG, RANDOM, [game])[0] for game in games]
    assert play_heuristic(CONFIG, RANDOM, games) == alone
    assert len({one["reward"] for one in alone}) == len(games)


def test_random_play_of_vectors_is_legal_in_every_part() -> None:
    env = SimpleNamespace(action_space=spaces.MultiDiscrete([2, 3]), action_masks=lambda: np.array([1, 0, 0, 0, 1]))
    assert by_name(env, RANDOM).begin(env)().tolist() == [0, 2]


def test_length_of_training_episodes_is_told_to_environments_that_name_one() -> None:
    assert "window_s" not in with_length(CONFIG, 60.0)
    assert with_length({**CONFIG, "window_s": 5.0}, 60.0)["window_s"] == 60.0
    assert with_length({"id": "ooco_gym/PrefillGate-v1"}, 60.0)["window_s"] == 60.0
    assert with_length({**CONFIG, "window_s": 5.0}, None)["window_s"] == 5.0


def test_a_function_is_evaluated_in_it_from_python(here: Path) -> None:
    imported("own_module_of_a_test:mine/Offers-v0")
    env, games = gym.make("mine/Offers-v0", offers=4), {"episodes": 2, "beside": ["random actions"]}
    found = ooco_gym.evaluate(lambda observation: 0, env, seeds=[4, 5], **games)
    assert [one["policy"] for one in found["policies"]] == ["mine", "random actions"]
    named = ooco_gym.evaluate(lambda observation: 0, "mine.yaml", **games)
    assert [row["mean"] for row in named["results"]] == [row["mean"] for row in found["results"]]
    with pytest.raises(UserError, match=r"the held-out seeds of 'mine/Offers-v0'; expected seeds="):
        ooco_gym.evaluate(lambda observation: 0, env, **games)


def test_a_wrapper_that_the_windows_would_lack_is_refused(here: Path) -> None:
    imported("own_module_of_a_test:mine/Offers-v0")
    env = gym.make("mine/Offers-v0")
    for wrapped in (gym.wrappers.FlattenObservation(env), gym.wrappers.TimeLimit(env, 5), gym.Wrapper(env)):
        with pytest.raises(UserError, match=f"wrapped in {type(wrapped).__name__}, which evaluation would not apply"):
            ooco_gym.evaluate(lambda observation: 0, wrapped, seeds=[4], episodes=1)
    found = ooco_gym.evaluate(lambda observation: 0, gym.wrappers.RecordEpisodeStatistics(env), seeds=[4],
                              episodes=2, beside=["random actions"])
    assert found["policies"][0]["policy"] == "mine"


def test_a_module_that_is_not_on_the_path_but_beside_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside_of_a_test.py").write_text("")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
    with pytest.raises(UserError, match="write 'beside_of_a_test.py:mine/Env-v0'"):
        imported("beside_of_a_test:mine/Env-v0")


def test_what_it_lacks_is_said_in_a_sentence(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "env=mine.yaml", "agent.imitate.rule=ooco", *TRAIN[1:], "out=run"]) == 2
    assert "agent.imitate.rule=null training begins from a random policy" in capsys.readouterr().err
    assert main(["train", "env=mine.yaml", "env.offers=5", "+env.ofers=5", *TRAIN, "out=run"]) == 2
    assert "takes no argument 'ofers'" in capsys.readouterr().err
    module = here / "own_module_of_a_test.py"
    module.write_text(MODULE.replace("SUMMARY", WHOLE.partition(',')[0]))
    sys.modules.pop("own_module_of_a_test")
    assert main(["evaluate", "env=mine.yaml", "policies=[random actions]", "episodes=1", "out=e"]) == 2
    assert "'summary' lacks offline_reference_gpu_s_per_s, output_tokens_per_s" in capsys.readouterr().err


# --- What was made elsewhere enters the paired table and commands ----------------------------------------------------
FILE = "def act(observation):\n    return 1\n\n\ndef wrong(observation):\n    return 99\n"
QUICK = {"window_s": 10.0, "warmup_s": 2.0}


def as_base_policy(observation):
    return 1


def test_a_function_is_paired_with_heuristics_on_the_same_windows():
    env = gym.make("ooco_gym/PrefillGate-v1", **QUICK)
    found = ooco_gym.evaluate(as_base_policy, env, split="validation", episodes=4, beside=["base_policy", "random"])
    assert [one["policy"] for one in found["policies"]] == ["mine", "base_policy", "random"]
    assert found["window_s"] == 10.0 and found["seeds"] == SHORT["splits"]["validation"]
    same = next(row for row in found["paired"] if (row["policy"], row["metric"]) == ("mine", "episode_reward"))
    assert same["mean_difference"] == 0.0
    with pytest.raises(UserError, match=r"'mine' returns 99, an illegal action; expected one of \[0, 2"):
        ooco_gym.evaluate(lambda observation: 99, "prefillgate", episodes=1, **QUICK)
    with pytest.raises(UserError, match="unknown environment 'gatin'"):
        ooco_gym.evaluate(as_base_policy, "gatin")
    levels = ooco_gym.evaluate(lambda observation: np.zeros(6, int), "onlinetuning", episodes=1, beside=(), **QUICK)
    assert levels["policies"][0]["learned"]


def test_the_command_takes_a_function_of_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.py").write_text(FILE)
    summary = evaluate.main({"env": {**SHORT, **QUICK}, "policies": ["my.py:act", "base_policy"], "episodes": 2,
                             "workers": 2, "out": str(tmp_path / "out")})
    rows = {row["policy"]: row["mean"] for row in summary["results"] if row["metric"] == "episode_reward"}
    assert rows["my.py:act"] == rows["base_policy"]
    with pytest.raises(UserError, match="no Policy called 'acct'"):
        evaluate.main({"env": {**SHORT, **QUICK}, "policies": ["my.py:acct"], "episodes": 1, "out": str(tmp_path)})


def test_another_packages_policy_simulates_without_a_yaml_here(tmp_path, monkeypatch):
    class Entry:
        def load(self):
            return Policy("theirs", (Param("patience_s", "of nothing", 0.0, 9.0, default=2.0),))

    monkeypatch.setattr(registry, "_entries", lambda: {"theirs": Entry()})
    registry._registered.cache_clear()
    words = ["simulate", "workload=azure_conv", "rate_scale=0.05", "duration_s=20", "warmup_s=2"]
    for policy, more, patience in (("theirs", [], 2.0), ("theirs:patience_s=3", [], 3.0),
                                   ("theirs", ["policy.patience_s=4"], 4.0)):
        assert main([*words, f"policy={policy}", *more, f"out={tmp_path / str(patience)}"]) == 0
        summary = json.loads((tmp_path / str(patience) / "summary.json").read_text())
        assert (summary["policy"], summary["params"]) == ("theirs", {"patience_s": patience})
    registry._registered.cache_clear()
