"""Reads a training run's folder back into something that decides."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from agents.algorithms import algorithm_of, history_of
from agents.environments import OBSERVATION_KEYS, decision_names, make_env, plain
from agents.extras import require
from ooco_gym.errors import UserError

POLICY_FILE, CONFIG_FILE, SCALE_FILE = "policy.zip", "config.yaml", "normalisation.json"


class LoadedRun:
    """A trained policy: `decide` one observation, or `decide_batch` many; illegal actions are never chosen.

    Attributes:
        actor: the module that decides (`agents.networks.Actor`), the same for every algorithm: raw observations in,
            action and logits out, (batch,) and (batch, A), or (batch, P) and (batch, sum of levels) where an action is
            a vector of levels.
        history: how many of the last cluster vectors, the newest first, make up the `cluster` of an observation
            (`agents.history.ClusterStack` keeps them; `agents.play` does so by itself).
    """

    def __init__(self, folder: Path, model: Any, config: dict[str, Any]) -> None:
        from agents.networks import Actor

        self.folder, self.model, self.config = folder, model, config
        self.history = history_of(plain(config["agent"]))
        self.actor = Actor(model.policy).eval()

    @cached_property
    def decisions(self) -> tuple[str, ...]:
        """The decisions that the policy was trained on."""
        env = make_env(self.config["env"])
        try:
            return decision_names(env)
        finally:
            env.close()

    def decide(self, observation: Mapping[str, np.ndarray], mask: np.ndarray | None = None) -> Any:
        """Returns the most likely legal action for one observation, a whole number or a vector of levels (P,); `mask`
        (A,) defaults to the observation's."""
        given = observation if mask is None else {**observation, "action_mask": mask}
        action = self.decide_batch(*(np.asarray(given[key])[None] for key in OBSERVATION_KEYS))[0]
        return action if np.ndim(action) else int(action)

    def decide_batch(self, *observation: np.ndarray) -> np.ndarray:
        """Returns actions (batch,) or (batch, P) for cluster (batch, Fc), candidates (batch, K, F) or (batch, K·F),
        action_mask (batch, A) and decision (batch, D)."""
        return self.actor.answer(*observation)[0]


def load_run(folder: str | Path) -> LoadedRun:
    """Loads the policy kept in the folder of an `ooco-gym train` run, with the configuration it was trained under.

    The folder's `policy.zip` is Stable-Baselines3's format, which can carry code: load only runs that you trust.

    Raises:
        UserError: the folder or one of its files is missing or unreadable, or the `train` extra is not installed.
    """
    path = Path(folder)
    if not path.is_dir():
        raise UserError(f"run folder '{folder}' does not exist; expected the 'out' of an 'ooco-gym train' run")
    for name in (POLICY_FILE, CONFIG_FILE):
        if not (path / name).is_file():
            raise UserError(f"'{folder}' is not a training run: {name} is missing; expected the 'out' of "
                            "'ooco-gym train'")
    require("train")
    config = read_config(path)
    try:
        model = load_model(config, path / POLICY_FILE)
    except UserError:
        raise
    except Exception as error:  # SB3, zipfile and pickle raise many kinds; all mean that the file is no policy
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"'{path / POLICY_FILE}' cannot be read as a policy: {reason}") from error
    return LoadedRun(path, model, config)


def load_model(config: Mapping[str, Any], path: Path) -> Any:
    """Reads a saved model of the algorithm that a run's configuration names.

    Raises:
        UserError: an unknown algorithm.
    """
    return algorithm_of(plain(config["agent"])).model_class().load(path, device="cpu")


def read_config(folder: Path) -> dict[str, Any]:
    """Reads the configuration of a run.

    Raises:
        UserError: it is not YAML, or has no `env`.
    """
    path = folder / CONFIG_FILE
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise UserError(f"'{path}' is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(config, dict) or "env" not in config:
        raise UserError(f"'{path}' has no key 'env'; expected the configuration of an 'ooco-gym train' run")
    return config
