"""Plays policies, learned or not, through the same windows of the same environment.

Several windows advance side by side so that a network answers for all of them in one call. A chunk of windows has a
fixed size, whatever the number of worker processes, so that results do not depend on the machine.

Learned policies as `evaluate` and its kin take them: runs of `train`, exported bundles, groups of runs, the zoo.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np
import yaml
from gymnasium import spaces

from agents.environments import OBSERVATION_KEYS, ClusterStack, Window, decision_names, make_env, observed_shapes
from agents.settings import plain
from ooco_gym.errors import UserError

Observations = Sequence[Mapping[str, np.ndarray]]


class Player(Protocol):
    """Anything that answers decisions: `name` in tables, `learned` or a rule."""

    name: str
    learned: bool

    def act(self, envs: Sequence[gym.Env], observations: Observations) -> Sequence[Any]:
        """Returns one action for each environment, which stands at the observation of the same place."""
        ...


def history_seen(decide: Callable[..., Any]) -> int:
    """How many cluster vectors a policy's decision sees in one: what it is a method of says so."""
    return getattr(getattr(decide, "__self__", None), "history", 1)


class BatchPlayer:
    """A learned policy: `decide(cluster, candidates, action_mask, decision) -> actions` over a batch.

    `history` is how many of the last cluster vectors it sees in one; None: as the object says whose method `decide` is.
    """

    learned = True

    def __init__(self, name: str, decide: Callable[..., np.ndarray], history: int | None = None) -> None:
        self.name, self._decide = name, decide
        self.history = history_seen(decide) if history is None else history

    def act(self, envs: Sequence[gym.Env], observations: Observations) -> Sequence[Any]:
        """Stacks the observations and decides for all of them at once."""
        parts = (np.stack([observation[key] for observation in observations]) for key in OBSERVATION_KEYS)
        return self._decide(*parts).tolist()


def play(
    config: Mapping[str, Any],
    player: Player,
    windows: Sequence[Window],
    side_by_side: int = 8,
    envs: list[gym.Env] | None = None,
) -> list[dict[str, Any]]:
    """Plays `windows` with `player` and returns one record a window, in the order given.

    Args:
        config: the `env` configuration.
        player: who decides.
        windows: the episodes.
        side_by_side: how many advance together.
        envs: environments to use again; the list is filled up to `side_by_side`.

    Returns:
        Records with `seed`, `window`, `decisions`, `reward` and the environment's own `summary`.
    """
    pool = envs if envs is not None else []
    while len(pool) < min(side_by_side, len(windows)):
        pool.append(make_env(config))
    records: dict[int, dict[str, Any]] = {}
    waiting = list(enumerate(windows))[::-1]
    active: list[_Episode] = []
    free = pool[: min(side_by_side, len(windows))]
    while waiting or active:
        while waiting and free:
            place, window = waiting.pop()
            active.append(_Episode(free.pop(), place, window, getattr(player, "history", 1)))
        actions = player.act([episode.env for episode in active], [episode.observation for episode in active])
        for episode, action in zip(active, actions, strict=True):
            if episode.step(action):
                records[episode.place] = episode.record()
                free.append(episode.env)
        active = [episode for episode in active if not episode.done]
    if envs is None:
        for env in pool:
            env.close()
    return [records[place] for place in range(len(windows))]


class _Episode:
    """One window under way in one environment."""

    def __init__(self, env: gym.Env, place: int, window: Window, history: int = 1) -> None:
        self.env, self.place, self.window = env, place, window
        self.observation, _ = env.reset(seed=window.seed, options={"window": window.number})
        self._stack = ClusterStack(history) if history > 1 else None
        if self._stack is not None:
            self.observation = self._stack.begin(self.observation)
        self.reward, self.decisions, self.done = 0.0, 0, False
        self.summary: Mapping[str, Any] = {}

    def step(self, action: Any) -> bool:
        """Takes one action; returns True at the end of the episode."""
        self.observation, reward, terminated, truncated, info = self.env.step(action)
        if self._stack is not None:
            self.observation = self._stack.push(self.observation)
        self.reward += float(reward)
        self.decisions += 1
        self.done = bool(terminated or truncated)
        if self.done:
            if "summary" not in info:
                raise UserError("the environment gives no 'summary' in its last info, so it cannot be evaluated")
            self.summary = info["summary"]
        return self.done

    def record(self) -> dict[str, Any]:
        """The figures of the finished episode."""
        summary = {key: value for key, value in self.summary.items() if isinstance(value, (int, float, np.number))}
        return {"seed": self.window.seed, "window": self.window.number, "decisions": self.decisions,
                "reward": self.reward, "summary": {key: float(value) for key, value in summary.items()}}


SEEDS = "seed_*"  # folders of the training runs of one group


class Kept(NamedTuple):
    """A learned policy: its batch decision (a method of what says how much `history` it sees; candidates may come as
    tables or row by row), the shapes of the environment's observations that it was made for (candidates as (K, F)), the
    decisions it was asked."""

    decide: Callable[..., np.ndarray]
    shapes: dict[str, tuple[int, ...]]
    decisions: tuple[str, ...]


def runs_of(folder: str | Path) -> dict[str, str]:
    """The training runs that a folder stands for: name → folder; itself alone, named by its last part, unless it holds
    `seed_*`, in the order of their numbers."""
    path = Path(folder)
    found = [one for one in path.glob(SEEDS) if is_policy(one)]
    if is_policy(path) or not found:
        return {path.name: str(path)}
    return {one.name: str(one) for one in sorted(found, key=lambda one: (len(one.name), one.name))}


def is_policy(folder: Path) -> bool:
    """Whether a folder holds one policy: a run, an export, or a rule of `explain`."""
    from agents.explaining.rules import TREE_FILE
    from agents.learning.runs import POLICY_FILE
    from ooco_gym.runtime import MANIFEST_FILE

    return any((folder / name).is_file() for name in (POLICY_FILE, MANIFEST_FILE, TREE_FILE))


def files_of(folder: str | Path) -> list[Path]:
    """The files that say what a policy of one run does, for a digest of it."""
    from agents.explaining.rules import TREE_FILE
    from agents.learning.runs import POLICY_FILE
    from ooco_gym.runtime import MANIFEST_FILE, MODEL_FILE

    path = Path(folder)
    names: Iterable[str] = ((POLICY_FILE,) if (path / POLICY_FILE).is_file()
                            else (MANIFEST_FILE, MODEL_FILE, TREE_FILE))
    return [path / name for name in names if (path / name).is_file()]


def digest_of(folder: str | Path) -> str:
    """Digest of what a policy of one run does."""
    digest = hashlib.sha256()
    for path in files_of(folder):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def environment_of(folder: str | Path) -> dict[str, Any]:
    """The `env` configuration that a policy was trained under: by the manifest of an export, by the configuration of a
    run; empty where its folder does not say, as that of a rule of `explain`."""
    from agents.learning.runs import CONFIG_FILE
    from ooco_gym.runtime import MANIFEST_FILE

    manifest, config = Path(folder) / MANIFEST_FILE, Path(folder) / CONFIG_FILE
    if manifest.is_file():
        found = json.loads(manifest.read_text(encoding="utf-8")).get("training", {}).get("config", {})
    else:
        found = yaml.safe_load(config.read_text(encoding="utf-8")) if config.is_file() else {}
    return plain((found or {}).get("env") or {})


@lru_cache(maxsize=16)
def kept(folder: str) -> Kept:
    """Loads a run, an exported policy or a rule of `explain`.

    Raises:
        UserError: the folder is none of them.
    """
    from agents.explaining.rules import TREE_FILE, load_tree
    from ooco_gym.runtime import MANIFEST_FILE, Policy

    if (Path(folder) / TREE_FILE).is_file():
        tree = load_tree(folder)
        return Kept(tree.decide_batch, tree.shapes, tree.decisions)
    if (Path(folder) / MANIFEST_FILE).is_file():
        policy = Policy.load(folder)
        inputs = policy.manifest["inputs"]
        return Kept(policy.decide_unchecked, _shapes({key: inputs[key]["shape"] for key in OBSERVATION_KEYS},
                                                    policy.history), tuple(policy.decisions))
    from agents.learning.runs import load_run

    run = load_run(folder)
    return Kept(run.decide_batch, _shapes(observed_shapes(run.model.observation_space), run.history), run.decisions)


def _shapes(seen: Mapping[str, Sequence[int]], history: int) -> dict[str, tuple[int, ...]]:
    """The shapes of one observation of the environment."""
    shapes = {key: tuple(int(size) for size in shape) for key, shape in seen.items()}
    return {**shapes, "cluster": (shapes["cluster"][0] // history,)}


def check_fit(label: str, folder: str, env: Any) -> None:
    """Refuses a learned policy that was trained on other observations, actions or decisions.

    Raises:
        UserError: it does not fit, or the folder is no policy.
    """
    policy = kept(os.fspath(folder))
    space: Any = env.observation_space
    ours = isinstance(space, spaces.Dict) and set(OBSERVATION_KEYS) <= set(space)
    expected = observed_shapes(space) if ours else space
    if policy.shapes != expected:
        raise UserError(f"policy '{label}' was trained on observations {policy.shapes}, but the environment gives "
                        f"{expected}; evaluate it on the environment it was trained on")
    unknown = [name for name in decision_names(env) if name not in policy.decisions]
    if unknown:
        raise UserError(f"policy '{label}' was never asked to {' or '.join(unknown)}, only to "
                        f"{', '.join(policy.decisions)}; evaluate it on the environment it was trained on")
