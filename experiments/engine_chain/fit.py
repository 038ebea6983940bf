"""Whole iterations of an engine, fitted: seconds as a sum of what the batch holds.

An iteration takes `step + dense(tokens) + sequence * sequences + prompt * prompts + work * sum(q kv) + context *
sum(kv) + decode * sum(context)`, over prompts with `q` new tokens and `kv` of context and over decoding requests, with
`dense` straight between its knots and nowhere falling, and nothing negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ooco_gym.errors import UserError

_SUMS = ("sequences_sampled", "n_prefill", "prefill_work", "prefill_context_sum", "decode_context_sum")
NEEDED = ("tokens", *_SUMS, "time_us")
_OUTLIER, _ROUNDS = 2.0, 5


class StepModel(NamedTuple):
    """A fitted engine; times in microseconds.

    Attributes:
        step: of any iteration.
        knots: numbers of tokens, rising, the first one 0.
        dense: by tokens, at the knots; 0 at the first.
        sequence: for each sequence that gets a token.
        prompt: for each prompt, or piece of one, with its admission.
        work: for each unit of `sum(q * kv)` over prompts.
        context: for each token of the prompts' contexts.
        decode: for each token of the contexts of decoding requests.
    """

    step: float
    knots: np.ndarray
    dense: np.ndarray
    sequence: float
    prompt: float
    work: float
    context: float
    decode: float

    def time_us(self, rows: dict[str, np.ndarray]) -> np.ndarray:
        """Predicted times of iterations, from the columns of `iterations.parquet`."""
        factors = (self.sequence, self.prompt, self.work, self.context, self.decode)
        beyond = np.maximum(0.0, rows["tokens"] - self.knots[-1])
        slope = (self.dense[-1] - self.dense[-2]) / (self.knots[-1] - self.knots[-2])
        total = self.step + np.interp(rows["tokens"], self.knots, self.dense) + slope * beyond
        return total + sum(factor * rows[name] for factor, name in zip(factors, _SUMS, strict=True))


def read_iterations(path: Path) -> dict[str, np.ndarray]:
    """The columns that the fit needs, with `repeat` and `label`, of an `iterations.parquet`.

    Raises:
        UserError: there is none, or it lacks a column.
    """
    import pyarrow.parquet as pq

    if not path.is_file():
        raise UserError(f"'{path}' does not exist: expected the iterations of `ooco-gym calibrate measure`")
    table = pq.read_table(path)
    for name in NEEDED:
        if name not in table.column_names:
            raise UserError(f"'{path}' has no column '{name}'; expected the iterations of `ooco-gym calibrate measure`")
    columns = [name for name in (*NEEDED, "repeat", "label") if name in table.column_names]
    return {name: table[name].to_numpy(zero_copy_only=False) for name in columns}


def fit_iterations(rows: dict[str, np.ndarray]) -> StepModel:
    """Fits the model by least squares of errors relative to the prediction.

    Relative to the measurement, they would draw the fit to the quick ones among equal iterations. What takes more than
    twice as long as predicted was disturbed, and is left out.

    Args:
        rows: columns of `iterations.parquet`, [n] each.

    Raises:
        UserError: fewer iterations than the model has terms.
    """
    from scipy.optimize import nnls

    knots = _knots(rows["tokens"])
    terms = _terms(rows, knots)
    time_us = rows["time_us"].astype(np.float64)
    if len(time_us) < 4 * terms.shape[1]:
        raise UserError(f"{len(time_us)} iterations are too few to fit {terms.shape[1]} terms; raise "
                        "engine.design.passes")
    scale, kept = time_us, np.ones(len(time_us), dtype=bool)
    for _ in range(_ROUNDS):
        found, _ = nnls(terms[kept] / scale[kept, None], time_us[kept] / scale[kept])
        scale = terms @ found
        kept = time_us <= _OUTLIER * scale
    dense = np.concatenate([[0.0], np.cumsum(found[1:len(knots)] * np.diff(knots))])
    return StepModel(float(found[0]), knots, dense, *(float(value) for value in found[len(knots):]))


def errors(model: StepModel, rows: dict[str, np.ndarray]) -> dict[str, float]:
    """How far predictions are from measured iterations: MAPE, p95 and worst, bias of the sum; in percent."""
    predicted, measured = model.time_us(rows), rows["time_us"]
    relative = 100.0 * np.abs(predicted / measured - 1.0)
    return {"iterations": float(len(measured)), "mape": float(relative.mean()),
            "p95": float(np.quantile(relative, 0.95)), "worst": float(relative.max()),
            "bias": 100.0 * float(predicted.sum() / measured.sum() - 1.0)}


def held_out(rows: dict[str, np.ndarray]) -> dict[str, float]:
    """Errors on each pass of the design by a fit to the others (a pass has sizes of its own)."""
    passes = np.unique(rows["repeat"])
    if len(passes) < 2:
        return {}
    parts = [errors(fit_iterations(select(rows, rows["repeat"] != number)), select(rows, rows["repeat"] == number))
             for number in passes]
    return {key: float(np.mean([part[key] for part in parts])) if key != "worst" else max(p[key] for p in parts)
            for key in parts[0]}


def select(rows: dict[str, np.ndarray], which: np.ndarray) -> dict[str, np.ndarray]:
    """The iterations of a mask."""
    return {name: values[which] for name, values in rows.items()}


def summary(model: StepModel) -> dict[str, Any]:
    """The model as plain figures."""
    return {name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in model._asdict().items()}


def _knots(tokens: np.ndarray) -> np.ndarray:
    """0, 1, 2, 4, … up to the most tokens of an iteration."""
    most = int(tokens.max())
    powers: Sequence[int] = [1 << i for i in range(most.bit_length()) if 1 << i < most]
    return np.array([0, *powers, most], dtype=np.float64)


def _terms(rows: dict[str, np.ndarray], knots: np.ndarray) -> np.ndarray:
    tokens = rows["tokens"].astype(np.float64)[:, None]
    ramps = np.clip(tokens - knots[:-1], 0.0, np.diff(knots))
    ones = np.ones((len(tokens), 1))
    return np.concatenate([ones, ramps, *(rows[name].astype(np.float64)[:, None] for name in _SUMS)], axis=1)
