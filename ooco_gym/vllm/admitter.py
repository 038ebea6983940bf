"""`admitter` in an engine: admits the waiting offline request with the lowest score first.

See `baselines/admitter.py` for the method and docs/learned.md for the orders' results. The scores are the same function
(`ooco_gym/policy/orders.py`); what they are of is gathered here, because the prefix tree and blocks are the engine's,
and thousands of waiting requests are described and looked up only if a score needs it. Here there is no order of a walk
through the tree of prompts (`prefix`), no learned weights, and no affinity among instances; ties between prefixes are
broken by arrival, and the cache is as before the iteration. A test compares both.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from heapq import nsmallest
from itertools import takewhile
from typing import Any, NamedTuple

from ooco_gym.policy.orders import ORDERS, order_score
from ooco_gym.policy.policy import Param, Policy
from ooco_gym.runtime.rules import Engine, Line, Plan, Request
from ooco_gym.vllm.beliefs import Belief
from ooco_gym.vllm.replica import Compiled

MANY = 1 << 60
KEPT = 12  # requests with the lowest scores that are kept between refreshes
PIECE = 512  # prompt tokens that identify a prefix
PARAMS = (
    Param("rule", "score by which waiting offline requests are admitted", default="shared_work",
          choices=tuple(name for name in ORDERS if name != "prefix")),
    Param("refresh_s", "interval at which all waiting requests are scored, seconds", 0.0, 3600.0, default=1.0),
)


class Admitter(Compiled):
    """`deadline` with waiting offline requests in the order of a score."""

    extra = PARAMS

    def __init__(self, name: str, policy: Policy) -> None:
        super().__init__(name, policy)
        self._kept: list[Any] = []
        self._due_s = 0.0

    def compose(self, engine: Engine, belief: Belief) -> Plan:
        if not 0.0 < self._due_s - engine.now_s <= self.values["refresh_s"]:     # due, or the clock was set back
            self._kept = []
        ranked = Ranked(engine.offline, self._kept, lambda left, count: self._look(engine, left, count))
        return super().compose(dataclasses.replace(engine, offline=ranked), belief)

    def _look(self, engine: Engine, waiting: list[Request], count: int) -> list[Any]:
        """Scores all waiting requests; returns the ids of the `count` with the lowest scores."""
        self._due_s = engine.now_s + self.values["refresh_s"]
        found = WaitingPrefixes(waiting)
        order, score = ORDERS.index(self.values["rule"]), order_score.py_func
        best = nsmallest(count, found.rows, key=lambda row: (
            score(order, row.request.arrival_s, row.request.num_tokens, row.cached, found.members(row),
                  found.shared(row)), found.place(row), row.request.order))
        return [row.request.id for row in best]


class Row(NamedTuple):
    """A waiting request: cached tokens, prefix, and tokens shared with the last request looked up."""

    request: Request
    cached: int
    prefix: Any
    common: int


class WaitingPrefixes:
    """Prefixes of all waiting requests, with few look-ups in the cache.

    Attributes:
        rows: in the given order.
    """

    def __init__(self, waiting: Sequence[Request]) -> None:
        self._count = Counter(request.pieces[0] for request in waiting if request.pieces)
        self._seen: dict[Any, Request] = {}  # first request of each prefix
        self._heads: dict[Any, tuple[Request, int]] = {}  # by prefix: last request looked up, its cached tokens
        self._common: dict[Any, int] = {}  # tokens shared by a prefix's first two requests
        self._places: dict[Any, int] = {}  # prefixes by first occurrence
        self.rows = [self._row(request) for request in waiting]

    def members(self, row: Row) -> int:
        """Returns the number of waiting requests with a request's prefix."""
        return self._count.get(row.prefix, 1)

    def shared(self, row: Row) -> int:
        """Returns a request's uncached tokens that others with its prefix share."""
        common = min(self._common.get(row.prefix, 0), row.common, row.request.num_tokens - 1)
        return max(0, common - row.cached)

    def place(self, row: Row) -> float:
        """Returns the rank of a prefix by first occurrence, to keep ties together; infinity without a prefix."""
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
        cached = _looked_up(request)  # first of its prefix, prefix cached beyond it, or preempted
        if fresh:
            self._heads[prefix] = request, cached
        return Row(request, cached, prefix, common)


class Ranked(Line):
    """Waiting requests, kept ones first; if these are too few, all are scored again.

    Args:
        line: all waiting requests, by arrival.
        kept: ids of those with the lowest scores, ascending; ids that no longer wait are removed.
        look: scores the other waiting requests and returns the ids of the given number of them.
    """

    ranked = True

    def __init__(self, line: Line, kept: list[Any], look: Callable[[list[Request], int], list[Any]]) -> None:
        super().__init__()
        self._line, self._kept, self._look = line, kept, look

    def first(self, count: int) -> list[Request]:
        """Returns the next `count` requests."""
        found = [one for one in map(self._line.find, self._kept) if one is not None]
        self._kept[:] = [one.id for one in found]
        rest = [one for one in self._line if one.id not in self._kept] if len(found) < count else []
        if rest:
            self._kept += self._look(rest, max(KEPT, count) - len(found))
            found += filter(None, map(self._line.find, self._kept[len(found) :]))
        return found[:count]

    def find(self, name: Any) -> Request | None:
        """Returns the request of an id; None if it does not wait."""
        return self._line.find(name)

    def __iter__(self) -> Iterator[Request]:
        """Iterates over all waiting requests, by arrival."""
        return iter(self._line)


def _common(one: Request, other: Request) -> int:
    """Returns the length of two requests' common prefix in tokens, in whole pieces."""
    return PIECE * sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one.pieces, other.pieces,
                                                                                strict=False)))


def _whole(request: Request) -> int:
    """Returns the tokens in whole pieces of a prompt."""
    return PIECE * min(len(request.pieces), (request.num_tokens - request.num_output_tokens) // PIECE)


def pieces_of(block_hashes: Sequence[Any], num_prompt_tokens: int, block_size: int) -> tuple[Any, ...]:
    """Returns the hash of each whole piece of a prompt, from an engine's cumulative block hashes.

    Returns none if the block size does not divide a piece.
    """
    each = PIECE // block_size
    return tuple(block_hashes[each - 1 : num_prompt_tokens // block_size : each]) if each * block_size == PIECE else ()


def _looked_up(request: Request) -> int:
    """Returns a waiting request's cached tokens."""
    return request.look_up()[0] if request.look_up is not None else 0
