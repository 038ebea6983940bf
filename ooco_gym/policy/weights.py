"""Weights of a learned rule: an array of the state, one row for each thing that it sets, one column for each feature.

A file of weights is an `.npz` of three plain arrays, read without pickle: `weights` float64 (rows, columns), and the
names of its `rows` and `columns`. Rows and columns that a rule has and a file has not are 0, so that a file outlives a
rule that gains some. Where all weights are 0 a rule must answer as the policy that it was learned from.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ooco_gym.documents import version_of
from ooco_gym.errors import UserError, unknown
from ooco_gym.files import atomic_write, bounded_archive
from ooco_gym.resources import conf_root

SUFFIX = ".npz"
_KEYS = ("weights", "rows", "columns")
_MOST = 100_000  # weights: a file that claims more is none of ours


class Layout(NamedTuple):
    """What the weights of a rule belong to.

    Attributes:
        rows: what is set.
        columns: by what, in their order; the last one is a constant.
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]

    @property
    def size(self) -> int:
        """How many weights there are."""
        return len(self.rows) * len(self.columns)


def find_weights(value: str) -> Path:
    """The file that the parameter `weights` of a policy names: a path, or one relative to the folder `conf`."""
    path = Path(value)
    return path if path.is_file() or path.is_absolute() else conf_root() / path


def shipped_name(value: str) -> str:
    """A path of a file in `conf`, relative to that folder: the same on every machine. Any other path as it is."""
    path = Path(value)
    return path.relative_to(conf_root()).as_posix() if path.is_relative_to(conf_root()) else value


def read_weights(value: str, layout: Layout) -> np.ndarray:
    """The weights of a file as float64[size], row by row, in the order of the layout.

    Raises:
        UserError: no such file, it is none of weights, a row or column that the rule has not, or no finite number.
    """
    path = find_weights(value)
    if not path.is_file():
        raise UserError(f"weights file '{value}' does not exist; expected a {SUFFIX} as 'ooco-gym train agent=cma' "
                        "writes")
    return _read(path, version_of(path), layout).copy()


@lru_cache(maxsize=64)
def _read(path: Path, version: str | None, layout: Layout) -> np.ndarray:  # a file that changes is read anew
    try:
        with np.load(bounded_archive(path), allow_pickle=False) as file:
            lacking = [key for key in _KEYS if key not in file]
            if lacking:
                raise UserError(f"weights file '{path}' has no array '{lacking[0]}'; expected {', '.join(_KEYS)}")
            values, rows, columns = (np.asarray(file[key]) for key in _KEYS)
    except UserError:
        raise
    except Exception as error:  # numpy and zipfile raise a dozen kinds for damaged bytes; all mean that they are
        raise UserError(f"weights file '{path}' cannot be read: {' '.join(str(error).split())[:200]}; expected a "
                        f"{SUFFIX} of plain arrays") from error
    names = [str(name) for name in rows.ravel()], [str(name) for name in columns.ravel()]
    if values.shape != (len(names[0]), len(names[1])) or values.size > _MOST or values.dtype.kind != "f":
        raise UserError(f"weights file '{path}': 'weights' is {values.dtype}{list(values.shape)}; expected numbers, "
                        f"{len(names[0])} rows of {len(names[1])} as 'rows' and 'columns' name them")
    if not np.isfinite(values).all():
        raise UserError(f"weights file '{path}' holds weights that are not finite; it is damaged, or its search went "
                        "wrong")
    for what, given, known in zip(("row", "column"), names, layout, strict=True):
        for name in given:
            if name not in known:
                raise unknown(f"{what} of weights file '{path}'", name, known)
        if len(set(given)) < len(given):
            raise UserError(f"weights file '{path}' names a {what} twice")
    found = np.zeros((len(layout.rows), len(layout.columns)))
    places = [[known.index(name) for name in given] for given, known in zip(names, layout, strict=True)]
    found[np.ix_(*places)] = values
    return found.ravel()


def write_weights(path: str | os.PathLike[str], layout: Layout, weights: np.ndarray) -> None:
    """Writes a file of weights: rows and columns of which all are 0 are left out.

    Args:
        path: where, ending in .npz.
        layout: what they belong to.
        weights: float64[size].
    """
    values = np.asarray(weights, float).reshape(len(layout.rows), len(layout.columns))
    rows, columns = np.flatnonzero(values.any(1)), np.flatnonzero(values.any(0))
    with atomic_write(Path(path)) as temporary, temporary.open("wb") as file:
        np.savez(file, weights=values[np.ix_(rows, columns)], rows=np.array([layout.rows[i] for i in rows], dtype=str),
                 columns=np.array([layout.columns[i] for i in columns], dtype=str))
