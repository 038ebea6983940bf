"""Traces at another rate, kept apart in a mix, and cut into blocks of time for training, validation and test."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.workload.checks import number
from ooco_gym.workload.keyed import check_seed, keyed_generator, scattered
from ooco_gym.workload.trace import NO_SESSION, Trace

SHARES = {"train": 0.7, "validation": 0.15, "test": 0.15}
MOST_BLOCKS = 1_000_000


@dataclass(frozen=True)
class TimeBlock:
    """A block of time: `part` has the requests with `start_s <= arrival_s < end_s`, seconds."""

    part: str
    start_s: float
    end_s: float


def with_own_numbers(traces: Sequence[Trace]) -> list[Trace]:
    """Returns the traces with new numbers for sessions and prefix hashes, so that those of two never agree."""
    told = []
    for i, trace in enumerate(traces):
        session, hashes = trace.session, trace.prefix_hashes
        if session is not None and sum(item.session is not None for item in traces) > 1:
            session = np.where(session == NO_SESSION, NO_SESSION, scattered(session, f"mix/{i}"))
        if hashes is not None and sum(item.prefix_hashes is not None for item in traces) > 1:
            hashes = hashes[0], scattered(hashes[1], f"mix/{i}")
        told.append(replace(trace, session=session, prefix_hashes=hashes))
    return told


def time_blocks(start_s: float, end_s: float, *, block_s: float = 3600.0, gap_s: float = 600.0,
                shares: Mapping[str, float] | None = None, seed: int | None = None) -> list[TimeBlock]:
    """Cuts a span of time into blocks with gaps between, and gives each to a part.

    What lies in a gap belongs to no part, so that no burst shorter than it is seen from two sides. In order of time
    the first blocks go to the first part, and so on, so that what is tested comes after what was trained on; with a
    seed, blocks are drawn at random.

    Args:
        start_s: where the span begins, seconds.
        end_s: where it ends, seconds.
        block_s: length of a block, seconds; what is left over at the end belongs to no part.
        gap_s: length of a gap, seconds.
        shares: of the blocks, by part, relative to each other; 70 % train, 15 % validation, 15 % test unless given.
        seed: None for the order of time.

    Raises:
        UserError: fewer blocks than parts, or an impossible length or share.
    """
    block_s, gap_s = number(block_s, "block_s", above=0.0), number(gap_s, "gap_s", 0.0)
    shares = {part: number(share, f"share of '{part}'", above=0.0) for part, share in (shares or SHARES).items()}
    count = math.floor((end_s - start_s + gap_s) / (block_s + gap_s) + 1e-9)
    if count > MOST_BLOCKS:
        raise UserError(f"block_s={block_s:g} makes {count:,} blocks; at most {MOST_BLOCKS:,}")
    if count < len(shares):
        raise UserError(f"{end_s - start_s:g} s hold {max(count, 0)} blocks of {block_s:g} s with gaps of {gap_s:g} s "
                        f"between, fewer than the {len(shares)} parts {', '.join(shares)}: give a smaller block_s")
    parts = _assigned(count, shares)
    if seed is not None:
        parts = [parts[i] for i in keyed_generator(check_seed(seed), "blocks").permutation(count)]
    starts = [start_s + i * (block_s + gap_s) for i in range(count)]
    return [TimeBlock(part, begin, begin + block_s) for part, begin in zip(parts, starts, strict=True)]


def split(trace: Trace, blocks: Sequence[TimeBlock]) -> dict[str, Trace]:
    """Returns each part's requests, times as they are; a conversation goes with its first turn's block alone.

    Turns of a conversation in another part's block, or in a gap, would give its text away: only those turns are kept
    that lie in a block of the part in which the conversation begins; one that begins in a gap is dropped.
    """
    starts = np.array([block.start_s for block in blocks])
    names = list(dict.fromkeys(block.part for block in blocks))
    part_of = np.array([names.index(block.part) for block in blocks])
    index = np.searchsorted(starts, trace.arrival_s, side="right") - 1
    inside = (index >= 0) & (trace.arrival_s < np.array([block.end_s for block in blocks])[np.maximum(index, 0)])
    part = np.where(inside, part_of[np.maximum(index, 0)], -1)
    if trace.session is not None:
        _, first, number_of = np.unique(trace.session, return_index=True, return_inverse=True)
        part = np.where((trace.session == NO_SESSION) | (part == part[first][number_of]), part, -1)
    return {name: trace.take(part == i).renamed(f"{trace.name}-{name}") for i, name in enumerate(names)}


def _assigned(count: int, shares: Mapping[str, float]) -> list[str]:
    """Returns the part of each of `count` blocks, in order; each part has one at least."""
    total = sum(shares.values())
    edges = np.rint(np.cumsum([share / total for share in shares.values()]) * count).astype(int)
    k = len(edges)
    for i in range(k):
        edges[i] = min(max(edges[i], (edges[i - 1] if i else 0) + 1), count - (k - 1 - i))
    return [part for part, n in zip(shares, np.diff(edges, prepend=0), strict=True) for _ in range(n)]


def scale(trace: Trace, factor: float, seed: int, first_row: int = 0) -> Trace:
    """Returns the trace at `factor` times its rate; the time axis is never stretched or compressed (OOCO 5.1.3).

    Below 1, requests are dropped at random, each with probability `1 - factor`. Above 1, lengths (and SLOs, session,
    prefix hashes) are replicated and the copies' times interpolated: a copy arrives at a random point between its
    original and the next request. With the same seed, the requests of a smaller factor are among those of a larger.

    Args:
        trace: what to scale.
        factor: >= 0, at most 10,000.
        seed: any whole number.
        first_row: position of the trace's first request in a longer trace that it is a part of, so that it is scaled
            as that one would be there.

    Raises:
        UserError: the factor is out of range.
    """
    factor = number(factor, "scale factor", 0.0, 1e4)
    seed = check_seed(seed)
    if factor == 1.0:
        return trace
    n = len(trace)
    gap_s = np.diff(trace.arrival_s, append=trace.arrival_s[-1:]) if n else np.zeros(0)
    rows, times = [], []
    copy = 0
    while copy < factor:
        keep, between = _draws(seed, copy, first_row, n)
        chosen = np.flatnonzero(keep < factor - copy)
        rows.append(chosen)
        times.append(trace.arrival_s[chosen] + (gap_s[chosen] * between[chosen] if copy else 0.0))
        copy += 1
    index = np.concatenate([np.zeros(0, np.int64), *rows])
    arrival_s = np.concatenate([np.zeros(0), *times])
    order = np.argsort(arrival_s, kind="stable")
    return trace.take(index[order], arrival_s[order])


def _draws(seed: int, copy: int, first_row: int, n: int) -> np.ndarray:
    """Returns two uniform numbers for each of n requests from `first_row` on, float64[2, n]."""
    generator = keyed_generator(seed, "scale", copy)
    generator.bit_generator.advance(first_row // 2)     # type: ignore[attr-defined]  # four numbers at a step
    return generator.random((n + first_row % 2, 2))[first_row % 2:].T
