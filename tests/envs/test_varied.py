"""What an environment's file varies from window to window stays as it is where a shift or an argument sets it."""

from __future__ import annotations

import gymnasium as gym
import pytest

from ooco_gym.resources import load_yaml

ID = "ooco_gym/Batching-v0"
LOW, HIGH = load_yaml("env", "batching")["vary"]["rate_scale"]


def scales(**arguments):
    config = gym.make(ID, disable_env_checker=True, **arguments).unwrapped.config
    return {config.window(seed, 0).rate_scale for seed in range(5)}


def test_each_window_has_a_load_of_its_own():
    found = scales()
    assert len(found) == 5 and all(LOW <= scale <= HIGH for scale in found)


@pytest.mark.parametrize(("arguments", "scale"), [
    ({"shift": "load"}, 2.1), ({"shift": "instances"}, 7.0), ({"scenario": {"rate_scale": 0.3}}, 0.3)])
def test_what_is_given_is_not_drawn(arguments, scale):
    assert scales(**arguments) == {scale}


def test_a_variation_that_is_given_is_drawn_whatever_else_is():
    assert len(scales(scenario={"rate_scale": 0.3}, vary={"rate_scale": [1.0, 2.0]})) == 5
