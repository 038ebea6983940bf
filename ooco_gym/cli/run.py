"""Lets Hydra run a command, once or as a sweep, and tells how it ended."""

from __future__ import annotations

import importlib
import math
import os
import shutil
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from ooco_gym.cli.commands import PLAIN, PRESETS, Command
from ooco_gym.cli.config import OocoSearchPath, OocoSource, Request, check, is_glob, key_of, one_line
from ooco_gym.documents import read_mapping
from ooco_gym.errors import EXTRAS, UserError, end_if_interrupted, raise_interrupt, unknown
from ooco_gym.files import FULL, DiskFullError, atomic_write, full_disk, write_json
from ooco_gym.report import Table, as_text, joined
from ooco_gym.report.tables import flat
from ooco_gym.report.terminal import remarks

OK, BUG, MISTAKE = 0, 1, 2  # exit codes
STATUS = {OK: "done", MISTAKE: "refused", BUG: "failed"}
KILLED = ("a worker process was killed before its work was done, most likely as memory ran out: take fewer of them "
          "(workers=1) or a smaller load; the same command goes on from what it has kept of the finished work")
LONGEST_LABEL = 100  # characters of a sweep's folder name
MOST_SCORES = 5  # columns of a sweep's table
# What of a summary is a point's score; of other commands, the first figures that they sum up.
SCORES = {
    "simulate": ("online.violation_rate", "online.ttft_p99_s", "online.tpot_p99_s", "offline.output_tokens_per_s",
                 "offline.reference_gpu_s_per_s"),
    "train": ("best.reward", "best.offline_reference_gpu_s_per_s", "best.violation_rate", "timesteps", "stopped_by"),
}


# --- What runs, in this process or in a worker of a sweep ----------------------------------------------------------
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
    """Calls a command's function with the configuration that Hydra has composed, and writes what it returns."""

    command: str
    function: str
    cwd: str
    sweep: bool = False
    points: int | None = None  # of the sweep; None where its sweeper decides on the way

    def __call__(self, cfg: DictConfig) -> Outcome:
        out = str(HydraConfig.get().runtime.output_dir)
        with suppress(OSError):  # a worker may have been started elsewhere: relative paths are the user's
            os.chdir(self.cwd)
        cfg = unwrap(cfg, out)
        if not self.sweep:
            return self._called(cfg, out)
        begun = time.monotonic()
        outcome = replace(Outcome(OK, out), kept=True) if self._finished(cfg, out) else self._called(cfg, out)
        if outcome.code != MISTAKE:  # of which the sentence is all that is said, at the end
            how = "was there" if outcome.kept else f"{STATUS[outcome.code]} in {time.monotonic() - begun:.0f} s"
            point = HydraConfig.get().job.num + 1
            of = f"/{self.points}" if self.points else ""
            print(f"point {point}{of}: {Path(out).name}: {how}", file=sys.stderr, flush=True)
        return outcome

    def _called(self, cfg: DictConfig, out: str) -> Outcome:
        try:
            files: tuple[str, ...] = ("config.yaml",)
            with remarks() as said:
                summary = load(self.function)(cfg)
            with atomic_write(Path(out, "config.yaml")) as temporary:
                temporary.write_text(OmegaConf.to_yaml(cfg, resolve=True), encoding="utf-8")
            if isinstance(summary, Mapping):
                remarked = {"remarks": list(said.values())} if said else {}
                write_json(Path(out, "summary.json"),
                           {"schema": f"ooco-gym/{self.command}/1", **summary, **remarked})
                files = ("summary.json", *files)
            end_if_interrupted(summary)
            return Outcome(OK, out, files=files)
        except Exception as error:
            raise_interrupt(error)
            package = (getattr(error, "name", "") or "").partition(".")[0]
            if isinstance(error, UserError):
                return Outcome(MISTAKE, out, one_line(error), left=isinstance(error, DiskFullError))
            if isinstance(error, BrokenProcessPool):
                return Outcome(MISTAKE, out, KILLED, left=True)
            if isinstance(error, ModuleNotFoundError) and package in EXTRAS:
                return Outcome(MISTAKE, out, f"{self.command} needs the package '{package}', which is not installed: "
                                             f"install ooco-gym[{EXTRAS[package]}]")
            if isinstance(error, OSError) and error.errno in FULL:
                return Outcome(MISTAKE, out, full_disk(error), left=True)
            return Outcome(BUG, out, "".join(traceback.format_exception(error)))

    def _finished(self, cfg: DictConfig, out: str) -> bool:
        """Whether an earlier start has ended well here, with the same configuration."""
        try:
            summary, kept = (read_mapping(Path(out, name)) for name in ("summary.json", "config.yaml"))
        except UserError:
            return False
        return (str(summary.get("schema", "")).startswith(f"ooco-gym/{self.command}/")
                and summary.get("stopped_by") != "interrupt"
                and kept == yaml.safe_load(OmegaConf.to_yaml(cfg, resolve=True)))


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


# --- Hydra, set up for one command ----------------------------------------------------------------------------------
@contextmanager
def session(command: Command) -> Iterator[None]:
    """Hydra, set up for one command; its errors come out as `UserError`."""
    for plugin in (OocoSource, OocoSearchPath):
        Plugins.instance().register(plugin)
    OocoSearchPath.command = command
    try:
        with hydra.initialize(config_path=None, job_name=command.name, version_base="1.3"):
            yield
    except MissingConfigException as error:  # of Hydra's own groups; ours are read by commands.read_choice
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        more = "; installing ooco-gym[sweep] adds joblib, ray and submitit_local" * (group == "hydra/launcher")
        raise UserError(f"{unknown(group, name, error.options or ())}{more}") from error
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(f"{command.name}: {one_line(error)}") from error
    finally:
        OocoSearchPath.command = None
        GlobalHydra.instance().clear()


def show(command: Command, request: Request) -> None:
    """Prints the configuration that would run; of a sweep what all its runs have in common, the rest by default."""
    with session(command):
        check(command, request)
        fixed = [str(one.input_line) for one in request.overrides if not one.is_sweep_override()]
        folder = _folder_of(command, request)
        print(OmegaConf.to_yaml(unwrap(hydra.compose(command.name, fixed), str(folder))).rstrip())


def hydra_app() -> Any:
    """Hydra's own object: its public way to run (`hydra.main`) reads `sys.argv` and returns nothing."""
    app = GlobalHydra.instance().hydra
    assert app is not None
    return app


# --- One run, or a sweep --------------------------------------------------------------------------------------------
def run(command: Command, request: Request, multirun: bool) -> int:
    """Checks and runs; prints how it ended and returns the exit code.

    Raises:
        UserError: a mistake in the command line; nothing has been written then.
    """
    with session(command):
        check(command, request)
        for override in request.overrides:  # what presets do, and how long they take
            if override.key_or_group == PRESETS and (said := command.presets().get(str(override.value()))):
                print(f"{override.value()}: {said}", file=sys.stderr, flush=True)
        folder = _folder_of(command, request)
        before = {path for path in (folder, *folder.parents) if os.path.exists(path)}
        before |= set(folder.iterdir()) if os.path.isdir(folder) else set()
        failed: list[Outcome] = []
        try:
            _make(folder, request.out)
            if multirun:
                words, points = _sweep_words(request)
                task = Task(command.name, command.function, os.getcwd(), True, points)
                answer = hydra_app().multirun(command.name, task, [*_folders(folder), *words, *request.words])
                batches = answer if isinstance(answer, list) else []
                outcomes = [job.return_value for batch in batches for job in batch]
            else:
                task = Task(command.name, command.function, os.getcwd())
                outcomes = [hydra_app().run(command.name, task, [*_folders(folder), *request.words]).return_value]
            failed = [one for one in outcomes if one.code == MISTAKE and not one.left]
        finally:
            _tidy(folder, before, failed)
    if multirun:
        return _report_sweep(command, request, folder, outcomes)
    outcome = outcomes[0]
    if outcome.code == OK:
        pages = sorted(path.name for path in Path(outcome.out).glob("*.html"))
        print(f"{joined([*pages, *outcome.files])} written to {_short(outcome.out)}")
    else:
        _complain(outcome)
    return outcome.code


def _folder_of(command: Command, request: Request) -> Path:
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    folder = Path(request.out or f"outputs/{command.name}/{stamp}").expanduser().absolute()
    if not str(folder).isprintable():
        raise UserError(f"out={request.out!r} has a control character in it; expected the name of a folder")
    return folder


def _make(folder: Path, given: str | None) -> None:
    """Makes the folder for the results; `_tidy` removes it again where nothing is written to it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK | os.X_OK)
    except (FileExistsError, NotADirectoryError) as error:
        raise UserError(f"out={given} cannot be used: '{error.filename}' is no folder") from None
    except OSError as error:
        raise UserError(f"out={given} cannot be used: {error.strerror}; expected a folder") from None
    if not writable:
        raise UserError(f"out={given} cannot be used: the folder '{folder}' cannot be written")


def _folders(folder: Path) -> list[str]:
    """Overrides that say where results go, and keep Hydra quiet."""
    quoted = "'" + str(folder).replace("'", "\\'") + "'"
    return [f"hydra.run.dir={quoted}", f"hydra.sweep.dir={quoted}", "hydra/job_logging=disabled",
            "hydra/hydra_logging=disabled", "hydra.output_subdir=null", "hydra.job.chdir=false"]


def _sweep_words(request: Request) -> tuple[list[str], int | None]:
    """Further overrides of a sweep, and how many points it has, where that is known before it runs.

    Each point's folder is named after what is swept, `policy=ooco,seed=1`, or by its number where that is no file name.
    """
    keys = [key_of(one) for one in request.overrides]
    known = bool(request.swept) and all(one.is_discrete_sweep() and not is_glob(one) for one in request.swept)
    values = [[str(value) for value in one.sweep_string_iterator()] for one in request.swept] if known else []
    label = ",".join(f"{key_of(one)}={max(of, key=len)}" for one, of in zip(request.swept, values, strict=known))
    words = ["hydra.sweep.subdir=${hydra.job.num}"]
    if known and len(label) <= LONGEST_LABEL and not set("/\\'\":*?<>|${} ") & set("".join(map("".join, values))):
        fixed = ",".join(f"'{one.get_key_element()}'" for one in request.overrides if one not in request.swept)
        words = ["hydra.sweep.subdir=${hydra.job.override_dirname}",
                 f"hydra.job.config.override_dirname.exclude_keys=[{fixed}]"]
    if "hydra/launcher=ray" in request.words:  # no dashboard, and no log lines of workers among our tables
        init = {"include_dashboard": "false", "log_to_driver": "false", "logging_level": "40"}
        words += [f"+hydra.launcher.ray.init.{key}={value}" for key, value in init.items()
                  if f"hydra.launcher.ray.init.{key}" not in keys]
    return words, math.prod(map(len, values)) if known and "hydra/sweeper" not in keys else None


def _tidy(folder: Path, before: set[Path], failed: Sequence[Outcome]) -> None:
    """Removes the new folders of mistaken jobs with all in them, new empty folders, and what Hydra leaves behind."""
    for path in (Path(one.out) for one in failed):
        if path not in before and path.is_relative_to(folder):
            shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        (folder / "multirun.yaml").unlink(missing_ok=True)
    for path in [*(folder.iterdir() if os.path.isdir(folder) else ()), folder, *folder.parents]:
        if path not in before and os.path.isdir(path) and not any(path.iterdir()):
            path.rmdir()


def _complain(outcome: Outcome, where: str = "") -> None:
    sys.stdout.flush()
    text = f"error: {where}{outcome.error}" if outcome.code == MISTAKE else f"{where}{outcome.error}".rstrip()
    print(text, file=sys.stderr)


def _short(path: str) -> str:
    """A path below the current folder relative to it."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


# --- What a sweep leaves behind -------------------------------------------------------------------------------------
def _report_sweep(command: Command, request: Request, folder: Path, outcomes: list[Outcome]) -> int:
    """Prints a table of points, writes `multirun.json`, and returns the worst exit code."""
    codes = {outcome.code for outcome in outcomes}
    if codes != {MISTAKE}:
        _write_points(command.name, [key_of(one) for one in request.swept], folder, outcomes)
        print(f"multirun.json written to {_short(str(folder))}")
    for code, error in dict.fromkeys((outcome.code, outcome.error) for outcome in outcomes if outcome.code != OK):
        jobs = [Path(one.out).name for one in outcomes if (one.code, one.error) == (code, error)]
        _complain(Outcome(code, "", error), "" if len(jobs) == len(outcomes) else f"{' and '.join(jobs)}: ")
    return BUG if BUG in codes else max(codes, default=OK)


def _write_points(command: str, swept: list[str], folder: Path, outcomes: Sequence[Outcome]) -> None:
    """Prints and writes what was swept and each point's scores."""
    configs, summaries = ([_read(outcome, name) for outcome in outcomes] for name in ("config.yaml", "summary.json"))
    scores = [name for name in SCORES.get(command, ()) if any(name in one for one in summaries)]
    if command not in SCORES:
        scores = [name for name, value in next(filter(None, summaries), {}).items() if isinstance(value, (int, float))
                  and "." not in name and not isinstance(value, bool) and name not in ("wall_s", "seed", "pid")]
    jobs, lines = [], []
    for number, (one, config, summary) in enumerate(zip(outcomes, configs, summaries, strict=True)):
        name, status = Path(one.out).name, STATUS[one.code]
        given = {key: config.get(key, config.get(f"{key}.name")) for key in swept}  # of a group its name
        found = {score: summary.get(score) for score in scores[:MOST_SCORES]}
        jobs.append({"job": name, "out": os.path.relpath(one.out, folder), "status": status, "kept": one.kept,
                     "error": one.error.strip().splitlines()[-1] if one.error else None, "swept": given,
                     "scores": found})
        if name == str(number):  # folders by number do not say what is swept
            name = ", ".join(f"{key}={as_text(value)}" for key, value in given.items()) or name
        lines.append((name, *(as_text(value, lambda one: f"{one:.4g}" if isinstance(one, float) else str(one))
                              for value in found.values()), status + ", was there" * one.kept))
    Table("", ("point", *scores[:MOST_SCORES], "result"), lines, align="l").show()
    write_json(folder / "multirun.json",
               {"schema": "ooco-gym/multirun/1", "command": command, "swept": swept, "jobs": jobs})


def _read(outcome: Outcome, name: str) -> dict[str, Any]:
    """A file of a point by dotted keys; empty where there is none."""
    with suppress(UserError):
        return flat(read_mapping(Path(outcome.out, name))) if outcome.code == OK else {}
    return {}
