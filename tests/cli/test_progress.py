"""Progress bars are silent where there is no terminal, and seen on a terminal."""

from __future__ import annotations

import io
import sys
import threading
import time

import pytest

from ooco_gym.report import terminal
from ooco_gym.report.terminal import progress, track, watched


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(track(range(3), "counting")) == [0, 1, 2]
    with progress("working", total=2) as bar:
        bar.advance()
        bar.text("still working")
    assert capsys.readouterr() == ("", "")


def test_long_work_says_so_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    bar, seen = terminal.Bar("working"), threading.Event()
    for total, said in ((None, "working (0:00)"), (3, "working, 0/3 (0:00)")):  # what is not counted has no number
        def told(total: int | None = total) -> float:
            return terminal._tell(bar, total, time.monotonic()) + bool(seen.set())

        with terminal.following(told, 0.0):
            assert seen.wait(60.0)
        assert capsys.readouterr() == ("", f"{said}\n")
        seen.clear()
    bar.advance()
    terminal._tell(bar, 3, time.monotonic())
    assert capsys.readouterr().err == "working, 1/3 (0:00, 0:00 left)\n"


def test_seen_on_a_terminal_but_not_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("CI", raising=False)
    with progress("working", total=2) as bar:
        bar.advance()
        bar.text("nearly done")
    assert "nearly done" in screen.getvalue()
    monkeypatch.setenv("CI", "true")
    assert not watched()
