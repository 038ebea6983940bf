"""An engine's iterations as a sum of terms: what is fitted to measured iterations, and what the plug-in believes.

`Terms.table` makes a cost table of them, so that their latency is computed as any other (`ooco_gym.perf.latency`). A
file `latency.json` beside a chip has them in microseconds, as `ooco-gym calibrate chain` writes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ooco_gym.documents import read_json
from ooco_gym.errors import UserError
from ooco_gym.perf.kernels import Attention
from ooco_gym.perf.latency import PS_PER_S
from ooco_gym.perf.table import CostTable, whole_ps

FITTED_SCHEMA = "ooco-gym/latency/1"
FITTED_FILE = "latency.json"
_FACTORS = ("step", "pieces", "sequence", "prompt", "work", "context", "decode_context")
_LONGEST_TABLE = 65_536
GROUPS = (("step",), ("pieces", "prompt"), ("dense",), ("sequence", "decode"), ("decode_context",), ("work", "context"))
"""Groups of terms that a learned belief scales by one factor each."""


class Curve(NamedTuple):
    """A piecewise linear curve over integers, extrapolated with its last slope; float64[n] each."""

    knots: np.ndarray
    values: np.ndarray

    def at(self, sizes: np.ndarray) -> np.ndarray:
        """Returns values at sizes, float64[n]."""
        slope = (self.values[-1] - self.values[-2]) / (self.knots[-1] - self.knots[-2])
        return np.interp(sizes, self.knots, self.values) + slope * np.maximum(0.0, sizes - self.knots[-1])


def curve(knots: Sequence[float], values: ArrayLike) -> Curve:
    """Returns a curve.

    Raises:
        ValueError: fewer than two knots, knots that do not rise or end beyond a table, or another number of values.
    """
    found = Curve(np.array(knots, np.float64), np.array(values, np.float64))
    rising = len(knots) > 1 and (np.diff(found.knots) > 0.0).all() and knots[-1] <= _LONGEST_TABLE
    if found.knots.shape != found.values.shape or not rising:
        raise ValueError("a curve needs as many values as knots, which rise")
    return found


class Terms(NamedTuple):
    """Terms of an iteration's latency, in seconds; the latency is their sum.

    Attributes:
        step: per iteration.
        pieces: per iteration with prompts, additionally.
        sequence: per request that generates a token.
        prompt: per prompt or chunk.
        work: per new prompt token times its context.
        context: per token of a prompt's context.
        decode_context: per token of a decode's context.
        dense: by new tokens.
        decode: by decodes.
    """

    step: float
    pieces: float
    sequence: float
    prompt: float
    work: float
    context: float
    decode_context: float
    dense: Curve
    decode: Curve

    @property
    def tokens(self) -> int:
        """New tokens up to which a table holds `dense`, which is linear beyond."""
        return int(self.dense.knots[-1])

    def scaled(self, factors: Sequence[float]) -> Terms:
        """Returns the terms, those of each of `GROUPS` multiplied by its factor."""
        found: dict[str, Any] = {}
        for names, factor in zip(GROUPS, factors, strict=True):
            for name in names:
                value = getattr(self, name)
                found[name] = Curve(value.knots, factor * value.values) if isinstance(value, Curve) else factor * value
        return Terms(**found)

    def parts(self) -> list[Terms]:
        """Returns each of `GROUPS` by itself, the other terms 0."""
        return [self.scaled(row) for row in np.eye(len(GROUPS)).tolist()]

    def table(self, max_batch: int) -> CostTable:
        """Returns the cost table of an engine with these terms, without memory."""
        batch = np.arange(max_batch + 1, dtype=np.float64)
        decode, slope = self.decode.at(batch), np.full(len(batch), self.decode_context)
        lines = np.stack([decode, slope, decode, slope], axis=1)
        steps = lines.copy()
        steps[:, 0::2] += (self.step + self.dense.at(batch) + self.sequence * batch)[:, None]
        attention = Attention(np.zeros((1, 4)), launch_s=self.pieces,
                              linear_s=np.array([self.work, 0.0, self.context, self.prompt]))
        dense = self.dense.at(np.arange(self.tokens - 1, self.tokens + 1))
        return CostTable(
            decode_lines=whole_ps(steps), attention_lines=whole_ps(lines),
            prefill_ps=whole_ps(self.step + self.dense.at(np.arange(self.tokens + 1))),
            prefill_slope_ps=round(float(dense[1] - dense[0]) * PS_PER_S), attention=attention,
            head_ps=whole_ps(self.sequence * batch))

    def in_us(self) -> dict[str, Any]:
        """Returns the terms in microseconds, as `latency.json` has them."""
        found: dict[str, Any] = {name: 1e6 * getattr(self, name) for name in _FACTORS}
        for name in ("dense", "decode"):
            knots, values = getattr(self, name)
            found[name] = {"knots": knots.tolist(), "values": (1e6 * values).tolist()}
        return found

    @classmethod
    def of_us(cls, given: Mapping[str, Any]) -> Terms:
        """Returns the terms of microseconds, the inverse of `in_us`.

        Raises:
            ValueError, KeyError, TypeError: a term is missing or negative, or a curve impossible.
        """
        factors = {name: 1e-6 * float(given[name]) for name in _FACTORS}
        if min(factors.values()) < 0.0:
            raise ValueError("expected factors of at least 0")
        dense, decode = (curve(given[name]["knots"], 1e-6 * np.array(given[name]["values"], np.float64))
                         for name in ("dense", "decode"))
        return cls(**factors, dense=dense, decode=decode)

    @classmethod
    def load(cls, path: str | Path) -> Terms:
        """Reads a `latency.json`, given the file, its folder or the chip beside it.

        Raises:
            UserError: the file is missing or invalid.
        """
        file = Path(path) / FITTED_FILE if Path(path).is_dir() else Path(path)
        if file.suffix in (".yaml", ".yml"):  # the chip, beside the fitted file
            file = file.with_name(FITTED_FILE)
        advice = "; run `ooco-gym calibrate chain`, which writes it beside a measured chip"
        values = read_json(file, advice=advice)
        try:
            if values["schema"] != FITTED_SCHEMA:
                raise ValueError(f"expected the schema {FITTED_SCHEMA}")
            return cls.of_us(values)
        except (ArithmeticError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"'{file}' is not a fitted latency ({type(error).__name__}: {error}){advice}") from error


GUESS = Terms(8e-3, 2e-3, 2e-5, 0.0, 1e-9, 0.0, 1e-7, curve((0, 1), (0.0, 2e-5)), curve((0, 1), (0.0, 0.0)))
"""Rough values for a model of 8 billion parameters on a large GPU."""
