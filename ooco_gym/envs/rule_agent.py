"""Policies as agents: what a registered policy's rules would do, through the usual `predict`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

from ooco_gym.envs.decision import are_settings
from ooco_gym.envs.episodes import Episodes
from ooco_gym.errors import UserError, unknown
from ooco_gym.policy import Policy, is_policy, list_policies, policy_of, split_name

BASE = "base_policy"


class RuleAgent:
    """A policy's rules at the decisions that an environment asks, as Stable-Baselines3 spells an agent.

    It looks into the environment rather than at the observation, as rules do in the simulator: it answers for the
    environment that it was made for, as that stands. An answer that is not among the candidates becomes the candidate
    closest in length. What the clock asks among other decisions (packing in Colocation) is left to the base policy.

    Attributes:
        name: of the policy, or `base_policy`.
    """

    def __init__(self, name: str, ask: Callable[[], Any], many: bool, space: gym.Space) -> None:
        self.name, self._ask, self._many, self._space = name, ask, many, space

    def predict(self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = True
                ) -> tuple[Any, Any]:
        """Answers the open decisions: the action (those of all slots of a vector, and of a batch, as an array), and
        `state` as it is. Of an observation only whether it is a batch is looked at."""
        actions = self._ask()
        if not self._many and _batched(observation, self._space):
            actions = [actions]
        return np.asarray(actions), state

    def __call__(self, observation: Any = None) -> Any:
        """The action for the environment as it stands; those of all slots of a vector."""
        return np.asarray(self._ask())


def make_agent(name: str, env: Any) -> RuleAgent:
    """Makes a registered policy an agent of an environment, for example `ooco_gym.make_agent("ooco", env)`.

    Args:
        name: a policy (`ooco`, `slack`, `ooco:interrupt=slack`), or `base_policy`, which takes the others.
        env: an environment of ours, wrapped or not, or a native vector of them (`gym.make_vec`).

    Raises:
        UserError: no policy of that name, one that has no say at these decisions, or no environment of ours.
    """
    if not isinstance(name, str):
        shown = f"Policy '{name.name}'" if isinstance(name, Policy) else repr(name)
        raise UserError(f"make_agent({shown}): expected a registered policy's name, such as 'ooco'; a policy of your "
                        "own is registered as CONTRIBUTING.md says, or plays as base_policy=POLICY")
    inside = getattr(env, "unwrapped", env)
    if not isinstance(getattr(inside, "episodes", None), Episodes):
        raise UserError(f"make_agent: {type(env).__name__} is no environment of ooco_gym; episodes side by side are "
                        "asked as one native vector (gym.make_vec)")
    seat, many = seat_of(inside.episodes, name), isinstance(inside, VectorEnv)
    if seat not in ("", BASE):
        raise UserError(seat)
    plural = "s" if many else ""
    ask = getattr(inside, f"base_action{plural}")
    if seat != BASE:
        ask = partial(getattr(inside, f"rule_action{plural}"), name)
    return RuleAgent(name, ask, many, env.single_observation_space if many else env.observation_space)


def seat_of(episodes: Episodes, name: str) -> str:
    """The seat of a policy in an environment: '' its own, `base_policy`; else why it has none, in a sentence."""
    base_policy = episodes.config.base_policy
    if name in (BASE, base_policy):
        return BASE
    if not is_policy(name):
        return str(unknown("policy", split_name(name)[0], [BASE, *list_policies()]))
    try:
        policy = policy_of(name)
    except UserError as error:
        return str(error)
    if are_settings(episodes.decisions):
        asked = " and ".join(decision.name for decision in episodes.decisions)
        return (f"policy '{name}' has no say here: what this environment asks ({asked}) are settings, for which no "
                "rule answers; a policy that has these settings may play as the base policy instead")
    mixed = policy_of(base_policy).mixed
    if policy.mixed != mixed:
        kinds = ("relaxed and strict instances", "mixed instances")
        return (f"policy '{name}' has no say here: it schedules {kinds[policy.mixed]}, the cluster has {kinds[mixed]}; "
                "choose another policy or cluster")
    return ""


def _batched(observation: Any, space: gym.Space) -> bool:
    """Whether an observation has a dimension more than its space."""
    if isinstance(observation, Mapping) and isinstance(space, gym.spaces.Dict):
        key = next(iter(observation))
        return _batched(observation[key], space[key])
    part: Any = observation
    return np.ndim(part) > len(space.shape or ())
