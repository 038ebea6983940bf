"""Learned policies as `evaluate` and its kin take them: runs of `train`, exported bundles, groups of runs, the zoo."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from gymnasium import spaces

from agents.environments import OBSERVATION_KEYS, decision_names, observed_shapes, plain
from ooco_gym.errors import UserError

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
    from agents.explain_rules import TREE_FILE
    from agents.load import POLICY_FILE
    from ooco_gym.runtime import MANIFEST_FILE

    return any((folder / name).is_file() for name in (POLICY_FILE, MANIFEST_FILE, TREE_FILE))


def files_of(folder: str | Path) -> list[Path]:
    """The files that say what a policy of one run does, for a digest of it."""
    from agents.explain_rules import TREE_FILE
    from agents.load import POLICY_FILE
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
    from agents.load import CONFIG_FILE
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
    from agents.explain_rules import TREE_FILE, load_tree
    from ooco_gym.runtime import MANIFEST_FILE, Policy

    if (Path(folder) / TREE_FILE).is_file():
        tree = load_tree(folder)
        return Kept(tree.decide_batch, tree.shapes, tree.decisions)
    if (Path(folder) / MANIFEST_FILE).is_file():
        policy = Policy.load(folder)
        inputs = policy.manifest["inputs"]
        return Kept(policy.decide_unchecked, _shapes({key: inputs[key]["shape"] for key in OBSERVATION_KEYS},
                                                    policy.history), tuple(policy.decisions))
    from agents.load import load_run

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
