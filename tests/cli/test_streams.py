"""A reader who goes away, and SIGTERM: commands go on or end quietly, and leave nothing half-written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

WAITS = """
import sys, time
from pathlib import Path
from ooco_gym.files import atomic_write

def {name}(cfg):
    with atomic_write(Path(cfg.out) / "big.bin") as temporary:
        temporary.write_text("half")
        Path("begun").touch()
        time.sleep(60)
"""


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "ooco_gym", *words]


def test_a_locale_of_ascii_alone_is_no_traceback(tmp_path: Path) -> None:
    done = subprocess.run(command("simulate", "--help"), capture_output=True, cwd=tmp_path, check=False,
                          env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0",
                               "PYTHONIOENCODING": "ascii:strict"})
    assert done.returncode == 0 and b"\\u2026" in done.stdout and b"Traceback" not in done.stderr


@pytest.mark.parametrize("words", [("perf", "out=there"), ("--help",), ("figure", "--help")])
def test_a_closed_pipe_is_no_event(tmp_path: Path, words: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)  # without a reader every write fails
    try:
        done = subprocess.run(command(*words), stdout=writing, stderr=subprocess.PIPE, cwd=tmp_path, check=False)
    finally:
        os.close(writing)
    assert done.returncode == 0
    assert [line for line in done.stderr.splitlines() if not line.startswith(b"note: chip ")] == []
    if "out=there" in words:
        assert {"summary.json", "config.yaml"} <= {path.name for path in (tmp_path / "there").iterdir()}


def test_sigterm_leaves_nothing_half_written(toy: SimpleNamespace) -> None:
    (toy.site / "toy_commands" / "functions.py").write_text(WAITS.format(name="quiet"))
    (toy.site / "toy_commands" / "conf" / "quiet.yaml").write_text("# ooco-gym quiet: waits.\nout: null\n")
    process = subprocess.Popen(command("quiet", "out=there"), cwd=toy.cwd, stderr=subprocess.PIPE)
    try:
        while not (toy.cwd / "begun").exists():
            assert process.poll() is None, process.communicate()
        process.terminate()
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, said.strip()) == (143, b"terminated")
    assert [path.name for path in toy.cwd.rglob("*")] == ["begun"]


WORKS = """
import os, signal, time
from ooco_gym.jobs import pool

def work(folder):
    open(os.path.join(folder, "begun"), "w").close()
    time.sleep(600)

def quiet(cfg):
    asked = pool(1).submit(work, cfg.out)
    while not os.path.exists(os.path.join(cfg.out, "begun")):
        time.sleep(0.01)
    os.remove(os.path.join(cfg.out, "begun"))
    os.kill(os.getpid(), signal.SIGINT)
    asked.result()
"""


def heeds_ctrl_c() -> None:
    """What a shell runs in the background ignores it, and so do these tests' own processes then."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_does_not_wait_for_work_that_goes_on(toy: SimpleNamespace) -> None:
    """Of a pool that its command leaves as it is, as some have one for as long as they live."""
    (toy.site / "toy_commands" / "functions.py").write_text(WORKS)
    (toy.site / "toy_commands" / "conf" / "quiet.yaml").write_text("# ooco-gym quiet: works.\nout: null\n")
    ended = subprocess.run(command("quiet", "out=there"), cwd=toy.cwd, stderr=subprocess.PIPE, timeout=300, check=False,
                           preexec_fn=heeds_ctrl_c)
    assert (ended.returncode, ended.stderr.strip()) == (130, b"interrupted")
