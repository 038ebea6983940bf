"""Policies as agents: `ooco_gym.make_agent` answers as the environment's own rules do, for one or for many."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import ooco_gym
from ooco_gym.cli import main
from ooco_gym.envs.rule_agent import TrainedAgent
from ooco_gym.policy import get_policy, list_policies
from ooco_gym.resources import conf_root, load_yaml

SHORT: dict[str, Any] = {"window_s": 30.0, "warmup_s": 20.0}
GATING = "ooco_gym/PrefillGate-v1"
POOL_POLICIES = [name for name in list_policies() if not get_policy(name).mixed]


@pytest.mark.parametrize("name", POOL_POLICIES)
def test_every_pool_policy_plays_a_window(name: str) -> None:
    env: Any = gym.make("ooco_gym/Colocation-v1", **SHORT)
    agent = ooco_gym.make_agent(name, env)
    observation, _ = env.reset(seed=1)
    over = False
    while not over:
        action, state = agent.predict(observation, "mine")
        assert state == "mine" and action.shape == ()
        assert env.unwrapped.action_masks()[int(action)] or int(action) == 1
        observation, _, _, over, _ = env.step(action)


@pytest.mark.parametrize("name", ["slack", "base_policy"])
def test_an_agent_of_a_vector_answers_each_slot(name: str) -> None:
    env: Any = gym.make_vec(GATING, 2, vectorization_mode="vector_entry_point", **SHORT)
    singles: list[Any] = [gym.make(GATING, **SHORT) for _ in range(2)]
    agent = ooco_gym.make_agent(name, env)
    observations, _ = env.reset(seed=5)
    alone = [ooco_gym.make_agent(name, single) for single in singles]
    for index, single in enumerate(singles):
        single.reset(seed=5 + index)
    for _ in range(25):
        actions, _ = agent.predict(observations)
        assert actions.tolist() == [int(one()) for one in alone]
        observations = env.step(actions)[0]
        for single, action in zip(singles, actions, strict=True):
            single.step(int(action))


def test_stable_baselines3_evaluates_a_rule_agent() -> None:
    evaluation = pytest.importorskip("stable_baselines3.common.evaluation")
    env = gym.make(GATING, **SHORT)
    env.reset(seed=3)
    agent = ooco_gym.make_agent("slack", env)
    found, _ = evaluation.evaluate_policy(agent, env, n_eval_episodes=1, return_episode_rewards=True, warn=False)
    assert len(found) == 1


@pytest.mark.parametrize(("env", "name", "words"), [
    ("PrefillGate", "oco", "ooco"), ("PrefillGate", "ooco:nothing=1", "nothing"),
    ("PrefillGate", "vllm_v0", "mixed instances"),
    ("Packing", "slack", "can be the base policy instead"), ("OnlineTuning", "slack", "are parameters"),
    ("PrefillGate", 3, "policy's name"),
    ("PrefillGate", ooco_gym.get_policy("ooco"), "Policy 'ooco'.*base_policy=POLICY"),
])
def test_policies_without_a_rule_for_the_decisions_are_refused_with_the_reason(env: str, name: Any, words: str) -> None:
    with pytest.raises(ooco_gym.UserError, match=words):
        ooco_gym.make_agent(name, gym.make(f"ooco_gym/{env}-v1", **SHORT))
    if env == "Packing":
        with pytest.raises(ooco_gym.UserError, match=words):
            ooco_gym.make_agent(name, gym.make_vec(f"ooco_gym/{env}-v1", 2, vectorization_mode="vector_entry_point",
                                                   **SHORT))


def test_other_environments_are_refused() -> None:
    with pytest.raises(ooco_gym.UserError, match="not an environment of ooco_gym"):
        ooco_gym.make_agent("ooco", gym.make("CartPole-v1"))
    with pytest.raises(ooco_gym.UserError, match="NoneType is not an environment of ooco_gym"):
        ooco_gym.make_agent("ooco", None)
    with pytest.raises(ooco_gym.UserError, match="a native vector"):
        ooco_gym.make_agent("ooco", gym.make_vec(GATING, 2, vectorization_mode="sync", **SHORT))


def test_an_exported_network_is_an_agent_where_it_fits(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    run, bundle = tmp_path / "RUN", tmp_path / "BUNDLE"
    assert main(["train", "env=prefillgate", "total_timesteps=1", "agent.n_envs=1", "agent.n_steps=4", "window_s=30",
                 "validation.windows=0", "env.warmup_s=20", f"out={run}"]) == 0
    assert main(["export", f"policy={run}", "forms=[npz]", "checks=10", f"out={bundle}"]) == 0
    env: Any = gym.make(GATING, **SHORT)
    agent = ooco_gym.make_agent(str(bundle), env)
    observation, _ = env.reset(seed=1)
    for _ in range(20):
        action, state = agent.predict(observation, "mine")
        assert state == "mine" and env.unwrapped.action_masks()[int(action)]
        batch = {key: np.stack([part, part]) for key, part in observation.items()}
        assert agent.predict(batch)[0].tolist() == [int(action)] * 2
        observation = env.step(action)[0]
    for other in (gym.make("ooco_gym/OnlineTuning-v1", **SHORT), gym.make("ooco_gym/Retention-v1", **SHORT)):
        with pytest.raises(ooco_gym.UserError, match="other sizes"):
            ooco_gym.make_agent(str(bundle), other)


@pytest.mark.parametrize("name", sorted(path.name for path in (conf_root() / "trained").iterdir()))
def test_a_network_that_comes_with_the_package_plays_its_environment(name: str) -> None:
    env: Any = gym.make(load_yaml("env", name)["id"], **SHORT)
    agent = ooco_gym.make_agent("ppo", env)
    assert isinstance(agent, TrainedAgent)
    assert agent.policy.manifest["environment"] == env.spec.id
    observation, _ = env.reset(seed=1)
    for _ in range(5):
        observation, _, over, cut, _ = env.step(agent(observation))
        if over or cut:
            break
