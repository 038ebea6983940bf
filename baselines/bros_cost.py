"""BROS's cost model (arXiv 2504.09590, 4.1): a line in L^n and L^n L^a for each phase, fitted to profiled batches.

`t_exec = (a0 L^n + a1 L^n L^a + b)` for all prompts of an iteration together (L^a = L^n, as nothing of them is cached)
plus the same form for all its decodes (L^n requests, L^a tokens of context in all); `t_swap` is linear in what has to
come back from host memory (profiling the link finds its bandwidth and no base); an iteration takes the longer of both.
The paper samples sequence lengths "at exponential intervals of 2" up to context length times largest batch. Ours:
batches that do not fit the KV memory are left out, and the fit is of relative errors (of absolute ones, the largest
batches alone would count). L^n L^a of a batch is the product of its sums, as (3) and (4) say; attention's work is
rather the sum of the requests' own products, so `by_request` has that form to compare with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ooco_gym.perf import CostTable, mixed_latency_ps

NAMES = ("prefill_linear", "prefill_product", "prefill_base", "decode_linear", "decode_product", "decode_base")


def powers_of_two(most: int) -> list[int]:
    """1, 2, 4, … up to `most`."""
    return [1 << i for i in range(max(1, int(most)).bit_length())]


def batches(table: CostTable, context_tokens: int, max_batch: int, block_tokens: int = 16) -> list[tuple[int, int]]:
    """Profiled batches: (sequences, tokens of each), both powers of two, what fits the KV memory.

    Args:
        table: the instance's cost table.
        context_tokens: the model's longest sequence.
        max_batch: most sequences.
        block_tokens: tokens of a KV block.
    """
    room = table.kv_blocks * block_tokens
    return [(size, tokens) for size in powers_of_two(max_batch) for tokens in powers_of_two(context_tokens)
            if size * tokens <= room]


def iteration_ps(table: CostTable, prefills: Sequence[int], decodes: Sequence[int]) -> float:
    """What an iteration truly takes: prompts of these lengths, and decodes at these context lengths. In ps."""
    return float(mixed_latency_ps(table, [list(prefills)], 0, [len(decodes)], [sum(decodes)])[0])


def fit(table: CostTable, context_tokens: int, max_batch: int, *, by_request: bool = False) -> dict[str, float]:
    """Fits the six coefficients of t_exec, times in ps.

    Args:
        table: the instance's cost table.
        context_tokens: the model's longest sequence.
        max_batch: most sequences of a batch, at most what the table knows.
        by_request: L^n L^a is summed over requests.

    Returns:
        A value for each of `NAMES`.
    """
    profiled = batches(table, context_tokens, min(max_batch, len(table.decode_lines) - 1))
    prefill = [(size * tokens, size * tokens * (tokens if by_request else size * tokens),
                iteration_ps(table, [tokens] * size, [])) for size, tokens in profiled]
    decode = [(size, size * tokens * (1 if by_request else size), iteration_ps(table, [], [tokens] * size))
              for size, tokens in profiled]
    found = [*_least_squares(prefill), *_least_squares(decode)]
    return dict(zip(NAMES, found, strict=True))


def _least_squares(samples: Sequence[tuple[int, int, float]]) -> list[float]:
    """a0, a1 and b of one phase from (L^n, L^n L^a, ps): none negative, as each is a cost."""
    from scipy.optimize import nnls

    new, product, ps = (np.array(column, np.float64) for column in zip(*samples, strict=True))
    terms = np.stack([new, product, np.ones(len(new))], axis=1) / ps[:, None]
    scale = terms.max(axis=0)
    return [float(value) for value in nnls(terms / scale, np.ones(len(ps)))[0] / scale]


def predict_ps(model: Mapping[str, float], prefills: Sequence[int], decodes: Sequence[int], swapped: int = 0, *,
               by_request: bool = False) -> float:
    """C(L^n, L^a, M^cpu) of an iteration, in ps. `swapped`: tokens that come back from host memory."""
    new, count, context = sum(prefills), len(decodes), sum(decodes)
    executed = 0.0
    if new:
        product = sum(one * one for one in prefills) if by_request else new * new
        executed += model["prefill_linear"] * new + model["prefill_product"] * product + model["prefill_base"]
    if count:
        product = context if by_request else count * context
        executed += model["decode_linear"] * count + model["decode_product"] * product + model["decode_base"]
    return max(executed, model.get("swap_linear", 0.0) * swapped)


def mape(table: CostTable, model: Mapping[str, float], drawn: Sequence[tuple[Sequence[int], Sequence[int]]],
         **form: bool) -> float:
    """Mean absolute relative error of the model over iterations of (prompts, contexts of decodes)."""
    errors = [abs(predict_ps(model, *one, **form) / iteration_ps(table, *one) - 1.0) for one in drawn]
    return float(np.mean(errors))


def draw(rng: np.random.Generator, count: int, *, prompts: tuple[int, int] = (16, 1024), most_prompts: int = 4,
         contexts: tuple[int, int] = (16, 2048), most_decodes: int = 128) -> list[tuple[list[int], list[int]]]:
    """Random iterations to judge the model on: up to `most_prompts` prompts beside up to `most_decodes` decodes."""
    drawn: list[tuple[list[int], list[int]]] = []
    while len(drawn) < count:
        mine = rng.integers(prompts[0], prompts[1] + 1, rng.integers(0, most_prompts + 1)).tolist()
        others = rng.integers(contexts[0], contexts[1] + 1, rng.integers(0, most_decodes + 1)).tolist()
        if mine or others:
            drawn.append((mine, others))
    return drawn


def coefficients(facts: Any, context_tokens: int, *, by_request: bool) -> dict[str, float]:
    """The six coefficients for what a policy is prepared with (`sim.build.Facts`), in ps."""
    return fit(facts.strict, context_tokens, facts.max_batch, by_request=by_request)
