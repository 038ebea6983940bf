"""Prompts that begin alike: conversations of several turns, questions on documents, few-shot evaluation.

A prompt is cut into blocks of 512 tokens, the last one perhaps shorter; each has a number that stands for the prompt
up to its end, as Mooncake defines `hash_ids`. The *sharing ratio* is the share of prompt tokens that lie in blocks
seen before: what an endless prefix cache would save.

In conversations, sessions begin as the arrival process says, at its rate over the mean number of turns; turns follow
at exponential or lognormal times. The prompts of a session are drawn from the workload's own lengths, alike to a stated
degree, and put in ascending order, so that all prompts together have exactly those lengths, while each turn's prompt
can hold the one before. The number of turns is geometric (40 at most), its mean such that the stated share of prompt
tokens has been seen before. Times between turns and likeness together decide how many other blocks are used between
two uses of a prefix, and so what a cache of finite size finds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from ooco_gym.errors import UserError, unknown
from ooco_gym.rounding import steady
from ooco_gym.workload.arrivals import BLOCK_S, Arrivals, draw_requests, let_in
from ooco_gym.workload.checks import Section
from ooco_gym.workload.keyed import keyed_generator, keyed_uniform, scattered
from ooco_gym.workload.lengths import LengthModel
from ooco_gym.workload.trace import BLOCK_TOKENS, Hashes, Trace

FORMS = ("chat", "documents", "few_shot")
GROUPS = {"documents": 1000, "few_shot": 57}        # 57: the tasks of MMLU
ZIPF = {"documents": 0.8, "few_shot": 0.0}
MOST_TURNS = 40
MOST_MEAN_TURNS = MOST_TURNS / 2
KEPT = 64  # mean numbers of turns that were found
MOST_ALIKE = 0.98       # correlation of a session's prompts
_LONGEST = 2.0 * MOST_TURNS     # of a session, in think times: 40 turns are longer once in ten million times
_SESSIONS, _STEP = 32, 4        # kinds of sessions where their prompts are alike, and grid points put together then
_GRID = (np.arange(4000) + 0.5) / 4000


@dataclass(frozen=True)
class Groups:
    """Requests that each begin with the text of one of many groups: a document, or a task's examples.

    Attributes:
        ratio: share of a prompt's tokens that are its group's text, in the mean of each group.
        count: how many groups there are.
        zipf: group k is asked in proportion to `(k + 1) ** -zipf`; 0: all alike.
    """

    ratio: float
    count: int
    zipf: float

    def prompts(self, lengths: LengthModel, numbers: np.ndarray, seed: int,
                stream: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns (prompt tokens int32[n], blocks shared with the group int64[n], group int64[n])."""
        generator = keyed_generator(seed, f"{stream}/groups")
        uniform, normal = generator.random(self.count), generator.standard_normal(self.count)
        whole = lengths.prompt.tokens(uniform, normal)
        blocks = np.maximum(1, np.rint(self.ratio * whole / BLOCK_TOKENS)).astype(np.int64)
        weights = np.cumsum(steady((np.arange(self.count) + 1.0) ** -self.zipf))
        turn = keyed_uniform(numbers, seed, f"{stream}/group")
        group = np.searchsorted(weights / weights[-1], turn, side="right")
        own = blocks[group] * BLOCK_TOKENS * (1 - self.ratio) / self.ratio
        question = np.maximum(1, np.rint(own * (0.5 + keyed_uniform(numbers, seed, f"{stream}/question"))))
        return (blocks[group] * BLOCK_TOKENS + question).astype(np.int32), blocks[group], group


def parse_groups(section: Section, form: str) -> Groups:
    """Reads `{form: documents | few_shot, ratio, groups, zipf}`; the two last have defaults."""
    section.only("form", "ratio", "groups", "zipf")
    count = section.integer("groups", 1, 10_000_000) if section.has("groups") else GROUPS[form]
    zipf = section.number("zipf", 0.0, 5.0) if section.has("zipf") else ZIPF[form]
    return Groups(section.number("ratio", 0.01, 0.99), count, zipf)


def check_form(section: Section) -> str:
    """Returns which form of sharing a section names."""
    form = str(section.get("form"))
    if form not in FORMS:
        raise unknown("form of sharing", form, FORMS)
    return form


def hash_blocks(prompt_tokens: np.ndarray, shared_blocks: np.ndarray, group: np.ndarray, own: np.ndarray,
                salt: str, common_blocks: int = 0) -> Hashes:
    """Returns the block hashes of prompts that begin with their group's text and go on with their own.

    Args:
        prompt_tokens: int[n].
        shared_blocks: int[n], how many blocks of each are the group's.
        group: int64[n], whose text each begins with.
        own: int64[n], a number of each request's own.
        salt: what the numbers are for; another salt gives other hashes.
        common_blocks: how many blocks all prompts begin with, such as a system's own prompt.

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
    """Returns the share of prompt tokens in blocks whose hash a request before had; None without hashes."""
    if trace.prefix_hashes is None or len(trace.prefix_hashes[1]) == 0:
        return None
    tokens = block_tokens_of(trace)
    seen = np.ones(len(tokens), bool)
    seen[np.unique(trace.prefix_hashes[1], return_index=True)[1]] = False
    return float(tokens[seen].sum() / trace.prompt_tokens.sum(dtype=np.int64))


def block_tokens_of(trace: Trace) -> np.ndarray:
    """Returns how many prompt tokens lie in each block of a trace with prefix hashes, int64[blocks]."""
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
        ratio: share of prompt tokens seen before, in the long run.
        think_s: mean seconds from a turn to the next.
        common_blocks: blocks of 512 tokens that all conversations begin with.
        mean_turns: of a session, were there no limit, which gives that ratio.
        think_sigma: standard deviation of the logarithm of lognormal times between turns; 0: they are exponential.
        correlation: of the lengths of a session's prompts (their normal scores); 0: independent of each other.
    """

    ratio: float
    think_s: float
    common_blocks: int
    mean_turns: float
    think_sigma: float = 0.0
    correlation: float = 0.0

    @property
    def turns(self) -> float:
        """Mean turns of a session, at most `MOST_TURNS` each."""
        return self.mean_turns * (1 - (1 - 1 / self.mean_turns) ** MOST_TURNS)

    @property
    def longest_s(self) -> float:
        """Turns later than this after a session's first are not asked, seconds."""
        return _LONGEST * self.think_s

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
            # Whole sessions, so that their prompts can be put in order, but only those that reach into the window.
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
        """Returns (time float64[m], session's number int64[m], turn from 0 int64[m]), sessions one after the other."""
        uniform = keyed_uniform(numbers, seed, f"{stream}/turns")
        turns = np.full(len(numbers), 1) if self.mean_turns == 1 else np.minimum(
            MOST_TURNS, 1 + np.floor(steady(np.log1p(-uniform) / np.log1p(-1 / self.mean_turns))).astype(np.int64))
        first = np.concatenate([[0], np.cumsum(turns)])[:-1]
        session, turn = np.repeat(numbers, turns), np.arange(turns.sum()) - np.repeat(first, turns)
        gap_s = self._think(keyed_uniform(session * MOST_TURNS + turn, seed, f"{stream}/think"))
        since_s = np.zeros(len(turn))
        for number in range(1, int(turns.max(initial=1))):  # turn by turn: a sum over all sessions would round
            later = first[turns > number] + number
            since_s[later] = since_s[later - 1] + gap_s[later]
        asked = since_s <= self.longest_s
        return (np.repeat(begin_s, turns) + since_s)[asked], session[asked], turn[asked]

    def _think(self, uniform: np.ndarray) -> np.ndarray:
        """Returns the times between turns at quantiles float64[m], float64[m]."""
        if not self.think_sigma:
            return -self.think_s * steady(np.log1p(-uniform))
        from scipy.special import ndtri

        sigma = self.think_sigma
        return self.think_s * steady(np.exp(sigma * ndtri(np.maximum(uniform, 1e-300)) - sigma**2 / 2))

    def _lengths(self, lengths: LengthModel, session: np.ndarray, turn: np.ndarray, seed: int,
                 stream: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns (prompt int32[m], output int32[m]); within each session pairs are in order of their prompts."""
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


def parse_chat(section: Section, lengths: LengthModel) -> Chat:
    """Reads `{form: chat, ratio, think_s, think_sigma, correlation, common_blocks}`; finds the mean number of turns.

    Raises:
        UserError: an impossible key, or a ratio that these prompt lengths cannot have.
    """
    section.only("form", "ratio", "think_s", "think_sigma", "correlation", "common_blocks")
    think_s = section.number("think_s", 0.1, 3600.0) if section.has("think_s") else 60.0
    sigma = section.number("think_sigma", 0.0, 2.5) if section.has("think_sigma") else 0.0
    correlation = section.number("correlation", 0.0, MOST_ALIKE) if section.has("correlation") else 0.0
    common = section.integer("common_blocks", 0, 1000) if section.has("common_blocks") else 0
    ratio = section.number("ratio", 0.0, 0.99)
    lowest, highest, turns = _turns(lengths, common, correlation, ratio)
    if not lowest - 1e-9 <= ratio <= highest:
        raise UserError(f"{section.what('ratio')} must be from {lowest:.3f} (one turn) to {highest:.3f} "
                        f"({MOST_MEAN_TURNS:g} turns) with these prompt lengths, found {ratio}")
    return Chat(ratio, think_s, common, turns, sigma, correlation)


@lru_cache(maxsize=KEPT)
def _turns(lengths: LengthModel, common_blocks: int, correlation: float, ratio: float) -> tuple[float, float, float]:
    """The ratios of one turn and of the most, and the mean number of turns that gives this one: the search for it takes
    most of the time that a workload does to read."""
    sharing = ChatRatio(lengths, common_blocks, correlation)
    return sharing.at(1.0), sharing.at(MOST_MEAN_TURNS), steady(sharing.turns_for(ratio))


class ChatRatio:
    """Share of prompt tokens seen before, as a function of the mean number of turns of a session.

    A turn after the first has seen the whole blocks f(P) of the prompt before it, so a session has seen those of all
    its prompts but the longest: E[T] E[f(P)] - E[f(max)] of E[T] E[P], besides the common blocks of the first turn.
    Given what a session's prompts have in common, they are independent: the maximum's distribution function is a power
    of theirs, in the mean over sessions.

    Args:
        lengths: of prompts.
        common_blocks: blocks that all conversations begin with.
        correlation: of a session's prompts, as `Chat` has it.
    """

    def __init__(self, lengths: LengthModel, common_blocks: int, correlation: float = 0.0) -> None:
        from scipy.special import ndtr, ndtri

        prompt = np.sort(np.asarray(lengths.prompt.at(_GRID), dtype=np.float64))
        blocks = np.floor(prompt / BLOCK_TOKENS) * BLOCK_TOKENS
        common = np.minimum(blocks, common_blocks * BLOCK_TOKENS)
        self.below = (np.arange(len(_GRID) + 1) / len(_GRID))[None]
        self.mean_blocks, self.mean_prompt = float(blocks.mean()), float(prompt.mean())
        if correlation:     # in coarser steps: each is there for each kind of session
            prompt, blocks, common = (x.reshape(-1, _STEP).mean(axis=1) for x in (prompt, blocks, common))
            session = ndtri((np.arange(_SESSIONS) + 0.5) / _SESSIONS)[:, None]
            scores = ndtri(self.below[:, ::_STEP]) - np.sqrt(correlation) * session
            self.below = ndtr(scores / np.sqrt(1 - correlation))
            weight = np.diff(self.below.mean(axis=0))
            self.mean_blocks, self.mean_prompt = float(blocks @ weight), float(prompt @ weight)
        self.blocks, self.common = blocks, common

    def at(self, mean_turns: float) -> float:
        """The ratio with that many turns in the mean, before the limit of `MOST_TURNS`."""
        stop = 1 / mean_turns

        def raised(share: np.ndarray) -> np.ndarray:
            """E[share^T], T geometric from 1 to MOST_TURNS."""
            go_on = (1 - stop) * share
            return ((stop * share * (1 - go_on ** (MOST_TURNS - 1)) / (1 - go_on) if stop < 1 else share) + (
                go_on ** (MOST_TURNS - 1) * share if stop < 1 else 0.0)).mean(axis=0)

        turns = (1 - (1 - stop) ** MOST_TURNS) / stop
        longest = float(np.sum(self.blocks * np.diff(raised(self.below))))
        shortest = float(np.sum(self.common * np.diff(-raised(1 - self.below))))
        return (turns * self.mean_blocks - longest + shortest) / (turns * self.mean_prompt)

    def turns_for(self, ratio: float) -> float:
        """The mean number of turns that gives a ratio; 1 where it is no higher than one turn's."""
        if ratio <= self.at(1.0):
            return 1.0
        few, many = 1.0, MOST_MEAN_TURNS
        for _ in range(40):
            middle = (few + many) / 2
            few, many = (middle, many) if self.at(middle) < ratio else (few, middle)
        return few
