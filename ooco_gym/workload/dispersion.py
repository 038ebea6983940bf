"""The index of dispersion that an arrival process has in expectation, in closed form: variance over mean of counts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from ooco_gym.workload.arrivals import Bursts, OrnsteinUhlenbeck
from ooco_gym.workload.sharing import Chat

_POINTS = 600
_STEPS, _PER_THINK = 2**15, 40      # of the grid that turns at lognormal times are followed on


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
    followers = followers_of(chat)
    lag = np.concatenate([[0.0], np.geomspace(1e-3, float(np.max(window_s * windows)), _POINTS)])
    exponent = np.zeros_like(lag)
    for process in ou:
        exponent += process.sigma**2 * followers.seen(process.tau_s, lag)
    relative = np.exp(exponent)
    if bursts is not None:
        variance, tau_s = burst_moments(bursts)
        relative *= 1 + variance * followers.seen(tau_s, lag)
    relative -= 1
    step = np.diff(lag)
    whole = np.concatenate([[0.0], np.cumsum(step * (relative[1:] + relative[:-1]) / 2)])
    first = np.concatenate([[0.0], np.cumsum(step * (lag[1:] * relative[1:] + lag[:-1] * relative[:-1]) / 2)])

    def variance_of(span_s: np.ndarray) -> np.ndarray:
        return rate_per_s * span_s + 2 * rate_per_s**2 * (
            span_s * np.interp(span_s, lag, whole) - np.interp(span_s, lag, first)) + rate_per_s * followers.turns(
                span_s)

    return (variance_of(window_s) - variance_of(window_s * windows) / windows**2) / (rate_per_s * window_s)


def burst_moments(bursts: Bursts) -> tuple[float, float]:
    """Returns (variance of the on/off factor relative to its mean, its correlation time in s)."""
    share = bursts.on_s / (bursts.on_s + bursts.off_s)
    mean = 1 + share * (bursts.factor - 1)
    return share * (1 - share) * ((bursts.factor - 1) / mean) ** 2, 1 / (1 / bursts.on_s + 1 / bursts.off_s)


class Alone:
    """Requests that are not followed by others."""

    def turns(self, span_s: np.ndarray) -> np.ndarray:
        """What turns that follow each other add to the variance of counts in spans, per request a second, float64[k].

        `2∫(w-s)h(s)ds`, where h is the rate at which a turn is followed by others of its conversation.
        """
        return np.zeros_like(span_s)

    def seen(self, tau_s: float, lag_s: np.ndarray) -> np.ndarray:
        """The covariance that a process of covariance `e^(-s/τ)` on the beginnings has in the requests, float64[k]."""
        return np.exp(-lag_s / tau_s)


class Exponential(Alone):
    """Conversations whose turns follow each other at exponential times."""

    def __init__(self, chat: Chat) -> None:
        self.mean_turns, self.think_s = chat.mean_turns, chat.think_s

    def turns(self, span_s: np.ndarray) -> np.ndarray:
        """As `Alone.turns`: `h(s) = (1 - 1/m)/θ·e^(-s/(mθ))` for m turns and a mean time θ."""
        end = 1 / (self.mean_turns * self.think_s)
        return 2 * (1 - 1 / self.mean_turns) / self.think_s * (span_s / end + np.expm1(-end * span_s) / end**2)

    def seen(self, tau_s: float, lag_s: np.ndarray) -> np.ndarray:
        """As `Alone.seen`.

        With a = 1/(mθ) and μ = 1/θ the filter's gain is `(μ² + ω²)/(a² + ω²)/m²`; partial fractions give the
        covariance.
        """
        rate, own = 1 / self.think_s, 1 / tau_s
        end = rate / self.mean_turns
        own = own * 1.001 if abs(own / end - 1) < 1e-3 else own     # the two terms' poles must not meet
        fast = (rate**2 - own**2) / (end**2 - own**2) * np.exp(-own * lag_s)
        slow = own / end * (rate**2 - end**2) / (own**2 - end**2) * np.exp(-end * lag_s)
        return (fast + slow) / self.mean_turns**2


class Lognormal(Alone):
    """Conversations whose turns follow each other at lognormal times: the same by Fourier transforms on a grid."""

    def __init__(self, chat: Chat) -> None:
        self.mean_turns = chat.mean_turns
        self.step_s = chat.think_s / _PER_THINK
        self.lag_s = self.step_s * np.arange(_STEPS // 2)
        log = np.log(self.step_s * np.arange(1, _STEPS // 2))
        location = np.log(chat.think_s) - chat.think_sigma**2 / 2
        density = np.zeros(_STEPS)
        density[1:_STEPS // 2] = np.exp(-((log - location) / chat.think_sigma) ** 2 / 2 - log)
        self.omega = 2 * np.pi * np.fft.rfftfreq(_STEPS, self.step_s)
        go_on = (1 - 1 / chat.mean_turns) * np.fft.rfft(density / density.sum())
        self.following = go_on / (1 - go_on)

    @cached_property
    def _turns(self) -> np.ndarray:
        """`turns` on the grid."""
        mass = np.fft.irfft(self.following, _STEPS)[:_STEPS // 2]
        return 2 * np.concatenate([[0.0], np.cumsum(np.cumsum(mass))[:-1]]) * self.step_s

    def turns(self, span_s: np.ndarray) -> np.ndarray:
        """As `Alone.turns`; beyond the grid, where all conversations have ended, it grows as at the grid's end."""
        end_s, slope = self.lag_s[-1], (self._turns[-1] - self._turns[-2]) / self.step_s
        return np.interp(span_s, self.lag_s, self._turns) + slope * np.maximum(span_s - end_s, 0.0)

    def seen(self, tau_s: float, lag_s: np.ndarray) -> np.ndarray:
        """As `Alone.seen`: the process itself, and what its followers carry on of it."""
        spectrum = (np.abs(1 + self.following) ** 2 - 1) * 2 * tau_s / (1 + (self.omega * tau_s) ** 2)
        carried = np.fft.irfft(spectrum, _STEPS)[:_STEPS // 2] / self.step_s
        return (np.exp(-lag_s / tau_s) + np.interp(lag_s, self.lag_s, carried, right=0.0)) / self.mean_turns**2


def followers_of(chat: Chat | None) -> Alone:
    """Returns how requests follow each other in conversations, or that none does."""
    if chat is None or chat.mean_turns <= 1:
        return Alone()
    return Lognormal(chat) if chat.think_sigma else Exponential(chat)
