"""The engine's clock and front end from requests' own times, by serving them again in the simulator.

`fit_requests` searches host times under which the simulated requests have the TTFT (by length of prompt) and the TPOT
that were recorded. A run of the simulator depends on them by chance as well (an arrival just before or just after an
iteration begins), so that no single run decides: some are drawn from a box, the logarithms of what requests saw are
taken as linear in them, without slopes that chance may have made, and the box shrinks around the best point. The slopes
there tell how sure each figure is, and which figures such times do not tell apart; what nothing tells stays near 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

import numpy as np

from experiments.engines.host import described
from experiments.engines.served import Served
from ooco_gym.errors import UserError
from ooco_gym.perf.engine_clock import LONGEST_S, NO_HOST_TIME, EngineClock

FIGURES = {"decode_s": 8e-3, "prefill_s": 16e-3, "prefill_token_s": 8e-6, "frontend_s": 20e-3}
"""Figures that are searched, each with the width of the first box, from 0 on."""
_WIDTHS = np.array(list(FIGURES.values()))
FEWEST, NOISE, ALIKE, SURE, POOR = 30, 0.02, 0.9, 3.0, 0.15
"""Requests that are needed; relative error of an average between two runs of one engine; correlation from which two
figures are not told apart; standard errors of an uncertainty; relative error from which a fit is poor."""
_DRAWN, _ROUNDS, _SHRINKS, _TOWARDS_0 = 20, 8, 0.75, 0.003


class Foreseen(NamedTuple):
    """What requests tell: figures by name, in seconds, each with its uncertainty, root mean square of the relative
    errors of averages that is left, and what is not told, in words."""

    figures: dict[str, float]
    give_or_take: dict[str, float]
    left: float
    notes: list[str]

    def __str__(self) -> str:
        return described(self.figures, self.give_or_take)

    def clock(self, like: EngineClock = NO_HOST_TIME) -> EngineClock:
        """A clock with these host times; the front end's is `frontend_s`."""
        return replace(like, **{key: value for key, value in self.figures.items() if key != "frontend_s"})

    def seen(self, served: Served) -> Served:
        """What requests see behind this front end."""
        wait_s = self.figures["frontend_s"]
        return served._replace(ttft_s=served.ttft_s + wait_s, e2e_s=served.e2e_s + wait_s)


class Load(NamedTuple):
    """Requests of a run: what the simulator makes of them under a clock, what they saw, in the same order, and the
    tokens of their prompts, int64[n]."""

    serve: Callable[[EngineClock], Served]
    real: Served
    prompt_tokens: np.ndarray


def fit_requests(loads: Sequence[Load], like: EngineClock = NO_HOST_TIME) -> Foreseen:
    """Host times under which the simulator gives what requests of one engine saw; `like` says what else its clock has.

    Raises:
        UserError: too few requests of a load, or of one token each.
    """
    for load in loads:
        if min(len(load.prompt_tokens), len(load.real.tpot_s)) < FEWEST:
            raise UserError(f"{len(load.prompt_tokens)} requests, {len(load.real.tpot_s)} of them with more than one "
                            f"token, are too few to fit host times; expected {FEWEST} of these")
    thirds = [np.searchsorted(np.quantile(one.prompt_tokens, (1 / 3, 2 / 3)), one.prompt_tokens) for one in loads]
    reals = [_averages(load.real, third) for load, third in zip(loads, thirds, strict=True)]
    wanted = np.concatenate(reals)
    # What a second of front end adds to each TTFT:
    waits = np.concatenate([np.arange(len(one)) < len(one) - 4 for one in reals]) / wanted

    def averages(host: np.ndarray) -> np.ndarray:
        clock = replace(like, **dict(zip(FIGURES, host.tolist(), strict=False)))
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
    """TTFT: its mean, and the median of each third of prompts by length; TPOT: mean and quantiles. float64[8]."""
    medians = [float(np.median(seen.ttft_s[third == number])) for number in np.unique(third)]
    return np.array([seen.ttft_s.mean(), *medians, seen.tpot_s.mean(), *np.quantile(seen.tpot_s, (0.1, 0.5, 0.9))])


def _lines(at: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, float]:
    """Values, float64[n, m], as linear in places, [n, 3], those near the middle of the box (0) above all: constant and
    slopes, [4, m], those within twice their standard error 0; and the root mean square of what chance adds."""
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
    """The host times with the least errors of averages, in the box; a front end may be any."""
    from scipy.optimize import least_squares

    def errors(at: np.ndarray) -> np.ndarray:
        saw = np.exp(lines[0] + (at[:-1] - middle) / width[:-1] @ lines[1:])
        return np.concatenate([saw + waits * at[-1] - 1.0, _TOWARDS_0 * at / _WIDTHS])

    bounds = np.append(low[:-1], 0.0) - 1e-12, np.append((low + width)[:-1], LONGEST_S)
    return np.maximum(0.0, least_squares(errors, low + 0.5 * width, bounds=bounds, x_scale=width).x)


def _foreseen(point: np.ndarray, width: np.ndarray, slopes: np.ndarray, left: float, noise: float) -> Foreseen:
    """The figures with what `slopes`, relative errors for the width of the box, say of them."""
    covariance = noise ** 2 * np.linalg.inv(slopes.T @ slopes + 1e-4 * np.eye(len(point)))
    spread, notes = np.sqrt(np.diag(covariance)), []
    for (i, one), (j, other) in combinations(enumerate(FIGURES), 2):
        alike = covariance[i, j] / spread[i] / spread[j]
        if abs(alike) > ALIKE:
            notes.append(f"these requests do not tell {one} from {other} (correlation {alike:+.2f}): fit a run at "
                         "another load together with this one")
    wide = dict(zip(FIGURES, (SURE * spread * width).tolist(), strict=True))
    figures = dict(zip(FIGURES, point.tolist(), strict=True))
    if unsure := [name for name, value in figures.items() if value < wide[name]]:
        notes.append(f"these requests do not tell {', '.join(unsure)} from 0")
    if left > POOR:
        notes.append(f"averages stay {100 * left:.0f} % off under any host times: do not rely on this fit; look at the "
                     "engine's settings in engine.json, and at the chip's times")
    return Foreseen(figures, wide, left, notes)
