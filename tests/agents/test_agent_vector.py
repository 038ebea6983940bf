"""Gymnasium's vector environments as Stable-Baselines3's: the same transitions as its own vectoriser."""

import threading

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from stable_baselines3.common.env_checker import check_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

import ooco_gym  # noqa: F401  registers the environments
from agents.environments import SplitEpisodes, training_env
from agents.learning.imitation import STEPS, steps_of
from agents.learning.vector import GymnasiumVecEnv
from ooco_gym.errors import UserError
from ooco_gym.resources import load_yaml
from tests.agents.gating_double import CONFIG, GatingDouble

SAME_STEP = AutoresetMode.SAME_STEP
SHORT = {"window_s": 20.0, "warmup_s": 10.0}


def cartpoles(count=3, **arguments):
    makers = [lambda: gym.make("CartPole-v1", max_episode_steps=25)] * count
    return GymnasiumVecEnv(SyncVectorEnv(makers, autoreset_mode=SAME_STEP), **arguments), DummyVecEnv(makers)


def native(count=3, name="prefillgate", window_s=SHORT["window_s"], **arguments):
    env = training_env({**load_yaml("env", name), **SHORT, "window_s": window_s}, count, seed=1)
    return GymnasiumVecEnv(env, **arguments)


def same(one, two):
    """Whether two observations are equal, whatever they are made of."""
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(np.array_equal(one[key], two[key]) for key in one)
    return np.array_equal(one, two)


def same_step(one, two, extra):
    """Whether two steps are equal but for the infos `extra`, which the first one adds at an episode's end."""
    assert same(one[0], two[0])
    assert np.array_equal(one[1], two[1]) and one[1].dtype == two[1].dtype
    assert np.array_equal(one[2], two[2]) and one[2].dtype == two[2].dtype
    for ours, theirs, done in zip(one[3], two[3], one[2], strict=True):
        assert set(ours) == set(theirs) | (extra if done else set())
        for key in theirs:
            if key in ("terminal_observation", "action_mask"):
                assert same(ours[key], theirs[key])
            else:
                assert ours[key] == theirs[key], key


def doubles():
    """With masks, infos of many kinds and nested figures at the end."""
    return GymnasiumVecEnv(training_env(CONFIG, 3, seed=1)), DummyVecEnv(
        [lambda i=i: SplitEpisodes(GatingDouble(), [1, 2, 3], (1, i)) for i in range(3)])


def natives():
    seeds = load_yaml("env", "prefillgate")["splits"]["train"]
    return native(), DummyVecEnv([lambda i=i: SplitEpisodes(gym.make(
        "ooco_gym/PrefillGate-v1", disable_env_checker=True, **SHORT), seeds, (1, i)) for i in range(3)])


@pytest.mark.parametrize("made", [cartpoles, doubles, natives])
def test_it_steps_as_stable_baselines3s_own_vectoriser(made):
    (ours, theirs), random, ended, cut = made(), np.random.default_rng(0), 0, 0
    for env in (ours, theirs):
        env.seed(4)
    assert same(ours.reset(), theirs.reset())
    for step in range(1000):
        if ours.has_attr("action_masks"):
            masks = np.stack(ours.env_method("action_masks"))
            assert np.array_equal(masks, np.stack(theirs.env_method("action_masks")))
            assert ours.env_method("rule_action", "ooco") == theirs.env_method("rule_action", "ooco")
            actions = np.where(masks, random.random(masks.shape), -1).argmax(1)
        else:  # at random until it falls, then for as long as it may
            actions = random.integers(2, size=3) if step < 60 else np.array([step % 2] * 3)
        one = ours.step(actions)
        same_step(one, theirs.step(actions), {"episode"})
        ended, cut = ended + int(one[2].sum()), cut + sum(info["TimeLimit.truncated"] for info in one[3])
        if ended >= 6 and cut:
            break
    assert ended >= 6 and cut


def test_ends_of_episodes_are_reported_as_monitor_does():
    """`VecMonitor` around Stable-Baselines3's vectoriser writes returns and lengths; so does the adapter by itself."""
    ours, plain = cartpoles()
    theirs = VecMonitor(plain)
    for env in (ours, theirs):
        env.seed(7)
        env.reset()
    seen = 0
    for _ in range(100):
        one, two = ours.step(np.ones(3, int)), theirs.step(np.ones(3, int))
        for a, b in zip(one[3], two[3], strict=True):
            assert ("episode" in a) == ("episode" in b)
            if "episode" in a:
                assert {key: a["episode"][key] for key in "rl"} == {key: b["episode"][key] for key in "rl"}
                assert a["episode"]["t"] >= 0.0
                seen += 1
    assert seen > 5
    assert ours.env_is_wrapped(Monitor) == [True] * 3


def test_infos_that_nobody_asked_for_are_left_out_but_can_be_had_as_arrays():
    everything, chosen = native(), native(info_keys=("cost",))
    everything.reset(), chosen.reset()
    ended = 0
    for _ in range(400):
        actions = everything.env.unwrapped.base_actions()
        one, two = everything.step(actions), chosen.step(actions)
        for full, part, done in zip(one[3], two[3], one[2], strict=True):
            assert set(part) == {"TimeLimit.truncated", "cost"} if not done else set(full) == set(part)
        for key in ("elapsed_s", "cost", *everything.info_keys("reward/")):
            np.testing.assert_array_equal(chosen.info_array(key), [info[key] for info in one[3]])
        ended += int(one[2].sum())
        if ended >= 4:
            break
    assert ended >= 4 and len(chosen.info_keys("reward/")) == 7
    assert chosen.info_array("no such figure").tolist() == [0.0] * 3


def test_a_figure_of_an_episode_that_ended_is_that_of_its_last_step():
    """The double's single environments put the reset's info where the last step's was."""
    ours = GymnasiumVecEnv(training_env(CONFIG, 2, seed=1))
    ours.reset()
    for _ in range(80):
        _, _, dones, infos = ours.step(np.ones(2, int))
        np.testing.assert_array_equal(ours.info_array("elapsed_s"), [info["elapsed_s"] for info in infos])
        assert (ours.info_array("elapsed_s") > 0).all()
    assert dones.all() and set(ours.reset_infos[0]) >= {"action_mask", "elapsed_s"}


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_other_ways_to_reset_are_refused(mode):
    with pytest.raises(UserError, match=f"autoreset_mode={mode.value}; Stable-Baselines3 needs SameStep"):
        GymnasiumVecEnv(SyncVectorEnv([GatingDouble], autoreset_mode=mode))


def test_what_stable_baselines3_asks_of_its_places():
    ours, _ = cartpoles()
    assert ours.get_attr("render_mode") == [None] * 3 and ours.num_envs == 3
    assert [spec.id for spec in ours.get_attr("spec", indices=[0, 2])] == ["CartPole-v1"] * 2
    assert not ours.has_attr("action_masks") and ours.has_attr("np_random")
    assert ours.env_is_wrapped(gym.wrappers.TimeLimit, indices=1) == [True]
    assert ours.env_is_wrapped(gym.wrappers.ClipReward) == [False] * 3
    ours.set_attr("gravity_of_old", 1.0)
    with pytest.raises(UserError, match="cannot set 'x' in single places"):
        ours.set_attr("x", 1.0, indices=[0])
    with pytest.raises(AttributeError, match="no method 'no_such_method'"):
        native(1).env_method("no_such_method")
    ours.set_options([{"low": 0.0}, {"low": 0.1}, {"low": 0.0}])
    with pytest.raises(UserError, match="one mapping of options for all"):
        ours.reset()


def test_seeds_and_options_reach_the_environment_once():
    env = GymnasiumVecEnv(gym.make_vec("ooco_gym/PrefillGate-v1", num_envs=2, vectorization_mode="vector_entry_point",
                                       autoreset_mode="SameStep", **SHORT))
    env.seed(30)
    env.set_options({"window": 2})
    env.reset()
    assert env.env.unwrapped.windows == [(30, 2), (31, 2)]
    env.reset()
    assert not {30, 31} & {seed for seed, _ in env.env.unwrapped.windows}


def test_threads_of_a_vector_play_the_same_behind_the_adapter_and_end_with_it():
    ours = [GymnasiumVecEnv(gym.make_vec("ooco_gym/PrefillGate-v1", num_envs=5, vectorization_mode="vector_entry_point",
                                         autoreset_mode="SameStep", threads=threads, **SHORT)) for threads in (1, 2)]
    begun = threading.active_count()
    for env in ours:
        env.seed(3)
    assert same(*[env.reset() for env in ours])
    for _ in range(20):
        one, other = [env.step(np.ones(5, int)) for env in ours]
        assert same(one[0], other[0]) and np.array_equal(one[1], other[1])
    assert threading.active_count() == begun + 1
    ours[1].close()
    assert threading.active_count() == begun


def test_native_training_draws_only_training_seeds():
    env = native(2)
    inner, seeds = env.env.unwrapped, set(load_yaml("env", "prefillgate")["splits"]["train"])
    seen = []
    for first in (2000, 3000):  # a validation and a test seed, which must not reach the episodes
        env.seed(first)
        env.reset()
        seen += inner.windows
    for _ in range(300):
        if env.step(inner.base_actions())[2].any():
            seen += inner.windows
    assert {seed for seed, _ in seen} <= seeds and len(set(seen)) > 6


@pytest.mark.parametrize(("name", "interval_s"), [("gating", 5.0), ("packing", 1.0)])
def test_a_rollout_is_as_long_in_simulated_time_however_often_an_environment_asks(name, interval_s):
    env = native(name=name, window_s=600.0)
    assert steps_of(env, 120.0, seed=1) == 120.0 / interval_s
    assert steps_of(env, 1e6, seed=1) == STEPS[1] and steps_of(env, 0.1, seed=1) == STEPS[0]


def test_control_learns_with_its_masks_over_several_dimensions():
    """MultiDiscrete actions are for sb3-contrib's own network; its masks are the concatenated ones."""
    from sb3_contrib import MaskablePPO

    env = native(2, "onlinetuning", info_keys=())
    assert np.stack(env.reset()["action_mask"]).shape == (2, sum(env.action_space.nvec))
    model = MaskablePPO("MultiInputPolicy", env, n_steps=8, batch_size=16, n_epochs=1, seed=0, device="cpu")
    model.learn(32)
    action, _ = model.predict(env.reset(), action_masks=np.stack(env.env_method("action_masks")))
    assert action.shape == (2, len(env.action_space.nvec))


def test_single_environments_please_stable_baselines3s_checker():
    check_env(gym.make("ooco_gym/PrefillGate-v1", **SHORT), warn=False)
