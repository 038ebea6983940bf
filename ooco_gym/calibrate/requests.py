"""Fit of the engine's clock and front end to requests' own times, by simulating them.

`fit_requests` searches for host times with which the simulated requests have the recorded TTFT (by
length of prompt) and TPOT. Single simulations are noisy (an arrival falls just before or after the beginning of an
iteration). So several are drawn from a box, the logarithms of the metrics are taken as linear in the host times,
without insignificant slopes, and the box shrinks around the best point. The slopes there give each value's uncertainty,
and values that the times cannot distinguish; undetermined values stay near 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from ooco_gym.calibrate.iterations import described
from ooco_gym.calibrate.served import Served
from ooco_gym.errors import UserError
from ooco_gym.perf.engine_clock import LONGEST_S, NO_HOST_TIME, EngineClock

HOST_TIMES = {"decode_s": 8e-3, "prefill_s": 16e-3, "prefill_token_s": 8e-6, "frontend_s": 20e-3}
"""Values that are searched, each with the width of the first box, which begins at 0."""
_WIDTHS = np.array(list(HOST_TIMES.values()))
FEWEST, NOISE, ALIKE, SURE, POOR = 30, 0.02, 0.9, 3.0, 0.15
"""Fewest requests; relative noise of an average between runs of one engine; correlation from which
two values are not distinguished; standard errors of an uncertainty; relative error of a poor
fit."""
_DRAWN, _ROUNDS, _SHRINKS, _TOWARDS_0 = 20, 8, 0.75, 0.003


class Foreseen(NamedTuple):
    """A fit to requests: values by name, in seconds, with uncertainties, remaining RMS relative
    error of averages, and notes on what is undetermined."""

    host_times: dict[str, float]
    give_or_take: dict[str, float]
    left: float
    notes: list[str]

    def __str__(self) -> str:
        return described(self.host_times, self.give_or_take)

    def summary(self) -> dict[str, Any]:
        """Returns the fit as scripts read it in `summary.json`, where host times are called `figures`."""
        found = self._asdict()
        return {"figures": found.pop("host_times"), **found}

    def clock(self, like: EngineClock = NO_HOST_TIME) -> EngineClock:
        """Returns a clock with these host times; `frontend_s` is left out."""
        return replace(like, **{key: value for key, value in self.host_times.items() if key != "frontend_s"})

    def seen(self, served: Served) -> Served:
        """Returns the times of requests behind this front end."""
        wait_s = self.host_times["frontend_s"]
        return served._replace(ttft_s=served.ttft_s + wait_s, e2e_s=served.e2e_s + wait_s)


class Load(NamedTuple):
    """Requests of a run: a function that simulates them under a clock, their recorded times in the
    same order, and their prompt tokens, int64[n]."""

    serve: Callable[[EngineClock], Served]
    real: Served
    prompt_tokens: np.ndarray


def fit_requests(loads: Sequence[Load], like: EngineClock = NO_HOST_TIME) -> Foreseen:
    """Fits host times with which the simulator reproduces one engine's request times; `like` has
    the clock's other fields.

    Raises:
        UserError: a load has too few requests, or too few with several tokens.
    """
    for load in loads:
        if min(len(load.prompt_tokens), len(load.real.tpot_s)) < FEWEST:
            raise UserError(f"{len(load.prompt_tokens)} requests, {len(load.real.tpot_s)} of them with more than one "
                            f"token, are too few to fit host times; expected {FEWEST} of these")
    thirds = [np.searchsorted(np.quantile(one.prompt_tokens, (1 / 3, 2 / 3)), one.prompt_tokens) for one in loads]
    reals = [_averages(load.real, third) for load, third in zip(loads, thirds, strict=True)]
    wanted = np.concatenate(reals)
    # Effect of a second of front end on each TTFT:
    waits = np.concatenate([np.arange(len(real)) < len(real) - 4 for real in reals]) / wanted

    def averages(host: np.ndarray) -> np.ndarray:
        clock = replace(like, **dict(zip(HOST_TIMES, host.tolist(), strict=False)))
        return np.concatenate([_averages(load.serve(clock), third) for load, third in zip(loads, thirds, strict=True)]
                              ) / wanted

    draws, point, width = np.random.default_rng(0), 0.5 * _WIDTHS, _WIDTHS
    drawn, saw = np.zeros((0, len(width) - 1)), np.zeros((0, len(wanted)))
    lines, chance, inside = np.zeros((len(width), len(wanted))), 0.0, False
    for _ in range(_ROUNDS):
        width = width * (_SHRINKS if inside else 1.0)
        low = np.maximum(0.0, point - 0.5 * width)
        middle = (low + 0.5 * width)[:-1]
        spread = np.stack([draws.permutation(_DRAWN) + draws.random(_DRAWN) for _ in middle], axis=1) / _DRAWN
        drawn = np.concatenate([drawn, new := low[:-1] + spread * width[:-1]])
        saw = np.concatenate([saw, np.log([averages(host) for host in new])])
        lines, chance = _lines((drawn - middle) / width[:-1], saw)
        point = _best(lines, waits, low, middle, width)
        inside = bool((point[:-1] < low[:-1] + 0.99 * width[:-1]).all())
    there = averages(point[:-1])
    left = float(np.sqrt(np.mean((there + waits * point[-1] - 1.0) ** 2)))
    slopes = np.stack([*(lines[1:] * there), waits * width[-1]], axis=1)
    return _foreseen(point, width, slopes, left, max(NOISE, left, chance))


def _averages(seen: Served, third: np.ndarray) -> np.ndarray:
    """Returns float64[8]: TTFT's mean, and median of each third of prompts by length; TPOT's mean and quantiles."""
    medians = [float(np.median(seen.ttft_s[third == number])) for number in np.unique(third)]
    return np.array([seen.ttft_s.mean(), *medians, seen.tpot_s.mean(), *np.quantile(seen.tpot_s, (0.1, 0.5, 0.9))])


def _lines(at: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, float]:
    """Fits values, float64[n, m], as linear in places, [n, 3], weighted towards the middle of the box (0).

    Returns constant and slopes, [4, m], with slopes within two standard errors set to 0, and the RMS of the noise.
    """
    weights = 1.0 / (1.0 + (at ** 2).sum(axis=1, keepdims=True))
    terms = np.concatenate([np.ones((len(at), 1)), at], axis=1)
    rows, found, rest = weights * terms, np.zeros((terms.shape[1], values.shape[1])), np.zeros_like(values)
    for column, value in enumerate(values.T):
        kept = np.ones(terms.shape[1], dtype=bool)
        for _ in range(2):
            found[:, column] = 0.0
            found[kept, column] = np.linalg.lstsq(rows[:, kept], weights[:, 0] * value, rcond=None)[0]
            rest[:, column] = value - terms @ found[:, column]
            chance = np.sqrt(np.average(rest[:, column] ** 2, weights=weights[:, 0]))
            kept = np.abs(found[:, column]) > 2.0 * chance * np.sqrt(np.diag(np.linalg.pinv(rows.T @ rows)))
            kept[0] = True
    return found, float(np.sqrt(np.average((rest ** 2).mean(axis=1), weights=weights[:, 0])))


def _best(lines: np.ndarray, waits: np.ndarray, low: np.ndarray, middle: np.ndarray, width: np.ndarray) -> np.ndarray:
    """Returns the host times in the box with the smallest errors of averages; the front end's time is unbounded."""
    from scipy.optimize import least_squares

    def errors(at: np.ndarray) -> np.ndarray:
        saw = np.exp(lines[0] + (at[:-1] - middle) / width[:-1] @ lines[1:])
        return np.concatenate([saw + waits * at[-1] - 1.0, _TOWARDS_0 * at / _WIDTHS])

    bounds = np.append(low[:-1], 0.0) - 1e-12, np.append((low + width)[:-1], LONGEST_S)
    return np.maximum(0.0, least_squares(errors, low + 0.5 * width, bounds=bounds, x_scale=width).x)


def _foreseen(point: np.ndarray, width: np.ndarray, slopes: np.ndarray, left: float, noise: float) -> Foreseen:
    """Returns the fit with uncertainties from `slopes`, the relative errors per width of the box."""
    covariance = noise ** 2 * np.linalg.inv(slopes.T @ slopes + 1e-4 * np.eye(len(point)))
    spread, notes = np.sqrt(np.diag(covariance)), []
    for (i, one), (j, other) in combinations(enumerate(HOST_TIMES), 2):
        alike = covariance[i, j] / spread[i] / spread[j]
        if abs(alike) > ALIKE:
            notes.append(f"these requests do not separate {one} from {other} (correlation {alike:+.2f}): add a run at "
                         "another load to the fit")
    wide = dict(zip(HOST_TIMES, (SURE * spread * width).tolist(), strict=True))
    host_times = dict(zip(HOST_TIMES, point.tolist(), strict=True))
    if unsure := [name for name, value in host_times.items() if value < wide[name]]:
        notes.append(f"these requests do not distinguish {', '.join(unsure)} from 0")
    if left > POOR:
        notes.append(f"averages stay {100 * left:.0f} % off with any host times: do not rely on this fit; check the "
                     "engine's settings in engine.json, and at the chip's times")
    return Foreseen(host_times, wide, left, notes)
