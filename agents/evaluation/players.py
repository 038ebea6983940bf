"""Players: what takes an environment's decisions, and how one runs on windows.

The protocol `Player` has three classes. `Heuristic` (`agents.evaluation.heuristics`) reads the
environment itself. `BatchPlayer` decides for a batch of observations, as networks do.
`FunctionPlayer` calls a user's function. `load_learned` reads a learned policy: a run of `ooco-gym
train`, or an export.

Several windows advance side by side so that one call of a network decides for all. The chunks of
windows have a fixed size, so that results do not depend on the number of worker processes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from agents.environments import (
    OBSERVATION_KEYS,
    Window,
    decision_names,
    levels_of,
    make_env,
    observed_shapes,
    vector_env,
)
from agents.evaluation.scoring import METRICS
from agents.policies.runs import CONFIG_FILE, POLICY_FILE, SUMMARY_FILE, load_run
from ooco_gym.cli.sweep import Sweep
from ooco_gym.documents import read_mapping
from ooco_gym.envs import is_ours
from ooco_gym.envs.features import BASE_ACTION
from ooco_gym.errors import UserError, finite
from ooco_gym.own_code import module_of_file
from ooco_gym.policy import Policy as RulePolicy
from ooco_gym.runtime import MANIFEST_FILE, Policy

SEEDS = "seed_*"  # folders of the training runs of one group
Observations = Sequence[Mapping[str, np.ndarray]]
Act = Callable[[Mapping[str, np.ndarray]], Any]  # a user's function of the observation of one open decision
_GIVEN: dict[str, Act] = {}  # functions given to `evaluate` in this process, by name


class Player(Protocol):
    """Takes decisions; `name` is its label in tables, `learned` tells policies from rules."""

    name: str
    learned: bool

    def act(self, envs: Sequence[gym.Env], observations: Observations) -> Sequence[Any]:
        """Returns one action for each environment, given the observation of the same index."""
        ...


class BatchPlayer:
    """A learned policy: `decide(cluster, candidates, action_mask, decision) -> actions` over a
    batch."""

    learned = True

    def __init__(self, name: str, decide: Callable[..., np.ndarray]) -> None:
        self.name, self._decide = name, decide

    def act(self, envs: Sequence[gym.Env], observations: Observations) -> Sequence[Any]:
        """Stacks the observations and decides for all of them at once."""
        parts = []
        for key in OBSERVATION_KEYS:
            parts.append(np.stack([observation[key] for observation in observations]))
        return self._decide(*parts).tolist()

    def answers(self, *parts: np.ndarray) -> np.ndarray:
        """Decides for a batch of observations, given as the arrays of `OBSERVATION_KEYS`."""
        return np.asarray(self._decide(*parts))


class FunctionPlayer:
    """A function of one observation as a player."""

    learned = True

    def __init__(self, name: str, act: Act) -> None:
        self.name, self._act = name, act

    def act(self, envs: Sequence[gym.Env], observations: Observations) -> list[Any]:
        """Returns one action for each environment.

        Raises:
            UserError: the environment has no such action, or it is not legal.
        """
        return [self._checked(env, observation["action_mask"], self._act(observation))
                for env, observation in zip(envs, observations, strict=True)]

    def _checked(self, env: gym.Env, mask: np.ndarray, action: Any) -> Any:
        space = env.action_space
        if isinstance(space, spaces.Discrete):
            number = int(finite(f"the action of '{self.name}'", action))
            always = number == BASE_ACTION and bool(decision_names(env))
            if not 0 <= number < space.n or not (mask[number] or always):
                raise UserError(f"'{self.name}' returns {action!r}, an illegal action; expected one of "
                                f"{np.flatnonzero(mask).tolist()}, where observation['action_mask'] is 1")
            return number
        try:
            value = np.asarray(action, space.dtype)
        except (TypeError, ValueError, OverflowError):
            value = None
        if not space.contains(value):
            raise UserError(f"'{self.name}' returns {action!r}; expected an action of {space}")
        return value


def function_of(name: str) -> Act | None:
    """Returns the function that a player's name stands for: `my.py:act`, or one given to
    `evaluate`; None if it is no function. Worker processes find it by path and name.

    Raises:
        UserError: the file cannot be imported.
    """
    if name in _GIVEN:
        return _GIVEN[name]
    path, _, wanted = name.partition(":")
    if not path.endswith(".py") or not wanted or "=" in wanted or not os.path.isfile(path):
        return None
    found = getattr(module_of_file(path), wanted, None)
    return found if callable(found) and not isinstance(found, RulePolicy) else None


@contextmanager
def given(name: str, act: Act) -> Iterator[None]:
    """Makes `function_of` know a function by this name."""
    _GIVEN[name] = act
    try:
        yield
    finally:
        del _GIVEN[name]


# --- Playing windows ------------------------------------------------------------------------------------------------
def play(config: Mapping[str, Any], player: Player, windows: Sequence[Window], side_by_side: int = 8,
         envs: list[Any] | None = None, told: Callable[[int, int], None] | None = None) -> list[dict[str, Any]]:
    """Runs `player` on `windows` and returns one record a window, in the order given.

    A `BatchPlayer` steps environments of this package in one compiled call.

    Args:
        side_by_side: number of windows that advance together.
        envs: environments of the same `config` to use again; the first call fills the list.
        told: is called with the number of finished windows and of all, at the beginning and after
            each.

    Returns:
        Records with `seed`, `window`, `decisions`, `reward` and the environment's own `summary`.
    """
    pool, told = (envs if envs is not None else []), told or (lambda done, of: None)
    count = min(side_by_side, len(windows))
    told(0, len(windows))
    try:
        if type(player) is BatchPlayer and is_ours(config.get("id")):
            if not pool:
                pool.append(vector_env(config, count, autoreset_mode=AutoresetMode.DISABLED.value, idle=True))
            return _play_natively(pool[0], player, windows, told)
        return _play_one_by_one(config, player, windows, count, pool, told)
    finally:
        if envs is None:
            close_all(pool)


def close_all(envs: list[Any]) -> None:
    """Closes environments and empties the list."""
    while envs:
        envs.pop().close()


def _play_natively(envs: Any, player: BatchPlayer, windows: Sequence[Window], told: Callable[[int, int], None]
                   ) -> list[dict[str, Any]]:
    """Steps all places of a native vector environment at once; a place whose window is over takes
    the next one."""
    count = envs.num_envs
    waiting = list(range(count, len(windows)))[::-1]
    index = np.arange(count)
    records: dict[int, dict[str, Any]] = {}
    observation, _ = envs.reset(seed=[one.seed for one in windows[:count]],
                                options={"window": [one.number for one in windows[:count]]})
    rewards, decisions, playing = np.zeros(count), np.zeros(count, int), np.ones(count, bool)
    while playing.any():
        actions = player.answers(*(observation[key] for key in OBSERVATION_KEYS))
        observation, reward, terminated, truncated, infos = envs.step(actions)
        over = terminated | truncated
        rewards += reward
        decisions += playing
        if not over.any():
            continue
        for i in np.flatnonzero(over):
            window = windows[index[i]]
            summary = {key: float(values[i]) for key, values in infos["summary"].items() if not key.startswith("_")}
            records[int(index[i])] = {"seed": window.seed, "window": window.number, "decisions": int(decisions[i]),
                                      "reward": float(rewards[i]), "summary": summary}
            told(len(records), len(windows))
        playing &= ~over
        again = np.flatnonzero(over)[: len(waiting)]
        if len(again):
            index[again] = [waiting.pop() for _ in again]
            rewards[again], decisions[again], playing[again] = 0.0, 0, True
            chosen = [windows[i] for i in index]
            observation, _ = envs.reset(seed=[one.seed for one in chosen], options={
                "window": [one.number for one in chosen], "reset_mask": np.isin(np.arange(count), again)})
    return [records[i] for i in range(len(windows))]


def _play_one_by_one(config: Mapping[str, Any], player: Player, windows: Sequence[Window], side_by_side: int,
                     pool: list[Any], told: Callable[[int, int], None]) -> list[dict[str, Any]]:
    while len(pool) < side_by_side:
        pool.append(make_env(config))
    records: dict[int, dict[str, Any]] = {}
    waiting = list(enumerate(windows))[::-1]
    active: list[_Episode] = []
    free = pool[:side_by_side]
    while waiting or active:
        while waiting and free:
            index, window = waiting.pop()
            active.append(_Episode(free.pop(), index, window))
        actions = player.act([episode.env for episode in active], [episode.observation for episode in active])
        for episode, action in zip(active, actions, strict=True):
            if episode.step(action):
                records[episode.index] = episode.record()
                told(len(records), len(windows))
                free.append(episode.env)
        active = [episode for episode in active if not episode.done]
    return [records[index] for index in range(len(windows))]


class _Episode:
    """One window under way in one environment."""

    def __init__(self, env: gym.Env, index: int, window: Window) -> None:
        self.env, self.index, self.window = env, index, window
        self.observation, _ = env.reset(seed=window.seed, options={"window": window.number})
        drawn = np.random.SeedSequence([abs(window.seed), window.number]).generate_state(1)  # seeds random actions
        env.action_space.seed(int(drawn[0]))
        self.reward, self.decisions, self.done = 0.0, 0, False
        self.summary: Mapping[str, Any] = {}

    def step(self, action: Any) -> bool:
        """Takes one action; returns True at the end of the episode."""
        self.observation, reward, terminated, truncated, info = self.env.step(action)
        self.reward += finite("the environment's reward", reward)
        self.decisions += 1
        self.done = bool(terminated or truncated)
        if self.done:
            if "summary" not in info:
                raise UserError("the environment gives no 'summary' in its last info, so it cannot be evaluated")
            self.summary = info["summary"]
            if missing := [key for key, _ in METRICS.values() if key and key not in self.summary]:
                raise UserError(f"the environment's 'summary' lacks {', '.join(missing)}, which comparisons of "
                                "policies need")
        return self.done

    def record(self) -> dict[str, Any]:
        """The metrics of the finished episode."""
        summary = {key: float(value) for key, value in self.summary.items()
                   if isinstance(value, (int, float, np.number))}
        return {"seed": self.window.seed, "window": self.window.number, "decisions": self.decisions,
                "reward": self.reward, "summary": summary}


# --- Learned policies -----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class LearnedPolicy:
    """A learned policy, from a run or an export.

    Attributes:
        decide: (cluster, candidates, action_mask, decision), batched, candidates as tables or flat
            → actions (batch,) or (batch, P).
        shapes: shapes of one observation of its environment, candidates as (K, F).
        decisions: names of the decisions that it was trained on.
        env: the `env` configuration that it was trained on, if its folder has it.
    """

    decide: Callable[..., np.ndarray]
    shapes: dict[str, tuple[int, ...]]
    decisions: tuple[str, ...]
    env: dict[str, Any] = field(default_factory=dict)


@lru_cache(maxsize=16)
def load_learned(folder: str) -> LearnedPolicy:
    """Loads a run, or an exported policy (which needs only onnxruntime).

    Raises:
        UserError: the folder is neither.
    """
    if (Path(folder) / MANIFEST_FILE).is_file():
        policy = Policy.load(folder)
        if policy.kind != "candidates":
            raise UserError(f"'{folder}' sets parameters of the rule '{policy.rule}' and takes no actions in an "
                            "environment; simulate that policy with it")
        inputs = policy.manifest["inputs"]
        return LearnedPolicy(
            policy.decide_unchecked, {key: tuple(inputs[key]["shape"]) for key in OBSERVATION_KEYS},
            tuple(policy.decisions), environment_of(folder))
    run = load_run(folder)
    shapes = observed_shapes(run.space, run.actor.levels)
    return LearnedPolicy(run.decide_batch, shapes, run.decisions, dict(run.config["env"]))


def check_fit(label: str, folder: str, env: Any) -> None:
    """Refuses a learned policy that was trained on other observations, actions or decisions.

    Raises:
        UserError: the policy does not fit, or the folder has none.
    """
    policy = load_learned(os.fspath(folder))
    unknown = [name for name in decision_names(env) if name not in policy.decisions]
    if unknown and policy.decisions:  # a run of another package's environment names none
        raise UserError(f"policy '{label}' was not trained to {' or '.join(unknown)}, only to "
                        f"{', '.join(policy.decisions)}; evaluate it on the environment it was trained on")
    space: Any = env.observation_space
    ours = isinstance(space, spaces.Dict) and set(OBSERVATION_KEYS) <= set(space)
    expected = observed_shapes(space, levels_of(env.action_space)) if ours else space
    if policy.shapes != expected:
        raise UserError(f"policy '{label}' was trained on observations {policy.shapes}, but the environment gives "
                        f"{expected}; evaluate it on the environment it was trained on")


# --- Their folders --------------------------------------------------------------------------------------------------
def runs_of(folder: str | Path) -> dict[str, str]:
    """Maps run names to folders: the `seed_*` runs in `folder`, sorted by number; if `folder` is
    itself a run, or has none, just `folder`."""
    path = Path(folder)
    found = [one for one in path.glob(SEEDS) if is_policy(one)]
    if is_policy(path) or not found:
        return {path.name: str(path)}
    return {one.name: str(one) for one in sorted(found, key=lambda one: (len(one.name), one.name))}


def groups_of(folder: str | Path) -> dict[str, dict[str, str]]:
    """Maps labels to policies (run name → folder) of a training sweep's folder.

    Points that differ only in the seed are runs of one policy.

    Raises:
        UserError: the sweep is of another command, no point has ended well, or its table is
            damaged.
    """
    sweep = Sweep.read(folder)
    if sweep.about["command"] != "train":
        raise UserError(f"'{folder}' is a sweep of '{sweep.about['command']}'; evaluate accepts sweeps of 'ooco-gym "
                        "train -m …'")
    points, seeds = sweep.columns["point"], sweep.columns["seed"]
    found = {}
    for setting, rows in sweep.groups():
        label = ",".join(f"{key}={value}" for key, value in setting.items()) or Path(folder).name
        found[label] = {f"seed_{seeds[row]}": str(Path(folder, points[row])) for row in rows}
    if not found:
        raise UserError(f"no point of the sweep '{folder}' has succeeded; start it again, which repeats failed points")
    return found


def is_policy(folder: Path) -> bool:
    """Whether a folder holds one policy: a run, or an export."""
    return any((folder / name).is_file() for name in (POLICY_FILE, MANIFEST_FILE))


def environment_of(folder: str | Path) -> dict[str, Any]:
    """The `env` configuration that a policy was trained with; empty if its folder has none."""
    return _part(_training_of(folder)[0], "env")


def start_of(folder: str | Path) -> str | None:
    """Describes the teacher or the untrained network that a policy still equals; None if it has
    learned something."""
    config, timesteps = _training_of(folder)
    imitated = _part(_part(config, "agent"), "imitate").get("rule")
    return None if timesteps != 0 else f"a copy of {imitated}" if imitated else "an untrained network"


def _training_of(folder: str | Path) -> tuple[dict[str, Any], int | None]:
    """The configuration of a policy's training, and the decisions after which it was saved (None:
    unknown)."""
    manifest, *files = (Path(folder) / name for name in (MANIFEST_FILE, CONFIG_FILE, SUMMARY_FILE))
    if manifest.is_file():
        training = _part(read_mapping(manifest), "training")
        return _part(training, "config"), training.get("timesteps")
    config, summary = (read_mapping(path) if path.is_file() else {} for path in files)
    return config, _part(summary, "best").get("timesteps")


def _part(whole: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The mapping at a key of a file's content; empty if there is none."""
    value = whole.get(key)
    return value if isinstance(value, dict) else {}
