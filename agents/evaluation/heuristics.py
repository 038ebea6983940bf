"""Heuristics by name: random actions, simple rules, published policies and tuned policies.

`by_name` knows, in an environment:

- `random actions`: legal actions, all equally likely (also `random`, unless the published gate of
  that name applies);
- `base_policy`: the base policy's own action;
- `decline` (the decision's own *no*), `shortest`, `longest` (of the candidate requests), `stop`
  (always interrupts);
- with a length predictor (`EvictionPredicted-v1`, `MigrationPredicted-v1`), the rules of
  `ooco_lengths` that use its predictions;
- `oldest`, `least work` (fewest tokens to compute and generate, predicted), `most cached`
  (Admission, Serving);
- `last admitted`, `last arrived`, `least computed` (vLLM's by default, by priority, and RFC 54644),
  `most to generate` (predicted), `least loss` (cheapest block), `last to the host`
  (PreemptionVictim);
- a constant: `level 0.9` (Packing), `slo_margin=0.95` (OnlineTuning; several with commas), `time 2
  offline 1` (Batching);
- published policies with parameters, `ooco:slo_margin=0.9,interrupt=slack`.

At the loop's decisions, a published policy acts by its rules (`rule_action`). Packing and
OnlineTuning set a policy's parameters, and Batching, Admission, PreemptionVictim and Serving decide
parts of an iteration. There a published policy becomes the base policy, whose action is taken
(`as_base_policy`). Among other decisions (Colocation), packing takes the level nearest to the
policy's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from agents.environments import Window, is_base_policy, make_env
from agents.evaluation.players import Observations, play
from ooco_gym.envs import admission, preemption_victim
from ooco_gym.envs import buffers as b
from ooco_gym.envs.config import pack_parameter
from ooco_gym.envs.decision import actual, are_settings
from ooco_gym.errors import FORMER, UserError, nearest, unknown
from ooco_gym.policy import get_policy, is_policy, list_policies, policy_of
from ooco_gym.policy.policy import HOOKS
from ooco_gym.policy.registry import aliases
from ooco_gym.sim import state as s

RANDOM, BASE, PACK = "random actions", "base_policy", "pack"
TOKENS = 1  # column of a candidate request's context
SIZED = (s.GATE, s.EVICT, s.PULL, b.RECLAIM, b.ADMIT)  # decisions whose candidates are requests
BY_LENGTHS = {s.EVICT: ("evict=density", "evict=longest_output"),  # parameters of `ooco_lengths`, by decision
              s.PULL: ("pull=past_future", "pull=soonest", "pull=shortest_output")}


class Heuristic:
    """A rule or a constant as a player (`players.Player`).

    `begin(env)` takes a bare environment after its reset and returns the function that gives each
    action. None stands for the heuristic that `name` has in that environment.
    """

    learned = False

    def __init__(self, name: str, begin: Callable[[Any], Callable[[], Any]] | None = None) -> None:
        self.name, self._begin = name, begin
        self._acting: dict[int, tuple[Any, Callable[[], Any]]] = {}

    def begin(self, env: Any) -> Callable[[], Any]:
        """Returns the function that gives the action at the open decision of the episode in `env`."""
        return by_name(env, self.name).begin(env) if self._begin is None else self._begin(env)

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
    """Runs a heuristic by its name on windows; returns records as `agents.evaluation.players.play`
    does.

    Raises:
        UserError: the name is unknown, or the heuristic does not apply in this environment.
    """
    with closing(make_env(config)) as env:
        config, name = as_base_policy(config, name, env)
    return play(config, Heuristic(name), windows, side_by_side)


def as_base_policy(config: Mapping[str, Any], name: str, env: Any) -> tuple[dict[str, Any], str]:
    """Returns the environment's configuration with which a heuristic runs, and its name there.

    If the environment sets parameters, a published policy becomes the base policy, and then also
    runs the warm-up.

    Args:
        env: an environment of that configuration.

    Raises:
        UserError: the policy cannot be the base policy.
    """
    here = env.unwrapped
    settings = hasattr(here, "episodes") and are_settings(here.decisions)
    if not settings or not is_policy(name) or is_base_policy(name, here):
        return dict(config), name
    moved = {**config, "base_policy": name}
    controls = here.episodes.controls
    if controls is not None and not set(controls.names) & set(policy_of(name).values):
        moved["controls"] = _nothing_to_turn(name)
    make_env(moved).close()  # raises if the policy lacks the parameters that are set here
    return moved, BASE


def _nothing_to_turn(name: str) -> dict[str, list[Any]]:
    """Controls for a policy that has none of the environment's parameters: one, at the policy's own
    value."""
    policy = policy_of(name)
    param = next(one for one in policy.params if isinstance(policy.values[one.name], (int, float)) or one.choices)
    return {param.name: [policy.values[param.name]]}


def _of_another_package(env: Any, name: str) -> Heuristic:
    """Returns a heuristic by name in an environment of another package, which has its own rules.

    Raises:
        UserError: the environment has no rules.
    """
    if name == RANDOM:
        return Heuristic(name, _random_of_masks)
    is_base = is_base_policy(name, env)
    if not hasattr(env, "base_action" if is_base else "rule_action"):
        raise UserError(f"'{name}' cannot act in {type(env).__name__}, which has no method rule_action: evaluate "
                        f"learned policies there, or {RANDOM}; with agent.imitate.rule=null training begins from a "
                        "random policy")
    return Heuristic(name, lambda env: env.base_action if is_base else partial(env.rule_action, name))


def by_name(env: Any, name: str) -> Heuristic:
    """Returns a heuristic by name in a bare environment of `as_base_policy`'s configuration.

    Raises:
        UserError: the name is unknown here, or is a published policy where the environment sets
            parameters.
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
    if env.episodes.controls is not None and "=" in name:
        return _constant(env.episodes.controls, name)
    known = [RANDOM, *plain, *list_policies()]
    if name in FORMER["heuristic"]:
        raise unknown("heuristic", name, known)
    raise UserError(f"'{name}' is neither a heuristic of this environment{nearest(name, known)} nor a run folder; "
                    f"known: {', '.join(known)}")


def heuristics_of(env: Any) -> list[Heuristic]:
    """Lists the base policy, each distinct published rule for this environment's decisions, and
    simple rules. Environments that set parameters have no published rules."""
    kinds = {decision.kind for decision in env.decisions}
    plain = _plain(env, kinds)
    rules = [] if are_settings(env.decisions) else _distinct(env, kinds)
    return plain[:1] + [_published(rule) for rule in rules] + plain[1:]


def _plain(env: Any, kinds: set[int]) -> list[Heuristic]:
    """Lists the base policy, then rules and constants that need no policy."""
    listed = [Heuristic(BASE, lambda env: env.base_action)]
    controls, buffers = env.episodes.controls, env.episodes.buffers
    if controls is not None:  # each parameter at each of its other levels
        return listed + [_constant(controls, f"{name}={value:g}") for part, name in enumerate(controls.names)
                         for value in controls.levels[part, : int(controls.counts[part])]
                         if value != controls.levels[part, controls.tuned[part]]]
    if [decision.name for decision in env.decisions] == [PACK]:
        scale = float(buffers.settings[b.PACK_SCALE]) or 1.0
        return listed + [Heuristic(f"level {level * scale:g}", lambda env, k=k: lambda: b.FIXED + k)
                         for k, level in enumerate(buffers.levels[0])]
    if kinds == {s.COMPOSE}:  # constant limits for every iteration; online prompts may use all of it
        times, online, offline = buffers.levels
        return listed + [Heuristic(f"time {times[k]:g} offline {offline[k]:g}", lambda env, k=k: lambda: b.FIXED + k)
                         for k in np.flatnonzero(online == online.max())]
    if kinds != {b.RECLAIM}:  # RECLAIM has no *no*
        listed.append(Heuristic("decline", lambda env: partial(decline, env)))
    if kinds & set(SIZED):
        listed += [Heuristic(name, lambda env, longest=longest: partial(by_length, env, longest))
                   for name, longest in (("shortest", False), ("longest", True))]
    if env.config.scenario.lengths != "none":
        listed += [_published(f"ooco_lengths:{one}") for kind in sorted(kinds) for one in BY_LENGTHS.get(kind, ())]
    for kind, ranks in RANKS.items():
        if kind in kinds:
            listed += [Heuristic(name, lambda env, kind=kind, rank=rank: partial(_lowest_ranked, env, kind, rank))
                       for name, rank in ranks.items()]
    if kinds == {s.INTERRUPT}:
        listed.append(Heuristic("stop", lambda env: lambda: b.FIXED))
    return listed


def decline(env: Any) -> int:
    """Returns the decision's own *no* if it is legal, else the base policy's action."""
    return b.DECLINE_ACTION if env.episodes.buffers.mask[0, b.DECLINE_ACTION] else b.BASE_ACTION


def by_length(env: Any, longest: bool) -> int:
    """Returns the shortest (or longest) candidate request; the base policy's action if candidates
    are no requests."""
    buffers = env.episodes.buffers
    if buffers.status[0, b.KIND] not in SIZED:
        return b.BASE_ACTION
    there = np.flatnonzero(buffers.mask[0, b.FIXED :])
    if not len(there):
        return b.DECLINE_ACTION
    tokens = buffers.candidates[0, there, TOKENS]
    return b.FIXED + int(there[np.argmax(tokens) if longest else np.argmin(tokens)])


def _work(entry: Mapping[str, float]) -> float:
    """Predicted tokens of a request still to compute and to generate."""
    return entry["tokens"] * (1.0 - entry["cached"]) + entry["output"]


Rank = Callable[[Mapping[str, float]], Any]  # of a candidate's raw values, before they became features
ENTERING: dict[str, Rank] = {  # the least of these enters
    "oldest": lambda entry: -entry["wait"], "least work": _work,
    "most cached": lambda entry: -entry["cached"] * entry["tokens"]}
RECLAIMING: dict[str, Rank] = {  # the least of these is preempted; among equals, one that is recomputed
    "last admitted": lambda victim: -victim["place"], "last arrived": lambda victim: victim["wait"],
    "least computed": lambda victim: victim["computed"] * victim["tokens"],
    "most to generate": lambda victim: -victim["output"],
    "least loss": lambda victim: victim["cost"] / min(1.0, victim["freed"]),
    "last to the host": lambda victim: (-victim["place"], -victim["swap"])}
RANKS = {b.ADMIT: ENTERING, b.RECLAIM: RECLAIMING}
_TABLES = {one.kind: one.table for one in (admission.DECISION, preemption_victim.DECISION)}


def _lowest_ranked(env: Any, kind: int, rank: Rank) -> int:
    """Returns the lowest-ranked candidate at one kind of decision; elsewhere the base policy's
    action."""
    buffers = env.episodes.buffers
    there = np.flatnonzero(buffers.mask[0, b.FIXED :])
    if buffers.status[0, b.KIND] != kind or not len(there):
        return b.BASE_ACTION
    ranks = []
    for row in buffers.candidates[0, there]:
        features = zip(_TABLES[kind], row, strict=False)
        ranks.append(rank({one.name: actual(one, float(value)) for one, value in features}))
    return b.FIXED + int(there[ranks.index(min(ranks))])


def _distinct(env: Any, kinds: set[int]) -> list[str]:
    """Lists policies with their own rules for these decisions, or with another's rule and a
    parameter (`gate=never`).

    Policies that may have weights are left out: they are learned.
    """
    points = [kind - 1 for kind in sorted(kinds) if kind < b.RECLAIM]
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
    """A policy's rules at the loop's decisions; where packing is among them, the level of its own
    parameter."""
    def begin(env: Any) -> Callable[[], Any]:
        status, level = env.episodes.buffers.status, _nearest_level(env, rule)
        return lambda: level if status[0, b.KIND] == b.CLOCK else env.rule_action(rule)

    return Heuristic(rule, begin)


def _nearest_level(env: Any, rule: str) -> int:
    """Returns the action whose packing level is nearest to a policy's. It is the base policy's
    action if both have the same level, or if one has no such parameter."""
    own, base_policy = (policy_of(one) for one in (rule, env.config.base_policy))
    if PACK not in {decision.name for decision in env.decisions}:
        return b.BASE_ACTION
    (place, scale), (there, unit) = (pack_parameter(policy, env.config) for policy in (own, base_policy))
    if place < 0 or there < 0:
        return b.BASE_ACTION
    share, tuned = own.vector()[place] * scale, base_policy.vector()[there] * unit
    gaps = np.abs(env.episodes.buffers.levels[0] * unit - share)
    return b.BASE_ACTION if abs(tuned - share) <= gaps.min() else b.FIXED + int(np.argmin(gaps))


def _constant(controls: Any, name: str) -> Heuristic:
    """Keeps parameters at levels, `slo_margin=0.95,interrupt=1`, and all others at their tuned
    values."""
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
    return Heuristic(name, lambda env: lambda: action)


def _random_of_masks(env: Any) -> Callable[[], Any]:
    """Random legal actions in an environment of another package, all equally likely; the window
    seeds its action space (`players._Episode`)."""
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
