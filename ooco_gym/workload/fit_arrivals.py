"""What a trace's arrivals tell: a tide over the day, batches, processes on the log-intensity, on/off bursts."""

from __future__ import annotations

import math

import numpy as np

from ooco_gym.workload.arrivals import BLOCK_S, DAY_S, Bursts, OrnsteinUhlenbeck, tide_at
from ooco_gym.workload.dispersion import expected_dispersion
from ooco_gym.workload.keyed import keyed_generator
from ooco_gym.workload.sharing import Chat

BATCHED_FROM = 0.3          # share of requests at the same instant as the one before
TIDE_FROM_S = 20 * 3600.0
FLAT = (1.0,) * 24
_TIDE_STEP_S = 30.0
SHORTEST_S = 0.25       # correlation time; the generator's own limit is 0.2 s
WIDEST = 1.5            # standard deviation of a log-intensity
MOST_BINS = 6000
BAUM_WELCH_ROUNDS = 40
LARGEST_FACTOR = 1000.0


def fit_tide(arrival_s: np.ndarray) -> tuple[tuple[float, ...], float, list[str]]:
    """Returns (24 hourly rates of mean 1, mean rate over a day, what was assumed)."""
    span_s = float(arrival_s[-1] - arrival_s[0])
    rate = (len(arrival_s) - 1) / span_s
    if span_s < TIDE_FROM_S:
        return FLAT, rate, ["no tide: the trace is shorter than 20 hours"]
    edges = np.arange(np.floor(arrival_s[0] / 3600.0), np.ceil(arrival_s[-1] / 3600.0) + 1)
    counts = np.diff(np.searchsorted(arrival_s, edges * 3600.0))
    there_s = np.minimum(edges[1:] * 3600.0, arrival_s[-1]) - np.maximum(edges[:-1] * 3600.0, arrival_s[0])
    hour = np.mod(edges[:-1], 24).astype(np.int64)
    requests = np.bincount(hour, counts, minlength=24)
    exposed_s = np.bincount(hour, there_s, minlength=24)
    known = exposed_s > 600.0
    level = np.interp(np.arange(24), np.flatnonzero(known), (requests[known] / exposed_s[known]), period=24)
    level = np.maximum(level, 1e-4 * level.max())
    note = "the trace's time 0 is taken for midnight, and each day's tide for the mean day's"
    if not known.all():
        note += f"; hours {', '.join(str(x) for x in np.flatnonzero(~known))} are not in the trace"
    return tuple(float(x) for x in level / level.mean()), float(level.mean()), [note]


def without_tide(arrival_s: np.ndarray, tide: tuple[float, ...]) -> np.ndarray:
    """Returns the arrivals on a clock that runs with the tide, float64[n]: there the rate has none."""
    if len(set(tide)) == 1:
        return arrival_s
    grid = np.arange(arrival_s[0], arrival_s[-1] + 2 * _TIDE_STEP_S, _TIDE_STEP_S)
    level = tide_at(tide, (grid[1:] + grid[:-1]) / 2)
    return np.interp(arrival_s, grid, np.concatenate([[0.0], np.cumsum(level / level.mean() * _TIDE_STEP_S)]))


def find_batches(arrival_s: np.ndarray) -> float:
    """Returns the step in seconds, a whole part of 600, at whose multiples requests arrive together; 0 if at none."""
    if len(arrival_s) < 2 or np.mean(np.diff(arrival_s) == 0) < BATCHED_FROM:
        return 0.0
    steps = np.diff(np.unique(arrival_s))
    step = float(np.median(steps))
    multiples = np.maximum(np.rint(steps / step), 1)
    if step < 0.01 or np.mean(np.abs(steps - multiples * step) < 0.05 * step) < 0.8:
        return 0.0
    return BLOCK_S / max(1, round(BLOCK_S / step))


def spread_batches(arrival_s: np.ndarray, batch_s: float, seed: int) -> np.ndarray:
    """Returns the arrivals as they may have been before they were let in together, float64[n] sorted."""
    return np.sort(arrival_s + batch_s * keyed_generator(seed, "fit/batches").random(len(arrival_s)))


def fit_processes(rate_per_s: float, window_s: np.ndarray, windows: np.ndarray, measured: np.ndarray, *,
                  bursts: Bursts | None = None, most: int = 2, good: float = 0.04,
                  chat: Chat | None = None) -> tuple[OrnsteinUhlenbeck, ...]:
    """Returns the fewest OU processes, at most `most`, that bring the dispersion to what was measured.

    Least squares on the logarithms. None are taken where all that is measured lies within four standard deviations
    of what is expected without; one more only where the root mean square of what remains is above `good`.

    Args:
        rate_per_s: mean rate.
        window_s: float64[k].
        windows: int64[k], how many of that length were measured.
        measured: float64[k], index of dispersion, > 0.
        bursts: an on/off process beside them, or None.
        most: processes at most.
        good: see above.
        chat: conversations beside them, or None.
    """
    from scipy.optimize import least_squares

    longest_s = min(DAY_S, float(np.max(window_s * windows)) / 3)
    wanted = np.log(np.maximum(measured, 1e-3))

    def read(x: np.ndarray) -> tuple[OrnsteinUhlenbeck, ...]:
        return tuple(OrnsteinUhlenbeck(float(s), float(np.exp(t))) for s, t in x.reshape(-1, 2))

    def error(x: np.ndarray) -> np.ndarray:
        found = expected_dispersion(rate_per_s, read(x), bursts, window_s, windows, chat)
        return np.log(np.maximum(found, 1e-3)) - wanted

    best = np.zeros(0)
    if np.all(np.abs(error(best)) <= 4 * np.sqrt(2 / windows)):
        return ()
    best_error = _rms(error(best))
    for count in range(1, most + 1):
        if best_error <= good:
            break
        low = np.tile([0.0, np.log(SHORTEST_S)], count)
        high = np.tile([WIDEST, np.log(max(longest_s, 2 * SHORTEST_S))], count)
        for shares in ([0.35], [0.7]) if count == 1 else ([0.1, 0.8], [0.3, 0.6], [0.5, 0.95]):
            taus = [low[1] + share * (high[1] - low[1]) for share in (shares * count)[:count]]
            start = np.concatenate([[0.2, tau] for tau in taus])
            fitted = least_squares(error, np.clip(start, low + 1e-6, high - 1e-6), bounds=(low, high))
            if _rms(fitted.fun) < best_error - 0.005:
                best, best_error = fitted.x, _rms(fitted.fun)
    kept = [process for process in read(best) if process.sigma >= 0.005]
    return tuple(sorted(kept, key=lambda process: process.tau_s))


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values**2)))


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
    for _ in range(BAUM_WELCH_ROUNDS):
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
