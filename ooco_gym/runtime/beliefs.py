"""Latency models of an engine's iterations: fitted to a measurement of the engine, or learned while it serves.

`Fitted` evaluates the `latency.json` beside a chip, which `ooco-gym calibrate chain` fits to `ooco-gym calibrate
measure` (docs/calibration.md). `Learned` starts from a prior and updates it with observed iterations.
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
CERTAIN = 3
"""Weight of the prior in the level of `Learned`, in iterations."""
_GROUPS = 6  # groups of terms with one factor each (`Belief.parts`)
_FADES, _DISTURBED, _FARTHEST = 0.75, 4.0, 100.0
_RIDGE, _ROUNDS, _FAR = 0.5, 4, 1.5

Sums = tuple[int, ...]
"""An iteration's sums, as `Belief.add` counts them; the first entry is the number of new tokens."""


class Terms(NamedTuple):
    """Terms of an iteration's latency, in seconds; the latency is their sum.

    Attributes:
        step: per iteration.
        pieces: per iteration with prompts.
        sequence: per request that generates a token.
        prompt: per prompt.
        work: per new prompt token times its context.
        context: per token of a prompt's context.
        decode_context: per token of a decode's context.
        dense: (n,) by new tokens; extrapolated linearly.
        decode: (m,) by decodes; extrapolated linearly.
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


GUESS = Terms(8e-3, 2e-3, 2e-5, 0.0, 1e-9, 0.0, 1e-7, (0.0, 2e-5), (0.0, 0.0))
"""Rough values for a model of 8 billion parameters on a large GPU."""


class Belief:
    """Latency model of iterations, as terms times sums.

    The sums are new tokens, requests that generate one, decodes and their contexts, prompts and
    their contexts, and new tokens times context. A single new token counts as a decode.

    Attributes:
        terms: replaced as a belief is learned.
    """

    none: Sums = (0, 0, 0, 0, 0, 0, 0)

    def __init__(self, terms: Terms) -> None:
        self.terms = terms

    def add(self, sums: Sums, new: int, reach: int, whole: bool) -> Sums:
        """Adds a request of `new` tokens, its context `reach`, and `whole`: whether it generates a token."""
        tokens, sampled, decodes, decode_context, prompts, context, work = sums
        if new == 1:
            return tokens + 1, sampled + whole, decodes + 1, decode_context + reach, prompts, context, work
        return (tokens + new, sampled + whole, decodes, decode_context, prompts + 1, context + reach,
                work + new * reach)

    def latency(self, sums: Sums) -> float:
        """Returns the seconds of an iteration."""
        return float(sum(self.parts(sums))) if sums[0] else 0.0

    def parts(self, sums: Sums) -> tuple[float, ...]:
        """Returns the parts of a non-empty iteration's latency, in seconds.

        They are the step, prompts, new tokens, sequences and decodes, the decodes' contexts, and
        the prompts' attention.
        """
        tokens, sampled, decodes, decode_context, prompts, context, work = sums
        one = self.terms
        return (one.step, one.pieces + one.prompt * prompts if prompts else 0.0, _at(one.dense, tokens),
                one.sequence * sampled + (_at(one.decode, decodes) if decodes else 0.0),
                one.decode_context * decode_context, one.work * work + one.context * context)

    def fill(self, state: Any) -> None:
        """Writes the terms into a simulator's state, as its only cost table (`ooco_gym.perf.CostTable`)."""
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
    """Latency of a measured engine: `step` (plus `pieces` with prompts) + dense(tokens) + … in microseconds.

    Args:
        values: `step`, `pieces`, `sequence`, `prompt`, `work`, `context`, `decode_context` in microseconds, and the
            curves `dense` (by tokens) and `decode` (by decodes), each with `knots` and `values`.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(Terms(**{name: 1e-6 * float(values[name]) for name in _FACTORS},
                               dense=_table(values["dense"]), decode=_table(values["decode"])))

    @classmethod
    def load(cls, path: str | Path) -> Fitted:
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
            if values["schema"] != FITTED_SCHEMA or min(float(values[name]) for name in _FACTORS) < 0.0:
                raise ValueError(f"expected the schema {FITTED_SCHEMA} and factors of at least 0")
            return cls(values)
        except (ArithmeticError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"'{file}' is not a fitted latency ({type(error).__name__}: {error}){advice}") from error


class Learned(Belief):
    """A prior whose groups of terms are scaled by factors fitted to observed iterations.

    The factors' common level is the median of observed over predicted latency, where `CERTAIN`
    iterations count as exactly predicted. Relative errors are then fitted by least squares with a
    ridge towards that level; outliers (graph capture, a busy machine) have little weight.

    Args:
        prior: terms before any observation; None: a model of 8 billion parameters on a large GPU.
        memory: number of remembered iterations.
        every: most iterations between two fits; the first fits come sooner.

    Attributes:
        seen: iterations so far.
    """

    def __init__(self, prior: Terms | None = None, memory: int = 512, every: int = 50) -> None:
        self._prior = Belief(prior or GUESS)
        super().__init__(self._prior.terms)
        self.seen, self._every, self._next = 0, every, 1
        self._rows, self._seconds = np.zeros((memory, _GROUPS)), np.zeros(memory)
        self._row, self._took_s, self._factors = np.zeros(_GROUPS), 0.0, np.ones(_GROUPS)

    def observe(self, sums: Sums, seconds: float, follows: bool = False) -> None:
        """Records an iteration's latency.

        Args:
            sums: of the iteration.
            seconds: from the previous iteration's end, or its own beginning, to its end.
            follows: it was scheduled while the previous one ran. The host sees ends with varying
                delay, so one iteration's excess is the next one's deficit. Such iterations are
                pooled with the ones before, each weighted `_FADES` times the next.
        """
        if sums[0] == 0 or not 0.0 < seconds < math.inf:
            return
        row, kept = np.array(self._prior.parts(sums)), _FADES if follows else 0.0
        disturbed = seconds > _DISTURBED * self.latency(sums)
        if disturbed:
            kept = 0.0
        self._row, self._took_s = kept * self._row + row, kept * self._took_s + seconds
        place = self.seen % len(self._rows)
        self._rows[place], self._seconds[place] = self._row, self._took_s
        if disturbed:
            self._row, self._took_s = np.zeros(_GROUPS), 0.0
        self.seen += 1
        if self.seen >= self._next:
            self._next = self.seen + min(self._every, 1 + self.seen // 10)
            self._fit()

    def _fit(self) -> None:
        rows, seconds = self._rows[: self.seen], self._seconds[: self.seen]
        ratios = np.concatenate([np.ones(CERTAIN), seconds / rows.sum(axis=1)])
        level = min(max(float(np.median(ratios)), 1.0 / _FARTHEST), _FARTHEST)
        for _ in range(_ROUNDS):
            believed = rows @ self._factors
            shares, ratio = level * rows / believed[:, None], seconds / believed
            weighed = shares.T / (1.0 + ((ratio - 1.0) / _FAR) ** 2)
            ridge = _RIDGE * np.maximum(shares.mean(axis=0), 0.02) + CERTAIN / (1.0 + self.seen)
            found = np.linalg.solve(weighed @ shares + np.diag(ridge), weighed @ ratio + ridge)
            self._factors = level * np.clip(found, 1.0 / _FARTHEST, _FARTHEST)
        self.terms = _scaled(self._prior.terms, self._factors.tolist())


def _scaled(terms: Terms, factors: Sequence[float]) -> Terms:
    """Returns the terms, each group of `Belief.parts` multiplied by its factor."""
    step, prompt, dense, sequence, context, work = factors
    return Terms(step * terms.step, prompt * terms.pieces, sequence * terms.sequence, prompt * terms.prompt,
                 work * terms.work, work * terms.context, context * terms.decode_context,
                 (dense * np.asarray(terms.dense)).tolist(), (sequence * np.asarray(terms.decode)).tolist())


def _table(curve: Mapping[str, Sequence[float]]) -> list[float]:
    """Returns a curve in seconds at each integer up to its last knot, linear between knots."""
    knots, values = np.array(curve["knots"], np.float64), 1e-6 * np.array(curve["values"], np.float64)
    if len(knots) != len(values) or len(knots) < 2 or (np.diff(knots) <= 0.0).any() or knots[-1] > _LONGEST_TABLE:
        raise ValueError("a curve needs as many values as knots, which rise")
    return np.interp(np.arange(int(knots[-1]) + 1), knots, values).tolist()


def _at(curve: Sequence[float], size: int) -> float:
    """Returns a curve's value at an integer, extrapolated linearly."""
    last = len(curve) - 1
    return curve[size] if size <= last else curve[last] + (size - last) * (curve[last] - curve[last - 1])


def _curve(curve: Sequence[float], size: int) -> np.ndarray:
    """Returns the first `size` values of a curve, extrapolated as in `_at`."""
    last = len(curve) - 1
    beyond = np.maximum(np.arange(size) - last, 0)
    return np.array(curve)[np.minimum(np.arange(size), last)] + beyond * (curve[last] - curve[last - 1])
