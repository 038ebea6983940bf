"""The index of dispersion that an arrival process has, in closed form, and the processes that have a given one.

For a rate `λ(t) = λ · exp(ΣOU_i(t) - var/2) · b(t)`, with b the on/off process of mean 1 and variance v, the rate's
relative covariance at lag s is `R(s) = exp(Σ σ_i² e^(-s/τ_i)) · (1 + v e^(-s/τ_b)) - 1`, and the count in a window w
has the variance `V(w) = λw + 2λ² ∫₀ʷ (w-s) R(s) ds`. Measured over n windows in a row, the variance around their own
mean is expected to be `V(w) - V(nw)/n²`: what is slower than the trace shows only in part.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ooco_gym.workload.arrivals import DAY_S, Bursts, OrnsteinUhlenbeck

SHORTEST_S = 0.25       # correlation time; the generator's own limit is 0.2 s
WIDEST = 1.5            # standard deviation of a log-intensity
_POINTS = 600


def expected_dispersion(rate_per_s: float, ou: Sequence[OrnsteinUhlenbeck], bursts: Bursts | None,
                        window_s: np.ndarray, windows: np.ndarray) -> np.ndarray:
    """Returns the expected variance over mean of counts, float64[k].

    Args:
        rate_per_s: mean rate.
        ou: processes on the log-intensity.
        bursts: on/off process, or None.
        window_s: float64[k].
        windows: int64[k], how many windows of that length in a row are measured.
    """
    lag = np.concatenate([[0.0], np.geomspace(1e-3, float(np.max(window_s * windows)), _POINTS)])
    exponent = np.zeros_like(lag)
    for process in ou:
        exponent += process.sigma**2 * np.exp(-lag / process.tau_s)
    relative = np.exp(exponent)
    if bursts is not None:
        variance, tau_s = burst_moments(bursts)
        relative *= 1 + variance * np.exp(-lag / tau_s)
    relative -= 1
    step = np.diff(lag)
    whole = np.concatenate([[0.0], np.cumsum(step * (relative[1:] + relative[:-1]) / 2)])
    first = np.concatenate([[0.0], np.cumsum(step * (lag[1:] * relative[1:] + lag[:-1] * relative[:-1]) / 2)])

    def variance_of(span_s: np.ndarray) -> np.ndarray:
        return rate_per_s * span_s + 2 * rate_per_s**2 * (
            span_s * np.interp(span_s, lag, whole) - np.interp(span_s, lag, first))

    return (variance_of(window_s) - variance_of(window_s * windows) / windows**2) / (rate_per_s * window_s)


def burst_moments(bursts: Bursts) -> tuple[float, float]:
    """Returns (variance of the on/off factor relative to its mean, its correlation time in s)."""
    share = bursts.on_s / (bursts.on_s + bursts.off_s)
    mean = 1 + share * (bursts.factor - 1)
    return share * (1 - share) * ((bursts.factor - 1) / mean) ** 2, 1 / (1 / bursts.on_s + 1 / bursts.off_s)


def fit_processes(rate_per_s: float, window_s: np.ndarray, windows: np.ndarray, measured: np.ndarray, *,
                  bursts: Bursts | None = None, most: int = 2,
                  good: float = 0.04) -> tuple[OrnsteinUhlenbeck, ...]:
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
    """
    from scipy.optimize import least_squares

    longest_s = min(DAY_S, float(np.max(window_s * windows)) / 3)
    wanted = np.log(np.maximum(measured, 1e-3))

    def read(x: np.ndarray) -> tuple[OrnsteinUhlenbeck, ...]:
        return tuple(OrnsteinUhlenbeck(float(s), float(np.exp(t))) for s, t in x.reshape(-1, 2))

    def error(x: np.ndarray) -> np.ndarray:
        found = expected_dispersion(rate_per_s, read(x), bursts, window_s, windows)
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
        for places in ([0.35], [0.7]) if count == 1 else ([0.1, 0.8], [0.3, 0.6], [0.5, 0.95]):
            taus = [low[1] + place * (high[1] - low[1]) for place in (places * count)[:count]]
            start = np.concatenate([[0.2, tau] for tau in taus])
            fitted = least_squares(error, np.clip(start, low + 1e-6, high - 1e-6), bounds=(low, high))
            if _rms(fitted.fun) < best_error - 0.005:
                best, best_error = fitted.x, _rms(fitted.fun)
    kept = [process for process in read(best) if process.sigma >= 0.005]
    return tuple(sorted(kept, key=lambda process: process.tau_s))


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values**2)))
