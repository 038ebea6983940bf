"""The demo goes the whole way on minutes of simulated time, with a rule learned in two generations."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from agents.policies.runs import searched_policy
from agents.search.contest import ratio
from experiments.demo import sentence
from ooco_gym.cli import main
from ooco_gym.policy.registry import policy_named
from tests.html_pages import Page

SMALL = ["demo", "env.window_s=60", "env.warmup_s=10", "window_s=60"]


pytestmark = pytest.mark.usefixtures("own_folder")


def test_demo_learns_tunes_and_compares(capsys):
    assert main([*SMALL, "windows=2", "policies=[offline_first]", "agent.generations=2", "agent.windows=2",
                 "agent.population=4", "agent.validation.windows=2", "agent.halving.first=1", "out=demo"]) == 0
    summary = json.loads(Path("demo/summary.json").read_text())
    learned, page = summary["learned"], Page("demo/report.html")
    held = {one["policy"]: one for one in summary["held_out"]}
    assert held.keys() == {"untrained", "random actions", "offline_first", "turns", "learned", "belady"}
    assert learned["over"].keys() == held.keys() - {"learned"} and learned["best_rule"] in {"offline_first", "turns"}
    assert learned["over"]["turns"]["ratio"] == pytest.approx(
        np.sum(held["learned"]["service"]) / np.sum(held["turns"]["service"]))
    assert {one["windows_played"] for one in summary["searches"].values()} == {learned["windows_played"]}
    assert policy_named(searched_policy("demo/learned")).values == {**learned["parameters"], "client2_s": 0.0,
                                                                    "client3_s": 0.0}
    assert page.texts["p"][0].startswith("Learning how long") and "Learning how long" in capsys.readouterr().out
    assert any(title.startswith("Held-out windows while it learns") for title in page.texts["figcaption"])
    assert [row[0] for row in page.tables[0][1:]] == sorted(held, key=lambda name: np.sum(held[name]["service"]))
    assert page.texts["pre"][-1].startswith("ooco-gym demo ") and "env.window_s=60" in page.texts["pre"][-1]


@pytest.mark.parametrize(("words", "message"), [
    ("policies=[offline_firs]", "did you mean 'offline_first'"), ("windows=1", "windows=1"),
    ("~searches.turns", "a rule that is tuned as long")])
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
    level, ahead = {"ratio": 1.02, "ci_low": 0.97, "ci_high": 1.08}, {"ratio": 1.1, "ci_low": 1.05, "ci_high": 1.15}
    figures = {"over": {"untrained": ahead, "turns": level}, "over_untrained": {"random actions": 0.96, "belady": 1.2},
               "best_rule": "turns", "tuned": True, "bound": "belady", "windows": 24, "wall_s": 40.0, "numbers": 7,
               "windows_played": 1000, "violation_rates": {"untrained": 0.02, "learned": 0.01}}
    said = sentence(figures)
    assert "added 10.0 % [5.0, 15.0] offline work to its own start" in said
    assert "2.0 % [\N{MINUS SIGN}3.0, 8.0] (not significant) more than the best other rule, `turns`, tuned" in said
    assert "random play does \N{MINUS SIGN}4.0 %" in said and "knows what comes, +20.0 %" in said
