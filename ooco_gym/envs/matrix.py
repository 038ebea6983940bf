"""Which published rule answers which decision: a table for each, from the policies' own code."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from importlib.metadata import entry_points
from typing import Any, NamedTuple

from ooco_gym.decisions import POINTS
from ooco_gym.envs.controls import PACK_SETTINGS
from ooco_gym.policy import get_policy
from ooco_gym.policy.bundle import Policy
from ooco_gym.policy.registry import GROUP

OWNER = "ooco-gym"  # policies of other packages are not in our pages


class Rule(NamedTuple):
    """A rule for a decision."""

    policies: tuple[str, ...]  # who have it; with parameters, where one of them decides
    says: str


def shipped_policies() -> list[str]:
    """Names of the policies that come with this package."""
    return sorted(entry.name for entry in entry_points(group=GROUP)
                  if entry.dist is not None and entry.dist.name == OWNER)


def rules_for(decision: str) -> list[Rule]:
    """The distinct rules that pool policies have for a decision of the simulator, in the order of their names."""
    place = [point.name for point in POINTS].index(decision)
    found: dict[Any, list[Policy]] = {}
    for policy in _pool_policies():
        found.setdefault(policy.hooks()[place], []).append(policy)
    return [Rule(tuple(name for policy in _owners(hook, having) for name in _spelled(policy, decision, hook)),
                 _first_sentence(hook)) for hook, having in found.items()]


def settings_for_packing() -> list[Rule]:
    """Policies that have a setting for how full steps are packed."""
    found = []
    plain = {entry.name for entry in entry_points(group=GROUP) if entry.value.startswith("baselines.gates")}
    for name in [name for name in shipped_policies() if name not in plain]:
        policy = get_policy(name)
        for param in policy.params:
            if param.name in PACK_SETTINGS:
                value = policy.values.get(param.name)
                found.append(Rule((name,), f"`{param.name}={value}`: {param.doc}"))
    return found


def mixed_policies() -> list[str]:
    """Policies of mixed instances: they compose whole iterations, which no environment asks."""
    return [name for name in shipped_policies() if get_policy(name).mixed]


def _pool_policies() -> Iterator[Policy]:
    for name in shipped_policies():
        policy = get_policy(name)
        if not policy.mixed:
            yield policy


def _owners(hook: Any, having: Sequence[Policy]) -> Sequence[Policy]:
    """Of the policies that have a rule, that whose own it is; all where it is nobody's own."""
    modules = {entry.name: entry.value.partition(":")[0] for entry in entry_points(group=GROUP)}
    return [policy for policy in having if modules[policy.name] == hook.py_func.__module__] or having


def _spelled(policy: Policy, decision: str, hook: Any) -> list[str]:
    """The policy as one names it, with each choice where a parameter that is called as the decision says how."""
    for param in policy.params:
        if param.name == decision and param.choices and decision in hook.py_func.__code__.co_names:
            return [f"{policy.name}:{param.name}={choice}" for choice in param.choices]
    return [policy.name]


def _first_sentence(hook: Any) -> str:
    text = " ".join((inspect.getdoc(hook.py_func) or "").split())
    return text.partition(". ")[0].rstrip(".")
