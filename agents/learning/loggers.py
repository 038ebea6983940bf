"""Where training metrics go: always to `progress.csv`, and to Weights & Biases or TensorBoard if asked."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from hydra.core.hydra_config import HydraConfig
from stable_baselines3.common.logger import (
    CSVOutputFormat,
    KVWriter,
    Logger,
    TensorBoardOutputFormat,
    filter_excluded_keys,
)

from agents.settings import require
from ooco_gym.errors import unknown
from ooco_gym.report.pages import in_sweep
from ooco_gym.schema import plain

STEP = "decisions"  # the x-axis: decisions taken in training, over all episodes side by side
LOGGERS = ("none", "tensorboard", "wandb")
MODES = ("online", "offline", "disabled")
LONGEST_GROUP = 128  # characters that W&B accepts


class WandbOutputFormat(KVWriter):
    """Sends the logger's metrics to a Weights & Biases run, with the number of decisions as x-axis.

    A `resumed` training continues the folder's last online run. Offline it starts another run of
    the same group, since `wandb sync` would overlay two files of one run, both from step 0 on.
    """

    def __init__(self, folder: Path, options: Mapping[str, Any], config: Mapping[str, Any],
                 resumed: bool = False) -> None:
        # W&B would otherwise advertise an integration for another project called `agents`.
        os.environ.setdefault("WANDB_DISABLE_WEAVE", "true")
        mode = _wandb_mode(options)
        import wandb

        known = sorted((folder / "wandb").glob("run-*-*"), key=lambda path: path.stat().st_mtime)
        before = known[-1].name.rpartition("-")[2] if resumed and known and mode == "online" else None
        self.run = wandb.init(
            entity=options.get("entity"),
            project=options.get("project") or "ooco-gym",
            name=options.get("run_name"),
            group=options.get("group") or _setting() or folder.absolute().name,
            tags=list(options.get("tags") or []),
            dir=str(folder),
            mode=mode,  # type: ignore[arg-type]
            id=before, resume=None if before is None else "allow",
            config=dict(config),
            settings=wandb.Settings(console="off", silent=True, disable_git=True, save_code=False),
        )
        self.run.define_metric(STEP, hidden=True)
        self.run.define_metric("*", step_metric=STEP)

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, Any], step: int = 0) -> None:
        """Logs one dump: numbers, and histograms of arrays of whole numbers."""
        import wandb

        logged: dict[str, Any] = {STEP: step}
        for key, value in filter_excluded_keys(key_values, key_excluded, "wandb").items():
            if isinstance(value, np.ndarray):
                counts = np.bincount(value, minlength=1)
                logged[key] = wandb.Histogram(np_histogram=(counts, np.arange(len(counts) + 1) - 0.5))
            elif isinstance(value, (int, float, np.number)):
                logged[key] = float(value)
        self.run.log(logged)

    def close(self) -> None:
        """Ends and writes out the run."""
        self.run.finish(exit_code=int(sys.exc_info()[0] is not None))


def _setting() -> str | None:
    """The overrides of a sweep's point without its seed, so that W&B groups the seeds of a setting."""
    if not in_sweep():
        return None
    given = (word for word in HydraConfig.get().overrides.task if word.partition("=")[0] not in ("seed", "out"))
    return ", ".join(sorted(given))[:LONGEST_GROUP] or None


def _wandb_mode(options: Mapping[str, Any]) -> str:
    """Returns the mode: WANDB_MODE, else the configuration's. Without a login, `online` becomes
    `offline`, so that nothing prompts for a password.

    Raises:
        UserError: no such mode.
    """
    import wandb

    mode = os.environ.get("WANDB_MODE") or options.get("mode") or "online"
    if mode not in MODES:
        raise unknown("logger.mode", mode, MODES)
    return "offline" if mode == "online" and not wandb.login(prompt=False, verify=False) else mode


def checked_logger(options: Any) -> dict[str, Any]:
    """Returns the `logger` configuration (a mapping, a name, or nothing) as a mapping with a `name`.

    Raises:
        UserError: the name is unknown, or its package is not installed.
    """
    settings = {"name": options} if isinstance(options, str) else {"name": "none", **plain(options or {})}
    if settings["name"] not in LOGGERS:
        raise unknown("logger", settings["name"], LOGGERS)
    if settings["name"] != "none":
        require(settings["name"])
    return settings


def build_logger(folder: Path, options: Any, config: Mapping[str, Any], after: int | None = None,
                 table: bool = True) -> Logger:
    """Returns Stable-Baselines3's logger for `options.name` (none, tensorboard or wandb), writing below `folder`.

    Without `table` there is no progress.csv: the caller writes its own table. A run that is resumed `after` that many
    decisions continues its W&B run.

    Raises:
        UserError: the name or mode is unknown, or its package is not installed.
    """
    settings = checked_logger(options)
    outputs: list[KVWriter] = [CSVOutputFormat(str(folder / "progress.csv"))] if table else []
    if settings["name"] == "tensorboard":
        output = TensorBoardOutputFormat(str(folder / "tensorboard"))
        output.writer.add_text("config", f"```yaml\n{yaml.safe_dump(dict(config), sort_keys=False)}```", after or 0)
        outputs.append(output)
    if settings["name"] == "wandb":
        outputs.append(WandbOutputFormat(folder, settings, config, after is not None))
    return Logger(folder=str(folder), output_formats=outputs)
