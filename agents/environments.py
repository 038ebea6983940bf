"""Builds environments from the `env` part of a configuration, and lists the windows of a split.

An `env` configuration is a mapping: `id` (Gymnasium's), `splits` (train, validation, test: lists of seeds), and keyword
arguments of the environment. A window is one episode, given by a seed of a split and the window's index within it.
"""

from __future__ import annotations

import multiprocessing
import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from agents.settings import group
from ooco_gym.envs import ENVIRONMENTS, imported, is_ours
from ooco_gym.envs.base import DecisionEnv
from ooco_gym.envs.config import CONDITION, LOADS, NOT_ARGUMENTS
from ooco_gym.envs.features import candidate_table
from ooco_gym.envs.vector import WINDOWS
from ooco_gym.errors import UserError, unknown
from ooco_gym.policy import policy_of
from ooco_gym.report import show_notes
from ooco_gym.run_notes import say_played
from ooco_gym.scenario import Scenario
from ooco_gym.schema import is_whole, number, plain

SPLITS = ("train", "validation", "test")
OBSERVATION_KEYS = ("cluster", "candidates", "action_mask", "decision")  # in the order in which networks take them
_SAID: set[str] = set()  # scenarios whose load was printed
_UNKNOWN_ARGUMENT = re.compile(r"unexpected keyword argument '(\w+)'")


class Window(NamedTuple):
    """One episode, the same for every policy: `env.reset(seed=seed, options={"window": number})`."""

    seed: int
    number: int


def make_env(config: Mapping[str, Any], count: int | None = None, **more: Any) -> Any:
    """Makes one environment of an `env` configuration, without Gymnasium's passive checker (tests run it), or `count`
    of this package that step in one compiled call. `more` are constructor arguments that no configuration has."""
    spec = plain(config)
    if not spec.get("id"):
        raise UserError("env.id is missing: expected a Gymnasium id, such as ooco_gym/PrefillGate-v1")
    arguments = {key: value for key, value in spec.items() if key not in NOT_ARGUMENTS}
    if arguments.get("flat"):
        raise UserError("env.flat=true: commands need the parts of an observation; leave it out: it is for your own "
                        "learners (docs/own_agents.md)")
    make: Any = partial(gym.make, disable_env_checker=True) if count is None else partial(
        gym.make_vec, num_envs=count, vectorization_mode="vector_entry_point")
    try:
        with warnings.catch_warnings():  # a configuration names its version
            warnings.filterwarnings("ignore", ".* is out of date", DeprecationWarning)
            made = make(imported(str(spec["id"])), **more, **arguments)
        _say_load(getattr(made.unwrapped, "config", None))
        return made
    except gym.error.Error as error:
        raise unknown("environment", spec["id"], ENVIRONMENTS) from error
    except TypeError as error:
        name = _UNKNOWN_ARGUMENT.search(str(error))
        if name is None:
            raise
        raise UserError(f"the environment '{spec['id']}' takes no argument '{name[1]}'; your own env (env=mine.yaml) "
                        "takes its class's arguments, id and splits") from error
    except ModuleNotFoundError as error:
        raise UserError(f"the environment '{spec['id']}' cannot be made: no package named '{error.name}'") from error


def _say_load(config: Any) -> None:
    """Prints which load the configuration leaves open, and the part of a trace file that windows are drawn from; once
    in a process, and never in workers."""
    scenario = getattr(config, "scenario", None)
    if not isinstance(scenario, Scenario) or multiprocessing.parent_process() is not None:
        return
    key = repr((scenario.workload, scenario.cluster, scenario.rate_scale))
    if key in _SAID:
        return
    _SAID.add(key)
    drawn = {*LOADS, CONDITION} & set(config.vary)
    if scenario.rate_scale is None and scenario.online_rate is None and not (scenario.from_file or drawn):
        show_notes([f"the online load is the stored peak of this workload and cluster, rate_scale="
                    f"{scenario.online_scale():g}; env.scenario.rate_scale=… sets another."])
    if scenario.from_file:
        say_played(scenario.with_(start_s=None, duration_s=None))
        show_notes(["the windows of all splits are drawn from this one trace, so none is held out: 'ooco-gym workload "
                    "make FILE start_s=… duration_s=… to=…' cuts out a part to train on."])


def levels_of(actions: Any) -> tuple[int, ...]:
    """Returns the number of levels of each part of an action; () if the action space is Discrete."""
    return tuple(int(count) for count in getattr(actions, "nvec", ()))


def observed_shapes(space: Any, levels: Sequence[int] = ()) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the parts of an observation of `space`; `candidates` as a table (K, F), which other
    packages' environments may give flat. `levels`: of each part of an action (`levels_of`)."""
    shapes = {key: tuple(space[key].shape or ()) for key in OBSERVATION_KEYS}
    if len(shapes["candidates"]) != 2:
        observation = {key: np.empty(shape) for key, shape in shapes.items()}
        shapes["candidates"] = candidate_table(observation, len(levels) or None).shape
    return shapes


def check_ours(config: Mapping[str, Any], purpose: str) -> None:
    """Refuses an environment that this package does not simulate; `purpose` names what needs it."""
    with closing(make_env(config)) as env:
        if not isinstance(env.unwrapped, DecisionEnv):
            raise UserError(f"{purpose} is for environments that ooco_gym simulates, not for '{config.get('id')}'; "
                            "expected such as ooco_gym/PrefillGate-v1")


def decision_names(env: Any) -> tuple[str, ...]:
    """The names of the decisions of `env`; () for other packages' environments."""
    return getattr(env.unwrapped, "decision_names", ())


def is_base_policy(policy: str, env: Any) -> bool:
    """Whether a policy has the name and parameters of the base policy of `env`."""
    base_policy = getattr(getattr(env.unwrapped, "config", None), "base_policy", None)
    if base_policy is None or isinstance(base_policy, str):
        return policy == base_policy
    mine, other = policy_of(policy), policy_of(base_policy)
    return (mine.name, mine.values) == (other.name, other.values)


def env_of(config: Mapping[str, Any], purpose: str = "") -> dict[str, Any]:
    """The `env` of a command's configuration, with the command's own `window_s` and `warmup_s`; `purpose` as for
    `check_ours`, where it is needed."""
    lengths = {key: number(key, config[key], 0) for key in ("window_s", "warmup_s") if config.get(key) is not None}
    env = {**group(config, "env"), **lengths}
    if purpose:
        check_ours(env, purpose)
    return env


def split_seeds(config: Mapping[str, Any], split: str) -> list[int]:
    """The seeds of a split."""
    splits = plain(config).get("splits") or {}
    if split not in splits:
        raise unknown("split", split, splits) if splits else UserError(
            f"env.splits.{split} is missing: expected a list of seeds")
    if not isinstance(splits[split], Sequence) or not all(map(is_whole, splits[split])):
        raise UserError(f"env.splits.{split}={splits[split]} must be a list of seeds, whole numbers")
    if not splits[split]:
        raise UserError(f"env.splits.{split} is empty; expected at least one seed")
    return [int(seed) for seed in splits[split]]


def with_length(config: Mapping[str, Any], window_s: float | None) -> dict[str, Any]:
    """Returns an `env` configuration with episodes of `window_s` seconds; None keeps its own length. An environment of
    another package changes only if its configuration names `window_s`: it may take no such argument."""
    mine: dict[str, Any] = plain(config)
    if window_s is not None and ("window_s" in mine or is_ours(mine.get("id"))):
        mine["window_s"] = window_s
    return mine


def windows(seeds: Sequence[int], count: int) -> list[Window]:
    """Spreads `count` windows over `seeds`: window 0 of every seed, then window 1 of every seed, and so on.

    Raises:
        UserError: there is no seed, or `count` is above the number of seeds and no multiple of it. Intervals resample
            seeds and windows within seeds, which needs equally many windows of each.
    """
    if not seeds or count < 1 or (count > len(seeds) and count % len(seeds)):
        raise UserError(f"cannot spread {count} windows over {len(seeds)} seeds; expected between 1 and {len(seeds)}, "
                        f"or a multiple of {len(seeds)}")
    return [Window(int(seeds[i % len(seeds)]), i // len(seeds)) for i in range(count)]


class SplitEpisodes(gym.Wrapper):
    """Starts a random window of a split's seeds at every reset, from its own random stream.

    A seed given to `reset` is ignored on purpose: vectorised training passes consecutive seeds, which may be held out.
    The number of windows per seed is that of this package's environments.
    """

    def __init__(self, env: gym.Env, seeds: Sequence[int], stream: Sequence[int]) -> None:
        super().__init__(env)
        self._seeds, self._random = list(seeds), np.random.default_rng(list(stream))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts a random window of the split; `seed` and `options` are not used."""
        chosen = self._seeds[int(self._random.integers(len(self._seeds)))]
        return self.env.reset(seed=chosen, options={"window": int(self._random.integers(WINDOWS))})

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Steps the environment, whose reward must be a number."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, number("the environment's reward", reward), terminated, truncated, info

    def action_masks(self) -> np.ndarray:
        """The legality of each action, bool (A,)."""
        return self.env.get_wrapper_attr("action_masks")()


def training_env(config: Mapping[str, Any], count: int, seed: int, window_s: float | None = None) -> VectorEnv:
    """Makes `count` environments over the training split, each with its own stream of windows, which `seed` keys;
    `window_s` as for `with_length`. Those of this package step in one compiled call, others one after the other; both
    reset in the same step."""
    config, seeds = with_length(config, window_s), split_seeds(config, "train")
    if is_ours(config.get("id")):
        return make_env(config, count, autoreset_mode=AutoresetMode.SAME_STEP.value, train_seeds=seeds,
                        train_stream=seed)
    return SyncVectorEnv([lambda index=index: SplitEpisodes(make_env(config), seeds, (seed, index))
                          for index in range(count)], autoreset_mode=AutoresetMode.SAME_STEP)


def random_legal(masks: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Draws a legal action for each row of masks (N, A), all equally likely: (N,)."""
    return np.where(masks > 0, random.random(masks.shape), -1.0).argmax(axis=1)
