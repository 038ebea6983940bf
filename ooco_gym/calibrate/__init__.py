"""`ooco-gym calibrate`: fits of a chip to measured operators, or to whole iterations of an engine.

`fit` (`command`) reads measurements of operators (`sources`), drops impossible ones (`rows`), fits
the forms of `ooco_gym.perf.timing` (`operators`, `steps`) and writes a chip (`chip`). `measure`
measures the iterations of an engine; `chain` fits and simulates these (`iterations`, `served`), and
`replay` simulates what any engine served, whose host time is fitted to its requests (`requests`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ooco_gym.errors import unknown

if TYPE_CHECKING:
    from omegaconf import DictConfig

ACTIONS = {"fit": "command", "measure": "measure", "chain": "chain", "replay": "replay"}


def main(cfg: DictConfig) -> dict[str, Any] | None:
    """Fits a chip, measures an engine, or simulates what an engine served (`chain`, `replay`)."""
    if cfg.action not in ACTIONS:
        raise unknown("action of ooco-gym calibrate", str(cfg.action), ACTIONS)
    return importlib.import_module(f"{__name__}.{ACTIONS[cfg.action]}").main(cfg)
