"""`ooco-gym train`: learns a policy for one environment and leaves a run folder that evaluate and export read."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from agents.environments import SPLITS, parameter_count, split_seeds, training_env, windows, with_length
from agents.learning import resuming
from agents.learning.algorithms import build_model, check_agent
from agents.policies import runs
from agents.policies.runs import imitated, recipe_of
from agents.search.optimisers import is_search
from agents.settings import LARGEST_SEED, check_numbers, group, number, plain, positive_or_null, require, whole
from ooco_gym.errors import UserError
from ooco_gym.files import atomic_write


def main(cfg: Any) -> dict[str, Any]:
    """Trains and returns the summary; the folder `cfg.out` then holds all that evaluate and export need.

    An agent that searches whole episodes (`agents.search.episodes`) leaves other files: docs/training.md.

    Files: `policy.zip` (best on validation), `policy_last.zip`, `config.yaml`, `progress.csv`, `checkpoints/`, and the
    logger's own folder. Ctrl-C and SIGTERM end training after the update under way and save all
    that there is; `cfg.resume`, the folder of a run, goes on with it.

    Raises:
        UserError: unknown agent, logger or environment, a value out of range, a missing extra, nothing to
            resume, or a folder that holds another run (`cfg.overwrite` removes that).
    """
    started = time.monotonic()
    resuming.go_on_in_sweep(cfg)
    config, resumed = plain(cfg), bool(cfg.get("resume"))
    if resumed:
        config = resuming.resumed_config(cfg)
    else:
        resuming.check_free(config)
    if is_search(group(config, "agent")):
        from agents.search.command import run as run_search

        return run_search(config, resumed, _tracked_search(config))
    _check(config)
    require("train")
    import torch

    from agents.learning.state import read_state

    torch.set_num_threads(int(config.get("threads") or 1))
    out = Path(config["out"])
    out.mkdir(parents=True, exist_ok=True)
    summary = _learn(config, out, read_state(config) if resumed else None, started)
    _show(summary, out)
    return summary


def _tracked_search(config: Mapping[str, Any]) -> Any:
    """What makes the logger of a search; None where none is asked for."""
    options = config.get("logger")
    if (options if isinstance(options, str) else plain(options or {}).get("name", "none")) == "none":
        return None
    require("train")
    from agents.learning.loggers import build_logger

    return lambda out, after: build_logger(out, options, config, after, table=False)


def _learn(config: dict[str, Any], out: Path, state: dict[str, Any] | None, started: float) -> dict[str, Any]:
    """Learns, saves, and returns the summary."""
    with ExitStack() as opened:
        training = _Training(config, out, state, opened)
        training.open()
        training.watch()
        training.learn()
        training.save()
    return training.summary(started)


class _Training:
    """One call of `train`: environments, model and callbacks, in the order in which they are made.

    Args:
        config: as composed, checked.
        out: the run's folder.
        state: what a run that is resumed was left with; None for a new one.
        opened: closes what is opened.
    """

    def __init__(self, config: dict[str, Any], out: Path, state: dict[str, Any] | None, opened: ExitStack) -> None:
        from agents.learning import callbacks as cb
        from agents.learning.loggers import checked_logger

        self.config, self.out, self.state, self.opened = config, out, state, opened
        self.agent, self.seed = plain(config["agent"]), int(config["seed"])
        self.logging = checked_logger(config.get("logger"))
        self.clock, self.interrupts = cb.Clock(config.get("max_wall_s")), cb.Interrupts()
        self.imitated_as: dict[str, Any] | None = None
        self.preparation_s = 0.0

    # --- Environments and model ---
    def open(self) -> None:
        """Makes environments, model and logger; a new run's folder is cleared once nothing is wrong with them."""
        from agents.evaluation.players import close_all
        from agents.learning.loggers import build_logger
        from agents.learning.vector import RewardScale
        from agents.policies.networks import check_observation_space

        self.venv: Any = self._vector() if self.state is None else self.state["venv"]
        self.env: Any = RewardScale(self.venv)
        self.opened.callback(self.env.close)
        check_observation_space(self.env.observation_space, parameter_count(self.env))
        self.model = self._model()
        if self.state is None:
            self.env.reset()
            if self.config.get("overwrite"):
                runs.clear(self.out)
        self.ready = time.monotonic()  # imports and compiling are over: the limit on wall-clock time starts here
        with atomic_write(self.out / runs.CONFIG_FILE) as temporary:
            temporary.write_text(yaml.safe_dump(self.config, sort_keys=False), encoding="utf-8")
        known = None if self.state is None else int(self.model.num_timesteps)
        self.logger = build_logger(self.out, self.logging, self.config, known)
        self.opened.callback(self.logger.close)
        self.model.set_logger(self.logger)
        self.judges: list[Any] = []  # environments of the validation
        self.opened.callback(close_all, self.judges)

    def _vector(self) -> Any:
        from agents.learning.vector import GymnasiumVecEnv
        from agents.policies.networks import check_action_space

        inner = training_env(self.config["env"], self.agent["n_envs"], self.seed, self.config.get("window_s"))
        check_action_space(inner.single_action_space, self.config["env"]["id"])
        return GymnasiumVecEnv(inner, info_keys=())

    def _model(self) -> Any:
        from agents.learning import imitation
        from agents.learning.state import model_of

        if self.state is not None:
            return model_of(self.state, self.env, self.agent)
        if self.agent.get("n_steps") is None:
            self.agent["n_steps"] = imitation.steps_of(self.venv, float(self.agent["rollout_s"]), self.seed)
        return build_model(self.env, self.agent, self.seed)

    # --- Callbacks ---
    def watch(self) -> None:
        """Makes the callbacks, in the order in which they are asked, and gives them what a resumed run left."""
        from agents.learning import callbacks as cb
        from agents.learning.lagrangian import lagrangian
        from agents.learning.state import restore

        config, every = self.config, self.config.get("checkpoint_every_steps")
        self.shares, self.figures = cb.Shares(), cb.Figures(self.logging["name"] != "none")
        self.progress = cb.Progress(config["total_timesteps"], self.clock)
        self.opened.callback(self.progress.stop)
        self.between = cb.Between(self.keep, int(every) if every else None, config.get("checkpoint_every_s"),
                                  self.interrupts, self.clock)
        self.callbacks: list[Any] = [self.shares, self.between, self.figures]
        if self.agent.get("lagrangian"):
            self.callbacks.append(lagrangian(config, self.agent, self.model, self.env))
        if imitated(self.agent) is not None:
            self.callbacks.append(cb.CriticFirst(int(self.agent["imitate"]["critic_first_updates"])))
        self.validation = self._validation()
        if self.validation is not None:
            self.callbacks.append(self.validation)
        if every:
            self.callbacks.append(cb.Checkpoints(self.out / runs.CHECKPOINTS, int(every)))
        # Scaling is refreshed last: validation and checkpoints at a rollout's start see what the update produced.
        self.callbacks += [cb.ObservationStatistics(), self.progress]
        if self.state is not None:
            restore(self.model, self.callbacks, self.state)
            self.imitated_as = self.state["trainer"]["imitation"]

    def _validation(self) -> Any:
        """What judges the policy now and then; None where nothing does."""
        from agents.learning import callbacks as cb

        checks = plain(self.config.get("validation") or {})
        self.length = with_length(self.config["env"], checks.get("window_s"))
        if not checks.get("windows"):
            return None
        games = windows(split_seeds(self.config["env"], "validation"), int(checks["windows"]))
        return cb.Validation(self.length, games, self.judges, self.out / runs.POLICY_FILE, checks,
                             imitated(self.agent) is not None, self.interrupts, self.clock, self.progress)

    def keep(self) -> None:
        """Keeps what `resume` goes on from."""
        from agents.learning.state import write_state

        if self.config.get("resumable", True):
            judged = self.validation is None or self.validation.judged
            write_state(self.out, self.model, self.callbacks, {
                "imitation": self.imitated_as, "timesteps": int(self.model.num_timesteps), "judged": judged})

    # --- Learning: an interrupt saves too ---
    def learn(self) -> None:
        """Learns to the end, to the limit on wall-clock time, or until it is interrupted; keeps its state where it
        stands between two rollouts."""
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
                    runs.clear(self.out)  # refused before it learned: this is no run that another would have to spare
                raise
            if whole_rollouts:
                self.keep()

    def _begin(self) -> None:
        """Scales or imitates; whoever ends it from now on can go on from here."""
        self.imitated_as = _prepare(self)
        self.preparation_s = time.monotonic() - self.ready
        self.model._last_obs = self.model._last_original_obs = self.venv.latest  # not reset once more
        self.model._last_episode_starts = np.ones(self.env.num_envs, bool)
        self.between.keep()

    def _go_on(self) -> None:
        from agents.learning import callbacks as cb

        with self.clock:
            with suppress(cb.Stop):
                self.model.learn(int(self.config["total_timesteps"]) - self.begun_at, callback=self.callbacks,
                                 log_interval=1, reset_num_timesteps=False)
            with suppress(cb.Stop):
                if self.validation is not None and not self.validation.judged and not self.interrupts.asked:
                    self.validation.validate()

    def save(self) -> None:
        """Saves the last policy, and as the best one where none was judged; notes what the seconds went to."""
        from agents.learning import callbacks as cb

        cb.save(self.model, self.out / runs.LAST_FILE)
        if self.validation is None or self.validation.best is None:
            cb.save(self.model, self.out / runs.POLICY_FILE)
        self.logger.dump(self.model.num_timesteps)
        self.learning_shares = self.shares.of_seconds(self.clock.learned_s)

    def summary(self, started: float) -> dict[str, Any]:
        """What came out; seconds, and decisions per second, are those of this call."""
        stopped = "total_timesteps"
        if self.interrupts.asked or self.between.expired:
            stopped = "interrupt" if self.interrupts.asked else "max_wall_s"
        decisions, learning_s = int(self.model.num_timesteps) - self.begun_at, self.clock.learned_s
        validation = self.validation
        return {
            "command": "train", "agent": recipe_of(self.agent), "env": self.config["env"]["id"], "seed": self.seed,
            "timesteps": int(self.model.num_timesteps), "resumed": self.state is not None, "stopped_by": stopped,
            **({"signal": self.interrupts.signal.name} if stopped == "interrupt" else {}),
            "episodes": self.figures.episodes, "updates": int(self.model._n_updates),
            "wall_s": time.monotonic() - started, "setup_wall_s": self.ready - started,
            "preparation_wall_s": self.preparation_s, "validation_wall_s": self.clock.validation_s,
            "learning_wall_s": learning_s, "decisions": decisions,
            "decisions_per_s": decisions / max(learning_s, 1e-9), "learning_shares": self.learning_shares,
            "imitation": self.imitated_as, "best": None if validation is None else validation.best,
            "validation": [] if validation is None else validation.history,
            "validation_window_s": None if validation is None else self.length.get("window_s"),
            "logger": self.logging["name"],
            "files": sorted(path.name for path in self.out.iterdir() if not path.name.startswith(".")),
        }


def _prepare(training: Any) -> dict[str, Any] | None:
    """Scales observations and, if the agent asks for it, imitates; returns how well, None without imitation."""
    from agents.learning import imitation

    if imitated(training.agent) is None:
        imitation.play_and_scale(training.model, training.env.venv, int(training.agent["scale_decisions"]),
                                 int(training.config["seed"]))
        return None
    return imitation.learn_rule(training, plain(training.agent["imitate"]))


def _check(config: Mapping[str, Any]) -> None:
    """Checks what a user may have got wrong."""
    check_agent(group(config, "agent"))
    whole(config, "total_timesteps", 1)
    whole(config, "seed", 0, most=LARGEST_SEED)
    whole(config, "threads", 1)
    positive_or_null(config, "max_wall_s", "no limit")
    positive_or_null(config, "window_s", "the environment's own")
    validation = plain(config.get("validation") or {})
    if validation.get("windows"):
        check_numbers(validation, "validation", {"windows": 1, "every_steps": 1})
        number(validation, "violation_limit", most=1.0, name="validation.violation_limit")
        positive_or_null(validation, "window_s", "the environment's own", "validation.window_s")
    if config.get("checkpoint_every_steps"):
        whole(config, "checkpoint_every_steps", 0)
    positive_or_null(config, "checkpoint_every_s", "none by the clock")
    for split in SPLITS[:2]:
        split_seeds(group(config, "env"), split)


def _show(summary: Mapping[str, Any], out: Path) -> None:
    """Prints the outcome in a few lines."""
    print(f"trained to {summary['timesteps']:,} decisions, {summary['decisions']:,} of them in this call, stopped by "
          f"{summary['stopped_by']}")
    parts = {"learning": summary["learning_wall_s"], "validation": summary["validation_wall_s"],
             "preparation": summary["preparation_wall_s"], "setting up": summary["setup_wall_s"]}
    print(f"{summary['wall_s']:.0f} s in all:", ", ".join(f"{part} {wall_s:.1f} s" for part, wall_s in parts.items()))
    shares = ", ".join(f"{part} {share:.0%}" for part, share in summary["learning_shares"].items())
    print(f"learning: {summary['decisions_per_s']:,.0f} decisions/s beside validation ({shares})")
    best, window_s = summary["best"], summary["validation_window_s"]
    if best:
        print(f"kept the policy of {best['timesteps']:,} decisions: validation reward {best['reward']:.2f}, "
              f"violation rate {best['violation_rate']:.2%} over {best['windows']} windows"
              + (f" of {window_s:g} s" if window_s else ""))
    print(f"policy: {out / runs.POLICY_FILE}")
