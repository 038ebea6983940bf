"""`admitter` in plain Python: which waiting offline request enters first, of all that wait.

`baselines/admitter.py` says what it does and why; docs/admitter.md what orders are worth. What that has and this has
not: the order of a walk through the tree of prompts (`prefix`), learned weights, and affinity among instances. A test
holds each decision of the two against the other's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from heapq import nsmallest
from itertools import takewhile
from typing import Any, NamedTuple

from ooco_gym.errors import UserError
from ooco_gym.runtime.rules import deadline
from ooco_gym.runtime.rules.iteration import Belief, Engine, Line, Plan, Request

KEPT = 12  # requests of the least score that are kept from one look to the next
PIECE = 512  # tokens of a prompt by which prefixes are told apart
DEFAULTS: dict[str, float | str] = {**deadline.DEFAULTS, "rule": "shared_work", "refresh_s": 1.0}
"""Parameters and their values, as conf/policy/admitter.yaml has them; a test compares."""
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


class Admitter(deadline.Deadline):
    """`deadline`, whose waiting offline requests stand in the order of a score.

    Args:
        values: parameters by name that differ from `DEFAULTS`.

    Raises:
        UserError: there is no such score.
    """

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        found = {**DEFAULTS, **(values or {})}
        self.rule, self.refresh_s = str(found.pop("rule")), float(found.pop("refresh_s"))
        if self.rule not in SCORES:
            raise UserError(f"parameter 'rule' of 'admitter' is '{self.rule}'; expected one of {', '.join(SCORES)}")
        super().__init__(found)
        self._kept: list[Any] = []
        self._due_s = 0.0

    def compose(self, engine: Engine, belief: Belief) -> Plan:
        """The next iteration."""
        if engine.now_s >= self._due_s:
            self._kept = []
        engine.offline = Ranked(engine.offline, self._kept, lambda left: self._look(engine, left))
        return super().compose(engine, belief)

    def _look(self, engine: Engine, waiting: list[Request]) -> list[Any]:
        """Ranks all that wait; returns the ids of those that are kept."""
        self._due_s = engine.now_s + self.refresh_s
        found = Found(waiting)
        score = SCORES[self.rule]
        best = nsmallest(KEPT, found.rows, key=lambda row: (
            score(row.request, row.cached, found.members(row), found.shared(row)), found.place(row), row.request.order))
        return [row.request.id for row in best]


class Row(NamedTuple):
    """A waiting request: tokens of it that need not be computed, and what names its prefix."""

    request: Request
    cached: int
    prefix: Any


class Found:
    """What is found of the prefixes of all waiting requests, each looked up in the cache once.

    Attributes:
        rows: in the order in which they were given.
    """

    def __init__(self, waiting: Sequence[Request]) -> None:
        self._count = Counter(request.pieces[0] for request in waiting if request.pieces)
        self._first: dict[Any, tuple[Request, int]] = {}  # of each prefix, and what of it is cached
        self._common: dict[Any, int] = {}  # tokens that the first two of a prefix have in common
        self._places: dict[Any, int] = {}  # of prefixes, as they came
        self.rows = [self._row(request) for request in waiting]

    def members(self, row: Row) -> int:
        """How many wait with the prefix of a request."""
        return self._count.get(row.prefix, 1)

    def shared(self, row: Row) -> int:
        """Tokens that the requests of a prefix share and that are not computed."""
        return max(0, self._common.get(row.prefix, 0) - row.cached)

    def place(self, row: Row) -> int:
        """Place of its prefix in the order in which they came: equals of a prefix stay together."""
        return self._places.get(row.prefix, 0)

    def _row(self, request: Request) -> Row:
        if not request.pieces:
            return Row(request, _looked_up(request), None)
        prefix, fresh = request.pieces[0], request.num_output_tokens == 0
        first, cached = self._first.get(prefix, (None, 0))
        if first is not None:
            common = _common(first, request)
            self._common.setdefault(prefix, common)
            if fresh:
                return Row(request, min(cached, common), prefix)
        cached = _looked_up(request)  # the first of its prefix, or preempted: its own content may be left
        self._places.setdefault(prefix, len(self._places))
        if fresh:
            self._first[prefix] = request, cached
        return Row(request, cached, prefix)


class Ranked(Line):
    """Waiting requests of which the ones that are kept come first; once they have entered, all are looked at again.

    Args:
        line: all that wait, by arrival.
        kept: ids of those of the least score, the least first; they are taken out as they enter.
        look: ranks what is left, and returns the ids that are kept.
    """

    def __init__(self, line: Line, kept: list[Any], look: Callable[[list[Request]], list[Any]]) -> None:
        super().__init__()
        self._line, self._kept, self._look = line, kept, look
        self._gone: set[Any] = set()  # have entered in this iteration
        self._back: dict[Any, Request] = {}  # have been preempted in it

    def peek(self) -> Request | None:
        """The next of them; None where none waits."""
        for _ in range(2):
            while self._kept:
                found = self._waiting(self._kept[0])
                if found is not None:
                    return found
                del self._kept[0]
            if self._line.peek() is None and not self._back:
                return None
            self._kept[:] = self._look([one for one in self._line if one.id not in self._gone] + [*self._back.values()])
        return None

    def pop(self) -> Request:
        """Takes the next of them out."""
        request = self.peek()
        assert request is not None
        del self._kept[0]
        self._gone.add(request.id)
        self._back.pop(request.id, None)
        return request

    def insert(self, request: Request) -> None:
        """Puts a request back."""
        self._back[request.id] = request

    def _waiting(self, name: Any) -> Request | None:
        if name in self._back:
            return self._back[name]
        return None if name in self._gone else self._line.find(name)


def _common(one: Request, other: Request) -> int:
    """Prompt tokens, in whole pieces, that two requests have in common from the first on."""
    return PIECE * sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one.pieces, other.pieces,
                                                                                strict=False)))


def _looked_up(request: Request) -> int:
    """Tokens of a waiting request that need not be computed."""
    return request.look_up()[0] if request.look_up is not None else 0
