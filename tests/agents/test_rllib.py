"""Environments as RLlib takes them; Ray itself is needed by the last test alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from gating_double import CONFIG, FC, A, D, F, K
from gymnasium import spaces

from agents.learning.rllib import Masked, rllib_env
from ooco_gym.errors import UserError
from ooco_gym.resources import load_yaml

SHORT: dict[str, Any] = {"window_s": 10.0, "warmup_s": 2.0}


class Context(dict):
    """As RLlib's `EnvContext`: a dict that says whose it is."""

    worker_index = 1


def test_observations_are_a_vector_and_the_legal_actions() -> None:
    env = rllib_env({"env": "gating", **SHORT})
    space: Any = env.observation_space
    assert isinstance(env, Masked) and set(space) == {"action_mask", "observations"}
    observation, info = env.reset()
    over = False
    while not over:
        assert space.contains(observation)
        assert observation["action_mask"].tolist() == info["action_mask"].tolist()
        assert np.array_equal(observation["observations"][:10], observation["action_mask"]), "the vector's first part"
        observation, _, _, over, info = env.step(int(np.flatnonzero(observation["action_mask"])[-1]))
    assert "summary" in info


def windows_of(context: dict[str, Any], *seeds: int | None) -> list[tuple[int, int]]:
    """The windows that an environment plays at resets with these seeds."""
    env: Any = rllib_env(context)
    played = []
    for seed in seeds:
        env.reset(seed=seed)
        played.append(env.unwrapped.window)
    return played


def test_windows_are_of_the_split_whatever_seeds_are_handed_out() -> None:
    splits = load_yaml("env", "gating")["splits"]
    assert all(seed in splits["train"] for seed, _ in windows_of({**SHORT}, 0, splits["test"][0], None))
    assert all(seed in splits["test"] for seed, _ in windows_of({"split": "test", **SHORT}, 0, 1, None))


def test_each_draws_windows_of_its_own_and_the_same_ones_of_a_seed() -> None:
    context = Context(env="gating", **SHORT)
    seeded = windows_of(context, 7, None)
    assert seeded == windows_of(context, 7, None)
    others = [windows_of(context, None, None), windows_of(context, None, None), windows_of({**SHORT}, 7, None),
              windows_of(context, 8, None)]
    assert all(one != other for i, one in enumerate([seeded, *others]) for other in others[i:])


def test_vectors_of_levels_have_no_mask() -> None:
    env = rllib_env({"env": "control", **SHORT})
    assert isinstance(env.observation_space, spaces.Box) and isinstance(env.action_space, spaces.MultiDiscrete)
    assert env.observation_space.contains(env.reset()[0])


def test_what_there_is_not_is_refused() -> None:
    with pytest.raises(UserError, match="did you mean 'gating'"):
        rllib_env({"env": "gatin"})
    with pytest.raises(UserError, match="windw_s"):
        rllib_env({"env": "gating", "windw_s": 1.0})
    with pytest.raises(UserError, match="did you mean 'train'"):
        rllib_env({"env": "gating", "split": "tran"})


def test_observations_of_another_package_are_flattened(tmp_path: Path) -> None:
    (tmp_path / "double.yaml").write_text(yaml.safe_dump(CONFIG))
    env = rllib_env({"env": str(tmp_path / "double.yaml"), "decisions": 3})
    observation, _ = env.reset(seed=1)
    vector: Any = observation["observations"]
    assert vector.shape == env.observation_space["observations"].shape == (A + K * F + FC + D,)  # type: ignore[index]
    assert vector.dtype == np.float32
    assert observation["action_mask"].shape == (A,)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gating", "control"])
def test_rllib_learns_on_it(name: str) -> None:
    for package in ("tree", "lz4", "ray.rllib"):  # of the extra
        pytest.importorskip(package, exc_type=ImportError)
    import ray
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec
    from ray.rllib.examples.rl_modules.classes.action_masking_rlm import ActionMaskingTorchRLModule
    from ray.tune import register_env

    register_env("ooco_gym", rllib_env)
    config = (PPOConfig().environment("ooco_gym", env_config={"env": name, **SHORT})
              .env_runners(num_env_runners=0, rollout_fragment_length=32)
              .training(train_batch_size_per_learner=64, minibatch_size=32, num_epochs=1))
    if name == "gating":
        config = config.rl_module(rl_module_spec=RLModuleSpec(module_class=ActionMaskingTorchRLModule))
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        algorithm = config.build_algo()
        module: Any = algorithm.get_module()
        kept = {key: value.clone() for key, value in module.state_dict().items()}
        algorithm.train()
        after = module.state_dict()
        assert any(not value.equal(after[key]) for key, value in kept.items())
        algorithm.stop()
    finally:
        ray.shutdown()
