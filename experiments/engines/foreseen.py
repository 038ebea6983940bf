"""The engine's clock and front end from requests' own times, by serving them again in the simulator.

A production engine says when requests arrived, when their first token and their last one came; not what its iterations
took. `fit_requests` searches host times under which the simulated requests have the same TTFT (by length of prompt) and
the same TPOT. A run of the simulator depends on them by chance as well (an arrival just before or just after an
iteration begins), so that no single run decides: in a box of host times some are drawn, a quadratic surface is laid
through the logarithms of what requests saw, without the terms that chance may have made, and the box shrinks around the
surface's best point. Its slopes there tell how sure each figure is, and which figures such times cannot tell apart; a
figure that nothing tells stays near 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, combinations_with_replacement
from typing import NamedTuple

import numpy as np

from experiments.engines.served import Served
from ooco_gym.errors import UserError
from ooco_gym.perf.engine_clock import LONGEST_S, NO_HOST_TIME, EngineClock

FIGURES = {"decode_s": 8e-3, "prefill_s": 16e-3, "prefill_token_s": 8e-6, "frontend_s": 20e-3}
"""Figures that are searched, each with the width of the first box, from 0 on."""
FEWEST, NOISE, ALIKE = 30, 0.02, 0.9
"""Requests that are needed; relative error of an average between two runs of one engine; correlation from which two
figures are not told apart."""
_DRAWN, _ROUNDS, _SHRINKS, _TOWARDS_0 = 32, 5, 0.7, 0.003


class Foreseen(NamedTuple):
    """What requests tell: the clock whose host times were searched, figures by name, in seconds, each with its
    uncertainty (two standard errors), root mean square of the relative errors of averages that is left, runs of the
    simulator, and what is not told, in words."""

    like: EngineClock
    figures: dict[str, float]
    give_or_take: dict[str, float]
    left: float
    runs: int
    notes: list[str]

    @property
    def described(self) -> str:
        """The figures in words, with their uncertainty."""
        return ", ".join(f"{name} {1e3 * value:.3g} ± {1e3 * self.give_or_take[name]:.2g} ms"
                         for name, value in self.figures.items())

    def clock(self, name: str, source: str, frontend: bool = True) -> EngineClock:
        """The engine's clock with these figures, with its front end or without."""
        return replace(self.like, name=name, source=source, **{
            key: value for key, value in self.figures.items()
            if key in EngineClock.__dataclass_fields__ and (frontend or key != "frontend_s")})

    def seen(self, served: Served) -> Served:
        """What requests see behind this front end."""
        wait_s = self.figures["frontend_s"]
        return served._replace(ttft_s=served.ttft_s + wait_s, e2e_s=served.e2e_s + wait_s)


def fit_requests(serve: Callable[[EngineClock], Served], real: Served, prompt_tokens: np.ndarray,
                 like: EngineClock = NO_HOST_TIME) -> Foreseen:
    """Host times under which `serve` gives what requests saw.

    Args:
        serve: what the simulator makes of the same requests under a clock, in the same order.
        real: what they saw.
        prompt_tokens: of each, int64[n].
        like: what the clock has besides host times.

    Raises:
        UserError: too few requests, or of one token each.
    """
    if len(prompt_tokens) < FEWEST or len(real.tpot_s) < FEWEST:
        raise UserError(f"{len(prompt_tokens)} requests, {len(real.tpot_s)} of them with more than one token, are too "
                        f"few to fit host times; expected {FEWEST} of these")
    third = np.searchsorted(np.quantile(prompt_tokens, (1 / 3, 2 / 3)), prompt_tokens)
    wanted, width = _averages(real, third), np.array(list(FIGURES.values()))
    waits = np.arange(len(wanted)) < len(wanted) - 4    # TTFTs, which a front end adds to

    def averages(host: np.ndarray) -> np.ndarray:
        return _averages(serve(replace(like, **dict(zip(FIGURES, host.tolist(), strict=False)))), third)

    draws, point, span = np.random.default_rng(0), 0.5 * width, width
    drawn, seen = np.zeros((0, len(width) - 1)), np.zeros((0, len(wanted)))
    for _ in range(_ROUNDS):
        low = np.maximum(0.0, point - 0.5 * width)
        spread = np.stack([draws.permutation(_DRAWN) + draws.random(_DRAWN) for _ in low[:-1]], axis=1) / _DRAWN
        new = low[:-1] + spread * width[:-1]
        drawn, seen = np.concatenate([drawn, new]), np.concatenate([seen, np.log([averages(host) for host in new])])
        middle, span = (low + 0.5 * width)[:-1], width
        surface, chance = _surface((drawn - middle) / span[:-1], seen)

        def errors(at: np.ndarray, middle: np.ndarray = middle, span: np.ndarray = span,
                   surface: np.ndarray = surface) -> np.ndarray:
            saw = np.exp(_quadratic((at[None, :-1] - middle) / span[:-1]) @ surface)[0]
            return (saw + waits * at[-1]) / wanted - 1.0

        point = _best(errors, low, width)
        if (point[:-1] < low[:-1] + 0.99 * width[:-1]).all():
            width = width * _SHRINKS
    left = (averages(point[:-1]) + waits * point[-1]) / wanted - 1.0
    return _foreseen(like, point, span, _slopes(errors, point, span), np.append(left, chance), len(drawn) + 1)


def _averages(seen: Served, third: np.ndarray) -> np.ndarray:
    """TTFT: its mean, and the median of each third of prompts by length; TPOT: mean and quantiles. float64[8]."""
    medians = [float(np.median(seen.ttft_s[third == number])) for number in np.unique(third)]
    return np.array([seen.ttft_s.mean(), *medians, seen.tpot_s.mean(), *np.quantile(seen.tpot_s, (0.1, 0.5, 0.9))])


def _quadratic(at: np.ndarray) -> np.ndarray:
    """Terms of a quadratic surface at places in the box, float64[n, 3] from 0 to 1."""
    pairs = combinations_with_replacement(range(at.shape[1]), 2)
    return np.stack([np.ones(len(at)), *at.T, *(at[:, i] * at[:, j] for i, j in pairs)], axis=1)


def _surface(at: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, float]:
    """A quadratic surface through values, float64[n, m], by places, [n, 3], those near the middle of the box (0) above
    all: its coefficients, [10, m], and the root mean square of what chance adds to it."""
    terms, weights = _quadratic(at), 1.0 / (1.0 + (at ** 2).sum(axis=1))[:, None]
    found, chances = zip(*(_column(terms, value, weights) for value in values.T), strict=True)
    return np.stack(found, axis=1), float(np.sqrt(np.mean(np.square(chances))))


def _column(terms: np.ndarray, values: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, float]:
    """Weighted least squares of those terms that are more than twice their standard error, and what chance is left."""
    kept, found, chance = np.ones(terms.shape[1], dtype=bool), np.zeros(terms.shape[1]), 0.0
    for _ in range(2):
        rows = terms[:, kept] * weights
        coefficients = np.linalg.lstsq(rows, values * weights[:, 0], rcond=None)[0]
        rest = (values - terms[:, kept] @ coefficients)[:, None]
        chance = float(np.sqrt((weights * rest ** 2).sum() / weights.sum()))
        found[:] = 0.0
        found[kept] = coefficients
        unsure = np.abs(coefficients) < 2.0 * chance * np.sqrt(np.diag(np.linalg.pinv(rows.T @ rows)))
        kept[np.flatnonzero(kept)[1:][unsure[1:]]] = False  # the constant stays
    return found, chance


def _best(errors: Callable[[np.ndarray], np.ndarray], low: np.ndarray, width: np.ndarray) -> np.ndarray:
    """Where a surface's errors are least, in its box (a front end may be any); what changes none of them is small."""
    from scipy.optimize import least_squares

    high, first = np.append((low + width)[:-1], LONGEST_S), np.array(list(FIGURES.values()))
    low = np.append(low[:-1], 0.0)

    def held(at: np.ndarray) -> np.ndarray:
        return np.concatenate([errors(at), _TOWARDS_0 * at / first])

    results = [least_squares(held, np.clip(low + share * width, low, high), bounds=(low - 1e-12, high), x_scale=width)
               for share in (0.05, 0.5, 0.95)]
    return np.maximum(0.0, min(results, key=lambda one: one.cost).x)


def _slopes(errors: Callable[[np.ndarray], np.ndarray], point: np.ndarray, width: np.ndarray) -> np.ndarray:
    """What the width of the box in each figure would make of the errors, from the slope, float64[errors, figures]."""
    return np.stack([100.0 * (errors(point + 0.01 * width * unit) - errors(point)) for unit in np.eye(len(point))],
                    axis=1)


def _foreseen(like: EngineClock, point: np.ndarray, width: np.ndarray, slopes: np.ndarray, found: np.ndarray,
              runs: int) -> Foreseen:
    left = float(np.sqrt(np.mean(found[:-1] ** 2)))
    covariance = max(NOISE, left, found[-1]) ** 2 * np.linalg.inv(slopes.T @ slopes + 1e-4 * np.eye(len(point)))
    spread = np.sqrt(np.maximum(np.diag(covariance), 1e-30))
    names, notes = list(FIGURES), []
    for (i, one), (j, other) in combinations(enumerate(names), 2):
        alike = covariance[i, j] / spread[i] / spread[j]
        if abs(alike) > ALIKE:
            notes.append(f"these requests do not tell {one} from {other} (correlation {alike:+.2f}): record a "
                         "run of more than one load")
    unsure = [name for name, value, wide in zip(names, point, 2.0 * spread * width, strict=True) if value < wide]
    if unsure:
        notes.append(f"these requests do not tell {', '.join(unsure)} from 0")
    return Foreseen(like, dict(zip(names, point.tolist(), strict=True)),
                    dict(zip(names, (2.0 * spread * width).tolist(), strict=True)), left, runs, notes)
