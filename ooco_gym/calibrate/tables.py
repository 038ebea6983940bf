"""Reading a table of measurements: Parquet or CSV (also gzipped), whatever its columns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet

from ooco_gym.errors import UserError, nearest

SUFFIXES = (".parquet", ".csv", ".csv.gz")


def is_table(path: Path) -> bool:
    """Whether a file is one that `Frame` reads, by its ending."""
    return path.name.lower().endswith(SUFFIXES)


class Frame:
    """One file's columns, read as they are asked for."""

    def __init__(self, path: Path) -> None:
        """Reads the file.

        Raises:
            UserError: the file cannot be read, is cut off or malformed, or has a column twice.
        """
        self.path = path
        self._table = _read(path)
        self.names: list[str] = list(self._table.column_names)
        doubles = sorted({name for name in self.names if self.names.count(name) > 1})
        if doubles:
            raise UserError(f"'{path}': column '{doubles[0]}' stands in it twice; expected each column once")

    def __len__(self) -> int:
        return self._table.num_rows

    def __contains__(self, name: str) -> bool:
        return name in self.names

    @property
    def first_row(self) -> int:
        """Number of the first measurement: a CSV's header is row 1."""
        return 1 if self.path.suffix == ".parquet" else 2

    def require(self, names: Sequence[str]) -> None:
        """Refuses a file without one of the columns.

        Raises:
            UserError: names the column, and the nearest that there is.
        """
        for name in names:
            if name not in self:
                raise UserError(f"'{self.path}': column '{name}' is missing{nearest(name, self.names)}; "
                                f"found: {', '.join(self.names[:20])}")

    def numbers(self, name: str, default: float = np.nan) -> np.ndarray:
        """A column as float64; empty cells are NaN, a column that is missing is `default` throughout.

        Raises:
            UserError: a cell holds something else than a number; names its row.
        """
        if name not in self:
            return np.full(len(self), default)
        column = self._table[name]
        try:
            return column.cast(pyarrow.float64()).to_numpy(zero_copy_only=False).astype(np.float64)
        except pyarrow.ArrowException:
            pass
        return np.array([self._number(name, index, cell) for index, cell in enumerate(column.to_pylist())])

    def texts(self, name: str, default: str = "") -> np.ndarray:
        """A column as text; empty cells are '', a column that is missing is `default` throughout."""
        if name not in self:
            return np.full(len(self), default, dtype=object)
        return np.array(["" if cell is None else str(cell) for cell in self._table[name].to_pylist()], dtype=object)

    def lists(self, name: str) -> list[list[float]]:
        """A column of lists of numbers; a CSV has them as text, numbers between blanks.

        Raises:
            UserError: a cell holds something else; names its row.
        """
        found = []
        for index, cell in enumerate(self._table[name].to_pylist()):
            try:
                parts = str(cell).strip("[]").replace(",", " ").split() if isinstance(cell, str) else cell or []
                found.append([float(part) for part in parts])
            except (TypeError, ValueError):
                raise UserError(f"'{self.path}', row {index + self.first_row}: column '{name}' must be a list of "
                                f"numbers, got '{cell}'") from None
        return found

    def _number(self, name: str, index: int, cell: object) -> float:
        if cell is None or (isinstance(cell, str) and not cell.strip()):
            return np.nan
        try:
            return float(cell)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise UserError(f"'{self.path}', row {index + self.first_row}: column '{name}' must be a number, "
                            f"got '{cell}'") from None


def _read(path: Path) -> pyarrow.Table:
    try:
        if path.suffix == ".parquet":
            return pyarrow.parquet.read_table(path)
        return pyarrow.csv.read_csv(path)
    except FileNotFoundError:
        raise UserError(f"'{path}' does not exist; expected a Parquet or CSV file of measurements") from None
    except (OSError, pyarrow.ArrowException, UnicodeDecodeError) as error:
        kind = "Parquet" if path.suffix == ".parquet" else "CSV"
        reason = " ".join(str(error).split())
        raise UserError(f"'{path}' cannot be read as {kind}, it may be cut off or malformed: {reason}") from error
