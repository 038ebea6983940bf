"""Small files of numbers as columns."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ooco_gym.errors import UserError


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
