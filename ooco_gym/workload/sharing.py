"""Prompts with shared prefixes: conversations of several turns, questions on documents, few-shot
evaluation.

A prompt is cut into blocks of 512 tokens, of which the last may be shorter. Each block has a hash
of the prompt up to its end (Mooncake's `hash_ids`). The *sharing ratio* is the share of prompt
tokens in blocks seen before: the hit rate of an infinite prefix cache.

Sessions of conversations begin by the arrival process at its rate over the mean number of turns;
turns follow at exponential or lognormal intervals. A session's prompts are drawn from the
workload's lengths, with a given correlation, and sorted, so that each turn's prompt can contain the
previous one and all prompts together keep those lengths. The number of turns is geometric (40 at
most), with the mean that gives the sharing ratio. Intervals and correlation determine how many
other blocks are used between two uses of a prefix, hence the hit rate of a finite cache.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, Literal

import numpy as np

from ooco_gym.errors import nearest
from ooco_gym.rounding import steady
from ooco_gym.schema import Model, Range, at, demand
from ooco_gym.workload.arrivals import BLOCK_S, Arrivals, draw_requests, let_in
from ooco_gym.workload.keyed import keyed_generator, keyed_uniform, scattered
from ooco_gym.workload.lengths import LengthModel
from ooco_gym.workload.trace import BLOCK_TOKENS, Hashes, Trace

GROUPS = {"documents": 1000, "few_shot": 57}        # 57: the tasks of MMLU
ZIPF = {"documents": 0.8, "few_shot": 0.0}
MOST_TURNS = 40
MOST_MEAN_TURNS = MOST_TURNS / 2
KEPT = 64  # size of the cache of `_turns`
MOST_ALIKE = 0.98       # correlation of a session's prompts
_LONGEST = 2.0 * MOST_TURNS     # longest session in think times; 40 turns exceed it once in ten million
_SESSIONS, _STEP = 32, 4        # with correlated prompts: quantiles of the common factor; grid points merged
_GRID = (np.arange(4000) + 0.5) / 4000


@dataclass(frozen=True)
class Groups(Model):
    """Requests whose prompts begin with the text of one of many groups: a document, or a task's examples.

    Attributes:
        ratio: share of a prompt's tokens that are its group's text, the mean of each group.
        groups: their number.
        zipf: group k is chosen in proportion to `(k + 1) ** -zipf`; 0: all equally.
    """

    form: Literal["documents", "few_shot"]
    ratio: Annotated[float, Range(0.01, 0.99)]
    groups: Annotated[int, Range(1, 10_000_000)]
    zipf: Annotated[float, Range(0, 5)]

    def prompts(self, lengths: LengthModel, numbers: np.ndarray, seed: int,
                stream: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns (prompt tokens int32[n], blocks shared with the group int64[n], group int64[n])."""
        generator = keyed_generator(seed, f"{stream}/groups")
        uniform, normal = generator.random(self.groups), generator.standard_normal(self.groups)
        whole = lengths.prompt.drawn(uniform, normal)
        blocks = np.maximum(1, np.rint(self.ratio * whole / BLOCK_TOKENS)).astype(np.int64)
        weights = np.cumsum(steady((np.arange(self.groups) + 1.0) ** -self.zipf))
        turn = keyed_uniform(numbers, seed, f"{stream}/group")
        group = np.searchsorted(weights / weights[-1], turn, side="right")
        own = blocks[group] * BLOCK_TOKENS * (1 - self.ratio) / self.ratio
        question = np.maximum(1, np.rint(own * (0.5 + keyed_uniform(numbers, seed, f"{stream}/question"))))
        return (blocks[group] * BLOCK_TOKENS + question).astype(np.int32), blocks[group], group


def parse_groups(values: Mapping[str, Any], where: str) -> Groups:
    """Reads `{form: documents | few_shot, ratio, groups, zipf}`; the last two have defaults."""
    given = {key: value for key, value in values.items() if value is not None}
    return Groups.read({"groups": GROUPS[given["form"]], "zipf": ZIPF[given["form"]], **given}, where)


def form_of(values: Any, where: str, known: Collection[str]) -> str:
    """Returns the form of sharing that a mapping names, of those known."""
    form = values.get("form") if isinstance(values, Mapping) else None
    demand(form in known, at(where, "form"), form, f"one of {', '.join(known)}{nearest(str(form), known)}")
    return str(form)


def hash_blocks(prompt_tokens: np.ndarray, shared_blocks: np.ndarray, group: np.ndarray, own: np.ndarray,
                salt: str, common_blocks: int = 0) -> Hashes:
    """Returns the block hashes of prompts that begin with their group's text and continue with their own.

    Args:
        prompt_tokens: int[n].
        shared_blocks: int[n], number of each prompt's blocks that are the group's.
        group: int64[n], each prompt's group.
        own: int64[n], a unique number for each request.
        salt: purpose of the hashes; another salt gives other hashes.
        common_blocks: number of first blocks that all prompts share, such as a system prompt.

    Returns:
        (offsets int64[n+1], values int64 >= 0), as `Trace.prefix_hashes`.
    """
    counts = -(-prompt_tokens.astype(np.int64) // BLOCK_TOKENS)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    position = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
    owner = np.where(position < np.repeat(shared_blocks, counts), np.repeat(scattered(group, f"{salt}/group"), counts),
                     np.repeat(scattered(own, f"{salt}/own"), counts))
    whole = position < np.repeat(prompt_tokens.astype(np.int64) // BLOCK_TOKENS, counts)
    owner = np.where((position < common_blocks) & whole, 0, owner)
    return offsets, scattered(owner + position * 0x9E3779B9, salt)


def sharing_ratio(trace: Trace) -> float | None:
    """Returns the share of prompt tokens in blocks whose hash an earlier request had; None without hashes."""
    if trace.prefix_hashes is None or len(trace.prefix_hashes[1]) == 0:
        return None
    return float(shared_tokens(trace).sum() / trace.prompt_tokens.sum(dtype=np.int64))


def shared_tokens(trace: Trace) -> np.ndarray:
    """Returns each prompt's tokens in blocks whose hash an earlier request had, int64[n]; 0 without hashes."""
    offsets, values = trace.prefix_hashes or (np.zeros(len(trace) + 1, np.int64), np.zeros(0, np.int64))
    seen = np.ones(len(values) + 1, bool)
    seen[np.unique(values, return_index=True)[1]] = False
    tokens = block_tokens_of(trace) if len(values) else values
    return np.diff(np.concatenate([[0], np.cumsum(tokens * seen[:-1])])[offsets])


def block_tokens_of(trace: Trace) -> np.ndarray:
    """Returns the number of prompt tokens in each block of a trace with prefix hashes, int64[blocks]."""
    assert trace.prefix_hashes is not None
    offsets, _ = trace.prefix_hashes
    counts = np.diff(offsets)
    position = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
    left = np.repeat(trace.prompt_tokens.astype(np.int64), counts) - position * trace.block_tokens
    return np.clip(left, 0, trace.block_tokens)


@dataclass(frozen=True)
class Chat:
    """Conversations.

    Attributes:
        ratio: share of prompt tokens seen before, in the long run; NaN with `returns`.
        think_s: mean seconds from a turn to the next: after the first, the second, …; the last one after all others.
        common_blocks: first blocks of 512 tokens that all conversations share.
        mean_turns: mean turns of a session without the limit `MOST_TURNS`, which gives that ratio.
        think_sigma: standard deviation of the logarithm of lognormal intervals between turns; 0:
            exponential intervals.
        correlation: of the normal scores of a session's prompt lengths; 0: independent.
        returns: probability that a turn is not the last: the first, the second, …; the last one of all others. Empty:
            one for all turns, by `mean_turns`.
    """

    ratio: float
    think_s: tuple[float, ...]
    common_blocks: int
    mean_turns: float
    think_sigma: float = 0.0
    correlation: float = 0.0
    returns: tuple[float, ...] = ()

    @property
    def turns(self) -> float:
        """Mean turns of a session with the limit `MOST_TURNS`."""
        if self.returns:
            return 1.0 + float(self._reached().sum())
        return self.mean_turns * (1 - (1 - 1 / self.mean_turns) ** MOST_TURNS)

    @property
    def longest_s(self) -> float:
        """Seconds after a session's first turn beyond which turns are dropped."""
        return _LONGEST * max(self.think_s)

    def _reached(self) -> np.ndarray:
        """Probability that a session has a second turn, a third, …: float64[MOST_TURNS - 1]."""
        later = max(0, MOST_TURNS - 1 - len(self.returns))
        return np.cumprod(np.concatenate([self.returns, np.full(later, self.returns[-1])])[:MOST_TURNS - 1])

    def draw(self, arrivals: Arrivals, lengths: LengthModel, *, start_s: float, duration_s: float, seed: int,
             stream: str, rate_scale: float) -> tuple[np.ndarray, ...]:
        """Returns (arrival_s float64[n], prompt int32[n], output int32[n], session int64[n], own number int64[n])."""
        first_s = float(np.floor((start_s - self.longest_s) / BLOCK_S) * BLOCK_S)
        sessions = replace(arrivals, mean_rate_per_s=arrivals.mean_rate_per_s / self.turns, batch_s=0.0)
        last_s = start_s + duration_s + arrivals.batch_s
        parts = []
        for begin_s, _, numbers in draw_requests(sessions, start_s=first_s, duration_s=last_s - first_s, seed=seed,
                                                 stream=stream, rate_scale=rate_scale):
            asked_s, session, turn = self._turns(begin_s, numbers, seed, stream)
            if arrivals.batch_s:
                asked_s = let_in(arrivals, asked_s)
            # Whole sessions, so that their prompts can be sorted, but only those with a turn in the window.
            wanted = np.isin(session, session[(asked_s >= start_s) & (asked_s < start_s + duration_s)])
            asked_s, session, turn = asked_s[wanted], session[wanted], turn[wanted]
            prompt, output = self._lengths(lengths, session, turn, seed, stream)
            parts.append((asked_s, prompt, output, session, session * MOST_TURNS + turn))
        if not parts:
            return (np.zeros(0), *(np.zeros(0, kind) for kind in (np.int32, np.int32, np.int64, np.int64)))
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        inside = np.flatnonzero((columns[0] >= start_s) & (columns[0] < start_s + duration_s))
        order = inside[np.lexsort((columns[4][inside], columns[0][inside]))]
        return tuple(column[order] for column in columns)

    def _turns(self, begin_s: np.ndarray, numbers: np.ndarray, seed: int,
               stream: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns (time float64[m], session's number int64[m], turn from 0 int64[m]), session by session."""
        uniform = keyed_uniform(numbers, seed, f"{stream}/turns")
        if self.returns:
            turns = 1 + np.searchsorted(-self._reached(), -uniform, side="left")
        else:
            turns = np.full(len(numbers), 1) if self.mean_turns == 1 else np.minimum(
                MOST_TURNS, 1 + np.floor(steady(np.log1p(-uniform) / np.log1p(-1 / self.mean_turns))).astype(np.int64))
        first = np.concatenate([[0], np.cumsum(turns)])[:-1]
        session, turn = np.repeat(numbers, turns), np.arange(turns.sum()) - np.repeat(first, turns)
        mean_s = np.array(self.think_s)[np.clip(turn - 1, 0, len(self.think_s) - 1)]
        gap_s = self._think(keyed_uniform(session * MOST_TURNS + turn, seed, f"{stream}/think"), mean_s)
        since_s = np.zeros(len(turn))
        for number in range(1, int(turns.max(initial=1))):  # turn by turn: a sum over all sessions would round
            later = first[turns > number] + number
            since_s[later] = since_s[later - 1] + gap_s[later]
        asked = since_s <= self.longest_s
        return (np.repeat(begin_s, turns) + since_s)[asked], session[asked], turn[asked]

    def _think(self, uniform: np.ndarray, mean_s: np.ndarray) -> np.ndarray:
        """Returns intervals between turns at the given quantiles and with these means, float64[m]."""
        if not self.think_sigma:
            return -mean_s * steady(np.log1p(-uniform))
        from scipy.special import ndtri

        sigma = self.think_sigma
        return mean_s * steady(np.exp(sigma * ndtri(np.maximum(uniform, 1e-300)) - sigma**2 / 2))

    def _lengths(self, lengths: LengthModel, session: np.ndarray, turn: np.ndarray, seed: int,
                 stream: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns (prompt int32[m], output int32[m]); within each session they are sorted by prompt."""
        from scipy.special import ndtri

        own = session * MOST_TURNS + turn
        uniform = np.stack([keyed_uniform(own, seed, f"{stream}/{what}") for what in ("a", "b", "c", "d")])
        uniform[2:] = ndtri(np.maximum(uniform[2:], 1e-300))
        if self.correlation:
            whole = ndtri(np.maximum(keyed_uniform(session, seed, f"{stream}/alike"), 1e-300))
            uniform[2] = np.sqrt(self.correlation) * whole + np.sqrt(1 - self.correlation) * uniform[2]
        prompt, output = lengths.draw(uniform, scores=self.correlation > 0)
        order = np.lexsort((prompt, session))
        slots = np.argsort(session, kind="stable")
        prompt[slots], output[slots] = prompt[order], output[order]
        return prompt, output


@dataclass(frozen=True)
class _ChatKeys(Model):
    form: Literal["chat"]
    ratio: Annotated[float, Range(0, 0.99)] | None = None
    returns: tuple[Annotated[float, Range(0, 0.999)], ...] | None = None
    think_s: tuple[Annotated[float, Range(0.1, 3600, "seconds")], ...] = (60.0,)
    think_sigma: Annotated[float, Range(0, 2.5)] = 0.0
    correlation: Annotated[float, Range(0, MOST_ALIKE)] = 0.0
    common_blocks: Annotated[int, Range(0, 1000)] = 0


def parse_chat(values: Mapping[str, Any], where: str, lengths: LengthModel) -> Chat:
    """Reads `{form: chat, ratio | returns, think_s, think_sigma, correlation, common_blocks}`; derives the
    mean number of turns from the ratio.

    Raises:
        UserError: an impossible key, or a ratio that these prompt lengths cannot have.
    """
    given = {key: value for key, value in values.items() if value is not None}
    if not isinstance(given.get("think_s", []), list):
        given["think_s"] = [given["think_s"]]
    keys, what = _ChatKeys.read(given, where), at(where, "ratio")
    if keys.returns:
        demand(keys.ratio is None, what, keys.ratio, "left out beside returns, which say how often turns follow")
        return Chat(math.nan, keys.think_s, keys.common_blocks, 0.0, keys.think_sigma, keys.correlation, keys.returns)
    demand(keys.ratio is not None, what, None, "a number from 0 to 0.99")
    lowest, highest, turns = _turns(lengths, keys.common_blocks, keys.correlation, ratio := keys.ratio or 0.0)
    demand(lowest - 1e-9 <= ratio <= highest, what, ratio, f"from {lowest:.3f} (one turn) to {highest:.3f} "
           f"({MOST_MEAN_TURNS:g} turns) with these prompt lengths")
    return Chat(ratio, keys.think_s, keys.common_blocks, turns, keys.think_sigma, keys.correlation)


@lru_cache(maxsize=KEPT)
def _turns(lengths: LengthModel, common_blocks: int, correlation: float, ratio: float) -> tuple[float, float, float]:
    """Returns the ratios at one turn and at `MOST_MEAN_TURNS`, and the mean turns for `ratio`; cached."""
    sharing = ChatRatio(lengths, common_blocks, correlation)
    return sharing.at(1.0), sharing.at(MOST_MEAN_TURNS), steady(sharing.turns_for(ratio))


class ChatRatio:
    """Share of prompt tokens seen before, as a function of the mean number of turns of a session.

    A turn after the first has seen the whole blocks f(P) of the previous prompt, so a session has
    seen those of all its prompts but the longest: E[T] E[f(P)] - E[f(max)] of E[T] E[P], plus the
    common blocks of the first turn. Given the session's common factor its prompts are independent,
    so the maximum's distribution function is a power of theirs, averaged over sessions.

    Args:
        lengths: of prompts.
        common_blocks: first blocks that all conversations share.
        correlation: of a session's prompts, as in `Chat`.
    """

    def __init__(self, lengths: LengthModel, common_blocks: int, correlation: float = 0.0) -> None:
        from scipy.special import ndtr, ndtri

        prompt = np.sort(np.asarray(lengths.prompt.at(_GRID), dtype=np.float64))
        blocks = np.floor(prompt / BLOCK_TOKENS) * BLOCK_TOKENS
        common = np.minimum(blocks, common_blocks * BLOCK_TOKENS)
        self.below = (np.arange(len(_GRID) + 1) / len(_GRID))[None]
        self.mean_blocks, self.mean_prompt = float(blocks.mean()), float(prompt.mean())
        if correlation:     # coarser steps: the grid is repeated for each quantile of the common factor
            prompt, blocks, common = (x.reshape(-1, _STEP).mean(axis=1) for x in (prompt, blocks, common))
            session = ndtri((np.arange(_SESSIONS) + 0.5) / _SESSIONS)[:, None]
            scores = ndtri(self.below[:, ::_STEP]) - np.sqrt(correlation) * session
            self.below = ndtr(scores / np.sqrt(1 - correlation))
            weight = np.diff(self.below.mean(axis=0))
            self.mean_blocks, self.mean_prompt = float(blocks @ weight), float(prompt @ weight)
        self.blocks, self.common = blocks, common

    def at(self, mean_turns: float) -> float:
        """Returns the ratio for this mean number of turns (before the limit of `MOST_TURNS`)."""
        stop = 1 / mean_turns

        def raised(share: np.ndarray) -> np.ndarray:
            """Returns E[share^T], T geometric from 1 to MOST_TURNS."""
            go_on = (1 - stop) * share
            return ((stop * share * (1 - go_on ** (MOST_TURNS - 1)) / (1 - go_on) if stop < 1 else share) + (
                go_on ** (MOST_TURNS - 1) * share if stop < 1 else 0.0)).mean(axis=0)

        turns = (1 - (1 - stop) ** MOST_TURNS) / stop
        longest = float(np.sum(self.blocks * np.diff(raised(self.below))))
        shortest = float(np.sum(self.common * np.diff(-raised(1 - self.below))))
        return (turns * self.mean_blocks - longest + shortest) / (turns * self.mean_prompt)

    def turns_for(self, ratio: float) -> float:
        """Returns the mean number of turns that gives `ratio`; 1 if one turn already gives it."""
        if ratio <= self.at(1.0):
            return 1.0
        few, many = 1.0, MOST_MEAN_TURNS
        for _ in range(40):
            middle = (few + many) / 2
            few, many = (middle, many) if self.at(middle) < ratio else (few, middle)
        return few
