"""Lets Hydra run a command, once or as a sweep, and tells how it ended."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from hydra import version
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.hydra import Hydra
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.config_search_path import SearchPathElement
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ooco_gym.cli.commands import Command
from ooco_gym.cli.overrides import Request, check
from ooco_gym.cli.source import OocoSource, search_path
from ooco_gym.cli.task import BUG, MISTAKE, OK, Outcome, Task, one_line, unwrap
from ooco_gym.errors import UserError
from ooco_gym.files import write_json

QUIET = ("hydra/job_logging=disabled", "hydra/hydra_logging=disabled", "hydra.output_subdir=null",
         "hydra.job.chdir=false")
LONGEST_LABEL = 100     # characters of a sweep's folder name


@contextmanager
def session(command: Command) -> Iterator[Hydra]:
    """Hydra, set up for one command; its errors come out as `UserError`."""
    version.setbase("1.3")
    Plugins.instance()
    SourcesRegistry.instance().register(OocoSource)
    GlobalHydra.instance().clear()
    path = ConfigSearchPathImpl()
    path.config_search_path = [SearchPathElement("hydra", "pkg://hydra.conf"),
                               SearchPathElement("main", search_path(command)),
                               SearchPathElement("schema", "structured://")]
    try:
        yield Hydra.create_main_hydra2(command.name, path)
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(f"{command.name}: {one_line(error)}") from error
    finally:
        GlobalHydra.instance().clear()


def compose(hydra: Hydra, command: Command, words: list[str]) -> DictConfig:
    """Composes a command's configuration, Hydra's own part included."""
    return hydra.compose_config(command.name, words, RunMode.RUN, with_log_configuration=False,
                                validate_sweep_overrides=False)


def show(command: Command, request: Request, what: str) -> None:
    """Prints the configuration that would run: of the command (`job`), of Hydra (`hydra`), or both (`all`)."""
    with session(command) as hydra:
        _check(hydra, command, request)
        config = compose(hydra, command, [*_folders(command, request, False), *request.words])
        out = str(config.hydra.run.dir)
        hydra_part = {"hydra": config.pop("hydra")} if OmegaConf.set_struct(config, False) is None else {}
        own = unwrap(config, out)
        parts = {"job": [own], "hydra": [OmegaConf.create(hydra_part)], "all": [own, OmegaConf.create(hydra_part)]}
        print("\n".join(OmegaConf.to_yaml(part).rstrip() for part in parts[what]))


def run(command: Command, request: Request, multirun: bool) -> int:
    """Checks and runs; prints how it ended and returns the exit code.

    Raises:
        UserError: a mistake in the command line; nothing has been written then.
    """
    with session(command) as hydra:
        _check(hydra, command, request)
        words = [*_folders(command, request, multirun), *request.words]
        folder = Path(words[0].partition("=")[2].strip("'"))
        before = _seen(folder)
        try:
            task = Task(command.name, command.function, os.getcwd())
            if multirun:
                outcomes = _sweep(hydra, command, task, words)
            else:
                outcomes = [hydra.run(command.name, task, words, with_log_configuration=True).return_value]
        except BaseException:
            _tidy(folder, before, [])
            raise
        _tidy(folder, before, [Path(one.out) for one in outcomes if one.code == MISTAKE])
    return _report_sweep(command, folder, outcomes) if multirun else _report(outcomes[0])


def _check_writable(out: Path, given: str | None) -> None:
    """The nearest folder that exists must be one that may be written; nothing is made before that is known."""
    there = next(path for path in (out, *out.parents) if _exists(path))
    if not there.is_dir():
        raise UserError(f"out={given} is a file; expected a folder" if there == out else
                        f"out={given} cannot be used: '{there}' is a file; expected a folder")
    if not os.access(there, os.W_OK | os.X_OK) or there.is_relative_to("/proc"):
        raise UserError(f"out={given} cannot be used: the folder '{there}' cannot be written")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # below something that is no folder
        return False


def _check(hydra: Hydra, command: Command, request: Request) -> None:
    loader = hydra.config_loader
    check(command, request, lambda words: compose(hydra, command, words), loader.get_group_options)


def _folders(command: Command, request: Request, multirun: bool) -> list[str]:
    """Overrides that say where results go, and keep Hydra quiet. The first names the folder."""
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    out = Path(request.out or f"outputs/{command.name}/{stamp}").expanduser().absolute()
    _check_writable(out, request.out)
    place = "'" + str(out).replace("'", "\\'") + "'"
    words = [f"hydra.run.dir={place}", f"hydra.sweep.dir={place}", *QUIET]
    if multirun:
        words += _labels(request) + _launcher_defaults(request)
    return words


def _labels(request: Request) -> list[str]:
    """Names each job's folder after what is swept, `policy=ooco,seed=1`, or by number where that is no file name."""
    swept = [override for override in request.overrides if override.is_sweep_override()]
    if not all(override.is_discrete_sweep() for override in swept) or not swept:
        return ["hydra.sweep.subdir=${hydra.job.num}"]
    if any(override.value_type is not None and override.value_type.name == "GLOB_CHOICE_SWEEP" for override in swept):
        return ["hydra.sweep.subdir=${hydra.job.override_dirname}"]
    values = [[str(value) for value in override.sweep_string_iterator()] for override in swept]
    longest = sum(len(o.get_key_element()) + 2 + max(map(len, v)) for o, v in zip(swept, values, strict=True))
    odd = any(set(value) & set("/\\'\":*?<>|${} ") for several in values for value in several)
    if odd or longest > LONGEST_LABEL:
        return ["hydra.sweep.subdir=${hydra.job.num}"]
    fixed = [o.get_key_element() for o in request.overrides if not o.is_sweep_override()]
    listed = ",".join(f"'{key}'" for key in fixed)
    return ["hydra.sweep.subdir=${hydra.job.override_dirname}",
            f"hydra.job.config.override_dirname.exclude_keys=[{listed}]"]


def _launcher_defaults(request: Request) -> list[str]:
    """Keeps a local Ray cluster to itself: no dashboard, no log lines of its workers among our tables."""
    if "hydra/launcher=ray" not in request.words:
        return []
    given = {override.key_or_group for override in request.overrides}
    defaults = {"include_dashboard": "false", "log_to_driver": "false", "logging_level": "40"}
    return [f"+hydra.launcher.ray.init.{key}={value}" for key, value in defaults.items()
            if f"hydra.launcher.ray.init.{key}" not in given]


def _sweep(hydra: Hydra, command: Command, task: Task, words: list[str]) -> list[Outcome]:
    answer: Any = hydra.multirun(command.name, task, words, with_log_configuration=True)
    if not isinstance(answer, list):
        return []
    jobs: list[JobReturn] = [job for batch in answer for job in batch]
    return [job.return_value for job in jobs]


def _seen(folder: Path) -> set[Path]:
    """What is there before the run: the folder, its parents and its entries, as far as they exist."""
    there = {path for path in (folder, *folder.parents) if path.exists()}
    return there | (set(folder.iterdir()) if folder.is_dir() else set())


def _tidy(folder: Path, before: set[Path], failed: list[Path]) -> None:
    """Removes the new folders of mistaken jobs with all in them, new empty folders, and what Hydra leaves behind."""
    for path in failed:
        if path not in before and path.is_relative_to(folder):
            shutil.rmtree(path, ignore_errors=True)
    if folder / "multirun.yaml" not in before:
        (folder / "multirun.yaml").unlink(missing_ok=True)
    empty = [*(folder.iterdir() if folder.is_dir() else ()), folder, *folder.parents]
    for path in empty:
        if path not in before and path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def _report(outcome: Outcome) -> int:
    if outcome.code == OK:
        print(f"{' and '.join(outcome.files)} written to {_short(outcome.out)}")
    else:
        _complain(outcome)
    return outcome.code


def _complain(outcome: Outcome, where: str = "") -> None:
    sys.stdout.flush()
    text = f"error: {where}{outcome.error}" if outcome.code == MISTAKE else f"{where}{outcome.error}".rstrip()
    print(text, file=sys.stderr)


def _report_sweep(command: Command, folder: Path, outcomes: list[Outcome]) -> int:
    """Prints a table of jobs, writes `multirun.json`, and returns the worst exit code."""
    done = [outcome for outcome in outcomes if outcome.code != MISTAKE]
    if done or not outcomes:
        _write_index(command, folder, outcomes)
    mistakes = dict.fromkeys((outcome.code, outcome.error) for outcome in outcomes if outcome.code != OK)
    for code, error in mistakes:
        jobs = [Path(o.out).name for o in outcomes if (o.code, o.error) == (code, error)]
        _complain(Outcome(code, "", error), "" if len(jobs) == len(outcomes) else f"{' and '.join(jobs)}: ")
    codes = {outcome.code for outcome in outcomes}
    return BUG if BUG in codes else max(codes, default=OK)


def _write_index(command: Command, folder: Path, outcomes: list[Outcome]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("job", "folder", "result")
    jobs = []
    for number, outcome in enumerate(outcomes):
        status = {OK: "done", MISTAKE: "refused", BUG: "failed"}[outcome.code]
        table.add_row(str(number), _short(outcome.out), status)
        jobs.append({"job": Path(outcome.out).name, "out": os.path.relpath(outcome.out, folder), "status": status,
                     "error": outcome.error.strip().splitlines()[-1] if outcome.error else None})
    Console().print(table)
    write_json(folder / "multirun.json", {"schema": "ooco-gym/multirun/1", "command": command.name, "jobs": jobs})
    print(f"multirun.json written to {_short(str(folder))}")


def _short(path: str) -> str:
    """A path below the current folder relative to it."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative
