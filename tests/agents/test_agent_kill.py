"""A training that is killed at any moment, or whose clock is set, ends in the same arrays as one that never was."""

from __future__ import annotations

import multiprocessing
import time
import zipfile
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from agents import suite
from agents.learning import train
from agents.policies.runs import STATE_FILE
from ooco_gym.resources import load_yaml
from tests.agents.gating_double import train_config

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
            time.sleep(0.002)
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
        time.sleep(0.002)
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
