"""How long an iteration takes, and how a schedule is written down: both sides import this; it needs NumPy alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

SHARED = ("together", "shared_launch", "per_chunk", "chain", "chain_exponent", "chunk_skew", "chunk_skew_batch",
          "decode_skew", "decode_skew_batch")
"""Fields of the simulator's TABLE on decodes that share a kernel with chunks, and on contexts of different lengths."""


def steady(value: float) -> float:
    """As `ooco_gym.rounding.steady`."""
    return float(np.float32(value))


class Clock:
    """Latency of iterations.

    Args:
        tables: `decode_lines` and `attention_lines` int64[batch, 4], `prefill_ps` int64[tokens], `head_ps`
            int64[batch], `attention_grid` float64[rows, columns], and the fields of the simulator's TABLE.
    """

    def __init__(self, tables: Mapping[str, Any]) -> None:
        self._decode = [tuple(map(int, row)) for row in tables["decode_lines"]]
        self._attention = [tuple(map(int, row)) for row in tables["attention_lines"]]
        self._dense = [int(value) for value in tables["prefill_ps"]]
        self._head = [int(value) for value in tables["head_ps"]]
        self._grid = np.asarray(tables["attention_grid"]).tolist()
        self._slope = int(tables["prefill_slope_ps"])
        self._tile, self._measured = int(tables["tile"]), bool(tables["measured"])
        self._roofs, self._linear = np.asarray(tables["roofs"]).tolist(), np.asarray(tables["linear"]).tolist()
        self._launch, self._critical = float(tables["launch"]), float(tables["critical"])
        self._exponent, self._causal = float(tables["exponent"]), float(tables["causal"])
        shared = {name: float(tables.get(name, 0.0)) for name in SHARED}  # nothing: recorded when times were added
        self._together, self._shared_launch, self._per_chunk = (shared[name] for name in SHARED[:3])
        self._chain, self._chain_exponent, self._chunk_skew, self._chunk_skew_batch = (
            shared[name] for name in SHARED[3:7])
        self._decode_skew, self._decode_skew_batch = (shared[name] for name in SHARED[7:])

    def iteration_ps(self, scheduled: Iterable[tuple[int, int, int]]) -> int:
        """Latency of an iteration in ps.

        Args:
            scheduled: of each request in the order in which they run: new tokens, tokens in memory with the new ones,
                and length (prompt and what it has generated).
        """
        total, sampled, decodes, decode_context, longest = 0, 0, 0, 0, 0
        prompts, rows, work, context, far = 0, 0, 0.0, 0, 0
        for new, reach, length in scheduled:
            total += new
            sampled += reach == length
            if new == 1:
                decodes += 1
                decode_context += reach
                longest = max(longest, reach)
                continue
            padded = -(-new // self._tile) * self._tile
            prompts += 1
            rows += padded
            work += float(padded) * (reach - self._causal * new)
            context += reach
            far = max(far, reach)
        if prompts == 0:
            return self._skewed_decode(decodes, decode_context, longest)
        alone = self._prefill_attention(work, float(rows), float(context), float(prompts))
        last = len(self._dense) - 1
        dense = self._dense[min(total, last)] + max(0, total - last) * self._slope
        attention = self._attention_together(alone, (total - decodes) / prompts, far, decodes, decode_context, longest)
        return dense + self._head[sampled] + attention

    def _skewed_decode(self, decodes: int, context: int, longest: int) -> int:
        latency = _highest(self._decode[decodes], context)
        if self._decode_skew == 0.0 or decodes < self._decode_skew_batch:
            return latency
        return latency + round(self._decode_skew * (longest - context / decodes))

    def _attention_together(self, alone: float, chunk: float, reach: int, decodes: int, context: int,
                            longest: int) -> int:
        work = _highest(self._attention[decodes], context)
        if not self._together:
            return round(alone) + work
        if decodes == 0:
            return round(alone)
        mean = context / decodes
        inside = max(alone - self._shared_launch, 0.0) + work + self._per_chunk * decodes * chunk
        chain = self._chain * mean
        largest = max(inside, chain, 1.0)
        exponent = self._chain_exponent
        inside = largest * steady((1.0 + steady((min(inside, chain) / largest) ** exponent)) ** (1.0 / exponent))
        beyond = max(longest - max(mean, reach), 0.0)
        skew = self._chunk_skew * min(decodes / self._chunk_skew_batch, 1.0) * beyond
        return round(self._shared_launch + inside + skew)

    def _prefill_attention(self, work: float, rows: float, context: float, prompts: float) -> float:
        if self._measured:
            return self._looked_up(work, rows, prompts)
        terms = [max(0.0, roof[0] * work + roof[1] * rows + roof[2] * context + roof[3] * prompts)
                 for roof in self._roofs] + [self._critical * context / prompts]
        largest = max(terms)
        if self._exponent < math.inf and largest > 0.0:
            norm = sum(steady((one / largest) ** self._exponent) for one in terms)
            largest *= steady(norm ** (1.0 / self._exponent))
        linear = self._linear
        return (self._launch + linear[0] * work + linear[1] * rows + linear[2] * context + linear[3] * prompts
                + largest)

    def _looked_up(self, work: float, rows: float, prompts: float) -> float:
        grid = self._grid
        row = min(max(2.0 * steady(math.log2(max(rows / prompts, 1.0))), 0.0), len(grid) - 1.001)
        column = min(max(2.0 * steady(math.log2(max(work / rows, 1.0))), 0.0), len(grid[0]) - 1.001)
        i, j = int(row), int(column)
        u, v = row - i, column - j
        lower = grid[i][j] + v * (grid[i][j + 1] - grid[i][j])
        upper = grid[i + 1][j] + v * (grid[i + 1][j + 1] - grid[i + 1][j])
        return prompts * steady(2.0 ** (lower + u * (upper - lower)))


def _highest(lines: tuple[int, ...], context: int) -> int:
    return max(lines[0] + lines[1] * context, lines[2] + lines[3] * context)


FIELDS = ("start_ps", "end_ps", "change_step", "change_slot", "change_tokens", "preempted_step", "preempted_slot")


class Steps:
    """Collects steps. Times are in picoseconds."""

    def __init__(self) -> None:
        self._times: list[tuple[int, int]] = []
        self._changes: list[tuple[int, int, int]] = []
        self._preempted: list[tuple[int, int]] = []
        self._last: dict[int, int] = {}

    def add(self, start_ps: int, end_ps: int, given: Mapping[int, int], preempted: Iterable[int]) -> None:
        """Adds a step.

        Args:
            start_ps: when it begins.
            end_ps: when it ends.
            given: new tokens (> 0) of each request that is scheduled, by its slot.
            preempted: slots of those that lost their memory since the step before, each as often as it did.
        """
        step = len(self._times)
        self._times.append((start_ps, end_ps))
        last = self._last
        changed = {slot: tokens for slot, tokens in given.items() if last.get(slot) != tokens}
        changed.update((slot, 0) for slot in last if slot not in given)
        self._changes += [(step, slot, changed[slot]) for slot in sorted(changed)]
        self._preempted += [(step, slot) for slot in sorted(preempted)]
        self._last = dict(given)

    def arrays(self) -> dict[str, np.ndarray]:
        """`FIELDS`: times int64[steps], changes (step, slot, tokens; 0: no longer scheduled), preemptions."""
        times = np.array(self._times, np.int64).reshape(-1, 2)
        changes = np.array(self._changes, np.int32).reshape(-1, 3)
        preempted = np.array(self._preempted, np.int32).reshape(-1, 2)
        return dict(zip(FIELDS, (*times.T, *changes.T, *preempted.T), strict=True))
