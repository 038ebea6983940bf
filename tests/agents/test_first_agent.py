"""The example trains, evaluates and plots, in fewer lines than it promises."""

from __future__ import annotations

import importlib.util
import re
import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("sb3_contrib")
PATH = Path(__file__).resolve().parents[2] / "examples" / "first_agent.py"


def test_the_example_is_short() -> None:
    assert len(PATH.read_text(encoding="utf-8").splitlines()) < 80


def test_what_is_no_number_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch,
                                                  capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [str(PATH), "abc"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(PATH), run_name="__main__")
    assert ended.value.code == 2
    assert "invalid int value: 'abc'" in capsys.readouterr().err


@pytest.mark.slow
def test_the_example_learns_evaluates_and_plots(tmp_path: Path,
                                                capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("first_agent", PATH)
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    page = tmp_path / "page.html"
    example.main(decisions=10_240, page=str(page), seeds=[3000, 3001, 3002, 3003])
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["chance", "OOCO", "learned"]
    found = [re.search(r"; ([+-]\d+\.\d) \[[+-]\d+\.\d, [+-]\d+\.\d\] over OOCO, SLOs missed by \d", line)
             for line in lines]
    gains = [float(one[1]) for one in found if one is not None]
    assert len(gains) == 3 and gains[0] < gains[2], "more than chance: its choice matters, and it has learned to choose"
    assert "while it learns" in page.read_text(encoding="utf-8")
