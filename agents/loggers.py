"""Where training figures go: always `progress.csv`, and Weights & Biases or TensorBoard when asked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.logger import CSVOutputFormat, KVWriter, Logger, TensorBoardOutputFormat

from agents.environments import plain
from agents.extras import require
from ooco_gym.errors import unknown

LOGGERS = ("none", "tensorboard", "wandb")


class WandbOutputFormat(KVWriter):
    """Sends what the logger dumps to a Weights & Biases run, against the number of decisions as the x-axis."""

    def __init__(self, folder: Path, options: Mapping[str, Any], config: Mapping[str, Any]) -> None:
        # Our package `agents` has the name of another project that W&B would otherwise advertise an integration for.
        os.environ.setdefault("WANDB_DISABLE_WEAVE", "true")
        import wandb

        self.run = wandb.init(
            project=options.get("project") or "ooco-gym",
            name=options.get("run_name"),
            group=options.get("group"),
            tags=list(options.get("tags") or []),
            dir=str(folder),
            mode=_wandb_mode(options),  # type: ignore[arg-type]
            config=dict(config),
            settings=wandb.Settings(console="off", silent=True, disable_git=True, save_code=False),
        )
        self.run.define_metric("global_step")
        self.run.define_metric("*", step_metric="global_step")

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, Any], step: int = 0) -> None:
        """Logs all numbers of one dump."""
        numbers = {key: float(value) for key, value in key_values.items() if isinstance(value, (int, float, np.number))}
        self.run.log({**numbers, "global_step": step})

    def close(self) -> None:
        """Ends the run, which writes it out."""
        self.run.finish()


def _wandb_mode(options: Mapping[str, Any]) -> str:
    """WANDB_MODE decides, then the configuration; without a stored login, online becomes offline, never a prompt."""
    import wandb

    mode = os.environ.get("WANDB_MODE") or options.get("mode") or "offline"
    return "offline" if mode == "online" and not wandb.api.api_key else mode


def build_logger(folder: Path, options: Any, config: Mapping[str, Any]) -> Logger:
    """Returns Stable-Baselines3's logger for `options.name` (none, tensorboard or wandb), writing below `folder`.

    Raises:
        UserError: unknown name, or the package behind it is not installed.
    """
    settings = {"name": options} if isinstance(options, str) else plain(options or {"name": "none"})
    name = settings.get("name", "none")
    if name not in LOGGERS:
        raise unknown("logger", name, LOGGERS)
    outputs: list[KVWriter] = []
    if name != "none":
        require(name)
    outputs.append(CSVOutputFormat(str(folder / "progress.csv")))
    if name == "tensorboard":
        outputs.append(TensorBoardOutputFormat(str(folder / "tensorboard")))
    if name == "wandb":
        outputs.append(WandbOutputFormat(folder, settings, config))
    return Logger(folder=str(folder), output_formats=outputs)
