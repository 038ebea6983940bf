"""Fits of an engine's measured iterations, as wholes: `Terms`, or host time beyond the kernels of a chip (a clock).

A fit is non-negative least squares of errors relative to the prediction, without disturbed
iterations. Beyond its kernels an iteration takes `decode_s` (decodes alone) or `prefill_s +
prefill_token_s * tokens` (with prompt chunks), and `sequence_s` per request that gets a token. On an
asynchronous engine the launch of an iteration delays the end of the previous one, so that only
their sum is right; there `TOGETHER` successive iterations count as one (column `group`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from ooco_gym.errors import UserError
from ooco_gym.files import atomic_write
from ooco_gym.perf import CostTable, mixed_latency_ps
from ooco_gym.perf.engine_clock import NO_HOST_TIME, EngineClock
from ooco_gym.perf.table import sums_latency_ps
from ooco_gym.perf.terms import Curve, Terms
from ooco_gym.workload.table_reader import read_table

Iterations = dict[str, np.ndarray]
"""Columns of `iterations.parquet`, [n] each."""
TOGETHER = 8
_OUTLIER, _ROUNDS = 2.0, 5
_PS_PER_US, _PAUSE_S = 1e6, 1e-6
CONSTANTS = ("decode_s", "prefill_s", "prefill_token_s", "sequence_s")
CLOCK_FILE = "clock.yaml"
_SUMS = ("sequences_sampled", "n_prefill", "prefill_work", "prefill_context_sum", "decode_context_sum")
NEEDED = ("tokens", "n_decode", "prefill_tokens", *_SUMS, "time_us", "began_s")
MOST_BIAS, MOST_MAPE = 10.0, 15.0
"""Errors in percent above which a fit is unreliable."""


class Timed(NamedTuple):
    """An engine as a cost table and a clock."""

    table: CostTable
    clock: EngineClock

    def time_us(self, rows: Iterations) -> np.ndarray:
        """Returns predicted times, float64[n] in microseconds."""
        return kernels_us(self.table, rows) + 1e6 * _host_terms(rows) @ [getattr(self.clock, name)
                                                                         for name in CONSTANTS]


class EngineFit(NamedTuple):
    """An engine as fitted terms."""

    terms: Terms

    def time_us(self, rows: Iterations) -> np.ndarray:
        """Returns predicted times, float64[n] in microseconds."""
        names = ("tokens", "sequences_sampled", "n_decode", "decode_context_sum", "", "n_prefill", "prefill_tokens",
                 "prefill_work", "prefill_context_sum", "")
        most = max(int(rows[name].max(initial=1)) for name in ("sequences_sampled", "n_decode"))
        return sums_latency_ps(self.terms.table(most), [rows.get(name, 0) for name in names]) / _PS_PER_US


def read_iterations(path: Path, asynchronous: bool = False) -> Iterations:
    """Reads the columns needed for fits, with `repeat` and `label`, from an `iterations.parquet`.

    For an asynchronous engine `group` is added, over which fits and errors sum.

    Raises:
        UserError: the file or a column is missing.
    """
    table = read_table(path).columns
    for name in NEEDED:
        if name not in table:
            raise UserError(f"'{path}' has no column '{name}'; expected the iterations of `ooco-gym calibrate measure`")
    rows = {name: table[name].to_numpy() for name in (*NEEDED, "repeat", "label") if name in table}
    return {**rows, "group": groups(rows)} if asynchronous else rows


def fit_iterations(rows: Iterations) -> EngineFit:
    """Fits terms by robust least squares; the curves do not fall, and a single token's time is in `step`.

    Raises:
        UserError: fewer iterations than there are terms.
    """
    knots, requests = _knots(rows["tokens"], 1, 2.0), _knots(rows["n_decode"], 0, 4.0)
    terms = _terms(rows, knots, requests)
    time_us = rows["time_us"].astype(np.float64)
    if len(time_us) < 4 * terms.shape[1]:
        raise UserError(f"{len(time_us)} iterations are too few to fit {terms.shape[1]} terms; raise "
                        "engine.design.passes")
    found = robust_nnls(summed(rows, terms), summed(rows, time_us))
    factors, dense, decode = np.split(1e-6 * found, [2 + len(_SUMS), 1 + len(_SUMS) + len(knots)])
    step, pieces, sequence, prompt, work, context, decode_context = factors.tolist()
    return EngineFit(Terms(step, pieces, sequence, prompt, work, context, decode_context, _curve(knots, dense),
                     _curve(requests, decode)))


def errors(model: EngineFit | Timed, rows: Iterations) -> dict[str, float]:
    """Returns prediction errors on measured iterations: MAPE, p95 and worst, bias of the sum; in percent."""
    predicted, measured = summed(rows, model.time_us(rows)), summed(rows, rows["time_us"])
    relative = 100.0 * np.abs(predicted / measured - 1.0)
    return {"iterations": float(len(rows["time_us"])), "mape": float(relative.mean()),
            "p95": float(np.quantile(relative, 0.95)), "worst": float(relative.max()),
            "bias": 100.0 * float(predicted.sum() / measured.sum() - 1.0)}


def doubts(found: dict[str, float]) -> list[str]:
    """Returns a warning about a fit with unreliable `errors`; empty if they are small."""
    if abs(found["bias"]) <= MOST_BIAS and found["mape"] <= MOST_MAPE:
        return []
    return [f"fitted iterations have a MAPE of {found['mape']:.0f} % and a bias of {found['bias']:+.0f} %: do not rely "
            "on this fit; check 'machine' in engine.json for other load, and measure again on an idle machine with "
            "more engine.design.passes"]


def held_out(rows: Iterations) -> dict[str, float]:
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


def select(rows: Iterations, which: np.ndarray) -> Iterations:
    return {name: values[which] for name, values in rows.items()}


def kernels_us(table: CostTable, rows: Iterations) -> np.ndarray:
    """Returns the kernel times of iterations, float64[n] in microseconds.

    Of prompt chunks only sums are known. They are replaced by equal chunks with the same work, which is exact if their
    earlier context is proportional to their length (whole prompts have none).
    """
    tokens, context, work = (rows[name].astype(np.float64) for name in (
        "prefill_tokens", "prefill_context_sum", "prefill_work"))
    prompts = np.rint(np.clip(tokens * context / np.maximum(work, 1.0), rows["n_prefill"] > 0, rows["n_prefill"]))
    places = np.arange(max(1, int(prompts.max(initial=0))))
    each = np.maximum(prompts, 1.0)
    new = np.where(places < prompts[:, None], (tokens[:, None] + places) // each[:, None], 0.0)
    before = np.rint(np.maximum(0.0, work / np.maximum(tokens, 1.0) - tokens / each))[:, None]
    return mixed_latency_ps(table, new, before, rows["n_decode"], rows["decode_context_sum"],
                            rows["sequences_sampled"] - rows["n_decode"]) / _PS_PER_US


def fit_clock(table: CostTable, rows: Iterations, name: str, source: str,
              like: EngineClock = NO_HOST_TIME) -> EngineClock:
    """Fits a clock to iterations.

    Args:
        table: of the engine's chip and model.
        rows: columns of `iterations.parquet`, [n] each.
        name, source: of the clock; the source describes the measurement.
        like: the clock's other fields.

    Raises:
        UserError: too few iterations with prompts, or of decodes alone.
    """
    prompts = int((rows["n_prefill"] > 0).sum())
    if min(prompts, len(rows["n_prefill"]) - prompts) < len(CONSTANTS):
        raise UserError(f"{prompts} iterations with prompts and {len(rows['n_prefill']) - prompts} without are too few "
                        "to fit an engine clock; expected more of both")
    found = robust_nnls(summed(rows, _host_terms(rows)), summed(rows, 1e-6 * rows["time_us"]),
                        summed(rows, 1e-6 * kernels_us(table, rows)))
    return replace(like, name=name, source=source, **dict(zip(CONSTANTS, found.tolist(), strict=True)))


def mode_of(engine: Mapping[str, Any]) -> EngineClock:
    """Returns the engine's clock without host time, with its scheduling mode from `engine.json`."""
    return EngineClock(async_scheduling=bool(engine.get("asynchronous")))


def groups(rows: Iterations) -> np.ndarray:
    """Returns numbers of groups of at most `TOGETHER` successive iterations without a pause, int64[n]."""
    end_s = rows["began_s"] + 1e-6 * rows["time_us"]
    first = np.concatenate([[True], np.abs(rows["began_s"][1:] - end_s[:-1]) > _PAUSE_S])
    run = np.cumsum(first) - 1
    place = np.arange(len(run)) - np.flatnonzero(first)[run]
    return np.cumsum(place % TOGETHER == 0) - 1


def summed(rows: Iterations, values: np.ndarray) -> np.ndarray:
    """Returns values of iterations, [n] or [n, m], summed over each group for an asynchronous engine."""
    if "group" not in rows:
        return values
    _, place = np.unique(rows["group"], return_inverse=True)
    found = np.zeros((place.max(initial=-1) + 1, *values.shape[1:]))
    np.add.at(found, place, values)
    return found


def robust_nnls(terms: np.ndarray, times: np.ndarray, known: np.ndarray | float = 0.0) -> np.ndarray:
    """Returns non-negative weights, float64[m], with which `terms`, float64[n, m], plus `known` approximate `times`.

    The fit is least squares of errors relative to the prediction; relative to the measurement, it would favour the
    fastest of equal iterations. Iterations over twice the prediction count as disturbed and are excluded.
    """
    from scipy.optimize import nnls

    scale, kept, rest = times, np.ones(len(times), dtype=bool), times - known
    found = np.zeros(terms.shape[1])
    for _ in range(_ROUNDS):
        found, _ = nnls(terms[kept] / scale[kept, None], rest[kept] / scale[kept])
        scale = terms @ found + known
        kept = times <= _OUTLIER * scale
    return found


def write_clock(path: Path, clock: EngineClock) -> Path:
    """Writes a clock for `cluster.engine_clock=FILE`."""
    values: dict[str, Any] = {key: float(f"{value:.3g}") if isinstance(value, float) else value
                              for key, value in asdict(clock).items()}
    with atomic_write(path) as temporary:
        temporary.write_text(yaml.safe_dump(values, sort_keys=False, width=110), encoding="utf-8")
    return path


def described(constants: Mapping[str, float], give_or_take: Mapping[str, float] | None = None) -> str:
    """Returns the values of a clock in words, with uncertainties if known."""
    return ", ".join(f"{key} {1e3 * value:.3g}" + (f" ± {1e3 * give_or_take[key]:.2g}" if give_or_take else "") + " ms"
                     for key, value in constants.items())


def _host_terms(rows: Iterations) -> np.ndarray:
    prompts = rows["n_prefill"] > 0
    return np.stack([~prompts, prompts, prompts * rows["tokens"], rows["sequences_sampled"]], axis=1).astype(np.float64)


def _knots(sizes: np.ndarray, first: int, factor: float) -> np.ndarray:
    """Returns `first` (0 or 1), 1, `factor`, `factor` squared, … up to the largest size."""
    most = max(first + 1, int(sizes.max()))
    powers = factor ** np.arange(np.ceil(np.log(most) / np.log(factor)))
    return np.unique([first, *powers[powers < most], most]).astype(np.float64)


def _terms(rows: Iterations, knots: np.ndarray, requests: np.ndarray) -> np.ndarray:
    plain = [np.ones(len(rows["tokens"])), rows["n_prefill"] > 0, *(rows[name] for name in _SUMS)]
    return np.concatenate([np.stack(plain, axis=1).astype(np.float64), _ramps(rows["tokens"], knots),
                           _ramps(rows["n_decode"], requests)], axis=1)


def _ramps(sizes: np.ndarray, knots: np.ndarray) -> np.ndarray:
    """Returns the part of each interval between knots that lies below a size, float64[n, intervals]."""
    return np.clip(sizes.astype(np.float64)[:, None] - knots[:-1], 0.0, np.diff(knots))


def _curve(knots: np.ndarray, slopes: np.ndarray) -> Curve:
    return Curve(knots, np.concatenate([[0.0], np.cumsum(slopes * np.diff(knots))]))
