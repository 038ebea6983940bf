"""Prompt and output lengths: lognormal mixtures, quantile tables or a constant, optionally correlated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Protocol

import numpy as np

from ooco_gym.rounding import steady
from ooco_gym.schema import Amount, Model, Range, Share, at, check, check_keys, demand

MOST_TOKENS = 2**31 - 1


class Lengths(Protocol):
    """Turns random numbers into token counts int32[n] >= 1, element by element.

    `drawn` takes a uniform and a normal number per count, `at` the quantile in (0, 1) of each count.
    """

    def drawn(self, uniform: np.ndarray, normal: np.ndarray) -> np.ndarray: ...

    def at(self, quantile: np.ndarray) -> np.ndarray: ...


@dataclass(frozen=True)
class LognormalMixture(Model):
    """Component k with probability weights[k] is exp(mu[k] + sigma[k]·z), rounded, then clipped to `clip`."""

    weights: tuple[Amount, ...]
    mu: tuple[Annotated[float, Range(-30, 30)], ...]
    sigma: tuple[Annotated[float, Range(0, 30)], ...]
    clip: tuple[Annotated[int, Range(1, MOST_TOKENS)], ...]
    mean: Any = None

    def validate(self, where: str) -> None:
        demand(sum(self.weights) > 0, at(where, "weights"), self.weights, "numbers of at least 0 with a sum above 0")
        for key in ("mu", "sigma"):
            demand(len(getattr(self, key)) == len(self.weights), at(where, key), getattr(self, key),
                   f"a list of {len(self.weights)} numbers")
        demand(len(self.clip) == 2 and self.clip[0] <= self.clip[1], at(where, "clip"), self.clip,
               "[smallest, largest] with smallest <= largest")

    def drawn(self, uniform: np.ndarray, normal: np.ndarray) -> np.ndarray:
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
        return np.clip(np.rint(np.exp(np.minimum(log, 30.0))), self.clip[0], self.clip[1]).astype(np.int32)


@dataclass(frozen=True)
class QuantileTable(Model):
    """The inverse distribution function, linear between the given points, rounded; at least 1."""

    quantiles: tuple[Share, ...]
    tokens: tuple[Annotated[float, Range(0, MOST_TOKENS)], ...]
    mean: Any = None

    def validate(self, where: str) -> None:
        steps = np.diff(self.quantiles)
        demand(steps.size and self.quantiles[0] == 0 and self.quantiles[-1] == 1 and (steps > 0).all(),
               at(where, "quantiles"), self.quantiles, "ascending numbers from 0 to 1")
        demand(len(self.tokens) == len(self.quantiles) and (np.diff(self.tokens) >= 0).all(), at(where, "tokens"),
               self.tokens, f"{len(self.quantiles)} numbers that do not descend")

    def drawn(self, uniform: np.ndarray, normal: np.ndarray) -> np.ndarray:
        """Returns int32[n] token counts."""
        return self.at(uniform)

    def at(self, quantile: np.ndarray) -> np.ndarray:
        """Returns int32[n] token counts."""
        return np.maximum(np.rint(np.interp(quantile, self.quantiles, self.tokens)), 1).astype(np.int32)


@dataclass(frozen=True)
class Constant(Model):
    """One length for all requests."""

    constant: Annotated[int, Range(1, MOST_TOKENS)]
    mean: Any = None

    def drawn(self, uniform: np.ndarray, normal: np.ndarray) -> np.ndarray:
        """Returns int32[n] token counts."""
        return np.full(len(uniform), self.constant, dtype=np.int32)

    def at(self, quantile: np.ndarray) -> np.ndarray:
        """Returns int32[n] token counts."""
        return np.full(len(quantile), self.constant, dtype=np.int32)


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
            return self.prompt.drawn(draws[0], draws[2]), self.output.drawn(draws[1], draws[3])
        from scipy.special import ndtr

        # Spearman's rho of a Gaussian copula is 6/pi * asin(r/2), so r = 2 sin(pi rho / 6).
        r = steady(2 * np.sin(np.pi * self.correlation / 6))
        return self.prompt.at(ndtr(draws[2])), self.output.at(ndtr(r * draws[2] + np.sqrt(1 - r * r) * draws[3]))


def parse_lengths(values: Any, where: str, correlation: float = 0.0) -> LengthModel:
    """Reads `{prompt: ..., output: ...}`; `where` begins messages.

    Raises:
        UserError: a key is missing, unknown or out of range; the message names it.
    """
    check_keys(where, check(Mapping, where, values), ("prompt", "output"))
    prompt, output = (_parse_one(values.get(side), at(where, side)) for side in ("prompt", "output"))
    return LengthModel(prompt, output, correlation)


def _parse_one(values: Any, where: str) -> Lengths:
    named = values if isinstance(values, Mapping) else {}
    model = Constant if "constant" in named else QuantileTable if "quantiles" in named else LognormalMixture
    return model.read(values, where)
