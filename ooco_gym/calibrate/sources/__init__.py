"""Layouts of measurements that `ooco-gym calibrate` reads; a new one is a file of this package.

A source is a module with `NAME`, `claims(frame)` (whether a file's columns are of its layout) and
`read(frame, context, found)`, which adds the file's content to `found`. Modules are tried in the
order of their names; the first that claims a file reads it. `native` is our own layout.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow
import pyarrow.csv

from ooco_gym.calibrate.rows import Rows
from ooco_gym.errors import UserError, nearest
from ooco_gym.files import read_parquet

SUFFIXES = (".parquet", ".csv", ".csv.gz", "_perf.txt")
"""The last is the old extension of aiconfigurator's tables, which are CSV."""


def is_table(path: Path) -> bool:
    """Returns whether `Frame` reads files with this extension."""
    return path.name.lower().endswith(SUFFIXES)


class Frame:
    """One file's columns; `first_row` is the number of the first measurement (a CSV's header is row
    1).

    Raises:
        UserError: the file cannot be read, is truncated or malformed, or has a column twice; from
            methods: a column is missing, or a cell has the wrong type.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.first_row = path, 1 if path.suffix == ".parquet" else 2
        self._table = _read(path)
        self.names: list[str] = list(self._table.column_names)
        doubles = sorted({name for name in self.names if self.names.count(name) > 1})
        if doubles:
            raise UserError(f"'{path}': column '{doubles[0]}' stands in it twice; expected each column once")

    def __len__(self) -> int:
        return self._table.num_rows

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def require(self, names: Sequence[str]) -> None:
        """Raises UserError if one of the columns is missing."""
        for name in names:
            if name not in self:
                raise UserError(f"'{self.path}': column '{name}' is missing{nearest(name, self.names)}; "
                                f"found: {', '.join(self.names[:20])}")

    def numbers(self, name: str, default: float = np.nan) -> np.ndarray:
        """Returns a column as float64; empty cells are NaN, a missing column is `default` throughout."""
        if name not in self:
            return np.full(len(self), default)
        try:
            return self._table[name].cast(pyarrow.float64()).to_numpy(zero_copy_only=False).astype(np.float64)
        except pyarrow.ArrowException:
            return np.array([self._number(name, index) for index in range(len(self))])

    def _number(self, name: str, index: int) -> float:
        cell = self._table[name][index].as_py()
        try:
            return np.nan if cell is None or not str(cell).strip() else float(cell)
        except (TypeError, ValueError, OverflowError):
            raise UserError(f"'{self.path}', row {index + self.first_row}: column '{name}' must be a number, got "
                            f"'{cell}'") from None

    def texts(self, name: str, default: str = "") -> np.ndarray:
        """Returns a column as text; empty cells are '', a missing column is `default` throughout."""
        if name not in self:
            return np.full(len(self), default, dtype=object)
        return np.array(["" if cell is None else str(cell) for cell in self._table[name].to_pylist()], dtype=object)


def _read(path: Path) -> pyarrow.Table:
    try:
        table = read_parquet(path) if path.suffix == ".parquet" else pyarrow.csv.read_csv(path)
        table.validate(full=True)
        table.column_names  # noqa: B018 (read here to detect damaged names)
        return table
    except FileNotFoundError:
        raise UserError(f"'{path}' does not exist; expected a Parquet or CSV file of measurements") from None
    except (OSError, pyarrow.ArrowException, UnicodeDecodeError) as error:
        kind, reason = "Parquet" if path.suffix == ".parquet" else "CSV", " ".join(str(error).split())
        raise UserError(f"'{path}' cannot be read as {kind}, it may be cut off or malformed: {reason}") from error


@dataclass(frozen=True)
class Context:
    """The command's `device`, `model` and `tp` (0: not given), for readers."""

    device: str = ""
    model: str = ""
    tp: int = 0


@dataclass
class Found:
    """Content of the files: measured operators, skipped rows by `file: reason`, notes, files by layout."""

    rows: list[Rows] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    files: dict[Path, str] = field(default_factory=dict)

    def skip(self, reason: str, rows: int) -> None:
        if rows:
            self.skipped[reason] = self.skipped.get(reason, 0) + int(rows)


def list_sources() -> list[str]:
    """Returns the names of all layouts."""
    return sorted(_sources())


def read(path: Path, context: Context) -> Found:
    """Reads a Parquet or CSV file, or every file of a known layout below a folder.

    Raises:
        UserError: the path is missing, has no known layout, or a file cannot be read.
    """
    if not path.exists():
        raise UserError(f"data='{path}' does not exist; expected a Parquet or CSV file of measurements, or a folder")
    paths = sorted(file for file in path.rglob("*") if is_table(file)) if path.is_dir() else [path]
    found = Found()
    for file in paths:
        frame = Frame(file)
        name = next((name for name, source in _sources().items() if source.claims(frame)), None)
        if name is None and path.is_dir() and ("time_us" not in frame or "decode_context_sum" in frame):
            found.notes.append(f"{file.relative_to(path)}: in no known layout, left out")
            continue
        if name is None:
            raise UserError(f"'{file}' is in no known layout ({', '.join(list_sources())}); it has the columns "
                            f"{', '.join(frame.names[:20])}; docs/calibration.md says what is needed (of an engine's "
                            f"own iterations 'ooco-gym calibrate chain measured=FOLDER' makes a chip)")
        _sources()[name].read(frame, context, found)
        found.files[file] = name
    if not found.files:
        raise UserError(f"data='{path}': no Parquet or CSV file in a known layout ({', '.join(list_sources())})")
    return found


@cache
def _sources() -> dict[str, ModuleType]:
    modules = [importlib.import_module(f"{__name__}.{item.name}") for item in pkgutil.iter_modules(__path__)]
    return {module.NAME: module for module in modules}
