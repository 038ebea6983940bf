"""Whether plans for known windows are found, and are compared with what heuristics do."""

from __future__ import annotations

import json

import gymnasium as gym
import numpy as np
import pytest

import ooco_gym  # noqa: F401
from agents.evaluation.headroom import ascend, summarised
from agents.evaluation.play_outs import PlayOuts
from ooco_gym.cli import main
from ooco_gym.envs import register_all

BEST = np.array([[2, 0], [0, 1], [1, 1]])  # of three parts and two parameters


def distance(plan: np.ndarray) -> float:
    return -float(np.abs(plan - BEST).sum())


def test_coordinate_ascent_finds_the_best_plan_and_the_best_constant() -> None:
    constant, best, tried = ascend(distance, np.array([2, 1]), (3, 2), 3, 2)
    assert (constant, best) == (-3.0, 0.0)  # constantly 1 and 1: 1 + 1, 1 and 0 away
    assert tried == 1 + 3 * (1 + 2 * 3)  # the start, then 2 + 1 other levels: of all parts, and of each of three twice


def test_a_plan_is_never_worse_than_its_start() -> None:
    noise = np.random.default_rng(1)
    start = ascend(lambda plan: float(noise.normal()), np.zeros(2, int), (2, 2), 4, 1)
    assert start[1] >= start[0]


def record(plan: float, oracle: float) -> dict:
    one = {"reward": 50.0, "decisions": 20, "service": 0.5, "violations": 0.01}
    return {"random": one, "base_policy": one, "heuristic": one, "plan": plan, "play_outs": 7,
            "oracle": {"service": oracle, "violations": 0.0}}


@pytest.mark.parametrize(("plan", "oracle", "label"), [
    (50.9, 0.5, "nothing found"), (51.1, 0.5, "open"), (50.0, 0.52, "open")])
def test_labels_follow_from_gains_in_shares_of_the_service(plan: float, oracle: float, label: str) -> None:
    found = summarised([record(plan, oracle)] * 3, 100.0)
    assert found["label"] == label and found["plan"]["mean"] == pytest.approx((plan - 50.0) / 100.0 / 0.5)
    assert found["oracle"]["mean"] == pytest.approx(oracle / 0.5 - 1.0) and found["plan"]["play_outs"] == 21


@pytest.mark.parametrize("words", [["env=gating", "parts=2", "sweeps=1"], ["env=eviction", "decisions=5"],
                                   ["env=admission", "parts=1", "sweeps=1", "oracle={lengths.error: 0.0}"]])
def test_the_command_plans_windows(tmp_path, words) -> None:
    assert main(["headroom", *words, "episodes=2", "window_s=60", "warmup_s=30", "heuristic=base_policy",
                 f"out={tmp_path}/H"]) == 0
    found = json.loads((tmp_path / "H" / "headroom.json").read_text("utf-8"))
    assert found["plan"]["low"] >= 0.0 and found["plan"]["play_outs"] > 2
    assert ("plan_over_constant" in found) == (words[0] != "env=eviction") and ("oracle" in found) == (len(words) == 4)


@pytest.mark.parametrize(("setting", "words"), [
    ("decisions=0", "decisions"), ("horizon_s=0", "horizon_s"), ("window_s=-1", "window_s"), ("seeds=[a]", "seeds"),
    ("episodes=1", "episodes"), ("heuristic=nothing", "nothing"), ("oracle=3", "mapping of changes"),
    ("oracle={lengths.wrong: 1}", "wrong")])
def test_bad_values_are_refused(tmp_path, capsys, setting, words) -> None:
    usual = {"episodes": "2", "window_s": "60", "heuristic": "base_policy", **dict([setting.split("=", 1)])}
    assert main(["headroom", "env=gating", *(f"{key}={value}" for key, value in usual.items()),
                 f"out={tmp_path}/L"]) == 2
    assert words in capsys.readouterr().err


# --- Decisions played out: play-outs are exact, and leave the episode alone ------------------------------------------
SHORT = {"window_s": 15.0, "warmup_s": 30.0}
WINDOW = {"seed": 5, "options": {"window": 1}}
ALL = ["PrefillGate", "Eviction", "Interruption", "Migration", "Packing", "OnlineTuning", "Colocation", "Routing",
       "PreemptionVictim"]


def make(name, **arguments):
    register_all()
    return gym.make(f"ooco_gym/{name}", disable_env_checker=True, **{**SHORT, **arguments}).unwrapped


def play(env, act):
    env.reset(**WINDOW)
    while env.episodes.open(0):
        env.step(act())
    return env.summary()


@pytest.mark.parametrize("name", ALL)
def test_playing_the_base_policy_out_gives_its_own_episode(name):
    env = make(name)
    whole = play(env, env.base_action)
    ahead, seen = PlayOuts(env), []

    def look():
        if len(seen) % 7 == 0:
            assert ahead.values()[1][0] == pytest.approx(whole["reward_total"], abs=1e-9)
        seen.append(1)
        return env.base_action()

    assert play(env, look) == whole, "playing decisions out has changed the episode"
    assert seen


@pytest.mark.parametrize("name", ["PrefillGate", "Interruption", "Packing"])
def test_what_is_foreseen_of_an_action_comes_true(name):
    """An action, and the base policy after it, get what the play-out said."""
    env = make(name)
    env.reset(**WINDOW)
    ahead, values = PlayOuts(env), np.zeros(1)
    while values.std() == 0:
        actions, values = ahead.values()
        other = int(np.argmax(np.abs(values - values[0])))
        env.step(int(actions[other][0]) if values.std() else env.base_action())
    while env.episodes.open(0):
        env.step(env.base_action())
    assert env.summary()["reward_total"] == pytest.approx(values[other], abs=1e-9)


def test_a_horizon_credits_work_in_progress():
    env = make("PrefillGate")
    env.reset(**WINDOW)
    near, far = (PlayOuts(env, horizon_s=seconds).values()[1] for seconds in (2.0, 4.0))
    assert (near > 0.0).all() and (far > near).all()
