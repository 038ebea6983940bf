"""Lets Hydra compose and run a command, once or as a sweep, and reports how it ended.

Hydra's sweeper and launcher run a sweep's points, each in its own folder. This module writes its
table and resumes it: completed points are skipped.
"""

from __future__ import annotations

import fcntl
import math
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.errors import HydraException, MissingConfigException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ooco_gym.cli.commands import PRESETS, Command
from ooco_gym.cli.config import CommandLine, OocoSearchPath, OocoSource, check, key_of, one_line, values_of
from ooco_gym.cli.job import BUG, MISTAKE, OK, JobResult, Task, unwrap
from ooco_gym.cli.sweep import FILE, Sweep
from ooco_gym.errors import UserError, raise_interrupt, unknown
from ooco_gym.report import joined
from ooco_gym.report.terminal import following, progress

LONGEST_NAME = 100  # characters in the name of a point's folder
NOT_IN_NAMES = set("/\\'\":*?<>|${} ")
LOOK_S = 1.0  # between counts of completed points
STATUS = {OK: "done", MISTAKE: "refused", BUG: "failed"}


# --- Hydra for one command ------------------------------------------------------------------------------------------
@contextmanager
def session(command: Command, launchers: bool = False) -> Iterator[Any]:
    """Sets Hydra up for one command; its errors are raised as `UserError`.

    `launchers` also loads launchers of other packages, which takes a second.
    """
    if not launchers and "hydra_plugins" not in sys.modules:
        sys.modules["hydra_plugins"] = None  # pyright: ignore[reportArgumentType] (as if none were installed)
        Plugins.instance()
        del sys.modules["hydra_plugins"]
    elif launchers and "hydra_plugins" not in sys.modules:
        Plugins.instance().__init__()  # searches for them again
    for plugin in (OocoSource, OocoSearchPath):
        Plugins.instance().register(plugin)
    OocoSearchPath.command = command
    try:
        with hydra.initialize(config_path=None, job_name=command.name, version_base="1.3"):
            yield GlobalHydra.instance().hydra
    except MissingConfigException as error:  # for Hydra's own groups; ours are read by commands.read_choice
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        more = "; installing ooco-gym[sweep] adds joblib, ray and submitit_local" * (group == "hydra/launcher")
        raise UserError(f"{unknown(group, name, error.options or ())}{more}") from error
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(f"{command.name}: {one_line(error)}") from error
    finally:
        OocoSearchPath.command = HydraConfig.instance().cfg = None


def show(command: Command, request: CommandLine) -> None:
    """Prints the configuration that would run; for a sweep the first point's."""
    with session(command):
        composed = check(command, request)
        print(OmegaConf.to_yaml(unwrap(composed, str(_folder_of(command, request)))).rstrip())


# --- One run, or a sweep --------------------------------------------------------------------------------------------
def run(command: Command, request: CommandLine, multirun: bool) -> int:
    """Checks and runs a command; prints how it ended and returns the exit code.

    Raises:
        UserError: a mistake in the command line, before anything is written.
    """
    folder, task = _folder_of(command, request), Task(command.name, command.function, os.getcwd())
    launchers = multirun or any(one.is_hydra_override() or one.key_or_group == PRESETS for one in request.overrides)
    with session(command, launchers) as app:
        cfg = check(command, request)
        launcher = str(cfg.hydra.runtime.choices.get("hydra/launcher"))
        if not multirun and launcher != "basic":
            raise UserError(f"hydra/launcher={launcher} runs the points of a sweep, but this is a single run: add -m, "
                            "or leave the launcher out")
        for override in request.overrides:  # prints what presets do, and how long they take
            if override.key_or_group == PRESETS and (said := command.presets().get(str(override.value()))):
                print(f"{override.value()}: {said}", file=sys.stderr, flush=True)
        with _made(folder, request.out) as outcomes:
            if multirun:
                outcomes += _sweep(app, command, request, folder, task)
            else:
                HydraConfig.instance().set_config(cfg)
                outcomes.append(task.called(unwrap(cfg, str(folder)), str(folder)))
    files = outcomes[0].files if not multirun else (FILE,) if (folder / FILE).is_file() else ()
    if files:
        pages = sorted(path.name for path in folder.glob("*.html"))
        relative = os.path.relpath(folder)
        print(f"{joined([*pages, *files])} written to {folder if relative.startswith('..') else relative}", flush=True)
    for code, error in dict.fromkeys((outcome.code, outcome.error) for outcome in outcomes if outcome.code != OK):
        names = [Path(outcome.out).name for outcome in outcomes if (outcome.code, outcome.error) == (code, error)]
        where = f"{names[0]}{f' and {len(names) - 1:,} more' if len(names) > 1 else ''}: " if multirun else ""
        print(f"{'error: ' * (code == MISTAKE)}{where}{error}".rstrip(), file=sys.stderr)
    codes = {outcome.code for outcome in outcomes}
    return BUG if BUG in codes else max(codes, default=OK)


def _folder_of(command: Command, request: CommandLine) -> Path:
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    folder = Path(request.out or f"outputs/{command.name}/{stamp}").expanduser().absolute()
    if not str(folder).isprintable():
        raise UserError(f"out={str(folder)!r} has a control character in it; expected a folder whose path has none")
    return folder


@contextmanager
def _made(folder: Path, given: str | None) -> Iterator[list[JobResult]]:
    """Creates the results folder of jobs, whose outcomes the block adds.

    New folders of jobs that ended by a mistake, and empty ones, are removed again.
    """
    new = [path for path in (folder, *folder.parents) if not os.path.lexists(path)]
    taken = _locked(folder, given)
    outcomes: list[JobResult] = []
    try:
        yield outcomes
    finally:
        os.close(taken)
        refused = [Path(outcome.out) for outcome in outcomes if outcome.code == MISTAKE and not outcome.left]
        for path in refused:
            if path != folder or folder in new:
                shutil.rmtree(path, ignore_errors=True)
        if len(refused) == len(outcomes):
            (folder / "multirun.yaml").unlink(missing_ok=True)
        for path in [*(Path(outcome.out) for outcome in outcomes), *new]:
            if os.path.isdir(path) and not any(path.iterdir()):
                path.rmdir()


def _locked(folder: Path, given: str | None) -> int:
    """Creates a folder and locks it for the life of this process; returns its descriptor.

    Raises:
        UserError: the folder cannot be created or written, or another command has locked it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise UserError(f"out={given} cannot be used: the folder '{folder}' cannot be written")
        taken = os.open(folder, os.O_RDONLY)
    except (FileExistsError, NotADirectoryError) as error:
        raise UserError(f"out={given} cannot be used: '{error.filename}' is no folder") from None
    except OSError as error:
        raise UserError(f"out={given} cannot be used: {error.strerror}; expected a folder") from None
    try:
        fcntl.flock(taken, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(taken)
        raise UserError(f"out={given}: another command writes into '{folder}' at this time; choose another out, or "
                        "wait until it has ended") from None
    except OSError:  # the file system has no locks
        pass
    return taken


def _sweep(app: Any, command: Command, request: CommandLine, folder: Path, task: Task) -> list[JobResult]:
    """Has Hydra run the missing points, writes and shows the table; returns how the points ended.

    Raises:
        UserError: a mistake in the command line, another sweep in the folder, or a killed worker.
    """
    values = {key_of(one): values_of(one) for one in request.overrides if not one.is_hydra_override()}
    swept = [key_of(one) for one in request.overrides if one.is_sweep_override()]
    fixed = [one for one in request.overrides if not one.is_hydra_override() and not one.is_sweep_override()]
    about = {"command": command.name, "swept": swept, "words": sorted(str(one.input_line) for one in fixed)}
    had = Sweep.read(folder).about if (folder / FILE).is_file() else about
    if had != about:
        theirs = " ".join([had["command"], "-m", *(f"{key}=…" for key in had["swept"]), *had["words"]])
        raise UserError(f"'{folder}' has another sweep, 'ooco-gym {theirs}'; give the same words to continue it, or "
                        "choose another out")
    words = ["hydra.sweep.dir='" + str(folder).replace("'", "\\'") + "'", "hydra.output_subdir=null",
             f"hydra.sweep.subdir={_names_of(request)}",
             f"hydra.job.config.override_dirname.exclude_keys=[{','.join(one.key_or_group for one in fixed)}]",
             "hydra/job_logging=disabled", "hydra/hydra_logging=disabled",
             *(str(one.input_line) for one in request.overrides)]

    def look() -> float:
        bar.advance(len(list(folder.glob("*/summary.json"))) - bar.done)
        return LOOK_S

    total = math.prod(map(len, values.values()))
    try:
        with progress(command.name, total) as bar, following(look, LOOK_S):
            batches: list[list[JobReturn]] = app.multirun(command.name, task, words)
    except (HydraException, OmegaConfBaseException, UserError):
        raise
    except Exception as error:  # launchers raise their own errors
        raise_interrupt(error)
        raise UserError(f"a worker ended before its work was done ({one_line(error)}): some points are not done; the "
                        "same command goes on with them, and leaves finished ones as they are") from error
    jobs = [job for batch in batches for job in batch]
    outcomes: list[JobResult] = [job.return_value for job in jobs]
    if there := sum(one.code == OK and not one.files for one in outcomes):
        print(f"{there:,} of {total:,} points were already complete", file=sys.stderr)
    points = []
    for job, one in zip(jobs, outcomes, strict=True):
        given = dict(word.lstrip("+").split("=", 1) for word in job.overrides or () if "=" in word)
        row = {"point": os.path.relpath(one.out, folder), "status": STATUS[one.code],
               "error": one.error.strip().splitlines()[-1] if one.error else None}
        points.append((row, {key: given[key] for key in swept}, job.cfg))
    if any(one.code != MISTAKE for one in outcomes):
        sweep = Sweep.of(folder, about, points)
        sweep.write()
        sweep.show()
    return outcomes


def _names_of(request: CommandLine) -> str:
    """Returns the pattern by which Hydra names points' folders.

    It has the swept keys (`policy=ooco,seed=1`), or the point's number if these make no file name.
    """
    swept = [override for override in request.overrides if override.is_sweep_override()]
    longest = ",".join(f"{key_of(one)}={max(values_of(one), key=len)}" for one in swept)
    letters = set("".join("".join(values_of(one)) for one in swept))
    is_name = 0 < len(longest) <= LONGEST_NAME and not NOT_IN_NAMES & letters
    return "${hydra.job.override_dirname}" if is_name else "${hydra.job.num}"
