"""Functions as players: what was learned elsewhere enters the paired table, from Python or by `my.py:act`.

A function takes the observation of one open decision, as the environment gives it (legality is in `action_mask`), and
returns the action. One from a file is found by its path and name, so that worker processes find it too.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from agents.environments import split_seeds
from ooco_gym.errors import UserError, unknown
from ooco_gym.policy import Policy
from ooco_gym.policy.registry import module_of_file
from ooco_gym.resources import load_yaml, names

Act = Callable[[Mapping[str, np.ndarray]], Any]
_GIVEN: dict[str, Act] = {}  # what `evaluate` of this process was given, by the name in its table


class FunctionPlayer:
    """A function of one observation as a player."""

    learned = True

    def __init__(self, name: str, act: Act) -> None:
        self.name, self._act = name, act

    def act(self, envs: Sequence[gym.Env], observations: Sequence[Mapping[str, np.ndarray]]) -> list[Any]:
        """One action for each environment.

        Raises:
            UserError: an action that its environment does not have, or that is not legal.
        """
        return [self._checked(env, observation, self._act(observation))
                for env, observation in zip(envs, observations, strict=True)]

    def _checked(self, env: gym.Env, observation: Mapping[str, np.ndarray], action: Any) -> Any:
        space = env.action_space
        if isinstance(space, gym.spaces.Discrete):
            number = int(action) if np.ndim(action) == 0 or np.size(action) == 1 else -1
            if not space.contains(number) or not observation["action_mask"][number]:
                legal = np.flatnonzero(observation["action_mask"]).tolist()
                raise UserError(f"'{self.name}' answers {action!r}, which is not legal here; expected one of {legal}, "
                                "where observation['action_mask'] is 1")
            return number
        value = np.asarray(action, space.dtype)
        if not space.contains(value):
            raise UserError(f"'{self.name}' answers {action!r}; expected an action of {space}")
        return value


def function_of(name: str) -> Act | None:
    """The function that a player's name stands for: `my.py:act`, or one given to `evaluate`; None: it is another thing.

    Raises:
        UserError: the file cannot be imported.
    """
    if name in _GIVEN:
        return _GIVEN[name]
    path, _, wanted = name.partition(":")
    if not path.endswith(".py") or not wanted or "=" in wanted or not os.path.isfile(path):
        return None
    found = getattr(module_of_file(path), wanted, None)
    return found if callable(found) and not isinstance(found, Policy) else None


def evaluate(act: Act, env: Any, split: str = "test", episodes: int | None = None,
             beside: Sequence[str] = ("partner",), name: str = "mine", **more: Any) -> dict[str, Any]:
    """Plays a function on held-out windows beside heuristics, as `ooco-gym evaluate` does: paired, with intervals.

    Args:
        act: takes an observation of the environment, returns an action.
        env: a name of `conf/env` (`gating`), a Gymnasium id, an environment that `gymnasium.make` made, or a mapping
            with `id`, `splits` and arguments.
        split: `test`, `validation` or `train`; or give `seeds`.
        episodes: windows, spread over the split's seeds; None: two of each seed.
        beside: heuristics, run folders and exports that play the same windows.
        name: of the function, in the table.
        **more: other keys of the command: `seeds`, `window_s`, `warmup_s`, `shift`, `bound`, `out`.

    Returns:
        The summary of `ooco-gym evaluate`: `results`, `policies`, `paired`, and more (docs/evaluation.md).

    Raises:
        UserError: as the command; an illegal action.
    """
    from agents.evaluation.evaluate import main

    config = _config_of(env)
    seeds = more.pop("seeds", None) or split_seeds(config, split)
    if name in beside:
        raise UserError(f"evaluate(name={name!r}): another policy has this name; choose another")
    _GIVEN[name] = act
    try:
        with tempfile.TemporaryDirectory() as folder:
            return main({"env": config, "policies": [name, *beside], "seeds": seeds, "workers": 1,
                         "episodes": 2 * len(seeds) if episodes is None else episodes, "out": folder, **more})
    finally:
        del _GIVEN[name]


def _config_of(env: Any) -> dict[str, Any]:
    if isinstance(env, Mapping):
        return dict(env)
    arguments: dict[str, Any] = {}
    if isinstance(env, gym.Env):
        if env.spec is None:
            raise UserError("evaluate: the environment has no spec; expected one of gymnasium.make, a name or a "
                            "mapping with id and splits")
        env, arguments = env.spec.id, dict(env.spec.kwargs)
    arguments.pop("render_mode", None)
    for known in names("env"):
        config = load_yaml("env", known)
        if env in (known, config["id"]):
            return {**config, **arguments}
    raise unknown("environment", env, [*names("env"), *(load_yaml("env", one)["id"] for one in names("env"))])
