"""Layouts of measurements that `ooco-gym calibrate` reads; a new one is a file of this package.

A source is a module with `NAME`, `claims(frame)` (whether a file is in its layout, by its columns) and `read(frame,
context)`, which returns what is in it. It is found by being here; the schema's own layout is `native`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from ooco_gym.calibrate.engine_fits import EngineRows
from ooco_gym.calibrate.rows import Rows
from ooco_gym.calibrate.tables import Frame, is_table
from ooco_gym.errors import UserError


@dataclass(frozen=True)
class Context:
    """What a reader may have to know beside the file: the command's `model`, `tp` and `device`."""

    device: str = ""
    model: str = ""
    tp: int = 1


@dataclass
class Found:
    """What the files hold.

    Attributes:
        rows: measured operators.
        composed: iterations composed of measured operators, by file: columns as `iter_*.parquet` has them.
        engine: whole iterations of an engine.
        skipped: rows that a reader did not take, by reason (`file: reason`).
        notes: what a user should know of the reading.
        files: files read, with the name of their layout.
    """

    rows: list[Rows] = field(default_factory=list)
    composed: list[Mapping[str, Any]] = field(default_factory=list)
    engine: list[EngineRows] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    files: dict[Path, str] = field(default_factory=dict)

    def skip(self, reason: str, rows: int) -> None:
        """Counts rows that were not taken."""
        if rows:
            self.skipped[reason] = self.skipped.get(reason, 0) + int(rows)


def list_sources() -> list[str]:
    """Names of all layouts."""
    return sorted(_sources())


def read(path: Path, context: Context) -> Found:
    """Reads a file, or every table below a folder that is in a known layout.

    Args:
        path: a Parquet or CSV file, or a folder of them.
        context: the command's settings.

    Raises:
        UserError: nothing is there, nothing in it is known, or a file cannot be read.
    """
    if not path.exists():
        raise UserError(f"data='{path}' does not exist; expected a Parquet or CSV file of measurements, or a folder")
    paths = sorted(file for file in path.rglob("*") if is_table(file)) if path.is_dir() else [path]
    found = Found()
    for file in paths:
        frame = Frame(file)
        name = next((name for name, source in _sources().items() if source.claims(frame)), None)
        if name is None and path.is_dir():
            found.notes.append(f"{file.relative_to(path)}: in no known layout, left out")
            continue
        if name is None:
            raise UserError(f"'{file}' is in no known layout ({', '.join(list_sources())}); it has the columns "
                            f"{', '.join(frame.names[:20])}; docs/calibration.md says what is needed")
        _sources()[name].read(frame, context, found)
        found.files[file] = name
    if not found.files:
        raise UserError(f"data='{path}': no Parquet or CSV file in a known layout ({', '.join(list_sources())})")
    return found


@cache
def _sources() -> dict[str, ModuleType]:
    modules = [importlib.import_module(f"{__name__}.{item.name}") for item in pkgutil.iter_modules(__path__)]
    return {module.NAME: module for module in modules}
