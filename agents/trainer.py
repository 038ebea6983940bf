"""One training run: its environments, model, logger and callbacks, and what it leaves in its folder."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from agents.algorithms import algorithm_of
from agents.environments import plain, split_seeds, training_env, windows
from agents.hooks import extra_callbacks
from agents.load import CONFIG_FILE, POLICY_FILE, SCALE_FILE, load_model
from agents.preparation import imitated, prepare
from ooco_gym.files import atomic_write, write_json

LAST_FILE = "policy_last.zip"


class Trainer:
    """Holds the pieces of one training run."""

    def __init__(self, config: dict[str, Any], agent: dict[str, Any], out: Path, started: float) -> None:
        from agents.loggers import build_logger

        self.config, self.agent, self.out = config, agent, out
        self.started = started
        self.interrupted = False
        self.imitation: dict[str, Any] | None = None
        self.env = self._vector_env()
        self.model = self._model()
        self.env.venv.reset()
        self.ready = time.monotonic()  # imports and compiling are over: the limit on wall-clock time starts here
        with atomic_write(out / CONFIG_FILE) as temporary:
            temporary.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
        self.logger = build_logger(out, config.get("logger"), config)
        self.model.set_logger(self.logger)
        self.callbacks = self._callbacks()

    def _vector_env(self) -> Any:
        from stable_baselines3.common.vec_env import VecNormalize

        from agents.networks import check_action_space
        from agents.vector import GymnasiumVecEnv

        config = self.config["env"]
        env = training_env(config, self.agent["n_envs"], int(self.config["seed"]), self.config.get("window_s"))
        check_action_space(env.single_action_space, config["id"])
        # Rewards only: observations are scaled inside the network, where export finds the scaling again.
        return VecNormalize(GymnasiumVecEnv(env, info_keys=()), norm_obs=False, norm_reward=True, gamma=0.999,
                            clip_reward=np.inf)

    def _model(self) -> Any:
        from agents.networks import check_observation_space

        check_observation_space(self.env.observation_space)
        return algorithm_of(self.agent).build(self.env, self.agent, int(self.config["seed"]))

    def _callbacks(self) -> list[Any]:
        from agents.callbacks import (
            Checkpoints,
            CriticFirst,
            Figures,
            ObservationStatistics,
            Progress,
            TimedTransitions,
            Validation,
            WallClock,
        )
        from agents.tracking import Tracking

        config, settings = self.config, plain(self.config.get("validation") or {})
        limit = config.get("max_wall_s")
        self.clock = WallClock(None if limit is None else self.ready + float(limit), self._reserve_s)
        self.figures = Figures()
        self.progress = Progress(config["total_timesteps"], limit)
        self.validation: Validation | None = None
        self.tracking = Tracking(config.get("logger"))
        callbacks: list[Any] = [self.clock, TimedTransitions(), self.figures, self.tracking,
                                *extra_callbacks(self.agent, self)]
        if imitated(self.agent) is not None:
            callbacks.append(CriticFirst(int(self.agent["imitate"]["critic_first_updates"])))
        if settings.get("windows"):
            self.validation_windows = windows(split_seeds(config["env"], "validation"), int(settings["windows"]))
            self.validation_envs: list[Any] = []
            self.validation = Validation(
                self._play_validation, self.out / POLICY_FILE, int(settings["every_steps"]),
                float(settings["violation_limit"]), first=imitated(self.agent) is not None)
            callbacks.append(self.validation)
        if config.get("checkpoint_every_steps"):
            callbacks.append(Checkpoints(self.out / "checkpoints", int(config["checkpoint_every_steps"])))
        # Scaling is refreshed last: validation and checkpoints at a rollout's start see what the update produced.
        return [*callbacks, ObservationStatistics(), self.progress]

    def _reserve_s(self) -> float:
        """Seconds to leave for the last validation: what one took, or a tenth of the limit before the first."""
        if self.validation is None:
            return 0.0
        return self.validation.last_wall_s or 0.1 * float(self.config["max_wall_s"])

    def _play_validation(self) -> list[dict[str, Any]]:
        from agents.play import play

        player = self.tracking.watched(self._player(), self.validation_windows)
        return self.tracking.validated(play(self.config["env"], player, self.validation_windows,
                                            envs=self.validation_envs))

    def _player(self) -> Any:
        import torch

        from agents.networks import Actor
        from agents.play import BatchPlayer

        actor = Actor(self.model.policy)

        def decide(*parts: np.ndarray) -> np.ndarray:
            with torch.inference_mode():
                return actor(*(torch.as_tensor(part) for part in parts))[0].numpy()

        return BatchPlayer("training", decide)

    def learn(self) -> None:
        """Learns and saves; an interrupt saves too."""
        try:
            self.imitation = prepare(self)
            self.model.learn(int(self.config["total_timesteps"]), callback=self.callbacks, log_interval=1)
            if self.validation is not None and self._unjudged():
                self.validation.validate()
        except KeyboardInterrupt:
            self.interrupted = True
        self._save()

    def _unjudged(self) -> bool:
        """True if the policy learned on since it was last validated."""
        history = self.validation.history if self.validation is not None else []
        return not history or history[-1]["timesteps"] != self.model.num_timesteps

    def _save(self) -> None:
        from agents.callbacks import save

        save(self.model, self.out / LAST_FILE)
        if self.validation is None or self.validation.best is None:
            save(self.model, self.out / POLICY_FILE)
        write_json(self.out / SCALE_FILE, describe_scale(load_model(self.config, self.out / POLICY_FILE)))
        self.logger.dump(self.model.num_timesteps)

    def close(self) -> None:
        """Closes bar, logger and environments."""
        self.progress.stop()
        self.logger.close()
        self.env.close()

    def summary(self) -> dict[str, Any]:
        """The machine-readable account of the run."""
        wall_s = time.monotonic() - self.started
        setup_s = self.ready - self.started
        validation_s = self.validation.wall_s if self.validation is not None else 0.0
        steps = int(self.model.num_timesteps)
        reason = "interrupt" if self.interrupted else "max_wall_s" if self.clock.expired else "total_timesteps"
        return {
            "command": "train", "agent": self.agent["name"], "network": self.agent["network"],
            "env": self.config["env"]["id"], "seed": int(self.config["seed"]), "timesteps": steps,
            "stopped_by": reason, "episodes": self.figures.episodes, "updates": int(self.model._n_updates),
            "wall_s": wall_s, "setup_wall_s": setup_s, "validation_wall_s": validation_s,
            "decisions_per_s": steps / max(wall_s - setup_s - validation_s, 1e-9),
            "imitation": self.imitation, "best": self.validation.best if self.validation is not None else None,
            "validation": self.validation.history if self.validation is not None else [],
            "logger": plain(self.config.get("logger") or {"name": "none"})["name"],
            "files": sorted(path.name for path in self.out.iterdir() if not path.name.startswith(".")),
        }


def describe_scale(model: Any) -> dict[str, Any]:
    """Returns the scaling stored in a policy: mean and deviation of each feature, as applied."""
    encoder: Any = model.policy.features_extractor
    return {"schema": "ooco-gym/normalisation/1", "formula": "clip((x - mean) / deviation, -8, 8)",
            "cluster": encoder.cluster.describe(), "candidates": encoder.candidates.describe()}
