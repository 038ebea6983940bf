"""`ooco-gym bench` writes the figures that scripts read, and refuses what it does not know."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ooco_gym.cli import main
from ooco_gym.commands.bench import METRICS


def test_figures_are_written_beside_their_targets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "only=[warm_start]", "repeats=1", f"out={tmp_path / 'b'}"]) == 0
    summary = json.loads((tmp_path / "b" / "summary.json").read_text())
    assert summary["schema"] == "ooco-gym/bench/5" and summary["machine"]["cores"] >= 1
    assert summary["values"] == {"warm_start_s": [summary["warm_start_s"]]} and summary["warm_start_s"] > 0
    names = {metric.name for metric in METRICS}
    assert set(summary["targets"]) == names
    assert all(summary[name] is None for name in names - {"warm_start_s"}), "what was not measured is null"
    shown = capsys.readouterr().out
    assert "warm_start_s" in shown and "fleet_wall_s" not in shown


@pytest.mark.parametrize("override,words", [("only=[dya]", ("dya", "day")), ("repeats=0", ("repeats",))])
def test_mistakes_are_one_sentence(override: str, words: tuple[str, ...], tmp_path: Path,
                                   capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", override, f"out={tmp_path / 'b'}"]) == 2
    error = capsys.readouterr().err
    assert all(word in error for word in words)
    assert len(error.strip().splitlines()) == 1
