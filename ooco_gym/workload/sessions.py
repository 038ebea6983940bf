"""Conversations: sessions of several turns, each prompt beginning with the one before.

Sessions begin as the arrival process says, at its rate over the mean number of turns; turns follow at exponential
times. The prompts of a session are drawn from the workload's own lengths and put in ascending order, so that all
prompts together have exactly those lengths, while each turn's prompt can hold the one before. The number of turns is
geometric (40 at most), its mean such that the stated share of prompt tokens has been seen before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.workload.arrivals import BLOCK_S, Arrivals, draw_requests
from ooco_gym.workload.checks import Section
from ooco_gym.workload.lengths import LengthModel
from ooco_gym.workload.sharing import BLOCK_TOKENS, keyed_uniform

MOST_TURNS = 40
_LONGEST = 2.0 * MOST_TURNS     # of a session, in think times: 40 turns are longer once in ten million times
_GRID = (np.arange(4000) + 0.5) / 4000


@dataclass(frozen=True)
class Chat:
    """Conversations.

    Attributes:
        ratio: share of prompt tokens seen before, in the long run.
        think_s: mean seconds from a turn to the next.
        common_blocks: blocks of 512 tokens that all conversations begin with.
        mean_turns: of a session, were there no limit, which gives that ratio.
    """

    ratio: float
    think_s: float
    common_blocks: int
    mean_turns: float

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
                asked_s = np.floor(asked_s / arrivals.batch_s) * arrivals.batch_s
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
            MOST_TURNS, 1 + np.floor(np.log1p(-uniform) / np.log1p(-1 / self.mean_turns)).astype(np.int64))
        first = np.concatenate([[0], np.cumsum(turns)])[:-1]
        session, turn = np.repeat(numbers, turns), np.arange(turns.sum()) - np.repeat(first, turns)
        gap_s = -self.think_s * np.log1p(-keyed_uniform(session * MOST_TURNS + turn, seed, f"{stream}/think"))
        since_s = np.zeros(len(turn))
        for number in range(1, int(turns.max(initial=1))):  # turn by turn: a sum over all sessions would round
            later = first[turns > number] + number
            since_s[later] = since_s[later - 1] + gap_s[later]
        asked = since_s <= self.longest_s
        return (np.repeat(begin_s, turns) + since_s)[asked], session[asked], turn[asked]

    @staticmethod
    def _lengths(lengths: LengthModel, session: np.ndarray, turn: np.ndarray, seed: int,
                 stream: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns (prompt int32[m], output int32[m]); within each session pairs are in order of their prompts."""
        from scipy.special import ndtri

        own = session * MOST_TURNS + turn
        uniform = np.stack([keyed_uniform(own, seed, f"{stream}/{what}") for what in ("a", "b", "c", "d")])
        uniform[2:] = ndtri(np.maximum(uniform[2:], 1e-300))
        prompt, output = lengths.draw(uniform)
        order = np.lexsort((prompt, session))
        place = np.argsort(session, kind="stable")
        prompt[place], output[place] = prompt[order], output[order]
        return prompt, output


def parse_chat(section: Section, lengths: LengthModel) -> Chat:
    """Reads `{form: chat, ratio, think_s, common_blocks}`; finds the mean number of turns for the ratio.

    Raises:
        UserError: an impossible key, or a ratio that these prompt lengths cannot have.
    """
    section.only("form", "ratio", "think_s", "common_blocks")
    think_s = section.number("think_s", 0.1, 3600.0) if section.has("think_s") else 60.0
    common = section.integer("common_blocks", 0, 1000) if section.has("common_blocks") else 0
    ratio = section.number("ratio", 0.0, 0.99)
    lowest, highest = (chat_ratio(lengths, mean, common) for mean in (1.0, MOST_TURNS / 2))
    if not lowest - 1e-9 <= ratio <= highest:
        raise UserError(f"{section.what('ratio')} must be from {lowest:.3f} (one turn) to {highest:.3f} "
                        f"({MOST_TURNS // 2} turns) with these prompt lengths, found {ratio}")
    few, many = 1.0, MOST_TURNS / 2
    for _ in range(40):
        middle = (few + many) / 2
        few, many = (middle, many) if chat_ratio(lengths, middle, common) < ratio else (few, middle)
    return Chat(ratio, think_s, common, 1.0 if ratio <= lowest else few)


def chat_ratio(lengths: LengthModel, mean_turns: float, common_blocks: int) -> float:
    """Returns the share of prompt tokens that have been seen before, in sessions of that many turns in the mean.

    A turn after the first has seen the whole blocks f(P) of the prompt before it, so a session has seen those of all
    its prompts but the longest: E[T] E[f(P)] - E[f(max)] of E[T] E[P], besides the common blocks of the first turn.
    """
    prompt = np.sort(np.asarray(lengths.prompt.at(_GRID), dtype=np.float64))
    blocks = np.floor(prompt / BLOCK_TOKENS) * BLOCK_TOKENS
    stop = 1 / mean_turns
    edges = np.arange(len(_GRID) + 1) / len(_GRID)

    def raised(share: np.ndarray) -> np.ndarray:
        """E[share^T], T geometric from 1 to MOST_TURNS."""
        go_on = (1 - stop) * share
        return (stop * share * (1 - go_on ** (MOST_TURNS - 1)) / (1 - go_on) if stop < 1 else share) + (
            go_on ** (MOST_TURNS - 1) * share if stop < 1 else 0.0)

    turns = (1 - (1 - stop) ** MOST_TURNS) / stop
    longest = float(np.sum(blocks * np.diff(raised(edges))))
    shortest = float(np.sum(np.minimum(blocks, common_blocks * BLOCK_TOKENS) * np.diff(-raised(1 - edges))))
    return (turns * float(blocks.mean()) - longest + shortest) / (turns * float(prompt.mean()))
