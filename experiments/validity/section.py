"""What a section of the validity page is, the data that sections measure with, and the words that they write."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ooco_gym import report
from ooco_gym.calibrate import sources
from ooco_gym.calibrate.engine_fits import EngineRows
from ooco_gym.calibrate.rows import Rows
from ooco_gym.errors import UserError
from ooco_gym.jobs import in_processes
from ooco_gym.report.svg import Panel

Figures = Mapping[str, Any]

PARTS = ("Timing against measurements", "Load against traces", "A real engine from end to end",
         "Against the papers' own statements", "Where the model breaks")
"""Headings of the page, in order."""


class Missing(Exception):
    """What a section needs is not there; the message names it, and goes onto the page."""


@dataclass
class Context:
    """What sections measure with.

    Attributes:
        data: folder with `profiles`, `traces` and `runs` (`OOCO_GYM_DATA`), or None.
        extra: folders of further inputs by name (`chain`, `servegen`, `llmservingsim`, `workloads`).
        workers: processes at most.
        used: SHA-256 of each file or folder that was read, by its name; a section's own, reset for each.
        shared: what one section computed and another may take; keyed by module.
    """

    data: Path | None
    extra: Mapping[str, Sequence[Path]] = field(default_factory=dict)
    workers: int = 1
    used: dict[str, str] = field(default_factory=dict)
    shared: dict[str, Any] = field(default_factory=dict)

    def file(self, name: str) -> Path:
        """A file of the data folder, which the section is then said to rest on.

        Raises:
            Missing: there is no data folder, or the file is not in it.
        """
        if self.data is None:
            raise Missing("no data folder was given (`OOCO_GYM_DATA`)")
        path = self.data / name
        if not path.is_file():
            raise Missing(f"the data folder has no `{name}`")
        self.used[name] = digest([path])
        return path

    def folders(self, name: str) -> Sequence[Path]:
        """The folders given by `name=FOLDER,FOLDER`; their digests are taken by `rest_on`.

        Raises:
            Missing: none was given.
        """
        if not self.extra.get(name):
            raise Missing(f"no folder was given by `{name}=`")
        return self.extra[name]

    def rest_on(self, name: str, files: Sequence[Path]) -> None:
        """Says that the section rests on several files together."""
        self.used[name] = digest(files)


@dataclass(frozen=True)
class Section:
    """A section of the page.

    Attributes:
        order: where it stands; the hundreds are the part (100: the first of `PARTS`).
        title: its heading.
        measure: computes its figures, JSON-able; raises `Missing`.
        write: its Markdown, from the figures alone.
        draw: its plot's panels, from the figures alone; None where there is no plot.
        glance: rows `(question, found, wanted)` for the table at the top, from the figures alone.
    """

    order: int
    title: str
    measure: Callable[[Context], dict[str, Any]]
    write: Callable[[Figures], str]
    draw: Callable[[Figures], list[Panel]] | None = None
    glance: Callable[[Figures], list[tuple[str, str, str]]] | None = None

    @property
    def part(self) -> str:
        """Heading under which it stands."""
        return PARTS[self.order // 100 - 1]


def digest(files: Sequence[Path]) -> str:
    """SHA-256 of a file, or of several: of their names and digests in order."""
    digests = []
    for path in files:
        with path.open("rb") as file:
            digests.append(hashlib.file_digest(file, "sha256").hexdigest())
    if len(digests) == 1:
        return digests[0]
    lines = "".join(f"{path.name} {item}\n" for path, item in zip(files, digests, strict=True))
    return hashlib.sha256(lines.encode()).hexdigest()


# --- Data -----------------------------------------------------------------------------------------------------------
def read_csv(path: Path) -> dict[str, np.ndarray]:
    """The columns of a CSV file of numbers, float64[n].

    Raises:
        UserError: a row has no number where one is expected.
    """
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    names = header.split(",")
    rows = np.empty((len(lines), len(names)))
    for number, line in enumerate(lines):
        try:
            rows[number] = [float(cell) for cell in line.split(",")]
        except ValueError as error:
            raise UserError(f"'{path}', line {number + 2}: expected {len(names)} numbers ({header}), got '{line}'"
                            ) from error
    return {name: rows[:, column] for column, name in enumerate(names)}


FILE = "profiles/calibration.parquet"


def everything(context: Context) -> sources.Found:
    """What the file holds.

    Raises:
        Missing: the file is not there.
    """
    path = context.file(FILE)
    if FILE not in context.shared:
        context.shared[FILE] = sources.read(path, sources.Context())
    return context.shared[FILE]


def operators(context: Context) -> Rows:
    """All rows of operators.

    Raises:
        Missing: the file is not there.
    """
    return Rows.join(everything(context).rows)


def iterations(context: Context) -> list[EngineRows]:
    """Whole iterations of engines, one for each device, model and tensor-parallel degree.

    Raises:
        Missing: the file is not there, or has none.
    """
    found = everything(context).engine
    if not found:
        raise Missing(f"`{FILE}` has no whole iterations of an engine")
    return found


def of_device(rows: Rows, device: str) -> Rows:
    """The rows of one device.

    Raises:
        Missing: there are none.
    """
    found = rows.select(rows["device"] == device)
    if not len(found):
        raise Missing(f"`{FILE}` has no rows of device `{device}`")
    return found


def by_shape(rows: Rows, columns: Sequence[str]) -> dict[tuple[float, ...], float]:
    """Seconds by shape; of several measurements of a shape the median."""
    found: dict[tuple[float, ...], list[float]] = {}
    for *shape, seconds in zip(*(rows[name] for name in columns), rows.seconds, strict=True):
        found.setdefault(tuple(float(value) for value in shape), []).append(float(seconds))
    return {shape: float(np.median(values)) for shape, values in found.items()}


class Case(NamedTuple):
    """A chip and its measurements.

    Attributes:
        title: on the page.
        folder: in the data folder.
        device: its name in the data; given to the readers where the files do not say it.
        also: further devices of the data, for operators that it lacks.
        shipped: name of the chip in `conf/chip`.
    """

    title: str
    folder: str
    device: str
    also: tuple[str, ...]
    shipped: str


CASES = (
    Case("A100 80 GB", "profiles", "a100_sxm", (), "a100_80g"),
    Case("H100", "profiles", "vidur_h100", ("vidur_h100_dgx",), "h100"),
    Case("H200", "profiles", "h200_sxm", (), "h200"),
    Case("A40", "profiles", "vidur_a40", (), "a40"),
    Case("RTX 4090", "runs/rtx4090_llama31_8b", "rtx4090", (), "rtx4090"),
)


ENGINES = (
    Case("A100 80 GB", "profiles", "splitwise_a100-80gb", (), "a100_80g"),
    Case("H100, power-capped", "profiles", "splitwise_h100-80gb-pcap", (), "h100"),
)
"""Whole engines, of which iterations were measured rather than operators."""


def calibrated(data: Path, case: Case) -> dict[str, Any] | None:
    """What `ooco-gym calibrate` finds on one chip, in the words of its `summary.json` (a part of it).

    Args:
        data: the data folder.
        case: the chip.

    Returns:
        Errors by operator and form, errors on whole iterations, rows by operator and source, rows left out, and the
        shipped chip's errors on the same iterations; None where the data do not have the device.
    """
    from ooco_gym.calibrate import chip as chips
    from ooco_gym.calibrate import run, sources
    from ooco_gym.calibrate.sources import is_table

    folder = data / case.folder
    if not any(is_table(path) for path in folder.glob("*")):
        return None
    found = sources.read(folder, sources.Context("" if case.folder == "profiles" else case.device))
    known = {str(name) for part in found.rows for name in part["device"]} | {part.device for part in found.engine}
    if case.device not in known:
        return None
    device, rows, _ = run.device_rows(found, case.device, [name for name in case.also if name in known], None)
    base, _ = chips.base_chip(device, None, {})
    result = run.calibrate(found, base, device, rows)
    figures = run.summary_of(result, found, base, chips.validity(result.rows, []))
    return {
        "title": case.title, "device": device, "engine": _engine(folder),
        "sha256": {f"{case.folder}/{name}": value for name, value in figures["sha256"].items()},
        "sources": _sources(result.rows), "shapes": figures["held_out_shapes"], "held_out": figures["held_out"],
        "architecture": figures["held_out_architecture"], "whole_steps": figures["whole_steps"],
        "iterations": figures["iterations"], "shipped": _shipped(case.shipped, result.steps),
        "excluded": [{key: item[key] for key in ("op", "reason", "rows", "bad")} for item in figures["excluded"]],
        "not_fitted": figures["not_fitted"], "engine_iterations": figures["held_out_iterations"],
        "engine_overhead": figures["parameters"]["extended"].get("overhead", {}),
    }


def _sources(rows: Any) -> dict[str, dict[str, int]]:
    from ooco_gym.calibrate.rows import OPERATORS, counted

    parts = {op: rows.of_kind(op) for op in OPERATORS}
    return {op: counted(part["source"]) for op, part in parts.items() if len(part)}


def _engine(folder: Path) -> str:
    """The engine that a run's folder names; '' where it names none."""
    path = folder / "engine.json"
    return str(json.loads(path.read_text(encoding="utf-8")).get("engine", "")) if path.is_file() else ""


def _shipped(name: str, steps: Any) -> dict[str, Any]:
    """Errors of the chip as we ship it on the same iterations, which its fit may have seen; by form."""
    from ooco_gym.calibrate import step_fits
    from ooco_gym.calibrate.fitting import errors
    from ooco_gym.perf.specs import list_chips, load_chip

    if steps is None or name not in list_chips():
        return {}
    chip, found = load_chip(name), {}
    roofline = {item: value for item, value in vars(chip).items() if isinstance(value, float)}
    found["ooco"] = errors(step_fits.roofline_s(roofline, steps), steps.seconds)
    kernels: Mapping[str, Any] = vars(chip.extended) if chip.extended else {}
    kernels = {kernel: value for kernel, value in kernels.items() if value is not None}
    if chip.extended and step_fits.complete_for(kernels, steps):
        found["extended"] = errors(step_fits.extended_s(kernels, steps), steps.seconds)
    return found


def all_calibrated(data: Path, workers: int, cases: Sequence[Case]) -> list[dict[str, Any]]:
    """The calibrations of all cases that the data have, in order.

    Raises:
        UserError: the data cannot be read or fitted.
    """
    return [item for item in in_processes(partial(calibrated, data), cases, workers) if item]


# --- Words ----------------------------------------------------------------------------------------------------------
def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; all columns but the first are aligned to the right where they hold numbers."""
    return report.Table("", header, rows, align="").markdown()


def percent(value: float | None, digits: int = 1) -> str:
    """A figure that is in percent already."""
    return report.percent(value, digits, whole=1.0)


def signed(value: float | None, digits: int = 1) -> str:
    """A difference in percent, with its sign."""
    return report.minus(report.percent(value, digits, "+", whole=1.0))


def errors(item: Mapping[str, Any] | None) -> str:
    """MAPE, and P95 and the worst case in brackets, in percent."""
    if not item:
        return report.NONE
    return f"{item['mape']:.1f} % ({item['p95']:.0f}, {item['worst']:.0f})"


def details(summary: str, body: str) -> str:
    """What is shown only when it is asked for."""
    return f"<details><summary>{summary}</summary>\n\n{body}\n\n</details>"
