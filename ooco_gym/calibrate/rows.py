"""Measured operators as columns: the one schema into which every source is read (docs/calibration.md)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

TEXTS = ("device", "model", "op", "kernel", "source")
NUMBERS = ("tp", "n_tokens", "batch", "context_len", "q_len", "prefix", "d_in", "d_out", "h_q", "h_kv", "d_h", "n_gpus",
           "bytes", "time_us")
COLUMNS = ("device", "model", "tp", "op", "n_tokens", "batch", "context_len", "q_len", "prefix", "d_in", "d_out", "h_q",
           "h_kv", "d_h", "n_gpus", "bytes", "kernel", "time_us", "source")
"""The columns of a measurement in the order in which they are written."""
ORIGIN = ("file", "row")
"""Where a measurement stood: file's name, and row from 1 (a CSV's header counts as row 1)."""

OPERATORS = ("gemm", "attn_prefill", "attn_decode", "all_reduce", "elementwise")
"""Operators that are fitted; `gemm:<name>` and `elt:<name>` are kinds of the first and the last."""


class Rows:
    """Measurements by column: text columns as objects, numbers as float64 with NaN where they do not apply."""

    def __init__(self, columns: Mapping[str, np.ndarray]) -> None:
        self._columns = dict(columns)

    @classmethod
    def of(cls, path: Path, first_row: int, rows: int, **columns: Any) -> Rows:
        """Rows of one file: columns are arrays or one value for all; what is missing is '' or NaN."""
        filled: dict[str, np.ndarray] = {}
        for name in TEXTS:
            filled[name] = _text(columns.get(name, ""), rows)
        for name in NUMBERS:
            filled[name] = np.broadcast_to(np.asarray(columns.get(name, np.nan), dtype=np.float64), (rows,))
        filled["file"] = _text(path.name, rows)
        filled["row"] = first_row + np.arange(rows)
        return cls(filled)

    @classmethod
    def join(cls, parts: Sequence[Rows]) -> Rows:
        """All rows of several."""
        if not parts:
            return cls.of(Path("nothing"), 1, 0)
        return cls({name: np.concatenate([part[name] for part in parts]) for name in (*TEXTS, *NUMBERS, *ORIGIN)})

    def __len__(self) -> int:
        return len(self._columns["op"])

    def __getitem__(self, column: str) -> np.ndarray:
        return self._columns[column]

    @property
    def seconds(self) -> np.ndarray:
        """Measured times in seconds, float64[n]."""
        return 1e-6 * self._columns["time_us"]

    def select(self, which: np.ndarray) -> Rows:
        """The rows of a mask or of indices."""
        return Rows({name: values[which] for name, values in self._columns.items()})

    def kind(self) -> np.ndarray:
        """The operator of each row, one of `OPERATORS`, or what the file calls it."""
        kinds = {"elt": "elementwise"}
        names = [str(op).partition(":")[0] for op in self._columns["op"]]
        return np.array([kinds.get(name, name) for name in names], dtype=object)

    def of_kind(self, kind: str) -> Rows:
        """The rows of one operator."""
        return self.select(self.kind() == kind)

    def distinct(self, *columns: str) -> np.ndarray:
        """A number for each row, equal where all `columns` are, int64[n]."""
        keys = [_codes(self._columns[name]) for name in columns]
        if not keys:
            return np.zeros(len(self), dtype=np.int64)
        return np.unique(np.stack(keys, axis=1), axis=0, return_inverse=True)[1].reshape(-1)

    def where(self, index: int) -> str:
        """File and row of one measurement, for messages."""
        return f"{self._columns['file'][index]}, row {self._columns['row'][index]}"


def _codes(values: np.ndarray) -> np.ndarray:
    if values.dtype == object:
        return np.unique(values.astype(str), return_inverse=True)[1]
    return np.unique(values, return_inverse=True)[1]


def _text(values: Any, rows: int) -> np.ndarray:
    if isinstance(values, str):
        return np.full(rows, values, dtype=object)
    return np.array(["" if value is None else str(value) for value in values], dtype=object)


def plain(name: str) -> str:
    """A name as a file is called."""
    return re.sub(r"[^a-z0-9]+", "_", str(name).lower()).strip("_") or "chip"


def counted(names: Iterable[str]) -> dict[str, int]:
    """How often each name occurs, most frequent first."""
    found, counts = np.unique(np.array(list(names), dtype=str), return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return {str(found[index]): int(counts[index]) for index in order}
