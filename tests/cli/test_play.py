"""`ooco-gym play`, driven by lines that are piped in."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from ooco_gym.cli import main
from ooco_gym.commands import play as play_command
from ooco_gym.envs.decision import asked

SHORT = ("window_s=20", "warmup_s=60")


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Gives `run(lines, *overrides)` -> (exit code, stdout, stderr, summary)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    def run(lines: str, *words: str) -> tuple[int, str, str, dict[str, Any]]:
        monkeypatch.setattr("sys.stdin", io.StringIO(lines))
        given = {word.partition("=")[0] for word in words}
        short = [word for word in SHORT if word.partition("=")[0] not in given]
        code = main(["play", *short, f"out={tmp_path / 'out'}", *words])
        captured, file = capsys.readouterr(), tmp_path / "out" / "summary.json"
        return code, captured.out, captured.err, json.loads(file.read_text()) if file.is_file() else {}

    return run


@pytest.mark.parametrize("env", ["gating", "preemption", "packing", "control"])
def test_enter_and_p_are_the_partner(play: Any, env: str) -> None:
    code, out, _, summary = play("\np 2\n\n", f"env={env}")
    assert code == 0
    assert summary["you"] == summary["partner_alone"]
    assert summary["decisions"] == {"all": len(summary["actions"]), "yours": 2, "different": 0}
    assert "decision 1:" in out and "decision 3:" not in out and "decision 4:" in out
    assert "ooco alone" in out


def test_a_partner_of_other_parameters_is_asked_as_it_is(play: Any) -> None:
    """One whose gate stays shut: what it would do is decline, and not what the policy of its name would."""
    spelled = play("0\n" * 6, "env=gating", "partner=ooco:gate=never")[1]
    _, out, _, summary = play("0\n" * 6, "env=gating", "partner={name: ooco, gate: never}")
    assert summary["partner"] == "ooco" and out == spelled


def test_migration_goes_on_picking_as_the_partner_does(play: Any) -> None:
    """In the midst of picks the partner's own action is not legal: Enter takes its next pick."""
    _, _, _, summary = play("2\n" + "\n" * 12, "env=migration", "window_s=10")
    assert summary["decisions"]["yours"] == 13
    assert summary["decisions"]["different"] == 0
    assert summary["you"] == summary["partner_alone"]


def test_no_input_leaves_all_to_the_partner(play: Any) -> None:
    code, _, _, summary = play("", "env=eviction", "seed=4", "window=2")
    assert code == 0
    assert (summary["seed"], summary["window"]) == (4, 2)
    assert summary["decisions"]["yours"] == 0
    assert summary["you"] == summary["partner_alone"]


def test_what_was_typed_is_what_was_played(play: Any) -> None:
    _, out, _, summary = play("0\n0\n0\nq\n", "env=gating")
    assert summary["actions"][:3] == [0, 0, 0]
    assert summary["decisions"]["yours"] == 3
    env: Any = gym.make(summary["env"], window_s=20.0, warmup_s=60.0).unwrapped
    env.reset(seed=summary["seed"], options={"window": summary["window"]})
    for action in summary["actions"]:
        *_, over, info = env.step(action)
    assert over and info["summary"] == summary["you"]
    assert "reward" in out and "hold: decode what is resident" in out


def test_steps_end_the_persons_part(play: Any) -> None:
    _, out, _, summary = play("0\n" * 50, "env=gating", "steps=4")
    assert summary["decisions"]["yours"] == 4
    assert "decision 5:" not in out


def test_mistakes_are_asked_again(play: Any) -> None:
    code, out, _, summary = play("99\nx\np 0\np a b\n0\nq\n", "env=gating")
    assert code == 0
    assert summary["decisions"]["yours"] == 1
    for words in ("99 is not legal here; legal are 0, 1", "'x' is no answer", "'p 0': N must", "'p a b': N must"):
        assert words in out


def test_control_takes_levels_by_place_and_by_name(play: Any) -> None:
    _, out, _, summary = play("0 2 2 3 4 2\nslo_margin=4 interrupt=0\n9 9\nslo_margin=7\nsize=1\nq\n", "env=control")
    assert summary["actions"][:2] == [[0, 2, 2, 3, 4, 2], [4, 2, 2, 3, 4, 0]]
    assert summary["decisions"]["different"] == 2
    for words in ("expected 6 levels, or name=level", "slo_margin=7: levels are 0 to 4", "no parameter 'size'"):
        assert words in out


@pytest.mark.parametrize("words, sentence", [
    (("env=gatting",), "unknown env 'gatting' (did you mean 'gating'?)"),
    (("stps=3",), "play has no key 'stps' (did you mean 'steps'?)"),
    (("seed=1.5",), "seed=1.5 must be a whole number of at least 0"),
    (("shift=brust",), "unknown shift 'brust' (did you mean 'burst'?)"),
    (("partner=missing",), "unknown policy 'missing'"),
])
def test_mistakes_of_the_command_are_one_sentence(play: Any, words: tuple[str, ...], sentence: str) -> None:
    code, out, err, _ = play("", *words)
    assert code == 2
    assert out == ""
    assert sentence in err and err.count("\n") == 1


def test_overrides_of_the_environment_reach_it(play: Any) -> None:
    _, out, _, summary = play("q\n", "env=packing", "env.levels=[0.5,0.9]", "env.interval_s=5")
    assert len(summary["actions"]) == 4
    assert "2-3  fill steps up to this share of the TPOT SLO" in out


@pytest.mark.parametrize("name", ["Eviction", "Gating", "Preemption", "Migration", "Packing", "Colocation", "Routing"])
def test_the_screen_shows_every_legal_action_and_marks_one(name: str) -> None:
    """What is marked as the partner's is one of the legal actions, and its own run takes it."""
    from rich.console import Console

    env: Any = gym.make(f"ooco_gym/{name}-v0", window_s=5.0, warmup_s=60.0).unwrapped
    observation, _ = env.reset(seed=2, options={"window": 0})
    for _ in range(6):
        if not asked(observation):
            break
        console = Console(file=io.StringIO(), width=120, record=True)
        wanted = env.rule_action("ooco")
        console.print(play_command.decision(env, observation, 1))
        console.print(play_command.choices(env, observation, "ooco", wanted))
        text = console.export_text()
        legal = np.flatnonzero(observation["action_mask"])
        assert observation["action_mask"][wanted]
        for action in legal[legal >= 2]:
            assert any(line.strip().startswith(f"{action} ") for line in text.splitlines())
        assert text.count("<- ooco") <= 1
        observation, *_ = env.step(env.partner_action() if observation["action_mask"][1] else wanted)
