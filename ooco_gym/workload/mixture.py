"""Mixtures of lognormals fitted to token counts by expectation and maximisation."""

from __future__ import annotations

from typing import Any

import numpy as np

MOST_COMPONENTS = 4
NARROWEST = 0.03
ROUNDS = 150
MOST_TOKENS = 50_000


def fit_mixture(tokens: np.ndarray, seed: int) -> dict[str, Any]:
    """Returns a length model `{weights, mu, sigma, clip}`: of one to four lognormals the one with the best BIC.

    Args:
        tokens: int[n], >= 1; of more than 50,000 a random part is used.
        seed: of that part.
    """
    part = tokens if len(tokens) <= MOST_TOKENS else np.random.default_rng(seed).choice(tokens, MOST_TOKENS)
    log = np.log(part.astype(np.float64))
    best, best_bic = None, np.inf
    for count in range(1, MOST_COMPONENTS + 1):
        weights, mu, sigma, likelihood = _maximise(log, count)
        bic = (3 * count - 1) * np.log(len(log)) - 2 * likelihood
        if bic < best_bic:
            best, best_bic = (weights, mu, sigma), bic
    assert best is not None
    names = ("weights", "mu", "sigma")
    fitted = {name: [float(f"{x:.5g}") for x in values] for name, values in zip(names, best, strict=True)}
    return {**fitted, "clip": [int(tokens.min()), int(tokens.max())]}


def _maximise(log: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Returns (weights, means, standard deviations, each float64[count], and the log-likelihood)."""
    weights = np.full(count, 1 / count)
    mu = np.quantile(log, (np.arange(count) + 0.5) / count)
    sigma = np.full(count, max(log.std(), NARROWEST))
    likelihood = -np.inf
    for _ in range(ROUNDS):
        density = np.log(np.maximum(weights, 1e-12)) - np.log(sigma) - ((log[:, None] - mu) / sigma) ** 2 / 2
        highest = density.max(axis=1, keepdims=True)
        share = np.exp(density - highest)
        total = share.sum(axis=1, keepdims=True)
        found = float(np.sum(highest + np.log(total)))
        share /= total
        mass = np.maximum(share.sum(axis=0), 1e-9)
        weights, mu = mass / mass.sum(), (share * log[:, None]).sum(axis=0) / mass
        sigma = np.maximum(np.sqrt((share * (log[:, None] - mu) ** 2).sum(axis=0) / mass), NARROWEST)
        if found - likelihood < 1e-6 * len(log):
            likelihood = found
            break
        likelihood = found
    return weights, mu, sigma, likelihood
