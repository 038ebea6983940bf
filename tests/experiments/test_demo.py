"""The demo goes the whole way on minutes of simulated time: with a gate learned in two generations, and without."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from agents.search.contest import ratio
from experiments.demo import sentence
from ooco_gym.cli import main
from ooco_gym.resources import load_yaml
from tests.html_pages import Page

SMALL = ["demo", "env.window_s=60", "env.warmup_s=10"]
TWO = ["windows=2", "policies=[ooco,slack]"]


pytestmark = pytest.mark.usefixtures("own_folder")


def test_demo_learns_tunes_and_compares(capsys):
    assert main([*SMALL, *TWO, "agent.generations=1", "agent.windows=2", "agent.population=4",
                 "agent.validation.windows=2", "agent.halving.first=1", "out=demo"]) == 0
    summary = json.loads(Path("demo/summary.json").read_text())
    learned, page = summary["learned"], Page("demo/report.html")
    assert learned["over"].keys() == {"ooco_tuned", "memory_gate_tuned", "ooco", "slack"}
    assert learned["ratio_to_ooco"] == learned["over"]["ooco"]["ratio"] >= learned["ci_low"]
    assert {one["windows_played"] for one in summary["searches"].values()} == {learned["windows_played"]}
    entrants = [one["policy"] for one in summary["held_out"]]
    assert entrants == ["ooco", "gate", "ooco_tuned", "memory_gate_tuned", "slack"]
    assert Path("demo/gate/policy.yaml").is_file()
    assert page.texts["p"][0].startswith("A gate learned in") and "A gate learned in" in capsys.readouterr().out
    assert any(title.startswith("Best validation score so far") for title in page.texts["figcaption"])
    assert [row[0] for row in page.tables[0][1:]] == entrants
    assert page.texts["pre"][-1].startswith("ooco-gym demo ") and "env.window_s=60" in page.texts["pre"][-1]


@pytest.mark.parametrize(("words", "message"), [
    ("policies=[oco]", "did you mean 'ooco'"), ("windows=1", "windows=1"),
    ("reference=hygen", "reference=hygen must be one of")])
def test_demo_refuses_what_makes_no_sense(words, message, capsys):
    assert main([*SMALL, words, "out=demo"]) == 2
    assert message in capsys.readouterr().err
    assert not Path("demo").exists()


def test_the_sentence_claims_no_more_than_the_interval_holds():
    rng = np.random.default_rng(1)
    theirs = rng.uniform(1, 2, 24)
    assert list(ratio(2 * theirs, theirs).values()) == pytest.approx([2.0, 2.0, 2.0])
    mine, halves = theirs * rng.uniform(0.5, 1.6, 24), np.repeat([0, 1], 12)
    for found in (ratio(mine, theirs), ratio(mine, theirs, halves)):
        assert found["ci_low"] < found["ratio"] < found["ci_high"]
    twice = np.where(halves == 0, 4 * theirs, theirs)
    assert ratio(twice, theirs, halves)["ratio"] == pytest.approx(2.0)  # the geometric mean of the conditions
    options = {**load_yaml("", "demo"), "reference": "ooco"}
    level = {"ratio": 1.02, "ci_low": 0.97, "ci_high": 1.08}
    figures = {"over": {"ooco": level, "ooco_tuned": level, "memory_gate_tuned": level}, "ci_low": 0.97, "windows": 24,
               "wall_s": 40.0, "windows_played": 1000, "violation_rate": 0.01, "violation_budget": 0.03}
    assert "on this machine" in sentence(figures, options), "of what is level"
    ahead = {**level, "ci_low": 1.01}
    untuned = {**figures, "over": {**figures["over"], "ooco": ahead}}
    assert "does not serve significantly more" in sentence(untuned, options), "ahead of what was not tuned alone"
    assert "windows) serves, on" in sentence({**figures, "over": dict.fromkeys(figures["over"], ahead)}, options)
