"""`ooco-gym train`: learns a policy for one environment and leaves a run folder that evaluate and export read."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import yaml

from agents.environments import SPLITS, split_seeds, training_env, windows, with_length
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
    """Environments, model, callbacks; learns, saves, and returns the summary."""
    from agents.evaluation.players import close_all
    from agents.learning import callbacks as cb
    from agents.learning import imitation
    from agents.learning.lagrangian import lagrangian
    from agents.learning.loggers import build_logger, checked_logger
    from agents.learning.state import model_of, restore, write_state
    from agents.learning.vector import GymnasiumVecEnv, RewardScale
    from agents.policies.networks import check_action_space, check_observation_space

    agent, seed, logging = plain(config["agent"]), int(config["seed"]), checked_logger(config.get("logger"))
    interrupts, imitated_as = cb.Interrupts(), None
    with ExitStack() as opened:
        # --- Environments and model ---
        if state is None:
            inner = training_env(config["env"], agent["n_envs"], seed, config.get("window_s"))
            check_action_space(inner.single_action_space, config["env"]["id"])
            venv: Any = GymnasiumVecEnv(inner, info_keys=())
        else:
            venv = state["venv"]
        env: Any = RewardScale(venv)
        opened.callback(env.close)
        check_observation_space(env.observation_space)
        if state is None:
            if agent.get("n_steps") is None:
                agent["n_steps"] = imitation.steps_of(venv, float(agent["rollout_s"]), seed)
            model = build_model(env, agent, seed)
        else:
            model = model_of(state, env, agent)
        if state is None:
            env.reset()
            if config.get("overwrite"):
                runs.clear(out)  # nothing is wrong with the new one up to here
        ready = time.monotonic()  # imports and compiling are over: the limit on wall-clock time starts here
        with atomic_write(out / runs.CONFIG_FILE) as temporary:
            temporary.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
        logger = build_logger(out, logging, config, None if state is None else int(model.num_timesteps))
        opened.callback(logger.close)
        model.set_logger(logger)

        # --- Callbacks ---
        checks, every = plain(config.get("validation") or {}), config.get("checkpoint_every_steps")
        clock = cb.Clock(config.get("max_wall_s"))
        figures, progress = cb.Figures(logging["name"] != "none"), cb.Progress(config["total_timesteps"], clock)
        opened.callback(progress.stop)

        def keep() -> None:
            if config.get("resumable", True):
                write_state(out, model, callbacks, {"imitation": imitated_as, "timesteps": int(model.num_timesteps),
                                                    "judged": validation is None or validation.judged})

        between = cb.Between(keep, int(every) if every else None, config.get("checkpoint_every_s"), interrupts, clock)
        shares = cb.Shares()
        callbacks: list[Any] = [shares, between, figures]
        if agent.get("lagrangian"):
            callbacks.append(lagrangian(config, agent, model, env))
        if imitated(agent) is not None:
            callbacks.append(cb.CriticFirst(int(agent["imitate"]["critic_first_updates"])))
        validation: cb.Validation | None = None
        length = with_length(config["env"], checks.get("window_s"))
        if checks.get("windows"):
            games, envs = windows(split_seeds(config["env"], "validation"), int(checks["windows"])), []
            opened.callback(close_all, envs)
            validation = cb.Validation(length, games, envs, out / runs.POLICY_FILE, checks, imitated(agent) is not None,
                                       interrupts, clock, progress)
            callbacks.append(validation)
        if every:
            callbacks.append(cb.Checkpoints(out / runs.CHECKPOINTS, int(every)))
        # Scaling is refreshed last: validation and checkpoints at a rollout's start see what the update produced.
        callbacks += [cb.ObservationStatistics(), progress]
        if state is not None:
            restore(model, callbacks, state)
            imitated_as = state["trainer"]["imitation"]

        # --- Learning: an interrupt saves too ---
        preparation_s, whole_rollouts = 0.0, True  # whether it stands between two rollouts, where its state can be kept
        begun_at = int(model.num_timesteps)
        progress.begin()
        with interrupts:
            try:
                if state is None:
                    imitated_as = _prepare(SimpleNamespace(config=config, agent=agent, env=env, model=model))
                    preparation_s = time.monotonic() - ready
                    model._last_obs = model._last_original_obs = venv.latest  # not reset once more
                    model._last_episode_starts = np.ones(env.num_envs, bool)
                    between.keep()  # whoever ends it from now on can go on from here
                interrupts.patient = True
                with clock:
                    with suppress(cb.Stop):
                        model.learn(int(config["total_timesteps"]) - begun_at, callback=callbacks, log_interval=1,
                                    reset_num_timesteps=False)
                    with suppress(cb.Stop):
                        if validation is not None and not validation.judged and not interrupts.asked:
                            validation.validate()
            except KeyboardInterrupt:
                interrupts.asked, whole_rollouts = True, False
            except UserError:
                if state is None and not model.num_timesteps:
                    runs.clear(out)  # refused before it learned: this is no run that another would have to spare
                raise
            if whole_rollouts:
                keep()
            cb.save(model, out / runs.LAST_FILE)
            if validation is None or validation.best is None:
                cb.save(model, out / runs.POLICY_FILE)
            logger.dump(model.num_timesteps)

        learning_s = clock.learned_s
        learning = shares.of_seconds(learning_s)

    # --- Seconds, and decisions per second, are those of this call ---
    stopped = "interrupt" if interrupts.asked else "max_wall_s" if between.expired else "total_timesteps"
    decisions = int(model.num_timesteps) - begun_at
    return {
        "command": "train", "agent": recipe_of(agent), "env": config["env"]["id"],
        "seed": seed, "timesteps": int(model.num_timesteps), "resumed": state is not None, "stopped_by": stopped,
        **({"signal": interrupts.signal.name} if stopped == "interrupt" else {}), "episodes": figures.episodes,
        "updates": int(model._n_updates), "wall_s": time.monotonic() - started, "setup_wall_s": ready - started,
        "preparation_wall_s": preparation_s, "validation_wall_s": clock.validation_s, "learning_wall_s": learning_s,
        "decisions": decisions, "decisions_per_s": decisions / max(learning_s, 1e-9),
        "learning_shares": learning,
        "imitation": imitated_as, "best": None if validation is None else validation.best,
        "validation": [] if validation is None else validation.history,
        "validation_window_s": None if validation is None else length.get("window_s"), "logger": logging["name"],
        "files": sorted(path.name for path in out.iterdir() if not path.name.startswith(".")),
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
