"""Echo's micro-benchmarks (arXiv 2504.03651, 5.2): the coefficients of its estimator, fitted to an
instance.

The paper does not print its benchmarks. Ours are random batches with latencies from the cost
tables. Prompts alone have lengths in equal logarithmic steps. Decode batches have log-uniform size
and mean context and log-normal contexts, and fit the memory. Mixed batches add one chunk of a
prompt. Coefficients are least squares, none negative. Errors on separately drawn batches:
docs/readings.md.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ooco_gym.perf import CostTable, mixed_latency_ps, prefill_alone_ps
from ooco_gym.rounding import least_squares, steady

SAMPLES = 400  # batches of a kind
LONGEST_TOKENS = 32_768
TRIES = 1000  # draws of a batch
KEPT = 256  # cached fits, and sets of batches of some 0.3 MB each


class KindBatches(NamedTuple):
    """Batches of one kind: contexts of their decodes, and int64[n, 2] (tokens done, new tokens) of
    their chunk."""

    contexts: tuple[np.ndarray, ...]
    chunks: np.ndarray


@lru_cache(KEPT)
def fit_mixed(table: CostTable, largest_batch: int, block_tokens: int) -> dict[str, float]:
    """Fits the estimator of mixed batches to an instance: coefficients by the names of Echo's
    parameters, in ps.

    Args:
        table: the instance's cost table.
        largest_batch: requests in the largest decode batch benchmarked.
        block_tokens: tokens of a KV block; no benchmark exceeds the instance's memory.
    """
    found = fit_prefill(table, block_tokens) | fit_decode(table, largest_batch, block_tokens)
    batches = draw_batches(largest_batch, table.kv_blocks * block_tokens)["mixed"]
    (done, new), features = batches.chunks.astype(np.float64).T, decode_features(batches)
    prefill_ps = np.maximum(found["square_ps"] * ((done + new) ** 2 - done**2) + found["token_ps"] * new,
                            found["least_ps"])
    decode_ps = found["longest_ps"] * features[:, 0] + found["mean_ps"] * features[:, 1]
    longer, both = np.maximum(prefill_ps, decode_ps), prefill_ps + decode_ps
    hidden = both - longer
    overlap = (hidden * (both - latency_ps(table, batches))).sum() / (hidden**2).sum()
    return found | {"overlap": float(np.clip(overlap, 0.0, 1.0))}


@lru_cache(KEPT)
def fit_prefill(table: CostTable, block_tokens: int) -> dict[str, float]:
    """Fits T_p to prompts alone, trying each possible number of short prompts with the minimum time."""
    lengths = prompt_lengths(table.kv_blocks * block_tokens)
    true_ps, tokens = prefill_alone_ps(table, lengths), lengths.astype(np.float64)
    columns = np.stack([tokens**2, tokens], axis=1)
    best, least = {}, np.inf
    for short in range(len(tokens) - 2):
        a, b = least_squares(columns[short:] / true_ps[short:, None], np.ones(len(tokens) - short))
        c = float(true_ps[:short].mean()) if short else 0.0
        error = (((np.maximum(columns[:, 0] * a + columns[:, 1] * b, c) - true_ps) / true_ps) ** 2).sum()
        if error < least:
            best, least = {"square_ps": float(a), "token_ps": float(b), "least_ps": c}, error
    return best


@lru_cache(KEPT)
def fit_decode(table: CostTable, largest_batch: int, block_tokens: int) -> dict[str, float]:
    """Fits T_d to decode batches."""
    batches = draw_batches(largest_batch, table.kv_blocks * block_tokens)["decode"]
    longest_ps, mean_ps = least_squares(decode_features(batches), latency_ps(table, batches)).tolist()
    return {"longest_ps": longest_ps, "mean_ps": mean_ps}


def prompt_lengths(memory_tokens: int) -> np.ndarray:
    """Lengths of the prompts that are benchmarked alone: int64[n], four to a doubling, as far as
    memory allows."""
    longest = max(16, min(LONGEST_TOKENS, memory_tokens))
    return np.unique(np.rint(steady(2.0 ** np.arange(4.0, np.log2(longest) + 1e-9, 0.25))).astype(np.int64))


def decode_features(batches: KindBatches) -> np.ndarray:
    """Features of the decode time T_d: float64[n, 2], the longest and the mean context of each
    batch."""
    return np.array([(contexts.max(initial=0), contexts.sum() / len(contexts)) for contexts in batches.contexts],
                    np.float64)


@lru_cache(KEPT)
def draw_batches(largest_batch: int, memory_tokens: int) -> dict[str, KindBatches]:
    """Draws the benchmarks of each kind; instances that differ only in speed have the same ones."""
    rng = np.random.Generator(np.random.Philox(key=0))
    rng.uniform(size=SAMPLES)  # unused draws, which keep the following ones unchanged
    decodes = tuple(_contexts(rng, largest_batch, memory_tokens) for _ in range(SAMPLES))
    beside = tuple(_contexts(rng, largest_batch, memory_tokens) for _ in range(SAMPLES))
    new = np.rint(steady(2.0 ** rng.uniform(4.0, 11.0, SAMPLES))).astype(np.int64)
    done = np.rint(steady(2.0 ** rng.uniform(4.0, 14.0, SAMPLES)) * rng.integers(0, 2, SAMPLES)).astype(np.int64)
    return {"decode": KindBatches(decodes, np.zeros((SAMPLES, 2), np.int64)),
            "mixed": KindBatches(beside, np.stack([done, new], axis=1))}


def latency_ps(table: CostTable, batches: KindBatches) -> np.ndarray:
    """Latencies of an instance's iterations with these batches: float64[n], in ps."""
    chunks, contexts = batches.chunks, batches.contexts
    return mixed_latency_ps(table, chunks[:, 1:], chunks[:, :1], [len(one) for one in contexts],
                            [one.sum() for one in contexts],
                            longest=[one.max(initial=0) for one in contexts]).astype(np.float64)


def _contexts(rng: np.random.Generator, largest_batch: int, memory_tokens: int) -> np.ndarray:
    """Contexts of a batch that fits the memory; after `TRIES` draws, one request that fills it."""
    most = np.log2(largest_batch + 0.99)
    for _ in range(TRIES):
        count = int(steady(2.0 ** rng.uniform(0.0, most)))
        mean = steady(2.0 ** rng.uniform(6.0, 14.0))
        drawn = steady(rng.lognormal(0.0, rng.uniform(0.0, 1.0), count))
        if mean * np.add.reduce(drawn) > memory_tokens + count:  # also when rounded; with little memory, most are
            continue
        contexts = np.maximum(1, np.rint(mean * drawn)).astype(np.int64)
        if contexts.sum() <= memory_tokens:
            return contexts
    return np.array([memory_tokens])
