"""Files are whole or not there; a disk that takes no more is a sentence, and what a killed process left goes away."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ooco_gym.errors import UserError
from ooco_gym.files import STALE_S, DiskFullError, atomic_write


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS])
def test_a_disk_that_takes_no_more_is_said_and_leaves_what_was_there(tmp_path: Path, number: int) -> None:
    path = tmp_path / "figures.json"
    path.write_text("before")
    def write() -> None:
        with atomic_write(path, "trace ") as temporary:
            temporary.write_text("half")
            raise OSError(number, "whatever the system says")

    with pytest.raises(DiskFullError, match=f"cannot write trace '{path}': {os.strerror(number)}"):
        write()
    assert [one.name for one in tmp_path.iterdir()] == ["figures.json"] and path.read_text() == "before"


def test_any_other_failure_comes_out_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(ConnectionResetError), atomic_write(tmp_path / "x"):
        raise ConnectionResetError
    assert not list(tmp_path.iterdir())


def test_a_folder_in_the_place_of_a_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "x.json").mkdir()
    with pytest.raises(UserError, match="cannot write '.*x.json': a folder is in its place"), \
            atomic_write(tmp_path / "x.json") as temporary:
        temporary.write_text("{}")
    assert [one.name for one in tmp_path.iterdir()] == ["x.json"]


def test_what_a_killed_process_left_is_removed_after_an_hour(tmp_path: Path) -> None:
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True,
                          check=True).stdout.strip()
    old, fresh, running, other = (tmp_path / name for name in (
        f".x.json.{gone}.tmp.json", f".x.json.{gone}.tmpabc", f".x.json.{os.getpid()}.tmp1", f".y.json.{gone}.tmp"))
    for path in (old, running, other):
        path.write_text("half")
    fresh.mkdir()
    (fresh / "runs.parquet").write_text("half")
    before = time.time() - STALE_S - 60.0
    for path in (old, running, other):
        os.utime(path, (before, before))
    with atomic_write(tmp_path / "x.json") as temporary:
        temporary.write_text("{}")
    assert not old.exists() and fresh.exists() and running.exists() and other.exists()
    os.utime(fresh, (before, before))
    with atomic_write(tmp_path / "x.json") as temporary:
        temporary.write_text("{}")
    assert not fresh.exists()
