"""The tables of features that engines are described by (`features.json`), and how their figures are scaled."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np


class Contracted(NamedTuple):
    """One feature: name, unit, how it is scaled, what it means, and where vLLM V1 has what it is made of."""

    name: str
    unit: str
    scale: str  # log, signed log, or linear
    limit: float
    low: float
    high: float
    meaning: str
    vllm: str


class Features(tuple[Contracted, ...]):
    """A table of features, in the order in which a policy sees them."""

    def __init__(self, rows: Iterable[Contracted]) -> None:
        self._how = [(one.scale, one.limit if one.scale == "linear" else math.log1p(one.limit), one.low, one.high)
                     for one in self]

    def scaled(self, rows: Iterable[Sequence[float]]) -> np.ndarray:
        """Rows of figures as a policy sees them: scaled, and cut at their bounds; float32 (rows, features)."""
        found = [[_scaled(value, *how) for value, how in zip(row, self._how, strict=True)] for row in rows]
        return np.array(found, np.float32).reshape(len(found), len(self))


def _scaled(value: float, scale: str, by: float, low: float, high: float) -> float:
    """`by` is the limit, or on a logarithmic scale log1p of it."""
    if scale == "linear":
        value /= by
    elif scale == "log":
        value = math.log1p(max(0.0, value)) / by
    else:
        value = math.copysign(math.log1p(abs(value)) / by, value)
    return min(high, max(low, value))


ENGINE, ACTION, ENTRY, VICTIM, TARGET = (
    Features(Contracted(**row, low=-1.0 if row["scale"] == "signed log" else 0.0, high=1.0) for row in rows)
    for rows in json.loads(Path(__file__).with_name("features.json").read_text(encoding="utf-8")).values())
NONE_MS = 1e9  # what counts as time without end: cut at the limit
TIE_S = 1e-9  # times closer than this are the same: what is due just now is not late, however it was rounded
