"""What is no argument of an environment is refused in one sentence that names it, before anything is played."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from episodes_in_short import IDS, SHORT, alike, arguments, at_random, make, partner, play
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st

from ooco_gym import UserError
from ooco_gym.envs.config import episode_config
from ooco_gym.resources import conf_root

HYGEN = "hygen:latency_budget_s=0.045"
SCENARIO = "scenario=.* must be a name in conf/env"
NO_WHOLE_NUMBERS = [2.5, 8.0, True, float("nan"), "8", [8]]


def env_of(name: str, **changes: Any) -> Any:
    return gym.make(f"ooco_gym/{name}-v0", disable_env_checker=True, **{**SHORT, **changes}).unwrapped


def vector_of(name: str, **changes: Any) -> Any:
    return gym.make_vec(f"ooco_gym/{name}-v0", **{"num_envs": 2, **SHORT, **changes})


@pytest.mark.parametrize("maker", [env_of, vector_of])
@pytest.mark.parametrize(("changes", "words"), [
    *[({"scenario": wrong}, SCENARIO) for wrong in (3, True, ["a"])],
    *[({"scenario": {"workload": wrong}}, f"workload={wrong} must be a name") for wrong in (3, None)],
    ({"scenario": {"offline": 3}}, "offline=3 must be a mapping"), ({"workload": 3}, "workload=3 must be a name"),
    ({"cluster": 3}, "cluster=3 must be a name"), ({"partner": 7}, "partner=7 must be a policy's name"),
    ({"partner": {"name": 3}}, "partner=.* must be a policy's name"),
    *[({"candidates": wrong}, "candidates=.* must be a whole number from 1 to 64")
      for wrong in (0, 65, *NO_WHOLE_NUMBERS)],
    *[({f"{key}_s": wrong}, f"{key}_s=.* must be a (positive )?number of seconds")
      for key in ("window", "warmup", "interval") for wrong in ("x", -1.0, float("nan"), True, [1.0], 1e6)],
    ({"window_s": 0}, "window_s=0 must be a positive number"), ({"levels": "a"}, "levels='a' must be a list"),
    ({"levels": 0.5}, "levels=0.5 must be a list"), ({"levels": [True]}, "must be a list of shares"),
    ({"shifts": 3}, "shifts=3 must be a mapping"), ({"controls": "x"}, "controls='x' must be a mapping"),
    ({"shifts": {"a": 3}, "shift": "a"}, "shifts.a=3 must be a mapping"), ({"shift": ["rate"]}, "unknown shift"),
    ({"shifts": {"a": {"workload": 3}}, "shift": "a"}, "workload=3 must be a name"),
    ({"vary": "x"}, "vary='x' must be a mapping"), ({"vary": {"foo": [1, 2]}}, "vary: unknown key 'foo'"),
    ({"vary": {"rate_scal": [1, 2]}}, "did you mean 'rate_scale'"), ({"vary": {"seed": [1, 2]}}, "each window sets it"),
    ({"vary": {"rate_scale": [0.1, 0.05]}}, "give the lower one first"),
    ({"vary": {"rate_scale": [0.1, float("nan")]}}, "give the lower one first"),
    ({"vary": {"rate_scale": []}}, "must be .low, high. or a list"),
    ({"vary": {"rate_scale": [0.1, "b", 0.3]}}, "vary.rate_scale: rate_scale='b' must be a number"),
    ({"vary": {"workload": ["ooc", 3]}}, "vary.workload: workload=3 must be a name")])
def test_invalid_arguments_are_refused(maker, changes, words):
    with pytest.raises(UserError, match=words):
        maker("Gating", **changes)


@pytest.mark.parametrize(("control", "words"), [
    *[({"slo_margin": wrong}, "must be the size of a step")
      for wrong in ("x-2", "x0", "x1", "xx", "x", "a", 0, -0.05, True, None, [0.1], float("nan"), float("inf"), 1e300)],
    ({"interrupt": 3}, "controls.interrupt=3 must be choices"), ({"slo_margi": 0.1}, "did you mean 'slo_margin'")])
def test_invalid_steps_of_controls_are_refused(control, words):
    with pytest.raises(UserError, match=words):
        env_of("Control", controls=control)


def test_packing_has_as_many_levels_as_there_may_be_candidates():
    assert env_of("Packing", levels=np.linspace(0.3, 1.0, 64)).action_space.n == 66
    with pytest.raises(UserError, match="levels has 70 entries: give at most 64"):
        env_of("Packing", levels=np.linspace(0.3, 1.0, 70).tolist())


def test_candidates_are_cut_only_where_there_cannot_be_more():
    assert env_of("Preemption", candidates=64).config.candidates == 1
    assert env_of("Gating", candidates=np.int64(64)).action_space.n == 66


def test_scenario_takes_a_path():
    path = Path(conf_root()) / "env" / "eviction.yaml"
    config = episode_config("gating", scenario=path)
    assert config.scenario == episode_config("eviction").scenario != episode_config("gating").scenario


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(["scenario", "partner", "window_s", "warmup_s", "candidates", "interval_s", "workload",
                        "cluster", "levels", "vary", "shifts", "controls", "shift"]),
       st.one_of(st.integers(), st.floats(), st.booleans(), st.text(max_size=5), st.lists(st.integers(), max_size=3),
                 st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)))
def test_any_value_is_accepted_or_raises_a_user_error(name, value):
    with contextlib.suppress(UserError):  # nothing else may come
        assert episode_config("gating", **{name: value}).candidates > 0


# --- Of a vector ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("changes", "words"), [
    ({"train_seeds": []}, "train_seeds=.* one at least"), ({"train_seeds": 3}, "train_seeds=3 must be a list"),
    ({"train_seeds": "12"}, "train_seeds='12' must be a list"), ({"train_seeds": [1, 2.5]}, r"train_seeds\[1\]=2.5"),
    ({"train_seeds": [-1]}, "at least 0"), ({"train_stream": "a"}, "train_stream='a'"), ({"bank": True}, "bank=True"),
    ({"bank": -1}, "bank=-1")])
def test_invalid_vector_arguments_are_refused(changes, words):
    with pytest.raises(UserError, match=words):
        vector_of("Gating", **changes)


@pytest.mark.parametrize(("changes", "words"), [({"num_envs": True}, "num_envs=True"), ({"num_envs": "a"}, "num_envs"),
                                                ({"max_episode_steps": 0}, "max_episode_steps=0")])
def test_invalid_arguments_of_the_vector_class_are_refused(changes, words):
    from ooco_gym.envs.gating import GatingVectorEnv

    with pytest.raises(UserError, match=words):
        GatingVectorEnv(**changes)


@pytest.mark.parametrize(("options", "words"), [
    ({"win": 1}, "unknown option of reset 'win'.*did you mean 'window'"), (3, "options=3 must be a mapping"),
    *[({"window": wrong}, r"options\['window'\]=.* must be a whole number from 0") for wrong in
      (-1, "a", 1.5, True, 2**32)]])
def test_options_of_a_reset_are_read_before_anything_is_played(options, words):
    for env in (make("ooco_gym/Gating-v0"), vector_of("Gating")):
        with pytest.raises(UserError, match=words):
            env.reset(seed=1, options=options)
        assert env.episodes.simulations[0] is None


def test_a_vector_takes_one_window_for_each_slot():
    with pytest.raises(UserError, match="has 3 entries for 2 environments"):
        vector_of("Gating").reset(seed=1, options={"window": [1, 2, 3]})


@pytest.mark.parametrize("name", ["ooco_gym/Gating-v0", "ooco_gym/Packing-v0", "ooco_gym/Control-v0"])
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
    *[(name, {"cluster": "mixed_7b", "partner": policy}, "its instances are mixed.* such as cluster pair_7b")
      for name in ("Gating", "Eviction", "Preemption", "Migration") for policy in ("ooco", HYGEN)],
    *[(name, {"partner": "base_pd"}, "partner 'base_pd' treats offline requests as online ones")
      for name in ("Gating", "Preemption", "Migration")],
    ("Routing", {"cluster": "pair_7b", "partner": "base_pd"}, "no route decision ever comes up .*such as fleet_16"),
    ("Routing", {"cluster": "mixed_7b", "partner": HYGEN, "candidates": 1}, "no route decision ever comes up")])
def test_arguments_under_which_no_decision_can_come_up_are_refused(name, changes, words):
    with pytest.raises(UserError, match=words):
        env_of(name, **changes)


def asked(name: str, **changes: Any) -> int:
    """How many decisions of a window are asked."""
    steps = play(make(f"ooco_gym/{name}-v0", **changes), partner)
    return sum(int(step.observation["decision"].sum()) for step in steps)


@pytest.mark.parametrize(("name", "changes"), [
    ("Routing", {"cluster": "pair_7b", "scenario": {"rate_scale": 0.1}, "window_s": 60.0, "warmup_s": 30.0}),
    ("Routing", {"partner": "base_pd", "window_s": 1.0, "warmup_s": 2.0}),
    ("Routing", {"partner": "base_pd", "candidates": 1, "window_s": 1.0, "warmup_s": 2.0}),
    ("Routing", {"cluster": "mixed_7b", "partner": HYGEN, "scenario": {"rate_scale": 0.05}}),
    ("Eviction", {"partner": "base_pd", "window_s": 120.0, "warmup_s": 120.0})])
def test_arguments_under_which_a_decision_can_come_up_are_accepted(name, changes):
    assert asked(name, **changes) > 0


def test_varying_clusters_are_not_refused_for_the_first_one():
    vary = {"cluster": ["pair_7b", "fleet_16"]}
    assert make("ooco_gym/Routing-v0", cluster="pair_7b", partner="base_pd", vary=vary).config.vary == vary


# --- The last mask of levels ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", IDS)
def test_the_mask_after_the_end_has_the_size_of_the_action_space(name):
    env = make(name)
    last = play(env, at_random(3))[-1]
    assert last.truncated and not last.observation["decision"].any()
    whole = env.episodes.controls is not None
    wanted = np.ones_like(last.info["action_mask"]) if whole else np.eye(len(env.action_masks()), dtype=np.int8)[1]
    assert np.array_equal(last.observation["action_mask"], wanted)
    assert np.array_equal(last.info["action_mask"], wanted) and np.array_equal(env.action_masks(), wanted.astype(bool))


def test_the_last_mask_of_levels_in_a_vector():
    short = {**arguments("ooco_gym/Control-v0"), "window_s": 10.0, "interval_s": 5.0}
    env: Any = gym.make_vec("ooco_gym/Control-v0", num_envs=2, autoreset_mode=AutoresetMode.SAME_STEP, **short)
    env.reset(seed=1)
    env.step(env.partner_actions())
    *_, truncated, infos = env.step(env.partner_actions())
    assert truncated.all()
    assert all(alike(one["action_mask"], np.ones_like(one["action_mask"])) for one in infos["final_obs"])
    assert infos["final_info"]["action_mask"].all()
