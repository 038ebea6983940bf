"""The suite: tasks are frozen, a result is checked by playing again, an edited one is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from agents import suite
from agents.benchmark import summarised, trainings
from agents.score.windows import scenarios_of, tracks_for
from ooco_gym.cli import main
from ooco_gym.documents import read_yaml
from ooco_gym.errors import UserError
from ooco_gym.files import write_json
from ooco_gym.resources import conf_root, load_yaml
from ooco_gym.simulation import simulate

ROOT = Path(__file__).parents[2]
V1, V2 = load_yaml("suite", "v1"), load_yaml("suite", "v2")
FUNCTION = "def act(observation):\n    return int(observation['action_mask'].argmax())\n"


def config(out, **changes):
    settings = {key: value for key, value in load_yaml("", "suite").items() if key != "defaults"}
    return {**settings, "suite": V1, "workers": 1, "cache": False, "out": str(out), **changes}


def test_the_tasks_of_version_1_do_not_change():
    assert len(V1["tasks"]) == 10 and suite._digest(V1)[:12] == "eb5897844f26"


def test_version_2_has_them_and_three_tracks_more():
    assert len(V2["tasks"]) == 19 and suite._digest(V2)[:12] == "b3e7049e1921"
    assert {name: V2["tasks"][name] for name in V1["tasks"]} == V1["tasks"]
    assert tracks_for(V2, True) == ["mixed", "routing", "scaling", "jobs"] and tracks_for(V2, False) == ["pools"]


@pytest.mark.parametrize(("task", "policy"), [("scaling_code", "deadline:scale=hpa"), ("jobs_rollouts", "vllm_fcfs")])
def test_what_counts_in_a_track_of_version_2(task, policy, tmp_path):
    """Offline service for each chip that is paid for, or how soon jobs are done."""
    short = {**V2, "horizon_s": 10.0, "warmup_s": 20.0}
    track, _ = task.split("_")
    suite.main(config(tmp_path, suite=short, policy=policy, track=track, tasks=task, windows=2))
    found = json.loads((tmp_path / suite.RESULT_FILE).read_text())["tasks"][task]
    scenarios = scenarios_of(short, task, [5001, 5002])
    assert [one.duration_s for one in scenarios] == [120.0 if track == "scaling" else 10.0] * 2
    told = simulate(scenarios[0], policy).summary
    if track == "scaling":
        assert found["service"][0] == told["offline"]["reference_gpu_s_per_s"] / told["fleet"]["chips"]
    else:
        assert found["service"][0] == 1 / told["jobs"]["completion_mean_s"]
        assert found["arrived"][0] == told["jobs"]["arrived"] > 0


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    out = tmp_path_factory.mktemp("suite")
    summary = suite.main(config(out, policy="slack", tasks=["pools_calm", "pools_memory"], windows=2))
    return summary, out / suite.RESULT_FILE


def test_a_result_is_scored_against_its_reference(result):
    summary, path = result
    held = json.loads(path.read_text())
    assert summary["track"] == "pools" and not summary["complete"] and held["title"] == "slack"
    assert all(len(one["service"]) == 2 for one in held["tasks"].values())
    assert summary["iqm"]["ci_low"] <= summary["iqm"]["value"] <= summary["iqm"]["ci_high"]


@pytest.mark.parametrize(("change", "words"), [
    ({"suite_sha256": "0"}, "whose tasks differ from suite v1"),
    ({"iqm": {"value": 9.0}}, "its scores do not match its windows")])
def test_a_result_of_another_suite_or_with_other_scores_is_refused(change, words, result, tmp_path):
    held = json.loads(result[1].read_text())
    write_json(tmp_path / "result.json", {**held, **change})
    with pytest.raises(UserError, match=words):
        suite.main(config(tmp_path, action="table", results=str(tmp_path)))


def test_a_task_that_breaks_the_limit_counts_as_none():
    window = {"service": [1.0, 2.0], "violated": [0, 1], "arrived": [100, 100]}
    late = {"service": [5.0, 5.0], "violated": [9, 9], "arrived": [100, 100]}
    played, references = {"pools_calm": window, "pools_peak": late}, {"pools_calm": window, "pools_peak": window}
    found = suite.scores(V1, played, references)
    assert [one["score"] for one in found["by_task"].values()] == [1.0, 0.0]
    assert [one["feasible"] for one in found["by_task"].values()] == [True, False]
    assert found["improvement"]["value"] == pytest.approx(np.mean([0.5, 0.5, 0.0, 0.0]))


def test_a_function_answers_the_decisions_of_its_track(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(FUNCTION)
    short = {**V1, "horizon_s": 20.0, "warmup_s": 5.0}
    summary = suite.main(config(tmp_path, suite=short, policy="mine.py:act", track="pools", windows=1,
                                tasks="pools_unseen"))
    assert summary["title"] == "mine.py:act"
    with pytest.raises(UserError, match="add track=pools or track=mixed"):
        suite.main(config(tmp_path, policy="mine.py:act"))


@pytest.mark.parametrize("changes, words", [
    ({"action": "rum"}, "unknown action of ooco-gym suite 'rum'"),
    ({"tasks": "calm"}, "unknown task of the suite 'calm'"),
    ({"track": "pool"}, "unknown track of the suite 'pool'"), ({"windows": 13}, "from 1 to 12"),
    ({"tasks": ["pools_calm", "mixed_calm"]}, "task mixed_calm is of track mixed; policy=slack is for pools"),
    ({"track": "mixed"}, "policy=slack is for track pools, not mixed"),
    ({"action": "verify"}, "unknown action of ooco-gym suite 'verify'"),
    ({"policy": None}, "suite run needs a policy"),
])
def test_mistakes_are_named(tmp_path, changes, words):
    with pytest.raises(UserError, match=words):
        suite.main(config(tmp_path, **{"policy": "slack", **changes}))


def test_a_rule_of_ones_own_is_played(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rule = ("from dataclasses import replace\n\nfrom baselines.ooco_variants import slack\n\n"
            "mine = replace(slack, name='mine')\n")
    (tmp_path / "rule.py").write_text(rule)
    (tmp_path / "mine.yaml").write_text("file: rule.py:mine\nextends: slack\n")
    with pytest.raises(UserError, match="needs a value for its parameter"):
        suite.main(config(tmp_path, policy="rule.py:mine", tasks="pools_calm", windows=1))
    suite.main(config(tmp_path, policy="mine.yaml", tasks="pools_calm", windows=1))


def test_the_leaderboard_has_what_is_whole(tmp_path):
    (tmp_path / "other.json").write_text("[1, 2]")  # beside results lie other files
    write_json(tmp_path / "summary.json", {"schema": suite.SCHEMA, "command": "suite"})  # of the run that made one
    summary = suite.main(config(tmp_path, action="table", results=str(tmp_path)))
    text = (tmp_path / suite.TABLE_FILE).read_text()
    assert summary["results"] >= 10 and "Track pools" in text and "Track mixed" in text


# --- Whether the benchmark runs what it says, keeps what has ended, and refuses what it cannot run -------------------
SHORT = ["own_of_agents.cma_linear={windows: 1, population: 4}", "train.window_s=60",
         "train.validation.windows=2", "train.validation.window_s=60"]


def test_each_agent_and_seed_is_a_command_with_the_settings_of_its_environment(tmp_path) -> None:
    jobs = list(trainings(read_yaml(conf_root() / "benchmark.yaml"), "batching", tmp_path))
    assert [str(job.out.relative_to(tmp_path)) for job in jobs] == [
        f"{agent}/seed_{seed}" for agent in ("maskable_ppo", "cma_linear") for seed in (1, 2, 3)]
    assert {"train", "env=batching", "agent=maskable_ppo", "seed=1", "window_s=60.0", "agent.n_steps=64",
            "total_timesteps=100000"} <= set(jobs[0].words)
    assert not any(word.startswith("agent.n_steps") for word in jobs[3].words)
    alone = {**read_yaml(conf_root() / "benchmark.yaml"), "agents": ["maskable_ppo"]}
    first = next(trainings(alone, "packing", tmp_path))
    assert "validation.window_s=null" in first.words
    assert not any("cma_linear" in word for word in first.words), "what is another agent's own"


def test_it_trains_evaluates_and_goes_on(tmp_path, capfd) -> None:
    words = ["benchmark", "envs=packing", "agents=[cma_linear]", "seeds=1",
             "total_timesteps=300", "episodes=2", *SHORT, f"out={tmp_path}"]
    assert main(words) == 0, capfd.readouterr()
    found = json.loads((tmp_path / "benchmarks.json").read_text("utf-8"))["environments"]["packing"]
    assert set(found) == {"cma_linear", "random actions", "base_policy", "level 0.95"}
    assert found["cma_linear"]["timesteps"][0] >= 300 and found["cma_linear"]["low"] is not None
    assert summarised(tmp_path / "packing", ["cma_linear"]) == found
    assert main(words) == 0 and "0 of 2 runs are left" in capfd.readouterr().out
    words[words.index("train.window_s=60")] = "train.window_s=-1"
    assert main(words) == 2  # other commands: made anew, and it is said which one fails
    assert "seed_1.log" in (said := capfd.readouterr()).err and "2 of 2 runs are left" in said.out


@pytest.mark.parametrize(("setting", "words"), [
    ("envs=nothing", "nothing"), ("agents=[a2c]", "a2c"), ("seeds=0", "seeds"), ("run_s=0", "run_s")])
def test_wrong_values_are_refused(tmp_path, capsys, setting, words) -> None:
    assert main(["benchmark", setting, f"out={tmp_path}/B"]) == 2
    assert words in capsys.readouterr().err
