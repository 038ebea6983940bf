"""Odd places for results, and odd folders to start in: a sentence, or a result like any other."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest


@pytest.mark.parametrize(("out", "said"), [
    ("loop/x", "is a symbolic link that leads nowhere, or in a circle"),
    ("dangling/x", "is a symbolic link that leads nowhere, or in a circle"),
    ("x" * 300, "a name of 300 bytes; folders have at most 255"),
    ("ü" * 130 + "/a", "a name of 260 bytes; folders have at most 255"),
    ("a\x07b", "has a control character in it; expected the name of a folder"),
    ("a\nb", "has a control character in it; expected the name of a folder"),
])
@pytest.mark.parametrize("sweep", [False, True])
def test_places_that_cannot_be_written_are_refused_in_a_sentence(toy: SimpleNamespace, out: str, said: str,
                                                                 sweep: bool) -> None:
    (toy.cwd / "loop").symlink_to("loop")
    (toy.cwd / "dangling").symlink_to("nowhere")
    before = sorted(toy.cwd.iterdir())
    code, _, err = toy.run("play", f"out={out}", *(["-m", "seed=1,2"] if sweep else []))
    assert code == 2 and said in err and err.count("\n") == 1
    assert sorted(toy.cwd.iterdir()) == before


def test_a_link_to_a_folder_is_a_folder(toy: SimpleNamespace) -> None:
    (toy.cwd / "there").mkdir()
    (toy.cwd / "link").symlink_to("there")
    assert toy.run("play", "out=link/x")[0] == 0
    assert (toy.cwd / "there" / "x" / "summary.json").is_file()


def test_a_working_directory_that_is_gone(toy: SimpleNamespace, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    code, _, err = toy.run("play", "out=x")
    os.chdir(tmp_path)
    assert (code, err) == (2, "error: the working directory has been deleted; change to one that exists (cd)\n")


def test_what_hydra_left_in_a_killed_sweep_is_removed(toy: SimpleNamespace) -> None:
    (toy.cwd / "sweep").mkdir()
    (toy.cwd / "sweep" / "multirun.yaml").write_text("hydra: {}\n")
    assert toy.run("play", "-m", "seed=1,2", "out=sweep")[0] == 0
    assert sorted(path.name for path in (toy.cwd / "sweep").iterdir()) == [
        "multirun.json", "points.parquet", "seed=1", "seed=2"]
