"""One training run: its environments, model, callbacks and files. The learning loop is
Stable-Baselines3's `model.learn`; ours is in its callbacks (`agents/learning/callbacks.py`)."""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agents.environments import levels_of, split_seeds, training_env, windows, with_length
from agents.evaluation.players import close_all
from agents.learning import callbacks as cb
from agents.learning import imitation
from agents.learning.lagrangian import lagrangian
from agents.learning.loggers import build_logger, checked_logger
from agents.learning.models import build_model
from agents.learning.state import model_of, read_state, restore, write_state
from agents.learning.vector import GymnasiumVecEnv, RewardScale
from agents.policies import runs
from agents.policies.networks import check_action_space, check_observation_space
from agents.policies.runs import imitated, recipe_of
from ooco_gym.errors import UserError
from ooco_gym.report import show_notes
from ooco_gym.schema import plain


def learn(config: dict[str, Any], out: Path, resumed: bool, started: float) -> dict[str, Any]:
    """Trains, saves, and returns the summary.

    Raises:
        UserError: there is nothing to resume, or the agent cannot learn in the environment.
    """
    torch.set_num_threads(int(config.get("threads") or 1))
    state = read_state(config) if resumed else None
    with ExitStack() as opened:
        training = Training(config, out, state, opened, started)
        training.open()
        training.watch()
        training.learn()
        training.save()
    return training.summary()


class Training:
    """One call of `train`: environments, model and callbacks, in the order in which they are made.

    Args:
        config: as composed, checked.
        out: the run's folder.
        state: the saved state of a resumed run; None for a new one.
        opened: closes what is opened.
        started: when the call began, on the monotonic clock.
    """

    def __init__(self, config: dict[str, Any], out: Path, state: dict[str, Any] | None, opened: ExitStack,
                 started: float) -> None:
        self.config, self.out, self.state, self.opened = config, out, state, opened
        self.agent, self.seed = plain(config["agent"]), int(config["seed"])
        self.logging = checked_logger(config.get("logger"))
        self.clock, self.interrupts = cb.WallClock(config.get("max_wall_s"), started), cb.Interrupts()
        self.imitated_as: dict[str, Any] | None = None
        self.preparation_s = 0.0

    # --- Environments and model ---
    def open(self) -> None:
        """Makes environments, model and logger; clears a new run's folder once they are valid."""
        self.venv: Any = self._vector() if self.state is None else self.state["venv"]
        self.env: Any = RewardScale(self.venv)
        self.opened.callback(self.env.close)
        check_observation_space(self.env.observation_space, levels_of(self.env.action_space))
        self.model = self._model()
        if self.state is None:
            self.env.reset()
            if self.config.get("overwrite"):
                runs.clear(self.out)
        self.ready = time.monotonic()  # imports and compiling are over
        runs.write_config(self.out, self.config)
        known = None if self.state is None else int(self.model.num_timesteps)
        self.logger = build_logger(self.out, self.logging, self.config, known)
        self.opened.callback(self.logger.close)
        self.model.set_logger(self.logger)
        self.judges: list[Any] = []  # environments of the validation
        self.opened.callback(close_all, self.judges)

    def _vector(self) -> Any:
        inner = training_env(self.config["env"], self.agent["n_envs"], self.seed, self.config.get("window_s"))
        check_action_space(inner.single_action_space, self.config["env"]["id"])
        return GymnasiumVecEnv(inner, info_keys=())

    def _model(self) -> Any:
        if self.state is not None:
            return model_of(self.state, self.env)
        if self.agent.get("n_steps") is None:
            self.agent["n_steps"] = imitation.steps_of(self.venv, float(self.agent["rollout_s"]), self.seed)
        decisions = int(self.agent["n_steps"]) * int(self.agent["n_envs"])
        if decisions > self.config["total_timesteps"]:
            show_notes([f"one rollout is {decisions:,} decisions (agent.n_envs, agent.rollout_s), so training takes "
                        f"that many, not total_timesteps={self.config['total_timesteps']:,}."])
        rest = decisions % int(self.agent["batch_size"]) if plain(self.config["agent"]).get("n_steps") else 0
        if rest and self.agent["name"] != "dqn":  # a buffer's batches are drawn
            show_notes([f"agent.batch_size={self.agent['batch_size']} does not divide the {decisions:,} decisions of a "
                        f"rollout (agent.n_steps times agent.n_envs): its last batch has {rest:,}."])
        return build_model(self.env, self.agent, self.seed)

    # --- Callbacks ---
    def watch(self) -> None:
        """Makes the callbacks, in calling order, and restores a resumed run's state."""
        config, every = self.config, self.config.get("checkpoint_every_steps")
        self.metrics = cb.LogMetrics(self.logging["name"] != "none")
        self.progress = cb.Progress(config["total_timesteps"], self.clock)
        self.opened.callback(self.progress.stop)
        self.checkpoint_and_stop = cb.CheckpointAndStopCallback(
            self.keep, int(every) if every else None, config.get("checkpoint_every_s"), self.interrupts, self.clock)
        self.callbacks: list[Any] = [self.checkpoint_and_stop, self.metrics]
        if self.agent.get("lagrangian"):
            self.callbacks.append(lagrangian(config, self.agent, self.model, self.env))
        if imitated(self.agent) is not None:
            self.callbacks.append(cb.FreezeActor(int(self.agent["imitate"]["critic_first_updates"])))
        self.validation = self._validation()
        if self.validation is not None:
            self.callbacks.append(self.validation)
        if every:
            self.callbacks.append(cb.Checkpoints(self.out / runs.CHECKPOINTS, int(every)))
        # Scaling is refreshed last: validation and checkpoints at a rollout's start see what the update produced.
        if self.agent["name"] == "maskable_ppo":  # what a value was learned of keeps its scale
            self.callbacks.append(cb.ObservationStatistics())
        self.callbacks.append(self.progress)
        if self.state is not None:
            restore(self.model, self.callbacks, self.state)
            self.imitated_as = self.state["trainer"]["imitation"]

    def _validation(self) -> Any:
        """The validation callback; None without validation."""
        checks = plain(self.config.get("validation") or {})
        self.length = with_length(self.config["env"], checks.get("window_s"))
        if not checks.get("windows"):
            return None
        games = windows(split_seeds(self.config["env"], "validation"), int(checks["windows"]))
        return cb.Validation(self.length, games, self.judges, self.out / runs.POLICY_FILE, checks,
                             imitated(self.agent) is not None, self.interrupts, self.clock, self.progress)

    def keep(self) -> None:
        if self.config.get("resumable", True) and self.agent["name"] == "maskable_ppo":
            judged = self.validation is None or self.validation.judged
            write_state(self.out, self.model, self.callbacks, {
                "imitation": self.imitated_as, "timesteps": int(self.model.num_timesteps), "judged": judged})

    # --- Learning: an interrupt saves too ---
    def learn(self) -> None:
        """Learns to the end, to the wall-clock limit, or until an interrupt; then saves the state
        if it is between two rollouts."""
        self.begun_at, whole_rollouts = int(self.model.num_timesteps), True
        self.progress.begin()
        with self.interrupts:
            try:
                if self.state is None:
                    self._begin()
                self.interrupts.patient = True
                self._go_on()
            except KeyboardInterrupt:
                self.interrupts.asked, whole_rollouts = True, False
            except UserError:
                if self.state is None and not self.model.num_timesteps:
                    runs.clear(self.out)  # refused before it learned: no run for others to spare
                raise
            if whole_rollouts:
                self.keep()

    def _begin(self) -> None:
        """Scales or imitates; from then on the run can be resumed."""
        self.imitated_as = prepare(self)
        self.preparation_s = time.monotonic() - self.ready
        self.model._last_obs = self.model._last_original_obs = self.venv.latest  # without another reset
        self.model._last_episode_starts = np.ones(self.env.num_envs, bool)
        self.checkpoint_and_stop.keep()

    def _go_on(self) -> None:
        with self.clock.counting("learning"):
            with suppress(cb.Stop):
                self.model.learn(int(self.config["total_timesteps"]) - self.begun_at, callback=self.callbacks,
                                 log_interval=1, reset_num_timesteps=False)
            with suppress(cb.Stop):
                if self.validation is not None and not self.validation.judged and not self.interrupts.asked:
                    self.validation.validate()

    def save(self) -> None:
        """Saves the last policy, also as the best one if none was validated."""
        cb.save(self.model, self.out / runs.LAST_FILE)
        if self.validation is None or self.validation.best is None:
            cb.save(self.model, self.out / runs.POLICY_FILE)
        self.logger.dump(self.model.num_timesteps)

    def summary(self) -> dict[str, Any]:
        """The summary of the run; seconds, and decisions per second, are those of this call."""
        stopped = "total_timesteps"
        if self.interrupts.asked or self.clock.expired:
            stopped = "interrupt" if self.interrupts.asked else "max_wall_s"
        decisions, validation_s = int(self.model.num_timesteps) - self.begun_at, self.clock.spent["validation"]
        learning_s = self.clock.spent["learning"] - validation_s
        validation = self.validation
        return {
            "command": "train", "agent": recipe_of(self.agent), "env": self.config["env"]["id"], "seed": self.seed,
            "timesteps": int(self.model.num_timesteps), "resumed": self.state is not None, "stopped_by": stopped,
            **({"signal": self.interrupts.signal.name} if stopped == "interrupt" else {}),
            "episodes": self.metrics.episodes, "updates": int(self.model._n_updates),
            "wall_s": time.monotonic() - self.clock.begun, "setup_wall_s": self.ready - self.clock.begun,
            "preparation_wall_s": self.preparation_s, "validation_wall_s": validation_s,
            "learning_wall_s": learning_s, "decisions": decisions,
            "decisions_per_s": decisions / max(learning_s, 1e-9),
            "imitation": self.imitated_as, "best": None if validation is None else validation.best,
            "validation": [] if validation is None else validation.history,
            "validation_window_s": None if validation is None else self.length.get("window_s"),
            "logger": self.logging["name"],
            "files": sorted(path.name for path in self.out.iterdir() if not path.name.startswith(".")),
        }


def prepare(training: Training) -> dict[str, Any] | None:
    """Scales observations and, if the agent asks for it, imitates; returns the summary of imitation, or None."""
    if imitated(training.agent) is None:
        imitation.play_and_scale(training.model, training.env.venv, int(training.agent["scale_decisions"]),
                                 int(training.config["seed"]))
        return None
    return imitation.learn_rule(training, plain(training.agent["imitate"]))
