"""How far apart the uses of a prefix are, and what a cache of some size finds of the prompts: the LRU hit-rate curve.

Mattson and others (1970): an LRU cache of C blocks holds a block exactly where fewer than C other blocks were used
since its last use, its *stack distance*. One pass over the requests therefore gives the hit rate at every size. The
distances are counted with a Fenwick tree over the times of last uses (as Bennett and Kruskal, 1975, and Olken, 1981,
do with other trees), n log n for n block uses.

A request looks up all its blocks before it uses any, and uses its last block first, as engines free a finished
request's blocks: so a block always outlives those that follow it in the prompt, and what is found is a prefix.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import types

from ooco_gym.compile import jit
from ooco_gym.workload.sharing import block_tokens_of
from ooco_gym.workload.trace import Hashes, Trace

NEVER = -1
CURVE_TOKENS = tuple(int(2**i * 65_536) for i in range(14))
"""Sizes of caches that curves are printed at: 64 Ki to 512 Mi tokens."""


def stack_distances(hashes: Hashes) -> np.ndarray:
    """Returns how many other blocks were used since the last use of each block, int64[blocks]; -1 at its first use.

    Args:
        hashes: (offsets int64[n+1], values int64[blocks]), as `Trace.prefix_hashes`.
    """
    offsets, values = hashes
    known, numbers = np.unique(values, return_inverse=True)
    found = np.full(len(numbers), NEVER, np.int64)
    _distances(np.ascontiguousarray(offsets, np.int64), np.ascontiguousarray(numbers, np.int64),
               np.zeros(len(numbers) + 1, np.int64), np.full(len(known), NEVER, np.int64), found)
    return found


@jit(types.void(*[types.int64[::1]] * 5))
def _distances(offsets, numbers, tree, last, found):
    """Fills `found`; `numbers` are the blocks' from 0 on.

    `tree` counts, of the uses so far, those that are their block's last; `last` says when each block was used last.
    """
    n = len(numbers)
    used, living = 0, 0
    for request in range(len(offsets) - 1):
        for block in range(offsets[request], offsets[request + 1]):
            place = last[numbers[block]] + 1
            if place > 0:
                earlier = 0
                while place > 0:
                    earlier += tree[place]
                    place -= place & -place
                found[block] = living - earlier
        for block in range(offsets[request + 1] - 1, offsets[request] - 1, -1):
            place = last[numbers[block]] + 1
            living += 1
            if place > 0:
                living -= 1
                while place <= n:
                    tree[place] -= 1
                    place += place & -place
            last[numbers[block]] = used
            used += 1
            place = used
            while place <= n:
                tree[place] += 1
                place += place & -place


def hit_rates(trace: Trace, cache_tokens: Sequence[float]) -> list[float] | None:
    """Returns the share of prompt tokens that LRU caches of such sizes hold, for a cache that all requests share.

    It begins empty, holds prompts only, and each request's whole prompt at once: outputs and running requests, which
    take memory too, are not in it. An endless cache finds `sharing_ratio`.

    Args:
        trace: with prefix hashes; the last block of a prompt may be shorter, but takes a whole one.
        cache_tokens: sizes; whole blocks of them count.

    Returns:
        One share for each size, or None without hashes.
    """
    if trace.prefix_hashes is None or len(trace.prefix_hashes[1]) == 0:
        return None
    distance = stack_distances(trace.prefix_hashes)
    tokens = block_tokens_of(trace)
    seen = np.flatnonzero(distance != NEVER)
    order = seen[np.argsort(distance[seen], kind="stable")]
    found = np.concatenate([[0], np.cumsum(tokens[order])])
    blocks = np.floor(np.asarray(cache_tokens, np.float64) / trace.block_tokens)
    held = found[np.searchsorted(distance[order], blocks, side="left")]
    return [float(share) for share in held / trace.prompt_tokens.sum(dtype=np.int64)]


def curve_sizes(trace: Trace) -> list[int]:
    """Returns the sizes in tokens at which a trace's curve is worth a figure: up to one that holds all its blocks."""
    assert trace.prefix_hashes is not None
    whole = trace.block_tokens * len(np.unique(trace.prefix_hashes[1]))
    sizes = [size for size in CURVE_TOKENS if size < whole]
    return [*sizes, *CURVE_TOKENS[len(sizes):len(sizes) + 1]]
