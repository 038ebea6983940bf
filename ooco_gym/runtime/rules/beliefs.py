"""What an engine's iterations take: fitted to a measurement of that very engine, or learned while it serves.

`Fitted` evaluates what `ooco-gym experiment engine_chain` fits to `ooco-gym calibrate measure` (docs/measuring.md),
from the `latency.json` beside the chip. `Learned` fits a sum of terms by least squares of relative errors, with
forgetting, to the iterations that it is shown.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ooco_gym.documents import read_json
from ooco_gym.errors import UserError
from ooco_gym.runtime.features import Batch
from ooco_gym.runtime.rules.iteration import Sums

FITTED_SCHEMA = "ooco-gym/latency/1"
FITTED_FILE = "latency.json"
_FACTORS = ("step", "pieces", "sequence", "prompt", "work", "context", "decode_context")
_LONGEST_TABLE = 65_536


class _Sums(ABC):
    """Sums of an iteration: tokens, requests that make one, decodes, their contexts; prompts, their contexts, and the
    sum of new tokens times context. A single new token is a decode."""

    none: Sums = (0, 0, 0, 0, 0, 0, 0)

    def add(self, sums: Sums, new: int, reach: int, whole: bool) -> Sums:
        """Sums with one more request: its new tokens, its context with these, and whether it makes a token."""
        tokens, sampled, decodes, decode_context, prompts, context, work = sums
        if new == 1:
            return tokens + 1, sampled + whole, decodes + 1, decode_context + reach, prompts, context, work
        return (tokens + new, sampled + whole, decodes, decode_context, prompts + 1, context + reach,
                work + new * reach)

    def of_batch(self, batch: Iterable[tuple[int, int]]) -> float:
        """Seconds that an iteration takes, of (new tokens, context after them) of each of its requests."""
        sums = self.none
        if isinstance(batch, Batch):
            sums = (batch.decodes, batch.decodes, batch.decodes, batch.context, 0, 0, 0)
            batch = batch.prompts
        for new, reach in batch:
            sums = self.add(sums, int(new), int(reach), True)
        return self.latency(sums)

    @abstractmethod
    def latency(self, sums: Sums) -> float:
        """Seconds that an iteration takes."""

    def prefill(self, tokens: int) -> float:
        """Seconds that computing so many tokens of one prompt takes, alone."""
        return self.latency(self.add(self.none, tokens, tokens, True))


class Fitted(_Sums):
    """A measured engine: `step` (with `pieces` more where there are prompts) + dense(tokens) + … in microseconds.

    Args:
        values: `step`, `pieces`, `sequence`, `prompt`, `work`, `context`, `decode_context` in microseconds, and the
            curves `dense` (by tokens) and `decode` (by decodes), each with `knots` and `values`.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._factors = tuple(1e-6 * float(values[name]) for name in _FACTORS)
        self._dense, self._decode = _table(values["dense"]), _table(values["decode"])

    def latency(self, sums: Sums) -> float:
        """Seconds that an iteration takes."""
        tokens, sampled, decodes, decode_context, prompts, context, work = sums
        if tokens == 0:
            return 0.0
        step, pieces, sequence, prompt, per_work, per_context, per_decoded = self._factors
        total = step + sequence * sampled + per_decoded * decode_context
        total += self._dense[tokens] if tokens < len(self._dense) else _beyond(self._dense, tokens)
        if decodes:
            total += self._decode[decodes] if decodes < len(self._decode) else _beyond(self._decode, decodes)
        return total + pieces + prompt * prompts + per_work * work + per_context * context if prompts else total

    @classmethod
    def load(cls, path: str | Path) -> Fitted:
        """Reads a `latency.json`, or that of a folder.

        Raises:
            UserError: it is not there, or is none.
        """
        file = Path(path) / FITTED_FILE if Path(path).is_dir() else Path(path)
        if file.suffix in (".yaml", ".yml"):  # the chip: what was fitted lies beside it
            file = file.with_name(FITTED_FILE)
        advice = "; run `ooco-gym experiment engine_chain`, which writes it beside a measured chip"
        values = read_json(file, advice=advice)
        try:
            if values["schema"] != FITTED_SCHEMA or min(float(values[name]) for name in _FACTORS) < 0.0:
                raise ValueError(f"expected the schema {FITTED_SCHEMA} and factors of at least 0")
            return cls(values)
        except (ArithmeticError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"'{file}' is not a fitted latency ({type(error).__name__}: {error}){advice}") from error


class Learned(_Sums):
    """Least squares over what iterations were seen to take, with forgetting; nothing negative.

    Args:
        step_s: what an iteration takes at first guess, seconds.
        token_s: what a new token adds to it at first guess.
        memory: how many iterations are remembered, by exponential forgetting.
        every: iterations between two fits.
    """

    def __init__(self, step_s: float = 0.01, token_s: float = 1e-4, memory: int = 2000, every: int = 50) -> None:
        self._weights = [step_s, 0.0, token_s, 0.0, 0.0, 0.0]
        self._keep, self._every, self.seen = 1.0 - 1.0 / memory, every, 0
        self._scale = np.array([1.0, 1.0, 100.0, 10.0, 1e4, 1e5])
        size = len(self._weights)
        guess = np.array(self._weights) * self._scale
        self._gram = np.eye(size) * 1e-2  # the guess counts as much as a few iterations
        self._moment = self._gram @ guess

    def latency(self, sums: Sums) -> float:
        """Seconds that an iteration takes."""
        tokens, sampled, _, decode_context, prompts, _, work = sums
        if tokens == 0:
            return 0.0
        step, pieces, token, sequence, context, per_work = self._weights
        total = step + token * tokens + sequence * sampled + context * decode_context + per_work * work
        return total + pieces if prompts else total

    def observe(self, sums: Sums, seconds: float) -> None:
        """An iteration of these sums took so long; one that took far longer than predicted was disturbed."""
        if sums[0] == 0 or not 0.0 < seconds < math.inf:
            return
        believed = self.latency(sums)
        if self.seen > self._every and seconds > 4.0 * believed:
            return
        tokens, sampled, _, decode_context, prompts, _, work = sums
        row = np.array([1.0, prompts > 0, tokens, sampled, decode_context, work]) / self._scale / seconds
        self._gram = self._keep * self._gram + np.outer(row, row)
        self._moment = self._keep * self._moment + row
        self.seen += 1
        if self.seen % self._every == 0:
            self._weights = (_non_negative(self._gram, self._moment) / self._scale).tolist()


def _non_negative(gram: np.ndarray, moment: np.ndarray) -> np.ndarray:
    """Least squares with no negative weight: what would be negative is left out, one after the other."""
    kept = list(range(len(moment)))
    while kept:
        part = gram[np.ix_(kept, kept)] + 1e-9 * np.trace(gram) * np.eye(len(kept))
        found = np.linalg.solve(part, moment[kept])
        if (found >= 0.0).all():
            break
        kept.pop(int(np.argmin(found)))
    weights = np.zeros(len(moment))
    weights[kept] = found if kept else 0.0
    return weights


def _table(curve: Mapping[str, Sequence[float]]) -> list[float]:
    """A curve, straight between knots, at each whole number up to its last knot, in seconds."""
    knots, values = np.array(curve["knots"], np.float64), 1e-6 * np.array(curve["values"], np.float64)
    if len(knots) != len(values) or len(knots) < 2 or (np.diff(knots) <= 0.0).any() or knots[-1] > _LONGEST_TABLE:
        raise ValueError("a curve needs as many values as knots, which rise")
    return np.interp(np.arange(int(knots[-1]) + 1), knots, values).tolist()


def _beyond(table: list[float], size: int) -> float:
    """As steep beyond the last knot as before it."""
    return table[-1] + (size - len(table) + 1) * (table[-1] - table[-2])
