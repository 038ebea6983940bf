"""On/off bursts found in counts: a hidden two-state Markov chain with Poisson counts, fitted by Baum and Welch."""

from __future__ import annotations

import math

import numpy as np

from ooco_gym.workload.arrivals import DAY_S, Bursts

MOST_BINS = 6000
ROUNDS = 40
LARGEST_FACTOR = 1000.0


def find_bursts(counts: np.ndarray, bin_s: float) -> Bursts | None:
    """Returns the on/off process that counts in bins of `bin_s` are most likely under; None where there is none.

    Args:
        counts: int64[n]; of more than 6000 the first are used.
        bin_s: seconds, shorter than the bursts looked for.
    """
    counts = np.asarray(counts[:MOST_BINS], dtype=np.float64)
    if len(counts) < 50 or counts.max() == counts.min():
        return None
    edge = np.quantile(counts, 0.8)
    high = counts > edge if (counts > edge).any() else counts >= edge
    if high.all() or not high.any():
        return None
    rates = np.array([max(counts[~high].mean(), 1e-6), counts[high].mean()])
    stay = np.array([0.9, 0.7])
    for _ in range(ROUNDS):
        before = np.concatenate([rates, stay])
        weight, moves = _expect(counts, rates, stay)
        rates = np.maximum((weight * counts).sum(axis=1) / np.maximum(weight.sum(axis=1), 1e-12), 1e-6)
        stay = np.clip(np.diagonal(moves) / np.maximum(moves.sum(axis=1), 1e-12), 1e-6, 1 - 1e-6)
        if np.allclose(before, np.concatenate([rates, stay]), rtol=1e-4):
            break
    if rates[1] < rates[0]:
        rates, stay = rates[::-1], stay[::-1]
    off_s, on_s = (float(np.clip(-bin_s / math.log(p), 0.2, DAY_S)) for p in stay)
    factor = float(min(rates[1] / rates[0], LARGEST_FACTOR))
    return Bursts(factor, on_s, off_s) if factor > 1.05 else None


def _expect(counts: np.ndarray, rates: np.ndarray, stay: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns (probability of each state in each bin float64[2, n], expected moves between states float64[2, 2])."""
    log = counts * np.log(rates)[:, None] - rates[:, None]
    seen = np.exp(log - log.max(axis=0))
    a0, a1 = float(stay[0]), float(stay[1])
    n = len(counts)
    first, second = seen[0].tolist(), seen[1].tolist()
    forward0, forward1 = [0.0] * n, [0.0] * n
    p0, p1 = (1 - a1), (1 - a0)
    total = p0 + p1
    p0, p1 = p0 / total, p1 / total
    for i in range(n):
        if i:
            p0, p1 = p0 * a0 + p1 * (1 - a1), p0 * (1 - a0) + p1 * a1
        p0, p1 = p0 * first[i] + 1e-300, p1 * second[i] + 1e-300
        total = p0 + p1
        p0, p1 = p0 / total, p1 / total
        forward0[i], forward1[i] = p0, p1
    back0, back1 = [1.0] * n, [1.0] * n
    b0 = b1 = 1.0
    for i in range(n - 2, -1, -1):
        s0, s1 = first[i + 1] * b0, second[i + 1] * b1
        b0, b1 = a0 * s0 + (1 - a0) * s1, (1 - a1) * s0 + a1 * s1
        total = b0 + b1 + 1e-300
        b0, b1 = b0 / total, b1 / total
        back0[i], back1[i] = b0, b1
    forward = np.array([forward0, forward1])
    behind = np.array([back0, back1]) * seen
    weight = forward * np.array([back0, back1])
    weight /= weight.sum(axis=0)
    step = np.array([[a0, 1 - a0], [1 - a1, a1]])
    joint = forward[:, None, :-1] * step[:, :, None] * behind[None, :, 1:]
    joint /= np.maximum(joint.sum(axis=(0, 1)), 1e-300)
    return weight, joint.sum(axis=2)
