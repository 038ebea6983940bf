"""`ooco-gym train`: learns a policy for one environment and leaves a run folder that evaluate and export read."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from agents.environments import SPLITS, split_seeds
from agents.learning.algorithms import check_agent
from agents.learning.runs import POLICY_FILE, STATE_FILE, check_free, clear, holds_run, read_state, resumed_config
from agents.search.optimisers import is_search
from agents.settings import LARGEST_SEED, check_numbers, group, number, plain, positive_or_null, require, whole
from ooco_gym.documents import read_mapping
from ooco_gym.errors import UserError


def main(cfg: Any) -> dict[str, Any]:
    """Trains and returns the summary; the folder `cfg.out` then holds all that evaluate and export need.

    An agent that searches whole episodes (`agents.search.episodes`) leaves other files: docs/search.md.

    Files: `policy.zip` (best on validation), `policy_last.zip`, `normalisation.json`, `config.yaml`, `progress.csv`,
    `checkpoints/`, and the logger's own folder. Ctrl-C and SIGTERM end training after the update under way and save all
    that there is; `cfg.resume`, the folder of a run, goes on with it.

    Raises:
        UserError: unknown agent, network, logger or environment, a value out of range, a missing extra, nothing to
            resume, or a folder that holds another run (`cfg.overwrite` removes that).
    """
    started = time.monotonic()
    _go_on_in_sweep(cfg)
    config, state = plain(cfg), None
    resumed = bool(config.get("resume"))
    if resumed:
        config = resumed_config(cfg)
        _hand_back(cfg, config)
    if is_search(group(config, "agent")):
        if not resumed:
            check_free(config)
        from agents.search.command import run as run_search

        return run_search(config, resumed)
    agent = _checked(config)
    if not resumed:
        check_free(config)
    require("train")
    import torch

    from agents.learning.trainer import Trainer

    torch.set_num_threads(int(config.get("threads") or 1))
    out = Path(config["out"])
    out.mkdir(parents=True, exist_ok=True)
    if resumed:
        state = read_state(out)
        _check_unfinished(config, state)
    trainer = Trainer(config, agent, out, started, state)
    try:
        with closing(trainer):
            trainer.learn()
    except UserError:
        if state is None and not trainer.model.num_timesteps:
            clear(out)  # refused before it learned: this is no run that another would have to spare
        raise
    summary = trainer.summary()
    _show(summary, out)
    return summary


def _go_on_in_sweep(cfg: Any) -> None:
    """Lets a point of a sweep, which was begun before and not finished, go on: from its last state, or from nothing."""
    if not in_sweep() or cfg.get("resume") or cfg.get("overwrite") or not holds_run(Path(cfg["out"])):
        return
    out = Path(cfg["out"])
    if (out / STATE_FILE).is_file():
        cfg["resume"] = str(out)
    else:
        clear(out)


def in_sweep() -> bool:
    """Whether this is a point of a sweep of the command line."""
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    return HydraConfig.initialized() and not OmegaConf.is_missing(HydraConfig.get().job, "num")


def _hand_back(cfg: Any, config: dict[str, Any]) -> None:
    """Puts the configuration of the run that is resumed in the place of the one given, which is written beside it."""
    if hasattr(cfg, "_metadata"):
        from omegaconf import OmegaConf, open_dict

        with open_dict(cfg):
            for key in list(cfg):
                del cfg[key]
            cfg.merge_with(OmegaConf.create(config))


def _check_unfinished(config: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Refuses a run that has learned all it should, unless its last validation was interrupted, or it was killed before
    its summary was written."""
    done, total = int(state["model"]["num_timesteps"]), int(config["total_timesteps"])
    if done >= total and state["trainer"].get("judged", True) and _told(Path(config["out"]), done):
        raise UserError(f"the run in '{config['out']}' has learned from {done} decisions, and total_timesteps={total}; "
                        f"expected more, such as total_timesteps={2 * done}")


def _told(out: Path, done: int) -> bool:
    """Whether a run's summary says that it ended after so many decisions: it is written last."""
    try:
        summary = read_mapping(out / "summary.json")
    except UserError:  # not there, or damaged
        return False
    return summary.get("timesteps") == done and summary.get("stopped_by") != "interrupt"


def _checked(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the agent's settings after checking what a user may have got wrong."""
    agent = group(config, "agent")
    check_agent(agent)
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
    return agent


def _show(summary: Mapping[str, Any], out: Path) -> None:
    """Prints the outcome in a few lines."""
    print(f"trained to {summary['timesteps']:,} decisions, {summary['decisions']:,} of them in this call, stopped by "
          f"{summary['stopped_by']}")
    parts = {"learning": summary["learning_wall_s"], "validation": summary["validation_wall_s"],
             "preparation": summary["preparation_wall_s"], "setting up": summary["setup_wall_s"]}
    print(f"{summary['wall_s']:.0f} s in all:", ", ".join(f"{part} {wall_s:.1f} s" for part, wall_s in parts.items()))
    print(f"learning: {summary['decisions_per_s']:,.0f} decisions/s beside validation "
          f"({summary['decisions_per_cpu_s']:,.0f} per second of processor time)")
    print("of learning and validation:", ", ".join(f"{part} {time['wall_s']:.1f} s ({time['share']:.0%})"
                                                   for part, time in summary["time"].items()))
    best, window_s = summary["best"], summary["validation_window_s"]
    if best:
        print(f"kept the policy of {best['timesteps']:,} decisions: validation reward {best['reward']:.2f}, "
              f"violation rate {best['violation_rate']:.2%} over {best['windows']} windows"
              + (f" of {window_s:g} s" if window_s else ""))
    print(f"policy: {out / POLICY_FILE}")
