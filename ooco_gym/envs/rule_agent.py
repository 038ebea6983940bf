"""Registered policies, and trained networks from files, as agents with Stable-Baselines3's `predict`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

from ooco_gym.envs import short_name
from ooco_gym.envs.decision import are_settings
from ooco_gym.envs.episodes import Episodes
from ooco_gym.errors import UserError, unknown
from ooco_gym.policy import Policy, is_policy, list_policies, policy_of, split_name
from ooco_gym.resources import conf_root
from ooco_gym.runtime import INPUTS, MANIFEST_FILE
from ooco_gym.runtime import Policy as Bundle

BASE, PPO = "base_policy", "ppo"


class RuleAgent:
    """A policy's rules at an environment's decisions, with Stable-Baselines3's agent interface.

    It reads the environment's present state, not the observation, and acts only for the
    environment that it was made for. An answer that is not among the candidates becomes the
    candidate closest in length. Decisions by the clock among others (packing in Colocation) are
    left to the base policy.

    Attributes:
        name: name of the policy, or `base_policy`.
    """

    def __init__(self, name: str, ask: Callable[[], Any], many: bool, space: gym.Space) -> None:
        self.name, self._ask, self._many, self._space = name, ask, many, space

    def predict(self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = True
                ) -> tuple[Any, Any]:
        """Returns the action for the present decision (an array for a vector or a batch), and
        `state` unchanged. The observation is used only to tell whether it is a batch."""
        actions = self._ask()
        if not self._many and _batched(observation, self._space):
            actions = [actions]
        return np.asarray(actions), state

    def __call__(self, observation: Any = None) -> Any:
        """Returns the action for the environment's present state; for a vector, those of all
        slots."""
        return np.asarray(self._ask())


class TrainedAgent:
    """A trained network of `ooco-gym export` with Stable-Baselines3's agent interface; numpy only.

    Attributes:
        policy: the network (`ooco_gym.runtime.Policy`), whose `manifest` says how it was trained.
    """

    def __init__(self, folder: str | Path, space: gym.Space) -> None:
        self.policy, self._space = Bundle.load(folder), space
        trained, parts = self.policy.manifest, getattr(space, "spaces", {})
        sizes = {key: int(np.prod(parts[key].shape)) for key in INPUTS if key in parts}
        if sizes != {key: int(np.prod(trained["inputs"][key]["shape"])) for key in INPUTS}:
            raise UserError(f"'{folder}' was trained on {trained['environment']}, whose observations have other sizes "
                            f"than this environment's {sizes or space}")

    def __call__(self, observation: Any) -> Any:
        """Returns the best action for an observation, or for each of a batch."""
        return self.predict(observation)[0]

    def predict(self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = True
                ) -> tuple[Any, Any]:
        """Returns the best action for an observation (an array for a batch), and `state` unchanged."""
        batch = _batched(observation, self._space)
        return np.asarray((self.policy.decide_batch if batch else self.policy.decide)(observation)), state


def make_agent(name: str, env: Any) -> RuleAgent | TrainedAgent:
    """Makes a policy an agent of an environment, for example `ooco_gym.make_agent("ooco", env)`.

    Args:
        name: a registered policy (`ooco`, `slack`, `ooco:interrupt=slack`); `base_policy`, which
            takes the other decisions; `ppo`, the network that `docs/benchmarks.md` says was trained
            on this environment; or the folder of `ooco-gym export`.
        env: an environment of ooco_gym, wrapped or not, or a native vector of them
            (`gym.make_vec`).

    Raises:
        UserError: no policy of that name, a policy without rules for these decisions, or another
            environment.
    """
    if not isinstance(name, str):
        shown = f"Policy '{name.name}'" if isinstance(name, Policy) else repr(name)
        raise UserError(f"make_agent({shown}): expected a registered policy's name, such as 'ooco'; to use your own, "
                        "register it (CONTRIBUTING.md) or pass it as base_policy=POLICY")
    inside = getattr(env, "unwrapped", env)
    if not isinstance(getattr(inside, "episodes", None), Episodes):
        raise UserError(f"make_agent: {type(env).__name__} is not an environment of ooco_gym; for several episodes use "
                        "a native vector environment (gym.make_vec)")
    many = isinstance(inside, VectorEnv)
    space = env.single_observation_space if many else env.observation_space
    trained = conf_root() / "trained" / short_name(getattr(inside, "single", type(inside)).id)
    folder = trained if name == PPO and trained.is_dir() else Path(name)
    if (folder / MANIFEST_FILE).is_file():
        return TrainedAgent(folder, space)
    seat = seat_of(inside.episodes, name)
    if seat not in ("", BASE):
        raise UserError(seat)
    plural = "s" if many else ""
    ask = getattr(inside, f"base_action{plural}")
    if seat != BASE:
        ask = partial(getattr(inside, f"rule_action{plural}"), name)
    return RuleAgent(name, ask, many, space)


def seat_of(episodes: Episodes, name: str) -> str:
    """Returns a policy's role in an environment: '' for its own rules, `base_policy`, or a
    sentence that says why it has none."""
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
        return (f"policy '{name}' does not act here: this environment's actions ({asked}) are parameters, which no "
                "policy sets; a policy that has these parameters can be the base policy instead")
    mixed = policy_of(base_policy).mixed
    if policy.mixed != mixed:
        kinds = ("relaxed and strict instances", "mixed instances")
        return (f"policy '{name}' does not act here: it schedules {kinds[policy.mixed]}, the cluster has "
                f"{kinds[mixed]}; choose another policy or cluster")
    return ""


def _batched(observation: Any, space: gym.Space) -> bool:
    """Whether an observation has one dimension more than its space."""
    if isinstance(observation, Mapping) and isinstance(space, gym.spaces.Dict):
        key = next(iter(observation))
        return _batched(observation[key], space[key])
    part: Any = observation
    return np.ndim(part) > len(space.shape or ())
