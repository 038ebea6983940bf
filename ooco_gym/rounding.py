"""Rounds floats whose last bits differ between processors, before anything depends on them.

Addition, multiplication, division and square root are the same everywhere. Exponentials,
logarithms, powers and sines are not: vector units and versions of the C library differ in the last
bit, least-squares fits by more. One bit may change a picosecond, a picosecond a decision, and a
decision a whole day. So each of these functions that the simulator depends on goes through
`steady`, and each fitted parameter through `least_squares`: the same seed gives the same results on
any processor (`make golden CPUS=all`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

DIGITS = 6  # significant digits of a fitted parameter
NOTHING = 1e-9  # scaled parameters below this share of the largest are rounding errors


def steady(values: Any) -> Any:
    """Rounds values to single precision, as float64: at most 2⁻²⁵ off, far above the last of 53
    bits.

    `perf.latency.steady` is the same in compiled code.
    """
    return np.float64(np.float32(values))


def least_squares(columns: np.ndarray, target: np.ndarray, negative: bool = False) -> np.ndarray:
    """Returns rounded parameters for which `columns @ parameters` is closest to `target`:
    float64[m].

    Args:
        columns: float64[n, m]; an all-zero column gets the parameter 0.
        target: float64[n].
        negative: whether parameters may be below 0.
    """
    from scipy.optimize import nnls

    scale = np.abs(columns).max(axis=0)
    used = scale > 0.0  # unscaled, squares of tokens (10^8 and more) would dominate
    scaled = columns[:, used] / scale[used]
    found = np.linalg.lstsq(scaled, target, rcond=None)[0] if negative else nnls(scaled, target)[0]
    found[np.abs(found) < NOTHING * np.abs(found).max(initial=0.0)] = 0.0
    solved = np.zeros(len(scale))
    solved[used] = [float(f"{one:.{DIGITS - 1}e}") for one in found / scale[used]]
    return solved
