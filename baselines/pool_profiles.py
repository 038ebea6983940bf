"""Batches of one kind, as prefill and decode instances run them, with their latencies: what predictors are fitted on.

HyGen (4.2) and Echo (5.2) profile the hardware before they are deployed; here the hardware is a cost table. Batch
sizes are drawn log-uniformly, mean contexts within a factor of 4 of the workload's; steps that do not fit the memory,
or take more than twice the SLO, are left out: nothing of the kind is scheduled.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ooco_gym.perf import CostTable
from ooco_gym.perf.table import prefill_alone_ps, prefill_latency_ps

DRAWS = 0x48794765  # key of the draws: a profile is the same in every run
LONGEST = 16_384  # tokens of one request
SAMPLES = 4096
SPAN = 4.0  # mean contexts from the workload's divided by this to the workload's times this
PROMPTS = 8  # most prompts in a profiled prefill batch


class DecodeProfile(NamedTuple):
    """Decode steps: sizes [n], context lengths summed and the longest of each [n] in tokens, latencies [n] in ps."""

    batch: np.ndarray
    context: np.ndarray
    longest: np.ndarray
    latency_ps: np.ndarray


class PrefillProfile(NamedTuple):
    """Prefill iterations: prompts [n], new tokens in all [n], latencies [n] in ps."""

    prompts: np.ndarray
    tokens: np.ndarray
    latency_ps: np.ndarray


def _log_uniform(draws: np.random.Generator, most: float, size: int) -> np.ndarray:
    return np.exp(draws.uniform(0.0, np.log(most + 1.0), size)).astype(np.int64)


def decode_profile(table: CostTable, most_ps: float, mean_context: float, max_batch: int,
                   block_tokens: int = 16) -> DecodeProfile:
    """Random decode steps of at most `most_ps` around a mean context, on the chip of a table, that fit its memory."""
    draws = np.random.Generator(np.random.Philox(DRAWS))
    rows = []
    room, batches = table.kv_blocks * block_tokens, _log_uniform(draws, max_batch - 1, 2 * SAMPLES)
    means = mean_context * SPAN ** draws.uniform(-1.0, 1.0, 2 * SAMPLES)
    for batch, mean in zip(batches.tolist(), means.tolist(), strict=True):
        lengths = np.maximum(1.0, mean * draws.lognormal(-0.32, 0.8, batch))  # of that mean, as spread as in traces
        rows.append((batch, int(lengths.sum()), int(lengths.max())))
    batch, context, longest = np.array(rows, np.int64).T
    lines = table.decode_lines[batch]
    latency = np.maximum(lines[:, 0] + lines[:, 1] * context, lines[:, 2] + lines[:, 3] * context)
    kept = (context <= room) & (latency <= most_ps)
    if np.count_nonzero(kept) < 16:  # an SLO that only the smallest batches keep: profile what there is
        kept = np.argsort(latency)[:64]
    return DecodeProfile(batch[kept], context[kept], longest[kept], latency[kept].astype(np.float64))


def prefill_profile(table: CostTable, tokens: int) -> PrefillProfile:
    """Random prefill iterations: one prompt of any length, or several within the budget of `tokens`."""
    draws = np.random.Generator(np.random.Philox(DRAWS + 1))
    rows = []
    for longest in _log_uniform(draws, LONGEST, SAMPLES // 2).tolist():
        prompts = [longest]
        for more in _log_uniform(draws, LONGEST, PROMPTS - 1).tolist():
            if sum(prompts) + more <= tokens:
                prompts.append(more)
        rows.append((len(prompts), sum(prompts), prefill_latency_ps(table, [(one, one) for one in prompts])))
    prompts, total, latency = np.array(rows, np.int64).T
    return PrefillProfile(prompts, total, latency.astype(np.float64))


def alone(table: CostTable, lengths: np.ndarray) -> np.ndarray:
    """Latencies of prompts prefilled each alone, float64[n] in ps."""
    return np.asarray(prefill_alone_ps(table, lengths), np.float64)
