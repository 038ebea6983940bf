"""HyGen's latency predictor (arXiv 2501.14808, 4.2, Eq. 1): linear regression on seven sums over a batch.

The paper leaves open what S_d counts. New tokens of decodes are as many as the decodes themselves, a column twice, so
it is the sum of their context lengths here.

The paper profiles the hardware before it is deployed; here the hardware is the cost table of an instance. Mixed
batches: "varying in the number of requests in different phases, sequence length distributions, and total batch sizes";
what exactly they are drawn from is ours. The error on batches that the fit has not seen stands beside the paper's
1.78 % (Llama2-7B) and 1.07 % (Qwen-14B), which were measured on a workload's own batches.

On P/D pools no batch mixes phases: of the seven columns a decode step has four: one, S_d, S_d^2, N_d; a prefill
iteration one, S_p, S_p^2, N_p. Batch sizes are drawn log-uniformly, mean contexts within a factor of 4 of the
workload's; steps that do not fit the memory, or take more than twice the SLO, are left out: nothing of the kind is
scheduled.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ooco_gym.perf import CostTable, mixed_latency_ps, prefill_latency_ps
from ooco_gym.rounding import least_squares, steady

# The columns of Eq. 1 with its intercept, in order.
FEATURES = ("one", "prefill_tokens", "decode_tokens", "prefill_squared", "decode_squared", "prefills", "decodes")
HELD_OUT = 0.2  # share of the samples that the error is measured on
KEPT = 256  # fits and profiles of tables


class Fit(NamedTuple):
    """A fitted predictor.

    Attributes:
        coefficients: float64[columns], of Eq. 1 in the order of `FEATURES`; the unit of the latencies, per unit of
            the column.
        mape: mean absolute percentage error on samples left out of the fit (0.01 is 1 %).
    """

    coefficients: np.ndarray
    mape: float


def features(prefill_tokens: Any, decode_tokens: Any, prefills: Any, decodes: Any) -> np.ndarray:
    """The columns of Eq. 1, float64[n, 7].

    Args:
        prefill_tokens: new prompt tokens of each batch (S_p), [n] or a number.
        decode_tokens: context lengths of each batch's decodes, summed (S_d), tokens.
        prefills: how many requests prefill (N_p).
        decodes: how many decode (N_d).
    """
    sums = np.broadcast_arrays(*(np.asarray(part, np.float64) for part in
                                 (prefill_tokens, decode_tokens, prefills, decodes)))
    prompt, context, n_prompts, n_decodes = (np.atleast_1d(part) for part in sums)
    return np.stack([np.ones_like(prompt), prompt, context, prompt**2, context**2, n_prompts, n_decodes], axis=1)


def fit(columns: np.ndarray, latency: np.ndarray) -> Fit:
    """Fits by least squares on all but the last samples, which the error is measured on.

    Args:
        columns: float64[n, columns], `features` or some of them, in random order. Columns that are zero throughout get
            the coefficient 0.
        latency: float64[n], measured; any unit.
    """
    held = max(1, int(HELD_OUT * len(latency)))
    solved = least_squares(columns[:-held], latency[:-held], negative=True)
    error = np.abs((columns[-held:] * solved).sum(axis=1) / latency[-held:] - 1.0)
    return Fit(solved, float(error.mean()))


# --- Mixed batches (one instance) -----------------------------------------------------------------------------------
SAMPLES = 100_000  # "over 80,000 samples" (5.4) are fitted, a fifth is held out
DRAWS = 0x48474E  # key of the draws: the training set is the same in every run
MOST_PROMPTS = 4  # prefills in one batch
CONTEXTS = (16.0, 4096.0)  # mean context of the decodes, and what an earlier chunk left
BLOCK_TOKENS = 16  # only bounds the batch by the memory


class Batches(NamedTuple):
    """Mixed batches, n of them: int64[n] each, and of the prefills int64[n, MOST_PROMPTS] (0: none)."""

    decodes: np.ndarray
    decode_context: np.ndarray  # sum of the contexts of the decodes, the new token included
    chunks: np.ndarray  # new tokens of each prefill
    before: np.ndarray  # tokens of its prompt that are in memory already
    completed: np.ndarray  # prefills that end with this batch


def sample_batches(table: CostTable, chunk: int, count: int = SAMPLES) -> Batches:
    """Draws batches that fit the memory: a third decodes only, the others with prefills that share a part of the chunk.

    Args:
        table: of the instance that runs them.
        chunk: most prefill tokens in a batch.
        count: how many.
    """
    draws = np.random.default_rng(DRAWS)
    mean = _contexts(draws, count)
    memory = np.maximum(1.0, table.kv_blocks * BLOCK_TOKENS / mean)
    largest = len(table.decode_lines) - 1
    most = np.minimum(max(0, largest - MOST_PROMPTS), memory)
    decodes = np.rint(most * draws.uniform(0.0, 1.0, count) ** 2).astype(np.int64)  # small batches more often
    prompts = draws.integers(1, MOST_PROMPTS + 1, count) * (draws.uniform(size=count) > 1 / 3)
    prompts = np.minimum(prompts, largest)
    decodes = np.where((decodes == 0) & (prompts == 0), 1, decodes)
    chunks = _chunks(draws, prompts, chunk)
    before = np.zeros_like(chunks)  # the first prefill goes on with its prompt half of the time
    earlier = _contexts(draws, count) * (draws.uniform(size=count) < 0.5)
    before[:, 0] = np.where(prompts > 0, earlier, 0).astype(np.int64)
    completed = np.maximum(0, prompts - draws.integers(0, 2, count)).astype(np.int64)
    return Batches(decodes, np.rint(decodes * mean).astype(np.int64), chunks, before, completed)


def _contexts(draws: np.random.Generator, count: int) -> np.ndarray:
    """Log-uniform within CONTEXTS, in tokens: float64[n]."""
    low, high = np.log(CONTEXTS)
    return steady(np.exp(draws.uniform(low, high, count)))


def _chunks(draws: np.random.Generator, prompts: np.ndarray, chunk: int) -> np.ndarray:
    """Splits a random part of the token budget among so many prompts: int64[n, MOST_PROMPTS]."""
    count, fewest = len(prompts), 2 * MOST_PROMPTS
    total = draws.integers(fewest, max(chunk, fewest) + 1, count)[:, None]
    shares = draws.dirichlet(np.ones(MOST_PROMPTS), count) * (np.arange(MOST_PROMPTS) < prompts[:, None])
    shares /= np.maximum(shares.sum(axis=1, keepdims=True), 1e-12)
    return np.where(shares > 0, np.maximum(2, np.rint(shares * total)), 0).astype(np.int64)


def latency_ps(table: CostTable, batches: Batches) -> np.ndarray:
    """What the simulator charges for each batch: float64[n], in ps."""
    return mixed_latency_ps(table, batches.chunks, batches.before, batches.decodes, batches.decode_context,
                            batches.completed).astype(np.float64)


def trained(table: CostTable, chunk: int, decode_tokens: str = "context") -> Fit:
    """The predictor of a table, in ps; trained once in a process (0.2 s).

    Args:
        table: of the instance that it predicts.
        chunk: most prefill tokens in a batch.
        decode_tokens: S_d of Equation 1: the decodes' `context`, or their `new` tokens, which are as many as they.
    """
    return _trained(table, chunk, decode_tokens)


@lru_cache(KEPT)
def _trained(table: CostTable, chunk: int, decode_tokens: str) -> Fit:
    batches = sample_batches(table, chunk)
    columns = features(batches.chunks.sum(axis=1), batches.decode_context if decode_tokens == "context" else
                       batches.decodes, (batches.chunks > 0).sum(axis=1), batches.decodes)
    return fit(columns, latency_ps(table, batches))


# --- Batches of one phase (P/D pools) -------------------------------------------------------------------------------
POOL_DRAWS = 0x48794765  # key of the draws: a profile is the same in every run
LONGEST = 16_384  # tokens of one request
POOL_SAMPLES = 4096
SPAN = 4.0  # mean contexts from the workload's divided by this to the workload's times this
PROMPTS = 8  # most prompts in a profiled prefill batch


class Profile(NamedTuple):
    """Iterations of one kind: requests [n], their tokens in all [n] (contexts, or new ones), latencies [n] in ps."""

    requests: np.ndarray
    tokens: np.ndarray
    latency_ps: np.ndarray


def _log_uniform(draws: np.random.Generator, most: float, size: int) -> np.ndarray:
    return steady(np.exp(draws.uniform(0.0, np.log(most + 1.0), size))).astype(np.int64)


def decode_profile(table: CostTable, most_ps: float, mean_context: float, max_batch: int,
                   block_tokens: int = 16) -> Profile:
    """Random decode steps of at most `most_ps` around a mean context, on the chip of a table, that fit its memory."""
    draws = np.random.Generator(np.random.Philox(POOL_DRAWS))
    room, batch = table.kv_blocks * block_tokens, _log_uniform(draws, max_batch - 1, 2 * POOL_SAMPLES)
    factor = steady(SPAN ** draws.uniform(-1.0, 1.0, 2 * POOL_SAMPLES))
    context = np.maximum(batch, batch * mean_context * factor).astype(np.int64)
    lines = table.decode_lines[batch]
    latency = np.maximum(lines[:, 0] + lines[:, 1] * context, lines[:, 2] + lines[:, 3] * context)
    kept = (context <= room) & (latency <= most_ps)
    if np.count_nonzero(kept) < 16:  # an SLO that only the smallest batches keep: profile what there is
        kept = np.argsort(latency)[:64]
    return Profile(batch[kept], context[kept], latency[kept].astype(np.float64))


@lru_cache(KEPT)
def prefill_profile(table: CostTable, tokens: int) -> Profile:
    """Random prefill iterations: one prompt of any length, or several within the budget of `tokens`."""
    draws = np.random.Generator(np.random.Philox(POOL_DRAWS + 1))
    rows, most = [], min(PROMPTS, len(table.head_ps) - 1)
    for longest in _log_uniform(draws, LONGEST, POOL_SAMPLES // 2).tolist():
        prompts = [longest]
        for more in _log_uniform(draws, LONGEST, most).tolist()[1:]:
            if sum(prompts) + more <= tokens:
                prompts.append(more)
        rows.append((len(prompts), sum(prompts), prefill_latency_ps(table, [(one, one) for one in prompts])))
    prompts, total, latency = np.array(rows, np.int64).T
    return Profile(prompts, total, latency.astype(np.float64))


def fit_pool(profile: Profile) -> Fit:
    """Fits the four columns of a profile, in ps: coefficients of one, tokens, tokens squared, requests, float64[4]."""
    tokens = profile.tokens.astype(np.float64)
    return fit(np.stack([np.ones_like(tokens), tokens, tokens**2, profile.requests], axis=1), profile.latency_ps)
