"""Latency models of an engine's iterations: fitted to a measurement of the engine, or learned while it serves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numba import typeof, types

from ooco_gym.compile import jit
from ooco_gym.compile.references import Handle, layout, reference_at
from ooco_gym.perf.deployment import Deployment
from ooco_gym.perf.engine_clock import EngineClock
from ooco_gym.perf.latency import PS_PER_S, empty_tables, latency_of
from ooco_gym.perf.table import CostTable, cost_table, fill, mixed_latency_ps
from ooco_gym.perf.terms import GROUPS, GUESS, Terms, curve

_TOKENS, _BATCH = 8192, 256  # lengths of a prior's curves; linear beyond
CERTAIN = 3
"""Weight of the prior in the level of `Learned`, in iterations."""
_FADES, _DISTURBED, _FARTHEST = 0.75, 4.0, 100.0
_RIDGE, _ROUNDS, _FAR = 0.5, 4, 1.5

Sums = tuple[int, ...]
"""An iteration's sums, as `Belief.add` counts them; the first entry is the number of new tokens."""


class Asked(NamedTuple):
    """Tables of groups of terms (`perf.latency.Tables`), an iteration's ten sums, and its latency by group, in ps."""

    decode_lines: np.ndarray
    attention_lines: np.ndarray
    prefill_ps: np.ndarray
    head_ps: np.ndarray
    shared_ps: np.ndarray
    attention_grid: np.ndarray
    tables: np.ndarray
    sums: np.ndarray
    found: np.ndarray


def _asked(batch: int, tokens: int) -> Asked:
    return Asked(*empty_tables(batch, tokens, tables=len(GROUPS)), np.zeros(10), np.zeros(len(GROUPS)))


_asked_at, _LAYOUT = reference_at(typeof(_asked(1, 1))), layout(_asked(1, 1))


@jit(types.void(types.int64))
def _by_group(address):
    asked = _asked_at(address)
    for group in range(asked.found.size):
        asked.found[group] = latency_of(asked, group, asked.sums)


class Belief:
    """Latency model of iterations: a sum of terms, computed from cost tables as the simulator's latencies are.

    The sums are new tokens, requests that generate one, decodes and their contexts, prompts and
    their contexts, and new tokens times context. A single new token counts as a decode.

    Attributes:
        terms: replaced as a belief is learned.
    """

    none: Sums = (0, 0, 0, 0, 0, 0, 0)

    def __init__(self, terms: Terms) -> None:
        self.terms = self._prior = terms
        self._factors, self._batch = np.ones(len(GROUPS)), 0
        self._room(256)

    def _room(self, batch: int) -> None:
        """Makes tables of each group of terms by itself, for batches of up to `batch` requests."""
        if batch > self._batch:
            self._batch = 2 * batch
            self._asked = _asked(self._batch, self._prior.tokens)
            self._handle = Handle(self._asked, _LAYOUT)
            for row, part in enumerate(self._prior.parts()):
                fill(self._asked, row, part.table(self._batch))

    def add(self, sums: Sums, new: int, reach: int, whole: bool) -> Sums:
        """Adds a request of `new` tokens, its context `reach`, and `whole`: whether it generates a token."""
        tokens, sampled, decodes, decode_context, prompts, context, work = sums
        if new == 1:
            return tokens + 1, sampled + whole, decodes + 1, decode_context + reach, prompts, context, work
        return (tokens + new, sampled + whole, decodes, decode_context, prompts + 1, context + reach,
                work + new * reach)

    def latency(self, sums: Sums) -> float:
        return float(self._factors @ self.parts(sums)) if sums[0] else 0.0

    def parts(self, sums: Sums) -> np.ndarray:
        """Returns the seconds of each of `GROUPS` before anything was learned, float64[groups], of a non-empty
        iteration."""
        tokens, sampled, decodes, decode_context, prompts, context, work = sums
        self._room(max(sampled, decodes))
        self._asked.sums[:] = (tokens, sampled, decodes, decode_context, 0, prompts, tokens - decodes, work, context, 0)
        _by_group(self._handle.address)
        return self._asked.found / PS_PER_S

    def fill(self, state: Any) -> None:
        """Writes the terms into a simulator's state, as its only cost table."""
        fill(state, 0, self.terms.table(state.head_ps.shape[1] - 1))


class Learned(Belief):
    """A prior whose groups of terms are scaled by factors fitted to observed iterations.

    The factors' common level is the median of observed over predicted latency, where `CERTAIN`
    iterations count as exactly predicted. Relative errors are then fitted by least squares with a
    ridge towards that level; outliers (graph capture, a busy machine) have little weight.

    Args:
        prior: terms before any observation; None: a model of 8 billion parameters on a large GPU.
        memory: number of remembered iterations.
        every: most iterations between two fits; the first fits come sooner.

    Attributes:
        seen: iterations so far.
    """

    def __init__(self, prior: Terms | None = None, memory: int = 512, every: int = 50) -> None:
        super().__init__(prior or GUESS)
        self.seen, self._every, self._next = 0, every, 1
        self._rows, self._seconds = np.zeros((memory, len(GROUPS))), np.zeros(memory)
        self._row, self._took_s = np.zeros(len(GROUPS)), 0.0

    def observe(self, sums: Sums, seconds: float, follows: bool = False) -> None:
        """Records an iteration's latency.

        Args:
            sums: of the iteration.
            seconds: from the previous iteration's end, or its own beginning, to its end.
            follows: it was scheduled while the previous one ran. The host sees ends with varying
                delay, so one iteration's excess is the next one's deficit. Such iterations are
                pooled with the ones before, each weighted `_FADES` times the next.
        """
        if sums[0] == 0 or not 0.0 < seconds < math.inf:
            return
        row, kept = self.parts(sums), _FADES if follows else 0.0
        disturbed = seconds > _DISTURBED * self.latency(sums)
        if disturbed:
            kept = 0.0
        self._row, self._took_s = kept * self._row + row, kept * self._took_s + seconds
        place = self.seen % len(self._rows)
        self._rows[place], self._seconds[place] = self._row, self._took_s
        if disturbed:
            self._row, self._took_s = np.zeros(len(GROUPS)), 0.0
        self.seen += 1
        if self.seen >= self._next:
            self._next = self.seen + min(self._every, 1 + self.seen // 10)
            self._fit()

    def _fit(self) -> None:
        rows, seconds = self._rows[: self.seen], self._seconds[: self.seen]
        ratios = np.concatenate([np.ones(CERTAIN), seconds / rows.sum(axis=1)])
        level = min(max(float(np.median(ratios)), 1.0 / _FARTHEST), _FARTHEST)
        for _ in range(_ROUNDS):
            believed = rows @ self._factors
            shares, ratio = level * rows / believed[:, None], seconds / believed
            weighed = shares.T / (1.0 + ((ratio - 1.0) / _FAR) ** 2)
            ridge = _RIDGE * np.maximum(shares.mean(axis=0), 0.02) + CERTAIN / (1.0 + self.seen)
            found = np.linalg.solve(weighed @ shares + np.diag(ridge), weighed @ ratio + ridge)
            self._factors = level * np.clip(found, 1.0 / _FARTHEST, _FARTHEST)
        self.terms = self._prior.scaled(self._factors.tolist())


def prior_of(values: Mapping[str, Any]) -> Terms:
    """Returns the terms of a deployment, such as {chip: h100, model: llama_3_1_8b, timing:
    extended}, and `engine_clock`.

    They are exact for 32 decodes and for a prompt of 512 tokens alone; elsewhere they deviate as
    far as kernel times are no sums of terms.

    Raises:
        UserError: an unknown key or name, or weights that do not fit.
    """
    deployment = {key: value for key, value in values.items() if key != "engine_clock"}
    clock = EngineClock.load(values.get("engine_clock"))
    table = cost_table(Deployment.from_config(deployment), _BATCH, _TOKENS)
    dense = np.maximum(table.prefill_ps - table.prefill_ps[1], 0) / PS_PER_S
    sequence = max(0.0, float(table.head_ps[-1] - table.head_ps[1]) / PS_PER_S / (_BATCH - 1))
    near, far = (_seconds(table, decodes=32, context=32 * each) for each in (512, 2048))
    context = (far - near) / (32 * 1536)
    step = max(0.0, near - float(dense[32]) - 32 * sequence - context * 32 * 512)
    short, long = (_seconds(table, new=512, before=before) for before in (0, 4096))
    work = (long - short) / (512 * 4096)
    pieces = max(0.0, short - step - float(dense[512]) - sequence - work * 512 * 512)
    pieces += max(0.0, clock.prefill_s - clock.decode_s)
    step += clock.decode_s + (0.0 if clock.async_scheduling else clock.schedule_s)
    return Terms(step, pieces, sequence + clock.sequence_s, 0.0, work, 0.0, context,
                 curve(range(len(dense)), dense + clock.prefill_token_s * np.arange(len(dense))),
                 curve((0, 1), (0.0, 0.0)))


def _seconds(table: CostTable, new: int = 0, before: int = 0, decodes: int = 0, context: int = 0) -> float:
    return float(mixed_latency_ps(table, [[new]], [[before]], [decodes], [context])[0]) / PS_PER_S
