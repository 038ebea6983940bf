"""Players: what takes an environment's decisions, and how one runs on windows.

The protocol `Player` has three classes. `Heuristic` (`agents.evaluation.heuristics`) reads the environment itself.
`BatchPlayer` decides for a batch of observations, as networks do. `FunctionPlayer` calls a user's function.
`load_learned` reads a learned policy: a run of `ooco-gym train`, or an export.

Several windows advance side by side so that one call of a network decides for all. The chunks of windows have a fixed
size, so that results do not depend on the number of worker processes.
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

from agents.environments import OBSERVATION_KEYS, Window, decision_names, levels_of, make_env, observed_shapes
from agents.evaluation.scoring import METRICS
from agents.policies.linear import LINEAR_FILE
from agents.policies.runs import CONFIG_FILE, POLICY_FILE, SUMMARY_FILE, load_linear_run, load_run
from ooco_gym.cli.sweep import Sweep
from ooco_gym.documents import read_mapping
from ooco_gym.envs import is_ours
from ooco_gym.envs.features import BASE_ACTION
from ooco_gym.errors import UserError
from ooco_gym.own_code import module_of_file
from ooco_gym.policy import Policy as RulePolicy
from ooco_gym.runtime import MANIFEST_FILE, Policy
from ooco_gym.schema import number

Observations = Sequence[Mapping[str, np.ndarray]]
Act = Callable[[Mapping[str, np.ndarray]], Any]  # a user's function of the observation of one open decision
_GIVEN: dict[str, Act] = {}  # functions given to `evaluate` in this process, by name


class Player(Protocol):
    """Takes decisions."""

    def act(self, envs: Sequence[gym.Env], observations: Observations) -> Sequence[Any]:
        """Returns one action for each environment, given the observation of the same index."""
        ...


class BatchPlayer:
    """A learned policy: `decide(cluster, candidates, action_mask, decision) -> actions` over a batch."""

    def __init__(self, decide: Callable[..., np.ndarray]) -> None:
        self.decide = decide

    def act(self, envs: Sequence[gym.Env], observations: Observations) -> Sequence[Any]:
        """Stacks the observations and decides for all of them at once."""
        stacked = []
        for key in OBSERVATION_KEYS:
            stacked.append(np.stack([observation[key] for observation in observations]))
        return self.decide(*stacked).tolist()


class FunctionPlayer:
    """A function of one observation as a player."""

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
            chosen = int(number(f"the action of '{self.name}'", action))
            always = chosen == BASE_ACTION and bool(decision_names(env))
            if not 0 <= chosen < space.n or not (mask[chosen] or always):
                raise UserError(f"'{self.name}' returns {action!r}, an illegal action; expected one of "
                                f"{np.flatnonzero(mask).tolist()}, where observation['action_mask'] is 1")
            return chosen
        try:
            value = np.asarray(action, space.dtype)
        except (TypeError, ValueError, OverflowError):
            value = None
        if not space.contains(value):
            raise UserError(f"'{self.name}' returns {action!r}; expected an action of {space}")
        return value


def function_of(name: str) -> Act | None:
    """Returns the function that a player's name stands for: `my.py:act`, or one given to `evaluate`; None if it is no
    function. Worker processes find it by path and name.

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
         envs: list[Any] | None = None, told: Callable[[int, int], None] = lambda done, of: None
         ) -> list[dict[str, Any]]:
    """Runs `player` on `windows` and returns one record a window, in the order given: `seed`, `window`, `decisions`,
    `reward` and the environment's own `summary`. A `BatchPlayer` steps environments of this package in one compiled
    call.

    Args:
        side_by_side: number of windows that advance together.
        envs: environments of the same `config` to use again; the first call fills the list.
        told: is called with the number of finished windows and of all, at the beginning and after each.
    """
    pool, count = (envs if envs is not None else []), min(side_by_side, len(windows))
    natively = type(player) is BatchPlayer and is_ours(config.get("id"))
    told(0, len(windows))
    try:
        if natively and not pool:
            pool.append(make_env(config, count, autoreset_mode=AutoresetMode.DISABLED.value, idle=True))
        while not natively and len(pool) < count:
            pool.append(make_env(config))
        records: dict[int, dict[str, Any]] = {}
        for index, *found in _played_natively(pool[0], player, windows) if natively else (
                _played_by_one(pool[:count], player, windows)):
            records[index] = _record(windows[index], *found)
            told(len(records), len(windows))
        return [records[index] for index in range(len(windows))]
    finally:
        if envs is None:
            close_all(pool)


def close_all(envs: list[Any]) -> None:
    """Closes environments and empties the list."""
    while envs:
        envs.pop().close()


def _record(window: Window, decisions: int, reward: float, summary: Mapping[str, Any] | None) -> dict[str, Any]:
    """The record of a finished episode.

    Raises:
        UserError: the environment's last info lacks what comparisons need.
    """
    if summary is None:
        raise UserError("the environment gives no 'summary' in its last info, so it cannot be evaluated")
    if missing := [key for key, _ in METRICS.values() if key and key not in summary]:
        raise UserError(f"the environment's 'summary' lacks {', '.join(missing)}, which comparisons of policies need")
    return {"seed": window.seed, "window": window.number, "decisions": decisions, "reward": reward, "summary": {
        key: float(value) for key, value in summary.items() if isinstance(value, (int, float, np.number))}}


Finished = tuple[Any, ...]  # a window's index, decisions, reward, summary


def _played_natively(envs: Any, player: Any, windows: Sequence[Window]) -> Iterator[Finished]:
    """Steps all places of a native vector environment at once; a place whose window is over takes the next one."""
    count = envs.num_envs
    waiting = list(range(count, len(windows)))[::-1]
    index = np.arange(count)
    observation, _ = envs.reset(seed=[window.seed for window in windows[:count]],
                                options={"window": [window.number for window in windows[:count]]})
    rewards, decisions, playing = np.zeros(count), np.zeros(count, int), np.ones(count, bool)
    while playing.any():
        actions = np.asarray(player.decide(*(observation[key] for key in OBSERVATION_KEYS)))
        observation, reward, terminated, truncated, infos = envs.step(actions)
        over = terminated | truncated
        rewards += reward
        decisions += playing
        if not over.any():
            continue
        for i in np.flatnonzero(over):
            summary = {key: values[i] for key, values in infos["summary"].items() if not key.startswith("_")}
            yield int(index[i]), int(decisions[i]), float(rewards[i]), summary
        playing &= ~over
        again = np.flatnonzero(over)[: len(waiting)]
        if len(again):
            index[again] = [waiting.pop() for _ in again]
            rewards[again], decisions[again], playing[again] = 0.0, 0, True
            chosen = [windows[i] for i in index]
            observation, _ = envs.reset(seed=[one.seed for one in chosen], options={
                "window": [one.number for one in chosen], "reset_mask": np.isin(np.arange(count), again)})


def _played_by_one(free: list[Any], player: Player, windows: Sequence[Window]) -> Iterator[Finished]:
    """Steps each environment by itself; a player acts in all that are under way."""
    waiting, active = list(enumerate(windows))[::-1], list[_Episode]()
    while waiting or active:
        while waiting and free:
            active.append(_Episode(free.pop(), *waiting.pop()))
        actions = player.act([one.env for one in active], [one.observation for one in active])
        for episode, action in zip(active, actions, strict=True):
            if episode.step(action):
                yield episode.index, episode.decisions, episode.reward, episode.info.get("summary")
                free.append(episode.env)
        active = [one for one in active if one.env not in free]


class _Episode:
    """One window under way in one environment."""

    def __init__(self, env: gym.Env, index: int, window: Window) -> None:
        self.env, self.index, self.reward, self.decisions = env, index, 0.0, 0
        self.observation, self.info = env.reset(seed=window.seed, options={"window": window.number})
        drawn = np.random.SeedSequence([abs(window.seed), window.number]).generate_state(1)  # seeds random actions
        env.action_space.seed(int(drawn[0]))

    def step(self, action: Any) -> bool:
        """Takes one action; returns True at the end of the episode."""
        self.observation, reward, terminated, truncated, self.info = self.env.step(action)
        self.reward += number("the environment's reward", reward)
        self.decisions += 1
        return bool(terminated or truncated)


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
        shapes = {key: tuple(policy.manifest["inputs"][key]["shape"]) for key in OBSERVATION_KEYS}
        return LearnedPolicy(policy.decide_unchecked, shapes, tuple(policy.decisions), environment_of(folder))
    if (Path(folder) / LINEAR_FILE).is_file():
        scorer, decisions, config = load_linear_run(folder)
        return LearnedPolicy(scorer.decide, scorer.shapes, decisions, dict(config["env"]))
    run = load_run(folder)
    return LearnedPolicy(run.decide_batch, observed_shapes(run.space, run.actor.levels), run.decisions,
                         dict(run.config["env"]))


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
    """Maps run names to folders: the `seed_*` runs in `folder`, sorted by number; if `folder` is itself a run, or has
    none, just `folder`."""
    path = Path(folder)
    found = sorted(filter(_is_policy, path.glob("seed_*")), key=lambda one: (len(one.name), one.name))
    return {one.name: str(one) for one in ([path] if _is_policy(path) or not found else found)}


def groups_of(folder: str | Path) -> dict[str, dict[str, str]]:
    """Maps labels to policies (run name → folder) of a training sweep's folder; points that differ only in the seed are
    runs of one policy.

    Raises:
        UserError: the sweep is of another command, no point has ended well, or its table is damaged.
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


def _is_policy(folder: Path) -> bool:
    """Whether a folder holds one policy: a run, or an export."""
    return any((folder / name).is_file() for name in (POLICY_FILE, MANIFEST_FILE, LINEAR_FILE))


def environment_of(folder: str | Path) -> dict[str, Any]:
    """The `env` configuration that a policy was trained with; empty if its folder has none."""
    return _part(_training_of(folder)[0], "env")


def start_of(folder: str | Path) -> str | None:
    """Describes the teacher or the untrained network that a policy still equals; None if it has learned something."""
    config, timesteps = _training_of(folder)
    imitated = _part(_part(config, "agent"), "imitate").get("rule")
    return None if timesteps != 0 else f"a copy of {imitated}" if imitated else "an untrained network"


def _training_of(folder: str | Path) -> tuple[dict[str, Any], int | None]:
    """The configuration of a policy's training, and the decisions after which it was saved (None: unknown)."""
    paths = [Path(folder) / name for name in (MANIFEST_FILE, CONFIG_FILE, SUMMARY_FILE)]
    manifest, config, summary = (read_mapping(path) if path.is_file() else {} for path in paths)
    if manifest:
        training = _part(manifest, "training")
        return _part(training, "config"), training.get("timesteps")
    return config, _part(summary, "best").get("timesteps")


def _part(whole: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The mapping at a key of a file's content; empty if there is none."""
    value = whole.get(key)
    return value if isinstance(value, dict) else {}
