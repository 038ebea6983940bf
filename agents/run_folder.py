"""The folder of a training run: whether one lies there, and how it makes room for another."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from agents.load import CONFIG_FILE, POLICY_FILE, SCALE_FILE
from ooco_gym.errors import UserError

LAST_FILE = "policy_last.zip"
CHECKPOINTS = "checkpoints"
_SUMMARY_FILE = "summary.json"
_LEFT = (_SUMMARY_FILE, CONFIG_FILE, POLICY_FILE, LAST_FILE, SCALE_FILE, "progress.csv", CHECKPOINTS, "wandb",
         "tensorboard", "bundle")


def holds_run(folder: Path) -> bool:
    """Whether a training run lies in a folder, whole or begun."""
    if any((folder / name).is_file() for name in (POLICY_FILE, LAST_FILE)):
        return True
    if any(True for pattern in ("step_*.zip", "latest.state") for _ in (folder / CHECKPOINTS).glob(pattern)):
        return True
    return (_read(folder / _SUMMARY_FILE).get("command") == "train"
            or {"agent", "total_timesteps"} <= set(_read(folder / CONFIG_FILE)))


def check_free(config: Mapping[str, Any]) -> None:
    """Refuses to train into the folder of another run, unless `config.overwrite` gives that away.

    Raises:
        UserError: a run lies in `config.out`, or `overwrite` is neither true nor false.
    """
    overwrite = config.get("overwrite")
    if overwrite not in (None, True, False):
        raise UserError(f"overwrite must be true or false, got {overwrite!r}")
    if not overwrite and holds_run(Path(config["out"])):
        raise UserError(f"out={config['out']} holds a training run; go on with it by resume={config['out']}, choose "
                        "another out, or remove it by overwrite=true")


def clear(folder: Path) -> None:
    """Removes what `ooco-gym train` leaves in a folder, and nothing else."""
    for path in (folder / name for name in _LEFT):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any]:
    """A file's mapping; empty where it has none."""
    try:
        text = path.read_text(encoding="utf-8")
        value = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return value if isinstance(value, dict) else {}
