"""Files are whole or not there; a disk that takes no more is a sentence."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ooco_gym import peak
from ooco_gym.errors import UserError
from ooco_gym.files import DiskFullError, atomic_write, cache_path
from ooco_gym.study.runs import Store
from ooco_gym.workload.catalogue import data_folder

ANSWER = {"reward": 1.0}


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


def test_a_folder_in_the_place_of_a_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "x.json").mkdir()
    with pytest.raises(UserError, match="cannot write '.*x.json': a folder is in its place"), \
            atomic_write(tmp_path / "x.json") as temporary:
        temporary.write_text("{}")
    assert [one.name for one in tmp_path.iterdir()] == ["x.json"]


def made_anothers(folder: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a folder belong to another user, or be one that others may write to."""
    if how == "writable":
        folder.chmod(0o777)
    elif os.getuid() == 0:
        os.chown(folder, 65534, 65534)
    else:
        mine = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: mine + 1)


@pytest.mark.parametrize("how", ["owner", "writable"])
def test_a_cache_that_another_may_have_written_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                          how: str) -> None:
    """Forged figures were reported: simulations, fits and peak factors are read from there."""
    folder, key = tmp_path / "cache", peak.key_of("mine", "pair_7b", "chat", "first_token")
    monkeypatch.setenv("OOCO_GYM_CACHE", str(folder))
    Store().put("ab12", ANSWER)
    path = cache_path(peak.FILE_NAME)
    assert path is not None
    peak.store_entry({**key, "conditions": peak.PROTOCOL, "factor": 0.25}, path, key)
    assert Store().get("ab12") == ANSWER and peak.stored_entry(key) is not None
    made_anothers(folder, how, monkeypatch)
    with pytest.warns(UserWarning, match=f"the cache is neither read nor written: folder '{folder}' (belongs|can be)"):
        assert Store().get("ab12") is None
    assert cache_path("echo") is None and peak.stored_entry(key) is None
    Store().put("cd34", ANSWER)
    assert not list(folder.rglob("cd34*"))


def test_a_cache_is_made_for_its_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OOCO_GYM_CACHE", str(tmp_path / "new" / "cache"))
    before = os.umask(0)
    try:
        Store().put("ab12", ANSWER)
    finally:
        os.umask(before)
    assert (tmp_path / "new" / "cache").stat().st_mode & 0o777 == 0o700 and Store().get("ab12") == ANSWER


def test_traces_among_the_temporary_files_are_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OOCO_GYM_DATA", raising=False)
    monkeypatch.setattr("ooco_gym.workload.catalogue.user_folder", lambda: tmp_path / "of_uid")
    assert data_folder() == tmp_path / "of_uid" / "traces"
    made_anothers(tmp_path / "of_uid", "writable", monkeypatch)
    with pytest.raises(UserError, match="its traces are not used; set OOCO_GYM_DATA"):
        data_folder()


def test_a_link_in_the_way_of_a_file_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one of the name that it is written under, nor one in its own place."""
    theirs = tmp_path / "theirs"
    theirs.write_text("before")
    (tmp_path / "x.json").symlink_to(theirs)
    with atomic_write(tmp_path / "x.json") as temporary:
        temporary.write_text("{}")
    assert theirs.read_text() == "before" and not (tmp_path / "x.json").is_symlink()
    monkeypatch.setattr("secrets.token_hex", lambda size: "known")
    (tmp_path / ".y.json.known.tmp.json").symlink_to(theirs)
    with pytest.raises(FileExistsError), atomic_write(tmp_path / "y.json") as temporary:
        temporary.write_text("{}")
    assert theirs.read_text() == "before"
