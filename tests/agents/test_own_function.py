"""What was made elsewhere enters the paired table and commands: functions, other packages' policies, learned ones."""

import json

import gymnasium as gym
import numpy as np
import pytest

import ooco_gym
from agents.evaluation import evaluate
from ooco_gym.cli.main import main
from ooco_gym.errors import UserError
from ooco_gym.policy import Param, Policy, registry
from tests.agents.gating_double import SHORT

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
