"""A formula fitted to the measured iterations of an engine.

Whole iterations are fitted in microseconds: an iteration takes `step` (plus `pieces` with prompt
chunks) `+ dense(tokens) + sequence * sequences + prompt * prompts + work * sum(q kv) + context *
sum(kv) + decode(requests) + decode_context * sum(context)`, over prompts with `q` new tokens and
`kv` of context, and over decoding requests. `dense` and `decode` are piecewise linear and do not
fall; nothing is negative.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.engines import host
from experiments.engines.host import Timed, robust_nnls, summed
from experiments.engines.served import read_measured
from ooco_gym.errors import UserError

_SUMS = ("sequences_sampled", "n_prefill", "prefill_work", "prefill_context_sum", "decode_context_sum")
NEEDED = ("tokens", "n_decode", "prefill_tokens", *_SUMS, "time_us", "began_s")


class Curve(NamedTuple):
    """A piecewise linear curve, 0 at its first knot, extrapolated with its last slope."""

    knots: np.ndarray
    values: np.ndarray

    def plain(self) -> dict[str, list[float]]:
        """Returns knots and values as lists."""
        return {"knots": self.knots.tolist(), "values": self.values.tolist()}

    def at(self, sizes: np.ndarray) -> np.ndarray:
        """Returns values at sizes, float64[n]."""
        slope = (self.values[-1] - self.values[-2]) / (self.knots[-1] - self.knots[-2])
        return np.interp(sizes, self.knots, self.values) + slope * np.maximum(0.0, sizes - self.knots[-1])


class StepModel(NamedTuple):
    """A fitted engine; times in microseconds.

    Attributes:
        step: per iteration.
        pieces: per iteration with prompt chunks, additionally.
        sequence: per sequence that gets a token.
        prompt: per prompt or chunk.
        work: per unit of `sum(q * kv)` over prompts.
        context: per token of the prompts' contexts.
        decode_context: per token of the decodes' contexts.
        dense: by tokens; a single token's is in `step`.
        decode: by decoding requests.
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

    def time_us(self, rows: dict[str, np.ndarray]) -> np.ndarray:
        """Returns predicted times of iterations, from the columns of `iterations.parquet`."""
        factors = (self.sequence, self.prompt, self.work, self.context, self.decode_context)
        total = self.step + self.pieces * (rows["n_prefill"] > 0)
        total = total + self.dense.at(rows["tokens"]) + self.decode.at(rows["n_decode"])
        return total + sum(factor * rows[name] for factor, name in zip(factors, _SUMS, strict=True))


def read_iterations(path: Path, asynchronous: bool = False) -> dict[str, np.ndarray]:
    """Reads the columns needed for fits, with `repeat` and `label`, from an `iterations.parquet`.

    For an asynchronous engine `group` is added (`host.groups`), over which fits and errors sum.

    Raises:
        UserError: the file or a column is missing.
    """
    table = read_measured(path)
    for name in NEEDED:
        if name not in table:
            raise UserError(f"'{path}' has no column '{name}'; expected the iterations of `ooco-gym calibrate measure`")
    rows = {name: table[name] for name in (*NEEDED, "repeat", "label") if name in table}
    return {**rows, "group": host.groups(table)} if asynchronous else rows


def fit_iterations(rows: dict[str, np.ndarray]) -> StepModel:
    """Fits the model by robust least squares (`host.robust_nnls`).

    Args:
        rows: columns of `iterations.parquet`, [n] each.

    Raises:
        UserError: fewer iterations than the model has terms.
    """
    knots, requests = _knots(rows["tokens"], 1, 2.0), _knots(rows["n_decode"], 0, 4.0)
    terms = _terms(rows, knots, requests)
    time_us = rows["time_us"].astype(np.float64)
    if len(time_us) < 4 * terms.shape[1]:
        raise UserError(f"{len(time_us)} iterations are too few to fit {terms.shape[1]} terms; raise "
                        "engine.design.passes")
    found = robust_nnls(summed(rows, terms), summed(rows, time_us))
    plain, dense, decode = np.split(found, [2 + len(_SUMS), 1 + len(_SUMS) + len(knots)])
    step, pieces, sequence, prompt, work, context, decode_context = (float(value) for value in plain)
    return StepModel(step, pieces, sequence, prompt, work, context, decode_context, _curve(knots, dense),
                     _curve(requests, decode))


def errors(model: StepModel | Timed, rows: dict[str, np.ndarray]) -> dict[str, float]:
    """Returns prediction errors on measured iterations: MAPE, p95 and worst, bias of the sum; in percent."""
    predicted, measured = summed(rows, model.time_us(rows)), summed(rows, rows["time_us"])
    relative = 100.0 * np.abs(predicted / measured - 1.0)
    return {"iterations": float(len(rows["time_us"])), "mape": float(relative.mean()),
            "p95": float(np.quantile(relative, 0.95)), "worst": float(relative.max()),
            "bias": 100.0 * float(predicted.sum() / measured.sum() - 1.0)}


MOST_BIAS, MOST_MAPE = 10.0, 15.0
"""Errors in percent above which a fit is unreliable."""


def doubts(found: dict[str, float]) -> list[str]:
    """Returns a warning about a fit with unreliable `errors`; empty if they are small."""
    if abs(found["bias"]) <= MOST_BIAS and found["mape"] <= MOST_MAPE:
        return []
    return [f"fitted iterations have a MAPE of {found['mape']:.0f} % and a bias of {found['bias']:+.0f} %: do not rely "
            "on this fit; check 'machine' in engine.json for other load, and measure again on an idle machine with "
            "more engine.design.passes"]


def held_out(rows: dict[str, np.ndarray]) -> dict[str, float]:
    """Returns errors on each pass of the design by a fit to the others (each pass has its own sizes)."""
    passes = np.unique(rows["repeat"]) if "repeat" in rows else ()
    if len(passes) < 2:
        return {}
    parts = []
    for number in passes:
        fitted = fit_iterations(select(rows, rows["repeat"] != number))
        parts.append(errors(fitted, select(rows, rows["repeat"] == number)))
    found = {}
    for key in parts[0]:
        values = [part[key] for part in parts]
        found[key] = max(values) if key == "worst" else float(np.mean(values))
    return found


def select(rows: dict[str, np.ndarray], which: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the iterations of a mask."""
    return {name: values[which] for name, values in rows.items()}


def summary(model: StepModel) -> dict[str, Any]:
    """Returns the model as plain values."""
    found: dict[str, Any] = {}
    for name, value in model._asdict().items():
        found[name] = value.plain() if isinstance(value, Curve) else value
    return found


def _knots(sizes: np.ndarray, first: int, factor: float) -> np.ndarray:
    """Returns `first` (0 or 1), 1, `factor`, `factor` squared, … up to the largest size."""
    most = max(first + 1, int(sizes.max()))
    powers = factor ** np.arange(np.ceil(np.log(most) / np.log(factor)))
    return np.unique([first, *powers[powers < most], most]).astype(np.float64)


def _terms(rows: dict[str, np.ndarray], knots: np.ndarray, requests: np.ndarray) -> np.ndarray:
    plain = [np.ones(len(rows["tokens"])), rows["n_prefill"] > 0, *(rows[name] for name in _SUMS)]
    return np.concatenate([np.stack(plain, axis=1).astype(np.float64), _ramps(rows["tokens"], knots),
                           _ramps(rows["n_decode"], requests)], axis=1)


def _ramps(sizes: np.ndarray, knots: np.ndarray) -> np.ndarray:
    """Returns the part of each interval between knots that lies below a size, float64[n, intervals]."""
    return np.clip(sizes.astype(np.float64)[:, None] - knots[:-1], 0.0, np.diff(knots))


def _curve(knots: np.ndarray, slopes: np.ndarray) -> Curve:
    return Curve(knots, np.concatenate([[0.0], np.cumsum(slopes * np.diff(knots))]))
