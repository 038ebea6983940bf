"""Lets Hydra run a command, once or as a sweep, and tells how it ended."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import cache
from importlib import import_module
from pathlib import Path

import hydra
from hydra import version
from hydra._internal.callbacks import Callbacks
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.core.utils import run_job
from hydra.errors import HydraException, MissingConfigException
from hydra.types import HydraContext
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ooco_gym.cli import sweep
from ooco_gym.cli.commands import PRESETS, Command
from ooco_gym.cli.config import OocoSearchPath, OocoSource, Request, check, one_line
from ooco_gym.cli.job import BUG, MISTAKE, OK, Outcome, Task, unwrap
from ooco_gym.commands.sweep import FILE
from ooco_gym.errors import UserError, unknown
from ooco_gym.report import joined

MOST_NAMED = 3  # points that failed alike


# --- Hydra, set up for one command ----------------------------------------------------------------------------------
@contextmanager
def session(command: Command, request: Request, multirun: bool = False) -> Iterator[None]:
    """Hydra, set up for one command; its errors come out as `UserError`."""
    for plugin in (OocoSource, OocoSearchPath):
        _plugins(False).register(plugin)
    _plugins(multirun or any(one.is_hydra_override() for one in request.overrides))
    OocoSearchPath.command = command
    version.setbase("1.3")
    try:
        Hydra.create_main_hydra2(command.name, create_config_search_path(None))
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


@cache
def _plugins(launchers: bool) -> Plugins:
    """Hydra's plugins; those of other packages, which take a moment to import, where a sweep may want a launcher."""
    if not launchers:
        sys.modules["hydra_plugins"] = None  # pyright: ignore[reportArgumentType] (as where none is installed)
        own = Plugins.instance()
        del sys.modules["hydra_plugins"]
        return own
    with suppress(ModuleNotFoundError):
        for one in Plugins._scan_all_plugins([import_module("hydra_plugins")])[0]:
            _plugins(False).register(one)
    return _plugins(False)


def show(command: Command, request: Request) -> None:
    """Prints the configuration that would run; of a sweep what all its runs have in common, the rest by default."""
    with session(command, request):
        check(command, request)
        fixed = [str(one.input_line) for one in request.overrides if not one.is_sweep_override()]
        folder = _folder_of(command, request)
        print(OmegaConf.to_yaml(unwrap(hydra.compose(command.name, fixed), str(folder))).rstrip())


# --- One run, or a sweep --------------------------------------------------------------------------------------------
def run(command: Command, request: Request, multirun: bool) -> int:
    """Checks and runs; prints how it ended and returns the exit code.

    Raises:
        UserError: a mistake in the command line; nothing has been written then.
    """
    with session(command, request, multirun):
        folder = _folder_of(command, request)
        cfg = check(command, request, _folders(folder))
        for override in request.overrides:  # what presets do, and how long they take
            if override.key_or_group == PRESETS and (said := command.presets().get(str(override.value()))):
                print(f"{override.value()}: {said}", file=sys.stderr, flush=True)
        before = {path for path in (folder, *folder.parents) if os.path.exists(path)}
        before |= set(folder.iterdir()) if os.path.isdir(folder) else set()
        outcomes: list[Outcome] = []
        try:
            _make(folder, request.out)
            if multirun:
                outcomes = sweep.play(command, request, folder, _folders(folder))
            else:
                task, app = Task(command.name, command.function, os.getcwd()), GlobalHydra.instance()
                context = HydraContext(config_loader=app.config_loader(), callbacks=Callbacks(cfg))
                outcomes = [run_job(task, cfg, "hydra.run.dir", None, context).return_value]
        finally:
            _tidy(folder, before, [one for one in outcomes if one.code == MISTAKE and not one.left])
    files = outcomes[0].files if not multirun else (FILE,) if (folder / FILE).is_file() else ()
    if files:
        pages = sorted(path.name for path in folder.glob("*.html"))
        relative = os.path.relpath(folder)
        print(f"{joined([*pages, *files])} written to {folder if relative.startswith('..') else relative}", flush=True)
    for code, error in dict.fromkeys((one.code, one.error) for one in outcomes if one.code != OK):
        names = [Path(one.out).name for one in outcomes if (one.code, one.error) == (code, error)]
        more = [f"{len(names) - MOST_NAMED:,} more"] if len(names) > MOST_NAMED else []
        where = f"{joined([*names[:MOST_NAMED], *more])}: " if multirun and names != [folder.name] else ""
        print(f"{'error: ' * (code == MISTAKE)}{where}{error}".rstrip(), file=sys.stderr)
    codes = {one.code for one in outcomes}
    return BUG if BUG in codes else max(codes, default=OK)


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
    return [f"hydra.run.dir={quoted}", f"hydra.sweep.dir={quoted}", "hydra.sweep.subdir=.", "hydra.job.chdir=false",
            "hydra/job_logging=disabled", "hydra/hydra_logging=disabled", "hydra.output_subdir=null"]


def _tidy(folder: Path, before: set[Path], failed: Sequence[Outcome]) -> None:
    """Removes the new folders of mistaken jobs with all in them, and new empty folders."""
    for path in (Path(one.out) for one in failed):
        if path not in before and path.is_relative_to(folder):
            shutil.rmtree(path, ignore_errors=True)
    for path in [*(folder.iterdir() if os.path.isdir(folder) else ()), folder, *folder.parents]:
        if path not in before and os.path.isdir(path) and not any(path.iterdir()):
            path.rmdir()
