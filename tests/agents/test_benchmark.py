"""Whether the benchmark runs what it says, keeps what has ended, and refuses what it cannot run."""

from __future__ import annotations

import json

import pytest

from agents.benchmark import summarised, trainings
from ooco_gym.cli import main
from ooco_gym.documents import read_yaml
from ooco_gym.resources import conf_root

SHORT = ["own_of_agents.cma_linear={windows: 1, population: 4}", "train.window_s=60",
         "train.validation.windows=2", "train.validation.window_s=60"]


def test_each_agent_and_seed_is_a_command_with_the_settings_of_its_environment(tmp_path) -> None:
    jobs = list(trainings(read_yaml(conf_root() / "benchmark.yaml"), "batching", tmp_path))
    assert [str(job.out.relative_to(tmp_path)) for job in jobs] == [
        f"{agent}/seed_{seed}" for agent in ("maskable_ppo", "cma_linear") for seed in (1, 2, 3)]
    assert {"train", "env=batching", "agent=maskable_ppo", "seed=1", "window_s=60.0", "agent.n_steps=64",
            "total_timesteps=100000"} <= set(jobs[0].words)
    assert not any(word.startswith("agent.n_steps") for word in jobs[3].words)
    first = next(trainings(read_yaml(conf_root() / "benchmark.yaml"), "packing", tmp_path))
    assert "validation.window_s=null" in first.words


def test_it_trains_evaluates_and_goes_on(tmp_path, capfd) -> None:
    words = ["benchmark", "envs=packing", "agents=[cma_linear]", "seeds=1",
             "total_timesteps=300", "episodes=2", *SHORT, f"out={tmp_path}"]
    assert main(words) == 0, capfd.readouterr()
    found = json.loads((tmp_path / "benchmarks.json").read_text("utf-8"))["environments"]["packing"]
    assert set(found) == {"cma_linear", "random actions", "base_policy", "level 0.95"}
    assert len(found["cma_linear"]["curves"][0]) >= 2 and found["cma_linear"]["low"] is not None
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
