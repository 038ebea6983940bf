"""Search without gradients behind one interface: `ask` for candidates, `tell` what each was worth, as often as wished.

- `Cma`: CMA-ES (Hansen 2016, arXiv 1604.00772), of the package `cmaes`; with `separable`, a diagonal covariance (Ros
  and Hansen 2008), for hundreds of numbers.
- `Evolution`: evolution strategies with antithetic pairs and centred ranks (Salimans et al. 2017, arXiv 1703.03864),
  Adam on the estimated gradient.
- `CrossEntropy`: independent normals refitted to the best (Rubinstein and Kroese 2004).

What a generation draws depends on the seed, on the number of the generation and on what was told before, not on when it
was drawn. All of them can be pickled between two generations, and go on to the bit.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from agents.settings import check_numbers, positive, whole
from ooco_gym.errors import UserError, is_number


class Optimiser(Protocol):
    """What the search asks of a method."""

    @property
    def mean(self) -> np.ndarray:
        """The middle of what is drawn next: float64[n]."""
        ...

    @property
    def sigma(self) -> float:
        """Its deviation, in the mean of all coordinates."""
        ...

    @property
    def converged(self) -> bool:
        """Whether nothing more is to be expected."""
        ...

    def ask(self) -> np.ndarray:
        """The candidates of the next generation: float64[population, n]."""
        ...

    def tell(self, candidates: np.ndarray, values: np.ndarray) -> None:
        """What the candidates (float64[population, n]) were worth: float64[population], more is better."""
        ...


def _seed(*words: int) -> int:
    """A seed of 32 bits from several numbers."""
    return int(np.random.SeedSequence(words).generate_state(1)[0])


class Cma:
    """CMA-ES; a rank of values is all that counts."""

    def __init__(self, start: np.ndarray, sigma: float, bounds: np.ndarray | None, population: int, seed: int,
                 separable: bool = False, lr_adapt: bool = False) -> None:
        from cmaes import CMA, SepCMA

        self.seed, self.generation, self.size = seed, 0, population
        common: dict[str, Any] = {"bounds": bounds, "population_size": population, "seed": seed}
        mean = np.array(start, float)
        self._cma: Any = (SepCMA(mean, sigma, **common) if separable
                          else CMA(mean, sigma, lr_adapt=lr_adapt, **common))

    @property
    def mean(self) -> np.ndarray:
        """The middle of the distribution, within the bounds."""
        return self._cma._repair_infeasible_params(np.array(self._cma._mean))

    @property
    def sigma(self) -> float:
        """The step size; of the covariance's own scale apart."""
        return float(self._cma._sigma)

    @property
    def converged(self) -> bool:
        """Whether one of the package's criteria says that it is over."""
        return bool(self._cma.should_stop())

    def ask(self) -> np.ndarray:
        """As `Optimiser.ask`."""
        self._cma.reseed_rng(_seed(self.seed, self.generation))  # the package keeps no random state in a pickle
        return np.array([self._cma.ask() for _ in range(self.size)])

    def tell(self, candidates: np.ndarray, values: np.ndarray) -> None:
        """As `Optimiser.tell`."""
        self._cma.tell([(one, -float(value)) for one, value in zip(candidates, values, strict=True)])
        # A pickle keeps half of a symmetric matrix, whose halves differ in the last bit: so that a search that is
        # resumed goes on to the bit, none goes on with what it was before the pickle.
        self._cma = pickle.loads(pickle.dumps(self._cma))
        self.generation += 1


class Evolution:
    """Evolution strategies with antithetic pairs, centred ranks and Adam."""

    def __init__(self, start: np.ndarray, sigma: float, bounds: np.ndarray | None, population: int, seed: int,
                 learning_rate: float = 0.1, weight_decay: float = 0.0) -> None:
        self.mean, self.sigma, self.bounds = np.array(start, float), float(sigma), bounds
        self.seed, self.generation, self.pairs = seed, 0, population // 2
        self.learning_rate, self.weight_decay, self.converged = learning_rate, weight_decay, False
        self._first, self._second = np.zeros(len(self.mean)), np.zeros(len(self.mean))

    def ask(self) -> np.ndarray:
        """As `Optimiser.ask`: pairs on either side of the mean, one after the other."""
        steps = self.sigma * np.random.default_rng((self.seed, 13, self.generation)).normal(
            size=(self.pairs, len(self.mean)))
        return self._within(self.mean + np.stack([steps, -steps], axis=1).reshape(2 * self.pairs, -1))

    def tell(self, candidates: np.ndarray, values: np.ndarray) -> None:
        """As `Optimiser.tell`."""
        shaped = centred_ranks(values)
        gradient = ((candidates - self.mean) * shaped[:, None]).sum(axis=0) / (len(values) * self.sigma)
        gradient -= self.weight_decay * self.mean
        self.generation += 1
        self._first = 0.9 * self._first + 0.1 * gradient
        self._second = 0.999 * self._second + 0.001 * gradient**2
        first, second = self._first / (1 - 0.9**self.generation), self._second / (1 - 0.999**self.generation)
        self.mean = self._within(self.mean + self.learning_rate * first / (np.sqrt(second) + 1e-8))

    def _within(self, candidates: np.ndarray) -> np.ndarray:
        return candidates if self.bounds is None else np.clip(candidates, *self.bounds.T)


def centred_ranks(values: np.ndarray) -> np.ndarray:
    """Ranks of values (n,), from −½ of the least to ½ of the largest; equal values have the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - 0.5 * (counts + 1.0))[inverse]
    return ranks / max(1, len(values) - 1) - 0.5


class CrossEntropy:
    """Independent normals, refitted to the best of each generation; the best ever told is always among these."""

    def __init__(self, start: np.ndarray, sigma: float | np.ndarray, bounds: np.ndarray | None, population: int,
                 seed: int, elite: int = 5) -> None:
        self.mean, self.bounds = np.array(start, float), bounds
        self.spread = np.broadcast_to(np.asarray(sigma, float), self.mean.shape).copy()
        self.deviation, self.population, self.elite = self.spread.copy(), population, elite
        self.best: tuple[float, np.ndarray] | None = None
        self._random = np.random.default_rng((seed, 11))

    @property
    def sigma(self) -> float:
        """The mean deviation."""
        return float(self.deviation.mean())

    @property
    def converged(self) -> bool:
        """Never: deviations keep a twentieth of where they began."""
        return False

    def ask(self) -> np.ndarray:
        """As `Optimiser.ask`."""
        drawn = np.array([self.mean + self.deviation * self._random.normal(size=len(self.mean))
                          for _ in range(self.population)])
        return drawn if self.bounds is None else np.clip(drawn, *self.bounds.T)

    def tell(self, candidates: np.ndarray, values: np.ndarray) -> None:
        """As `Optimiser.tell`."""
        known = [] if self.best is None else [self.best]
        known = sorted(known + list(zip(values.tolist(), candidates, strict=True)), key=lambda pair: -pair[0])
        self.best = known[0]
        best = np.array([weights for _, weights in known[: self.elite]])
        self.mean = best.mean(0)
        self.deviation = 0.5 * self.deviation + 0.5 * np.maximum(best.std(0), 0.05 * self.spread)


# --- By name ----------------------------------------------------------------------------------------------------------
METHODS = ("cma", "es", "cem")  # `agent.name`


def is_search(agent: Mapping[str, Any]) -> bool:
    """Whether an agent's configuration asks for a search over whole episodes."""
    return agent.get("name") in METHODS


def check_method(agent: Mapping[str, Any]) -> None:
    """Checks the settings of a method.

    Raises:
        UserError: a value out of range.
    """
    positive(agent, "sigma", name="agent.sigma")
    if agent.get("population") is not None:
        whole(agent, "population", 4, name="agent.population")
    if agent["name"] == "cma":
        for key in ("separable", "lr_adapt"):
            if agent.get(key) not in (True, False):
                raise UserError(f"agent.{key}={agent.get(key)!r} must be true or false")
        if agent["separable"] and agent["lr_adapt"]:
            raise UserError("agent.lr_adapt=true is for a full covariance; leave it out with agent.separable=true")
    if agent["name"] == "es":
        check_numbers(agent, "agent", numbers=("weight_decay",), positives=("learning_rate",))
    if agent["name"] == "cem":
        elite = agent.get("elite")
        if not is_number(elite) or not 0.0 < elite <= 1.0:  # type: ignore[operator]
            raise UserError(f"agent.elite={elite!r} must be a share of the population, above 0 and at most 1")


def population_of(agent: Mapping[str, Any], numbers: int) -> int:
    """How many candidates a generation has before any restart: as asked for, or 4 + 3 ln n (Hansen 2016), even."""
    given = agent.get("population")
    count = 4 + math.floor(3 * math.log(numbers)) if given is None else int(given)
    return max(4, count + count % 2)


def build(agent: Mapping[str, Any], start: np.ndarray, bounds: np.ndarray | None, population: int,
          seed: int) -> Optimiser:
    """The method of an agent's configuration, at a start.

    Args:
        start: float64[n].
        bounds: float64[n, 2], low and high of each number; None: none has any.
        population: candidates of a generation, even.
        seed: of all that it draws.
    """
    sigma = float(agent["sigma"])
    if agent["name"] == "es":
        return Evolution(start, sigma, bounds, population, seed, float(agent["learning_rate"]),
                         float(agent["weight_decay"]))
    if agent["name"] == "cem":
        return CrossEntropy(start, sigma, bounds, population, seed, max(2, round(float(agent["elite"]) * population)))
    return Cma(start, sigma, bounds, population, seed, bool(agent["separable"]), bool(agent["lr_adapt"]))
