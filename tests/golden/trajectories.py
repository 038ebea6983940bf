"""Episodes of every environment, single and vector, with the base policy's actions and with random legal ones."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

import ooco_gym  # noqa: F401  registers the environments
from tests.golden.digests import Digests, digest

IDS = tuple(f"ooco_gym/{name}-v1" for name in (
    "Batching", "Colocation", "OnlineTuning", "Eviction", "PrefillGate", "Migration", "Packing", "Interruption",
    "PreemptionVictim", "Jobs", "Retention", "RuleChoice", "Scaling", "ScalingPools",
    "Serving")) + (
        "ooco_gym/Admission-v2", "ooco_gym/EvictionPredicted-v1", "ooco_gym/Gating-v2",
        "ooco_gym/MigrationPredicted-v1", "ooco_gym/Routing-v2")
MODES = ("NextStep", "SameStep", "Disabled")
STEPS = 120
SHORT: dict[str, Any] = {"window_s": 60.0, "warmup_s": 30.0}
SHORT_OF = {"ooco_gym/OnlineTuning-v1": {"window_s": 120.0},  # a decision every 5 s
            "ooco_gym/Admission-v2": {"window_s": 180.0},  # one every 10 s, as in
            "ooco_gym/RuleChoice-v1": {"window_s": 180.0}, "ooco_gym/Scaling-v1": {"window_s": 900.0},
            "ooco_gym/ScalingPools-v1": {"window_s": 600.0}}
# Other arguments than the defaults of conf/env, which a few environments are also played with.
OTHERWISE: dict[str, dict[str, dict[str, Any]]] = {
    "ooco_gym/PrefillGate-v1": {"3 candidates, constrained": {"candidates": 3, "reward": "constrained"},
                           "beside slack": {"base_policy": "slack"}, "shift lengths": {"shift": "lengths"}},
    "ooco_gym/Eviction-v1": {"beside ooco:evict=longest": {"base_policy": "ooco:evict=longest"},
                             "shift burst": {"shift": "burst"}},
    "ooco_gym/Interruption-v1": {"beside slack": {"base_policy": "slack"}},
    "ooco_gym/Migration-v1": {"16 candidates": {"candidates": 16}},
    "ooco_gym/Packing-v1": {"3 levels": {"levels": [0.6, 0.8, 1.0], "interval_s": 0.5}},
    "ooco_gym/OnlineTuning-v1": {"2 controls": {"controls": {"slo_margin": 0.1, "max_pull": 4}, "interval_s": 2.0}},
    "ooco_gym/Routing-v2": {"shift fleet": {"shift": "fleet", "window_s": 8.0, "warmup_s": 10.0}},
    "ooco_gym/Colocation-v1": {"varied": {"vary": {"rate_scale": [0.04, 0.08], "offline.rate": [0.5, 2.0]}}},
}


class Sums:
    """Running digests of all that an environment returns, one for each key."""

    def __init__(self) -> None:
        self._sums: dict[str, Any] = {}

    def add(self, name: str, value: Any) -> None:
        """Adds a value; a mapping is added key by key."""
        if isinstance(value, Mapping):
            for key, one in value.items():
                if key.startswith("_"):  # Gymnasium's masks of which episodes have a value: one digest for all keys
                    self.add("flags", [f"{name}/{key}", one])
                else:
                    self.add(f"{name}/{key}", one)
            return
        if isinstance(value, np.ndarray) and value.dtype == object:
            for i, one in enumerate(value):
                self.add(f"{name}[{i}]", one)
            return
        self._sums.setdefault(name, hashlib.sha256()).update(digest(value).encode())

    def digests(self) -> dict[str, str]:
        """The digest of each key so far."""
        return {name: sums.hexdigest()[:12] for name, sums in self._sums.items()}


class Episode(NamedTuple):
    """A trajectory: its name, and how it is played."""

    name: str
    play: Callable[[], dict[str, str]]


def episodes() -> list[Episode]:
    """All trajectories that are digested."""
    return [*_single(), *_vector()]


def _single() -> Iterator[Episode]:
    for name in IDS:
        for label, changes in {"": {}, **OTHERWISE.get(name, {})}.items():
            for chooser in ("base_policy", "random"):
                yield Episode(f"{name}{label and f', {label}'}, {chooser}",
                              lambda name=name, changes=changes, chooser=chooser: _play(name, changes, chooser))
        yield Episode(f"{name}, whole window, random", lambda name=name: _play(name, {}, "random", 100_000))


def _vector() -> Iterator[Episode]:
    for name in IDS:
        for mode in MODES:
            for chooser in ("base_policy", "random"):
                yield Episode(f"{name}, vector, {mode}, {chooser}",
                              lambda name=name, mode=mode, chooser=chooser: _play_vector(name, mode, chooser))
        yield Episode(f"{name}, vector, training windows",
                      lambda name=name: _play_vector(name, "SameStep", "random", train_seeds=[1000, 1001], bank=4))


def arguments(name: str, **changes: Any) -> dict[str, Any]:
    """Arguments of an environment that make its episodes short."""
    return {**SHORT, **SHORT_OF.get(name, {}), **changes}


def make(name: str, **changes: Any) -> Any:
    return gym.make(name, disable_env_checker=True, **arguments(name, **changes))


def _play(name: str, changes: Mapping[str, Any], chooser: str, most: int = STEPS) -> dict[str, str]:
    """Plays one episode, at most so many steps of it, and then the beginning of the next."""
    env, random, sums = make(name, **changes), np.random.default_rng(7), Sums()
    inside = env.unwrapped
    for options in ({"seed": 2, "options": {"window": 1}}, {}):
        observation, info = env.reset(**options)
        _add(sums, observation, info)
        for _ in range(most):
            action = inside.base_action() if chooser == "base_policy" else random_legal(random, env, observation)
            observation, reward, terminated, truncated, info = env.step(action)
            _add(sums, observation, info)
            sums.add("action", np.asarray(action))
            sums.add("reward", float(reward))
            sums.add("over", [bool(terminated), bool(truncated)])
            if terminated or truncated:
                break
        most = min(most, 20)
    return sums.digests()


def _add(sums: Sums, observation: Mapping[str, Any], info: Mapping[str, Any]) -> None:
    for key, value in observation.items():
        sums.add(f"observation {key}", value)
    sums.add("info", {key: value for key, value in info.items() if key not in ("notes", "_notes")})  # words


def random_legal(random: np.random.Generator, env: Any, observation: Mapping[str, np.ndarray]) -> Any:
    """A random action of a single environment that its mask allows; any levels where an action is a vector."""
    if isinstance(env.action_space, gym.spaces.MultiDiscrete):
        return random.integers(env.action_space.nvec)
    return int(random.choice(np.flatnonzero(observation["action_mask"])))


def _play_vector(name: str, mode: str, chooser: str, **changes: Any) -> dict[str, str]:
    """Plays four episodes side by side, cut short, so that some end and begin again."""
    envs: Any = gym.make_vec(name, num_envs=4, vectorization_mode="vector_entry_point", autoreset_mode=mode,
                             max_episode_steps=25, **arguments(name, **changes))
    random, sums = np.random.default_rng(8), Sums()
    observation, info = envs.reset(seed=5)
    _add(sums, observation, info)
    for _ in range(STEPS // 2):
        actions = envs.base_actions() if chooser == "base_policy" else _random_legal_rows(random, envs, observation)
        observation, rewards, terminated, truncated, info = envs.step(actions)
        _add(sums, observation, info)
        sums.add("actions", np.asarray(actions))
        sums.add("rewards", np.asarray(rewards, np.float64))
        sums.add("over", np.stack([terminated, truncated]))
        over = terminated | truncated
        if mode == "Disabled" and over.any():
            observation, info = envs.reset(options={"reset_mask": over})
            _add(sums, observation, info)
    return sums.digests()


def _random_legal_rows(random: np.random.Generator, envs: Any, observation: Mapping[str, np.ndarray]) -> np.ndarray:
    space = envs.single_action_space
    if isinstance(space, gym.spaces.MultiDiscrete):
        return random.integers(space.nvec, size=(envs.num_envs, len(space.nvec)))
    masks = observation["action_mask"]
    return np.array([int(random.choice(legal)) if len(legal := np.flatnonzero(mask)) else 1 for mask in masks])


def group(every: int = 1) -> Digests:
    """The digests of every n-th trajectory."""
    return {one.name: one.play() for one in episodes()[::every]}
