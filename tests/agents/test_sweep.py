"""A sweep of trainings: points that were killed go on, and `evaluate policies=[SWEEP]` plays what each has learned."""

from __future__ import annotations

import json

import pytest
import yaml

from agents.evaluation.evaluate import _entrants
from agents.evaluation.players import groups_of
from ooco_gym.cli import main
from ooco_gym.cli.sweep import Sweep
from ooco_gym.errors import UserError

SHORT = ["env.window_s=20", "env.warmup_s=5", "window_s=20", "agent.n_envs=4", "agent.n_steps=16",
         "agent.batch_size=32", "validation.windows=0", "agent.imitate=null"]


def train(folder, total, *words):
    given = ["train", "-m", "seed=1,2", "agent.learning_rate=0.001,0.0001", f"total_timesteps={total}", f"out={folder}"]
    return main([*given, *SHORT, *words])


@pytest.mark.slow
def test_a_sweep_is_trained_goes_on_and_is_evaluated(tmp_path, capsys):
    sweep = tmp_path / "sweep"
    assert train(sweep, 128) == 0, capsys.readouterr().err
    killed = sweep / "agent.learning_rate=0.001,seed=2"
    assert killed.is_dir()
    (killed / "summary.json").unlink()  # as a kill would have left it, but for the decisions that are missing
    (killed / "checkpoints" / "latest.state").unlink()
    capsys.readouterr()
    assert train(sweep, 128) == 0
    assert "3 of 4 points were already complete" in capsys.readouterr().err
    assert json.loads((killed / "summary.json").read_text())["timesteps"] == 128
    found = groups_of(sweep)
    assert set(found) == {"agent.learning_rate=0.001", "agent.learning_rate=0.0001"}
    assert main(["evaluate", f"policies=[{sweep},ooco]", "episodes=2", "window_s=20", "warmup_s=5", "workers=1",
                 f"out={tmp_path / 'scores'}"]) == 0
    table = json.loads((tmp_path / "scores" / "summary.json").read_text())
    assert {row["policy"] for row in table["results"]} == {*found, "ooco"}


def folder_of(tmp_path, command="train", status="done"):
    for seed, rate in ((1, 0.1), (2, 0.1), (1, 0.2)):
        point = tmp_path / f"seed={seed},agent.learning_rate={rate}"
        point.mkdir()
        config = {"seed": seed, "env": {"id": "ooco_gym/PrefillGate-v1", "name": "gating"},
                  "agent": {"learning_rate": rate}}
        (point / "config.yaml").write_text(yaml.safe_dump(config))
        (point / "policy.zip").write_bytes(b"")
        (point / "summary.json").write_text("{\"schema\": \"ooco-gym/train/1\"}")
    points = [path.name for path in sorted(tmp_path.iterdir())]
    given = [dict(pair.split("=") for pair in point.split(",")) for point in points]
    about = {"schema": "ooco-gym/sweep/1", "command": command, "words": [], "version": "0.2.0",
             "swept": ["seed", "agent.learning_rate"]}
    Sweep(tmp_path, about, {"point": points, "status": [status] * 3, "error": [None] * 3,
                            "seed": [int(one["seed"]) for one in given],
                            "agent.learning_rate": [float(one["agent.learning_rate"]) for one in given]}, {}).write()
    return tmp_path


def test_points_that_differ_in_the_seed_alone_are_one_policy(tmp_path):
    found = groups_of(folder_of(tmp_path))
    assert {label: sorted(runs) for label, runs in found.items()} == {
        "agent.learning_rate=0.1": ["seed_1", "seed_2"], "agent.learning_rate=0.2": ["seed_1"]}
    assert [(one.label, list(one.runs)) for one in _entrants([str(tmp_path), "ooco"])] == [
        ("agent.learning_rate=0.1", ["seed_1", "seed_2"]), ("agent.learning_rate=0.2", ["seed_1"]), ("ooco", [None])]


def test_a_sweep_that_cannot_be_played(tmp_path):
    with pytest.raises(UserError, match="is a sweep of 'simulate'; evaluate accepts sweeps of 'ooco-gym train -m …'"):
        groups_of(folder_of(tmp_path, "simulate"))
    (tmp_path / "sweep.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match="cannot be read as the table of a sweep"):
        groups_of(tmp_path)


def test_a_sweep_of_which_nothing_has_ended_well(tmp_path):
    folder = folder_of(tmp_path, status="failed")
    with pytest.raises(UserError, match=r"no point of the sweep .* has succeeded; start it again"):
        groups_of(folder)
