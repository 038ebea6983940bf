"""The demo goes the whole way on minutes of simulated time: with a gate learned in seconds, and without learning."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import agents.settings
from experiments.demo import _gate_words, gate_section, training_words
from ooco_gym.cli import main
from ooco_gym.errors import UserError
from ooco_gym.resources import load_yaml

SMALL = ["demo", "duration_s=120", "rate_scale=0.02", "offline.rate=1",
         "env.window_s=20", "env.warmup_s=10", "rules=[ooco,never]", "episodes=2", "workers=1"]
TWO = ["policies=[ooco,base_pd]", "seeds=[1]"]


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OOCO_GYM_CACHE", str(tmp_path / "cache"))


def test_demo_without_learning(capsys):
    assert main([*SMALL, *TWO, "train_s=0", "out=demo"]) == 0
    summary = json.loads(Path("demo/summary.json").read_text())
    page = Path("demo/report.html").read_text(encoding="utf-8")
    shown = capsys.readouterr().out
    assert summary["train"] is None
    assert [one["policy"] for one in summary["comparison"]] == ["ooco", "base_pd"]
    assert {row["policy"] for row in summary["evaluation"]["results"]} == {"ooco", "never"}
    assert "No gate was trained: train_s=0 leaves learning out." in page
    assert "ooco_gym/Gating-v0, 2 windows" in page and "TTFT P99 by arrival" in page
    assert "train_s=0 leaves learning out" in shown and "Difference to ooco" in shown
    assert len(page) < 200_000
    begin = page[page.index("<body>"):]
    assert begin.index("of the online requests in time") < begin.index("<table"), "it begins with what answers"
    assert "ooco-gym demo rate_scale=" in page or "ooco-gym demo offline.rate=" in page


def test_demo_says_what_is_not_installed(monkeypatch, capsys):
    def missing(purpose):
        raise UserError("torch is not installed, which 'train' needs; install with: pip install 'ooco-gym[train]'")

    monkeypatch.setattr(agents.settings, "require", missing)
    assert main([*SMALL, *TWO, "out=demo"]) == 0
    assert "pip install" in capsys.readouterr().out
    assert "torch is not installed" in Path("demo/report.html").read_text(encoding="utf-8")


def test_demo_refuses_what_makes_no_sense(capsys):
    for words, message in ((["train_s=-1"], "train_s=-1"), (["policies=[oco]"], "did you mean 'ooco'"),
                           (["seeds=0"], "seeds=0")):
        assert main([*SMALL, *words, "out=demo"]) == 2
        assert message in capsys.readouterr().err
        assert not Path("demo").exists()


@pytest.mark.slow
def test_demo_trains_and_evaluates_a_gate():
    pytest.importorskip("sb3_contrib")
    small = ["agent.n_envs=2", "agent.n_steps=16", "agent.batch_size=32", "agent.scale_decisions=32",
             "agent.imitate.decisions=256", "agent.imitate.epochs=1"]
    assert main([*SMALL, *TWO, *small, "train_s=2", "out=demo"]) == 0
    summary = json.loads(Path("demo/summary.json").read_text())
    assert summary["train"]["timesteps"] > 0
    assert {row["policy"] for row in summary["evaluation"]["results"]} == {"gate", "ooco", "never"}
    assert Path("demo/gate/policy.zip").is_file()
    page = Path("demo/report.html").read_text(encoding="utf-8")
    assert "A first learned gate" in page and "A gate that learned for" in page


def evaluation(verdicts, feasible=True):
    """An evaluation's summary with given verdicts for the learned gate."""
    metrics = ("episode_reward", "offline_reference_gpu_s_per_s", "offline_output_tokens_per_s", "violation_rate",
               "wasted_tokens_per_s")
    means = {"gate": 1.0, "ooco": 0.5, "always": 0.5}
    results = [{"policy": policy, "env": "gating", "metric": metric, "mean": mean, "ci_low": mean - 0.1,
                "ci_high": mean + 0.1, "n_seeds": 2, "n_windows": 4} for policy, mean in means.items()
               for metric in metrics]
    policies = [{"policy": policy, "learned": policy == "gate", "violation_upper_limit": 0.01,
                 "feasible": feasible or policy != "gate",
                 "rank": None if policy == "gate" and not feasible else place + 1}
                for place, policy in enumerate(means)]
    paired = [{"policy": policy, "reference": "ooco", "metric": metric, "mean_difference": 0.5, "ci_low": 0.4,
               "ci_high": 0.6, "n_windows": 4, "verdict": verdicts.get(metric, "no difference shown")}
              for policy in ("gate", "always") for metric in metrics]
    return {"env": "ooco_gym/Gating-v0", "episodes": 4, "results": results, "policies": policies, "paired": paired,
            "reference": "ooco", "violation_limit": 0.03, "confidence": 0.95}


def test_one_sentence_says_what_the_gate_adds():
    trained = {"learning_wall_s": 59.6, "imitation": {"rule": "ooco"}, "best": {"timesteps": 64}}
    assert _gate_words(evaluation({}), trained) == (" A gate that learned for 60 s shows no difference in offline "
                                                    "service from `ooco`.")
    won = evaluation({"offline_reference_gpu_s_per_s": "better"})
    assert _gate_words(won, trained).endswith("60 s serves more offline work than `ooco`.")
    assert _gate_words(evaluation({}, feasible=False), trained).endswith("60 s is late too often to be ranked.")
    assert not _gate_words(evaluation({}), None)
    begun = {**trained, "best": {"timesteps": 0}}
    assert "for 60 s, still the copy of ooco that it began as, shows no" in _gate_words(evaluation({}), begun)


def test_the_section_on_the_gate_has_its_curve_and_commands():
    trained = {"agent": "maskable_ppo", "env": "ooco_gym/Gating-v0", "wall_s": 3.0, "timesteps": 100, "episodes": 2,
               "best": None, "validation": [{"timesteps": 40, "reward": 1.0, "violation_rate": 0.0},
                                            {"timesteps": 100, "reward": 2.0, "violation_rate": 0.0}]}
    options = {"env": {**load_yaml("env", "gating"), "window_s": 20.0}, "train_seed": 1, "train_s": 3.0, "workers": 1,
               "agent": load_yaml("agent", "maskable_ppo"), "logger": load_yaml("logger", "none"),
               "rules": ["ooco", "always"], "episodes": 4}
    section = gate_section(trained, options)
    assert len(section.charts) == 2
    assert section.commands[0].startswith("ooco-gym train env.window_s=20.0 total_timesteps=")
    assert section.commands[1] == ("ooco-gym evaluate env.window_s=20.0 'policies=[gate,ooco,always]' episodes=4 "
                                   "workers=1")
    copied = {**trained, "imitation": {"rule": "ooco", "decisions": 1000, "agreement": 0.97}}
    assert "a copy of the gate of ooco (1,000 decisions watched, 97 %" in " ".join(training_words(copied))
    assert "copy" not in " ".join(training_words(trained))
    late = {**trained, "validation": [{**one, "timesteps": 100} for one in trained["validation"]]}
    assert not gate_section(late, options).charts
