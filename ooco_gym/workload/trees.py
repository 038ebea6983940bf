"""Jobs of several calls: agents, whose turns wait for tools and for subagents, and roll-outs, groups with one prompt.

Each arrival of the process is a job, and all its calls have its time: an agent's later calls arrive when what they wait
for has ended (`ooco_gym.workload.sessions`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from ooco_gym.schema import Model, Range
from ooco_gym.workload.arrivals import Arrivals, draw_requests
from ooco_gym.workload.keyed import keyed_generator, scattered
from ooco_gym.workload.lengths import LengthModel
from ooco_gym.workload.sharing import hash_blocks
from ooco_gym.workload.trace import BLOCK_TOKENS, NO_SESSION, Trace

MOST_TURNS, MOST_CALLS = 40, 1 << 14  # of a conversation; of a job
Turns = Annotated[float, Range(1, MOST_TURNS)]


@dataclass(frozen=True)
class Agents(Model):
    """Agents' jobs. A turn's prompt is its conversation so far, answers included, and what `lengths.prompt` draws.

    Attributes:
        turns: mean number of turns, geometric, at most 40.
        tool_s, tool_sigma: median and log standard deviation of the pause before a turn: a tool's time.
        fork_share: share of turns, but of the last ones, that start subagents, for all of which the next turn waits.
        subagents: their number.
        subagent_turns: as `turns`, of a subagent.
        head_blocks: blocks of 512 tokens of tools and instructions with which all agents' prompts begin; subagents have
            others.
    """

    form: Literal["agents"]
    turns: Turns = 6.0
    tool_s: Annotated[float, Range(0, 3600, "seconds")] = 2.0
    tool_sigma: Annotated[float, Range(0, 2.5)] = 1.0
    fork_share: Annotated[float, Range(0, 1)] = 0.15
    subagents: Annotated[int, Range(1, 64)] = 3
    subagent_turns: Turns = 3.0
    head_blocks: Annotated[int, Range(0, 64)] = 4

    def calls(self, random: np.random.Generator) -> list[Call]:
        """Draws a job's calls, in an order in which each follows what it waits for."""
        found, sessions = [], itertools.count()

        def converse(mean: float, head: int, after: list[int]) -> list[int]:
            session, last, count = next(sessions), after, _geometric(random, mean)
            for turn in range(count):
                found.append(Call(_draw(random, 1), session, head, last, self.tool_s * np.exp(
                    self.tool_sigma * random.standard_normal())))
                last = [len(found) - 1]
                if head == self.head_blocks and turn + 1 < count and random.random() < self.fork_share:
                    ends = [converse(self.subagent_turns, head + 1, last) for _ in range(self.subagents)]
                    last = [*last, *(end for one in ends for end in one)]
            return last

        converse(self.turns, self.head_blocks, [])
        return found

    def prompts(self, fresh: np.ndarray, output: np.ndarray, session: np.ndarray, head: np.ndarray) -> np.ndarray:
        """Returns the prompts of calls, int64[n], of the lengths that are drawn: each has its conversation so far."""
        order = np.argsort(session, kind="stable")
        grown = np.cumsum((fresh + output)[order]) - (fresh + output)[order]
        begins = np.flatnonzero(np.diff(session[order], prepend=-1))
        grown -= np.repeat(grown[begins], np.diff(begins, append=len(order)))
        prompt = head * BLOCK_TOKENS + fresh
        prompt[order] += grown
        return prompt


@dataclass(frozen=True)
class Rollouts(Model):
    """Groups of requests with one prompt, each with an answer that `lengths.output` draws: a job is done with the last.

    Attributes:
        size: of a group.
    """

    form: Literal["rollouts"]
    size: Annotated[int, Range(1, 1024)] = 8

    def calls(self, random: np.random.Generator) -> list[Call]:
        """Draws a group."""
        draws = _draw(random, self.size)
        draws[::2] = draws[::2, :1]
        return [Call(draws[:, k : k + 1]) for k in range(self.size)]

    def prompts(self, fresh: np.ndarray, output: np.ndarray, session: np.ndarray, head: np.ndarray) -> np.ndarray:
        """Returns the prompts of calls, int64[n]: those that are drawn."""
        return fresh


class Call(NamedTuple):
    """A call of a job; `draws` are the random numbers of its lengths, float64[4, 1] (`LengthModel.draw`), and `after`
    the places of those that it waits for."""

    draws: np.ndarray
    session: int = 0
    head: int = 0
    after: Sequence[int] = ()
    think_s: float = 0.0


def _geometric(random: np.random.Generator, mean: float) -> int:
    return min(MOST_TURNS, int(random.geometric(1.0 / mean)))


def _draw(random: np.random.Generator, count: int) -> np.ndarray:
    return np.concatenate([random.random((2, count)), random.standard_normal((2, count))])


def draw_jobs(form: Agents | Rollouts, arrivals: Arrivals, lengths: LengthModel, *, seed: int, stream: str, salt: str,
              name: str, **window: Any) -> Trace:
    """Returns the calls of the jobs that arrive in a window; a job is the same in every window and at every scale."""
    closed = isinstance(form, Agents)
    drawn = list(draw_requests(arrivals, seed=seed, stream=stream, **window))
    times = np.concatenate([np.zeros(0), *(at_s for at_s, _, _ in drawn)])
    numbers = np.concatenate([np.zeros(0, np.int64), *(number for _, _, number in drawn)])
    rows = [form.calls(keyed_generator(seed, f"{stream}/job", number)) for number in numbers.tolist()]
    counts, calls = np.array([len(one) for one in rows], np.int64), list(itertools.chain(*rows))
    place = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    job = np.repeat(numbers, counts)
    head, waits = np.array([call.head for call in calls], np.int64), np.array([len(call.after) for call in calls], int)
    key, session = job * MOST_CALLS + place, job * MOST_CALLS + np.array([call.session for call in calls], np.int64)
    fresh, output = lengths.draw(np.concatenate([np.zeros((4, 0)), *(call.draws for call in calls)], axis=1))
    prompt = form.prompts(fresh.astype(np.int64), output.astype(np.int64), session, head)
    conversation = scattered(session, f"{salt}/conversation")
    sources = np.array([before for call in calls for before in call.after], np.int64)
    after = np.concatenate([[0], np.cumsum(waits)]), np.repeat(job, waits) * MOST_CALLS + sources
    hashes = hash_blocks(prompt, prompt // BLOCK_TOKENS, conversation, key, salt)
    if closed:
        hashes = hashes[0], _with_heads(hashes, head, prompt, salt)
    return Trace(np.repeat(times, counts), prompt, output, job=scattered(job, salt),
                 session=conversation if closed else np.full(len(job), NO_SESSION), prefix_hashes=hashes, name=name,
                 key=scattered(key, salt) if closed else None,
                 after=(after[0], scattered(after[1], salt)) if closed else None,
                 think_s=np.where(waits > 0, [call.think_s for call in calls], np.nan) if closed else None)


def _with_heads(hashes: tuple[np.ndarray, np.ndarray], head: np.ndarray, prompt: np.ndarray, salt: str) -> np.ndarray:
    """Returns the hashes with those of the blocks that all prompts with as long a head share."""
    offsets, values = hashes
    counts = np.diff(offsets)
    position = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
    shared = position < np.repeat(np.minimum(head, prompt // BLOCK_TOKENS), counts)
    return np.where(shared, scattered(position * 1024 + np.repeat(head, counts), f"{salt}/head"), values)
