"""What a command receives and what is written, alone and in sweeps."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from ooco_gym.cli.sweep import Sweep


def values(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())["values"]


def play(toy: SimpleNamespace, *words: str) -> dict[str, Any]:
    code, _, err = toy.run("play", "out=results", *words)
    assert code == 0, err
    return values(toy.cwd / "results")


def test_results(toy: SimpleNamespace) -> None:
    code, out, err = toy.run("play", "seed=7", "knife.blade.length_cm=12", "fruit.weight_g=160.5", "out=a/results")
    assert (code, err) == (0, "")
    assert out == "summary.json and config.yaml written to a/results\n"
    folder = toy.cwd / "a" / "results"
    assert sorted(path.name for path in folder.iterdir()) == ["config.yaml", "notes.txt", "summary.json"]
    summary = json.loads((folder / "summary.json").read_text())
    assert next(iter(summary.items())) == ("schema", "ooco-gym/play/1")
    assert summary["cwd"] == str(toy.cwd)
    assert summary["values"] == {
        "fruit": {"name": "apple", "weight_g": 160.5, "path": None, "core": {"seeds_in_it": 5}},
        "seed": 7, "seeds": 3, "rate": 0.5, "fast": True, "name": "unnamed", "words": ["a", "b"], "start": None,
        "knife": {"blade": {"length_cm": 12}, "sharp": True}, "size": "small", "fail": None, "out": str(folder)}
    assert yaml.safe_load((folder / "config.yaml").read_text()) == summary["values"]


def test_default_folder_and_no_summary(toy: SimpleNamespace) -> None:
    code, out, _ = toy.run("quiet", "fruit=anything")
    assert code == 0
    (folder,) = (toy.cwd / "outputs" / "quiet").iterdir()
    assert [path.name for path in folder.iterdir()] == ["config.yaml"]
    assert out == f"config.yaml written to {folder.relative_to(toy.cwd)}\n"
    assert yaml.safe_load((folder / "config.yaml").read_text())["fruit"] == "anything"      # plain, although a group


@pytest.mark.parametrize("name", ["a b (1)", "it's=1, [x] é"])
def test_odd_names_of_the_results_folder(toy: SimpleNamespace, name: str) -> None:
    assert toy.run("play", f"out={name}")[0] == 0
    assert values(toy.cwd / name)["out"] == str(toy.cwd / name)
    assert toy.run("play", "-m", "seed=1,2", f"out={name}/sweep")[0] == 0
    assert values(toy.cwd / name / "sweep" / "seed=2")["seed"] == 2


@pytest.mark.parametrize("given", ["apple+pear", "0.5*apple+2*pear", "apple:weight_g=3", "apple:weight_g=3,ripe=1"])
def test_strings_that_the_library_reads(toy: SimpleNamespace, given: str) -> None:
    assert play(toy, f"fruit={given}")["fruit"] == given


def test_folders_and_files(toy: SimpleNamespace) -> None:
    run = toy.cwd / "odd (name), 'x'" / "run=1"
    run.mkdir(parents=True)
    (run / "trace.csv").write_text("")
    (toy.cwd / "bag").mkdir()
    assert play(toy, f"fruit={run}")["fruit"] == str(run)
    assert play(toy, f"fruit={run / 'trace.csv'}")["fruit"] == str(run / "trace.csv")
    assert play(toy, "fruit=bag")["fruit"] == "bag"
    assert play(toy, f"fruit.path={run / 'trace.csv'}")["fruit"]["path"] == str(run / "trace.csv")


def test_something_in_a_python_file(toy: SimpleNamespace) -> None:
    (toy.cwd / "mine.py").write_text("")
    (toy.cwd / "rules").mkdir()
    (toy.cwd / "rules" / "other.py").write_text("")
    for given in ("mine.py:fruit", "mine.py:fruit:weight_g=3,core=2", "mine.py", "rules/other.py:fruit"):
        assert play(toy, f"fruit={given}")["fruit"] == given
    assert toy.run("play", "-m", "fruit=apple,mine.py:fruit", "out=sweep")[0] == 0
    assert {str(values(job)["fruit"]) for job in (toy.cwd / "sweep").glob("*/")} >= {"mine.py:fruit"}
    code, _, error = toy.run("play", "fruit=none.py:fruit")
    assert code == 2 and "fruit: file 'none.py' does not exist; expected a path, or one of: apple" in error


def test_yaml_of_the_user(toy: SimpleNamespace) -> None:
    (toy.cwd / "mine.yaml").write_text("name: quince\nweight_g: 90\n")
    assert play(toy, "fruit=mine.yaml", "fruit.weight_g=91")["fruit"] == {"name": "quince", "weight_g": 91}
    code, _, err = toy.run("play", "fruit=mine.yaml", "fruit.wait_g=1", "out=other")
    assert code == 2
    assert "'fruit.weight_g'" in err


def test_a_preset_sets_many_keys_and_the_command_line_has_the_last_word(toy: SimpleNamespace) -> None:
    given = play(toy, "+preset=feast", "seed=8")
    assert (given["seed"], given["fruit"]["brown_spots"], given["fruit"]["weight_g"]) == (8, 2, 200)
    assert given["knife"] == {"blade": {"length_cm": 9.0}, "sharp": False}
    assert "preset" not in given
    assert play(toy, "preset=feast", "seed=8") == given, "the plus may be left away"
    (toy.cwd / "mine.yaml").write_text("seed: 9\nname: me\n")
    mine = play(toy, "+preset=mine.yaml")
    assert (mine["seed"], mine["name"]) == (9, "me")
    assert "+preset=feast: many pears\n" in toy.run("play", "--help")[1]
    assert toy.run("play", "+preset=feast")[2].startswith("feast: many pears\n"), "what it does is said first"
    assert "+preset" not in toy.run("speak", "--help")[1]


def test_lists_numbers_and_added_keys(toy: SimpleNamespace) -> None:
    given = play(toy, "words=[pear,plum]", "seeds=[4,5]", "rate=1", "start=3.5", "+knife.blade.colour=red", "name='7'")
    assert given["words"] == ["pear", "plum"]
    assert (given["seeds"], given["rate"], given["start"], given["name"]) == ([4, 5], 1, 3.5, "7")
    assert given["knife"]["blade"] == {"length_cm": 9.0, "colour": "red"}
    assert play(toy, "words=[pear,apple:a=1,b=2,plum]")["words"] == ["pear", "apple:a=1,b=2", "plum"]
    mapped = play(toy, 'words=[{title: "a, b", policy: "apple:a=1"}]')["words"]
    assert mapped == [{"title": "a, b", "policy": "apple:a=1"}]


@pytest.mark.parametrize(("words", "said"), [
    (["speak"], "list|None|False"), (["speak", "show"], "show|None|False"),
    (["speak", "loud=true", "show", "it's in/a folder,x+y.csv"],
     "show|it's in/a folder,x+y.csv|True"),
    (["speak", "show", "file=a.csv"], "show|a.csv|False"),
    (["speak", "0.5*ooc+azure_conv"], "0.5*ooc+azure_conv|None|False"),
])
def test_words_of_a_command_that_declares_them(toy: SimpleNamespace, words: list[str], said: str) -> None:
    code, out, err = toy.run(*words)
    assert code == 0, err
    assert out.startswith(said + "\n")
    assert "usage: ooco-gym speak [VERB] [FILE] [key=value …]" in toy.run("speak", "--help")[1]


def test_show_configuration(toy: SimpleNamespace) -> None:
    code, out, _ = toy.run("play", "--cfg", "job", "fruit=pear", "out=results")
    assert code == 0
    shown = yaml.safe_load(out)
    assert shown["fruit"]["name"] == "pear"
    assert shown["out"] == str(toy.cwd / "results")
    assert list(toy.cwd.iterdir()) == []
    for word in ("fruit=pear,plum", "fruit=glob(p*)"):
        shown = yaml.safe_load(toy.run("play", "-m", "--cfg", "job", word, "seed=4,5")[1])
        assert (shown["fruit"]["name"], shown["seed"]) == ("pear", 4), "of a sweep the first point"


def test_help(toy: SimpleNamespace) -> None:
    code, out, _ = toy.run()
    assert code == 0
    assert "play" in out
    assert "hands back what it is given" in out
    assert "simulate" in out
    code, out, _ = toy.run("play", "--help")
    assert code == 0
    assert "length_cm: 9.0" in out
    assert "fruit: apple, pear, plum" in out
    assert "a plain value" in out
    assert list(toy.cwd.iterdir()) == []


def sweep(toy: SimpleNamespace, *words: str) -> list[dict[str, Any]]:
    code, out, err = toy.run("play", "-m", "fruit=pear,apple+plum", "seed=1,2", "fast=false", "out=sweep", *words)
    assert code == 0, err
    labels = [f"fruit={fruit},seed={seed}" for fruit in ("pear", "apple+plum") for seed in (1, 2)]
    found = Sweep.read(toy.cwd / "sweep")
    assert found.about["command"] == "play"
    assert (found.columns["point"], set(found.columns["status"])) == (labels, {"done"})
    assert "done" in out
    there = sorted(path.name for path in (toy.cwd / "sweep").iterdir())
    assert there == sorted([*labels, "multirun.yaml", "sweep.parquet"])
    for label in labels:
        assert values(toy.cwd / "sweep" / label)["out"] == str(toy.cwd / "sweep" / label)
    fruits = [values(toy.cwd / "sweep" / label)["fruit"] for label in labels]
    assert fruits[2:] == ["apple+plum"] * 2
    assert fruits[0]["brown_spots"] == 2
    return [json.loads((toy.cwd / "sweep" / label / "summary.json").read_text()) for label in labels]


def test_sweep(toy: SimpleNamespace) -> None:
    assert {summary["pid"] for summary in sweep(toy)} == {os.getpid()}


def test_sweep_in_processes(toy: SimpleNamespace) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    summaries = sweep(toy, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    assert os.getpid() not in {summary["pid"] for summary in summaries}
    assert {summary["cwd"] for summary in summaries} == {str(toy.cwd)}


@pytest.mark.slow
def test_sweep_on_ray(toy: SimpleNamespace) -> None:
    ray = pytest.importorskip("ray")
    pytest.importorskip("hydra_plugins.hydra_ray_launcher")
    try:
        summaries = sweep(toy, "hydra/launcher=ray", "+hydra.launcher.ray.init.num_cpus=2")
        assert os.getpid() not in {summary["pid"] for summary in summaries}
        code, _, err = toy.run("play", "-m", "fail=mistake,bug", "hydra/launcher=ray", "out=bad",
                               "+hydra.launcher.ray.init.num_cpus=2")
        assert code == 1
        assert "error: fail=mistake: row 3 of 'x.csv'" in err
        assert "ZeroDivisionError: a bug in the command" in err
    finally:
        ray.shutdown()


def test_sweep_in_which_some_jobs_fail(toy: SimpleNamespace) -> None:
    code, out, err = toy.run("play", "-m", "fail=mistake,bug,null", "out=sweep")
    assert code == 1
    assert "error: fail=mistake: row 3 of 'x.csv'" in err
    assert "ZeroDivisionError: a bug in the command" in err
    assert Sweep.read(toy.cwd / "sweep").columns["status"] == ["refused", "failed", "done"]
    assert not (toy.cwd / "sweep" / "fail=mistake").exists()
    assert (toy.cwd / "sweep" / "fail=null" / "summary.json").exists()
    assert "1 of 3 points are done" in out


def test_sweep_over_paths_is_numbered(toy: SimpleNamespace) -> None:
    for name in ("bag/x", "bag/y"):
        (toy.cwd / name).mkdir(parents=True)
    assert toy.run("play", "-m", "fruit=bag/x,bag/y", "out=sweep")[0] == 0
    assert [values(toy.cwd / "sweep" / name)["fruit"] for name in ("0", "1")] == ["bag/x", "bag/y"]


def test_sweep_over_policies_with_parameters_and_ranges(toy: SimpleNamespace) -> None:
    assert toy.run("play", "-m", "fruit=apple:a=1,b=2,pear", "seed=range(1,3)", "out=sweep")[0] == 0
    found = {(str(v["fruit"]), v["seed"]) for v in map(values, sorted((toy.cwd / "sweep").glob("*/")))}
    assert {seed for _, seed in found} == {1, 2}
    assert {fruit for fruit, _ in found if fruit.startswith("apple")} == {"apple:a=1,b=2"}


def test_every_description_is_one_line() -> None:
    from ooco_gym.cli.commands import commands, find

    for name in commands():  # a description of two lines would leave its second one over
        if (found := find(name)).roots[-1].joinpath(f"{name}.yaml").is_file():
            assert not found.config.read_text().splitlines()[1].startswith("#"), name
