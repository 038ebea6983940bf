"""Heuristics by name: each name plays what it says, wherever it may sit."""

import gymnasium as gym
import pytest

from agents.environments import make_env, windows
from agents.evaluation.heuristics import BASE, by_name, heuristics_of, play_heuristic
from ooco_gym.envs import buffers as b
from ooco_gym.envs import register_all
from ooco_gym.errors import UserError
from ooco_gym.resources import load_yaml
from ooco_gym.sim.state import PS_PER_S
from ooco_gym.simulation import Simulation
from tests.agents.composing import base_policy

GAMES = windows([5, 6], 2)


def conf(name, **changes):
    return {**load_yaml("env", name), "window_s": 20.0, "warmup_s": 20.0, **changes}


def make(name):
    register_all()
    return gym.make(f"ooco_gym/{name}-v1", window_s=20.0, warmup_s=20.0, disable_env_checker=True).unwrapped


def figures(config, name):
    return [(record["reward"], record["summary"]) for record in play_heuristic(config, name, GAMES)]


@pytest.mark.parametrize("env", ["PrefillGate", "Packing", "OnlineTuning", "Interruption"])
def test_every_heuristic_of_an_environment_is_found_again_by_its_name(env):
    made = make(env)
    for one in heuristics_of(made):
        made.reset(seed=5, options={"window": 0})
        again = by_name(made, one.name)
        assert again.name == one.name
        expected, got = one.begin(made)(), again.begin(made)()
        assert list(expected) == list(got) if env == "OnlineTuning" else expected == got


@pytest.mark.parametrize("env", ["packing", "onlinetuning"])
def test_a_policy_with_settings_takes_the_base_policies_seat_where_the_clock_asks(env):
    config = conf(env)
    moved, name = base_policy(config, "ooco:slo_margin=0.7,interrupt=slack")
    assert (moved["base_policy"], name) == ("ooco:slo_margin=0.7,interrupt=slack", BASE)
    assert figures(config, "ooco:slo_margin=0.7") == figures({**config, "base_policy": "ooco:slo_margin=0.7"}, BASE)
    assert figures(config, "ooco:slo_margin=0.7") != figures(config, BASE)


@pytest.mark.parametrize("policy", ["ooco", "memory_gate"])
def test_a_policy_that_has_none_of_the_settings_plays_as_it_is(policy):
    """Where `reserve` is set, OOCO has nothing to turn, and memory_gate's own value is one of the levels."""
    config = conf("gating")
    moved, name = base_policy(config, policy)
    env = make_env(moved).unwrapped
    env.reset(seed=5, options={"window": 0})
    own = Simulation(env.config.window(5, 0), policy)
    own.advance(own.window_s[1])
    while env.episodes.open(0):
        env.step(by_name(env, name).begin(env)())
    assert env.simulation.policy.name == policy
    served = env.summary()["offline_reference_gpu_s_per_s"] * config["window_s"]
    begun = Simulation(env.config.window(5, 0), policy)
    begun.advance(begun.window_s[0])
    assert served == pytest.approx((own.state.totals.service_ps - begun.state.totals.service_ps) / PS_PER_S)


def test_the_base_policies_own_name_is_the_base_policy_and_stays_where_it_is():
    for env in ("prefillgate", "packing"):
        config = conf(env)
        assert base_policy(config, "ooco")[0]["base_policy"] == "ooco"
        assert figures(config, "ooco") == figures(config, BASE)


def test_a_constant_control_is_the_base_policy_with_that_setting_after_the_warm_up():
    config = conf("onlinetuning", warmup_s=0.0)
    assert figures(config, "slo_margin=0.8,interrupt=1") == figures(config, "ooco:slo_margin=0.8,interrupt=slack")


def test_where_rules_are_asked_a_policy_answers_with_its_own_parameters():
    config = conf("interruption")
    assert base_policy(config, "ooco:interrupt=never") == (config, "ooco:interrupt=never")
    assert figures(config, "ooco:interrupt=never") == figures(config, "decline") != figures(config, BASE)


def test_among_other_decisions_packing_is_answered_by_the_nearest_level():
    env = make("Colocation")
    env.reset(seed=5, options={"window": 0})
    buffers = env.episodes.buffers
    for margin, level in ((0.5, 0.5), (0.61, 0.6), (1.0, 1.0), (0.9, None)):
        act = by_name(env, f"ooco:slo_margin={margin}").begin(env)
        kind, buffers.status[0, b.KIND] = int(buffers.status[0, b.KIND]), b.CLOCK
        action = act()
        buffers.status[0, b.KIND] = kind
        assert action == b.BASE_ACTION if level is None else buffers.levels[0][action - b.FIXED] == level


def test_chance_is_keyed_by_the_window_and_begins_anew_in_each():
    config = conf("prefillgate")
    forward = play_heuristic(config, "random actions", GAMES, side_by_side=1)
    backward = play_heuristic(config, "random actions", GAMES[::-1], side_by_side=2)
    assert forward == backward[::-1]


@pytest.mark.parametrize("env, name, words", [
    ("prefillgate", "shortes", "'shortes' is neither a heuristic of this environment (did you mean 'shortest'?)"),
    ("prefillgate", "ooco:slo_margn=1", "has no parameter 'slo_margn' (did you mean 'slo_margin'?)"),
    ("onlinetuning", "slo_margin=0.91", "slo_margin has no level 0.91; levels: 0.8, 0.85, 0.9, 0.95, 1"),
    ("onlinetuning", "margin=0.9", "unknown control 'margin'"),
    ("packing", "base_pd", "base policy 'base_pd' has neither 'slo_margin' nor 'latency_budget_s'"),
])
def test_mistakes_are_named(env, name, words):
    with pytest.raises(UserError) as error:
        play_heuristic(conf(env), name, GAMES)
    assert words in str(error.value) and "\n" not in str(error.value)
