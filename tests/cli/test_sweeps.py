"""A sweep: what is finished is left alone, the rest repeated; one table, of the same bytes wherever it was played."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ooco_gym.cli import job
from ooco_gym.cli.sweep import SCORES, Sweep
from ooco_gym.errors import UserError

WORDS = ("play", "-m", "fruit=pear,apple+plum", "seed=1,2", "out=sweep")


def times(toy: SimpleNamespace) -> dict[str, int]:
    return {path.parent.name: path.stat().st_mtime_ns for path in (toy.cwd / "sweep").glob("*/summary.json")}


def test_the_table_has_what_was_swept_the_configuration_and_the_metrics(toy: SimpleNamespace) -> None:
    from pyarrow import parquet

    code, out, err = toy.run(*WORDS, "rate=1,0.5")
    assert (code, err) == (0, "")
    rows = parquet.read_table(toy.cwd / "sweep" / "sweep.parquet").to_pylist()
    assert [(row["fruit"], row["seed"], row["rate"], row["status"]) for row in rows[:2]] == [
        ("pear", 1, 1.0, "done"), ("pear", 1, 0.5, "done")]
    assert [row["reward"] for row in rows] == [11.0, 6.0, 12.0, 7.0] * 2
    assert (rows[0]["fruit.weight_g"], rows[0]["knife.blade.length_cm"], rows[0]["words"]) == (180, 9.0, '["a", "b"]')
    assert rows[4]["fruit"] == "apple+plum" and rows[4]["fruit.weight_g"] is None
    assert not {"pid", "out", "cwd"} & set(rows[0]), "what differs from start to start is no column"
    assert "8 of 8 points are done" in out and "sweep.parquet written to sweep" in out


def test_a_second_start_says_what_is_there_and_repeats_the_others(toy: SimpleNamespace) -> None:
    words = ("play", "-m", "fail=mistake,bug,null", "out=sweep")
    assert toy.run(*words)[0] == 1
    before = times(toy)
    code, _, err = toy.run(*words)
    assert code == 1
    assert times(toy) == before and err.startswith("1 of 3 points were already complete\n")
    assert "ZeroDivisionError: a bug in the command" in err and "error: fail=mistake: row 3 of 'x.csv'" in err
    found = Sweep.read(toy.cwd / "sweep")
    assert found.columns["status"] == ["refused", "failed", "done"]
    assert found.columns["error"][1] == "ZeroDivisionError: a bug in the command"


def test_more_seeds_are_added(toy: SimpleNamespace) -> None:
    toy.run(*WORDS)
    before = times(toy)
    code, _, err = toy.run("play", "-m", "fruit=pear,apple+plum", "seed=range(1,4)", "out=sweep")
    assert code == 0 and err == "4 of 6 points were already complete\n"
    assert before.items() <= times(toy).items() and len(times(toy)) == 6


def test_a_point_of_another_configuration_or_a_damaged_one_is_played_again(toy: SimpleNamespace) -> None:
    toy.run(*WORDS)
    before = times(toy)
    (toy.cwd / "sweep" / "fruit=pear,seed=1" / "summary.json").write_text("{")
    (toy.cwd / "sweep" / "fruit=pear,seed=2" / "config.yaml").write_text("seed: 3\n")
    assert toy.run(*WORDS)[0] == 0
    after = times(toy)
    assert {name for name in after if after[name] != before[name]} == {"fruit=pear,seed=1", "fruit=pear,seed=2"}


def test_points_whose_file_holds_something_else_are_played_anew(toy: SimpleNamespace) -> None:
    for name in ("a.csv", "b.csv"):
        (toy.cwd / name).write_text("1\n")
    words = ("play", "-m", "name=a.csv,b.csv", "words=[x]", "out=sweep")
    assert toy.run(*words)[0] == 0
    before = times(toy)
    (toy.cwd / "b.csv").write_text("2\n")
    code, _, err = toy.run(*words)
    assert (code, err) == (0, "1 of 2 points were already complete\n")
    after = times(toy)
    assert {name for name in after if after[name] != before[name]} == {"name=b.csv"}
    assert "2 of 2 points were already" in toy.run(*words)[2] and times(toy) == after
    (toy.cwd / "c.csv").write_text("1\n")
    assert toy.run("play", "-m", "seed=1,2", "words=[c.csv]", "out=list")[0] == 0
    (toy.cwd / "c.csv").write_text("2\n")
    assert "already complete" not in toy.run("play", "-m", "seed=1,2", "words=[c.csv]", "out=list")[2]


def test_points_of_another_version_are_played_anew(toy: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    toy.run(*WORDS)
    monkeypatch.setattr(job, "__version__", "0.0.1")
    code, _, err = toy.run(*WORDS)
    assert (code, err) == (0, "")
    assert "4 of 4 points were already complete" in toy.run(*WORDS)[2]


def test_another_sweep_in_the_folder_is_refused_in_a_sentence(toy: SimpleNamespace) -> None:
    toy.run(*WORDS)
    before = times(toy)
    for words in (("play", "-m", "seed=1,2"), (*WORDS[:-1], "rate=0.25"), ("speak", "-m", "verb=a,b")):
        code, _, err = toy.run(*words, "out=sweep")
        assert code == 2 and err.count("\n") == 1
        assert "sweep' has another sweep, 'ooco-gym play -m fruit=… seed=…'; give the same words" in err
    assert times(toy) == before


@pytest.mark.parametrize("launcher", ["joblib", "submitit_local"])
def test_every_launcher_writes_the_same_bytes(toy: SimpleNamespace, launcher: str) -> None:
    pytest.importorskip(f"hydra_plugins.hydra_{launcher.partition('_')[0]}_launcher")
    for words, out in (((), "serial"), ((f"hydra/launcher={launcher}",), launcher)):
        code, _, err = toy.run("play", "-m", "fruit=pear,plum", "seed=range(0,3)", "fast=false", f"out={out}", *words)
        assert code == 0, err
    assert (toy.cwd / "serial" / "sweep.parquet").read_bytes() == (toy.cwd / launcher / "sweep.parquet").read_bytes()


def test_a_worker_that_is_killed_loses_what_it_was_at_alone(toy: SimpleNamespace) -> None:
    """The points before are kept, what is lost is said in a sentence, and the same words go on."""
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    functions = toy.site / "toy_commands" / "functions.py"
    whole = functions.read_text()
    functions.write_text(whole.replace("    if values[\"fail\"]", "    if values[\"seed\"] == 2:\n"
                                       "        os.kill(os.getpid(), 9)\n    if values[\"fail\"]", 1))
    words = [sys.executable, "-m", "ooco_gym", "play", "-m", "seed=range(0,4)", "out=sweep",
             "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    done = subprocess.run(words, cwd=toy.cwd, text=True, capture_output=True, check=False)
    assert done.returncode == 2 and "points are not done; the same command goes on with them" in done.stderr
    assert "Traceback" not in done.stderr
    kept = times(toy)
    assert "seed=2" not in kept
    functions.write_text(whole)
    again = subprocess.run(words, cwd=toy.cwd, text=True, capture_output=True, check=False)
    assert again.returncode == 0, again.stderr
    assert kept.items() <= times(toy).items() and set(Sweep.read(toy.cwd / "sweep").columns["status"]) == {"done"}


def test_values_are_set_as_hydra_composes_them(toy: SimpleNamespace) -> None:
    """A point of a sweep has the configuration of the run with the same words, mappings and added keys included."""
    swept = {"+preset": ["feast"], "fruit": ["pear"], "knife": ["{sharp:false}", "{blade:{length_cm:3}}"],
             "words": ["[x]", "[y,z]"], "+knife.blade.colour": ["red", "blue"], "name": ["'7'", "a"]}
    lists = [f"{key}={','.join(values)}" for key, values in swept.items()]
    assert toy.run("play", "-m", *lists, "seed=3", "out=sweep")[0] == 0
    for number in (0, 7, 15):
        chosen, rest = [], number
        for key, values in reversed(swept.items()):
            rest, place = divmod(rest, len(values))
            chosen.append(f"{key}={values[place]}")
        assert toy.run("play", *chosen, "seed=3", "out=alone")[0] == 0
        alone, point = (json.loads((toy.cwd / path / "summary.json").read_text())["values"]
                        for path in ("alone", f"sweep/{number}"))
        assert {**alone, "out": None} == {**point, "out": None}


def test_a_search_is_no_sweep(toy: SimpleNamespace) -> None:
    code, _, err = toy.run("play", "-m", "seed=interval(0,1)", "out=sweep")
    assert code == 2 and "'ooco-gym train agent=cma'" in err and not (toy.cwd / "sweep").exists()


def test_its_table_has_the_means_over_seeds(toy: SimpleNamespace) -> None:
    code, out, err = toy.run("play", "-m", "rate=1,0.5", "seed=1,2,3", "out=sweep")
    assert code == 0 and "6 of 6 points are done" in out, err
    table = Sweep.read(toy.cwd / "sweep").table()
    assert [row[:2] for row in table.rows] == [("1.0", "3"), ("0.5", "3")]
    assert table.rows[0][2].startswith("12 [") and table.rows[1][2].startswith("7 [")


def test_a_damaged_table_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no sweep that has ended, it has no sweep.parquet"):
        Sweep.read(tmp_path)
    (tmp_path / "sweep.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match="cannot be read as the table of a sweep"):
        Sweep.read(tmp_path)


def test_metrics_of_other_commands(toy: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first that they sum up."""
    monkeypatch.setattr(job, "load", lambda function: lambda cfg: {"score": 3.5, "seed": 1, "wall_s": 2.0, "x": "y"})
    code, out, _ = toy.run("play", "-m", "seed=1,2", "out=sweep")
    assert code == 0 and "score" in out and Sweep.read(toy.cwd / "sweep").metrics == {"score": [3.5, 3.5]}


def test_a_figure_that_is_but_a_lower_bound_is_marked(toy: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "load", lambda function: lambda cfg: {"online": {
        "ttft_p99_s": 3.5, "ttft_p50_s": 1.5, "censored": ["ttft_p99_s"] if cfg.seed == 2 else []}})
    assert toy.run("play", "-m", "seed=1,2", "out=sweep")[0] == 0
    metrics = Sweep.read(toy.cwd / "sweep").metrics
    assert metrics["online.ttft_p99_s_censored"] == [None, 1] and "online.ttft_p50_s_censored" not in metrics
    monkeypatch.setitem(SCORES, "play", ("online.ttft_p99_s", "online.ttft_p50_s"))
    shown = Sweep.read(toy.cwd / "sweep").table()
    assert shown.rows[0][-2].startswith("> 3.5") and shown.rows[0][-1].startswith("1.5")


@pytest.mark.parametrize("word", ["+preset=cluster.yaml", "hydra/launcher=joblib"])
def test_a_launcher_is_used_by_a_sweep_and_refused_by_a_single_run(toy: SimpleNamespace, word: str) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    (toy.cwd / "cluster.yaml").write_text("defaults:\n  - override /hydra/launcher: joblib\nrate: 0.25\n")
    code, _, err = toy.run("play", word, "out=one")
    assert code == 2 and "hydra/launcher=joblib runs the points of a sweep" in err and "add -m" in err
    (toy.cwd / "cluster.yaml").write_text("defaults:\n  - override /hydra/launcher: joblib\n"
                                          "hydra: {launcher: {prefer: nonsense}}\n")
    code, _, err = toy.run("play", "-m", "+preset=cluster.yaml", "seed=1,2", "out=many")
    assert code == 2 and "a worker ended" in err, "it is the launcher that a preset sets, with its settings"
