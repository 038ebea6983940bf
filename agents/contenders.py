"""Who plays in the headroom table: chance, plain rules, published rules, and those that look ahead."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from agents.rollout import SIZED, Rollout, by_length, decline
from ooco_gym.envs import job as j
from ooco_gym.errors import UserError, unknown
from ooco_gym.policy import get_policy, list_policies
from ooco_gym.sim import state as s

RANDOM, HONEST, CLAIRVOYANT = "random actions", "honest rollout", "clairvoyant rollout"


@dataclass(frozen=True)
class Contender:
    """A player of one environment: `begin(env)`, after its reset, gives a function that answers the open decision."""

    name: str
    begin: Callable[[Any], Callable[[], Any]]


def contenders(env: Any, config: Mapping[str, Any], names: Sequence[str]) -> list[Contender]:
    """All that are played: chance, the named heuristics, honest and clairvoyant look-ahead at each weight."""
    known = {one.name: one for one in heuristics_of(env, None)}
    listed = [Contender(RANDOM, _random)]
    listed += [known.get(name) or _published(name) for name in names]
    for weight in config["weights"]:
        common = {"weight": float(weight), "horizon_s": config["horizon_s"], "progress": float(config["progress"])}
        text = "" if len(config["weights"]) == 1 else f", weight {weight:g}"
        if config["samples"]:
            every = config["honest_every"] or config["every"]
            listed.append(Contender(HONEST + text, partial(_looking, samples=config["samples"], every=every, **common)))
        listed.append(Contender(CLAIRVOYANT + text, partial(_looking, every=config["every"], **common)))
    return listed


def rule_names(rules: Any) -> list[str] | None:
    """Names of published policies as given: a list, a single name, or None for null.

    Raises:
        UserError: no policy of that name.
    """
    if rules is None:
        return None
    names = list(dict.fromkeys([rules] if isinstance(rules, str) else list(rules) if isinstance(rules, (list, tuple))
                               else [str(rules)]))
    for name in names:
        if name not in list_policies():
            raise unknown("rule", name, list_policies())
    return names


def heuristics_of(env: Any, rules: Sequence[str] | None) -> list[Contender]:
    """The partner, the published rules that answer this environment's decisions, and plain ones.

    Args:
        env: the environment, bare.
        rules: names of policies; None: each pool policy whose rule at these decisions is not another's.

    Raises:
        UserError: no policy of that name, or rules are named where only the clock asks.
    """
    listed = [Contender("partner", lambda env: env.partner_action)]
    kinds = {decision.kind for decision in env.decisions}
    rules = rule_names(rules)
    if rules and min(kinds) >= j.PACK:
        raise UserError(f"rules={','.join(rules)}: published policies have no rule for what this environment asks, "
                        "which are settings; leave rules=null")
    if env.episodes.controls is not None:
        return listed + _constant_controls(env.episodes.controls)
    if j.PACK in kinds and len(kinds) == 1:
        return listed + _constant_levels(env)
    listed += [_published(rule) for rule in (_distinct(env, kinds) if rules is None else rules)]
    listed.append(Contender("decline", lambda env: partial(decline, env)))
    if kinds & set(SIZED):
        listed += [Contender(name, lambda env, longest=longest: partial(by_length, env, longest))
                   for name, longest in (("shortest", False), ("longest", True))]
    if s.INTERRUPT in kinds and len(kinds) == 1:
        listed.append(Contender("stop", lambda env: lambda: j.FIXED))
    return listed


def _distinct(env: Any, kinds: set[int]) -> list[str]:
    """Pool policies that answer these decisions by rules of their own."""
    points = [kind - 1 for kind in sorted(kinds) if kind < j.PACK]
    seen: list[tuple[Any, ...]] = [tuple(env.episodes._partner.hooks()[point] for point in points)]
    names = []
    for name in list_policies():
        policy = get_policy(name)
        rules = tuple(policy.hooks()[point] for point in points)
        if policy.mixed == env.episodes._partner.mixed and rules not in seen:
            seen.append(rules)
            names.append(name)
    return names


def _published(rule: str) -> Contender:
    return Contender(rule, lambda env: partial(env.rule_action, rule))


def _constant_levels(env: Any) -> list[Contender]:
    scale = float(env.episodes.job.settings[j.PACK_SCALE]) or 1.0
    return [Contender(f"level {level * scale:g}", lambda env, k=k: lambda: j.FIXED + k)
            for k, level in enumerate(env.episodes.job.levels[0])]


def _constant_controls(controls: Any) -> list[Contender]:
    """Each parameter at each of its other levels all the time."""
    listed = []
    for part, name in enumerate(controls.names):
        for level in range(int(controls.counts[part])):
            action = controls.tuned.copy()
            action[part] = level
            value = controls.levels[part, level]
            if value != controls.levels[part, controls.tuned[part]]:
                listed.append(Contender(f"{name}={value:g}", lambda env, action=action: lambda: action))
    return listed


def _looking(env: Any, **how: Any) -> Callable[[], Any]:
    return Rollout(env, **how).act


def _random(env: Any) -> Callable[[], Any]:
    """Legal actions, all equally likely; keyed by the window."""
    random = np.random.default_rng([env.window[0], env.window[1]])
    controls = env.episodes.controls
    if controls is not None:
        return lambda: random.integers(controls.counts)
    return lambda: int(random.choice(np.flatnonzero(env.episodes.job.mask[0])))

