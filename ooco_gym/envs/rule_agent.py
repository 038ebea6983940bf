"""Policies as agents: what a registered policy's rules would do, through the usual `predict`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

from ooco_gym.envs.decision import are_settings
from ooco_gym.envs.episodes import Episodes
from ooco_gym.errors import UserError, unknown
from ooco_gym.policy import Policy, is_policy, list_policies, policy_of, split_name

PARTNER = "partner"
Ask = Callable[..., Any]  # (method of an environment, arguments) -> what it says in each slot


class RuleAgent:
    """A policy's rules at the decisions that an environment asks, as Stable-Baselines3 spells an agent.

    It looks into the environment rather than at the observation, as rules do in the simulator: it answers for the
    environment that it was made for, as that stands. An answer that is not among the candidates becomes the candidate
    closest in length. What the clock asks among other decisions (packing in Colocation) is left to the partner.

    Attributes:
        name: of the policy, or `partner`.
    """

    def __init__(self, name: str, ask: Callable[[], Any], many: bool, space: gym.Space) -> None:
        self.name, self._ask, self._many, self._space = name, ask, many, space

    def predict(self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = True
                ) -> tuple[Any, Any]:
        """Answers the open decisions.

        Args:
            observation: of the environment as it stands; of a single one, only whether it is a batch is looked at.
            state: returned as it is.
            episode_start, deterministic: without effect.

        Returns:
            The action (those of all slots of a vector, and of a batch, as an array), and `state`.
        """
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
        name: a policy (`ooco`, `echo_pd`, `ooco:interrupt=slack`), or `partner`, which takes the others.
        env: an environment of ours, wrapped or not; a vector of them: Gymnasium's native, sync or async ones, or a
            `VecEnv` of Stable-Baselines3.

    Raises:
        UserError: no policy of that name, one that has no say at these decisions, or no environment of ours.
    """
    if not isinstance(name, str):
        shown = f"Policy '{name.name}'" if isinstance(name, Policy) else repr(name)
        raise UserError(f"make_agent({shown}): expected a registered policy's name, such as 'ooco'; a policy of your "
                        "own is registered as CONTRIBUTING.md says, or plays as partner=POLICY")
    if not hasattr(env, "unwrapped"):
        raise UserError(f"make_agent: {type(env).__name__} is no environment of ooco_gym")
    env, many = _vector_of(env)
    ask = _asking(env)
    try:
        seat = ask("seat_of", name)
    except AttributeError as error:
        raise UserError(f"make_agent: {type(env).__name__} is no environment of ooco_gym") from error
    problem = seat[0] if many else seat
    if problem not in ("", PARTNER):
        raise UserError(problem)
    call = ("partner_action",) if problem == PARTNER else ("rule_action", name)
    space = getattr(env, "single_observation_space", env.observation_space)
    return RuleAgent(name, lambda: ask(*call), many, space)


def seat_of(episodes: Episodes, name: str) -> str:
    """The seat of a policy in an environment: '' its own, `partner`; else why it has none, in a sentence."""
    partner = episodes.config.partner
    if name in (PARTNER, partner):
        return PARTNER
    if not is_policy(name):
        return str(unknown("policy", split_name(name)[0], [PARTNER, *list_policies()]))
    try:
        policy = policy_of(name)
    except UserError as error:
        return str(error)
    if are_settings(episodes.decisions):
        asked = " and ".join(decision.name for decision in episodes.decisions)
        return (f"policy '{name}' has no say here: what this environment asks ({asked}) are settings, for which no "
                "rule answers; a policy that has these settings may play as the partner instead")
    mixed = policy_of(partner).mixed
    if policy.mixed != mixed:
        kinds = ("relaxed and strict instances", "mixed instances")
        return (f"policy '{name}' has no say here: it schedules {kinds[policy.mixed]}, the cluster has {kinds[mixed]}; "
                "choose another policy or cluster")
    return ""


def _vector_of(env: Any) -> tuple[Any, bool]:
    """The environment to ask, and whether it has several slots; a `VecEnv` around a vector of Gymnasium's gives that.
    """
    if hasattr(env, "env_method"):  # Stable-Baselines3's, which is not needed here
        inner = getattr(env.unwrapped, "env", None)
        return (inner if isinstance(inner, VectorEnv) else env), True
    return env, isinstance(env, VectorEnv)


def _asking(env: Any) -> Ask:
    """How the slots of an environment are asked."""
    if hasattr(env, "env_method"):
        return env.env_method
    inside = env.unwrapped
    if isinstance(env, VectorEnv) and not hasattr(inside, "rule_actions"):
        return lambda method, *arguments: list(inside.call(method, *arguments))
    plural = {"rule_action": "rule_actions", "partner_action": "partner_actions"} if isinstance(env, VectorEnv) else {}

    def ask(method: str, *arguments: Any) -> Any:
        answer = getattr(inside, plural.get(method, method))(*arguments)
        return [answer] if plural and method not in plural else answer

    return ask


def _batched(observation: Any, space: gym.Space) -> bool:
    """Whether an observation has a dimension more than its space."""
    if isinstance(observation, Mapping) and isinstance(space, gym.spaces.Dict):
        key = next(iter(observation))
        return _batched(observation[key], space[key])
    part: Any = observation
    return np.ndim(part) > len(space.shape or ())
