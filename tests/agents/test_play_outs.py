"""Decisions played out: play-outs are exact, and leave the episode alone."""

import gymnasium as gym
import numpy as np
import pytest

import ooco_gym  # noqa: F401
from agents.evaluation.play_outs import PlayOuts
from ooco_gym.envs import register_all

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
