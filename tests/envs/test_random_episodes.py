"""Same seed, same bytes, wherever it is played; and random policies in random scenarios do no harm."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ooco_gym.resources import load_yaml
from ooco_gym.sim import state as s
from tests.envs.episodes_in_short import IDS, ROLES, SCALED, at_random, digest, make, play, refused

ROOT = Path(__file__).parents[2]
IN_ANOTHER_PROCESS = """
import json, sys
from tests.envs.episodes_in_short import at_random, digest, make, play
print(json.dumps({name: digest(play(make(name), at_random(7), 3, 2, 150)) for name in sys.argv[1:]}))
"""
POOLS = {"pair_7b": (0.02, 0.4), "pair_llama2_7b_40g": (0.01, 0.15), "fleet_16": (0.3, 1.5), "pair_72b": (0.02, 0.3)}
BASES = ("ooco", "ooco_xllm", "online_priority", "ooco:max_pull=1,interrupt=slack", "memory_gate",
         "memory_gate:interrupt=always,gate_growth=0.3")
ENGINES = {"mixed_7b": (0.02, 0.4), "engine_7b": (0.01, 0.2), "mixed_llama2_7b_40g": (0.01, 0.15)}
ENGINE_BASES = ("hygen:latency_budget_s=0.04", "sarathi_pp:prefix_caching=on", "vllm_priority", "echo")
OPEN_BASES = ("deadline", "deadline:prefix_caching=on", "deadline:offline_chunk=16,preempted=swap")
BESIDE = {"ooco_gym/Batching-v1": ENGINE_BASES, "ooco_gym/Admission-v2": ("admitter:rule=index,w_work=1",),
          "ooco_gym/Jobs-v1": OPEN_BASES, "ooco_gym/Retention-v1": ("deadline:prefix_caching=on",),
          "ooco_gym/Routing-v2": ("router", "learned_router"),
          "ooco_gym/Scaling-v1": ("deadline", "deadline:scale=hpa"),
          **dict.fromkeys(("ooco_gym/Serving-v1", "ooco_gym/PreemptionVictim-v1"), ENGINE_BASES + OPEN_BASES)}


def test_same_seed_same_bytes_in_another_process():
    here = {name: digest(play(make(name), at_random(7), 3, 2, 150)) for name in IDS}
    command = [sys.executable, "-c", IN_ANOTHER_PROCESS, *IDS]
    there = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout)
    assert there == here


@pytest.mark.parametrize("name", IDS)
def test_one_seed_gives_one_episode(name):
    """Twice in one environment, after other episodes, and in another environment; other seeds differ."""
    env, other = make(name), make(name)
    first = digest(play(env, at_random(1), 4, 1))
    play(env, at_random(2), 5, 0, 10)
    assert digest(play(env, at_random(1), 4, 1)) == first
    assert digest(play(other, at_random(1), 4, 1)) == first
    assert digest(play(env, at_random(1), 6, 1)) != first
    assert digest(play(env, at_random(1), 4, 2)) != first


def a_scenario(random, name):
    """Arguments of an environment, drawn at random: cluster, workload, load, base policy, candidates, window."""
    pools, bases = POOLS, BASES
    if name in BESIDE:
        pools, bases = ENGINES, BESIDE[name]
    cluster = "mixed_7b" if "Routing" in name else str(random.choice(list(pools)))  # two, to route among
    low, high = pools[cluster]
    given = {"Retention": {**load_yaml("cluster", cluster), "retention": "turns"}, "Scaling": SCALED["cluster"],
             "ScalingPools": ROLES["cluster"]}
    base_policy = str(random.choice([one for one in bases if not refused(name, one)]))
    few = cluster == "fleet_16"
    return {"scenario": {
        "cluster": given.get(name[9:].partition("-")[0], cluster),
        "workload": str(random.choice(["azure_conv", "azure_code", "ooc"])),
        "slo": {"ttft_s": float(random.choice([0.5, 2.0, 5.0])), "tpot_s": float(random.choice([0.06, 0.1]))},
        "offline": {"mode": "rate", "rate": float(random.choice([0.0, 0.5, 3.0, 10.0]))},
        "rate_scale": float(random.uniform(low, high))}, "base_policy": base_policy,
        "candidates": int(random.integers(1 + ("Routing" in name), 20)),
        "interval_s": float(random.choice([0.1, 1.0, 7.0])),
        "window_s": float(random.choice([2.0, 4.0] if few else [5.0, 20.0])),
        "warmup_s": float(random.choice([0.0, 5.0] if few else [0.0, 5.0, 20.0]))}


def check_state(state):
    """What no action may break: memory within bounds, each request on one instance, no token too many."""
    requests, instances = state.requests, state.instances
    assert ((instances["free_blocks"] >= 0) & (instances["free_blocks"] <= instances["total_blocks"])).all()
    arrived = int(state.clock.next_arrival)
    assert (requests["status"][:arrived] != s.FUTURE).all() and (requests["status"][arrived:] == s.FUTURE).all()
    assert ((requests["generated_tokens"] >= 0) & (requests["generated_tokens"] <= requests["output_tokens"])).all()
    done = requests["status"] == s.FINISHED
    assert (requests["generated_tokens"][done] == requests["output_tokens"][done]).all()
    for index, spec in enumerate(instances):
        here = requests["instance"] == index
        held = requests["blocks"][here & (requests["blocks"] > 0)].sum()
        coming = requests["target_blocks"][(requests["target"] == index) & (requests["target_blocks"] > 0)].sum()
        assert held + coming == spec["total_blocks"] - spec["free_blocks"], "memory that none holds, or two"
        for rows, count in ((s.URGENT, "urgent_members"), (s.OFFLINE, "offline_members")):
            members = state.members[rows, index, : spec[count]]
            assert len(set(members.tolist())) == len(members)


def play_one(name, random):
    """One random episode: every observation within its space, every reward a number, some action legal."""
    env = make(name, **a_scenario(random, name))
    seed, choose = int(random.integers(2**31)), at_random(int(random.integers(2**31)))
    for step in play(env, choose, seed, int(random.integers(1_000))):
        assert all(np.isfinite(step.observation[key]).all() for key in ("cluster", "candidates", "decision"))
        assert env.observation_space.contains(step.observation)
        assert np.isfinite(step.reward)
        assert all(np.isfinite(value).all() for key, value in step.info.items() if key not in ("summary", "notes"))
        assert step.info["action_mask"].any()
        assert step.action is None or env.action_space.contains(step.action)
    check_state(env.simulation.state)
    assert all(np.isfinite(value) for value in step.info["summary"].values())
    return env


@pytest.mark.parametrize("name", IDS)
def test_random_policies_in_random_scenarios_keep_all_invariants(name):
    random = np.random.default_rng([11, IDS.index(name)])
    for _ in range(2):
        play_one(name, random)
