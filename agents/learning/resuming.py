"""The configuration with which a run of `ooco-gym train` resumes, and whether its folder is free for another."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf, open_dict

from agents.policies.runs import CONFIG_FILE, STATE_FILE, clear, holds_run, learned, read_config
from agents.search.optimisers import CMA
from ooco_gym.errors import UserError
from ooco_gym.report.pages import in_sweep
from ooco_gym.schema import plain

_ANEW = ("total_timesteps", "max_wall_s", "threads", "logger")  # may differ from the run's start
_LONGER = "agent.generations"  # of a search over whole episodes, which may have more than before


def check_free(config: Mapping[str, Any]) -> None:
    """Refuses to train into another run's folder, unless `config.overwrite` allows it; a run that was
    killed before it had learned anything is cleared away."""
    overwrite = config.get("overwrite")
    if overwrite not in (None, True, False):
        raise UserError(f"overwrite must be true or false, got {overwrite!r}")
    out = Path(config["out"])
    if not overwrite and learned(out):
        raise UserError(f"out={config['out']} holds a training run; continue it with resume={config['out']}, choose "
                        "another out, or replace it with overwrite=true")
    if not overwrite and holds_run(out):
        clear(out)


def go_on_in_sweep(cfg: Any) -> None:
    """Makes a started but unfinished point of a sweep resume from its last state; without a state it starts again."""
    if not in_sweep():
        return
    out = Path(cfg["out"])
    if cfg.get("resume") or cfg.get("overwrite") or not holds_run(out):
        return
    if (out / STATE_FILE).is_file():
        cfg["resume"] = str(out)
    else:
        clear(out)


def resumed_config(cfg: Any) -> dict[str, Any]:
    """Returns the configuration of the run `cfg.resume` with the new values of what may change, and
    overwrites `cfg` with it.

    Raises:
        UserError: the folder has no run or no state, or a value differs from the run's start.
    """
    asked = plain(cfg)
    folder = _folder_of(asked)
    kept, on_command_line = read_config(folder), HydraConfig.initialized()
    words = HydraConfig.get().overrides.task if on_command_line else list(asked)
    for word in words:
        key = word.partition("=")[0].lstrip("+~").partition("@")[0]
        if kept["agent"].get("name") == CMA and (
                key == _LONGER or (key == "agent" and asked["agent"].get("name") == CMA)):
            if key == _LONGER or not on_command_line:  # on a command line, agent=cma says no more than its name
                kept["agent"]["generations"] = asked["agent"].get("generations")
        elif key.partition(".")[0] in _ANEW:
            kept[key.partition(".")[0]] = asked[key.partition(".")[0]]
        elif key not in ("resume", "out", "overwrite"):
            _check_same(key, asked, kept, folder)
    kept |= {"out": str(folder), "resume": None}
    if hasattr(cfg, "_metadata"):
        with open_dict(cfg):
            for key in list(cfg):
                del cfg[key]
            cfg.merge_with(OmegaConf.create(kept))
    return kept


def _folder_of(asked: Mapping[str, Any]) -> Path:
    """The folder of the run to resume.

    Raises:
        UserError: the folder has no run or no state, or `out` or `overwrite` contradict it.
    """
    folder = Path(asked["resume"])
    if not (folder / CONFIG_FILE).is_file():
        raise UserError(f"resume={folder} is not a training run: {CONFIG_FILE} is missing; expected the 'out' of "
                        "'ooco-gym train'")
    if not (folder / STATE_FILE).is_file():
        raise UserError(f"resume={folder} has no {STATE_FILE} to resume from: it ended before it learned, was "
                        "trained with resumable=false, or by agent=dqn; start a new training")
    if asked.get("overwrite"):
        raise UserError(f"overwrite=true would remove the run that resume={folder} continues; leave one of them out")
    if asked.get("out") is not None and Path(asked["out"]).absolute() != folder.absolute():
        raise UserError(f"out={asked['out']} is not resume={folder}: a run continues in its own folder; drop out=")
    return folder


def _check_same(key: str, asked: Mapping[str, Any], kept: Mapping[str, Any], folder: Path) -> None:
    """Refuses a value that differs from the run's start."""
    wanted, had = (OmegaConf.select(OmegaConf.create(dict(config)), key) for config in (asked, kept))
    if wanted != had:
        what = key if isinstance(wanted, Mapping) or isinstance(had, Mapping) else f"{key}={wanted}"
        raise UserError(f"{what} differs from the run in '{folder}': a resumed run keeps its configuration; leave out "
                        f"{key}, or start a new training")
