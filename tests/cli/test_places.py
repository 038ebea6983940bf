"""Odd places for results, and odd folders to start in: a sentence, or a result like any other."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest


@pytest.mark.parametrize(("out", "said"), [
    ("loop/x", "out=loop/x cannot be used: Too many levels of symbolic links; expected a folder"),
    ("dangling/x", "dangling' is no folder"),
    ("x" * 300, "cannot be used: File name too long; expected a folder"),
    ("ü" * 130 + "/a", "cannot be used: File name too long; expected a folder"),
    ("a\x07b", "has a control character in it; expected"),
    ("a\nb", "has a control character in it; expected"),
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


def test_a_working_directory_with_an_escape_in_its_name_is_named(toy: SimpleNamespace,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    (toy.cwd / "d\x1b[31me").mkdir()
    monkeypatch.chdir(toy.cwd / "d\x1b[31me")
    code, _, err = toy.run("play")
    assert code == 2 and "d\\x1b[31me" in err and "None" not in err and "\x1b" not in err


def test_a_working_directory_that_is_gone(toy: SimpleNamespace, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    code, _, err = toy.run("play", "out=x")
    os.chdir(tmp_path)
    assert (code, err) == (2, "error: the working directory has been deleted; change to one that exists (cd)\n")


FULL = """
import errno, os
from pathlib import Path

def {name}(cfg):
    Path(cfg.out, "checkpoint").write_text("hours of work")
    raise OSError(errno.ENOSPC, "No space left on device", str(Path(cfg.out, "next")))
"""


def test_a_full_disk_is_said_and_what_was_written_stays(toy: SimpleNamespace) -> None:
    (toy.site / "toy_commands" / "functions.py").write_text(FULL.format(name="quiet"))
    (toy.site / "toy_commands" / "conf" / "quiet.yaml").write_text("# ooco-gym quiet: fills the disk.\nout: null\n")
    done = subprocess.run([sys.executable, "-m", "ooco_gym", "quiet", "out=there"], cwd=toy.cwd, text=True,
                          stderr=subprocess.PIPE, check=False)
    where = toy.cwd / "there"
    said = f"error: cannot write '{where / 'next'}': No space left on device; make room, or choose another out\n"
    assert (done.returncode, done.stderr) == (2, said)
    assert (where / "checkpoint").read_text() == "hours of work"


def test_a_folder_that_another_command_writes_into_is_refused(toy: SimpleNamespace) -> None:
    """Until that one has ended, however it did."""
    (toy.cwd / "results").mkdir()
    other = os.open(toy.cwd / "results", os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    code, _, said = toy.run("play", "out=results")
    assert code == 2 and "another command writes into" in said
    os.close(other)
    assert toy.run("play", "out=results")[0] == 0 == toy.run("play", "out=results")[0]
