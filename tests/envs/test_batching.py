"""Batching-v1: what it asks, what its answers do, and that its features are those that an engine can compute itself."""

from __future__ import annotations

from math import log1p

import gymnasium as gym
import numpy as np
import pytest

from ooco_gym import Simulation, UserError, candidate_table
from ooco_gym.envs import batching, entering, preemption_victim, serving
from ooco_gym.envs.buffers import PLANNED
from ooco_gym.policy import policy_of
from ooco_gym.resources import load_yaml
from ooco_gym.runtime.features import ACTION, ENTRY, TARGET, VICTIM
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
    ({"shares": {"online": [0.0, 2.0]}}, r"shares.online\[1\]=2.0 must be a number from 0 to 1"),
    ({"levels": [float(n) for n in range(1, 10)]}, "make 72 candidates; expected 2 to 64"),
    ({"action": "continuous"}, "action='continuous' must be one of discrete")])
def test_invalid_arguments_raise_user_errors(changes, words):
    with pytest.raises(UserError, match=words):
        make(ID, **changes)


# --- Serving-v1: that each decision is asked when it is due, in order, and sees what its engines can tell ------------
ID_SERVING = "ooco_gym/Serving-v1"
TABLES = {"batch": (ACTION, batching), "admit": (ENTRY, entering), "target": (TARGET, serving),
          "reclaim": (VICTIM, preemption_victim)}
SINGLE = {"cluster": "engine_7b", "rate_scale": 1.4, "offline": {"mode": "rate", "rate": 4.0}}
MEMORY_BOUND = {"cluster": "mixed_llama2_7b_40g", "workload": "azure_conv", "rate_scale": 0.07,
                "offline": {"mode": "rate", "rate": 4.0}}
SHARED = {"offline": {"mode": "rate", "rate": 16.0, "lengths": "mmlu",
                      "sharing": {"form": "few_shot", "ratio": 0.83, "groups": 57}}}
CASES = {
    "as trained": {}, "one engine": {"scenario": SINGLE}, "memory binds": {"scenario": MEMORY_BOUND},
    "prefixes are shared": {"scenario": SHARED, "base_policy": "deadline:prefix_caching=on"},
    "closed sessions": {"scenario": {"workload": {
        "name": "sharegpt", "sharing": {"form": "chat", "ratio": 0.4, "think_s": 4.0}, "sessions": "closed",
        "think_s": 1.5}}},
    "beside hygen": {"base_policy": "hygen:latency_budget_s=0.04",
                     "scenario": {"slo": {"ttft_s": 0.5, "tpot_s": 0.03}}},
}


def kind(env):
    return env.episodes.asked(0).name


def test_an_iteration_is_filled_first_then_requests_enter_it_and_arrivals_are_sent():
    """Between the two no time passes, and both are of one engine."""
    env, choose = make(ID_SERVING), at_random(3)
    env.reset(seed=1, options={"window": 0})
    before, counts = None, dict.fromkeys(TABLES, 0)
    for _ in range(1_500):
        pending = env.simulation.state.pending
        now = (kind(env), int(pending.instance), env.simulation.now_s)
        if now[0] == "admit" and before is not None and before[0] == "batch":
            assert now[1:] == before[1:]
        if now[0] == "target":
            assert now[1] == -1 and env.simulation.state.requests["status"][pending.request] == s.FUTURE
        counts[now[0]] += 1
        before = now
        if env.step(choose(env))[3]:
            break
    assert all(counts[name] > 100 for name in ("batch", "admit", "target"))


def test_a_request_goes_where_it_is_sent():
    env, random, sent = make(ID_SERVING), np.random.default_rng(2), set()
    env.reset(seed=1, options={"window": 0})
    for _ in range(1_000):
        if kind(env) != "target":
            env.step(1)
            continue
        legal = np.flatnonzero(env.action_masks()[2:])
        assert sorted(env.episodes.buffers.chosen[0, legal]) == [0, 1, 2, 3] and not env.action_masks()[0]
        first = candidate_table(env._observation())[0, serving.F.default]
        assert first == 1.0 and env.episodes.buffers.chosen[0, 0] == env.episodes.buffers.status[0, PLANNED]
        k, slot = int(random.choice(legal)), int(env.simulation.state.pending.request)
        engine = int(env.episodes.buffers.chosen[0, k])
        if env.step(2 + k)[3]:
            break
        assert env.simulation.state.requests["instance"][slot] == engine
        sent.add(engine)
    assert sent == {0, 1, 2, 3}


@pytest.mark.parametrize("case", ["as trained", "one engine", "memory binds", "closed sessions"])
def test_one_rule_through_two_drivers_gives_the_same_bytes(case):
    """The compiled rules whole, and decision by decision: where to, how filled, who enters next."""
    env = make(ID_SERVING, **CASES[case])

    def as_the_rule(one):
        table, mask = candidate_table(one._observation()), one.action_masks()
        if kind(one) == "target":
            return 2 + int(np.argmax(table[:, serving.F.default]))
        if kind(one) == "admit":
            first = np.flatnonzero(table[:, entering.F.first])
            return 2 + int(first[0]) if len(first) else 0 if mask[0] else 1
        return 1

    play(env, as_the_rule)
    whole = Simulation(env.config.window(1, 0), policy_of(env.config.base_policy))
    assert not whole.advance()
    assert differences(env.simulation.state, whole.state) == []


# --- Admission-v2 ----------------------------------------------------------------------------------------------------
ID_ADMISSION = "ooco_gym/Admission-v2"


def test_an_action_sets_the_weights_by_which_the_next_requests_enter():
    """The same as a base policy with these weights, from the beginning on."""
    def state_of(level, weight, values):
        policy = f"admitter:rule=index,w_output={weight}"
        env = make(ID_ADMISSION, base_policy=policy, controls={"w_output": values}, warmup_s=0.0)
        play(env, lambda one: np.array([level]))
        return env.simulation.state

    set_to = [state_of(level, 0.0, [-1.0, 1.0]) for level in (0, 2)]
    for state, weight in zip(set_to, (-1.0, 1.0), strict=True):
        assert differences(state, state_of(0, weight, [weight])) == []
    assert differences(*set_to) != []


def test_own_features_of_an_engines_environment_are_what_their_readings_say():
    env, seen = make(ID_ADMISSION), set()

    def look(one):
        value, mean = one._observation()["cluster"][-1], one.simulation.state.observed.offline_output_mean
        assert value == pytest.approx(log1p(mean) / log1p(16_384), rel=1e-5)
        seen.add(float(value))
        return at_random(0)(one)

    play(env, look)
    assert len(seen) > 3


def test_windows_draw_conditions_of_all_kinds():
    yaml = load_yaml("env", "admission")
    config = make(ID_ADMISSION, scenario=yaml["scenario"], vary=yaml["vary"]).config
    drawn = [config.window(1000, number) for number in range(80)]
    kinds = {(str(one.cluster), one.rate_scale, one.offline.get("lengths"), "clients" in one.offline) for one in drawn}
    assert len(kinds) == len(yaml["vary"]["condition"]) >= 6
