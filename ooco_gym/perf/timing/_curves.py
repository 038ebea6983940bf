"""Measured times between the sizes that were measured, and above them in proportion to a roofline."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

Roof = Callable[[np.ndarray], np.ndarray]
Roof2 = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Curve:
    """Seconds by one size: straight lines between measured sizes, since operators are nearly affine in their sizes.

    Beyond the largest measured size the last time grows as the roofline does, so that nothing jumps; below the
    smallest the first one stays (launches). Where a size was measured several times, the median counts.
    """

    def __init__(self, sizes: np.ndarray, seconds: np.ndarray) -> None:
        self.sizes, inverse = np.unique(np.asarray(sizes, dtype=np.float64), return_inverse=True)
        self.times = np.array([np.median(seconds[inverse == index]) for index in range(len(self.sizes))])

    def seconds(self, sizes: np.ndarray, roof: Roof) -> np.ndarray:
        """Seconds at `sizes`, float64[n]; `roof` gives the roofline's for such an array."""
        return _extend(np.interp(sizes, self.sizes, self.times), sizes, self.sizes, roof)


class Surface:
    """Seconds by two sizes: a curve over the second for each measured value of the first.

    Between two curves it runs straight, or as a power of the first size (`power`), which suits work that grows with
    its square. The curves need not cover the same sizes.
    """

    def __init__(self, curves: Mapping[float, Curve], power: bool = False) -> None:
        self.outer = np.array(sorted(curves))
        self.curves = [curves[size] for size in self.outer]
        self.power = power

    @classmethod
    def measured(cls, outer: np.ndarray, inner: np.ndarray, seconds: np.ndarray, power: bool = False) -> Surface:
        """Builds the surface from rows of both sizes and seconds, float64[n] each."""
        return cls({float(size): Curve(inner[outer == size], seconds[outer == size]) for size in np.unique(outer)},
                   power)

    def seconds(self, outer: np.ndarray, inner: np.ndarray, roof: Roof2) -> np.ndarray:
        """Seconds at `(outer, inner)`, float64[n] each; `roof` gives the roofline's for such arrays."""
        rows = [curve.seconds(inner, lambda sizes, size=size: roof(np.full(np.shape(sizes), size), sizes))
                for size, curve in zip(self.outer, self.curves, strict=True)]
        values, where, grid = np.stack(rows), np.asarray(outer, dtype=np.float64), self.outer
        if self.power:
            values, where, grid = np.log(values), np.log(where), np.log(grid)
        right = np.clip(np.searchsorted(grid, where), 1, max(len(grid) - 1, 1))
        left = right - 1
        right = np.minimum(right, len(grid) - 1)
        gap = np.where(right > left, grid[right] - grid[left], 1.0)
        share = np.clip((where - grid[left]) / gap, 0.0, 1.0)
        index = np.arange(len(where))
        between = (1.0 - share) * values[left, index] + share * values[right, index]
        return _extend(np.exp(between) if self.power else between, outer, self.outer,
                       lambda sizes: roof(sizes, inner))


def _extend(inside: np.ndarray, sizes: np.ndarray, measured: np.ndarray, roof: Roof) -> np.ndarray:
    """Times taken at the nearest measured size, brought to larger `sizes` by the roofline's ratio."""
    larger = np.asarray(sizes) > measured[-1]
    if not larger.any():
        return inside
    nearest = roof(np.minimum(sizes, measured[-1]))
    return inside * np.divide(roof(sizes), nearest, out=np.ones(larger.shape), where=larger)
