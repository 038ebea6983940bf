"""The fluid bound: above the optimum of tiny instances, found by trying everything, and above every policy."""

import math

import gymnasium as gym
import pytest

import ooco_gym  # noqa: F401
from agents.evaluation.heuristics import heuristics_of
from agents.lookahead.bound import fluid_bound
from agents.lookahead.rollout import Rollout, legal_actions
from ooco_gym import Scenario, Simulation, UserError
from ooco_gym.envs import register_all
from ooco_gym.sim import state as s

MOST = 4_000  # steps of an exhaustive search


def make(name, **arguments):
    register_all()
    return gym.make(f"ooco_gym/{name}-v0", disable_env_checker=True, **arguments).unwrapped


def end_ps(env):
    return round(env.simulation.window_s[1] * s.PS_PER_S)


def at_start(env, seed, window):
    """The state before the window's first decision."""
    env.reset(seed=seed, options={"window": window})
    simulation = Simulation(env.config.window(seed, window), env.simulation.policy)
    simulation.advance(simulation.window_s[0])
    return simulation.state


def every_end(env):
    """(Service, violation rate) of every sequence of legal actions, by depth-first search over copies."""
    ends, steps = [], 0
    stack = [env.snapshot()]
    while stack:
        here = stack.pop()
        env.restore(here)
        if not env.episodes.open(0):
            summary = env.summary()
            ends.append((summary["offline_reference_gpu_s_per_s"] * env.config.window_s, summary["violation_rate"]))
            continue
        for action in legal_actions(env, held=here.rows["actions"][:0]):
            steps += 1
            assert steps < MOST, "not a tiny instance"
            env.restore(here)
            env.step(int(action[0]))
            stack.append(env.snapshot())
    return ends


def load(cluster, workload, offline, rate_scale):
    return {"cluster": cluster, "workload": workload, "slo": "chat", "offline": {"mode": "rate", "rate": offline},
            "rate_scale": rate_scale}


CONVERSATIONS = load("pair_7b", "azure_conv", 1.0, 0.1)
MEMORY = load("pair_llama2_7b_40g", "azure_conv", 1.0, 0.06)
CHAT = load("pair_7b", "sharegpt", 6.0, 3.0)
TINY = [("Gating", CONVERSATIONS, 2.0, 3001, {"candidates": 1}), ("Preemption", CONVERSATIONS, 5.0, 3002, {}),
        ("Eviction", MEMORY, 6.0, 3007, {"candidates": 2}), ("Migration", MEMORY, 1.0, 3006, {"candidates": 1}),
        ("Packing", CHAT, 6.0, 3001, {"interval_s": 2.0})]


@pytest.mark.parametrize("name,scenario,window_s,seed,more", TINY, ids=[one[0] for one in TINY])
def test_bound_optimum_policies(name, scenario, window_s, seed, more):
    env = make(name, scenario=scenario, window_s=window_s, warmup_s=40.0, **more)
    bound = fluid_bound(at_start(env, seed, 0), end_ps(env), budget=1.0)
    env.reset(seed=seed, options={"window": 0})
    ends = every_end(env)
    optimum = max(service for service, _ in ends)
    assert len(ends) > 50
    if name in ("Migration", "Packing"):
        assert optimum > min(service for service, _ in ends), "what is decided matters here"
    assert bound >= optimum - 1e-9
    kept = [service for service, rate in ends if rate <= 0.03]
    if kept:
        within = fluid_bound(at_start(env, seed, 0), end_ps(env), budget=0.03)
        assert bound + 1e-6 >= within >= max(kept) - 1e-9
    published = None if name == "Packing" else ["ooco_xllm", "base_pd"]
    players = [*(one.begin for one in heuristics_of(env, published)), lambda env: Rollout(env).act]
    for begin in players:
        env.reset(seed=seed, options={"window": 0})
        act = begin(env)
        while env.episodes.open(0):
            env.step(act())
        assert env.summary()["offline_reference_gpu_s_per_s"] * window_s <= optimum + 1e-9


@pytest.mark.parametrize("name,seed", [("Gating", 3003), ("Eviction", 3006), ("Packing", 3007)])
def test_no_policy_is_above_the_bound_on_longer_windows(name, seed):
    env = make(name, window_s=20.0, warmup_s=40.0)
    bound = fluid_bound(at_start(env, seed, 1), end_ps(env), budget=1.0)
    for one in heuristics_of(env, None):
        env.reset(seed=seed, options={"window": 1})
        act = one.begin(env)
        while env.episodes.open(0):
            env.step(act())
        service = env.summary()["offline_reference_gpu_s_per_s"] * 20.0
        assert 0.0 <= service <= bound, one.name


def test_more_time_and_more_misses_allow_more():
    env = make("Gating", scenario=load("pair_7b", "azure_conv", 15.0, 0.12), window_s=30.0, warmup_s=40.0)
    state = at_start(env, 3001, 2)
    ends = [end_ps(env) - round(cut * s.PS_PER_S) for cut in (20.0, 10.0, 0.0)]
    services = [fluid_bound(state, end) for end in ends]
    assert services[0] < services[1] < services[2]
    rates = [fluid_bound(state, ends[-1], budget) for budget in (0.0, 0.2, 1.0)]
    assert rates[0] < rates[1] < rates[2]


def test_nothing_to_do_is_nothing():
    scenario = Scenario(offline={"mode": "rate", "rate": 0.0}, rate_scale=0.1, duration_s=20.0, warmup_s=10.0)
    simulation = Simulation(scenario, "ooco")
    simulation.advance(simulation.window_s[0])
    assert fluid_bound(simulation.state, round(simulation.window_s[1] * s.PS_PER_S)) == 0.0


def test_online_work_that_does_not_fit_leaves_no_bound():
    scenario = Scenario(offline={"mode": "rate", "rate": 2.0}, workload="azure_conv", rate_scale=3.0, duration_s=60.0,
                        warmup_s=0.0)
    simulation = Simulation(scenario, "ooco")
    simulation.advance(simulation.window_s[0])
    end = round(simulation.window_s[1] * s.PS_PER_S)
    assert math.isnan(fluid_bound(simulation.state, end, budget=0.0))
    assert fluid_bound(simulation.state, end, budget=1.0) > 0.0


def test_mixed_instances_are_refused():
    simulation = Simulation(Scenario(cluster="mixed_7b", rate_scale=0.1, duration_s=10.0, warmup_s=0.0), "hygen_star")
    with pytest.raises(UserError, match="mixed"):
        fluid_bound(simulation.state, simulation.end_ps)
