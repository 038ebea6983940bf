"""What a trace tells of the slow course of its rate: the tide over a day, and its drift from week to week.

Both are taken out of the arrivals before bursts are fitted, so that nothing is counted twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ooco_gym.workload.arrivals import DRIFT_HARMONICS, WEEK_S, drift_waves, tide_at

TIDE_FROM_S = 20 * 3600.0
HOUR_S = 3600.0
_STEP_S = 30.0
_FEWEST_IN_HOUR = 20
_LEAST_DRIFT = 0.02
# Of the drift's variance a week's mean keeps this, because the week's last day fades into the next (`drift_at`):
# ((6 + 2/pi)/7)^2 + (2/pi/7)^2.
_KEPT = 0.907


@dataclass(frozen=True)
class Slow:
    """The slow course of a trace's rate.

    Attributes:
        rate_per_s: mean over a day.
        tide: 24 hourly rates of mean 1.
        drift: standard deviation of the logarithm of a week's tide around the mean one.
        first_s: when the trace's first week begins.
        weeks: float64[weeks, 2·harmonics], each whole week's own curve (`drift_waves`); none without drift.
        observed: 24 hourly rates of mean 1, the mean day of the trace itself.
        assumed: what the trace does not tell.
    """

    rate_per_s: float
    tide: tuple[float, ...]
    drift: float
    first_s: float
    weeks: np.ndarray
    observed: tuple[float, ...]
    assumed: tuple[str, ...]

    def plain(self, arrival_s: np.ndarray) -> np.ndarray:
        """Returns the arrivals on a clock that runs with the trace's slow course, float64[n]: there the rate has none.
        """
        if len(set(self.observed)) == 1 and not len(self.weeks):
            return arrival_s
        grid = np.arange(arrival_s[0], arrival_s[-1] + 2 * _STEP_S, _STEP_S)
        middle = (grid[1:] + grid[:-1]) / 2
        level = tide_at(self.observed, middle)
        if len(self.weeks):
            week = np.clip(((middle - self.first_s) // WEEK_S).astype(np.int64), 0, len(self.weeks) - 1)
            level = level * np.exp((self.weeks[week] * drift_waves(middle).T).sum(axis=1))
        level = level / level.mean()
        return np.interp(arrival_s, grid, np.concatenate([[0.0], np.cumsum(level * _STEP_S)]))


def fit_slow(arrival_s: np.ndarray) -> Slow:
    """Returns the tide of traces of 20 hours and more, and the drift of those of two weeks and more."""
    observed, rate, assumed = fit_tide(arrival_s)
    drift, weeks, more = fit_drift(arrival_s, observed)
    tide = _without_chance(observed, drift, len(weeks)) if drift else observed
    return Slow(rate, tide, drift, float(arrival_s[0]), weeks if drift else weeks[:0], observed, (*assumed, *more))


def fit_tide(arrival_s: np.ndarray) -> tuple[tuple[float, ...], float, list[str]]:
    """Returns (24 hourly rates of mean 1, mean rate over a day, what was assumed)."""
    span_s = float(arrival_s[-1] - arrival_s[0])
    flat = (1.0,) * 24
    rate = (len(arrival_s) - 1) / span_s
    if span_s < TIDE_FROM_S:
        return flat, rate, ["no tide: the trace is shorter than 20 hours"]
    edges = np.arange(np.floor(arrival_s[0] / HOUR_S), np.ceil(arrival_s[-1] / HOUR_S) + 1)
    counts = np.diff(np.searchsorted(arrival_s, edges * HOUR_S))
    there_s = np.minimum(edges[1:] * HOUR_S, arrival_s[-1]) - np.maximum(edges[:-1] * HOUR_S, arrival_s[0])
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


def fit_drift(arrival_s: np.ndarray, tide: tuple[float, ...]) -> tuple[float, np.ndarray, list[str]]:
    """Returns how one week's tide differs from the mean one.

    From the spread of each hour's rate between whole weeks, each relative to its week's mean, less what days within a
    week differ by. The spread of two or three weeks is a rough estimate: its own error is a fifth of it or more.

    Returns:
        (standard deviation of the logarithm, each week's curve float64[weeks, 2·harmonics], what was assumed).
    """
    none = np.zeros((0, 2 * DRIFT_HARMONICS))
    weeks = int((arrival_s[-1] - arrival_s[0] + HOUR_S) // WEEK_S)
    if weeks < 2:
        return 0.0, none, ["each week's tide is the same: the trace is shorter than two weeks"] * (len(set(tide)) > 1)
    edges = arrival_s[0] + HOUR_S * np.arange(weeks * 168 + 1)
    counts = np.diff(np.searchsorted(arrival_s, edges)).reshape(weeks, 7, 24).astype(np.float64)
    known = counts.sum(axis=(0, 1)) >= _FEWEST_IN_HOUR * weeks
    if not known.any():
        return 0.0, none, ["each week's tide is the same: the trace has too few requests to tell"]
    counts = counts[:, :, known]
    weekly = np.log(np.maximum(counts.mean(axis=1), 0.5))
    weekly -= weekly.mean(axis=1, keepdims=True)
    between = weekly.var(axis=0, ddof=1)
    within = (counts.var(axis=1, ddof=1) / np.maximum(counts.mean(axis=1), 0.5) ** 2 / 7).mean(axis=0)
    sigma = float(np.sqrt(max(0.0, (between - within).mean()) / _KEPT))
    if sigma < _LEAST_DRIFT:
        return 0.0, none, []
    middle = edges[0] + HOUR_S * (np.flatnonzero(known) + 0.5)
    curves = np.linalg.lstsq(drift_waves(middle).T, (weekly - weekly.mean(axis=0)).T, rcond=None)[0].T
    return sigma, curves, [f"the tide's drift is that of {weeks} weeks"]


def _without_chance(observed: tuple[float, ...], drift: float, weeks: int) -> tuple[float, ...]:
    """Returns the mean day less what so few weeks' drift leaves in it, so that tide and drift add up to the trace's.

    The drift of `weeks` weeks adds its variance over their number to the mean day's slow waves.
    """
    waves = drift_waves(HOUR_S * (np.arange(24) + 0.5))
    log = np.log(np.asarray(observed))
    slow = waves.T @ np.linalg.lstsq(waves.T, log - log.mean(), rcond=None)[0]
    chance = drift**2 * _KEPT / weeks
    kept = np.sqrt(max(0.0, 1.0 - chance / max(float(slow.var()), 1e-12)))
    level = np.exp(log - (1.0 - kept) * slow)
    return tuple(float(x) for x in level / level.mean())
