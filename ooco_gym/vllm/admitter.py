"""`admitter` in an engine: which waiting offline request enters first, of all that wait.

`baselines/admitter.py` says what it does and why; docs/learned.md what orders are worth. It is not that module's code:
the tree of prompts and its blocks are the engine's here, and thousands of requests wait in it, which are described and
looked up only where a score needs it. What that has and this has not: the order of a walk through the tree of prompts
(`prefix`), learned weights, and affinity among instances. Equals of different prefixes enter by arrival here, and
blocks in the cache count as they were before the iteration. But for these a test holds the two against each other.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from heapq import nsmallest
from itertools import takewhile
from typing import Any, NamedTuple

from ooco_gym.policy.policy import Param, Policy
from ooco_gym.runtime.beliefs import Belief
from ooco_gym.runtime.rules import Engine, Line, Plan, Request
from ooco_gym.vllm.replica import Compiled

MANY = 1 << 60
KEPT = 12  # requests of the least score that are kept from one look to the next
PIECE = 512  # tokens of a prompt by which prefixes are told apart
Score = Callable[[Request, int, int, int], float]
# Of a request, its tokens that need not be computed, how many wait with its prefix, and tokens of that which are not
# computed. The least enters first.
SCORES: dict[str, Score] = {
    "arrival": lambda request, cached, members, shared: request.arrival_s,
    "lpm": lambda request, cached, members, shared: -cached,
    "dfs_weight": lambda request, cached, members, shared: -members,
    "shortest": lambda request, cached, members, shared: request.num_tokens,
    "least_work": lambda request, cached, members, shared: request.num_tokens - cached,
    "shared_work": lambda request, cached, members, shared: (request.num_tokens - cached
                                                             - shared * (1.0 - 1.0 / members)),
}


PARAMS = (
    Param("rule", "by which score a waiting offline request is admitted", choices=tuple(SCORES), default="shared_work"),
    Param("refresh_s", "how often all waiting requests are looked at, seconds", 0.0, 3600.0, default=1.0),
)


class Admitter(Compiled):
    """`deadline`, whose waiting offline requests stand in the order of a score."""

    extra = PARAMS

    def __init__(self, name: str, policy: Policy) -> None:
        super().__init__(name, policy)
        self._kept: list[Any] = []
        self._due_s = 0.0

    def compose(self, engine: Engine, belief: Belief) -> Plan:
        """The next iteration."""
        if not 0.0 < self._due_s - engine.now_s <= self.values["refresh_s"]:     # over, or the clock was set back
            self._kept = []
        ranked = Ranked(engine.offline, self._kept, lambda left, count: self._look(engine, left, count))
        return super().compose(dataclasses.replace(engine, offline=ranked), belief)

    def _look(self, engine: Engine, waiting: list[Request], count: int) -> list[Any]:
        """Ranks all that wait; returns the ids of so many of the least score."""
        self._due_s = engine.now_s + self.values["refresh_s"]
        found = Found(waiting)
        score = SCORES[self.values["rule"]]
        best = nsmallest(count, found.rows, key=lambda row: (
            score(row.request, row.cached, found.members(row), found.shared(row)), found.place(row), row.request.order))
        return [row.request.id for row in best]


class Row(NamedTuple):
    """A waiting request: its tokens that need not be computed, what names its prefix, and what it has in common with
    the one that was looked up before it."""

    request: Request
    cached: int
    prefix: Any
    common: int


class Found:
    """Prefixes of all waiting requests, each looked up in the cache once.

    Attributes:
        rows: in the order in which they were given.
    """

    def __init__(self, waiting: Sequence[Request]) -> None:
        self._count = Counter(request.pieces[0] for request in waiting if request.pieces)
        self._seen: dict[Any, Request] = {}  # the first of each prefix
        self._heads: dict[Any, tuple[Request, int]] = {}  # of each prefix the one looked up last, and what is cached
        self._common: dict[Any, int] = {}  # tokens that the first two of a prefix have in common
        self._places: dict[Any, int] = {}  # of prefixes, as they came
        self.rows = [self._row(request) for request in waiting]

    def members(self, row: Row) -> int:
        """How many wait with the prefix of a request."""
        return self._count.get(row.prefix, 1)

    def shared(self, row: Row) -> int:
        """Tokens of a request that those of its prefix share and that are not computed."""
        common = min(self._common.get(row.prefix, 0), row.common, row.request.num_tokens - 1)
        return max(0, common - row.cached)

    def place(self, row: Row) -> float:
        """Place of its prefix in the order in which they came: equals of a prefix stay together. None comes last."""
        return self._places.get(row.prefix, math.inf)

    def _row(self, request: Request) -> Row:
        if not request.pieces:
            return Row(request, _looked_up(request), None, 0)
        prefix, fresh = request.pieces[0], request.num_output_tokens == 0
        self._places.setdefault(prefix, len(self._places))
        head, found = self._heads.get(prefix, (None, 0))
        common = _common(head, request) if head is not None else MANY
        if prefix in self._seen:
            self._common.setdefault(prefix, _common(self._seen[prefix], request))
        self._seen.setdefault(prefix, request)
        if head is not None and fresh and (found < common or common >= _whole(request)):
            return Row(request, min(found, common, request.num_tokens - 1), prefix, common)
        cached = _looked_up(request)  # first of its prefix, one whose prefix goes on, or preempted: its own may be left
        if fresh:
            self._heads[prefix] = request, cached
        return Row(request, cached, prefix, common)


class Ranked(Line):
    """Waiting requests of which the ones that are kept come first; where these are too few, all are looked at again.

    Args:
        line: all that wait, by arrival.
        kept: ids of those of the least score, the least first; those that do not wait any more are taken out.
        look: ranks what else waits, and returns the ids of as many as are wanted.
    """

    ranked = True

    def __init__(self, line: Line, kept: list[Any], look: Callable[[list[Request], int], list[Any]]) -> None:
        super().__init__()
        self._line, self._kept, self._look = line, kept, look

    def first(self, count: int) -> list[Request]:
        """The next `count` of them."""
        found = [one for one in map(self._line.find, self._kept) if one is not None]
        self._kept[:] = [one.id for one in found]
        rest = [one for one in self._line if one.id not in self._kept] if len(found) < count else []
        if rest:
            self._kept += self._look(rest, max(KEPT, count) - len(found))
            found += filter(None, map(self._line.find, self._kept[len(found) :]))
        return found[:count]

    def find(self, name: Any) -> Request | None:
        """The one of an id; None where it does not wait."""
        return self._line.find(name)

    def __iter__(self) -> Iterator[Request]:
        """All that wait, by arrival."""
        return iter(self._line)


def _common(one: Request, other: Request) -> int:
    """Prompt tokens, in whole pieces, that two requests have in common from the first on."""
    return PIECE * sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one.pieces, other.pieces,
                                                                                strict=False)))


def _whole(request: Request) -> int:
    """Tokens of the pieces of a prompt that are whole."""
    return PIECE * min(len(request.pieces), (request.num_tokens - request.num_output_tokens) // PIECE)


def pieces_of(block_hashes: Sequence[Any], num_prompt_tokens: int, block_size: int) -> tuple[Any, ...]:
    """What names each whole piece of a prompt, from an engine's hashes of its blocks, each of which includes all before
    it; none where blocks do not divide pieces."""
    each = PIECE // block_size
    return tuple(block_hashes[each - 1 : num_prompt_tokens // block_size : each]) if each * block_size == PIECE else ()


def _looked_up(request: Request) -> int:
    """Tokens of a waiting request that need not be computed."""
    return request.look_up()[0] if request.look_up is not None else 0
