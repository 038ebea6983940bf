"""HyGen's latency predictor (arXiv 2501.14808, 4.2, Eq. 1): linear regression on seven sums over a
batch.

The paper leaves open what S_d counts. The decodes' new tokens would equal their number, a duplicate
column, so it is the sum of their context lengths here.

The paper profiles the hardware before deployment; here the hardware is an instance's cost table.
Mixed batches are "varying in the number of requests in different phases, sequence length
distributions, and total batch sizes"; their exact distributions are ours.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ooco_gym.perf import CostTable, mixed_latency_ps
from ooco_gym.rounding import least_squares, steady

HELD_OUT = 0.2  # share of the batches that is not fitted: the last ones


def fit(columns: np.ndarray, latency_ps: np.ndarray) -> np.ndarray:
    """Coefficients of columns float64[n, columns] by least squares; 0 for a column of zeros."""
    fitted = len(latency_ps) - max(1, int(HELD_OUT * len(latency_ps)))
    return least_squares(columns[:fitted], latency_ps[:fitted], negative=True)


SAMPLES = 100_000  # "over 80,000 samples" (5.4) are fitted, a fifth is held out
DRAWS = 0x48474E  # key of the draws: the training set is the same in every run
MOST_PROMPTS = 4  # prefills in one batch
CONTEXTS = (16.0, 4096.0)  # mean context of the decodes, and of earlier chunks
BLOCK_TOKENS = 16  # only bounds the batch by the memory
KEPT = 256  # cached fits of tables


class Batches(NamedTuple):
    """Mixed batches, n of them: int64[n] each, and for prefills int64[n, MOST_PROMPTS] (0: none)."""

    decodes: np.ndarray
    decode_context: np.ndarray  # sum of the contexts of the decodes, the new token included
    chunks: np.ndarray  # new tokens of each prefill
    before: np.ndarray  # tokens of its prompt that are in memory already
    completed: np.ndarray  # prefills that end with this batch


def sample_batches(table: CostTable, chunk: int) -> Batches:
    """Draws batches that fit the memory: a third decodes only, the others with prefills in a part
    of the chunk."""
    draws, count = np.random.default_rng(DRAWS), SAMPLES
    mean = _contexts(draws, count)
    memory = np.maximum(1.0, table.kv_blocks * BLOCK_TOKENS / mean)
    largest = len(table.decode_lines) - 1
    most = np.minimum(max(0, largest - MOST_PROMPTS), memory)
    decodes = np.rint(most * draws.uniform(0.0, 1.0, count) ** 2).astype(np.int64)  # small batches more often
    prompts = draws.integers(1, MOST_PROMPTS + 1, count) * (draws.uniform(size=count) > 1 / 3)
    prompts = np.minimum(prompts, largest)
    decodes = np.where((decodes == 0) & (prompts == 0), 1, decodes)
    chunks = _chunks(draws, prompts, chunk)
    before = np.zeros_like(chunks)  # the first prefill is a continuation half of the time
    earlier = _contexts(draws, count) * (draws.uniform(size=count) < 0.5)
    before[:, 0] = np.where(prompts > 0, earlier, 0).astype(np.int64)
    completed = np.maximum(0, prompts - draws.integers(0, 2, count)).astype(np.int64)
    return Batches(decodes, np.rint(decodes * mean).astype(np.int64), chunks, before, completed)


def _contexts(draws: np.random.Generator, count: int) -> np.ndarray:
    """Log-uniform within CONTEXTS, in tokens: float64[n]."""
    low, high = np.log(CONTEXTS)
    return steady(np.exp(draws.uniform(low, high, count)))


def _chunks(draws: np.random.Generator, prompts: np.ndarray, chunk: int) -> np.ndarray:
    """Splits a random part of the token budget among `prompts` prompts: int64[n, MOST_PROMPTS]."""
    count, fewest = len(prompts), 2 * MOST_PROMPTS
    total = draws.integers(fewest, max(chunk, fewest) + 1, count)[:, None]
    shares = draws.dirichlet(np.ones(MOST_PROMPTS), count) * (np.arange(MOST_PROMPTS) < prompts[:, None])
    shares /= np.maximum(shares.sum(axis=1, keepdims=True), 1e-12)
    return np.where(shares > 0, np.maximum(2, np.rint(shares * total)), 0).astype(np.int64)


def latency_ps(table: CostTable, batches: Batches) -> np.ndarray:
    """Latencies that the simulator charges for each batch: float64[n], in ps."""
    return mixed_latency_ps(table, batches.chunks, batches.before, batches.decodes, batches.decode_context,
                            batches.completed).astype(np.float64)


@lru_cache(KEPT)
def trained(table: CostTable, chunk: int, decode_tokens: str) -> np.ndarray:
    """The coefficients of Equation 1 for a table, float64[7], in ps; trained once in a process (0.2
    s).

    Args:
        table: cost table of the instance.
        chunk: most prefill tokens in a batch.
        decode_tokens: S_d of Equation 1: the decodes' `context`, or their `new` tokens.
    """
    batches = sample_batches(table, chunk)
    prompt, prefills = batches.chunks.sum(axis=1), (batches.chunks > 0).sum(axis=1)
    decoded = batches.decode_context if decode_tokens == "context" else batches.decodes
    columns = np.stack([np.ones(SAMPLES), prompt, decoded, prompt**2, decoded**2, prefills, batches.decodes], axis=1)
    return fit(columns, latency_ps(table, batches))
