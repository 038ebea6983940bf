"""A term of the reward and a figure of the observation of one's own: one file, in a folder that is no part of this."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from ooco_gym import UserError
from ooco_gym.envs import imported, is_ours
from ooco_gym.envs.custom import OwnFeature, Term, reading
from ooco_gym.envs.features import Feature
from ooco_gym.envs.prefill_gate import PrefillGateEnv
from tests.envs.episodes_in_short import IDS, arguments, class_of, make, play

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "own_reward.py"
COMMON, ID = "ooco_gym/PrefillGate-v1", "mine/PrefillGate-v1"
BUSY: dict[str, Any] = {"rate_scale": 0.2}  # interruptions are frequent


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's file in a folder of its own."""
    return Path(shutil.copy(EXAMPLE, tmp_path_factory.mktemp("own")))


@pytest.fixture(scope="module")
def name(file: Path) -> str:
    """The id, after the file has registered it."""
    assert is_ours(f"{file}:{ID}")
    return imported(f"{file}:{ID}")


def own(name: str, **changes: Any) -> Any:
    given = arguments(COMMON, **{"scenario": BUSY, **changes})
    return gym.make(name, disable_env_checker=True, **given).unwrapped


def eager(env: Any) -> int:
    """Starts the last candidate, whenever there is one: many prefills, many interruptions."""
    return int(np.flatnonzero(env.action_masks())[-1])


def test_the_term_counts_interruptions_and_is_part_of_the_reward(name: str) -> None:
    common, mine = make(COMMON, window_s=120.0), own(name, scenario={}, window_s=120.0)
    theirs, ours = play(common, eager), play(mine, eager)
    for one, other in zip(ours[1:], theirs[1:], strict=True):
        assert one.reward == pytest.approx(other.reward + one.info["reward/interrupted"], abs=1e-9)
    summary, plain = ours[-1].info["summary"], theirs[-1].info["summary"]
    total = sum(step.info["reward/interrupted"] for step in ours[1:])
    assert summary["interruptions"] == plain["interruptions"] > 5, "else zeros were compared"
    assert total == pytest.approx(-0.1 * summary["interruptions"], abs=1e-9)
    assert summary["reward/interrupted"] == pytest.approx(total, abs=1e-9)
    assert summary["reward_total"] == pytest.approx(plain["reward_total"] + total, abs=1e-6)


def test_its_weight_is_one_of_the_rewards(name: str, tmp_path: Path) -> None:
    free, dear = (own(name, scenario={}, window_s=120.0, reward=weights)
                  for weights in ({"service": 1.0, "interrupted": 0.0}, {"interrupted": 2.0}))
    steps, others = play(free, eager), play(dear, eager)
    assert {step.info["reward/interrupted"] for step in steps[1:]} == {0.0}
    summary = others[-1].info["summary"]
    assert summary["reward_total"] == pytest.approx(-2.0 * summary["interruptions"]) and summary["interruptions"] > 0
    (tmp_path / "mine.yaml").write_text("service: 1.0\ninterrupted: 3.0\n")
    assert own(name, reward=str(tmp_path / "mine.yaml")).config.weights.tolist() == [1.0, *[0.0] * 6, 3.0]
    with pytest.raises(UserError, match=r"unknown key 'interupted'.*did you mean 'interrupted'"):
        own(name, reward={"interupted": 1.0})
    with pytest.raises(UserError, match="unknown key 'interrupted'"):
        make(COMMON, reward={"interrupted": 1.0})


def test_the_feature_comes_after_the_common_ones_on_its_scale(name: str) -> None:
    common, mine = make(COMMON), own(name, scenario={})
    width = common.observation_space["cluster"].shape[0]
    assert mine.observation_space["cluster"].shape == (width + 1,)
    assert mine.feature_tables()["cluster"][-1]["name"] == "offline_residents"
    shown = set()

    def choose(env: Any) -> Any:
        pending = env.simulation.state.pending
        residents = env.simulation.state.instances["offline_members"][int(pending.instance)]
        assert env._observation()["cluster"][-1] == pytest.approx(np.log1p(residents) / np.log1p(256), abs=1e-6)
        shown.add(int(residents))
        return env.base_action()

    for one, other in zip(play(mine, choose), play(common, lambda env: 1), strict=True):
        assert np.array_equal(one.observation["cluster"][:-1], other.observation["cluster"])
        assert mine.observation_space.contains(one.observation)
    assert len(shown) > 2


@reading
def now_s(state, instance):
    """Seconds so far."""
    return state.clock.now_ps / 1e12


def of_class(**attributes: Any) -> Any:
    return type("OwnEnv", (PrefillGateEnv,), attributes)(**arguments(COMMON))


@pytest.mark.parametrize("name", IDS)
def test_own_terms_and_features_add_to_those_of_any_environment(name: str) -> None:
    """With the rewards of the environment's own file, whose terms a subclass keeps."""
    extended = class_of(name)
    mine = type("OwnEnv", (extended,), {"terms": (Term("seconds", now_s, weight=0.5),),
                                        "own_features": (own_feature(),)})
    env, plain = mine(**arguments(name)), make(name)
    assert [one.name for one in mine.terms] == [*(one.name for one in extended.terms), "seconds"]
    assert env.config.weights.tolist() == [*plain.config.weights, 0.5]
    features = [one["name"] for one in plain.feature_tables()["cluster"]]
    assert [one["name"] for one in env.feature_tables()["cluster"]] == [*features, "now"]
    ours, theirs = (play(one, lambda env: env.base_action(), most=5) for one in (env, plain))
    for one, other in zip(ours[1:], theirs[1:], strict=True):
        assert one.info["reward/seconds"] == pytest.approx(0.5 * one.info["elapsed_s"], abs=1e-6)
        assert one.reward == pytest.approx(other.reward + one.info["reward/seconds"], abs=1e-9)
        assert np.array_equal(one.observation["cluster"][:-1], other.observation["cluster"])


def own_feature(**changes: Any) -> OwnFeature:
    whole = {"name": "now", "unit": "s", "scale": "linear", "limit": 10.0, "low": 0.0, "high": 1.0, "meaning": ""}
    return OwnFeature(Feature(**{**whole, **changes}), now_s)


@pytest.mark.parametrize(("attributes", "words"), [
    ({"terms": (Term("late", now_s),)}, "term 'late': this name is taken"),
    ({"terms": (Term("a", now_s), Term("a", now_s))}, "term 'a': this name is taken"),
    ({"terms": (Term("a", now_s, weight=-1.0),)}, "weight=-1.0 must be a number of at least 0"),
    ({"own_features": (own_feature(name="kv_free"),)}, "feature 'kv_free': this name is taken"),
    ({"own_features": (own_feature(scale="exp"),)}, "scale 'exp' must be one of as is, linear"),
    ({"own_features": (own_feature(limit=0.0),)}, "limit=0.0 must be a number above 0"),
    ({"own_features": (own_feature(low=0.5),)}, "0 must lie within its bounds 0.5 and 1.0")])
def test_what_cannot_be_told_apart_or_shown_is_refused(attributes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        of_class(**attributes)
