"""Admission-v2: the whole queue follows the weights that an action sets, and own features of an engine are observed."""

from __future__ import annotations

from math import log1p

import numpy as np
import pytest

from ooco_gym.resources import load_yaml
from tests.envs.episodes_in_short import at_random, differences, make, play

ID = "ooco_gym/Admission-v2"


def test_an_action_sets_the_weights_by_which_the_next_requests_enter():
    """The same as a base policy with these weights, from the beginning on."""
    def state_of(level, weight, values):
        policy = f"admitter:rule=index,w_output={weight}"
        env = make(ID, base_policy=policy, controls={"w_output": values}, warmup_s=0.0)
        play(env, lambda one: np.array([level]))
        return env.simulation.state

    set_to = [state_of(level, 0.0, [-1.0, 1.0]) for level in (0, 2)]
    for state, weight in zip(set_to, (-1.0, 1.0), strict=True):
        assert differences(state, state_of(0, weight, [weight])) == []
    assert differences(*set_to) != []


def test_own_features_of_an_engines_environment_are_what_their_readings_say():
    env, seen = make(ID), set()

    def look(one):
        value, mean = one._observation()["cluster"][-1], one.simulation.state.observed.offline_output_mean
        assert value == pytest.approx(log1p(mean) / log1p(16_384), rel=1e-5)
        seen.add(float(value))
        return at_random(0)(one)

    play(env, look)
    assert len(seen) > 3


def test_windows_draw_conditions_of_all_kinds():
    yaml = load_yaml("env", "admission")
    config = make(ID, scenario=yaml["scenario"], vary=yaml["vary"]).config
    drawn = [config.window(1000, number) for number in range(80)]
    kinds = {(str(one.cluster), one.rate_scale, one.offline.get("lengths"), "clients" in one.offline) for one in drawn}
    assert len(kinds) == len(yaml["vary"]["condition"]) >= 6
