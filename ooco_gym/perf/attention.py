"""Attention of a batch as a few sums over its requests: the form in which the simulator evaluates it in O(1)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ooco_gym.rounding import steady


class Attention(NamedTuple):
    """Seconds of the attention of one iteration, all layers together, from sums over the batch's requests.

    A request with `q` new tokens and `kv` tokens of context (the new ones among them) has `rows = ceil(q / tile) *
    tile` rows and `work = rows * (kv - causal * q)`. With the features `f = (sum work, sum rows, sum kv, requests)`,
    the batch takes

        launch_s + linear_s @ f + (sum_j (roofs_s[j] @ f) ** exponent + (critical_s * sum kv / requests) ** exponent)
        ** (1 / exponent)

    and an exponent of infinity takes the largest of the terms: the roofline. In decode every request has one row
    (`tile` and `causal` do not count: `work` is `kv`).

    Attributes:
        roofs_s: float64[r, 4], seconds for each unit of the features; usually a compute and a memory roof.
        exponent: of the norm, at least 1, or infinity.
        launch_s: once an iteration that has such attention.
        linear_s: float64[4], added outside the norm.
        critical_s: seconds for each token of the mean context: the longest chain of one block of rows.
        tile: rows are padded to a multiple of it.
        causal: share of its own new tokens that a row does not look at on average: 0 counts the whole square, 0.5 the
            causal triangle.
    """

    roofs_s: np.ndarray
    exponent: float = np.inf
    launch_s: float = 0.0
    linear_s: np.ndarray = np.zeros(4)
    critical_s: float = 0.0
    tile: int = 1
    causal: float = 0.0

    def of_prompts(self, q: np.ndarray, kv: np.ndarray) -> tuple[np.ndarray, ...]:
        """The four features of each prompt by itself, from its new tokens and its context, float64[n] each."""
        q, kv = np.asarray(q, dtype=np.float64), np.asarray(kv, dtype=np.float64)
        rows = np.ceil(q / self.tile) * self.tile
        return rows * (kv - self.causal * q), rows, kv, np.ones(q.shape)

    def features(self, q: np.ndarray, kv: np.ndarray) -> np.ndarray:
        """The four sums of one prefill batch: `q` new tokens and `kv` context of each prompt, both [n].

        Returns:
            float64[4].
        """
        return np.array([part.sum() for part in self.of_prompts(q, kv)])

    def seconds(self, work: np.ndarray, rows: np.ndarray, context: np.ndarray, requests: np.ndarray) -> np.ndarray:
        """Seconds from the four sums, element by element for arrays of batches."""
        sums = np.stack(np.broadcast_arrays(*(np.asarray(x, np.float64) for x in (work, rows, context, requests))), -1)
        terms = np.maximum((sums[..., None, :] * self.roofs_s).sum(axis=-1), 0.0)
        if self.critical_s:
            mean = sums[..., 2] / np.maximum(sums[..., 3], 1.0)
            terms = np.concatenate([terms, (self.critical_s * mean)[..., None]], axis=-1)
        return self.launch_s + (sums * self.linear_s).sum(axis=-1) + _norm(terms, self.exponent)


def _norm(terms: np.ndarray, exponent: float) -> np.ndarray:
    largest = terms.max(axis=-1)
    if np.isinf(exponent):
        return largest
    scale = np.where(largest > 0, largest, 1.0)
    return largest * steady(steady((terms / scale[..., None]) ** exponent).sum(axis=-1) ** (1.0 / exponent))
