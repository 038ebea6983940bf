"""`ooco-gym calibrate`: measurements of real engines, compared with the simulator's results."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ooco_gym.errors import unknown

if TYPE_CHECKING:
    from omegaconf import DictConfig

ACTIONS = {"fit": "ooco_gym.calibrate.command", "measure": "ooco_gym.calibrate.measure",
           "chain": "experiments.engines.chain", "replay": "experiments.engines.replay"}


def calibrate(cfg: DictConfig) -> dict[str, Any] | None:
    """Fits a chip, measures an engine, or simulates what an engine served (`chain`, `replay`)."""
    if cfg.action not in ACTIONS:
        raise unknown("action of ooco-gym calibrate", str(cfg.action), ACTIONS)
    return importlib.import_module(ACTIONS[cfg.action]).main(cfg)
