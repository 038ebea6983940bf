"""Playing what the base policy would do is the base policy's own run, bit for bit; so is playing what its rule says."""

from __future__ import annotations

import json

import numpy as np
import pytest
from numba import types

from ooco_gym import Simulation, UserError
from ooco_gym.compile import jit
from ooco_gym.envs.buffers import buffers_at
from ooco_gym.envs.reward import BURST_S, TERMS, update_reward_sums
from ooco_gym.policy import list_policies, policy_of, spelling_of
from ooco_gym.resources import load_yaml
from ooco_gym.sim import state as s
from ooco_gym.sim.state import state_at
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
          "ooco_gym/Jobs-v1": OPEN,
          "ooco_gym/Retention-v1": KEEPING, "ooco_gym/Serving-v1": (*OPEN, HYGEN, "vllm_priority"),
          "ooco_gym/Scaling-v1": ("deadline:scale=hpa", "vllm_fcfs:scale=planner_load"),
          "ooco_gym/ScalingPools-v1": ("memory_gate:scale=ratio", "ooco", "base_pd:scale=ratio"),
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


@pytest.mark.parametrize(("name", "other", "words"), [
    ("Scaling", "scalingpools", "no scale .*its instances are relaxed and strict; use for example cluster elastic_7b"),
    ("ScalingPools", "scaling", "no roles .*its instances are mixed; use for example a cluster of relaxed and strict")])
def test_fleets_and_pools_have_environments_of_their_own(name, other, words):
    with pytest.raises(UserError, match=words):
        make(f"ooco_gym/{name}-v1", scenario={"cluster": load_yaml("env", other)["scenario"]["cluster"]})


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


# --- Ways to earn reward for what is not wanted: each scores less than the honest policy beside it -------------------
LONG = {"window_s": 300.0, "warmup_s": 60.0}
SEEDS = (0, 1, 2)


def score(env, choose):
    """Mean reward over some windows, and the mean of each part."""
    rows = [play(env, choose, seed, 0)[-1].info["summary"] for seed in SEEDS]
    return {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}


def lengths_of(env):
    """Lengths of the candidates as they are seen; nothing for what is not there."""
    return np.where(env.action_masks()[2:], env.episodes.buffers.candidates[0, :, 1], np.nan)


def shortest(env):
    return 2 + int(np.nanargmin(lengths_of(env)))


def longest(env):
    return 2 + int(np.nanargmax(lengths_of(env)))


@pytest.mark.parametrize("rate", [1.0, 3.0, 12.0])
def test_serving_only_easy_requests_earns_less(rate):
    """A gate that starts short prompts alone, whether there is room for all or for a fifth."""
    env = make("ooco_gym/PrefillGate-v1", scenario={"offline": {"mode": "rate", "rate": rate}}, **LONG)

    def only_short(one):
        return shortest(one) if np.nanmin(lengths_of(one)) < 0.7 else 0

    honest, easy = score(env, base_policy), score(env, only_short)
    assert easy["reward_total"] < 0.5 * honest["reward_total"]
    assert easy["offline_finished"] < honest["offline_finished"]


def at_the_end(last_s, trick):
    """Honest but for the last seconds."""
    end_s = LONG["window_s"] + LONG["warmup_s"] - last_s
    return lambda env: base_policy(env) if env.simulation.now_s < end_s else trick(env)


@pytest.mark.parametrize("last_s", [20.0, 150.0])
@pytest.mark.parametrize("trick", [lambda _: 0, longest])
def test_hiding_work_or_hoarding_half_done_work_at_the_end_earns_less(last_s, trick):
    """What waits unseen in the queue is charged all the same; only what is finished is paid."""
    env = make("ooco_gym/PrefillGate-v1", **LONG)
    assert score(env, at_the_end(last_s, trick))["reward_total"] < score(env, base_policy)["reward_total"]


def test_letting_newcomers_wait_for_ever_earns_less():
    """No request is evicted for an online one: offline work gets more done, and far less reward."""
    env = make("ooco_gym/Eviction-v1", scenario={"rate_scale": 0.05}, **LONG)
    honest, starve = score(env, base_policy), score(env, lambda one: 0 if one.action_masks()[0] else 1)
    assert starve["reward/service"] > honest["reward/service"], "there is something to gain by it"
    assert starve["reward_total"] < honest["reward_total"]


@pytest.mark.parametrize("ttft_s", [0.5, 0.2])
def test_never_interrupting_offline_work_earns_less(ttft_s):
    """Never interrupting is worth something; where the promise is short it costs more."""
    env = make("ooco_gym/Interruption-v1", scenario={"slo": {"ttft_s": ttft_s, "tpot_s": 0.05}}, **LONG)
    honest, keep = score(env, base_policy), score(env, lambda _: 0)
    assert keep["reward/service"] > honest["reward/service"], "there is something to gain by it"
    assert keep["reward_total"] < honest["reward_total"]


def of_the_late(one):
    """Lets exactly the requests wait that have missed their SLO already."""
    newcomer = one.simulation.state.requests[one.simulation.state.pending.request]
    return 0 if one.action_masks()[0] and newcomer["violated"] else 1


def test_starving_requests_that_are_late_anyway_earns_less():
    """Without the part `late`, letting them wait would cost nothing more: that is why there is one."""
    slo = {"ttft_s": 0.5, "tpot_s": 0.05}
    env = make("ooco_gym/Eviction-v1", scenario={"rate_scale": 0.1, "slo": slo}, **LONG)
    honest, starve = score(env, base_policy), score(env, of_the_late)
    assert starve["reward/late"] < honest["reward/late"]
    assert starve["reward_total"] < honest["reward_total"]


@jit(types.void(types.int64, types.int64))
def flush_totals(buffers_address, i):
    """What a step does with the account."""
    buffers = buffers_at(buffers_address)
    update_reward_sums(state_at(buffers.handles[i]), buffers.weights, buffers.reward_sums[i], buffers.own_terms)


def burst_of(misses, arrivals, block_s=BURST_S / 4, **scenario):
    """The part `burst` of an episode in which so many arrive and miss in each stretch of time, and its reward."""
    env = make("ooco_gym/PrefillGate-v1", window_s=3_600.0, scenario=scenario)
    env.reset(seed=1, options={"window": 0})
    episodes, state = env.episodes, env.simulation.state
    total = dict.fromkeys((*TERMS, "reward"), 0.0)
    begin = -(-int(state.clock.now_ps) // round(BURST_S * s.PS_PER_S)) * round(BURST_S * s.PS_PER_S)
    state.clock.now_ps = state.gauges.outstanding_since_ps = begin
    flush_totals(episodes._handle.address, 0)
    for turn, (missed, arrived) in enumerate(zip(misses, arrivals, strict=True)):
        state.clock.now_ps = begin + round(turn * block_s * s.PS_PER_S)
        state.totals.online_arrived += arrived
        state.totals.violations += missed
        state.totals.ttft_misses += missed
        flush_totals(episodes._handle.address, 0)
        info = episodes.info(0)
        for part in total:
            total[part] += info["reward" if part == "reward" else f"reward/{part}"]
    return total, dict(zip(TERMS, env.config.weights, strict=True))


@pytest.mark.parametrize("budget", [None, 0.05])
def test_spending_the_whole_budget_at_the_peak_costs_more(budget):
    """3 % of a day's requests, missed all in ten minutes or spread over the day: as many misses, another price."""
    arrivals, protocol = [100] * 16, load_yaml("protocol", "default")
    own = {} if budget is None else {"protocol": {**protocol, "violation_budget": budget}}
    budget = budget or protocol["violation_budget"]
    spread, weights = burst_of([3] * 16, arrivals, **own)
    peak, _ = burst_of([0, 0, 0, 0, 48, *[0] * 11], arrivals, **own)
    assert spread["ttft"] == peak["ttft"] == -48 * weights["ttft"]
    assert spread["burst"] == 0.0
    assert peak["burst"] == pytest.approx(-weights["burst"] * (48 - budget * 400))  # those of its ten minutes
    assert peak["reward"] < spread["reward"]
