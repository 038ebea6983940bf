"""Weights of a learned rule: an array of the state, with a row per output and a column per feature.

A file of weights is an `.npz` of three plain arrays, read without pickle: `weights` float64 (rows,
columns), and the names of its `rows` and `columns`. Rows and columns missing from a file are 0, so
files stay valid when a rule gains some. With all weights 0 a rule must act as the policy that it
was learned from.

If weights move another rule's parameters by features of an engine, the `Policy` describes this
(`SetsParameters`), and `ooco-gym export` writes the bundle that an engine runs. The key `card` of a
policy's YAML describes the training of its weights (`origin_of`), so another learned policy is a
file, not code.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ooco_gym.documents import read_yaml, version_of
from ooco_gym.errors import UserError, unknown
from ooco_gym.files import atomic_write, read_npz
from ooco_gym.resources import conf_root

SUFFIX = ".npz"
_KEYS = ("weights", "rows", "columns")


class Layout(NamedTuple):
    """Names of the rows and columns of a rule's weights."""

    rows: tuple[str, ...]  # outputs
    columns: tuple[str, ...]  # inputs; the last one is a constant

    @property
    def size(self) -> int:
        return len(self.rows) * len(self.columns)


def find_weights(value: str) -> Path:
    """The file that a policy's parameter `weights` names: a path, also relative to the folder
    `conf`."""
    path = Path(value)
    return path if path.is_file() or path.is_absolute() else conf_root() / path


def shipped_name(value: str) -> str:
    """A path of a file in `conf`, relative to it, so that it is the same on every machine; other
    paths unchanged."""
    path = Path(value)
    return path.relative_to(conf_root()).as_posix() if path.is_relative_to(conf_root()) else value


def read_weights(value: str, layout: Layout) -> np.ndarray:
    """Reads weights as float64[size], row by row, in the order of the layout.

    Raises:
        UserError: no such file, not a weights file, an unknown row or column, or a number that is
            not finite.
    """
    path = find_weights(value)
    if not path.is_file():
        raise UserError(f"weights file '{value}' does not exist; expected a {SUFFIX} as 'ooco-gym train agent=cma' "
                        "writes")
    return _read(path, version_of(path), layout).copy()


@lru_cache(maxsize=64)
def _read(path: Path, version: str | None, layout: Layout) -> np.ndarray:  # a file that changes is read again
    try:
        file = read_npz(path)
    except Exception as error:  # numpy and zipfile raise a dozen kinds for damaged files
        raise UserError(f"weights file '{path}' cannot be read: {' '.join(str(error).split())[:200]}; expected a "
                        f"{SUFFIX} of plain arrays") from error
    if lacking := [key for key in _KEYS if key not in file]:
        raise UserError(f"weights file '{path}' has no array '{lacking[0]}'; expected {', '.join(_KEYS)}")
    values, *lists = (file[key] for key in _KEYS)
    names = []
    for one, known in zip(lists, layout, strict=True):
        names.append([str(name) for name in one.ravel()[: len(known) + 1]])
    if values.shape != (len(names[0]), len(names[1])) or values.dtype.kind != "f" or not np.isfinite(values).all():
        raise UserError(f"weights file '{path}': 'weights' is {values.dtype}{list(values.shape)}; expected finite "
                        f"numbers, {len(names[0])} rows of {len(names[1])} as 'rows' and 'columns' name them")
    for what, given, known in zip(("row", "column"), names, layout, strict=True):
        for name in given:
            if name not in known:
                raise unknown(f"{what} of weights file '{path}'", name, known)
        if len(set(given)) < len(given):
            raise UserError(f"weights file '{path}' names a {what} twice")
    found = np.zeros((len(layout.rows), len(layout.columns)))
    rows, columns = (map(known.index, given) for given, known in zip(names, layout, strict=True))
    found[np.ix_(list(rows), list(columns))] = values
    return found.ravel()


def write_weights(path: str | os.PathLike[str], layout: Layout, weights: np.ndarray) -> None:
    """Writes weights, float64[layout.size], to an .npz file, without rows and columns of zeros."""
    values = np.asarray(weights, float).reshape(len(layout.rows), len(layout.columns))
    rows, columns = np.flatnonzero(values.any(1)), np.flatnonzero(values.any(0))
    with atomic_write(Path(path)) as temporary, temporary.open("wb") as file:
        np.savez(file, weights=values[np.ix_(rows, columns)], rows=np.array([layout.rows[i] for i in rows], dtype=str),
                 columns=np.array([layout.columns[i] for i in columns], dtype=str))


ORIGIN = "card"  # key of a policy's YAML that describes its weights
_KNOWN = ("training", "trained_for", "scores", "seen", "environment")  # keys copied to a manifest
_FOR_READERS = ("decides", "fails", "live_engine")


@dataclass(frozen=True)
class SetsParameters:
    """Weights that move the parameters of a rule."""

    rule: str  # the rule
    parameters: tuple[Any, ...]  # `name`, `scale`, `step`, `low`, `high` of each row of weights
    features: tuple[Any, ...]  # features of the columns except the constant, for `feature_row`
    environment: str  # environment whose observations have these features


def origin_of(file: Path) -> dict[str, Any]:
    """What a policy's YAML says of the training of its weights; empty if it names no weights.

    Raises:
        UserError: not a mapping, or a key that a manifest does not have.
    """
    own = read_yaml(file, f"policy file '{file}'")
    if not isinstance(own, dict) or "weights" not in own or ORIGIN not in own:
        return {}
    said = own[ORIGIN]
    strange = [key for key in said if key not in (*_KNOWN, *_FOR_READERS)] if isinstance(said, dict) else [said]
    if strange:
        raise UserError(f"policy file '{file}': {ORIGIN} has {strange[0]!r}; expected a mapping with some of "
                        f"{', '.join((*_KNOWN, *_FOR_READERS))}")
    return {key: value for key, value in said.items() if key in _KNOWN}
