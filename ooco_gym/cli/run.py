"""Lets Hydra run a command, once or as a sweep, and tells how it ended."""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from ooco_gym.cli import sweeps
from ooco_gym.cli.commands import PRESETS, Command, presets
from ooco_gym.cli.overrides import Request, check, is_glob
from ooco_gym.cli.source import OocoSearchPath, OocoSource
from ooco_gym.cli.task import BUG, COUNTER, MISTAKE, OK, Outcome, Task, one_line, unwrap
from ooco_gym.errors import UserError, check_text
from ooco_gym.report import joined

TRUST = "OOCO_GYM_TRUST"  # as agents.learning.trust reads it
QUIET = ("hydra/job_logging=disabled", "hydra/hydra_logging=disabled", "hydra.output_subdir=null",
         "hydra.job.chdir=false")
LONGEST_NAME = 255      # bytes of a folder's name, on the file systems in use
FIRST_PRINTABLE, DELETE = 32, 127
LONGEST_LABEL = 100     # characters of a sweep's folder name


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
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(f"{command.name}: {one_line(error)}") from error
    finally:
        OocoSearchPath.command = None
        GlobalHydra.instance().clear()


def compose(command: Command, words: list[str]) -> DictConfig:
    """Composes a command's configuration, Hydra's own part included."""
    return hydra.compose(command.name, words, return_hydra_config=True)


def show(command: Command, request: Request, what: str) -> None:
    """Prints the configuration that would run: of the command (`job`), of Hydra (`hydra`), or both (`all`).

    Of a sweep it prints what all its runs have in common, the rest as it is by default.
    """
    with session(command):
        _check(command, request)
        config = compose(command, [*_folders(command, request, False), *request.fixed_words])
        out = str(config.hydra.run.dir)
        with open_dict(config):
            own_of_hydra = OmegaConf.create({"hydra": config.pop("hydra")})
        own = unwrap(config, out)
        parts = {"job": [own], "hydra": [own_of_hydra], "all": [own, own_of_hydra]}
        print("\n".join(OmegaConf.to_yaml(part).rstrip() for part in parts[what]))


# --- One run, or a sweep --------------------------------------------------------------------------------------------
def run(command: Command, request: Request, multirun: bool) -> int:
    """Checks and runs; prints how it ended and returns the exit code.

    Raises:
        UserError: a mistake in the command line; nothing has been written then.
    """
    with session(command), _trusting(request.trust):
        _check(command, request)
        _say_presets(command, request)
        words = [*_folders(command, request, multirun), *request.words]
        folder = Path(words[0].partition("=")[2].strip("'"))
        before = _seen(folder)
        try:
            sweep, points = _sweep(folder, request) if multirun else ("", None)
            task = Task(command.name, command.function, os.getcwd(), sweep, points)
            outcomes = _outcomes(command, task, words, multirun)
        except BaseException:
            _tidy(folder, before, [])
            raise
        if multirun:
            (folder / "multirun.yaml").unlink(missing_ok=True)  # Hydra's, also of a start that was killed
        _tidy(folder, before, [Path(one.out) for one in outcomes if one.code == MISTAKE and not one.left])
    return _report_sweep(command, request, folder, outcomes) if multirun else _report(outcomes[0])


@contextmanager
def _trusting(trust: bool | None) -> Iterator[None]:
    """Says in the environment, which workers inherit, whether runs that others trained may be read."""
    before = os.environ.get(TRUST)
    if trust is not None:
        os.environ[TRUST] = str(int(trust))
    try:
        yield
    finally:
        if trust is not None:
            os.environ.pop(TRUST)
            os.environ.update({} if before is None else {TRUST: before})


def _check_writable(out: Path, given: str | None) -> None:
    """The nearest folder that exists must be one that may be written; nothing is made before that is known."""
    _check_name(out, given)
    there = next(path for path in (out, *out.parents) if _exists(path))
    if not there.is_dir():
        raise UserError(f"out={given} is a file; expected a folder" if there == out else
                        f"out={given} cannot be used: '{there}' is a file; expected a folder")
    nowhere = next((path for path in (out, *out.parents) if path.is_symlink() and not _exists(path)), None)
    if nowhere is not None:
        raise UserError(f"out={given} cannot be used: '{nowhere}' is a symbolic link that leads nowhere, or in a "
                        "circle")
    if not os.access(there, os.W_OK | os.X_OK) or there.is_relative_to("/proc"):
        raise UserError(f"out={given} cannot be used: the folder '{there}' cannot be written")


def _check_name(out: Path, given: str | None) -> None:
    """Refuses what is no name of a folder."""
    check_text(str(out))
    if any(ord(letter) < FIRST_PRINTABLE or ord(letter) == DELETE for letter in str(out)):
        raise UserError(f"out={given!r} has a control character in it; expected the name of a folder")
    longest = max(out.parts, key=lambda part: len(os.fsencode(part)))
    if len(os.fsencode(longest)) > LONGEST_NAME:
        raise UserError(f"out={longest[:20]}… cannot be used: a name of {len(os.fsencode(longest))} bytes; folders "
                        f"have at most {LONGEST_NAME}")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # below something that is no folder
        return False


def _check(command: Command, request: Request) -> None:
    options = GlobalHydra.instance().config_loader().get_group_options
    check(command, request, lambda words: compose(command, words), options)


def _say_presets(command: Command, request: Request) -> None:
    """Says what the presets that are asked for do, and how long they take."""
    said = presets(command.roots, command.name)
    for override in request.overrides:
        if override.key_or_group in PRESETS and str(override.value()) in said:
            print(f"{override.value()}: {said[str(override.value())]}", file=sys.stderr, flush=True)


def _folders(command: Command, request: Request, multirun: bool) -> list[str]:
    """Overrides that say where results go, and keep Hydra quiet. The first names the folder."""
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    out = Path(request.out or f"outputs/{command.name}/{stamp}").expanduser().absolute()
    _check_writable(out, request.out)
    quoted = "'" + str(out).replace("'", "\\'") + "'"
    words = [f"hydra.run.dir={quoted}", f"hydra.sweep.dir={quoted}", *QUIET]
    if multirun:
        words += _labels(request) + _launcher_defaults(request)
    return words


def _labels(request: Request) -> list[str]:
    """Names each job's folder after what is swept, `policy=ooco,seed=1`, or by number where that is no file name."""
    swept = [override for override in request.overrides if override.is_sweep_override()]
    if not all(override.is_discrete_sweep() for override in swept) or not swept:
        return ["hydra.sweep.subdir=${hydra.job.num}"]
    if any(map(is_glob, swept)):
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


def _outcomes(command: Command, task: Task, words: list[str], multirun: bool) -> list[Outcome]:
    """How each job ended. Hydra's public way to run (`hydra.main`) reads `sys.argv` and returns nothing."""
    app = GlobalHydra.instance().hydra
    assert app is not None
    if not multirun:
        return [app.run(command.name, task, words).return_value]
    answer = app.multirun(command.name, task, words)
    return [job.return_value for batch in answer for job in batch] if isinstance(answer, list) else []


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
    shutil.rmtree(folder / COUNTER, ignore_errors=True)
    empty = [*(folder.iterdir() if folder.is_dir() else ()), folder, *folder.parents]
    for path in empty:
        if path not in before and path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def _sweep(folder: Path, request: Request) -> tuple[str, int | None]:
    """A sweep's folder and the number of its points, as far as that is known before it runs."""
    shutil.rmtree(folder / COUNTER, ignore_errors=True)  # of one that was killed
    swept = [override for override in request.overrides if override.is_sweep_override()]
    if not swept or any(is_glob(o) or not o.is_discrete_sweep() for o in swept) or _other_sweeper(request):
        return str(folder), None
    return str(folder), math.prod(len(list(override.sweep_string_iterator())) for override in swept)


def _other_sweeper(request: Request) -> bool:
    return any(override.key_or_group == "hydra/sweeper" for override in request.overrides)


def _report(outcome: Outcome) -> int:
    if outcome.code == OK:
        pages = sorted(path.name for path in Path(outcome.out).glob("*.html"))
        print(f"{joined([*pages, *outcome.files])} written to {_short(outcome.out)}")
    else:
        _complain(outcome)
    return outcome.code


def _complain(outcome: Outcome, where: str = "") -> None:
    sys.stdout.flush()
    text = f"error: {where}{outcome.error}" if outcome.code == MISTAKE else f"{where}{outcome.error}".rstrip()
    print(text, file=sys.stderr)


def _report_sweep(command: Command, request: Request, folder: Path, outcomes: list[Outcome]) -> int:
    """Prints a table of points, writes `multirun.json` and `points.parquet`, and returns the worst exit code."""
    done = [outcome for outcome in outcomes if outcome.code != MISTAKE]
    if done or not outcomes:
        sweeps.write_index(command.name, request.swept, folder, outcomes)
        print(f"multirun.json and {sweeps.POINTS_FILE} written to {_short(str(folder))}")
    mistakes = dict.fromkeys((outcome.code, outcome.error) for outcome in outcomes if outcome.code != OK)
    for code, error in mistakes:
        jobs = [Path(o.out).name for o in outcomes if (o.code, o.error) == (code, error)]
        _complain(Outcome(code, "", error), "" if len(jobs) == len(outcomes) else f"{' and '.join(jobs)}: ")
    codes = {outcome.code for outcome in outcomes}
    return BUG if BUG in codes else max(codes, default=OK)


def _short(path: str) -> str:
    """A path below the current folder relative to it."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative
