"""Rounds floats whose last bits differ between processors, once, before anything depends on them.

Addition, multiplication, division and square root are the same everywhere. Exponentials, logarithms, powers and sines
are not: vector units and versions of the C library differ by a unit in the last place, least-squares fits by more. One
such bit may turn over a picosecond, a picosecond a decision, and a decision a whole day. So each of them that the
simulator builds on goes through `steady`, each fitted parameter through `least_squares`: the same seed then gives the
same figures on any processor (`make golden CPUS=all`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

DIGITS = 6  # significant ones of a fitted parameter
NOTHING = 1e-9  # a parameter that counts so little beside the one that counts most is rounding


def steady(values: Any) -> Any:
    """Values as single precision holds them, as float64: 2⁻²⁵ off at most, far above the last of 53 bits.

    Compiled code has it as `sim.costs.steady`.
    """
    return np.float64(np.float32(values))


def least_squares(columns: np.ndarray, target: np.ndarray, negative: bool = False) -> np.ndarray:
    """The parameters for which `columns @ parameters` comes closest to `target`, rounded: float64[m].

    Args:
        columns: float64[n, m]; the parameter of one that is 0 throughout is 0.
        target: float64[n].
        negative: whether parameters may be below 0.
    """
    from scipy.optimize import nnls

    scale = np.abs(columns).max(axis=0)
    used = scale > 0.0  # squares of tokens are 10^8 and more: unscaled, they would drown the others
    scaled = columns[:, used] / scale[used]
    found = np.linalg.lstsq(scaled, target, rcond=None)[0] if negative else nnls(scaled, target)[0]
    found[np.abs(found) < NOTHING * np.abs(found).max(initial=0.0)] = 0.0
    solved = np.zeros(len(scale))
    solved[used] = [float(f"{one:.{DIGITS - 1}e}") for one in found / scale[used]]
    return solved
