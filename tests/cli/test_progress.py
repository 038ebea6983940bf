"""Progress bars are silent where there is no terminal, and seen on a terminal."""

from __future__ import annotations

import io
import sys
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


def test_long_work_says_so_without_a_terminal(capsys: pytest.CaptureFixture[str],
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "FIRST_LINE_S", 0.02)
    with progress("working", total=3) as bar:
        bar.advance()
        bar.text("validating 3/8")
        time.sleep(0.3)
    assert capsys.readouterr() == ("", "validating 3/8, 1/3 (0:00, 0:00 left)\n")
    with progress("compiling"):
        time.sleep(0.3)
    assert capsys.readouterr() == ("", "compiling (0:00)\n"), "what is not counted has no number"


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


def test_the_first_line_comes_within_five_seconds_of_a_start() -> None:
    assert terminal.FIRST_LINE_S <= 2.0, "and Python and Hydra take up to three before it"
