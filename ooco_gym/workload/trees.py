"""Jobs of several calls: agents, whose turns wait for tools and for subagents, and roll-outs, groups with one prompt.

Each arrival of the process is a job, and all its calls have its time: an agent's later calls arrive when what they wait
for has ended (`ooco_gym.workload.sessions`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

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

    def calls(self, random: np.random.Generator, lengths: LengthModel) -> Calls:
        """Draws a job's calls."""
        found = Calls()

        def converse(mean: float, head: int, after: list[int]) -> list[int]:
            session, tokens, last, count = found.sessions, head * BLOCK_TOKENS, after, _geometric(random, mean)
            found.sessions += 1
            for turn in range(count):
                fresh, output = (int(drawn[0]) for drawn in _draw(random, lengths, 1))
                last = [found.add(tokens + fresh, output, session, head, last, self.tool_s * np.exp(
                    self.tool_sigma * random.standard_normal()))]
                tokens += fresh + output
                if head == self.head_blocks and turn + 1 < count and random.random() < self.fork_share:
                    ends = [converse(self.subagent_turns, head + 1, last) for _ in range(self.subagents)]
                    last = [*last, *(end for one in ends for end in one)]
            return last

        converse(self.turns, self.head_blocks, [])
        return found


@dataclass(frozen=True)
class Rollouts(Model):
    """Groups of requests with one prompt, each with an answer that `lengths.output` draws: a job is done with the last.

    Attributes:
        size: of a group.
    """

    form: Literal["rollouts"]
    size: Annotated[int, Range(1, 1024)] = 8

    def calls(self, random: np.random.Generator, lengths: LengthModel) -> Calls:
        """Draws a group."""
        prompt, output = _draw(random, lengths, self.size)
        found = Calls()
        for tokens in output.tolist():
            found.add(int(prompt[0]), tokens, 0, 0, [], 0.0)
        return found


@dataclass
class Calls:
    """A job's calls: lists with an element for each, in an order in which each follows what it waits for."""

    prompt: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    session: list[int] = field(default_factory=list)
    head: list[int] = field(default_factory=list)
    after: list[list[int]] = field(default_factory=list)
    think_s: list[float] = field(default_factory=list)
    sessions: int = 0

    def add(self, prompt: int, output: int, session: int, head: int, after: list[int], think_s: float) -> int:
        """Adds a call; returns its place."""
        for values, value in ((self.prompt, prompt), (self.output, output), (self.session, session),
                              (self.head, head), (self.after, after), (self.think_s, float(think_s))):
            values.append(value)  # type: ignore[arg-type]
        return len(self.prompt) - 1


def _geometric(random: np.random.Generator, mean: float) -> int:
    return min(MOST_TURNS, int(random.geometric(1.0 / mean)))


def _draw(random: np.random.Generator, lengths: LengthModel, count: int) -> tuple[np.ndarray, np.ndarray]:
    return lengths.draw(np.concatenate([random.random((2, count)), random.standard_normal((2, count))]))


def draw_jobs(form: Agents | Rollouts, arrivals: Arrivals, lengths: LengthModel, *, seed: int, stream: str, salt: str,
              name: str, **window: Any) -> Trace:
    """Returns the calls of the jobs that arrive in a window; a job is the same in every window and at every scale."""
    closed, rows, times, numbers = isinstance(form, Agents), [], [], []
    for arrival_s, _, drawn in draw_requests(arrivals, seed=seed, stream=stream, **window):
        for at_s, number in zip(arrival_s.tolist(), drawn.tolist(), strict=True):
            rows.append(form.calls(keyed_generator(seed, f"{stream}/job", number), lengths))
            times.append(at_s)
            numbers.append(number)
    counts = np.array([len(one.prompt) for one in rows], np.int64)

    def column(of: Callable[[Calls], list[Any]], kind: type = np.int64) -> np.ndarray:
        return np.concatenate([np.zeros(0, kind), *(np.array(of(one), kind) for one in rows)])

    place = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    job = np.repeat(np.array(numbers, np.int64), counts)
    key, prompt, head = job * MOST_CALLS + place, column(lambda one: one.prompt), column(lambda one: one.head)
    conversation = scattered(job * MOST_CALLS + column(lambda one: one.session), f"{salt}/conversation")
    waits = column(lambda one: [len(after) for after in one.after])
    sources = column(lambda one: [before for after in one.after for before in after])
    after = np.concatenate([[0], np.cumsum(waits)]), np.repeat(job, waits) * MOST_CALLS + sources
    hashes = hash_blocks(prompt, prompt // BLOCK_TOKENS, conversation, key, salt)
    if closed:
        hashes = hashes[0], _with_heads(hashes, head, prompt, salt)
    return Trace(np.repeat(np.array(times), counts), prompt, column(lambda one: one.output), job=scattered(job, salt),
                 session=conversation if closed else np.full(len(job), NO_SESSION), prefix_hashes=hashes, name=name,
                 key=scattered(key, salt) if closed else None,
                 after=(after[0], scattered(after[1], salt)) if closed else None,
                 think_s=np.where(waits > 0, column(lambda one: one.think_s, float), np.nan) if closed else None)


def _with_heads(hashes: tuple[np.ndarray, np.ndarray], head: np.ndarray, prompt: np.ndarray, salt: str) -> np.ndarray:
    """Returns the hashes with those of the blocks that all prompts with as long a head share."""
    offsets, values = hashes
    counts = np.diff(offsets)
    position = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
    shared = position < np.repeat(np.minimum(head, prompt // BLOCK_TOKENS), counts)
    return np.where(shared, scattered(position * 1024 + np.repeat(head, counts), f"{salt}/head"), values)
