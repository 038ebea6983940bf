"""RuleChoice: conditions drawn whole, those of training and of tests apart, and what tells an agent which it is in."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

import ooco_gym  # noqa: F401  registers the environments
from ooco_gym.cli import main
from ooco_gym.errors import UserError
from ooco_gym.resources import load_yaml
from ooco_gym.scenario import Scenario

ID = "ooco_gym/RuleChoice-v1"
YAML = load_yaml("env", "rulechoice")
TRAINING, SHIFTS = YAML["vary"]["condition"], YAML["shifts"]
SHORT = {"window_s": 40.0, "warmup_s": 10.0}


def make(**arguments):
    return gym.make(ID, disable_env_checker=True, **arguments).unwrapped


def drawn(config, windows=60):
    """Of windows, cluster, load, TTFT SLO, and kind and rate of the offline work."""
    scenarios = [config.window(1000, number) for number in range(windows)]
    return {(str(one.cluster), one.rate_scale, one.slo["ttft_s"], one.offline["rate"]) for one in scenarios}


def written(conditions):
    return {(str(one["cluster"]), one["rate_scale"], one["slo"]["ttft_s"], one["offline"]["rate"])
            for one in conditions}


def chips(condition):
    pools = Scenario(cluster=condition["cluster"]).load_cluster()
    return {str(pool.chip) for pool in (*pools.relaxed, *pools.strict)}


def test_windows_draw_whole_conditions():
    found = drawn(make().config)
    assert found <= written(TRAINING) and len(found) > 12


@pytest.mark.parametrize("name", SHIFTS)
def test_a_condition_to_test_on_is_played_alone_and_none_of_training(name):
    assert drawn(make(shift=name).config, 5) == written([SHIFTS[name]])
    assert SHIFTS[name] not in TRAINING
    trained = set().union(*map(chips, TRAINING))
    assert bool(chips(SHIFTS[name]) <= trained) == name.startswith("known_")
    assert bool(chips(SHIFTS[name]) & trained) == name.startswith("known_")


@pytest.mark.parametrize("arguments", [
    {"cluster": "pair_72b"}, {"scenario": {"online_rate": 2.0}}, {"scenario": {"slo": "chat"}},
    {"scenario": Scenario(cluster="pair_7b")}])
def test_what_is_given_is_not_drawn(arguments):
    assert not make(**arguments).config.vary


def test_what_conditions_leave_alone_may_be_given_beside_them():
    config = make(scenario={"predictor": {"name": "biased", "factor": 1.1}}).config
    assert drawn(config) <= written(TRAINING) and config.window(1000, 0).predictor["factor"] == 1.1


@pytest.mark.parametrize(("condition", "words"), [
    ([{"rate_scal": 0.1}], "did you mean 'rate_scale'"), ([3], "vary.condition=3 must be a mapping"),
    ([{"seed": 1}], "scenario.seed=1 has no effect"), ([], "must be")])
def test_a_condition_that_cannot_be_is_refused(condition, words):
    with pytest.raises(UserError, match=words):
        make(vary={"condition": condition})


def test_a_command_says_that_conditions_are_drawn(tmp_path, capsys):
    assert main(["headroom", "env=rulechoice", f"out={tmp_path / 'run'}", "env.scenario.cluster=pair_7b"]) == 2
    assert "draws whole conditions for each episode, cluster included" in capsys.readouterr().err


def test_an_agent_sees_how_long_prompts_and_steps_take_of_the_promises():
    names = [row["name"] for row in make(**SHORT).feature_tables()["cluster"]]
    seen = {}
    for share in (1.0, 0.5):
        slo = {"ttft_s": 2.0 * share, "tpot_s": 0.05 * share}
        env = make(vary={}, scenario={"slo": slo}, **SHORT)
        seen[share] = dict(zip(names, env.reset(seed=1)[0]["cluster"], strict=True))
    for name in ("prefill_share", "decode_share"):
        assert seen[1.0][name] > 0.0 and seen[0.5][name] == pytest.approx(2.0 * seen[1.0][name], rel=1e-4)
    assert seen[1.0]["strict_memory"] == seen[0.5]["strict_memory"] > 0.5


def test_an_answer_sets_the_rules_of_the_base_policy():
    env = make(shift="known_7b_code", **SHORT)
    env.reset(seed=1)
    controls, action = env.episodes.controls, np.zeros(5, int)
    env.step(action)
    at = env.episodes.buffers.params
    assert list(env.simulation.state.params[at]) == list(controls.levels[:, 0])
    assert list(controls.names) == list(YAML["controls"])
