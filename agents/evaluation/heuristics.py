"""Heuristics by name (docs/evaluation.md has the names): random actions, simple rules, published and tuned policies.

At the loop's decisions, a published policy acts by its rules (`rule_action`). Packing, OnlineTuning and Admission set a
policy's parameters, and Batching, PreemptionVictim and Serving decide parts of an iteration. There a published policy
becomes the base policy, whose action is taken (`as_base_policy`). Among other decisions (Colocation), packing takes the
level nearest to the policy's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from agents.environments import Window, is_base_policy, make_env
from agents.evaluation.players import Observations, play
from ooco_gym import resources
from ooco_gym.envs import buffers as b
from ooco_gym.envs import entering, jobs, preemption_victim
from ooco_gym.envs.config import pack_parameter
from ooco_gym.envs.decision import Decision, actual, are_settings
from ooco_gym.errors import UserError, former, nearest, unknown
from ooco_gym.policy import get_policy, is_policy, list_policies, policy_of, spelling_of
from ooco_gym.policy.policy import HOOKS
from ooco_gym.policy.registry import RETENTION, aliases, policy_named, split_name
from ooco_gym.sim import state as s
from ooco_gym.sim.retention import LRU

RANDOM, BASE, PACK = "random actions", "base_policy", "pack"
TOKENS = 1  # column of a candidate request's context
SIZED = (s.GATE, s.EVICT, s.PULL, b.RECLAIM, b.ADMIT)  # decisions whose candidates are requests
BY_LENGTHS = {s.EVICT: ("evict=density", "evict=longest_output"),  # parameters of `ooco_lengths`, by decision
              s.PULL: ("pull=past_future", "pull=soonest", "pull=shortest_output")}
Rank = Callable[[Mapping[str, float]], Any]  # of a candidate's raw values, before they became features
ENTERING: dict[str, Rank] = {  # the least of these enters; work: predicted tokens still to compute and to generate
    "oldest": lambda entry: -entry["wait"],
    "least work": lambda entry: entry["tokens"] * (1.0 - entry["cached"]) + entry["output"],
    "most cached": lambda entry: -entry["cached"] * entry["tokens"]}
RECLAIMING: dict[str, Rank] = {  # the least of these is preempted; among equals, one that is recomputed
    "last admitted": lambda victim: -victim["place"], "last arrived": lambda victim: victim["wait"],
    "least computed": lambda victim: victim["computed"] * victim["tokens"],
    "most to generate": lambda victim: -victim["output"],
    "least loss": lambda victim: victim["cost"] / min(1.0, victim["freed"]),
    "last to the host": lambda victim: (-victim["place"], -victim["swap"])}
JOBS: dict[str, Rank] = {  # the least of these enters
    "first job": lambda call: -call["age"], "least attained": lambda call: call["attained"],
    "least expected": lambda call: call["expected"]}
RANKS = {entering.DECISION.name: ENTERING, preemption_victim.DECISION.name: RECLAIMING, jobs.DECISION.name: JOBS}


class Heuristic:
    """A rule or a constant as a player (`players.Player`): `begin(env)` takes a bare environment after its reset and
    returns the function that gives each action; None: of the heuristic that `name` has in that environment."""

    def __init__(self, name: str, begin: Callable[[Any], Callable[[], Any]] | None = None) -> None:
        self.name = name
        self.begin = begin or (lambda env: by_name(env, name).begin(env))
        self._acting: dict[int, tuple[Any, Callable[[], Any]]] = {}

    def act(self, envs: Sequence[gym.Env], observations: Observations) -> list[Any]:
        """Returns each environment's action; a new episode begins the heuristic again."""
        return [self._of(env.unwrapped)() for env in envs]

    def _of(self, env: Any) -> Callable[[], Any]:
        episode = getattr(env, "simulation", None)
        known = self._acting.get(id(env))
        if known is None or known[0] is not episode:
            known = self._acting[id(env)] = (episode, self.begin(env))
        return known[1]


def play_heuristic(config: Mapping[str, Any], name: str, windows: Sequence[Window],
                   side_by_side: int = 8) -> list[dict[str, Any]]:
    """Runs a heuristic by its name on windows; returns records as `agents.evaluation.players.play` does.

    Raises:
        UserError: the name is unknown, or the heuristic does not apply in this environment.
    """
    with closing(make_env(config)) as env:
        config, name = as_base_policy(config, name, env)
    return play(config, Heuristic(name), windows, side_by_side)


def as_base_policy(config: Mapping[str, Any], name: str, env: Any) -> tuple[dict[str, Any], str]:
    """Returns the configuration with which a heuristic runs, and its name there: if the environment (`env`, one of
    that configuration) sets parameters, a published policy becomes the base policy, and also runs the warm-up.

    Raises:
        UserError: the policy cannot be the base policy.
    """
    here = env.unwrapped
    settings = hasattr(here, "episodes") and are_settings(here.decisions)
    if not settings or not is_policy(name) or is_base_policy(name, here):
        return dict(config), name
    moved, controls, policy = {**config, "base_policy": name}, here.episodes.controls, policy_of(name)
    if controls is not None and not set(controls.names) & set(policy.values):
        # It has none of the environment's parameters: one of its own, at its own value.
        one = next(one for one in policy.params if isinstance(policy.values[one.name], (int, float)) or one.choices)
        moved["controls"] = {one.name: [policy.values[one.name]]}
    make_env(moved).close()  # raises if the policy lacks the parameters that are set here
    return moved, BASE


def _of_another_package(env: Any, name: str) -> Heuristic:
    """Returns a heuristic by name in an environment of another package, which has its own rules.

    Raises:
        UserError: the environment has no rules, or not this one.
    """
    if name == RANDOM:
        return Heuristic(name, _random_of_masks)
    is_base, rules = name == BASE or is_base_policy(name, env), getattr(env, "rules", None)
    if not hasattr(env, "base_action" if is_base else "rule_action"):
        raise UserError(f"'{name}' cannot act in {type(env).__name__}, which has no method rule_action: evaluate "
                        f"learned policies there, or {RANDOM}; with agent.imitate.rule=null training begins from a "
                        "random policy")
    if not is_base and rules is not None and name.partition(":")[0] not in rules:
        raise _neither(name, rules)
    return Heuristic(name, lambda env: env.base_action if is_base else partial(env.rule_action, name))


def _neither(name: str, known: Sequence[str]) -> UserError:
    return UserError(f"'{name}' is neither a heuristic of this environment{nearest(name, known)} nor a run folder; "
                     f"known: {', '.join(known)}")


def by_name(env: Any, name: str) -> Heuristic:
    """Returns a heuristic by name in a bare environment of `as_base_policy`'s configuration.

    Raises:
        UserError: the name is unknown here, or is a published policy where the environment sets parameters.
    """
    if not hasattr(env, "episodes"):
        return _of_another_package(env, name)
    kinds = {decision.kind for decision in env.decisions}
    if name == RANDOM or (name == "random" and s.GATE not in kinds):
        return Heuristic(name, _random)
    plain = {one.name: one for one in _plain(env, kinds)}
    if name in plain:
        return plain[name]
    if is_policy(name):
        policy_of(name)
        if is_base_policy(name, env):
            return Heuristic(name, plain[BASE].begin)
        if are_settings(env.decisions):
            raise UserError(f"'{name}' has no rule for this environment's actions, which are parameters: it acts as "
                            "the base policy (agents.evaluation.heuristics.as_base_policy)")
        return _published(name)
    if name.startswith(RETENTION) and s.RETAIN in kinds:
        policy_named(name)
        return _published(name)
    if env.episodes.controls is not None and "=" in name:
        return _constant(env.episodes.controls, name)
    known = [RANDOM, *plain, *list_policies()]
    raise UserError(former("heuristic", name)) if former("heuristic", name) else _neither(name, known)


def heuristics_of(env: Any) -> list[Heuristic]:
    """Lists the base policy, each distinct published rule for this environment's decisions, and simple rules;
    environments that set parameters have no published rules."""
    kinds = {decision.kind for decision in env.decisions}
    first, *plain = _plain(env, kinds)
    return [first, *map(_published, [] if are_settings(env.decisions) else _distinct(env, kinds)), *plain]


def _plain(env: Any, kinds: set[int]) -> Iterator[Heuristic]:
    """Yields the base policy, then rules and constants that need no policy."""
    yield Heuristic(BASE, lambda env: env.base_action)
    controls, buffers = env.episodes.controls, env.episodes.buffers
    if controls is not None:  # each parameter at each of its other levels
        for part, name in enumerate(controls.names):
            others = np.delete(controls.levels[part, : int(controls.counts[part])], controls.tuned[part])
            yield from (_constant(controls, f"{name}={value:g}") for value in others)
    elif [decision.name for decision in env.decisions] == [PACK]:
        scale = float(buffers.settings[b.PACK_SCALE]) or 1.0
        yield from (_always(f"level {level * scale:g}", b.FIXED + k) for k, level in enumerate(buffers.levels[0]))
    elif kinds == {s.COMPOSE}:  # constant limits for every iteration; online prompts may use all of it
        times, online, offline = buffers.levels
        yield from (_always(f"time {times[k]:g} offline {offline[k]:g}", b.FIXED + k)
                    for k in np.flatnonzero(online == online.max()))
    else:
        yield from _of_candidates(env, kinds)


def _of_candidates(env: Any, kinds: set[int]) -> Iterator[Heuristic]:
    """Yields rules that choose a candidate, or none."""
    if kinds != {b.RECLAIM}:  # RECLAIM has no *no*
        yield _chosen("decline", _decline)
    if kinds & set(SIZED):
        yield from (_chosen("shortest", _by_length, np.argmin), _chosen("longest", _by_length, np.argmax))
    if env.config.scenario.lengths != "none":
        yield from (_published(f"ooco_lengths:{one}") for kind in sorted(kinds) for one in BY_LENGTHS.get(kind, ()))
    for one in env.decisions:
        yield from (_chosen(name, _lowest_ranked, one, rank) for name, rank in RANKS.get(one.name, {}).items())
    if kinds == {s.INTERRUPT}:
        yield _always("stop", b.FIXED)
    if kinds == {s.ROUTE}:
        rules = next(param.choices for param in policy_of("router").params if param.name == "rule")
        yield from (_published(f"router:rule={rule}") for rule in rules)
    if s.SCALE in kinds:
        base = split_name(spelling_of(env.config.base_policy))[0]
        rules = [policy_of(name, "scale") for name in resources.names("scale")]
        yield from (_published(f"{base}:scale={rule.name}") for rule in rules if not rule.foresees
                    and (rule.name == "static" or rule.mixed == policy_of(base).mixed))
    if s.RETAIN in kinds:
        rules = map(RETENTION.__add__, resources.names("retention"))
        yield from (_published(name) for name in rules if policy_named(name).keeps == LRU)


def _always(name: str, action: Any) -> Heuristic:
    return Heuristic(name, lambda env: lambda: action)


def _chosen(name: str, choose: Callable[..., int], *given: Any) -> Heuristic:
    return Heuristic(name, lambda env: partial(choose, env, *given))


def _decline(env: Any) -> int:
    """Returns the decision's own *no* if it is legal, else the base policy's action."""
    return b.DECLINE_ACTION if env.episodes.buffers.mask[0, b.DECLINE_ACTION] else b.BASE_ACTION


def _by_length(env: Any, best: Callable[..., Any]) -> int:
    """Returns the shortest (or longest) candidate request; the base policy's action if candidates are no requests."""
    buffers = env.episodes.buffers
    if buffers.status[0, b.KIND] not in SIZED:
        return b.BASE_ACTION
    there = np.flatnonzero(buffers.mask[0, b.FIXED :])
    return b.FIXED + int(there[best(buffers.candidates[0, there, TOKENS])]) if len(there) else b.DECLINE_ACTION


def _lowest_ranked(env: Any, decision: Decision, rank: Rank) -> int:
    """Returns the lowest-ranked candidate at one kind of decision; elsewhere the base policy's action."""
    buffers = env.episodes.buffers
    there = np.flatnonzero(buffers.mask[0, b.FIXED :])
    if buffers.status[0, b.KIND] != decision.kind or not len(there):
        return b.BASE_ACTION
    ranks = []
    for row in buffers.candidates[0, there]:
        features = zip(decision.table, row, strict=False)
        ranks.append(rank({one.name: actual(one, float(value)) for one, value in features}))
    return b.FIXED + int(there[ranks.index(min(ranks))])


def _distinct(env: Any, kinds: set[int]) -> list[str]:
    """Lists policies with their own rules for these decisions, or with another's rule and a parameter (`gate=never`);
    those that may have weights are left out: they are learned."""
    points = [kind - 1 for kind in sorted(kinds - {s.SCALE}) if kind < b.RECLAIM]  # a policy has no rule of its own
    base_policy = policy_of(env.config.base_policy)
    seen: list[tuple[Any, ...]] = [tuple((base_policy.hooks()[point], None) for point in points)]
    names = []
    for name in list_policies():
        policy, told = get_policy(name), aliases().get(name, {})
        rules = tuple((policy.hooks()[point], told.get(HOOKS[point])) for point in points)
        if policy.mixed == base_policy.mixed and policy.layout is None and rules not in seen:
            seen.append(rules)
            names.append(name)
    return names


def _published(rule: str) -> Heuristic:
    """A policy's rules at the loop's decisions; where packing is among them, the level of its own parameter."""
    def begin(env: Any) -> Callable[[], Any]:
        status, level = env.episodes.buffers.status, _nearest_level(env, rule)
        return lambda: level if status[0, b.KIND] == b.CLOCK else env.rule_action(rule)

    return Heuristic(rule, begin)


def _nearest_level(env: Any, rule: str) -> int:
    """Returns the action whose packing level is nearest to a policy's; the base policy's action if both have the same
    level, or if one has no such parameter."""
    if PACK not in {decision.name for decision in env.decisions}:
        return b.BASE_ACTION
    own, base_policy = (policy_of(one) for one in (rule, env.config.base_policy))
    (place, scale), (there, unit) = (pack_parameter(policy, env.config) for policy in (own, base_policy))
    if place < 0 or there < 0:
        return b.BASE_ACTION
    share, tuned = own.vector()[place] * scale, base_policy.vector()[there] * unit
    gaps = np.abs(env.episodes.buffers.levels[0] * unit - share)
    return b.BASE_ACTION if abs(tuned - share) <= gaps.min() else b.FIXED + int(np.argmin(gaps))


def _constant(controls: Any, name: str) -> Heuristic:
    """Keeps parameters at levels, `slo_margin=0.95,interrupt=1`, and all others at their tuned values."""
    action = controls.tuned.copy()
    for text in name.split(","):
        parameter, _, value = (part.strip() for part in text.partition("="))
        if parameter not in controls.names:
            raise unknown("control", parameter, controls.names)
        part = controls.names.index(parameter)
        levels = [f"{level:g}" for level in controls.levels[part, : int(controls.counts[part])]]
        if value not in levels:
            raise UserError(f"'{name}': {parameter} has no level {value}; levels: {', '.join(levels)}")
        action[part] = levels.index(value)
    return _always(name, action)


def _random_of_masks(env: Any) -> Callable[[], Any]:
    """Random legal actions in an environment of another package, all equally likely; the window seeds its action
    space (`players.play`)."""
    counts = getattr(env.action_space, "nvec", None)

    def act() -> Any:
        mask = np.asarray(env.action_masks(), np.int8)
        return env.action_space.sample(mask if counts is None else tuple(np.split(mask, np.cumsum(counts)[:-1])))

    return act


def _random(env: Any) -> Callable[[], Any]:
    """Legal actions, all equally likely, keyed by the window."""
    random = np.random.default_rng([env.window[0], env.window[1]])
    controls = env.episodes.controls
    if controls is not None:
        return lambda: random.integers(controls.counts)
    return lambda: int(random.choice(np.flatnonzero(env.episodes.buffers.mask[0])))
