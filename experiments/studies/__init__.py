"""`ooco-gym experiment NAME`: a study made of several commands, `main(cfg)` of a module of this folder."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ooco_gym.errors import UserError, unknown

if TYPE_CHECKING:
    from omegaconf import DictConfig

NAMES = ("engine_chain", "engine_live", "replay")
MOVED = {name: f"figure name={name}/*" for name in ("bros", "echo", "hygen")}
KEYS = {"engine_chain": ("engine", "measured", "timing", "chip"), "engine_live": ("engine", "measured"),
        "replay": ("run", "prompts", "timings", "chip", "model", "tp", "device", "base", "chip_figures")}
"""Keys of `conf/experiment.yaml` that a study reads beside the block of its own name."""


def main(cfg: DictConfig) -> dict[str, Any]:
    """Runs the experiment that `cfg.name` names.

    Raises:
        UserError: there is none of this name.
    """
    name = str(cfg.name)
    if name in MOVED:
        raise UserError(f"'ooco-gym experiment {name}' is 'ooco-gym {MOVED[name]}' now")
    if name not in NAMES:
        raise unknown("experiment", name, NAMES)
    found = importlib.import_module(f"experiments.studies.{name}").main(cfg)
    _keep(cfg, ("name", "out", name, *KEYS.get(name, ())))
    return {"name": name, **found}


def _keep(cfg: DictConfig, keys: Sequence[str]) -> None:
    """Leaves the other studies' settings out of what is written to `config.yaml`."""
    from omegaconf import open_dict

    with open_dict(cfg):
        for key in [str(key) for key in cfg if key not in keys]:
            del cfg[key]
