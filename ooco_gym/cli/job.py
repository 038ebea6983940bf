"""The job of this process or a sweep's worker: a command's function, and how it ended."""

from __future__ import annotations

import io
import json
import os
import traceback
from collections.abc import Mapping
from concurrent.futures.process import BrokenProcessPool
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict

from ooco_gym import beside
from ooco_gym.cli.commands import PLAIN
from ooco_gym.cli.config import one_line
from ooco_gym.documents import read_mapping
from ooco_gym.errors import EXTRAS, UserError, end_if_interrupted, ended_itself, raise_interrupt
from ooco_gym.files import FULL, DiskFullError, atomic_write, full_disk, write_json
from ooco_gym.peak import file_stamps
from ooco_gym.report.terminal import remarks
from ooco_gym.version import __version__

OK, BUG, MISTAKE = 0, 1, 2  # exit codes
KILLED = ("a worker process was killed before its work was done, most likely as memory ran out: take fewer of them "
          "(workers=1) or a smaller load; the same command continues from the stored results")
LACKING = "memory ran out: take fewer requests, seeds or episodes at a time, or smaller sizes"
SUMMARY, CONFIG = "summary.json", "config.yaml"


@dataclass(frozen=True)
class JobResult:
    """The end of a job, in a form that travels between processes."""

    code: int
    out: str
    error: str = ""
    files: tuple[str, ...] = ()
    left: bool = False  # its files stay, although it failed


@dataclass(frozen=True)
class Task:
    """Calls a command's function with the configuration that Hydra composed, and writes what it returns."""

    command: str
    function: str
    cwd: str

    def __call__(self, cfg: DictConfig) -> JobResult:
        """Runs a point of a sweep, in any process; a point that an earlier start completed is skipped."""
        out = str(HydraConfig.get().runtime.output_dir)
        try:
            os.chdir(self.cwd)  # a worker may start elsewhere
            cfg, head = unwrap(cfg, out), self._head(cfg)
            if self._finished(head + OmegaConf.to_yaml(cfg, resolve=True), out):
                return JobResult(OK, out)
            with redirect_stdout(io.StringIO()):
                return self.called(cfg, out, head)
        except OSError as error:
            return JobResult(MISTAKE, out, one_line(error), left=True)

    def called(self, cfg: DictConfig, out: str, head: str = "") -> JobResult:
        """Calls the function; the summary is written last, to mark complete results."""
        try:
            files: tuple[str, ...] = (CONFIG,)
            with remarks() as said:
                summary = load(self.function)(cfg)
            with atomic_write(Path(out, CONFIG)) as temporary:
                temporary.write_text(head + OmegaConf.to_yaml(cfg, resolve=True), encoding="utf-8")
            if isinstance(summary, Mapping):
                remarked = {"remarks": list(said.values())} if said else {}
                write_json(Path(out, SUMMARY), {"schema": f"ooco-gym/{self.command}/1", **summary, **remarked})
                files = (SUMMARY, *files)
            end_if_interrupted(summary)
            return JobResult(OK, out, files=files)
        except (Exception, SystemExit) as error:
            raise_interrupt(error)
            if isinstance(error, SystemExit):
                return JobResult(MISTAKE, out, ended_itself(error))
            package = (getattr(error, "name", "") or "").partition(".")[0]
            if isinstance(error, UserError):
                return JobResult(MISTAKE, out, one_line(error), left=isinstance(error, DiskFullError))
            if isinstance(error, (BrokenProcessPool, MemoryError)):
                return JobResult(MISTAKE, out, KILLED if isinstance(error, BrokenProcessPool) else LACKING, left=True)
            if isinstance(error, ModuleNotFoundError) and package in EXTRAS:
                return JobResult(MISTAKE, out, f"{self.command} needs the package '{package}', which is not installed: "
                                             f"install ooco-gym[{EXTRAS[package]}]")
            if isinstance(error, OSError) and error.errno in FULL:
                return JobResult(MISTAKE, out, full_disk(error), left=True)
            return JobResult(BUG, out, "".join(traceback.format_exception(error)))

    def _head(self, cfg: DictConfig) -> str:
        """Returns comments above a point's configuration: our version, and digests of the files that it names."""
        values: Any = OmegaConf.to_container(cfg, resolve=True)
        values.pop("out")
        stamps = "".join(f"# {json.dumps(path)}: {digest}\n" for path, digest in file_stamps(values))
        return f"# ooco-gym {self.command}, version {__version__}\n{stamps}"

    def _finished(self, config: str, out: str) -> bool:
        """Returns whether an earlier start completed this point with the same configuration."""
        try:
            summary, kept = read_mapping(Path(out, SUMMARY)), Path(out, CONFIG).read_text(encoding="utf-8")
        except (UserError, OSError, ValueError):
            return False
        return kept == config and summary.get("stopped_by") != "interrupt"


def load(function: str) -> Any:
    """Imports and returns `module:function`."""
    module, _, name = function.partition(":")
    return getattr(beside.load(module), name)


def unwrap(cfg: DictConfig, out: str) -> DictConfig:
    """Returns the configuration as commands see it, with `out`, and strings for choices that the library reads."""
    with open_dict(cfg):
        cfg.pop("hydra", None)
        for key in list(cfg):
            if not OmegaConf.is_missing(cfg, key) and isinstance(cfg[key], DictConfig) and PLAIN in cfg[key]:
                cfg[key] = cfg[key][PLAIN]
        cfg.out = out
    return cfg
