"""What is slow or regular in a trace's arrivals: its tide, the tide's drift from week to week, and batches."""

from __future__ import annotations

import numpy as np

from ooco_gym.workload.arrivals import BLOCK_S, WEEK_S, tide_at
from ooco_gym.workload.keyed import keyed_generator

TIDE_FROM_S = 20 * 3600.0
BATCHED_FROM = 0.3          # share of requests at the same instant as the one before
_FEWEST_IN_HOUR = 20
# Of the drift's variance a week's mean keeps this, because the week's last day fades into the next (`drift_at`):
# ((6 + 2/pi)/7)^2 + (2/pi/7)^2.
_KEPT = 0.907


def fit_tide(arrival_s: np.ndarray) -> tuple[tuple[float, ...], float, list[str]]:
    """Returns (24 hourly rates of mean 1, mean rate over a day, what was assumed)."""
    span_s = float(arrival_s[-1] - arrival_s[0])
    flat = (1.0,) * 24
    rate = (len(arrival_s) - 1) / span_s
    if span_s < TIDE_FROM_S:
        return flat, rate, ["no tide: the trace is shorter than 20 hours"]
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
    grid = np.arange(arrival_s[0], arrival_s[-1] + 60.0, 30.0)
    level = tide_at(tide, (grid[1:] + grid[:-1]) / 2)
    return np.interp(arrival_s, grid, np.concatenate([[0.0], np.cumsum(level * 30.0)]))


def fit_drift(arrival_s: np.ndarray, tide: tuple[float, ...]) -> tuple[float, list[str]]:
    """Returns the standard deviation of a week's log tide around the mean one, and what was assumed.

    From the spread of each hour's rate between whole weeks, less what days within a week differ by. The spread of
    two or three weeks is a rough estimate: its own error is a fifth of it or more.
    """
    weeks = int((arrival_s[-1] - arrival_s[0] + 3600.0) // WEEK_S)
    if weeks < 2:
        return 0.0, ["each week's tide is the same: the trace is shorter than two weeks"] * (len(set(tide)) > 1)
    edges = arrival_s[0] + 3600.0 * np.arange(weeks * 168 + 1)
    counts = np.diff(np.searchsorted(arrival_s, edges)).reshape(weeks, 7, 24).astype(np.float64)
    known = counts.sum(axis=(0, 1)) >= _FEWEST_IN_HOUR * weeks
    if not known.any():
        return 0.0, ["each week's tide is the same: the trace has too few requests to tell"]
    counts = counts[:, :, known]
    weekly = np.log(np.maximum(counts.mean(axis=1), 0.5))
    between = weekly.var(axis=0, ddof=1)
    within = (counts.var(axis=1, ddof=1) / np.maximum(counts.mean(axis=1), 0.5) ** 2 / 7).mean(axis=0)
    sigma = float(np.sqrt(max(0.0, (between - within).mean()) / _KEPT))
    return (sigma, [f"the tide's drift is that of {weeks} weeks"]) if sigma >= 0.02 else (0.0, [])


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
