"""Whether a model finds what was planted in decisions, and nothing where nothing is."""

from __future__ import annotations

import json

import numpy as np
import pytest

from agents.evaluation.headroom import Played, gains, judged, resolution, words
from ooco_gym.cli import main


def decisions(planted: float, constant: float = 0.0, n: int = 600, windows: int = 30) -> list[Played]:
    """Decisions with five actions of four figures each, whose outcomes are noise and, planted, a part of the figures;
    `constant`: what action 3 always has."""
    draws = np.random.default_rng(0)
    made = []
    for index in range(n):
        features = draws.standard_normal((5, 4))
        outcomes = planted * features @ np.array([1.0, -0.5, 0.0, 0.0]) + draws.standard_normal(5) + index % 7
        outcomes[3] += constant
        made.append(Played(index % windows, np.arange(5), features, outcomes))
    return made


def recorded(played: list[Played]) -> list[dict]:
    return [{"decisions": 1000, "service": 50.0, "played": [one for one in played if one.window == window]}
            for window in range(30)]


def test_what_is_planted_is_found_and_the_placebo_has_none_of_it() -> None:
    found = judged(recorded(decisions(1.0)), 1)
    best = np.mean([one.outcomes.max() - one.outcomes.mean() for one in decisions(1.0)])
    assert found["learnable"] and 0.6 * best < found["model"]["mean"] < best
    assert found["placebo"]["low"] < 0.0 < found["placebo"]["high"]


@pytest.mark.parametrize("constant", [0.0, 2.0])
def test_where_only_a_constant_choice_matters_nothing_is_left_to_learn(constant: float) -> None:
    """Without a feature that tells action 3, the constant choice is better than any model."""
    found = judged(recorded(decisions(0.0, constant)), 1)
    assert not found["learnable"] and (found["model"]["mean"] < 0.15)


def test_windows_without_service_have_no_gain_that_would_show() -> None:
    found = {**judged(recorded(decisions(0.0)), 1), "service_a_window": 0.0, "episodes": 30}
    assert resolution(found) == float("inf") and "inf%" in words(found)


def test_gains_are_of_windows_that_the_model_has_not_seen() -> None:
    """Outcomes that follow a figure within each window, but the other way in the next one, teach nothing."""
    played = [Played(one.window, one.choices, one.features, one.features[:, 0] * (1 if one.window % 2 else -1))
              for one in decisions(0.0)]
    assert abs(gains(played)[:, 0].mean()) < 0.25


def test_the_command_plays_decisions_out(tmp_path) -> None:
    assert main(["headroom", "env=gating", "learnable=true", "episodes=5", "decisions=10", "window_s=120",
                 "horizon_s=60", "warmup_s=30", f"out={tmp_path}/L"]) == 0
    found = json.loads((tmp_path / "L" / "headroom.json").read_text("utf-8"))
    assert found["decisions"] == 10 and found["spread"] > 0 and found["model"]["low"] is not None


@pytest.mark.parametrize(("setting", "words"), [
    ("learnable=false", "evaluate policies=[all]"), ("decisions=3", "decisions"), ("horizon_s=0", "horizon_s"),
    ("window_s=-1", "window_s"), ("seeds=[a]", "seeds"), ("episodes=4", "episodes")])
def test_bad_values_are_refused(tmp_path, capsys, setting, words) -> None:
    assert main(["headroom", "env=gating", setting, f"out={tmp_path}/L"]) == 2
    assert words in capsys.readouterr().err
