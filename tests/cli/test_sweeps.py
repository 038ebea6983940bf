"""A sweep: progress over its points, scores; what is finished is left alone, the rest repeated."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from ooco_gym.cli import run

WORDS = ("play", "-m", "fruit=pear,apple+plum", "seed=1,2", "out=sweep")


def index_of(toy: SimpleNamespace) -> dict[str, Any]:
    return json.loads((toy.cwd / "sweep" / "multirun.json").read_text())


def times(toy: SimpleNamespace) -> dict[str, int]:
    return {path.parent.name: path.stat().st_mtime_ns for path in (toy.cwd / "sweep").glob("*/summary.json")}


def test_each_point_says_that_it_has_ended_and_how_many_have(toy: SimpleNamespace) -> None:
    code, _, err = toy.run(*WORDS)
    assert code == 0
    assert [line.partition(" in ")[0] for line in err.splitlines()] == [
        "point 1/4: fruit=pear,seed=1: done", "point 2/4: fruit=pear,seed=2: done",
        "point 3/4: fruit=apple+plum,seed=1: done", "point 4/4: fruit=apple+plum,seed=2: done"]
    assert [path.name for path in (toy.cwd / "sweep").iterdir() if path.is_file()] == ["multirun.json"]


def test_a_second_start_leaves_finished_points_and_repeats_the_others(toy: SimpleNamespace) -> None:
    words = ("play", "-m", "fail=mistake,bug,null", "out=sweep")
    assert toy.run(*words)[0] == 1
    before = times(toy)
    code, out, err = toy.run(*words)
    assert code == 1
    assert times(toy) == before and "point 3/3: fail=null: was there" in err
    assert "ZeroDivisionError: a bug in the command" in err and "error: fail=mistake: row 3 of 'x.csv'" in err
    assert "done, was there" in out
    jobs = index_of(toy)["jobs"]
    assert [(job["status"], job["kept"]) for job in jobs] == [("refused", False), ("failed", False), ("done", True)]


def test_a_point_of_another_configuration_or_a_damaged_one_is_played_again(toy: SimpleNamespace) -> None:
    toy.run(*WORDS)
    before = times(toy)
    (toy.cwd / "sweep" / "fruit=pear,seed=1" / "summary.json").write_text("{")
    (toy.cwd / "sweep" / "fruit=pear,seed=2" / "config.yaml").write_text("seed: 3\n")
    assert toy.run(*WORDS)[0] == 0
    after = times(toy)
    again = {name for name in after if after[name] != before[name]}
    assert again == {"fruit=pear,seed=1", "fruit=pear,seed=2"}
    assert toy.run(*WORDS, "rate=0.25")[0] == 0
    assert all(job["kept"] is False for job in index_of(toy)["jobs"]), "another rate is another sweep"


def test_the_index_says_what_was_swept(toy: SimpleNamespace) -> None:
    toy.run(*WORDS, "rate=1,0.5")
    jobs = index_of(toy)["jobs"]
    assert len(jobs) == 8 and [job["swept"] for job in jobs[:2]] == [
        {"fruit": "pear", "seed": 1, "rate": 1}, {"fruit": "pear", "seed": 1, "rate": 0.5}]


def test_the_table_shows_scores(toy: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of commands that are not ours: the first figures of what they return."""
    monkeypatch.setattr(run, "load", lambda function: lambda cfg: {"reward": 3.5, "seed": 1, "wall_s": 2.0, "x": "y"})
    code, out, _ = toy.run("play", "-m", "seed=1,2", "out=sweep")
    assert code == 0 and "reward" in out and "multirun.json written to sweep" in out
    assert [job["scores"] for job in index_of(toy)["jobs"]] == [{"reward": 3.5}] * 2
