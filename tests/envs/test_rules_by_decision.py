"""The table of rules by decision on the environments' index: complete, and what it names can be played."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import ooco_gym
from docs.generators import environments as document
from ooco_gym.policy import get_policy

ENV_OF = {"route": "Routing", "interrupt": "Preemption", "gate": "Gating", "evict": "Eviction", "pull": "Migration"}


@pytest.mark.parametrize("decision", ENV_OF)
def test_each_distinct_rule_has_a_row_and_its_names_play(decision: str) -> None:
    index = ("route", "interrupt", "gate", "compose", "evict", "pull").index(decision)
    rules = document.rules_for(decision)
    pools = [get_policy(name) for name in document.shipped_policies() if not get_policy(name).mixed]
    assert len(rules) == len({policy.hooks()[index] for policy in pools})
    named = {name.partition(":")[0] for rule in rules for name in rule.policies}
    for policy in pools:
        alike = {other.name for other in pools if other.hooks()[index] is policy.hooks()[index]}
        assert named & alike, policy.name
    env: Any = gym.make(f"ooco_gym/{ENV_OF[decision]}-v0", window_s=5.0, warmup_s=5.0)
    env.reset(seed=1)
    for rule in rules:
        assert rule.says
        for name in rule.policies:
            action = int(ooco_gym.make_agent(name, env)())
            assert env.unwrapped.action_masks()[action] or action == 1


def test_every_published_system_answers_by_a_rule_of_its_own() -> None:
    """What each published system answers, and ours, is a rule of its own."""
    wanted = {"evict": ("ooco:evict=bottleneck", "echo_pd", "base_pd", "least_urgent"),
              "gate": ("ooco:gate=cost", "ooco_xllm", "hygen_pd", "echo_pd"),
              "interrupt": ("ooco:interrupt=always", "slack"), "pull": ("ooco", "ooco_xllm", "slack")}
    for decision, names in wanted.items():
        rows = [rule for rule in document.rules_for(decision) for name in names if name in rule.policies]
        assert len(rows) == len(set(rows)) == len(names), decision


def test_packing_lists_those_that_have_a_setting() -> None:
    names = [rule.policies[0] for rule in document.settings_for_packing()]
    assert {"ooco", "hygen"} <= set(names)
    assert not {"base_pd", "echo_pd"} & set(names)


def test_the_index_has_a_table_for_each_decision() -> None:
    text = document.index(Path(__file__).resolve().parents[2])
    for decision in (*ENV_OF, "pack"):
        assert f"### `{decision}`: " in text
