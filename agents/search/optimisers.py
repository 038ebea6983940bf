"""CMA-ES (Hansen 2016, arXiv 1604.00772) of the package `cmaes`, in a loop of our own: a search that is resumed must
equal one that never stopped, to the bit."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

CMA, CMA_LINEAR = "cma", "cma_linear"  # `agent.name` of a search over whole episodes, and over a linear scorer


class Cma:
    """Repeats `ask` for candidates and `tell` with their values, of which only the rank counts.

    A generation's draws depend on the seed, the generation's number and earlier values. It can be pickled between two
    generations. `start` is float64[n], `sigma` each number's first deviation, `bounds` float64[n, 2] or None.
    """

    def __init__(self, start: np.ndarray, sigma: float, bounds: np.ndarray | None, population: int, seed: int) -> None:
        from cmaes import CMA

        self.seed, self.generation, self.size = seed, 0, population
        self._cma: Any = CMA(np.array(start, float), sigma, bounds=bounds, population_size=population, seed=seed)

    @property
    def mean(self) -> np.ndarray:
        """The mean of the distribution, within the bounds: float64[n]."""
        return self._cma._repair_infeasible_params(np.array(self._cma._mean))

    @property
    def sigma(self) -> float:
        """The step size, without the covariance's own scale."""
        return float(self._cma._sigma)

    @property
    def converged(self) -> bool:
        """Whether one of the package's stopping criteria is met."""
        return bool(self._cma.should_stop())

    def ask(self) -> np.ndarray:
        """The candidates of the next generation: float64[population, n]."""
        # The package keeps no random state in a pickle.
        self._cma.reseed_rng(int(np.random.SeedSequence((self.seed, self.generation)).generate_state(1)[0]))
        return np.array([self._cma.ask() for _ in range(self.size)])

    def tell(self, candidates: np.ndarray, values: np.ndarray) -> None:
        """Takes candidates (float64[population, n]) with their values, float64[population]: more is better."""
        self._cma.tell([(candidate, -float(value)) for candidate, value in zip(candidates, values, strict=True)])
        # A pickle keeps half of a symmetric matrix, whose halves differ in the last bit. Every
        # search goes on from its pickle, so that a resumed one does the same.
        self._cma = pickle.loads(pickle.dumps(self._cma))
        self.generation += 1
