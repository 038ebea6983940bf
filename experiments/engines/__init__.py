"""`ooco-gym calibrate` and `ooco-gym engine`: what real engines do, and what the simulator says of the same."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ooco_gym.errors import unknown

if TYPE_CHECKING:
    from omegaconf import DictConfig

CALIBRATE = {"fit": "ooco_gym.calibrate.command", "measure": "ooco_gym.calibrate.measure",
             "chain": "experiments.engines.chain", "replay": "experiments.engines.replay"}
ENGINE = {"live": "experiments.live.study"}


def calibrate(cfg: DictConfig) -> dict[str, Any] | None:
    """Fits a chip, measures an engine, or serves what one has served again (`chain`, `replay`)."""
    return _run(cfg, "ooco-gym calibrate", CALIBRATE)


def engine(cfg: DictConfig) -> dict[str, Any] | None:
    """Plays schedulers in a real server (`live`)."""
    return _run(cfg, "ooco-gym engine", ENGINE)


def _run(cfg: DictConfig, command: str, actions: dict[str, str]) -> dict[str, Any] | None:
    if cfg.action not in actions:
        raise unknown(f"action of {command}", str(cfg.action), actions)
    return importlib.import_module(actions[cfg.action]).main(cfg)
