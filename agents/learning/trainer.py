"""One training run: its environments, model, logger and callbacks, and what it leaves in its folder."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from agents.environments import history_of, split_seeds, training_env, windows, with_length
from agents.evaluation.players import BatchPlayer, close_all, play
from agents.learning import callbacks as cb
from agents.learning import runs
from agents.learning.algorithms import BEST, SEARCH, build_model, imitated, recipe_of
from agents.learning.lagrangian import lagrangian
from agents.learning.loggers import build_logger, checked_logger, logger_settings
from agents.learning.networks import Actor, check_action_space, check_observation_space
from agents.learning.tracking import Tracking
from agents.learning.vector import ClusterHistory, GymnasiumVecEnv, RewardScale
from agents.search.imitation import learn_best, learn_rule, play_and_scale
from agents.search.linear import learn_searched
from agents.settings import plain
from ooco_gym.files import atomic_write, write_json


class Trainer:
    """Holds the pieces of one training run."""

    def __init__(self, config: dict[str, Any], agent: dict[str, Any], out: Path, started: float,
                 state: dict[str, Any] | None = None) -> None:
        checked_logger(config.get("logger"))
        self.config, self.agent, self.out = config, agent, out
        self.started, self.resumed = started, state is not None
        self.interrupts = cb.Interrupts()
        self.imitation: dict[str, Any] | None = None
        self.clocks = Clocks()
        self.begun_at, self.stepped_s = 0, 0.0  # decisions, and seconds of stepping, when learning began
        self.env = self._vector_env(state)
        self.model = self._model()
        if state is None:
            self.env.reset()
        self.ready = time.monotonic()  # imports and compiling are over: the limit on wall-clock time starts here
        if state is None and config.get("overwrite"):
            runs.clear(out)  # nothing is wrong with the new one up to here
        with atomic_write(out / runs.CONFIG_FILE) as temporary:
            temporary.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
        self.logger = build_logger(out, config.get("logger"), config,
                                   None if state is None else int(state["model"]["num_timesteps"]))
        self.model.set_logger(self.logger)
        self.callbacks = self._callbacks()
        if state is not None:
            runs.restore(self, state)

    def _vector_env(self, state: dict[str, Any] | None) -> Any:
        if state is not None:
            return RewardScale(state["venv"])
        config = self.config["env"]
        env = training_env(config, self.agent["n_envs"], int(self.config["seed"]), self.config.get("window_s"))
        check_action_space(env.single_action_space, config["id"])
        wrapped: Any = GymnasiumVecEnv(env, info_keys=())
        history = history_of(self.agent)
        return RewardScale(wrapped if history == 1 else ClusterHistory(wrapped, history))

    def _model(self) -> Any:
        check_observation_space(self.env.observation_space)
        return build_model(self.env, self.agent, int(self.config["seed"]))

    def _callbacks(self) -> list[Any]:
        config, settings = self.config, plain(self.config.get("validation") or {})
        limit, every = config.get("max_wall_s"), config.get("checkpoint_every_steps")
        limit_s, every_s = (None if value is None else float(value)
                            for value in (limit, config.get("checkpoint_every_s")))
        self.figures = cb.Figures()
        self.between = cb.Between(self._keep, int(every) if every else None, every_s, self.interrupts, limit_s,
                                  self._learned_s)
        self.progress = cb.Progress(config["total_timesteps"], limit_s, self._learned_s)
        self.validation: cb.Validation | None = None
        self.tracking = Tracking(config.get("logger"))
        self.validation_envs: list[Any] = []
        callbacks: list[Any] = [self.between, cb.TimedTransitions(), self.figures,
                                self.tracking]
        if self.agent.get("lagrangian"):
            callbacks.append(lagrangian(self))
        if imitated(self.agent) is not None:
            callbacks.append(cb.CriticFirst(int(self.agent["imitate"]["critic_first_updates"])))
        if settings.get("windows"):
            self.validation_config = with_length(config["env"], settings.get("window_s"))
            self.validation_windows = windows(split_seeds(config["env"], "validation"), int(settings["windows"]))
            self.validation = cb.Validation(
                self._play_validation, self.out / runs.POLICY_FILE, int(settings["every_steps"]),
                float(settings["violation_limit"]), first=imitated(self.agent) is not None)
            callbacks.append(self.validation)
        if every:
            callbacks.append(cb.Checkpoints(self.out / "checkpoints", int(every)))
        # Scaling is refreshed last: validation and checkpoints at a rollout's start see what the update produced.
        return [*callbacks, cb.ObservationStatistics(), self.progress]

    def _learned_s(self) -> float:
        """Seconds of learning so far: what `max_wall_s` limits."""
        return self.clocks.so_far_s("learning") - self.clocks.so_far_s("validation")

    def _play_validation(self) -> list[dict[str, Any]]:
        with self.clocks("validation"):
            player = self.tracking.watched(self._player(), self.validation_windows)
            return self.tracking.validated(play(
                self.validation_config, player, self.validation_windows, envs=self.validation_envs,
                told=lambda done, of: self.progress.text(f"validating {done}/{of}")))

    def _player(self) -> Any:
        actor = Actor(self.model.policy)

        def decide(*parts: np.ndarray) -> np.ndarray:
            if self.interrupts.asked:
                raise cb.Stop
            return actor.answer(*parts)[0]

        return BatchPlayer("training", decide, history_of(self.agent))

    def learn(self) -> None:
        """Learns and saves; an interrupt saves too."""
        whole = True  # whether training stands between two rollouts, where its state can be kept
        self.progress.begin()
        with self.interrupts:
            try:
                if not self.resumed:
                    with self.clocks("preparation"):
                        self.imitation = prepare(self)
                    self._begin()
                    self.between.keep()  # whoever ends it from now on can go on from here
                self.interrupts.patient = True
                with self.clocks("learning"):
                    self._learn()
            except KeyboardInterrupt:
                self.interrupts.asked, whole = True, False
            if whole:
                self._keep()
            self._save()

    def _begin(self) -> None:
        """Starts learning from where the environments stand, which are not reset once more."""
        self.model._last_obs = self.model._last_original_obs = self.env.venv.latest
        self.model._last_episode_starts = np.ones(self.env.num_envs, bool)

    def _learn(self) -> None:
        self.begun_at, self.stepped_s = self.model.num_timesteps, self.env.unwrapped.wall_s
        left = int(self.config["total_timesteps"]) - self.begun_at
        with suppress(cb.Stop):
            self.model.learn(left, callback=self.callbacks, log_interval=1, reset_num_timesteps=False)
        if self.validation is not None and not self.judged and not self.interrupts.asked:
            with suppress(cb.Stop):
                self.validation.validate()

    def _keep(self) -> None:
        if self.config.get("resumable", True):
            runs.write_state(self)

    @property
    def judged(self) -> bool:
        """Whether the policy as it stands has been validated, or never is."""
        if self.validation is None:
            return True
        history = self.validation.history
        return bool(history) and history[-1]["timesteps"] == self.model.num_timesteps

    def _save(self) -> None:
        cb.save(self.model, self.out / runs.LAST_FILE)
        if self.validation is None or self.validation.best is None:
            cb.save(self.model, self.out / runs.POLICY_FILE)
        kept = runs.load_model(self.config, self.out / runs.POLICY_FILE)
        write_json(self.out / runs.SCALE_FILE, describe_scale(kept))
        self.logger.dump(self.model.num_timesteps)

    def close(self) -> None:
        """Closes bar, logger and environments."""
        self.progress.stop()
        self.logger.close()
        self.env.close()
        close_all(self.validation_envs)

    def summary(self) -> dict[str, Any]:
        """The machine-readable account of the run; seconds and decisions per second are those of this call."""
        steps, between = int(self.model.num_timesteps), self.between
        reason = "interrupt" if self.interrupts.asked else "max_wall_s" if between.expired else "total_timesteps"
        by = {"signal": self.interrupts.signal.name} if reason == "interrupt" else {}
        return {
            "command": "train", "agent": recipe_of(self.agent), "network": self.agent["network"],
            "env": self.config["env"]["id"], "seed": int(self.config["seed"]), "timesteps": steps,
            "resumed": self.resumed, "stopped_by": reason, **by, "episodes": self.figures.episodes,
            "updates": int(self.model._n_updates), **self._times(),
            "imitation": self.imitation, "best": self.validation.best if self.validation is not None else None,
            "validation": self.validation.history if self.validation is not None else [],
            "validation_window_s": None if self.validation is None else self.validation_config.get("window_s"),
            "logger": logger_settings(self.config.get("logger"))["name"],
            "files": sorted(path.name for path in self.out.iterdir() if not path.name.startswith(".")),
        }

    def _times(self) -> dict[str, Any]:
        """Where the time went. `decisions_per_s` is by the clock, `decisions_per_cpu_s` by the processor's time; both
        are of learning: of everything after the preparation, beside validation."""
        wall, cpu, decisions = self.clocks.wall_s, self.clocks.cpu_s, self.model.num_timesteps - self.begun_at
        learning_s = wall["learning"] - wall["validation"]
        spent = {"environment": self.env.unwrapped.wall_s - self.stepped_s, "validation": wall["validation"]}
        spent["network"] = max(0.0, wall["learning"] - sum(spent.values()))
        whole = max(wall["learning"], 1e-9)
        return {
            "wall_s": time.monotonic() - self.started, "setup_wall_s": self.ready - self.started,
            "preparation_wall_s": wall["preparation"], "validation_wall_s": wall["validation"],
            "learning_wall_s": learning_s, "learning_cpu_s": cpu["learning"] - cpu["validation"],
            "decisions": decisions, "decisions_per_s": decisions / max(learning_s, 1e-9),
            "decisions_per_cpu_s": decisions / max(cpu["learning"] - cpu["validation"], 1e-9),
            "time": {part: {"wall_s": seconds, "share": seconds / whole} for part, seconds in spent.items()},
        }


def prepare(trainer: Trainer) -> dict[str, Any] | None:
    """Scales observations and, if the agent asks for it, imitates; returns how well, None without imitation."""
    agent, rule = trainer.agent, imitated(trainer.agent)
    if rule is None:
        play_and_scale(trainer.model, trainer.env.venv, int(agent["scale_decisions"]), int(trainer.config["seed"]))
        return None
    teacher = learn_best if rule == BEST else learn_searched if rule == SEARCH else learn_rule
    return teacher(trainer, plain(agent["imitate"]))


class Clocks:
    """Adds up seconds by the clock and of the processor, by what they are spent on: `with clocks("learning"): ...`."""

    def __init__(self) -> None:
        self.wall_s: dict[str, float] = defaultdict(float)
        self.cpu_s: dict[str, float] = defaultdict(float)
        self._since: dict[str, float] = {}

    def so_far_s(self, name: str) -> float:
        """Seconds by the clock under `name`, those that are just being spent included."""
        since = self._since.get(name)
        return self.wall_s[name] + (0.0 if since is None else time.perf_counter() - since)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Counts what is inside under `name`."""
        wall, cpu = time.perf_counter(), time.process_time()
        self._since[name] = wall
        try:
            yield
        finally:
            del self._since[name]
            self.wall_s[name] += time.perf_counter() - wall
            self.cpu_s[name] += time.process_time() - cpu


def describe_scale(model: Any) -> dict[str, Any]:
    """Returns the scaling stored in a policy: mean and deviation of each feature, as applied."""
    encoder: Any = model.policy.features_extractor
    return {"schema": "ooco-gym/normalisation/1", "formula": "clip((x - mean) / deviation, -8, 8)",
            "cluster": encoder.cluster.describe(), "candidates": encoder.candidates.describe()}
