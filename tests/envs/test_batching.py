"""Batching-v1: what it asks, what its answers do, and that its features are those that an engine can compute itself."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from ooco_gym import UserError
from ooco_gym.runtime.features import ENGINE as FEATURES
from ooco_gym.sim import state as s
from tests.envs.episodes_in_short import alike, at_random, base_policy, differences, make, play

ID = "ooco_gym/Batching-v1"


def test_a_decision_is_asked_where_there_is_more_to_do_than_online_decodes():
    env = make(ID, scenario={"offline": {"mode": "rate", "rate": 0.3}, "rate_scale": 1.0}, vary={})
    mixed_steps = 0
    for step in play(env, base_policy):
        if step.truncated:
            break
        found = dict(zip((one.name for one in FEATURES), step.observation["cluster"], strict=True))
        others = ("online_prompts", "offline_decodes", "offline_prompts", "online_waiting", "offline_waiting")
        assert any(found[name] > 0 for name in others)
        assert bool(step.info["action_mask"][0]) == (found["online_decodes"] > 0)
        mixed_steps += 1
    assert 0 < mixed_steps < int(env.simulation.state.instances["steps_begun"][0])


def test_longer_times_take_longer_and_shares_of_0_leave_a_class_out():
    """Two engines, so that the iteration of the one asked is seen when the other one asks."""
    env = make(ID, cluster="engines_7b", scenario={"rate_scale": 6.0}, vary={})
    env.reset(seed=2, options={"window": 0})
    levels = env.episodes.buffers.levels
    tpot = env.config.scenario.load_slo().tpot_s
    checked = 0
    for _ in range(300):
        k = int(np.random.default_rng(checked).integers(levels.shape[1]))
        instance = int(env.simulation.state.pending.instance)
        before = int(env.simulation.state.instances["steps_begun"][instance])
        alone = float(env._observation()["cluster"][33]) * 4.0 * tpot
        env.step(2 + k)
        spec = env.simulation.state.instances[instance]
        if int(spec["steps_begun"]) == before + 1 and spec["activity"] == s.MIXING:
            took = (int(spec["end_ps"]) - int(spec["start_ps"])) / s.PS_PER_S
            assert took <= max(levels[0, k] * tpot, alone) * 1.0001 or spec["new_tokens"] <= 256
            assert took >= alone * 0.9999
            checked += 1
    assert checked > 50


def test_online_decodes_alone_have_no_prompt_and_no_offline_token():
    env = make(ID)
    env.reset(seed=2, options={"window": 0})
    state = env.simulation.state
    for _ in range(50):
        if not env.action_masks()[0]:
            env.step(1)
            continue
        before = {int(slot): int(state.requests["num_computed_tokens"][slot])
                  for slot in np.flatnonzero(state.requests["status"] == s.RESIDENT)}
        decoding = {slot for slot in before if state.requests["online"][slot] and
                    state.requests["generated_tokens"][slot] > 0 and state.requests["prompt_tokens"][slot]
                    + state.requests["generated_tokens"][slot] - before[slot] == 1}
        over = env.step(0)[3]
        for slot, computed in before.items():
            if state.requests["status"][slot] == s.RESIDENT and state.clock.now_ps and not over:
                grown = int(state.requests["num_computed_tokens"][slot]) - computed
                assert (grown > 0) <= (slot in decoding)


@pytest.mark.parametrize("cluster", ["engine_7b", "engines_7b"])
def test_an_answer_stays_in_force_for_the_interval(cluster):
    """Each engine is asked once an interval; answers of the base policy's stay in force as well."""
    scale = {"engine_7b": 1.7, "engines_7b": 6.8}[cluster]
    env = make(ID, cluster=cluster, interval_s=1.0, scenario={"rate_scale": scale}, vary={})
    last, choose = {}, at_random(3)

    def watch(one):
        instance, now = int(one.simulation.state.pending.instance), one.simulation.now_s
        assert now - last.get(instance, -np.inf) >= 1.0 - 1e-9
        last[instance] = now
        return choose(one)

    steps = play(env, watch)
    engines = len(env.simulation.state.instances)
    assert len(last) == engines and 0.5 * 60 * engines < len(steps) < 61 * engines
    same, other = (make(ID, cluster=cluster, interval_s=interval, scenario={"rate_scale": scale}, vary={})
                   for interval in (1.0, 0.001))
    assert len(play(same, base_policy)) < len(play(other, base_policy))
    assert differences(same.simulation.state, other.simulation.state) == []


def test_box_actions_are_the_candidates_where_they_say_the_same():
    """A vector of numbers from -1 to 1: time from the least to the longest, shares from 0 to 1; NaN: the base
    policy."""
    discrete, box = make(ID), make(ID, action="box")
    assert box.action_space == gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
    times, online, offline = discrete.episodes.buffers.levels
    random = np.random.default_rng(0)
    observations = [env.reset(seed=4, options={"window": 1})[0] for env in (discrete, box)]
    for step in range(400):
        assert alike(*[{key: one[key] for key in ("cluster", "candidates")} for one in observations])
        k = int(random.integers(len(times)))
        vector = np.array([2 * (times[k] - times[0]) / (times[-1] - times[0]) - 1, 2 * online[k] - 1,
                           2 * offline[k] - 1])
        if step % 7 == 0:
            k, vector = -1, box.base_action()
        one, other = discrete.step(2 + k), box.step(vector)
        assert one[1] == other[1] and one[3] == other[3]
        observations = [one[0], other[0]]
    for wrong in (1, [0.0, 0.0], "abc", None, [[0.0] * 3]):
        with pytest.raises(UserError, match="expected an action of Box"):
            box.step(wrong)


@pytest.mark.parametrize(("changes", "words"), [
    ({"cluster": "pair_7b", "base_policy": "ooco"}, "relaxed and strict; use for example cluster mixed_7b"),
    ({"base_policy": "vllm_fcfs"}, "treats offline requests as online ones"),
    ({"levels": [0.0, 1.0]}, "must be positive"),
    ({"shares": {"online": [0.0, 2.0]}}, r"shares.online=\[0.0, 2.0\] must be a list of shares from 0 to 1"),
    ({"levels": [float(n) for n in range(1, 10)]}, "make 72 candidates; expected 2 to 64"),
    ({"action": "continuous"}, "action='continuous' must be discrete")])
def test_invalid_arguments_raise_user_errors(changes, words):
    with pytest.raises(UserError, match=words):
        make(ID, **changes)
