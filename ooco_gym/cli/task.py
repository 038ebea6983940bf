"""What runs, in this process or in a worker of a sweep: a command's function, called with its configuration."""

from __future__ import annotations

import importlib
import os
import sys
import time
import traceback
from collections.abc import Mapping
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict

from ooco_gym.cli.commands import PLAIN
from ooco_gym.documents import read_mapping
from ooco_gym.errors import EXTRAS, UserError, end_if_interrupted, raise_interrupt
from ooco_gym.files import FULL, DiskFullError, atomic_write, full_disk, write_sealed
from ooco_gym.report.terminal import remarks

KILLED = ("a worker process was killed before its work was done, most likely as memory ran out: take fewer of them "
          "(workers=1) or a smaller load; the same command goes on from what it has kept of the finished work")
OK, BUG, MISTAKE = 0, 1, 2  # exit codes
COUNTER = ".points"  # folder of a sweep, while it runs: a file for each point that has ended


@dataclass(frozen=True)
class Outcome:
    """How a job ended, in a form that travels between processes."""

    code: int
    out: str
    error: str = ""
    files: tuple[str, ...] = ()
    kept: bool = False  # a point of a sweep that an earlier start has finished
    left: bool = False  # what it has written so far stays, although it did not end well


@dataclass(frozen=True)
class Task:
    """Calls a command's function; Hydra hands it the composed configuration."""

    command: str
    function: str
    cwd: str
    sweep: str = ""  # the folder of the sweep that this is a point of
    points: int | None = None  # of that sweep; None where its sweeper decides on the way

    def __call__(self, cfg: DictConfig) -> Outcome:
        out = str(HydraConfig.get().runtime.output_dir)
        with suppress(OSError):         # a worker may have been started elsewhere: relative paths are the user's
            os.chdir(self.cwd)
        cfg = unwrap(cfg, out)
        if not self.sweep:
            return self._called(cfg, out)
        begun = time.monotonic()
        files = finished(self.command, cfg, out)
        outcome = replace(Outcome(OK, out, files=files), kept=True) if files else self._called(cfg, out)
        announce(outcome, self.sweep, self.points, time.monotonic() - begun)
        return outcome

    def _called(self, cfg: DictConfig, out: str) -> Outcome:
        try:
            with remarks() as said:
                summary = load(self.function)(cfg)
                if said and isinstance(summary, Mapping):
                    summary = {**summary, "remarks": list(said.values())}
            files = write_results(self.command, cfg, summary, out)
            end_if_interrupted(summary)
            return Outcome(OK, out, files=files)
        except Exception as error:
            raise_interrupt(error)
            return self._failed(error, out)

    def _failed(self, error: Exception, out: str) -> Outcome:
        if isinstance(error, UserError):
            return Outcome(MISTAKE, out, one_line(error), left=isinstance(error, DiskFullError))
        if isinstance(error, BrokenProcessPool):
            return Outcome(MISTAKE, out, KILLED, left=True)
        if isinstance(error, ModuleNotFoundError):
            package = (error.name or "").partition(".")[0]
            if package in EXTRAS:
                return Outcome(MISTAKE, out, f"{self.command} needs the package '{package}', which is not installed: "
                                             f"install ooco-gym[{EXTRAS[package]}]")
        if isinstance(error, OSError) and error.errno in FULL:
            return Outcome(MISTAKE, out, full_disk(error), left=True)
        return Outcome(BUG, out, "".join(traceback.format_exception(error)))


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
    write_sealed(os.path.join(out, "summary.json"), {"schema": f"ooco-gym/{command}/1", **summary})
    return ("summary.json", "config.yaml")


def finished(command: str, cfg: DictConfig, out: str) -> tuple[str, ...]:
    """Names of the results that an earlier start has left in a folder; none unless it ended well, with the same
    configuration."""
    try:
        summary, kept = (read_mapping(Path(out, name)) for name in ("summary.json", "config.yaml"))
    except UserError:
        return ()
    asked = yaml.safe_load(OmegaConf.to_yaml(cfg, resolve=True))
    of_it = (str(summary.get("schema", "")).startswith(f"ooco-gym/{command}/")
             and summary.get("stopped_by") != "interrupt")
    return ("summary.json", "config.yaml") if of_it and kept == asked else ()


def announce(outcome: Outcome, sweep: str, points: int | None, took_s: float) -> None:
    """Says on stderr which point of a sweep has ended, and how many have; workers count in a folder of the sweep.

    Of a point that is refused the sentence is all that is said, at the end.
    """
    counter, number = Path(sweep, COUNTER), 1
    with suppress(OSError):
        counter.mkdir(parents=True, exist_ok=True)
        number += len(list(counter.iterdir()))
        while True:
            try:
                (counter / str(number)).touch(exist_ok=False)
                break
            except FileExistsError:  # another worker's
                number += 1
    if outcome.code == MISTAKE:
        return
    how = "was there" if outcome.kept else {OK: "done", BUG: "failed"}[outcome.code]
    seconds = "" if outcome.kept else f" in {took_s:.0f} s"
    of = f"/{points}" if points else ""
    print(f"point {number}{of}: {Path(outcome.out).name}: {how}{seconds}", file=sys.stderr, flush=True)


def one_line(error: BaseException) -> str:
    """The text of an error without line breaks."""
    return " ".join(str(error).split())
