"""Two straight lines for a curve: decode attention as the simulator sums it in closed form."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from ooco_gym.perf.timing import Attention

CONTEXTS = np.array([16.0, 64.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16_384.0, 65_536.0])
"""Mean contexts, in tokens, at which a curve and its lines are compared."""


def exact_lines(attention: Attention, batch: np.ndarray) -> np.ndarray | None:
    """The lines of a roofline of at most two roofs, which are exact; None for any other form.

    Args:
        attention: of decode, in seconds.
        batch: batch sizes, float64[n].

    Returns:
        float64[n, 4]: base, slope of the first line, base, slope of the second, over the sum of contexts.
    """
    roofs = attention.roofs_s
    plain = np.isinf(attention.exponent) or len(roofs) == 1
    if not plain or len(roofs) > 2 or attention.critical_s:
        return None
    lines = []
    for roof in (roofs[0], roofs[-1]):
        work, rows, context, requests = roof + attention.linear_s
        lines += [attention.launch_s + (rows + requests) * batch, np.full(batch.shape, work + context)]
    return np.stack(lines, axis=-1)


def fit_lines(curve: np.ndarray, batch: np.ndarray, beside: np.ndarray | float = 0.0) -> np.ndarray:
    """The two lines whose maximum comes closest to a curve at `CONTEXTS`, for each batch size.

    Candidates are the secants between neighbouring points and the level of the first point; the pair with the
    smallest worst error wins, relative to the curve and to what a step takes beside it.

    Args:
        curve: seconds of a step, float64[n, len(CONTEXTS)], not falling with the context.
        batch: batch sizes, float64[n], at least 1.
        beside: seconds of the same step that are not in the curve, float64[n] or one for all.

    Returns:
        float64[n, 4], as `exact_lines`.
    """
    total = batch[:, None] * CONTEXTS
    slopes = np.maximum(np.diff(curve, axis=1) / np.diff(total, axis=1), 0.0)
    slopes = np.concatenate([np.zeros((len(batch), 1)), slopes], axis=1)
    through = np.concatenate([[0], np.arange(len(CONTEXTS) - 1)])
    bases = curve[:, through] - slopes * total[:, through]
    values = bases[:, :, None] + slopes[:, :, None] * total[:, None, :]  # [n, candidates, contexts]
    step = curve + np.broadcast_to(beside, batch.shape)[:, None]
    best = np.full(len(batch), np.inf)
    lines = np.zeros((len(batch), 4))
    for i, j in combinations(range(slopes.shape[1]), 2):
        worst = (np.abs(np.maximum(values[:, i], values[:, j]) - curve) / step).max(axis=1)
        better = worst < best
        best[better] = worst[better]
        pair = np.stack([bases[:, i], slopes[:, i], bases[:, j], slopes[:, j]], axis=-1)
        lines[better] = pair[better]
    return lines
