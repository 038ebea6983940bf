"""What an engine's iterations take: fitted to a measurement of that very engine, or learned while it serves.

`Fitted` evaluates what `ooco-gym calibrate chain` fits to `ooco-gym calibrate measure` (docs/measuring.md),
from the `latency.json` beside the chip. `Learned` fits a sum of terms by least squares of relative errors, with
forgetting, to the iterations that it is shown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ooco_gym.documents import read_json
from ooco_gym.errors import UserError

FITTED_SCHEMA = "ooco-gym/latency/1"
FITTED_FILE = "latency.json"
_FACTORS = ("step", "pieces", "sequence", "prompt", "work", "context", "decode_context")
_LONGEST_TABLE = 65_536

Sums = tuple[int, ...]
"""What an iteration is made of, as `Belief.add` counts it; its first entry is the number of new tokens."""


class Terms(NamedTuple):
    """What an iteration takes, in seconds, by what it is made of: the sum of all terms.

    Attributes:
        step: of any iteration.
        pieces: of one with prompts.
        sequence: of each request that makes a token.
        prompt: of each prompt.
        work: of each new token of a prompt times its context.
        context: of each token of a prompt's context.
        decode_context: of each token of a decode's context.
        dense: (n,) by new tokens; straight on beyond.
        decode: (m,) by decodes; straight on beyond.
    """

    step: float
    pieces: float
    sequence: float
    prompt: float
    work: float
    context: float
    decode_context: float
    dense: Sequence[float]
    decode: Sequence[float]


class Belief:
    """Terms of an iteration, and sums that they multiply: tokens, requests that make one, decodes, their contexts;
    prompts, their contexts, and the sum of new tokens times context. A single new token is a decode.

    Attributes:
        terms: they change where a belief is learned.
    """

    none: Sums = (0, 0, 0, 0, 0, 0, 0)

    def __init__(self, terms: Terms) -> None:
        self.terms = terms

    def add(self, sums: Sums, new: int, reach: int, whole: bool) -> Sums:
        """Sums with one more request: its new tokens, its context with these, and whether it makes a token."""
        tokens, sampled, decodes, decode_context, prompts, context, work = sums
        if new == 1:
            return tokens + 1, sampled + whole, decodes + 1, decode_context + reach, prompts, context, work
        return (tokens + new, sampled + whole, decodes, decode_context, prompts + 1, context + reach,
                work + new * reach)

    def latency(self, sums: Sums) -> float:
        """Seconds that an iteration takes."""
        tokens, sampled, decodes, decode_context, prompts, context, work = sums
        if tokens == 0:
            return 0.0
        one = self.terms
        total = one.step + one.sequence * sampled + one.decode_context * decode_context + _at(one.dense, tokens)
        if decodes:
            total += _at(one.decode, decodes)
        return total + one.pieces + one.prompt * prompts + one.work * work + one.context * context if prompts else total

    def fill(self, state: Any) -> None:
        """Writes the terms as the only cost table of a simulator's state (`ooco_gym.perf.CostTable`)."""
        one, table = self.terms, state.tables[0]
        tokens, batch = (np.arange(array.shape[1]) for array in (state.prefill_ps, state.head_ps))
        dense = _curve(one.dense, max(len(tokens), len(batch)))
        decode, sampled = _curve(one.decode, len(batch)), one.sequence * batch
        step = one.step + dense[: len(batch)] + sampled + decode
        for array, seconds in ((state.prefill_ps[0], one.step + dense[: len(tokens)]), (state.head_ps[0], sampled),
                               (state.decode_lines[0, :, 0], step), (state.decode_lines[0, :, 1], one.decode_context),
                               (state.attention_lines[0, :, 0], decode),
                               (state.attention_lines[0, :, 1], one.decode_context)):
            array[:] = np.rint(1e12 * seconds)
        state.prefill_ps[0, 0] = state.decode_lines[0, 0] = 0
        table["prefill_slope_ps"] = round(1e12 * (one.dense[-1] - one.dense[-2]))
        table["launch"], table["exponent"], table["tile"] = 1e12 * one.pieces, np.inf, 1
        table["linear"] = 1e12 * np.array([one.work, 0.0, one.context, one.prompt])


class Fitted(Belief):
    """A measured engine: `step` (with `pieces` more where there are prompts) + dense(tokens) + … in microseconds.

    Args:
        values: `step`, `pieces`, `sequence`, `prompt`, `work`, `context`, `decode_context` in microseconds, and the
            curves `dense` (by tokens) and `decode` (by decodes), each with `knots` and `values`.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(Terms(**{name: 1e-6 * float(values[name]) for name in _FACTORS},
                               dense=_table(values["dense"]), decode=_table(values["decode"])))

    @classmethod
    def load(cls, path: str | Path) -> Fitted:
        """Reads a `latency.json`, or that of a folder.

        Raises:
            UserError: it is not there, or is none.
        """
        file = Path(path) / FITTED_FILE if Path(path).is_dir() else Path(path)
        if file.suffix in (".yaml", ".yml"):  # the chip: what was fitted lies beside it
            file = file.with_name(FITTED_FILE)
        advice = "; run `ooco-gym calibrate chain`, which writes it beside a measured chip"
        values = read_json(file, advice=advice)
        try:
            if values["schema"] != FITTED_SCHEMA or min(float(values[name]) for name in _FACTORS) < 0.0:
                raise ValueError(f"expected the schema {FITTED_SCHEMA} and factors of at least 0")
            return cls(values)
        except (ArithmeticError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"'{file}' is not a fitted latency ({type(error).__name__}: {error}){advice}") from error


class Learned(Belief):
    """Least squares over what iterations were seen to take, with forgetting; nothing negative.

    Args:
        step_s: what an iteration takes at first guess, seconds.
        token_s: what a new token adds to it at first guess.
        memory: how many iterations are remembered, by exponential forgetting.
        every: iterations between two fits.
    """

    def __init__(self, step_s: float = 0.01, token_s: float = 1e-4, memory: int = 2000, every: int = 50) -> None:
        weights = [step_s, 0.0, token_s, 0.0, 0.0, 0.0]
        super().__init__(_terms_of(weights))
        self._keep, self._every, self.seen = 1.0 - 1.0 / memory, every, 0
        self._scale = np.array([1.0, 1.0, 100.0, 10.0, 1e4, 1e5])
        size = len(weights)
        guess = np.array(weights) * self._scale
        self._gram = np.eye(size) * 1e-2  # the guess counts as much as a few iterations
        self._moment = self._gram @ guess

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
            self.terms = _terms_of((_non_negative(self._gram, self._moment) / self._scale).tolist())


def _terms_of(weights: Sequence[float]) -> Terms:
    step, pieces, token, sequence, context, work = weights
    return Terms(step, pieces, sequence, 0.0, work, 0.0, context, (0.0, token), (0.0, 0.0))


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


def _at(curve: Sequence[float], size: int) -> float:
    """A curve at a whole number: as steep beyond its last entry as before it."""
    last = len(curve) - 1
    return curve[size] if size <= last else curve[last] + (size - last) * (curve[last] - curve[last - 1])


def _curve(curve: Sequence[float], size: int) -> np.ndarray:
    """The first `size` entries of a curve, as `_at` goes on."""
    last = len(curve) - 1
    beyond = np.maximum(np.arange(size) - last, 0)
    return np.array(curve)[np.minimum(np.arange(size), last)] + beyond * (curve[last] - curve[last - 1])
