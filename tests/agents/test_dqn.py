"""Deep Q-learning with masks: legal actions, discounts of simulated time, and a policy better than its start."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("sb3_contrib")
from agents.environments import make_env, training_env, windows
from agents.evaluation.players import BatchPlayer, load_learned, play
from agents.learning import train
from agents.learning.callbacks import LogMetrics
from agents.learning.imitation import play_and_scale
from agents.learning.models import build_model
from agents.learning.vector import GymnasiumVecEnv
from ooco_gym.errors import UserError
from ooco_gym.resources import load_yaml
from tests.agents.gating_double import CONFIG, train_config

DQN = {**load_yaml("agent", "dqn"), "n_envs": 3, "hidden": 16, "batch_size": 64, "buffer_size": 900,
       "scale_decisions": 120, "discount_per_s": 0.9, "learning_rate": 3e-3, "target_update_interval": 60}


def model_on_the_double() -> Any:
    return build_model(GymnasiumVecEnv(training_env(CONFIG, 3, 1), info_keys=()), DQN, seed=1)


def test_every_action_is_legal_and_each_transition_has_its_own_discount() -> None:
    from stable_baselines3.common.callbacks import CallbackList

    model = model_on_the_double()
    _, callback = model._setup_learn(600, CallbackList([LogMetrics(False)]))
    for exploring in (1.0, 0.5, 0.0):
        model.exploration_rate = exploring
        model.collect_rollouts(model.env, callback, model.train_freq, model.replay_buffer, learning_starts=0)
    buffer, filled = model.replay_buffer, model.replay_buffer.pos
    places = np.indices((filled, 3))
    actions = buffer.actions[:filled, :, 0]
    assert (buffer.observations["action_mask"][places[0], places[1], actions] > 0).all()
    assert (buffer.observations["cluster"][:filled] != buffer.next_observations["cluster"][:filled]).any()
    sure = actions != 1  # the rule's own action is either
    assert (buffer.elapsed_s[:filled] == np.where(actions, 0.05, 0.2))[sure].all()
    drawn = buffer.sample(64)
    actions, sure = drawn.actions.numpy(), drawn.actions.numpy() != 1
    np.testing.assert_allclose(drawn.discounts.numpy()[sure], 0.9 ** np.where(actions, 0.05, 0.2)[sure], rtol=1e-6)


def test_both_networks_see_observations_on_one_scale() -> None:
    """What scales them is no weight, so the target's following of weights would leave it behind."""
    model = model_on_the_double()
    play_and_scale(model, model.env, 60, 1)
    assert not list(model.q_net.features_extractor.parameters())
    observation = model.policy.obs_to_tensor(model.env.reset())[0]
    seen = [network.features_extractor(observation) for network in (model.q_net, model.q_net_target)]
    assert (seen[0] == seen[1]).all() and model.q_net.features_extractor.cluster.moments[0].max() > 0


def test_it_learns_and_its_run_is_played_as_any_other(tmp_path) -> None:
    settings = train_config(tmp_path / "learned", total_timesteps=6000, validation={"windows": 0},
                            checkpoint_every_steps=None)
    settings["agent"] = DQN
    train.main(settings)
    train.main({**settings, "total_timesteps": 12, "out": str(tmp_path / "untrained")})
    games = windows(CONFIG["splits"]["test"], 24)

    def reward(run: str) -> float:
        decide = load_learned(str(tmp_path / run)).decide
        return float(np.mean([record["reward"] for record in play(CONFIG, BatchPlayer(decide), games)]))

    assert reward("learned") > reward("untrained") + 1.0


def test_what_it_cannot_do_is_said(tmp_path) -> None:
    env = load_yaml("env", "gating")
    with pytest.raises(UserError, match="agent dqn values single actions, and this environment has MultiDiscrete"):
        train.main({**train_config(tmp_path), "agent": DQN, "env": env})
    assert make_env(env).action_space.shape == (1,)
    settings = {**train_config(tmp_path / "run"), "agent": DQN}
    train.main(settings)
    with pytest.raises(UserError, match="or by agent=dqn; start a new training"):
        train.main({"resume": str(tmp_path / "run")})
