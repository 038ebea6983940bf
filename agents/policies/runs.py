"""The folder of a training run: its files, its configuration, and its policy.

`policy.zip` has Stable-Baselines3's format, which can carry code. Only arrays and plain data are
read from it; the network is rebuilt by the run's configuration.
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from agents.environments import decision_names, levels_of, make_env, observed_shapes
from agents.policies.linear import LINEAR_FILE, LinearScorer, load_linear
from agents.settings import require
from ooco_gym.documents import read_mapping, read_yaml
from ooco_gym.errors import UserError
from ooco_gym.files import MOST_UNZIPPED, atomic_write, bounded_zip
from ooco_gym.own_code import reading_back
from ooco_gym.policy.registry import RETENTION
from ooco_gym.schema import plain

POLICY_FILE, LAST_FILE, CONFIG_FILE, SUMMARY_FILE = "policy.zip", "policy_last.zip", "config.yaml", "summary.json"
CHECKPOINTS = "checkpoints"
STATE_FILE = Path(CHECKPOINTS) / "latest.state"  # from which a stopped run resumes
SEARCHED_FILE, SEARCHED_WEIGHTS, GENERATIONS_FILE = "policy.yaml", "weights.npz", "generations.csv"  # of a search
_LEFT = (SUMMARY_FILE, CONFIG_FILE, POLICY_FILE, LAST_FILE, LINEAR_FILE, "progress.csv", CHECKPOINTS, "wandb",
         "tensorboard", "bundle", SEARCHED_FILE, SEARCHED_WEIGHTS, GENERATIONS_FILE)


class LoadedRun:
    """A trained policy, whose `decide_batch` never chooses illegal actions.

    Attributes:
        actor: the network (`networks.Actor`): raw observations in, action and logits out, (batch,)
            and (batch, A), or (batch, P) and (batch, sum of levels) for a vector of levels.
        config: configuration of its training.
        space: observation space.
        decisions: names of the decisions that it was trained on.
        timesteps: decisions that it has learned from.
    """

    def __init__(self, config: dict[str, Any], path: Path) -> None:
        from agents.policies.networks import Actor

        agent = config["agent"]
        self.config = config
        with reading_back(), closing(make_env(config["env"])) as env:
            space: Any = env.observation_space
            self.decisions, self.space = decision_names(env), space
            levels = levels_of(env.action_space)
        weights, self.timesteps = _read(path)
        self.actor = Actor.built(self.space, levels, agent, weights)

    def decide_batch(self, *observation: np.ndarray) -> np.ndarray:
        """Returns actions (batch,) or (batch, P) for cluster (batch, Fc), candidates (batch, K, F) or (batch, K·F),
        action_mask (batch, A) and decision (batch, D)."""
        return self.actor.answer(*observation)[0]


def _read(path: Path) -> tuple[dict[str, Any], int]:
    """The arrays of a saved model by their names, and the number of decisions that it has learned from.

    Raises:
        UserError: the file is damaged, or has anything but arrays among the weights.
    """
    import torch

    try:
        with bounded_zip(path) as archive:
            packed = io.BytesIO(archive.read("policy.pth"))
            bounded_zip(packed).close()
            packed.seek(0)
            weights = torch.load(packed, weights_only=True)
            for name, array in weights.items():
                if array.is_complex() or array.numel() > MOST_UNZIPPED:  # strides of 0 make any size of nothing
                    raise ValueError(f"'{name}' is {array.dtype}{list(array.shape)}, not an array of weights")
            return weights, int(json.loads(archive.read("data"))["num_timesteps"])
    except Exception as error:  # zipfile and torch raise a dozen kinds; all mean that the file is no policy
        reason = " ".join(str(error).split()).partition(". ")[0] or type(error).__name__
        raise UserError(f"'{path}' cannot be read as a policy: {reason}") from error


def load_run(folder: str | Path) -> LoadedRun:
    """Loads the policy in the folder of an `ooco-gym train` run, or one of the folder's files by its path, such as
    `policy_last.zip`.

    Raises:
        UserError: the folder or one of its files is missing or unreadable, or the `train` extra is not installed.
    """
    path, kept = Path(folder), POLICY_FILE
    if path.suffix == ".zip":
        path, kept = path.parent, path.name
    if not path.is_dir():
        raise UserError(f"run folder '{folder}' does not exist; expected the 'out' of an 'ooco-gym train' run")
    found = searched_policy(path)
    if found is not None:
        raise UserError(f"'{folder}' holds a search over whole episodes, whose policy needs no network: give {found} "
                        "wherever a policy's name is accepted")
    if (path / LINEAR_FILE).is_file():
        raise UserError(f"'{folder}' holds a linear scorer, which evaluate plays, and no network to export or read: "
                        "train agent=maskable_ppo for one")
    for name in (kept, CONFIG_FILE):
        if not (path / name).is_file():
            raise UserError(f"'{folder}' is not a training run: {name} is missing; expected the 'out' of "
                            "'ooco-gym train'")
    require("train")
    try:
        return LoadedRun(read_config(path), path / kept)
    except (KeyError, RuntimeError) as error:  # arrays of another network than the configuration's
        raise UserError(f"'{path / kept}' does not fit the environment and the network of {CONFIG_FILE} , one of which "
                        f"has changed since: {' '.join(str(error).split())[:200]}") from error


def load_linear_run(folder: str | Path) -> tuple[LinearScorer, tuple[str, ...], dict[str, Any]]:
    """Loads the scorer of a run of `agent=cma_linear`, the names of its decisions, and its configuration.

    Raises:
        UserError: a file is missing, damaged, or of another environment.
    """
    config = read_config(Path(folder))
    with reading_back(), closing(make_env(config["env"])) as env:
        levels = levels_of(env.action_space)
        return (load_linear(Path(folder) / LINEAR_FILE, observed_shapes(env.observation_space, levels), levels),
                decision_names(env), config)


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    with atomic_write(folder / CONFIG_FILE) as temporary:
        temporary.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")


def read_config(folder: Path) -> dict[str, Any]:
    """Reads the configuration of a run, which has `env` and `agent`."""
    path = folder / CONFIG_FILE
    config = read_yaml(path)
    for key in ("env", "agent"):
        if not isinstance(config, dict) or key not in config:
            raise UserError(f"'{path}' has no key '{key}'; expected the configuration of an 'ooco-gym train' run")
        if not isinstance(config[key], dict):
            raise UserError(f"'{path}': {key} is {config[key]!r}; expected a mapping, as of an 'ooco-gym train' run")
    return config


def recipe_of(agent: Mapping[str, Any]) -> str:
    """The name of an agent's configuration in conf/agent. Several recipes share one algorithm,
    whose name is `agent.name`."""
    multiplier = agent.get("lagrangian")
    if multiplier:
        damped = multiplier.get("proportional") or multiplier.get("derivative")
        return "pid_lagrangian" if damped else "ppo_lagrangian"
    return str(agent["name"])


def imitated(agent: Mapping[str, Any]) -> Any:
    """`agent.imitate.rule`: the heuristic that the agent imitates before it learns, or None."""
    return plain(agent.get("imitate") or {}).get("rule")


def searched_policy(folder: str | Path) -> str | None:
    """The policy that a search left in a folder, by the name that commands take; None without one."""
    path = Path(folder)
    if not all((path / name).is_file() for name in (SEARCHED_FILE, GENERATIONS_FILE)):
        return None
    agent = mapping_or_empty(path / CONFIG_FILE).get("agent")
    rule = isinstance(agent, dict) and str(agent.get("policy")).startswith(RETENTION)
    return f"{RETENTION * rule}{path / SEARCHED_FILE}"


def holds_run(folder: Path) -> bool:
    """Whether a folder has a training run, whole or begun."""
    return learned(folder) or {"agent", "total_timesteps"} <= set(mapping_or_empty(folder / CONFIG_FILE))


def learned(folder: Path) -> bool:
    """Whether a folder's training run has left anything that was learned: a policy, a state, a summary."""
    if any((folder / name).is_file() for name in (POLICY_FILE, LAST_FILE, SEARCHED_FILE, LINEAR_FILE)):
        return True
    if any(True for pattern in ("step_*.zip", STATE_FILE.name) for _ in (folder / CHECKPOINTS).glob(pattern)):
        return True
    return mapping_or_empty(folder / SUMMARY_FILE).get("command") == "train"


def mapping_or_empty(path: Path) -> dict[str, Any]:
    """A file's mapping; empty if it has none."""
    try:
        return read_mapping(path)
    except UserError:
        return {}


def read_pickled(path: Path, schema: str, load: Callable[[Path], Any]) -> dict[str, Any]:
    """The mapping of a file that a run resumes from, unpickled by `load`.

    Raises:
        UserError: the file is missing, damaged or of another schema.
    """
    try:
        state = load(path)
        if state["schema"] != schema:
            raise ValueError(f"schema {state['schema']}, not {schema}")
        return state
    except Exception as error:  # pickles fail in many ways; all mean that the file cannot be used
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"'{path}' cannot be resumed from: it is damaged or from another version of ooco-gym "
                        f"({reason}); start a new training") from error


def clear(folder: Path) -> None:
    """Removes the files of `ooco-gym train` from a folder, and nothing else."""
    for path in (folder / name for name in _LEFT):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
