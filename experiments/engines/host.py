"""The engine's clock (`ooco_gym.perf.engine_clock`) fitted to measured iterations: their time beyond the kernels.

Beyond its kernels an iteration takes `decode_s` (decodes alone) or `prefill_s + prefill_token_s * tokens` (with prompt
chunks), and `sequence_s` per request that gets a token. The fit is non-negative least squares of errors relative to the
prediction, without disturbed iterations. On an asynchronous engine the launch of an iteration delays the end of the
previous one, so that only their sum is right; there `TOGETHER` successive iterations count as one (column `group`).
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

TOGETHER = 8
_OUTLIER, _ROUNDS = 2.0, 5
_PS_PER_US, _PAUSE_S = 1e6, 1e-6
CONSTANTS = ("decode_s", "prefill_s", "prefill_token_s", "sequence_s")
CLOCK_FILE = "clock.yaml"


class Timed(NamedTuple):
    """An engine as its chip's cost table and its clock."""

    table: CostTable
    clock: EngineClock

    def time_us(self, rows: dict[str, np.ndarray]) -> np.ndarray:
        """Returns predicted times from the columns of `iterations.parquet`, float64[n] in microseconds."""
        return kernels_us(self.table, rows) + 1e6 * _terms(rows) @ [getattr(self.clock, name) for name in CONSTANTS]


def kernels_us(table: CostTable, rows: dict[str, np.ndarray]) -> np.ndarray:
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


def fit_clock(table: CostTable, rows: dict[str, np.ndarray], name: str, source: str,
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
    found = robust_nnls(summed(rows, _terms(rows)), summed(rows, 1e-6 * rows["time_us"]),
                        summed(rows, 1e-6 * kernels_us(table, rows)))
    return replace(like, name=name, source=source, **dict(zip(CONSTANTS, found.tolist(), strict=True)))


def mode_of(engine: Mapping[str, Any]) -> EngineClock:
    """Returns the engine's clock without host time, with its scheduling mode from `engine.json`."""
    return EngineClock(async_scheduling=bool(engine.get("asynchronous")))


def groups(rows: dict[str, np.ndarray]) -> np.ndarray:
    """Returns numbers of groups of at most `TOGETHER` successive iterations without a pause, int64[n]."""
    end_s = rows["began_s"] + 1e-6 * rows["time_us"]
    first = np.concatenate([[True], np.abs(rows["began_s"][1:] - end_s[:-1]) > _PAUSE_S])
    run = np.cumsum(first) - 1
    place = np.arange(len(run)) - np.flatnonzero(first)[run]
    return np.cumsum(place % TOGETHER == 0) - 1


def summed(rows: dict[str, np.ndarray], values: np.ndarray) -> np.ndarray:
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


def described(figures: Mapping[str, float], give_or_take: Mapping[str, float] | None = None) -> str:
    """Returns the values of a clock in words, with uncertainties if known."""
    return ", ".join(f"{key} {1e3 * value:.3g}" + (f" ± {1e3 * give_or_take[key]:.2g}" if give_or_take else "") + " ms"
                     for key, value in figures.items())


def _terms(rows: dict[str, np.ndarray]) -> np.ndarray:
    prompts = rows["n_prefill"] > 0
    return np.stack([~prompts, prompts, prompts * rows["tokens"], rows["sequences_sampled"]], axis=1).astype(np.float64)
