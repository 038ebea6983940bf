"""Every environment with Discrete actions can be learned on, exported and evaluated; what a rule plays is its own."""

import json

import gymnasium as gym
import numpy as np
import pytest

from agents.environments import is_base_policy, make_env, windows
from agents.evaluation import evaluate
from agents.evaluation.heuristics import Heuristic
from agents.evaluation.players import play
from agents.policies.describing import action_meanings, action_names
from ooco_gym.errors import UserError
from ooco_gym.resources import load_yaml
from tests.agents.gating_double import train_config

DISCRETE = ("colocation", "eviction", "prefillgate", "migration", "packing", "interruption")
SHORT = {"window_s": 20.0, "warmup_s": 10.0}


def config_of(name, **changes):
    return {**load_yaml("env", name), **SHORT, **changes}


@pytest.mark.parametrize("name", DISCRETE)
def test_train_export_and_evaluate(name, tmp_path):
    pytest.importorskip("sb3_contrib")
    pytest.importorskip("onnxruntime")
    from agents.learning import train
    from agents.policies import export
    from ooco_gym.runtime import Policy

    imitate = {"rule": "ooco", "decisions": 60, "epochs": 1, "learning_rate": 1e-3, "critic_first_updates": 0}
    made = train_config(tmp_path / "run", total_timesteps=75, agent={"imitate": imitate},
                        checkpoint_every_steps=None, validation={"windows": 1, "every_steps": 100,
                                                                 "violation_limit": 0.03})
    assert train.main({**made, "env": config_of(name)})["timesteps"] == 75
    export.main({"policy": str(tmp_path / "run"), "out": str(tmp_path / "bundle"), "checks": 50, "seed": 1})
    summary = evaluate.main({"env": config_of(name), "policies": [str(tmp_path / "run"), str(tmp_path / "bundle")],
                             "episodes": 1, "seeds": None, "workers": 1, "out": str(tmp_path / "e")})
    means = {(row["policy"], row["metric"]): row["mean"] for row in summary["results"]}
    assert means["run", "episode_reward"] == means["bundle", "episode_reward"]
    policy = Policy.load(tmp_path / "bundle")
    env = make_env(config_of(name))
    assert len(policy.actions) == env.action_space.n and policy.fixed == 2  # type: ignore[attr-defined]
    assert [one["name"] for one in policy.manifest["inputs"]["decision"]["features"]] == list(policy.decisions)
    assert policy.manifest["actions_by_decision"].keys() == set(policy.decisions)
    observation, _ = env.reset(seed=1)
    assert policy.decide(observation) in np.flatnonzero(observation["action_mask"])


def test_the_base_policy_by_name_plays_what_it_would_do_anyway():
    """To the bit: the same as action 1 throughout, and as no environment at all would have it."""
    config, games = config_of("migration", window_s=60.0), windows([3000, 3001], 2)
    env = gym.make("ooco_gym/Migration-v1", window_s=60.0, warmup_s=10.0)
    for record, game in zip(play(config, Heuristic("ooco"), games), games, strict=True):
        env.reset(seed=game.seed, options={"window": game.number})
        over, reward = False, 0.0
        while not over:
            _, step_reward, _, over, info = env.step(1)
            reward += float(step_reward)
        assert (record["reward"], record["summary"]) == (reward, info["summary"])


def test_a_base_policy_is_known_however_it_is_written():
    plain = make_env(config_of("prefillgate"))
    written = make_env(config_of("prefillgate", base_policy={"name": "ooco"}))
    tuned = make_env(config_of("prefillgate", base_policy="ooco:slo_margin=0.8"))
    assert is_base_policy("ooco", plain) and not is_base_policy("never", plain)
    assert is_base_policy("ooco", written) and not is_base_policy("never", written)
    assert is_base_policy("ooco:slo_margin=0.8", tuned) and not is_base_policy("ooco", tuned)


def test_where_only_the_clock_asks_other_rules_are_refused(tmp_path):
    config = {"episodes": 1, "seeds": None, "workers": 1, "out": str(tmp_path)}
    with pytest.raises(UserError, match="base_pd"):
        evaluate.main({**config, "env": config_of("packing"), "policies": ["ooco", "base_pd"]})
    summary = evaluate.main({**config, "env": config_of("onlinetuning"), "policies": ["ooco"]})
    assert json.dumps(summary) and summary["policies"][0]["policy"] == "ooco"


def test_settings_of_the_configuration_reach_the_environment():
    levels = [0.5, 0.9]
    env = make_env(config_of("packing", levels=levels, interval_s=2.0))
    inner = env.unwrapped
    assert env.action_space.n == 4  # type: ignore[attr-defined]
    assert (inner.config.levels, inner.config.interval_s) == ((0.5, 0.9), 2.0)  # type: ignore[attr-defined]
    changed = make_env(config_of("prefillgate", shift="mine", shifts={"mine": {"rate_scale": 0.01}}))
    assert changed.unwrapped.config.scenario.rate_scale == 0.01  # type: ignore[attr-defined]


def test_a_policy_is_not_asked_for_decisions_that_it_never_learned(tmp_path):
    pytest.importorskip("sb3_contrib")
    from agents.learning import train

    agent = {"imitate": None, "scale_decisions": 30}
    made = train_config(tmp_path / "gate", total_timesteps=3, validation={"windows": 0}, agent=agent)
    train.main({**made, "env": config_of("prefillgate")})
    config = {"episodes": 1, "seeds": None, "workers": 1, "out": str(tmp_path / "e"),
              "policies": [str(tmp_path / "gate")]}
    with pytest.raises(UserError, match="policy 'gate' was not trained to evict, only to gate"):
        evaluate.main({**config, "env": config_of("eviction")})


def test_actions_are_named_for_every_decision():
    assert action_names(["evict"], 2, 2) == [
        "let the newcomer wait (illegal if a running batch needs the memory)", "take the base policy's action",
        "candidate 0: evict this request", "candidate 1: evict this request"]
    choices = ["route", "interrupt", "gate", "evict", "pull", "pack"]
    first = {name: words[0] for name, words in action_meanings(choices, 1, 2).items()}
    assert len(set(first.values())) == len(choices)
    joint = action_meanings(["gate", "pull"], 1, 2)
    assert joint["pull"] == ["pull none, or no more", "take the base policy's action",
                             "candidate 0: pull this request; the decision repeats"]
    assert action_names(["gate", "pull"], 1, 2)[0] == "decline"
