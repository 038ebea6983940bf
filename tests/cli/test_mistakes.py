"""Every mistake ends in one sentence, exit code 2, and leaves nothing behind."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ooco_gym.cli import job
from ooco_gym.errors import Terminated

MISTAKES = [
    # words, what the sentence must say
    (["plya"], ["unknown command 'plya'", "'play'"]),
    (["seed=1"], ["unknown command 'seed=1'", "expected one of: "]),
    (["play", "--fast"], ["unrecognized arguments: --fast"]),
    (["play", "sead=1"], ["play has no key 'sead'", "'seed'"]),
    (["play", "knife.blade.lenght_cm=1"], ["'knife.blade.lenght_cm'", "'knife.blade.length_cm'"]),
    (["play", "length_cm=1"], ["'length_cm'", "'knife.blade.length_cm'"]),
    (["play", "zzzzzz=1"], ["has no key 'zzzzzz'", "its keys: ", "knife"]),
    (["play", "knife.zzzzzz=1"], ["knife has no key 'knife.zzzzzz'; its keys: knife.blade, knife.sharp"]),
    (["play", "seed.x=1"], ["has no key 'seed.x'"]),
    (["play", "+new=1"], ["has no key 'new'"]),
    (["play", "~sed"], ["has no key 'sed'", "'seed'"]),
    (["play", "fruit=aple"], ["unknown fruit 'aple'", "'apple'"]),
    (["play", "fruit=[apple,pear]"], ["expected the name of one, such as fruit=apple", "-m fruit=a,b runs each"]),
    (["play", "fruit=apple,pear"], ["several values", "-m"]),
    (["play", "fruit=apple+peer"], ["unknown fruit 'peer'", "'pear'"]),
    (["play", "fruit=no/such.yaml"], ["'no/such.yaml' does not exist"]),
    (["play", "fruit=1"], ["fruit=1: expected the name of one, such as fruit=apple"]),
    (["play", "~fruit"], ["cannot be removed"]),
    (["play", "fruit=pear", "fruit.core.seeds_in_it=1"], ["'fruit.core.seeds_in_it'"]),
    (["play", "fruit=apple+pear", "fruit.weight_g=1"], ["cannot be set", "fruit=apple+pear"]),
    (["play", "fruit@knife=pear"], ["no key 'fruit@knife'"]),
    (["play", "-m", "fruit=apple,peer"], ["unknown fruit 'peer'"]),
    (["play", "-m", "fruit=apple,pear", "fruit.brown_spots=1"], ["'fruit.brown_spots'"]),
    (["play", "seed"], ["'seed' is not key=value"]),
    (["play", "words=[a"], ["cannot be read"]),
    (["play", "seed=many"], ["seed=many: expected a number"]),
    (["play", "seed=[1,2]"], ["expected a number"]),
    (["play", "fast=yes-please"], ["expected true or false"]),
    (["play", "name=3"], ["expected text"]),
    (["play", "words=a"], ["expected a list, such as words=[a]"]),
    (["play", "knife=3"], ["knife=3: expected a group of keys"]),
    (["play", "knife={sharpness: 1}"], ["no key 'sharpness'", "'sharp'"]),
    (["play", "knife.blade={length_cm: long}"], ["knife.blade.length_cm=long: expected a number"]),
    (["play", "seed=1", "seed=2"], ["seed is given twice"]),
    (["play", "out="], ["out is empty"]),
    (["play", "hydra/launcher=jobli", "-m", "seed=1,2"], ["unknown hydra/launcher 'jobli'", "'joblib'", "[sweep]"]),
    (["play", "hydra.jobb.chdir=true"], ["'hydra.jobb.chdir'", "hydra.job.chdir"]),
    (["play", "fail=mistake", "out=results"], ["row 3 of 'x.csv': field 'arrival_s' is 'soon', expected a number"]),
    (["play", "-m", "fail=mistake", "seed=1,2", "out=results"], ["row 3 of"]),
    (["play", "fail=extra"], ["needs the package 'torch'", "ooco-gym[train]"]),
    (["play", "hydra.run.dir=here"], ["out=DIR"]),
    (["play", "+preset=feats"], ["unknown preset 'feats'", "'feast'"]),
    (["play", "+preset=odd"], ["preset=odd sets 'spoons', which play does not have"]),
    (["play", "+preset=feast", "knife.sharp=very"], ["knife.sharp=very: expected true or false"]),
    (["quiet"], ["fruit is required"]),
    (["speak", "show", "a.csv", "b.csv"], ["'b.csv' is not key=value", "at most 2 words without '=' (verb, file)"]),
    (["speak", "show", "verb=list"], ["verb is given twice"]),
    (["lost"], ["'lost' has no configuration", "lost.yaml"]),
]


@pytest.mark.parametrize(("words", "parts"), MISTAKES, ids=" ".join)
def test_one_sentence(toy: SimpleNamespace, words: list[str], parts: list[str]) -> None:
    code, out, err = toy.run(*words)
    assert code == 2, err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    for part in parts:
        assert part in err, err
    assert out == ""
    assert list(toy.cwd.iterdir()) == []


def test_out_is_a_file(toy: SimpleNamespace) -> None:
    (toy.cwd / "results").write_text("mine")
    code, _, err = toy.run("play", "out=results")
    assert (code, err) == (2, f"error: out=results cannot be used: '{toy.cwd / 'results'}' is no folder\n")
    assert (toy.cwd / "results").read_text() == "mine"


def test_bug_keeps_its_traceback(toy: SimpleNamespace) -> None:
    code, _, err = toy.run("play", "fail=bug", "out=results")
    assert code == 1
    assert err.startswith("Traceback")
    assert err.rstrip().endswith("ZeroDivisionError: a bug in the command")
    assert "functions.py" in err
    assert not (toy.cwd / "results" / "summary.json").exists()


def stopped(cfg: Any) -> dict[str, str]:
    """A command that a signal stops: it says so, or compiled code has made another error of it."""
    if cfg.fruit == "apple":
        return {"stopped_by": "interrupt", "signal": "SIGTERM"}
    if cfg.fruit == "pear":
        return {"stopped_by": "interrupt"}
    try:
        raise Terminated if cfg.fruit == "cherry" else KeyboardInterrupt
    except KeyboardInterrupt as error:
        raise TypeError("compiled code has an error of its own") from error


@pytest.mark.parametrize(("fruit", "code", "said"), [
    ("apple", 143, "terminated"), ("pear", 130, "interrupted"), ("plum", 130, "interrupted"),
    ("cherry", 143, "terminated")])
def test_what_was_stopped_by_a_signal_ends_so(toy: SimpleNamespace, monkeypatch: pytest.MonkeyPatch,
                                              fruit: str, code: int, said: str) -> None:
    monkeypatch.setattr(job, "load", lambda function: stopped)
    ended, _, err = toy.run("quiet", f"fruit={fruit}", "out=there")
    assert (ended, err.strip()) == (code, said)
    assert (toy.cwd / "there" / "summary.json").is_file() == (fruit in ("apple", "pear"))


def test_a_sweep_ends_with_the_point_that_is_stopped(toy: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "load", lambda function: stopped)
    ended, _, err = toy.run("quiet", "-m", "fruit=pear,apple", "out=there")
    assert ended == 130 and err.strip().splitlines()[-1] == "interrupted"
    assert sorted(path.name for path in (toy.cwd / "there").iterdir()) == ["fruit=pear"]


def test_interrupt(toy: SimpleNamespace) -> None:
    code, _, err = toy.run("play", "fail=stop", "out=results")
    assert (code, err) == (130, "\ninterrupted\n")


@pytest.mark.parametrize("content", [b"weight_g: [1", b"weight_g: \xff\xfe", b"[" * 5000])
def test_a_file_of_ones_own_that_is_no_yaml_is_named(toy: SimpleNamespace, content: bytes) -> None:
    (toy.cwd / "rotten.yaml").write_bytes(content)
    for words in (("fruit=rotten.yaml",), ("fruit=rotten.yaml", "-m", "seed=1,2")):
        code, _, err = toy.run("play", *words, "out=results")
        assert code == 2 and err.count("\n") == 1 and "rotten.yaml' " in err, err
        assert "is not valid YAML" in err or "cannot be read: it is no text" in err
        assert not (toy.cwd / "results").exists()


@pytest.mark.parametrize("word", ["seed=" + "[" * 900 + "]" * 900, "fruit=" + "a" * 300, "fruit=" + "a/" * 200,
                                  "fruit=apple:" + "x" * 300, f"fruit={'a' * 300}.yaml", "seed=" + "{a: " * 500])
def test_a_word_that_is_too_long_or_too_deep_is_one_sentence(toy: SimpleNamespace, word: str) -> None:
    code, _, err = toy.run("play", word, "knife.sharp=4", "out=results")
    assert code == 2 and err.count("\n") == 1 and err.startswith("error: "), err
