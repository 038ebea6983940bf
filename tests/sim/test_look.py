"""A state for reading while a decision is open, and rules that count on records being up to date."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import ooco_gym
from ooco_gym.errors import UserError
from ooco_gym.policy.decisions import GATE, PULL, hook
from ooco_gym.policy.rules import flush, length
from ooco_gym.sim import state as s
from ooco_gym.sim.loop import look

LOOK = """
from ooco_gym import Scenario, Simulation
from ooco_gym.sim.loop import look
simulation = Simulation(Scenario(duration_s=60.0, rate_scale=0.1), "ooco", outside=("gate",))
simulation.advance()
print(look(simulation.state).requests["generated_tokens"].sum())
"""


def test_it_is_up_to_date_and_the_episode_is_left_alone() -> None:
    env: Any = gym.make("ooco_gym/Gating-v0").unwrapped
    env.reset(seed=1)
    late = 0
    for _ in range(60):
        env.step(0)
        state = env.simulation.state
        before = [array.tobytes() for array in state]
        seen = look(state)
        assert np.array_equal(look(seen).instances, seen.instances)  # nothing is left to be counted
        assert [array.tobytes() for array in state] == before
        late += int((seen.requests["generated_tokens"] != state.requests["generated_tokens"]).any())
        for place, instance in enumerate(seen.instances):
            assert not instance["stale"]
            slots = [slot for row, key in ((s.URGENT, "urgent_members"), (s.OFFLINE, "offline_members"))
                     for slot in seen.members[row, place, : instance[key]]]
            rows = seen.requests[slots][seen.requests["status"][slots] == s.RESIDENT]
            assert (rows["prompt_tokens"] + rows["generated_tokens"]).sum() == (
                instance["urgent_context"] + instance["offline_context"])
    assert late


def test_memory_that_is_given_back_is_not_read() -> None:
    wiped = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=False,
                           env={**os.environ, "MALLOC_PERTURB_": "85"})
    assert wiped.returncode == 0, wiped.stderr
    plain = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True)
    assert wiped.stdout == plain.stdout


@hook(GATE)
def count_what_is_behind(view):
    """Holds; counts in `memory` how often it was asked, and how often records were behind their instance's books."""
    state, memory = view.state, view.state.memory[view.instance]
    for instance in range(state.instances.size):
        spec, tokens = state.instances[instance], 0
        for row in range(2):
            for place in range(spec.urgent_members if row == s.URGENT else spec.offline_members):
                slot = state.members[row, instance, place]
                if state.requests[slot].status == s.RESIDENT:
                    tokens += length(state, slot)
        memory[1] += tokens != spec.urgent_context + spec.offline_context
    memory[0] += 1
    return s.HOLD


@hook(PULL)
def count_tokens_that_are_missing(view):
    """Pulls nothing; counts in `memory` how often it was asked, and how many tokens a flush wrote to records."""
    state, memory, before, after = view.state, view.state.memory[view.instance], 0, 0
    for instance in range(state.instances.size):
        for place in range(state.instances[instance].offline_members):
            before += length(state, state.members[s.OFFLINE, instance, place])
        flush(state, instance)
        for place in range(state.instances[instance].offline_members):
            after += length(state, state.members[s.OFFLINE, instance, place])
    memory[0] += 1
    memory[1] += after - before
    return 0


def test_a_rule_that_does_not_settle_finds_all_steps_counted() -> None:
    counts = replace(ooco_gym.get_policy("ooco"), name="counts", pull=count_tokens_that_are_missing)
    scenario = ooco_gym.Scenario(workload="azure_conv", cluster="pair_llama2_7b_40g", rate_scale=0.03, duration_s=60.0,
                                 offline={"mode": "rate", "rate": 1.0})
    simulation = ooco_gym.Simulation(scenario, counts)
    assert not simulation.advance()
    asked, missing = simulation.state.memory.sum(axis=0)[:2]
    assert asked > 100
    assert missing == 0


@hook(GATE)
def ask_somebody(view):
    """Leaves the decision to whoever drives the simulator."""
    return s.ASK


def test_a_partner_whose_rule_asks_outside_is_refused_in_a_sentence() -> None:
    asks = replace(ooco_gym.get_policy("ooco"), name="asks", gate=ask_somebody)
    env = gym.make("ooco_gym/Preemption-v0", partner=asks)
    with pytest.raises(UserError, match="answered ASK"):
        env.reset(seed=1)


def test_a_rule_that_does_not_settle_finds_records_up_to_date_in_environments_too() -> None:
    counts = replace(ooco_gym.get_policy("ooco"), name="counts", gate=count_what_is_behind)
    env: Any = gym.make("ooco_gym/Gating-v0", partner=counts).unwrapped
    env.reset(seed=1)
    for step in range(400):
        _, _, terminated, truncated, _ = env.step(1 if step % 4 else 2)
        assert not (terminated or truncated)
    asked, behind = np.asarray(env.simulation.state.memory)[0, :2]
    assert asked >= 400
    assert behind == 0
