"""What runs, in this process or in a worker of a sweep: one command with one configuration."""

from __future__ import annotations

import importlib
import os
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict

from ooco_gym.cli.choices import PLAIN
from ooco_gym.errors import UserError
from ooco_gym.extras import EXTRAS
from ooco_gym.files import atomic_write, write_json

OK, BUG, MISTAKE = 0, 1, 2        # exit codes


@dataclass(frozen=True)
class Outcome:
    """How a job ended, in a form that travels between processes."""

    code: int
    out: str
    error: str = ""
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class Task:
    """Calls a command's function; Hydra hands it the composed configuration."""

    command: str
    function: str
    cwd: str

    def __call__(self, cfg: DictConfig) -> Outcome:
        out = str(HydraConfig.get().runtime.output_dir)
        with suppress(OSError):         # a worker may have been started elsewhere: relative paths are the user's
            os.chdir(self.cwd)
        cfg = unwrap(cfg, out)
        try:
            summary = load(self.function)(cfg)
            return Outcome(OK, out, files=write_results(self.command, cfg, summary, out))
        except UserError as error:
            return Outcome(MISTAKE, out, one_line(error))
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in EXTRAS:
                return Outcome(BUG, out, traceback.format_exc())
            return Outcome(MISTAKE, out, f"{self.command} needs the package '{package}', which is not installed: "
                                         f"install ooco-gym[{EXTRAS[package]}]")
        except Exception:
            return Outcome(BUG, out, traceback.format_exc())


def load(function: str) -> Any:
    """Imports what `module:function` names."""
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)


def unwrap(cfg: DictConfig, out: str) -> DictConfig:
    """The configuration as commands see it: strings that the library reads are strings, and `out` is there."""
    with open_dict(cfg):
        for key in list(cfg):
            if not OmegaConf.is_missing(cfg, key) and isinstance(cfg[key], DictConfig) and PLAIN in cfg[key]:
                cfg[key] = cfg[key][PLAIN]
        cfg.out = out
    return cfg


def write_results(command: str, cfg: DictConfig, summary: Any, out: str) -> tuple[str, ...]:
    """Writes `config.yaml`, and `summary.json` where there is a summary; returns their names."""
    with atomic_write(os.path.join(out, "config.yaml")) as temporary:
        temporary.write_text(OmegaConf.to_yaml(cfg, resolve=True), encoding="utf-8")
    if not isinstance(summary, Mapping):
        return ("config.yaml",)
    write_json(os.path.join(out, "summary.json"), {"schema": f"ooco-gym/{command}/1", **summary})
    return ("summary.json", "config.yaml")


def one_line(error: BaseException) -> str:
    """The text of an error without line breaks."""
    return " ".join(str(error).split())
