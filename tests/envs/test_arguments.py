"""What is no argument of an environment is refused in one sentence that names it, before anything is played."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooco_gym import Scenario, UserError
from ooco_gym.envs.config import episode_config
from ooco_gym.resources import load_yaml
from tests.envs.episodes_in_short import SHORT, arguments, make

HYGEN = "hygen:latency_budget_s=0.045"


def env_of(name: str, **changes: Any) -> Any:
    place = f"ooco_gym/{name}-v{1 + (name == 'Routing')}"
    return gym.make(place, disable_env_checker=True, **{**SHORT, **changes}).unwrapped


def vector_of(name: str, **changes: Any) -> Any:
    return gym.make_vec(f"ooco_gym/{name}-v1", **{"num_envs": 2, **SHORT, **changes})


@pytest.mark.parametrize("maker", [env_of, vector_of])
@pytest.mark.parametrize(("changes", "words"), [
    ({"scenario": 3}, "scenario=3 must be a name in conf/env"),
    ({"workload": 3}, "workload=3 must be a name"),
    ({"scenario": {"offline": 3}}, "offline=3 must be a mapping"), ({"cluster": 3}, "cluster=3 must be a name"),
    ({"base_policy": 7}, "base_policy=7 must be a policy's name"), ({"base_policy": "oco"}, "did you mean 'ooco'"),
    ({"base_policy": {"slo_margin": 0.9}}, "needs the key 'name'"), ({"base_policy": "hygen"}, "no gate"),
    ({"candidates": 65}, "candidates=65"), ({"window_s": -1.0}, "window_s=-1.0"),
    ({"interval_s": True}, "interval_s=true must be a number of seconds"),
    ({"levels": [True]}, "must be a list of shares"), ({"reward": {"servic": 1.0}}, "service"),
    ({"render_mode": "humanoid"}, "ansi"), ({"shift": "nowhere"}, "nowhere"),
    ({"scenario": {"duration_s": 600.0}}, "scenario.duration_s=600.0 has no effect"),
    ({"scenario": Scenario(duration_s=600.0)}, "window_s sets the episode's length"),
    ({"scenario": {"seed": 3}}, "reset"), ({"shifts": {"a": {"start_s": 5.0}}, "shift": "a"}, "leave it out"),
    ({"shifts": {"a": 3}, "shift": "a"}, "shifts.a=3 must be a mapping"), ({"controls": "x"}, "controls='x' must be a"),
    ({"vary": {"rate_scal": [1, 2]}}, "did you mean 'rate_scale'"),
    ({"vary": {"seed": [1, 2]}}, "it is set for each episode"),
    ({"vary": {"rate_scale": [0.1, 0.05]}}, "with low <= high"),
    ({"vary": {"rate_scale": [0.1, "b", 0.3]}}, "vary.rate_scale: rate_scale='b' must be a number")])
def test_invalid_arguments_are_refused(maker, changes, words):
    with pytest.raises(UserError, match=words):
        maker("PrefillGate", **changes)


@pytest.mark.parametrize(("control", "words"), [
    *[({"slo_margin": wrong}, "must be a step, such as 0.05")
      for wrong in ("x1", 0, None, float("nan"))],
    ({"interrupt": 3}, "controls.interrupt=3 must be choices"), ({"slo_margi": 0.1}, "did you mean 'slo_margin'")])
def test_invalid_steps_of_controls_are_refused(control, words):
    with pytest.raises(UserError, match=words):
        env_of("OnlineTuning", controls=control)


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(["scenario", "base_policy", "window_s", "warmup_s", "candidates", "interval_s", "workload",
                        "cluster", "levels", "vary", "shifts", "controls", "shift"]),
       st.one_of(st.integers(), st.floats(), st.booleans(), st.text(max_size=5), st.lists(st.integers(), max_size=3),
                 st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)))
def test_any_value_is_accepted_or_raises_a_user_error(name, value):
    with contextlib.suppress(UserError):  # nothing else may come
        assert episode_config("prefillgate", **{name: value}).candidates > 0


# --- Of a vector ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("changes", "words"), [
    ({"train_seeds": []}, "train_seeds=.* at least one seed"), ({"train_seeds": [1, 2.5]}, r"train_seeds\[1\]=2.5"),
    ({"bank": -1}, "bank=-1"), ({"threads": 0}, r"threads=.* must be a whole number of at least 1"),
    ({"num_envs": 0}, "at least 1"), ({"autoreset_mode": "Later"}, "must be one of")])
def test_invalid_vector_arguments_are_refused(changes, words):
    with pytest.raises(UserError, match=words):
        vector_of("PrefillGate", **changes)


@pytest.mark.parametrize(("options", "words"), [
    ({"win": 1}, "unknown option of reset 'win'.*did you mean 'window'"), (3, "options=3 must be a mapping"),
    *[({"window": wrong}, r"options\['window'\]=.* must be a whole number from 0") for wrong in
      (-1, "a", 2**32)]])
def test_options_of_a_reset_are_read_before_anything_is_played(options, words):
    for env in (make("ooco_gym/PrefillGate-v1"), vector_of("PrefillGate")):
        with pytest.raises(UserError, match=words):
            env.reset(seed=1, options=options)
        assert env.episodes.simulations[0] is None


def test_a_vector_takes_one_window_for_each_slot():
    with pytest.raises(UserError, match="has 3 entries for 2 environments"):
        vector_of("PrefillGate").reset(seed=1, options={"window": [1, 2, 3]})


@pytest.mark.parametrize("name", ["ooco_gym/PrefillGate-v1", "ooco_gym/Packing-v1", "ooco_gym/OnlineTuning-v1"])
def test_rule_action_refuses_what_is_no_policy(name):
    both: Any = gym.make_vec(name, num_envs=2, **arguments(name))
    env = make(name)
    env.reset(seed=1)
    both.reset(seed=1)
    ask: list[Callable[[Any], Any]] = [env.rule_action, both.rule_actions]
    for rule in ask:
        with pytest.raises(UserError, match=r"rule_action\(3\): expected a policy's name"):
            rule(3)
        with pytest.raises(UserError, match="did you mean 'ooco'"):
            rule("oco")


# --- Decisions that never come up -----------------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "changes", "words"), [
    ("PrefillGate", {"cluster": "mixed_7b", "base_policy": HYGEN}, "its instances are mixed.* example cluster pair_7b"),
    ("Migration", {"base_policy": "base_pd"}, "base policy 'base_pd' treats offline requests as online ones"),
    ("Routing", {"cluster": "pair_7b", "base_policy": "base_pd"}, "its instances are relaxed and strict"),
    ("Routing", {"cluster": "mixed_7b", "base_policy": HYGEN, "candidates": 1}, "no send decision .* engines_7b")])
def test_arguments_under_which_no_decision_can_come_up_are_refused(name, changes, words):
    with pytest.raises(UserError, match=words):
        env_of(name, **changes)


SHIPPED = load_yaml("env", "batching")


@pytest.mark.parametrize(("changes", "rate_scale", "varies"), [
    ({}, SHIPPED["scenario"].get("rate_scale"), SHIPPED["vary"]),
    ({"workload": "azure_conv", "cluster": "mixed_7b"}, None, {}),
    ({"workload": "azure_conv", "vary": {"rate_scale": [0.1, 0.2]}}, None, {"rate_scale": [0.1, 0.2]}),
    ({"scenario": {"workload": "azure_conv", "rate_scale": 0.1}}, 0.1, {}),
    # As a command gives it: every field of the shipped file, and what varies.
    ({"scenario": {**SHIPPED["scenario"], "workload": "azure_conv"}, "vary": SHIPPED["vary"]}, None, {}),
])
def test_the_default_load_belongs_to_the_default_workload(changes, rate_scale, varies):
    config = gym.make("ooco_gym/Batching-v1", **changes).unwrapped.config
    assert config.scenario.rate_scale == rate_scale and config.vary == varies
