"""Playing what the base policy would do is the base policy's own run, bit for bit; so is playing what its rule says."""

from __future__ import annotations

import json

import pytest

from ooco_gym import Simulation, UserError
from ooco_gym.policy import list_policies, policy_of, spelling_of
from ooco_gym.resources import load_yaml
from tests.envs.episodes_in_short import IDS, POOLS_7B, at_random, base_policy, differences, make, play, refused

POOLS = ("ooco", "ooco_xllm", "online_priority", "base_pd", "ooco:slo_margin=0.8,max_pull=3", "memory_gate")
HYGEN = "hygen:latency_budget_s=0.045"
WINDOW = (1, 0)
ENGINES = (HYGEN, "sarathi_pp", "vllm_priority", "echo", "vllm_fcfs")  # policies of mixed instances
OPEN = ("deadline", "deadline:prefix_caching=on,waiting_order=prefix", "deadline:preempted=swap,offline_chunk=64")
ORDERED = ("admitter:rule=index", "admitter:rule=index,w_output=1.0,waiting_order=arrival,refresh_s=0")
KEEPING = ("deadline:prefix_caching=on", "sarathi_pp:prefix_caching=on", "sglang")  # with a prefix cache
ROUTERS = ("router:lag_s=2", "router:rule=sticky,lag_s=2,prefix_caching=on")
BESIDE = {"ooco_gym/Batching-v1": ENGINES, "ooco_gym/Routing-v2": ROUTERS, "ooco_gym/Admission-v2": ORDERED,
          "ooco_gym/Retention-v1": KEEPING, "ooco_gym/Serving-v1": (*OPEN, HYGEN, "vllm_priority"),
          "ooco_gym/PreemptionVictim-v1": (*OPEN[::2], *ENGINES, "vllm_lcf", "bros")}
PAIRS = [(name, policy) for name in IDS for policy in BESIDE.get(name, POOLS)]
PLAYED = [pair for pair in PAIRS if not refused(*pair)]


def run_whole(env, seed, number):
    """The base policy's own run of a window, with as many waiting requests to look at."""
    policy = policy_of(env.config.base_policy)
    if any(decision.window for decision in env.decisions) and not policy.mixed:
        policy = policy.with_values({"gate_window": 64})
    simulation = Simulation(env.config.window(seed, number), policy)
    assert not simulation.advance()
    return simulation.state


@pytest.mark.parametrize(("name", "policy"), PLAYED)
def test_the_base_policies_actions_are_the_base_policies_run(name, policy):
    env = make(name, base_policy=policy)
    play(env, base_policy, *WINDOW)
    assert differences(env.simulation.state, run_whole(env, *WINDOW)) == []


# Its "no" is to be asked again at a time that it names, which no action says.
EXACT = [pair for pair in PLAYED if pair not in (("ooco_gym/Migration-v1", "ooco_xllm"),
                                                    ("ooco_gym/MigrationPredicted-v1", "ooco_xllm"))]


@pytest.mark.parametrize(("name", "policy"), EXACT)
def test_the_base_policies_rule_expressed_in_actions_is_the_base_policies_run(name, policy):
    env = make(name, base_policy=policy)
    steps = play(env, lambda one: one.rule_action(policy), *WINDOW)
    assert differences(env.simulation.state, run_whole(env, *WINDOW)) == []
    assert len(steps) > 1


@pytest.mark.parametrize(("name", "policy"), [pair for pair in PAIRS if refused(*pair)])
def test_base_policies_that_leave_nothing_to_decide_are_refused(name, policy):
    with pytest.raises(UserError, match=refused(name, policy)):
        make(name, base_policy=policy)


@pytest.mark.parametrize("name", IDS)
def test_every_policys_rule_is_a_legal_action_everywhere(name):
    env, random = make(name), at_random(8)
    # Those with weights need them in the episode's state: they play as the base policy alone.
    policies = [policy for policy in list_policies() if policy != "hygen_star" and policy_of(policy).layout is None]

    def ask_all(one):
        mask = one.action_masks()
        for policy in policies:
            if one.episodes.controls is not None and policy != spelling_of(one.config.base_policy):
                with pytest.raises(UserError, match="an action is a vector of levels here"):
                    one.rule_action(policy)
                continue
            action = one.rule_action(policy)
            assert one.episodes.controls is not None or mask[action] or action == one.base_action(), (policy, action)
        return random(one)

    assert len(play(env, ask_all, most=60)) > 10


def test_a_base_policy_that_profiles_is_tuned_for_each_window(tmp_path):
    """HyGen finds its budget in test runs of the scenario: where that varies, each window has its own."""
    path = tmp_path / "varied.yaml"
    base = load_yaml("env", "packing")
    scenario = {**POOLS_7B, "cluster": "mixed_7b"}
    path.write_text(json.dumps({**base, "scenario": scenario, "vary": {"rate_scale": [0.1, 0.2, 0.3]}}))
    found = {"name": "hygen", "profile_windows": 1, "profile_duration_s": 60.0, "profile_steps": 5}
    env = make("ooco_gym/Packing-v1", scenario=str(path), base_policy=found)
    budgets = set()
    for seed in range(4):
        play(env, base_policy, seed, 0)
        assert differences(env.simulation.state, run_whole(env, seed, 0)) == []
        budgets.add(env.simulation.policy.values["latency_budget_s"])
    assert len(budgets) > 1


@pytest.mark.parametrize("name", ["ooco_gym/Migration-v1", "ooco_gym/Colocation-v1"])
def test_observing_the_base_policies_choice_does_not_advance_its_round_robin(name):
    """xLLM pulls from relaxed instances in turn: asked in advance, it must not go on to the next one."""
    policy = "ooco_xllm" if "Migration" in name else "ooco"
    env = make(name, base_policy=policy, cluster="fleet_16", window_s=10.0, warmup_s=10.0, scenario={
        "rate_scale": 0.8, "offline": {"mode": "rate", "rate": 20.0}})
    play(env, base_policy)
    assert differences(env.simulation.state, run_whole(env, 1, 0)) == []
    assert env.simulation.state.totals.migrations > 0
