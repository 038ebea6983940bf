"""A run that was stopped goes on as if it had not been: same curve, same policies, whatever stopped it."""

from __future__ import annotations

import csv
import multiprocessing
import os
import signal
import time
import zipfile
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from sb3_contrib import MaskablePPO

from agents import suite
from agents.learning import callbacks, train
from agents.policies.runs import STATE_FILE, clear, holds_run, load_run
from ooco_gym.errors import UserError
from ooco_gym.files import write_json
from ooco_gym.resources import load_yaml
from tests.agents.gating_double import train_config

IMITATE = {"rule": "best", "decisions": 300, "epochs": 2, "learning_rate": 1e-2, "critic_first_updates": 2}
GATING = {"id": "ooco_gym/PrefillGate-v1", "window_s": 30.0, "warmup_s": 10.0,
          "splits": {"train": [1, 2], "validation": [3], "test": [4]}}
KINDS = {
    "maskable_ppo": {},
    "imitated": {"agent": {"imitate": IMITATE}},
    "native": {"env": GATING, "window_s": 15.0},
}


def curve(folder):
    """The rows of progress.csv without times, which depend on the machine."""
    with (folder / "progress.csv").open() as file:
        return [{key: value for key, value in row.items() if not key.startswith("time/") or key.endswith("timesteps")}
                for row in csv.DictReader(file)]


def weights(folder, name):
    model = MaskablePPO.load(folder / name, device="cpu")
    return {key: value.numpy() for key, value in model.policy.state_dict().items()}


def same(one, other):
    assert curve(one) == curve(other)
    for name in ("policy.zip", "policy_last.zip"):
        left, right = weights(one, name), weights(other, name)
        assert left.keys() == right.keys() and all(np.array_equal(left[key], right[key]) for key in left), name


def stop_after(monkeypatch, rollouts, number=signal.SIGINT, times=1):
    """Sends this process signals at the end of a rollout, before its update."""
    original, seen = callbacks.LogMetrics._on_rollout_end, []

    def end(self):
        seen.append(1)
        if len(seen) == rollouts:
            for _ in range(times):
                os.kill(os.getpid(), number)
        original(self)

    monkeypatch.setattr(callbacks.LogMetrics, "_on_rollout_end", end)


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_is_the_run_that_was_never_stopped(kind, tmp_path, monkeypatch):
    whole = train.main(train_config(tmp_path / "whole", **KINDS[kind]))
    number = signal.SIGTERM if kind == "imitated" else signal.SIGINT
    stop_after(monkeypatch, 2, number)
    handler = signal.getsignal(number)
    stopped = train.main(train_config(tmp_path / "parts", **KINDS[kind]))
    assert stopped["stopped_by"] == "interrupt" and 0 < stopped["timesteps"] < whole["timesteps"]
    assert stopped["signal"] == number.name
    assert signal.getsignal(number) is handler
    assert load_run(tmp_path / "parts").config["seed"] == 1  # what there is can be played
    resumed = train.main({"resume": str(tmp_path / "parts")})
    assert resumed["resumed"] and resumed["stopped_by"] == "total_timesteps"
    for key in ("timesteps", "updates", "episodes", "validation", "best", "imitation"):
        assert resumed[key] == whole[key], key
    assert resumed["decisions"] == whole["timesteps"] - stopped["timesteps"]
    same(tmp_path / "whole", tmp_path / "parts")


def test_a_signal_while_it_validates_loses_nothing(tmp_path, monkeypatch):
    train.main(train_config(tmp_path / "whole"))
    original, seen = callbacks.Validation._play, []

    def play(self):
        seen.append(1)
        if len(seen) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self)

    monkeypatch.setattr(callbacks.Validation, "_play", play)
    stopped = train.main(train_config(tmp_path / "parts"))
    assert stopped["stopped_by"] == "interrupt" and len(stopped["validation"]) == 1
    train.main({"resume": str(tmp_path / "parts")})
    same(tmp_path / "whole", tmp_path / "parts")


def test_a_second_signal_ends_at_once_and_the_last_checkpoint_is_gone_on_from(tmp_path, monkeypatch):
    train.main(train_config(tmp_path / "whole"))
    stop_after(monkeypatch, 3, times=2)
    stopped = train.main(train_config(tmp_path / "parts"))
    assert stopped["stopped_by"] == "interrupt" and stopped["timesteps"] == 225
    resumed = train.main({"resume": str(tmp_path / "parts")})
    assert resumed["decisions"] == 150  # from the checkpoint at 150 on
    same(tmp_path / "whole", tmp_path / "parts")


def test_a_run_that_was_killed_once_it_had_learned_is_brought_to_its_end(tmp_path, monkeypatch):
    """Its state is kept before its policies and its summary are written: what resumes it writes them."""
    whole = train.main(train_config(tmp_path / "whole"))

    save = callbacks.save

    def killed(model, path):
        if path.name == "policy_last.zip":
            raise RuntimeError("killed")
        save(model, path)

    with monkeypatch.context() as patch:
        patch.setattr(callbacks, "save", killed)
        with pytest.raises(RuntimeError):
            train.main(train_config(tmp_path / "parts"))
    assert not (tmp_path / "parts" / "policy_last.zip").exists()
    resumed = train.main({"resume": str(tmp_path / "parts")})
    assert resumed["decisions"] == 0 and resumed["stopped_by"] == "total_timesteps"
    for key in ("timesteps", "updates", "episodes", "validation", "best", "imitation"):
        assert resumed[key] == whole[key], key
    same(tmp_path / "whole", tmp_path / "parts")


def test_more_decisions_go_on_where_a_finished_run_ended(tmp_path):
    train.main(train_config(tmp_path / "whole", validation={"windows": 0}))
    train.main(train_config(tmp_path / "parts", total_timesteps=150, validation={"windows": 0}))
    write_json(tmp_path / "parts" / "summary.json", {"stopped_by": "total_timesteps", "timesteps": 150})
    with pytest.raises(UserError, match=r"has learned from 150 decisions, and total_timesteps=150; expected more"):
        train.main({"resume": str(tmp_path / "parts")})
    train.main({"resume": str(tmp_path / "parts"), "total_timesteps": 300})
    same(tmp_path / "whole", tmp_path / "parts")
    assert yaml.safe_load((tmp_path / "parts" / "config.yaml").read_text())["total_timesteps"] == 300


@pytest.mark.parametrize("change, words", [
    ({"resume": "nowhere"}, "resume=nowhere is not a training run: config.yaml is missing"),
    ({"agent": {"name": "cma"}}, "agent differs from the run in"),
    ({"overwrite": True}, "overwrite=true would remove the run"),
    ({"seed": 2}, "seed=2 differs from the run in"),
    ({"out": "elsewhere"}, "out=elsewhere is not resume="),
])
def test_what_cannot_be_resumed_says_why(tmp_path, run_folder, change, words):
    with pytest.raises(UserError) as error:
        train.main({"resume": str(run_folder), **change})
    assert words in str(error.value) and "\n" not in str(error.value)


def test_folders_without_a_state_say_what_is_missing(tmp_path, run_folder):
    with pytest.raises(UserError, match=r"is not a training run: config.yaml is missing"):
        train.main({"resume": str(tmp_path)})
    (tmp_path / "config.yaml").write_text((run_folder / "config.yaml").read_text())
    with pytest.raises(UserError, match=r"has no checkpoints/latest.state to resume from"):
        train.main({"resume": str(tmp_path)})
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / STATE_FILE).write_bytes(b"nonsense")
    with pytest.raises(UserError, match=r"latest.state' cannot be resumed from: it is damaged or from another"):
        train.main({"resume": str(tmp_path)})


def test_the_state_is_left_out_where_nobody_wants_it(tmp_path):
    train.main(train_config(tmp_path, total_timesteps=75, resumable=False))
    assert not (tmp_path / STATE_FILE).exists() and (tmp_path / "policy.zip").is_file()


# --- A training that is killed at any moment, or whose clock is set, ends in the same arrays as one that never was ---
SETTINGS = {"total_timesteps": 3000, "checkpoint_every_steps": 150,
            "validation": {"windows": 1, "every_steps": 300, "violation_limit": 0.03}}


def learn(changes: dict[str, object]) -> None:
    train.main(changes)


def play(changes: dict[str, object]) -> None:
    suite.main(changes)


def started(target: Any, changes: dict[str, object]) -> Any:
    worker = multiprocessing.get_context("spawn").Process(target=target, args=(changes,))
    worker.start()
    return worker


def arrays(run: Path) -> dict[str, bytes]:
    """Weights and optimiser of both policies; around them Stable-Baselines3 notes when it wrote."""
    return {f"{name}/{part}": zipfile.ZipFile(run / name).read(part) for name in ("policy.zip", "policy_last.zip")
            for part in ("policy.pth", "policy.optimizer.pth", "pytorch_variables.pth")}


def test_a_training_killed_at_any_moment_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    train.main(train_config(tmp_path / "whole", **SETTINGS))
    run, changes = tmp_path / "killed", train_config(tmp_path / "killed", **SETTINGS)
    for wait_s in (time.time_ns() % 997 / 2000, time.time_ns() % 991 / 1000):  # other moments each time
        state, before = run / STATE_FILE, (run / STATE_FILE).stat().st_mtime_ns if (run / STATE_FILE).is_file() else 0
        worker = started(learn, changes)
        while worker.is_alive() and not (state.is_file() and state.stat().st_mtime_ns != before):
            worker.join(0.002)
        worker.join(wait_s)
        worker.kill()
        worker.join()
        changes = {"resume": str(run)}
    if worker.exitcode:     # on a slow machine it may be done before
        train.main(changes)
    assert arrays(run) == arrays(tmp_path / "whole")


def test_a_suite_killed_and_begun_again_has_the_same_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OOCO_GYM_CACHE", str(tmp_path / "cache"))
    asked = {**{key: value for key, value in load_yaml("", "suite").items() if key != "defaults"}, "windows": 1,
             "suite": load_yaml("suite", "v1"), "workers": 1, "policy": "slack",
             "tasks": ["pools_calm", "pools_peak", "pools_bursts"]}
    suite.main({**asked, "cache": False, "out": str(tmp_path / "whole")})
    worker, kept = started(play, {**asked, "out": str(tmp_path / "killed")}), time.time_ns() % 5 + 1
    while worker.is_alive() and len(list(tmp_path.glob("cache/runs/*/*.json"))) < kept:
        worker.join(0.002)
    worker.kill()
    worker.join()
    suite.main({**asked, "out": str(tmp_path / "killed")})
    whole, again = ((tmp_path / name / suite.RESULT_FILE).read_bytes() for name in ("whole", "killed"))
    assert whole == again and [path.name for path in (tmp_path / "killed").iterdir()] == [suite.RESULT_FILE]


def test_a_clock_that_is_set_while_it_learns_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {**SETTINGS, "total_timesteps": 300}
    train.main(train_config(tmp_path / "whole", **settings))
    real_ns, jumps_s = time.time_ns, cycle((0, -3600, 3600, -7200))
    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: real_ns() + next(jumps_s) * 10**9)
        patch.setattr(time, "time", lambda: time.time_ns() / 1e9)
        summary = train.main(train_config(tmp_path / "set", max_wall_s=600, checkpoint_every_s=1, **settings))
    assert summary["stopped_by"] == "total_timesteps" and arrays(tmp_path / "set") == arrays(tmp_path / "whole")
    assert all(value >= 0 for key, value in summary.items() if key.endswith("wall_s"))


# --- A folder that holds a training run is not trained into by oversight ---------------------------------------------
QUICK = {"total_timesteps": 75, "checkpoint_every_steps": None, "validation": {"windows": 0}}


def test_a_run_is_refused_before_anything_is_made_and_removed_where_that_is_asked_for(tmp_path):
    for name in ("wandb", "bundle"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "old").write_text("old")
    (tmp_path / "mine.txt").write_text("mine")
    train.main(train_config(tmp_path, **QUICK))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with pytest.raises(UserError) as error:
        train.main(train_config(tmp_path, **QUICK))
    assert f"out={tmp_path} holds a training run; continue it with resume={tmp_path}" in str(error.value)
    assert "overwrite=true" in str(error.value)
    with pytest.raises(UserError, match="unknown agent 'nosuch'"):
        train.main(train_config(tmp_path, **QUICK, overwrite=True, agent={"name": "nosuch"}))
    with pytest.raises(UserError, match="unknown logger 'nosuch'"):
        train.main(train_config(tmp_path, **QUICK, overwrite=True, logger="nosuch"))
    with pytest.raises(UserError, match="overwrite must be true or false, got 'no'"):
        train.main(train_config(tmp_path, **QUICK, overwrite="no"))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    train.main(train_config(tmp_path, **{**QUICK, "seed": 2, "resumable": False}, overwrite=True))
    assert yaml.safe_load((tmp_path / "config.yaml").read_text())["seed"] == 2
    left = {path.name for path in tmp_path.iterdir()}
    assert "mine.txt" in left and not left & {"wandb", "bundle", "checkpoints"}


@pytest.mark.parametrize("name, text, held", [
    ("summary.json", '{"command": "train"}', True), ("summary.json", '{"command": "evaluate"}', False),
    ("summary.json", "[", False), ("config.yaml", "agent: {}\ntotal_timesteps: 1\n", True),
    ("config.yaml", "policies: [ooco]\n", False), ("policy_last.zip", "", True),
    ("checkpoints/step_0000000075.zip", "", True), ("checkpoints/latest.state", "", True),
    ("checkpoints/other.pt", "", False),
])
def test_what_counts_as_a_run(tmp_path, name, text, held):
    assert not holds_run(tmp_path / "nowhere")
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text)
    assert holds_run(tmp_path) == held


def test_what_was_refused_before_it_learned_is_no_run(tmp_path, monkeypatch):
    def refused(*args):
        raise UserError("no such feature")

    with monkeypatch.context() as patch:
        patch.setattr("agents.learning.imitation.play_and_scale", refused)
        with pytest.raises(UserError, match="no such feature"):
            train.main(train_config(tmp_path, **QUICK))
    assert not holds_run(tmp_path)


def test_clearing_follows_no_link(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_text("kept")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "elsewhere")
    clear(tmp_path / "run")
    assert not list((tmp_path / "run").iterdir()) and (tmp_path / "elsewhere" / "file").exists()


def test_a_training_that_was_killed_before_it_learned_begins_anew(tmp_path):
    """What such a run leaves: its configuration, and the beginnings of its files."""
    config = train_config(tmp_path, **QUICK)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    (tmp_path / "progress.csv").write_text("")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "mine.txt").write_text("mine")
    assert holds_run(tmp_path)
    train.main(config)
    assert (tmp_path / "policy.zip").is_file() and (tmp_path / "mine.txt").read_text() == "mine"
