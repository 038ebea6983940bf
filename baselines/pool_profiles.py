"""HyGen's predictor (arXiv 2501.14808, Eq. 1) where no batch mixes phases: profiled batches of one kind, and the fit.

The paper profiles the hardware before it is deployed (4.2); here the hardware is a cost table. Of the seven columns of
Eq. 1 (`hygen_predictor`) a decode step has four: one, S_d, S_d^2, N_d; a prefill iteration one, S_p, S_p^2, N_p. Batch
sizes are drawn log-uniformly, mean contexts within a factor of 4 of the workload's; steps that do not fit the memory,
or take more than twice the SLO, are left out: nothing of the kind is scheduled.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from baselines.hygen_predictor import Fit, fit
from ooco_gym.perf import CostTable
from ooco_gym.perf.table import prefill_latency_ps

DRAWS = 0x48794765  # key of the draws: a profile is the same in every run
LONGEST = 16_384  # tokens of one request
SAMPLES = 4096
SPAN = 4.0  # mean contexts from the workload's divided by this to the workload's times this
PROMPTS = 8  # most prompts in a profiled prefill batch


class Profile(NamedTuple):
    """Iterations of one kind: requests [n], their tokens in all [n] (contexts, or new ones), latencies [n] in ps."""

    requests: np.ndarray
    tokens: np.ndarray
    latency_ps: np.ndarray


def _log_uniform(draws: np.random.Generator, most: float, size: int) -> np.ndarray:
    return np.exp(draws.uniform(0.0, np.log(most + 1.0), size)).astype(np.int64)


def decode_profile(table: CostTable, most_ps: float, mean_context: float, max_batch: int,
                   block_tokens: int = 16) -> Profile:
    """Random decode steps of at most `most_ps` around a mean context, on the chip of a table, that fit its memory."""
    draws = np.random.Generator(np.random.Philox(DRAWS))
    room, batch = table.kv_blocks * block_tokens, _log_uniform(draws, max_batch - 1, 2 * SAMPLES)
    context = np.maximum(batch, batch * mean_context * SPAN ** draws.uniform(-1.0, 1.0, 2 * SAMPLES)).astype(np.int64)
    lines = table.decode_lines[batch]
    latency = np.maximum(lines[:, 0] + lines[:, 1] * context, lines[:, 2] + lines[:, 3] * context)
    kept = (context <= room) & (latency <= most_ps)
    if np.count_nonzero(kept) < 16:  # an SLO that only the smallest batches keep: profile what there is
        kept = np.argsort(latency)[:64]
    return Profile(batch[kept], context[kept], latency[kept].astype(np.float64))


def prefill_profile(table: CostTable, tokens: int) -> Profile:
    """Random prefill iterations: one prompt of any length, or several within the budget of `tokens`."""
    key = (id(table), tokens)
    if key not in _profiled:
        _profiled[key] = table, _prefill_profile(table, tokens)
    return _profiled[key][1]


_profiled: dict[tuple[int, int], tuple[CostTable, Profile]] = {}  # with the table, so that its id stays its own


def _prefill_profile(table: CostTable, tokens: int) -> Profile:
    draws = np.random.Generator(np.random.Philox(DRAWS + 1))
    rows, most = [], min(PROMPTS, len(table.head_ps) - 1)
    for longest in _log_uniform(draws, LONGEST, SAMPLES // 2).tolist():
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
