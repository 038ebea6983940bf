"""`ooco-gym experiment NAME`: a study made of several commands, `main(cfg)` of a module of this folder."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ooco_gym.errors import unknown

if TYPE_CHECKING:
    from omegaconf import DictConfig

NAMES = ("bros", "deadline", "echo", "engine_chain", "hygen", "oracle_vllm", "replay")


def main(cfg: DictConfig) -> dict[str, Any]:
    """Runs the experiment that `cfg.name` names.

    Raises:
        UserError: there is none of this name.
    """
    name = str(cfg.name)
    if name not in NAMES:
        raise unknown("experiment", name, NAMES)
    return {"name": name, **importlib.import_module(f"experiments.studies.{name}").main(cfg)}
