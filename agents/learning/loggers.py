"""Where training figures go: always `progress.csv`, and Weights & Biases or TensorBoard when asked."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from stable_baselines3.common.logger import (
    CSVOutputFormat,
    KVWriter,
    Logger,
    TensorBoardOutputFormat,
    filter_excluded_keys,
)

from agents.learning.dashboard import STEP, summaries
from agents.learning.runs import CONFIG_FILE, POLICY_FILE, SCALE_FILE, read_config
from agents.search.checkpoints import FILES as SEARCHED_FILES
from agents.search.checkpoints import searched_policy
from agents.settings import plain, require
from ooco_gym import report
from ooco_gym.errors import UserError, unknown

LOGGERS = ("none", "tensorboard", "wandb")
MODES = ("online", "offline", "disabled")
BUNDLE = "bundle"  # folder of the exported policy, below the run's


class Table(str):
    """A table of figures: rows and columns for W&B, Markdown (the text that it is) for TensorBoard.

    Args:
        rows: one list of cells each; None where there is no figure.
    """

    columns: list[str]
    rows: list[list[Any]]

    def __new__(cls, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
        """Writes the Markdown."""
        cells = [[report.as_text(value, ".5g") if isinstance(value, float) else value for value in row] for row in rows]
        table = super().__new__(cls, report.Table("", columns, cells, align="l").markdown())
        table.columns, table.rows = list(columns), [list(row) for row in rows]
        return table


class WandbOutputFormat(KVWriter):
    """Sends what the logger dumps to a Weights & Biases run, against the number of decisions as the x-axis; `resumed`:
    to the folder's last one, instead of another."""

    def __init__(self, folder: Path, options: Mapping[str, Any], config: Mapping[str, Any],
                 resumed: bool = False) -> None:
        # Our package `agents` has the name of another project that W&B would otherwise advertise an integration for.
        os.environ.setdefault("WANDB_DISABLE_WEAVE", "true")
        mode = _wandb_mode(options)
        import wandb

        self._folder, self._bundle, self._tracked = folder, bool(options.get("bundle", True)), mode != "disabled"
        known = sorted((folder / "wandb").glob("*run-*-*"), key=lambda path: path.stat().st_mtime) if resumed else []
        before = known[-1].name.rpartition("-")[2] if known else None
        self.run = wandb.init(
            entity=options.get("entity"),
            project=options.get("project") or "ooco-gym",
            name=options.get("run_name"),
            group=options.get("group"),
            tags=list(options.get("tags") or []),
            dir=str(folder),
            mode=mode,  # type: ignore[arg-type]
            id=before, resume=None if before is None else "allow",
            config=dict(config),
            settings=wandb.Settings(console="off", silent=True, disable_git=True, save_code=False),
        )
        self.run.define_metric(STEP, hidden=True)
        self.run.define_metric("*", step_metric=STEP)
        for name, kept in summaries().items():
            self.run.define_metric(name, step_metric=STEP, summary=kept)

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, Any], step: int = 0) -> None:
        """Logs one dump: numbers, histograms (arrays of whole numbers) and tables."""
        kept = filter_excluded_keys(key_values, key_excluded, "wandb")
        logged = {key: _wandb_value(value) for key, value in kept.items()}
        self.run.log({**{key: value for key, value in logged.items() if value is not None}, STEP: step})

    def close(self) -> None:
        """Hands over the trained policy and ends the run, which writes it out."""
        failed = sys.exc_info()[0] is not None
        there = (self._folder / POLICY_FILE).is_file() or searched_policy(self._folder) is not None
        if self._tracked and self._bundle and not failed and there:
            self.run.log_artifact(policy_artifact(self._folder))
        self.run.finish(exit_code=int(failed))


def _wandb_value(value: Any) -> Any:
    """A value as W&B takes it; None for what it has no form of."""
    import wandb

    if isinstance(value, Table):
        return wandb.Table(columns=list(value.columns), data=value.rows)  # type: ignore[arg-type]
    if isinstance(value, np.ndarray):
        counts = np.bincount(value, minlength=1)
        return wandb.Histogram(np_histogram=(counts, np.arange(len(counts) + 1) - 0.5))
    return float(value) if isinstance(value, (int, float, np.number)) else None


def policy_artifact(folder: Path) -> Any:
    """The kept policy of a run folder as a W&B artifact: its bundle (left in `bundle/`), or without onnx its own files.

    The files stay where they are, and W&B's record of an offline run points there.
    """
    import wandb

    from agents.learning.export import main as export

    if searched_policy(folder) is not None:
        files, kind = [folder / name for name in SEARCHED_FILES], "search"
    else:
        try:
            summary = export({"policy": str(folder), "out": str(folder / BUNDLE), "checks": 200})
            files, kind = [folder / BUNDLE / name for name in summary["files"]], "bundle"
        except UserError as error:  # no onnx, or a policy that no graph can hold
            print(f"no bundle of this run's policy, its own files are tracked instead: {error}", file=sys.stderr)
            files, kind = [folder / POLICY_FILE], "run"
        files.append(folder / SCALE_FILE)
    # The environment's name as W&B allows it in that of an artifact: `gating` of ooco_gym/Gating-v0.
    name = str(read_config(folder)["env"]["id"]).rpartition("/")[2].rpartition(":")[2].rpartition("-")[0] or "run"
    artifact = wandb.Artifact(f"policy-{re.sub('[^a-z0-9]', '-', name.lower())}", type="model", metadata={"kind": kind})
    for path in [*files, folder / CONFIG_FILE]:
        if path.is_file():
            artifact.add_file(str(path.resolve()), name=path.name, policy="immutable", skip_cache=True)
    return artifact


def _wandb_mode(options: Mapping[str, Any]) -> str:
    """WANDB_MODE decides, then the configuration, then whether there is a login; without one it is never online, so
    that nothing asks for a password.

    Raises:
        UserError: no such mode.
    """
    import wandb

    mode = os.environ.get("WANDB_MODE") or options.get("mode") or "online"
    if mode not in MODES:
        raise unknown("logger.mode", mode, MODES)
    return "offline" if mode == "online" and not wandb.login(prompt=False, verify=False) else mode


def logger_settings(options: Any) -> dict[str, Any]:
    """The `logger` configuration as a mapping with a `name`: of a mapping, a name, or nothing."""
    return {"name": options} if isinstance(options, str) else {"name": "none", **plain(options or {})}


def checked_logger(options: Any) -> dict[str, Any]:
    """The same, after a look at whether there is such a logger.

    Raises:
        UserError: unknown name, or the package behind it is not installed.
    """
    settings = logger_settings(options)
    if settings["name"] not in LOGGERS:
        raise unknown("logger", settings["name"], LOGGERS)
    if settings["name"] != "none":
        require(settings["name"])
    return settings


def build_logger(folder: Path, options: Any, config: Mapping[str, Any], after: int | None = None,
                 table: bool = True) -> Logger:
    """Returns Stable-Baselines3's logger for `options.name` (none, tensorboard or wandb), writing below `folder`.

    Without `table` there is no progress.csv: what is logged keeps a table of its own.

    A run that is resumed `after` so many decisions goes on in its W&B run; TensorBoard forgets what it was shown of the
    decisions that come again.

    Raises:
        UserError: unknown name or mode, or the package behind it is not installed.
    """
    settings = checked_logger(options)
    name = settings["name"]
    outputs: list[KVWriter] = [CSVOutputFormat(str(folder / "progress.csv"))] if table else []
    if name == "tensorboard":
        output = TensorBoardOutputFormat(str(folder / "tensorboard"))
        if after is None:
            text = yaml.safe_dump(dict(config), sort_keys=False)
            output.writer.add_text("config", f"```yaml\n{text}```", 0)
        else:
            from torch.utils.tensorboard import SummaryWriter

            output.writer.close()
            output.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=after + 1)
        outputs.append(output)
    if name == "wandb":
        outputs.append(WandbOutputFormat(folder, settings, config, after is not None))
    return Logger(folder=str(folder), output_formats=outputs)

