"""Gating-v0: Gymnasium's and Stable-Baselines3's conventions, determinism, masks, rules, reward parts."""

import json
import pickle
import warnings
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

import ooco_gym
from ooco_gym import Scenario, Simulation, UserError
from ooco_gym.envs import document, stepping
from ooco_gym.policy import get_policy
from ooco_gym.sim import state as s

ID = "ooco_gym/Gating-v0"
SHORT = {"window_s": 60.0, "warmup_s": 30.0}


@pytest.fixture
def env():
    made = gym.make(ID, **SHORT)
    yield made
    made.close()


def play(env, choose, seed=7, window=3):
    """Plays one window; returns observations, rewards and infos."""
    observation, info = env.reset(seed=seed, options={"window": window})
    rewards, infos, observations, done = [], [info], [observation], False
    while not done:
        observation, reward, terminated, done, info = env.step(choose(env, observation))
        assert not terminated
        rewards.append(reward)
        infos.append(info)
        observations.append(observation)
    return observations, rewards, infos


def rule(name):
    return lambda env, _: env.unwrapped.rule_action(name)


def test_gymnasium_checker_is_content():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gym.make(ID, render_mode="ansi", **SHORT).unwrapped)


def test_stable_baselines_checker_is_content():
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*unconventional shape.*")  # candidates are a matrix, on purpose
        checker.check_env(gym.make(ID, **SHORT))


def test_made_by_module_prefix_and_spec_survives_json():
    made = gym.make("ooco_gym:ooco_gym/Gating-v0", **SHORT)
    again = gym.make(gym.envs.registration.EnvSpec.from_json(made.spec.to_json()))
    assert again.unwrapped.config.window_s == 60.0


def test_same_seed_same_bytes(env):
    first, second = (play(env, rule("random")) for _ in range(2))
    other = play(gym.make(ID, **SHORT), rule("random"))
    for result in (second, other):
        assert first[1] == result[1]
        for a, b in zip(first[0], result[0], strict=True):
            assert all(a[key].tobytes() == b[key].tobytes() for key in a)
    assert play(env, rule("random"), seed=8)[1] != first[1]


def test_masks_by_both_conventions(env):
    observation, info = env.reset(seed=1)
    for _ in range(200):
        mask = info["action_mask"]
        assert mask.dtype == np.int8
        assert np.array_equal(mask, observation["action_mask"])
        assert np.array_equal(env.unwrapped.action_masks(), mask.astype(bool))
        assert env.observation_space.contains(observation)
        assert mask[0] == 1
        assert np.array_equal(observation["candidates"][:, 0] > 0, mask[1:] > 0)
        action = env.action_space.sample(mask=mask)
        observation, _, _, done, info = env.step(action)
        if done:
            break


def test_observations_are_not_overwritten_by_later_steps(env):
    first, _ = env.reset(seed=1)
    kept = {key: value.copy() for key, value in first.items()}
    for _ in range(20):
        env.step(0)
    assert all(np.array_equal(first[key], kept[key]) for key in kept)


@settings(max_examples=5, deadline=None)
@given(actions=st.lists(st.integers(-3, 40), min_size=5, max_size=40), seed=st.integers(0, 2**40))
def test_illegal_actions_never_crash(actions, seed):
    made = gym.make(ID, disable_env_checker=True, **SHORT)
    made.reset(seed=seed)
    for action in actions:
        observation, reward, _, done, _ = made.step(action)
        assert np.isfinite(reward)
        assert made.observation_space.contains(observation)
        if done:
            break


def test_partner_in_the_env_is_the_partner_in_the_loop(env):
    """The same rule decides from outside and inside: one episode, bit for bit (drain apart)."""
    play(env, lambda e, _: e.unwrapped.partner_action(), seed=5, window=2)
    inside = env.unwrapped
    scenario = inside.config.window(5, 2)
    policy = get_policy("ooco", {"gate_window": 64})
    simulation = Simulation(scenario, policy)
    simulation.advance()
    names = [n for n in simulation.state.requests.dtype.names if n not in ("previous", "next")]
    for name in names:
        assert np.array_equal(simulation.state.requests[name], inside._state.requests[name]), name


def test_never_serves_nothing_new_and_always_serves(env):
    served = {name: play(env, rule(name))[2][-1]["summary"] for name in ("always", "never")}
    assert served["always"]["offline_finished"] > served["never"]["offline_finished"]
    assert served["always"]["reward_total"] > served["never"]["reward_total"]


@pytest.mark.parametrize("name", ["always", "random"])
def test_reward_parts_sum_to_the_reward_and_to_the_protocols_figures(env, name):
    _, rewards, infos = play(env, rule(name))
    parts = [f"reward/{part}" for part in stepping.PARTS]
    for reward, info in zip(rewards, infos[1:], strict=True):
        assert reward == pytest.approx(sum(info[part] for part in parts), abs=1e-9)
    summary, state = infos[-1]["summary"], env.unwrapped._state
    assert summary["reward_total"] == pytest.approx(sum(rewards), abs=1e-6)
    weights = dict(zip(stepping.PARTS, env.unwrapped.config.weights, strict=True))
    requests = state.requests
    start, end = state.counters[s.WINDOW_START], state.counters[s.WINDOW_END]
    done = (requests["online"] == 0) & (requests["status"] == s.FINISHED)
    done &= (requests["finish_ps"] >= start) & (requests["finish_ps"] < end)
    served = requests["service_ps"][done].sum() / s.PS_PER_S
    first_decision_s = summary["offline_reference_gpu_s_per_s"] * 60.0
    assert first_decision_s == pytest.approx(served, rel=1e-9)
    assert summary["reward/service"] <= weights["service"] * served + 1e-9
    counted = (requests["online"] == 1) & (requests["counted"] == 1)
    assert summary["online_violated"] == np.count_nonzero(requests["violated"][counted])
    assert summary["online_arrived"] == np.count_nonzero(counted)
    assert sum(info.get("cost", 0.0) for info in infos) == summary["online_violated"]


def test_waiting_work_costs_its_integral(env):
    """The waiting part is the exact area under the offline work in the system, recomputed from the requests."""
    _, _, infos = play(env, rule("always"))
    state, unwrapped = env.unwrapped._state, env.unwrapped
    requests = state.requests[(state.requests["online"] == 0) & (state.requests["status"] != s.REJECTED)]
    end = int(state.counters[s.WINDOW_END])
    begin = end - round(sum(info["elapsed_s"] for info in infos) * s.PS_PER_S)
    leave = np.where(requests["finish_ps"] > 0, requests["finish_ps"], np.iinfo(np.int64).max)
    span = np.clip(np.minimum(leave, end) - np.maximum(requests["arrival_ps"], begin), 0, None) / s.PS_PER_S
    area = float((span * requests["service_ps"] / s.PS_PER_S).sum())
    expected = -dict(zip(stepping.PARTS, unwrapped.config.weights, strict=True))["waiting"] * area
    assert infos[-1]["summary"]["reward/waiting"] == pytest.approx(expected, rel=1e-6)


def test_elapsed_time_adds_up_to_the_window(env):
    _, _, infos = play(env, rule("always"))
    total = sum(info["elapsed_s"] for info in infos)
    assert 50.0 < total <= 60.0  # from the first decision to the end of the window


def test_candidate_zero_is_the_head_of_the_queue(env):
    env.reset(seed=11)
    unwrapped = env.unwrapped
    for _ in range(60):
        assert unwrapped._chosen[0] == 0
        lengths = unwrapped._candidates[1:, 1][unwrapped._chosen[1:] >= 0]
        assert np.all(np.diff(lengths) >= 0)
        if env.step(0)[3]:
            break


def test_a_window_is_fixed_by_seed_and_number():
    config = gym.make(ID).unwrapped.config
    assert config.window(3, 4) == config.window(3, 4)
    assert len({config.window(seed, number).seed for seed in range(5) for number in range(5)}) == 25


def test_splits_share_no_seed():
    splits = ooco_gym.resources.load_yaml("env", "gating")["splits"]
    seeds = [seed for split in splits.values() for seed in split]
    assert len(seeds) == len(set(seeds))


def test_pickles(env):
    made = gym.make(ID, **SHORT)
    again = pickle.loads(pickle.dumps(made.unwrapped.spec))
    assert gym.make(again).unwrapped.config.window_s == 60.0


def test_ansi_render_names_every_instance():
    made = gym.make(ID, render_mode="ansi", **SHORT)
    made.reset(seed=1)
    line = made.render()
    assert "relaxed" in line
    assert "strict" in line


@pytest.mark.parametrize(("arguments", "words"), [
    ({"partner": "oco"}, "did you mean 'ooco'"), ({"partner": "base_pd"}, "no gate"),
    ({"scenario": {"workload": "oocc"}}, "did you mean 'ooc'"), ({"scenario": {"work": "ooc"}}, "workload"),
    ({"candidates": 0}, "1 to 64"), ({"window_s": -1.0}, "positive"), ({"reward": {"servic": 1.0}}, "service"),
    ({"reward": {"ttft": -1.0}}, "at least 0"), ({"render_mode": "humanoid"}, "ansi"),
])
def test_mistakes_are_named(arguments, words):
    with pytest.raises(UserError, match=words):
        ooco_gym.envs.gating.GatingEnv(**arguments).reset(seed=1)


def test_page_is_what_the_code_says():
    root = Path(__file__).parents[2]
    text = document.path_of(ID, root).read_text(encoding="utf-8")
    assert text == document.page(ID), "run: python -m ooco_gym.envs.document"


def test_feature_tables_fit_the_spaces(env):
    tables = env.unwrapped.feature_tables()
    assert len(tables["cluster"]) == env.observation_space["cluster"].shape[0]
    assert len(tables["candidates"]) == env.observation_space["candidates"].shape[1]
    json.dumps(tables)


def test_scenario_objects_are_accepted():
    made = gym.make(ID, scenario=Scenario(cluster="pair_7b", workload="ooc", rate_scale=0.03), **SHORT)
    made.reset(seed=1)
    assert made.unwrapped.config.scenario.workload == "ooc"


@pytest.mark.parametrize("action", [1.5, None, "1", np.array([1, 2])])
def test_what_is_no_action_is_refused_with_the_action_space(env, action):
    env.reset(seed=1, options={"window": 0})
    with pytest.raises(UserError, match=r"an action is a whole number of Discrete\(9\)"):
        env.step(action)
    _, _, terminated, truncated, _ = env.step(np.int64(1))  # the episode is where it was
    assert not terminated and not truncated
