"""Prompt and output lengths: lognormal mixtures, quantile tables or a constant, optionally correlated."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from ooco_gym.rounding import steady
from ooco_gym.workload.checks import Section


class Lengths(Protocol):
    """Turns random numbers into token counts int32[n] >= 1, element by element.

    `tokens` takes a uniform and a normal number per count, `at` the quantile in (0, 1) of each count.
    """

    def tokens(self, uniform: np.ndarray, normal: np.ndarray) -> np.ndarray: ...

    def at(self, quantile: np.ndarray) -> np.ndarray: ...


@dataclass(frozen=True)
class LognormalMixture:
    """Component k with probability weights[k] is exp(mu[k] + sigma[k]·z), rounded, then clipped to [low, high]."""

    weights: tuple[float, ...]
    mu: tuple[float, ...]
    sigma: tuple[float, ...]
    low: int
    high: int

    def tokens(self, uniform: np.ndarray, normal: np.ndarray) -> np.ndarray:
        """Returns int32[n] token counts."""
        edges = np.cumsum(self.weights) / np.sum(self.weights)
        component = np.searchsorted(edges[:-1], uniform, side="right")
        log = np.asarray(self.mu)[component] + np.asarray(self.sigma)[component] * normal
        return self._counts(log)

    def at(self, quantile: np.ndarray) -> np.ndarray:
        """Returns int32[n] token counts; the distribution function is inverted on a fine grid."""
        return self._counts(np.interp(quantile, *self._grid))

    @cached_property
    def _grid(self) -> tuple[np.ndarray, np.ndarray]:
        """The distribution function and the logarithm of the count, float64[4097] each."""
        from scipy.special import ndtr

        mu, sigma = np.asarray(self.mu), np.maximum(self.sigma, 1e-9)
        log = np.linspace((mu - 6 * sigma).min(), (mu + 6 * sigma).max(), 4097)
        share = np.asarray(self.weights) / np.sum(self.weights)
        return (ndtr((log[:, None] - mu) / sigma) * share).sum(axis=1), log

    def _counts(self, log: np.ndarray) -> np.ndarray:
        return np.clip(np.rint(np.exp(np.minimum(log, 30.0))), self.low, self.high).astype(np.int32)


@dataclass(frozen=True)
class QuantileTable:
    """The inverse distribution function, linear between the given points, rounded; at least 1."""

    quantiles: tuple[float, ...]
    values: tuple[float, ...]

    def tokens(self, uniform: np.ndarray, normal: np.ndarray) -> np.ndarray:
        """Returns int32[n] token counts."""
        return self.at(uniform)

    def at(self, quantile: np.ndarray) -> np.ndarray:
        """Returns int32[n] token counts."""
        return np.maximum(np.rint(np.interp(quantile, self.quantiles, self.values)), 1).astype(np.int32)


@dataclass(frozen=True)
class Constant:
    """One length for all requests."""

    count: int

    def tokens(self, uniform: np.ndarray, normal: np.ndarray) -> np.ndarray:
        """Returns int32[n] token counts."""
        return np.full(len(uniform), self.count, dtype=np.int32)

    def at(self, quantile: np.ndarray) -> np.ndarray:
        """Returns int32[n] token counts."""
        return np.full(len(quantile), self.count, dtype=np.int32)


@dataclass(frozen=True)
class LengthModel:
    """Prompt and output lengths.

    Attributes:
        prompt: token counts of prompts.
        output: token counts of outputs.
        correlation: Spearman's rank correlation of the two, by a Gaussian copula; 0: independent.
    """

    prompt: Lengths
    output: Lengths
    correlation: float = 0.0

    def draw(self, draws: np.ndarray, scores: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Returns (prompt int32[n], output int32[n]) for float64[4, n]: two uniform and two normal
        numbers per request.

        With `scores`, or if the two are correlated, only the normal numbers are used, as normal
        scores.
        """
        if self.correlation == 0.0 and not scores:
            return self.prompt.tokens(draws[0], draws[2]), self.output.tokens(draws[1], draws[3])
        from scipy.special import ndtr

        # Spearman's rho of a Gaussian copula is 6/pi * asin(r/2), so r = 2 sin(pi rho / 6).
        r = steady(2 * np.sin(np.pi * self.correlation / 6))
        return self.prompt.at(ndtr(draws[2])), self.output.at(ndtr(r * draws[2] + np.sqrt(1 - r * r) * draws[3]))


def parse_lengths(section: Section, correlation: float = 0.0) -> LengthModel:
    """Reads `{prompt: ..., output: ...}`.

    Raises:
        UserError: a key is missing, unknown or out of range; the message names it.
    """
    section.only("prompt", "output")
    return LengthModel(_parse_one(section.section("prompt")), _parse_one(section.section("output")), correlation)


def _parse_one(section: Section) -> Lengths:
    if section.has("constant"):
        section.only("constant", "mean")
        return Constant(section.integer("constant", minimum=1, maximum=2**31 - 1))
    if section.has("quantiles"):
        section.only("quantiles", "tokens", "mean")
        quantiles = section.numbers("quantiles", minimum=0.0, maximum=1.0)
        values = section.numbers("tokens", minimum=0.0, maximum=2.0**31 - 1, count=len(quantiles))
        section.demand("quantiles", len(quantiles) >= 2 and quantiles[0] == 0 and quantiles[-1] == 1
                       and all(np.diff(quantiles) > 0), "ascending numbers from 0 to 1")
        section.demand("tokens", bool(np.all(np.diff(values) >= 0)), "numbers that do not descend")
        return QuantileTable(quantiles, values)
    section.only("weights", "mu", "sigma", "clip", "mean")
    weights = section.numbers("weights", minimum=0.0)
    section.demand("weights", sum(weights) > 0, "numbers >= 0 with a sum above 0")
    mu = section.numbers("mu", minimum=-30.0, maximum=30.0, count=len(weights))
    sigma = section.numbers("sigma", minimum=0.0, maximum=30.0, count=len(weights))
    low, high = section.numbers("clip", minimum=1.0, maximum=2.0**31 - 1, count=2)
    section.demand("clip", low <= high, "[smallest, largest] with smallest <= largest")
    return LognormalMixture(weights, mu, sigma, int(low), int(high))
