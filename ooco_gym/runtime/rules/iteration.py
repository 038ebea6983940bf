"""An iteration of a serving engine that is being composed, in plain Python: what a rule reads and does.

The names are those of vLLM V1 and of `ooco_gym.policy.mixed`, of which this is a restatement without the simulator: a
test plays both on the same random states. A rule gives tokens to running requests (`allocate_slots`), admits waiting
ones (`admit`) and takes memory away (`preempt`); `Iteration.plan` is what an engine is then told to do.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

Sums = tuple[Any, ...]
"""What the latency of an iteration depends on, as its belief keeps it; its first entry is the number of new tokens."""


class Belief(Protocol):
    """What a rule believes of an engine's latency."""

    none: Sums

    def add(self, sums: Sums, new: int, reach: int, whole: bool) -> Sums:
        """Sums with one more request: its new tokens, its context with these, and whether it makes a token."""
        ...

    def latency(self, sums: Sums) -> float:
        """Seconds that an iteration takes."""
        ...

    def prefill(self, tokens: int) -> float:
        """Seconds that computing so many tokens of one prompt takes, alone."""
        ...


@dataclass(slots=True, eq=False)
class Request:
    """A request as a rule sees it.

    Attributes:
        id: the engine's name for it.
        online: whether it has a promise.
        order: what orders it among the waiting requests of its class; the least is next.
        arrival_s: when it arrived, in seconds of the engine's clock.
        ttft_slo_s: seconds until its first token.
        tpot_slo_s: seconds for each further token, on average.
        num_tokens: its context: prompt, and what it has generated.
        num_output_tokens: what it has generated.
        num_computed_tokens: tokens of it in memory.
        blocks: KV blocks that it holds.
        first_token_s: when its first token came; None before.
        look_up: of a waiting request: (tokens that it need not compute, blocks that hold them, how many of these no
            request reads); None: none.
        num_scheduled_tokens: its tokens in the iteration.
        pieces: what names each further 512 tokens of its prompt, all before them included; equal where prompts are.
    """

    id: Any
    online: bool
    order: Any
    arrival_s: float
    ttft_slo_s: float
    tpot_slo_s: float
    num_tokens: int
    num_output_tokens: int = 0
    num_computed_tokens: int = 0
    blocks: int = 0
    first_token_s: float | None = None
    look_up: Callable[[], tuple[int, int, int]] | None = None
    num_scheduled_tokens: int = 0
    pieces: tuple[Any, ...] = ()

    @property
    def missing(self) -> int:
        """Tokens that it has to compute until it makes its next one."""
        return self.num_tokens - self.num_computed_tokens

    @property
    def decodes(self) -> bool:
        """Whether it decodes, rather than computes its prompt (or, preempted, its context again)."""
        return self.num_output_tokens > 0 and self.num_tokens - self.num_computed_tokens == 1


class Line:
    """The waiting requests of a class, in order; only those that are looked at are described.

    Args:
        requests: in order.
        find: describes the one of an id, None where it does not wait; without it all are described to find one.
    """

    def __init__(self, requests: Iterable[Request] = (), find: Callable[[Any], Request | None] | None = None) -> None:
        self._find = find
        self._rest: Iterator[Request] = iter(requests)
        self._next: Request | None = next(self._rest, None)
        self._seen: list[tuple[Any, int, Request]] = []  # a heap: described already, or come back
        self._count = 0

    def peek(self) -> Request | None:
        """The next of them; None where none waits."""
        if self._next is not None and (not self._seen or self._next.order < self._seen[0][0]):
            self._describe(1)
        return self._seen[0][2] if self._seen else None

    def pop(self) -> Request:
        """Takes the next of them out."""
        self.peek()
        return heapq.heappop(self._seen)[2]

    def insert(self, request: Request) -> None:
        """Puts a request where its order says."""
        self._count += 1
        heapq.heappush(self._seen, (request.order, self._count, request))

    def first(self, count: int) -> list[Request]:
        """The next `count` of them, which stay."""
        self._describe(count)
        return [entry[2] for entry in heapq.nsmallest(count, self._seen)]

    def find(self, name: Any) -> Request | None:
        """The one of an id; None where it does not wait."""
        if self._find is not None:
            return self._find(name)
        return next((request for request in self if request.id == name), None)

    def __iter__(self) -> Iterator[Request]:
        """All of them, in order."""
        return iter(self.first(1 << 60))

    def _describe(self, count: int) -> None:
        while self._next is not None and count > 0:
            self.insert(self._next)
            self._next, count = next(self._rest, None), count - 1


@dataclass(slots=True)
class Engine:
    """An engine that is about to compose its next iteration.

    Attributes:
        now_s: when the iteration begins.
        running: the running requests in the order of admission.
        online: waiting online requests.
        offline: waiting offline ones.
        free_blocks: KV blocks that may be taken.
        total_blocks: all of them.
        block_size: tokens of one.
        max_num_seqs: requests that run at a time.
        max_num_batched_tokens: new tokens of an iteration.
        tpot_slo_s: the TPOT SLO; of several the tightest.
        num_waiting: waiting online requests and their tokens, waiting offline ones and theirs.
    """

    now_s: float
    running: list[Request]
    online: Line
    offline: Line
    free_blocks: int
    total_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    tpot_slo_s: float
    num_waiting: tuple[int, int, int, int] = (0, 0, 0, 0)


class Plan(NamedTuple):
    """What an engine is to do.

    Attributes:
        tokens: new tokens of each request in the iteration, by id.
        admitted: waiting requests that begin to run, in this order; each has tokens.
        preempted: running requests that lose their memory, in this order, before anything else.
        predicted_s: believed latency of the iteration.
        allowed_s: how long it was allowed to take; infinite where nothing bounds it.
    """

    tokens: dict[Any, int]
    admitted: list[Any]
    preempted: list[Any]
    predicted_s: float = 0.0
    allowed_s: float = float("inf")


@dataclass(slots=True)
class Iteration:
    """One iteration while it is composed: step actions, and what they have come to."""

    engine: Engine
    belief: Belief
    running: list[Request] = field(init=False)
    free: int = field(init=False)
    admitted: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.running = list(self.engine.running)
        self.free = self.engine.free_blocks

    # --- Reading ---
    def blocks_for(self, tokens: int) -> int:
        """KV blocks that hold so many tokens."""
        return -(-tokens // self.engine.block_size)

    def line(self, online: bool) -> Line:
        """The waiting requests of a class."""
        return self.engine.online if online else self.engine.offline

    def of_class(self, online: bool) -> list[Request]:
        """The running requests of a class, in the order of admission."""
        return [request for request in self.running if request.online == online]

    def has_seat(self) -> bool:
        """Whether one more request may run."""
        return len(self.running) < self.engine.max_num_seqs

    def new_blocks(self, request: Request, tokens: int) -> int:
        """Blocks beyond those held that a running request needs to compute `tokens` more."""
        reach = request.num_computed_tokens + request.num_scheduled_tokens + tokens
        return max(0, self.blocks_for(reach) - request.blocks)

    def computed(self, request: Request) -> tuple[int, int, int]:
        """Of a waiting request: tokens that it need not compute, blocks that hold them, those that no request reads."""
        return (0, 0, 0) if request.look_up is None else request.look_up()

    def need(self, request: Request) -> int:
        """Free blocks that the whole context of a waiting request takes."""
        _, shared, idle = self.computed(request)
        return self.blocks_for(request.num_tokens) - shared + idle

    def fits_whole(self, request: Request) -> bool:
        """Whether a waiting request may start: a seat, and memory for its whole context."""
        return self.has_seat() and self.need(request) <= self.free

    # --- Acting ---
    def allocate_slots(self, request: Request, tokens: int) -> bool:
        """Schedules `tokens` of a running request, with their memory; False where it is short."""
        more = self.new_blocks(request, tokens)
        if more > self.free:
            return False
        request.blocks += more
        self.free -= more
        request.num_scheduled_tokens += tokens
        return True

    def unschedule(self, request: Request) -> int:
        """Takes a request's tokens out of the iteration, not its memory; returns how many."""
        tokens, request.num_scheduled_tokens = request.num_scheduled_tokens, 0
        return tokens

    def admit(self, request: Request, tokens: int) -> int:
        """Lets the next waiting request of its class run, last in order, with at most `tokens`; returns its tokens."""
        start, shared, idle = self.computed(request)
        self.line(request.online).pop()
        request.num_computed_tokens, request.blocks = start, shared
        self.free -= idle
        self.running.append(request)
        self.admitted.append(request)
        tokens = min(tokens, request.num_tokens - start)
        self.allocate_slots(request, tokens)
        return tokens

    def preempt(self, index: int) -> Request:
        """Takes the memory of the running request at `index`, which waits again by its order; returns it."""
        request = self.running.pop(index)
        self.free += request.blocks
        request.blocks = request.num_computed_tokens = request.num_scheduled_tokens = 0
        request.look_up = None
        if request in self.admitted:
            self.admitted.remove(request)
        else:
            self.preempted.append(request)
        self.line(request.online).insert(request)
        return request

    def plan(self, predicted_s: float = 0.0, allowed_s: float = float("inf")) -> Plan:
        """What has been composed."""
        tokens = {request.id: request.num_scheduled_tokens for request in self.running if request.num_scheduled_tokens}
        return Plan(tokens, [request.id for request in self.admitted if request.num_scheduled_tokens],
                    [request.id for request in self.preempted], predicted_s, allowed_s)
