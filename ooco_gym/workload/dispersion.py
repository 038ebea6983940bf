"""The index of dispersion that an arrival process has, in closed form, and the processes that have a given one.

For a rate `λ(t) = λ · exp(ΣOU_i(t) - var/2) · b(t)`, with b the on/off process of mean 1 and variance v, the rate's
relative covariance at lag s is `R(s) = exp(Σ σ_i² e^(-s/τ_i)) · (1 + v e^(-s/τ_b)) - 1`, and the count in a window w
has the variance `V(w) = λw + 2λ² ∫₀ʷ (w-s) R(s) ds`. Measured over n windows in a row, the variance around their own
mean is expected to be `V(w) - V(nw)/n²`: what is slower than the trace shows only in part.

Conversations add turns that follow turns: with m turns in the mean and think times of mean θ, the density of later
turns at lag s after a turn is `h(s) = (1 - 1/m)/θ · e^(-s/(mθ))`, and `V(w)` grows by `2λ ∫₀ʷ (w-s) h(s) ds`. The
processes ride on the beginnings of conversations, so that the turns see them through the filter `(δ + h)/m`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ooco_gym.workload.arrivals import DAY_S, Bursts, OrnsteinUhlenbeck
from ooco_gym.workload.sessions import Chat

SHORTEST_S = 0.25       # correlation time; the generator's own limit is 0.2 s
WIDEST = 1.5            # standard deviation of a log-intensity
_POINTS = 600


def expected_dispersion(rate_per_s: float, ou: Sequence[OrnsteinUhlenbeck], bursts: Bursts | None,
                        window_s: np.ndarray, windows: np.ndarray, chat: Chat | None = None) -> np.ndarray:
    """Returns the expected variance over mean of counts, float64[k].

    Args:
        rate_per_s: mean rate.
        ou: processes on the log-intensity.
        bursts: on/off process, or None.
        window_s: float64[k].
        windows: int64[k], how many windows of that length in a row are measured.
        chat: conversations, or None.
    """
    lag = np.concatenate([[0.0], np.geomspace(1e-3, float(np.max(window_s * windows)), _POINTS)])
    exponent = np.zeros_like(lag)
    for process in ou:
        exponent += process.sigma**2 * _seen(process.tau_s, lag, chat)
    relative = np.exp(exponent)
    if bursts is not None:
        variance, tau_s = burst_moments(bursts)
        relative *= 1 + variance * _seen(tau_s, lag, chat)
    relative -= 1
    step = np.diff(lag)
    whole = np.concatenate([[0.0], np.cumsum(step * (relative[1:] + relative[:-1]) / 2)])
    first = np.concatenate([[0.0], np.cumsum(step * (lag[1:] * relative[1:] + lag[:-1] * relative[:-1]) / 2)])

    def variance_of(span_s: np.ndarray) -> np.ndarray:
        return rate_per_s * span_s + 2 * rate_per_s**2 * (
            span_s * np.interp(span_s, lag, whole) - np.interp(span_s, lag, first)) + rate_per_s * turns(span_s)

    def turns(span_s: np.ndarray) -> np.ndarray:
        if chat is None or chat.mean_turns <= 1:
            return np.zeros_like(span_s)
        end = 1 / (chat.mean_turns * chat.think_s)
        return 2 * (1 - 1 / chat.mean_turns) / chat.think_s * (span_s / end + np.expm1(-end * span_s) / end**2)

    return (variance_of(window_s) - variance_of(window_s * windows) / windows**2) / (rate_per_s * window_s)


def _seen(tau_s: float, lag_s: np.ndarray, chat: Chat | None) -> np.ndarray:
    """Returns the covariance that a process of covariance `e^(-s/τ)` on the beginnings has in the requests, float64[k].

    With a = 1/(mθ) and μ = 1/θ the filter's gain is `(μ² + ω²)/(a² + ω²)/m²`; partial fractions give the covariance.
    """
    if chat is None or chat.mean_turns <= 1:
        return np.exp(-lag_s / tau_s)
    rate, own = 1 / chat.think_s, 1 / tau_s
    end = rate / chat.mean_turns
    own = own * 1.001 if abs(own / end - 1) < 1e-3 else own     # the two terms' poles must not meet
    fast = (rate**2 - own**2) / (end**2 - own**2) * np.exp(-own * lag_s)
    slow = own / end * (rate**2 - end**2) / (own**2 - end**2) * np.exp(-end * lag_s)
    return (fast + slow) / chat.mean_turns**2


def burst_moments(bursts: Bursts) -> tuple[float, float]:
    """Returns (variance of the on/off factor relative to its mean, its correlation time in s)."""
    share = bursts.on_s / (bursts.on_s + bursts.off_s)
    mean = 1 + share * (bursts.factor - 1)
    return share * (1 - share) * ((bursts.factor - 1) / mean) ** 2, 1 / (1 / bursts.on_s + 1 / bursts.off_s)


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
