"""That the kills try every command, and see what they look for; one command ended by each signal, and begun again."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ooco_gym.cli.commands import commands
from tests.reliability import kills
from tests.reliability.begun import COMMANDS, MARK, Bench, undisturbed


def test_every_command_is_tried() -> None:
    assert {one.words[0] for one in COMMANDS.values()} == {*commands()}


def test_a_command_that_is_ended_and_begun_again_leaves_the_undisturbed_bytes(tmp_path: Path) -> None:
    bench = Bench("import", tmp_path / "import")
    bench.folder.mkdir()
    expected, took_s = undisturbed(bench)
    said = [kills.killed(bench, expected, 0.5 * took_s, by) for by in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)]
    assert [one for one in said if one not in ("", kills.LATE)] == []
    (bench.out / "summary.json").write_text("{}")
    assert bench.contents() != expected


def begun(tmp_path: Path, program: str) -> tuple[Bench, subprocess.Popen[str]]:
    """A bench whose command is a program that says `ready` and waits."""
    bench = Bench("import", tmp_path)
    bench.empty()
    process = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, text=True, env={MARK: bench.mark},
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    kills.send(process, signal.SIGINT)
    return bench, process


WAIT = "print('ready', flush=True); time.sleep(600)"
ENDS = {
    "said Traceback": f"import time; {WAIT}",
    "exit code 3": f"import signal, sys, time; signal.signal(2, lambda *_: sys.exit(3)); {WAIT}",
    "ended in the words": f"import signal, sys, time; signal.signal(2, lambda *_: sys.exit(130)); {WAIT}",
    "left tmp/half": "import signal, sys, time; open('tmp/half', 'w'); "
                     f"signal.signal(2, lambda *_: sys.exit(130)); {WAIT}",
    "processes ran on": "import signal, subprocess, sys, time; "
                        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], "
                        "start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL); "
                        f"signal.signal(2, lambda *_: sys.exit(130)); {WAIT}",
}


@pytest.mark.parametrize("words", ENDS)
def test_a_bad_end_is_seen(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.reliability.begun.ENDS_S", 0.2)
    bench, process = begun(tmp_path, ENDS[words])
    assert words in kills.ended(bench, process, signal.SIGINT)
    assert bench.processes() == []
