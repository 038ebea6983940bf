"""The demo goes the whole way on minutes of simulated time: with a gate learned in seconds, and without learning."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

import agents.settings
from experiments.demo import evaluation_words, found_words, gate_section, missing_section, training_words
from ooco_gym.cli import main
from ooco_gym.errors import UserError

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
    assert "Gates on held-out windows" in page and "Load over time" in page
    assert "train_s=0 leaves learning out" in shown and "Policies on the same load" in shown
    assert len(page) < 8_000_000
    begin = page[page.index("<body>"):]
    assert begin.index("the online promises (at most 3 % broken)") < begin.index("plotly-graph-div")
    assert begin.index("plotly-graph-div") < begin.index("Headline</h2>"), "it begins with a sentence and a picture"


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
    assert "A first learned gate" in page and "held-out windows" in page


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


def test_words_on_the_gate_follow_the_verdicts():
    won = " ".join(evaluation_words(evaluation({"offline_reference_gpu_s_per_s": "better"})))
    lost = " ".join(evaluation_words(evaluation({"offline_reference_gpu_s_per_s": "worse"})))
    out = " ".join(evaluation_words(evaluation({}, feasible=False)))
    assert "offline service +0.5 (+0.4 to +0.6), better" in won and "does not beat" not in won
    assert "number 1 of 3" in won
    assert "So the gate does not beat ooco" in lost
    assert "it is not ranked" in out
    assert "ooco and always score the same in every figure" in won


def records(label, rates):
    """Records of one policy with given violation rates."""
    return [SimpleNamespace(label=label, seed=seed, summary={"online": {"violation_rate": rate},
                                                             "offline": {"output_tokens_per_s": 2000.0}})
            for seed, rate in enumerate(rates)]


def test_one_sentence_says_what_was_found():
    groups = {"ooco": records("ooco", [0.01, 0.012]), "base_pd": records("base_pd", [0.7, 0.72]),
              "empty": records("empty", [None, None])}
    trained = {"learning_wall_s": 59.6}
    found = found_words(groups, 0.03, evaluation({}), trained)
    assert found == ("On these requests the online promises (at most 3 % broken) are kept by ooco with 2,000 offline "
                     "tokens a second: base_pd breaks 71.00 %, empty has no online request on some seed; a gate that "
                     "learned for 60 s shows no difference in offline service from ooco.")
    won = evaluation({"offline_reference_gpu_s_per_s": "better"})
    assert found_words(groups, 0.03, won, trained).endswith("60 s serves more offline work than ooco.")
    assert found_words(groups, 0.03, evaluation({}, feasible=False), trained).endswith("60 s is not ranked.")
    alone = found_words({"base_pd": groups["base_pd"]}, 0.03, evaluation({}), None)
    assert "are kept by no policy: base_pd breaks 71.00 %." in alone


def test_sections_on_gates_have_tables_and_figures():
    trained = {"agent": "maskable_ppo", "env": "ooco_gym/Gating-v0", "wall_s": 3.0, "timesteps": 100, "episodes": 2,
               "best": None, "validation": [{"timesteps": 40, "reward": 1.0, "violation_rate": 0.0},
                                            {"timesteps": 100, "reward": 2.0, "violation_rate": 0.0}]}
    options = {"env": {"name": "gating"}, "train_seed": 1, "train_s": 3.0, "rules": ["ooco", "always"], "episodes": 4}
    section = gate_section(trained, evaluation({}), options)
    assert [table.title for table in section.tables] == ["Held-out windows", "Differences to ooco, window by window"]
    assert len(section.figures) == 2
    assert "ooco-gym train" in section.commands[0]
    copied = {**trained, "imitation": {"rule": "ooco", "decisions": 1000, "agreement": 0.97}}
    assert "a copy of the gate of ooco (1,000 decisions watched, 97 %" in " ".join(training_words(copied))
    assert "copy" not in " ".join(training_words(trained))
    late = {**trained, "validation": [{**one, "timesteps": 100} for one in trained["validation"]]}
    assert len(gate_section(late, evaluation({}), options).figures) == 1
    assert missing_section("no torch", evaluation({})).warning == "No gate was trained: no torch."
