"""A sweep: its points, who plays them, and how they ended.

Hydra composes each point by itself, which takes longer than to simulate a minute. Here each choice of groups is
composed once, and the values of a point are set in a copy; a job of Hydra's launcher plays many points.
"""

from __future__ import annotations

import io
import itertools
import math
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.callbacks import Callbacks
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from ooco_gym.cli.commands import Command
from ooco_gym.cli.config import Request, key_of, one_line
from ooco_gym.cli.job import BUG, MISTAKE, OK, SUMMARY, Outcome, Task, unwrap
from ooco_gym.commands.sweep import DONE, FILE, OPEN, Sweep, by_column
from ooco_gym.documents import version_of
from ooco_gym.errors import UserError
from ooco_gym.jobs import cores
from ooco_gym.peak import file_stamps
from ooco_gym.report.tables import flat
from ooco_gym.report.terminal import following, progress
from ooco_gym.version import __version__

STATUS, LOST = {OK: DONE, MISTAKE: "refused", BUG: "failed"}, "lost"
LONGEST_NAME = 100  # characters of a point's folder
NOT_IN_NAMES = set("/\\'\":*?<>|${} ")
LOOK_S = 1.0  # between looks at which points have ended
MOST_JOBS = 256  # of a launcher, each with an equal part of the points


# --- The points, here and in a worker -------------------------------------------------------------------------------
@dataclass(frozen=True)
class Points:
    """All combinations of a command line's values, numbered, the last key's fastest.

    Attributes:
        values: of each override, by its key as it was given, as text.
        swept: the keys that give several.
        groups: the keys that choose of a group, by which a point is composed; the others are set in it.
        named: whether folders are named after what was swept.
    """

    values: dict[str, list[str]]
    swept: tuple[str, ...]
    groups: frozenset[str]
    named: bool

    @classmethod
    def of(cls, request: Request, loader: Any) -> Points:
        """Those that a request asks for.

        Raises:
            UserError: values that cannot be listed.
        """
        given = {one.get_key_element(): one for one in request.overrides if not one.is_hydra_override()}
        for one in request.overrides:
            one.config_loader = loader
            if key_of(one).startswith(("hydra/sweeper", "hydra.sweeper")) or (
                    one.is_sweep_override() and not one.is_discrete_sweep()):
                raise UserError(f"{one.input_line}: a sweep plays all values of lists, such as a,b or range(0,10); to "
                                "search there is 'ooco-gym tune'")
        values = {key: list(one.sweep_string_iterator()) if one.is_sweep_override() else
                  [one.get_value_element_as_str()] for key, one in given.items()}
        swept = tuple(key for key, one in given.items() if one.is_sweep_override())
        longest = len(",".join(f"{key}={max(values[key], key=len, default='')}" for key in swept))
        named = 0 < longest <= LONGEST_NAME and not NOT_IN_NAMES & set("".join("".join(values[key]) for key in swept))
        groups = (key for key, one in given.items() if loader.repository.group_exists(one.key_or_group))
        return cls(values, swept, frozenset(groups), named)

    def __len__(self) -> int:
        return math.prod(map(len, self.values.values()))

    def given(self, number: int) -> dict[str, str]:
        """The overrides of a point."""
        found = {}
        for key, values in reversed(self.values.items()):
            number, place = divmod(number, len(values))
            found[key] = values[place]
        return dict(reversed(found.items()))

    def split(self, number: int) -> tuple[list[str], list[str]]:
        """The same as words: those by which the point is composed, and those that are set in it."""
        parts: tuple[list[str], list[str]] = [], []
        for key, value in self.given(number).items():
            parts[key not in self.groups or value.startswith("{")].append(f"{key}={value}")
        return parts

    def name(self, number: int) -> str:
        """The folder of a point: what was swept (`policy=ooco,seed=1`), or its number where that is no file name."""
        given = self.given(number)
        return ",".join(sorted(f"{key.lstrip('+')}={given[key]}" for key in self.swept)) if self.named else str(number)


_parser = lru_cache(maxsize=1)(OverridesParser.create)


@lru_cache(maxsize=4096)
def _parsed(word: str) -> Override:
    return _parser().parse_override(word)


def configured(base: DictConfig, words: Sequence[str], out: str) -> DictConfig:
    """The configuration of a point: what was composed, with values set in it as Hydra sets them."""
    cfg = deepcopy(base)
    ConfigLoaderImpl._apply_overrides_to_config([_parsed(word) for word in words], cfg)
    return unwrap(cfg, out)


@dataclass(frozen=True)
class Batch(Task):
    """Plays the points of one of the `jobs`; answers with their outcomes by number."""

    folder: str
    points: Points
    jobs: tuple[list[int], ...] = ()

    def __call__(self, cfg: DictConfig) -> dict[int, Outcome]:
        self.go_home()
        return {number: self._play(cfg, number) for number in self.jobs[HydraConfig.get().job.num]}

    def out(self, number: int) -> str:
        """The folder of a point."""
        return os.path.join(self.folder, self.points.name(number))

    def _play(self, base: DictConfig, number: int) -> Outcome:
        out, (chosen, words) = self.out(number), self.points.split(number)
        if not os.path.isfile(os.path.join(self.folder, FILE)):
            return Outcome(MISTAKE, out, f"worker '{platform.node()}' does not see the folder '{self.folder}': choose "
                                         "an out that all machines share")
        cfg = configured(base, words, out)
        if self.finished(cfg, out):  # by a worker that was killed in the middle of this job
            return Outcome(OK, out)
        os.makedirs(out, exist_ok=True)
        running: Any = HydraConfig.get()
        with read_write(running), open_dict(running):
            running.job.num, running.runtime.output_dir, running.overrides.task = number, out, [*chosen, *words]
        with redirect_stdout(io.StringIO()):
            return self.called(cfg, out)


# --- The whole ------------------------------------------------------------------------------------------------------
def play(command: Command, request: Request, folder: Path, words: Sequence[str]) -> list[Outcome]:
    """Plays what is not there yet, and writes and shows the table; returns how points ended that are not done.

    Raises:
        UserError: a mistake in the command line, or another sweep is in the folder.
    """
    app: Any = GlobalHydra.instance().hydra
    points = Points.of(request, app.config_loader)
    own = [str(one.input_line) for one in request.overrides if one.is_hydra_override()]
    master: Any = app.compose_config(command.name, [*words, *own, *_ray(own)], RunMode.MULTIRUN,
                                     with_log_configuration=False)
    about = {"command": command.name, "words": sorted(map(str, (
        one.input_line for one in request.overrides if one.get_key_element() in {*points.values} - {*points.swept}))),
        "swept": [key.lstrip("+") for key in points.swept], "version": __version__}
    had = Sweep.read(folder).about if (folder / FILE).is_file() else about
    files = had.get("files", {})
    if {key: value for key, value in had.items() if key != "files"} != about:
        theirs = " ".join([had["command"], "-m", *(f"{key}=…" for key in had["swept"]), *had["words"]])
        raise UserError(f"'{folder}' has another sweep, 'ooco-gym {theirs}' of version {had['version']}; give the same "
                        "words to go on with it, or choose another out")
    batch = Batch(command.name, command.function, os.getcwd(), str(folder), points)
    rows, left, now = _look(command, batch, files)
    about["files"] = now
    if len(left) < len(rows):
        print(f"{len(rows) - len(left):,} of {len(rows):,} points are there already", file=sys.stderr, flush=True)
    sweep = Sweep(folder, about, by_column(rows), {})
    sweep.write()
    jobs = _jobs(points, left, str(master.hydra.runtime.choices["hydra/launcher"]))
    launcher = Plugins.instance().instantiate_launcher(
        hydra_context=HydraContext(config_loader=app.config_loader, callbacks=Callbacks(master)), config=master,
        task_function=replace(batch, jobs=tuple(jobs)))
    outcomes, lost = {}, ""
    try:
        with _progress(command.name, [os.path.join(batch.out(number), SUMMARY) for number in left], len(rows)):
            for answer in launcher.launch([points.split(numbers[0])[0] for numbers in jobs], 0) if jobs else ():
                outcomes |= answer.return_value
    except (UserError, HydraException, OmegaConfBaseException):
        raise
    except Exception as error:  # of a launcher whose worker was killed: each has its own
        lost = f"{type(error).__name__}: {one_line(error)[:200]}"
    failed = [one for _, one in sorted(outcomes.items()) if one.code != OK]
    for number, status in enumerate(sweep.collect().columns["status"]):
        if status == OPEN:
            one = outcomes.get(number)
            sweep.columns["status"][number] = STATUS[one.code] if one else LOST
            sweep.columns["error"][number] = one.error.strip().splitlines()[-1] if one else None
    if lost:
        count = sweep.columns["status"].count(LOST)
        failed.append(Outcome(MISTAKE, str(folder), f"a worker ended before its work was done ({lost}): {count:,} "
                              "points are not done; the same command goes on with them, and leaves finished ones as "
                              "they are", left=True))
    if changed := sorted(path for path, version in now.items() if version_of(path) != version):
        failed.append(Outcome(MISTAKE, str(folder), f"'{changed[0]}' was changed while the sweep ran, so that its "
                              "points may not have played the same; the same command plays those that name it anew",
                              left=True))
        about["files"] |= dict.fromkeys(changed, "")
    if {*sweep.columns["status"]} == {STATUS[MISTAKE]}:
        (folder / FILE).unlink()  # a mistake leaves nothing behind
        return failed
    sweep.write()
    sweep.show()
    return failed


def _ray(own: Sequence[str]) -> list[str]:
    """What Ray is started with: no dashboard, and no log lines of workers among our tables; a cluster that runs
    already has its own store."""
    there = any("hydra.launcher.ray.init.address=" in word for word in own)
    init = {"log_to_driver": "false", "logging_level": "40",
            **({"object_store_memory": "null"} if there else {"include_dashboard": "false"})}
    return [f"+hydra.launcher.ray.init.{key}={value}" for key, value in init.items() if "hydra/launcher=ray" in own
            and not any(f"hydra.launcher.ray.init.{key}=" in word for word in own)]


def _look(command: Command, batch: Batch, files: Mapping[str, str]) -> tuple[list[dict[str, Any]], list[int],
                                                                            dict[str, str]]:
    """The points' rows of the table, nothing known of how they end, the numbers of those that are to be played, and the
    files that they name with digests of their content. What another configuration, or another content of one of the
    `files` that were played, has left in the place of a point is removed."""
    composed: dict[str, tuple[DictConfig, dict[str, Any], bool, dict[str, str]]] = {}
    rows, left, now = [], [], {}
    for number in range(len(batch.points)):
        (chosen, words), out = batch.points.split(number), batch.out(number)
        given = [_parsed(word) for word in words]
        if (key := " ".join(chosen)) not in composed:
            base = hydra.compose(command.name, chosen)
            composed[key] = base, _flat(configured(base, words, out)), "${" not in OmegaConf.to_yaml(base), \
                dict(file_stamps(OmegaConf.to_container(base)))
        base, first, plain, named = composed[key]
        if plain and all(one.type is OverrideType.CHANGE and isinstance(one.value(), (str, int, float)) and
                         "${" not in str(one.value()) for one in given):  # in a hundredth of the time
            values = first | {one.key_or_group: one.value() for one in given}
        else:
            values = _flat(configured(base, words, out))
        swept = {key.lstrip("+"): text for key, text in batch.points.given(number).items() if key in batch.points.swept}
        swept |= {key: values[key] for key in swept if isinstance(values.get(key), (str, int, float))}
        rows.append({"point": batch.points.name(number), "status": OPEN, "error": None, **swept, **values, **swept})
        mine = named | dict(file_stamps([one.value() for one in given]))
        now |= mine
        there = os.path.exists(summary := os.path.join(out, SUMMARY))
        same = all(files.get(path, version) == version for path, version in mine.items())
        if not there or not same or not batch.finished(configured(base, words, out), out):
            left.append(number)
            if there:
                os.unlink(summary)
    if changed := sorted(path for path, version in now.items() if files.get(path, version) != version):
        print(f"'{changed[0]}' is not what this sweep has played before: the points that name it are played anew",
              file=sys.stderr, flush=True)
    return rows, left, now


def _flat(cfg: DictConfig) -> dict[str, Any]:
    """A configuration by dotted keys, without `out`, which is elsewhere in each start."""
    values: Any = OmegaConf.to_container(cfg, resolve=True)
    return {key: value for key, value in flat(values).items() if key != "out"}


def _jobs(points: Points, left: Sequence[int], launcher: str) -> list[list[int]]:
    """The points of each job, all composed alike."""
    most = {"basic": 1, "submitit_local": cores()}.get(launcher, MOST_JOBS)  # submitit_local begins all jobs at once
    size = math.ceil(len(left) / most)
    alike = itertools.groupby(sorted(left, key=lambda number: points.split(number)[0]),
                              lambda number: points.split(number)[0])
    return [numbers[begin : begin + size] for _, found in alike for numbers in [list(found)]
            for begin in range(0, len(numbers), size)]


@contextmanager
def _progress(what: str, summaries: list[str], total: int) -> Iterator[None]:
    """Shows how many points have their summary: wherever they are played, that is known here."""
    left = summaries

    def look() -> float:
        nonlocal left
        begun_s, before = time.monotonic(), len(left)
        left = [path for path in left if not os.path.exists(path)]
        bar.advance(before - len(left))
        return max(LOOK_S, 20 * (time.monotonic() - begun_s))  # of a slow file system less often

    with progress(what, total, done=total - len(summaries)) as bar, following(look, LOOK_S):
        yield
