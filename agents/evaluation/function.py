"""Functions as players: what was learned elsewhere enters the paired table, from Python or by `my.py:act`.

A function takes the observation of one open decision, as the environment gives it (legality is in `action_mask`), and
returns the action. One from a file is found by its path and name, so that worker processes find it too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.policy import Policy
from ooco_gym.policy.registry import module_of_file

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


def of_vectors(act: Callable[[Any], Any]) -> Act:
    """A function of an observation as one vector, as environments with `flat=True` give it, as one of its parts."""
    return lambda observation: act(np.concatenate([observation[key] for key in sorted(observation)]))


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


@contextmanager
def given(name: str, act: Act) -> Iterator[None]:
    """Within it, `function_of` knows the function by this name."""
    _GIVEN[name] = act
    try:
        yield
    finally:
        del _GIVEN[name]
