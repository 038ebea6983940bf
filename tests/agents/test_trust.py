"""No pickle is read from a run that another wrote, unless the user says so."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest

from agents.learning import trust
from agents.learning.runs import STATE_FILE, load_run, read_state
from ooco_gym.cli import main
from ooco_gym.errors import UserError

SAID = "was not written by a training of this user on this machine"


class Attack:
    """Leaves a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return Path.touch, (Path(self.path),)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv(trust.VARIABLE, raising=False)
    return tmp_path


def archive(path: Path, text: bytes = b"weights") -> Path:
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("policy.pth", text)
    return path


def test_what_i_have_signed_is_read_also_from_a_copy_and_nothing_else(mine: Path) -> None:
    path = archive(mine / "policy.zip")
    with pytest.raises(UserError, match=SAID):
        trust.check_archive(path)
    trust.sign_archive(path)
    trust.check_archive(path)
    copy = mine / "copy.zip"
    copy.write_bytes(path.read_bytes())
    trust.check_archive(copy)
    with zipfile.ZipFile(copy, "a") as changed:
        changed.writestr("data", b"another member")
    with pytest.raises(UserError, match=SAID):
        trust.check_archive(copy)
    trust.check_archive(copy, trust=True)
    content = trust.sign(b"state")
    assert trust.verify(path, content) == b"state"
    for wrong in (content[:-1] + b"x", b"state", content[:30]):
        with pytest.raises(UserError, match=SAID):
            trust.verify(path, wrong)


def test_another_users_key_is_another_one(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content, path = trust.sign(b"state"), archive(mine / "policy.zip")
    trust.sign_archive(path)
    assert oct((mine / "state" / "ooco-gym" / "key").stat().st_mode)[-3:] == "600"
    monkeypatch.setenv("XDG_STATE_HOME", str(mine / "another"))
    for check in (lambda: trust.verify(path, content), lambda: trust.check_archive(path)):
        with pytest.raises(UserError, match=SAID):
            check()
    monkeypatch.setenv(trust.VARIABLE, "1")
    assert trust.verify(path, content) == b"state"


def test_a_key_that_others_may_write_does_not_count(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = mine / "state" / "ooco-gym" / "key"
    key.parent.mkdir(parents=True)
    key.write_bytes(bytes(32))
    key.chmod(0o666)
    trust._key.cache_clear()
    assert trust._key(key) is None
    key.chmod(0o600)
    trust._key.cache_clear()
    assert trust._key(key) == bytes(32)


def test_no_code_of_a_run_that_another_wrote_is_run(mine: Path) -> None:
    marker, run = mine / "was_here", mine / "run"
    (run / "checkpoints").mkdir(parents=True)
    bad = pickle.dumps(Attack(marker))
    (run / STATE_FILE).write_bytes(zlib.compress(bad))
    with pytest.raises(UserError, match=SAID):
        read_state(run)
    (run / "config.yaml").write_text("env: {id: ooco_gym/Gating-v0}\nagent: {name: maskable_ppo}\n")
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as made:
        made.writestr("data", b"{}")
        made.writestr("policy.pth", bad)
    (run / "policy.zip").write_bytes(memory.getvalue())
    with pytest.raises(UserError, match=SAID):
        load_run(run)
    assert not marker.exists()


def test_the_command_line_says_trust_for_one_command(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["perf", "chip=l40s", "model=qwen2_5_7b", "trust=true", f"out={mine / 'out'}"]) == 0
    assert trust.VARIABLE not in os.environ
    assert main(["perf", "trust=yes", f"out={mine / 'out'}"]) == 2
    assert "'trust=yes' must be trust=true" in capsys.readouterr().err
