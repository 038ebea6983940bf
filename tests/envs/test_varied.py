"""What an environment's file varies from window to window stays as it is where a shift or an argument sets it."""

from __future__ import annotations

import gymnasium as gym
import pytest

from ooco_gym.cli import main
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


def test_a_shift_stays_as_it_is_where_a_whole_file_is_given():
    """Commands hand an environment all that its file says, `vary` among it."""
    config = load_yaml("env", "batching")
    assert scales(shift="load", vary=config["vary"], shifts=config["shifts"]) == {2.1}


def test_one_value_is_drawn_in_each_window():
    assert scales(vary={"rate_scale": [1.5]}) == {1.5}


def test_a_command_says_that_what_it_is_given_would_be_drawn_anew(tmp_path, capsys):
    words = ["headroom", "env=batching", f"out={tmp_path / 'run'}"]
    assert main([*words, "env.scenario.rate_scale=1.5"]) == 2
    assert "expected what it draws from: env.vary.rate_scale=[1.5]" in capsys.readouterr().err


def test_a_variation_that_is_given_is_drawn_whatever_else_is():
    assert len(scales(scenario={"rate_scale": 0.3}, vary={"rate_scale": [1.0, 2.0]})) == 5
